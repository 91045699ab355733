package tokenize

import (
	"errors"
	"unicode/utf8"
)

// wordLevel has a token for each word.
type wordLevel struct {
	vocab   map[string]int64
	unknown int64
}

func (w wordLevel) tokens(ids []int64, word string) []int64 {
	if id, ok := w.vocab[word]; ok {
		return append(ids, id)
	}
	return append(ids, w.unknown)
}

// wordPiece takes the longest token that a word begins with, and goes on with the rest.
type wordPiece struct {
	vocab    map[string]int64
	unknown  int64
	prefix   string // of tokens that continue a word
	maxChars int    // of a word; a longer one is unknown
}

func newWordPiece(m *model, vocab map[string]int64, unknown int64) (words, error) {
	w := &wordPiece{vocab: vocab, unknown: unknown, prefix: "##", maxChars: 100}
	if unknown < 0 {
		return nil, errors.New("WordPiece needs unk_token")
	}
	if m.Prefix != nil {
		w.prefix = *m.Prefix
	}
	if m.MaxChars != nil {
		w.maxChars = *m.MaxChars
	}
	return w, nil
}

func (w *wordPiece) tokens(ids []int64, word string) []int64 {
	if utf8.RuneCountInString(word) > w.maxChars {
		return append(ids, w.unknown)
	}
	begun := len(ids)
	for rest := word; rest != ""; {
		lead := ""
		if len(rest) < len(word) {
			lead = w.prefix
		}
		end := len(rest)
		for ; end > 0; end-- {
			if end < len(rest) && !utf8.RuneStart(rest[end]) {
				continue
			}
			if id, ok := w.vocab[lead+rest[:end]]; ok {
				ids = append(ids, id)
				break
			}
		}
		if end == 0 {
			return append(ids[:begun], w.unknown)
		}
		rest = rest[end:]
	}
	return ids
}

// bytesTokens finds the tokens <0x00> to <0xFF>. There are none if one is missing.
func bytesTokens(vocab map[string]int64) *[256]int64 {
	const digits = "0123456789ABCDEF"
	var all [256]int64
	for b := range all {
		id, ok := vocab["<0x"+string(digits[b>>4])+string(digits[b&15])+">"]
		if !ok {
			return nil
		}
		all[b] = id
	}
	return &all
}

// appendBytes adds a token for each byte of a text.
func appendBytes(ids []int64, table *[256]int64, text string) []int64 {
	for i := range len(text) {
		ids = append(ids, table[text[i]])
	}
	return ids
}
