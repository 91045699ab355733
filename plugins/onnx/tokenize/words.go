package tokenize

import (
	"errors"
	"slices"
	"strings"
	"unicode/utf8"
)

// wordLevel has a token for each word.
type wordLevel struct {
	vocab   map[string]int64
	unknown int64
}

func (w wordLevel) tokens(ids []int64, word string) ([]int64, error) {
	if id, ok := w.vocab[word]; ok {
		return append(ids, id), nil
	}
	return appendUnknown(ids, w.unknown)
}

func appendUnknown(ids []int64, unknown int64) ([]int64, error) {
	if unknown < 0 {
		return nil, ErrUnknown
	}
	return append(ids, unknown), nil
}

// wordPiece takes the longest token that a word begins with, and goes on with the rest.
type wordPiece struct {
	vocab    map[string]int64
	unknown  int64
	prefix   string // of tokens that continue a word
	maxChars int    // of a word; a longer one is unknown
	first    []int  // how long in bytes the tokens are that begin a word; the shortest first
	further  []int  // and those that continue one, without the prefix
}

func newWordPiece(m *model, vocab map[string]int64, unknown int64) (words, error) {
	w := &wordPiece{vocab: vocab, unknown: unknown, prefix: "##", maxChars: 100}
	if unknown == noUnknown {
		return nil, errors.New("WordPiece needs unk_token")
	}
	if m.Prefix != nil {
		w.prefix = *m.Prefix
	}
	if m.MaxChars != nil {
		w.maxChars = *m.MaxChars
	}
	for token := range vocab {
		w.first = withLength(w.first, len(token))
		if rest, ok := strings.CutPrefix(token, w.prefix); ok {
			w.further = withLength(w.further, len(rest))
		}
	}
	return w, nil
}

func (w *wordPiece) tokens(ids []int64, word string) ([]int64, error) {
	if utf8.RuneCountInString(word) > w.maxChars {
		return appendUnknown(ids, w.unknown)
	}
	begun := len(ids)
	lead, lengths := "", w.first
	for rest := word; rest != ""; {
		id, length, ok := w.token(lead, rest, lengths)
		if !ok {
			return appendUnknown(ids[:begun], w.unknown)
		}
		ids = append(ids, id)
		rest = rest[length:]
		lead, lengths = w.prefix, w.further
	}
	return ids, nil
}

// token gives the longest token that a part of a word begins with, and how much of it that is.
func (w *wordPiece) token(lead, rest string, lengths []int) (id int64, length int, ok bool) {
	for _, length := range slices.Backward(lengths) {
		if length > len(rest) {
			continue
		}
		if id, ok := w.vocab[lead+rest[:length]]; ok {
			return id, length, true
		}
	}
	return 0, 0, false
}

// byteTokens are the tokens <0x00> to <0xFF>, -1 for those that are not in the vocabulary.
type byteTokens [256]int64

func newByteTokens(vocab map[string]int64) *byteTokens {
	const digits = "0123456789ABCDEF"
	var all byteTokens
	for b := range all {
		id, ok := vocab["<0x"+string(digits[b>>4])+string(digits[b&15])+">"]
		if !ok {
			id = -1
		}
		all[b] = id
	}
	return &all
}

// appendTo adds a token for each byte of a text, if there is one for all of them.
func (b *byteTokens) appendTo(ids []int64, text string) ([]int64, bool) {
	begun := len(ids)
	for i := range len(text) {
		id := b[text[i]]
		if id < 0 {
			return ids[:begun], false
		}
		ids = append(ids, id)
	}
	return ids, true
}
