package tokenize

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

func (t *Tokenizer) preTokenizer(p *part) error {
	if p == nil {
		return nil
	}
	switch p.Type {
	case "Sequence":
		for i := range p.PreTokenizers {
			if err := t.preTokenizer(&p.PreTokenizers[i]); err != nil {
				return err
			}
		}
	case "BertPreTokenizer":
		t.split = append(t.split, into(splitBERT))
	case "Whitespace":
		t.split = append(t.split, into(splitWords))
	case "WhitespaceSplit":
		t.split = append(t.split, into(strings.Fields))
	case "ByteLevel":
		if flag(p.PrefixSpace, true) {
			t.split = append(t.split, into(func(s string) []string {
				if strings.HasPrefix(s, " ") {
					return []string{s}
				}
				return []string{" " + s}
			}))
		}
		if flag(p.UseRegex, true) {
			t.split = append(t.split, into(splitGPT2))
		}
		t.split = append(t.split, into(byteLevel))
	case "Metaspace":
		return t.metaspace(p)
	case "Split":
		return t.splitPattern(p)
	case "Digits", "Punctuation":
		return t.splitKind(p)
	default:
		return fmt.Errorf("its pre-tokenizer %q is not known here", p.Type)
	}
	return nil
}

// into makes a step of a function for which it does not matter where a piece begins.
func into(parts func(string) []string) split {
	return func(p piece, _ time.Time) ([]piece, error) {
		texts := parts(p.text)
		pieces := make([]piece, len(texts))
		for i, text := range texts {
			pieces[i] = piece{text, p.first && i == 0 && strings.HasPrefix(p.text, text)}
		}
		return pieces, nil
	}
}

// metaspace writes blanks as SentencePiece does, with one before the text, and makes a piece of each and what follows it.
func (t *Tokenizer) metaspace(p *part) error {
	blank := p.Replacement
	if utf8.RuneCountInString(blank) != 1 {
		return fmt.Errorf("its Metaspace replaces blanks by %q, which is not one character", blank)
	}
	scheme := p.Scheme
	if scheme == "" {
		scheme = "always"
		if !flag(p.PrefixSpace, true) {
			scheme = "never"
		}
	}
	if scheme != "always" && scheme != "first" && scheme != "never" {
		return fmt.Errorf("its Metaspace has the prepend_scheme %q, which is not known here", scheme)
	}
	t.first = t.first || scheme == "first"
	whole := !flag(p.Split, true)
	t.split = append(t.split, func(p piece, _ time.Time) ([]piece, error) {
		text := strings.ReplaceAll(p.text, " ", blank)
		if (scheme == "always" || scheme == "first" && p.first) && !strings.HasPrefix(text, blank) {
			text = blank + text
		}
		if whole {
			return []piece{{text, p.first}}, nil
		}
		var pieces []piece
		for text != "" {
			end := len(text)
			_, size := utf8.DecodeRuneInString(text)
			if next := strings.Index(text[size:], blank); next >= 0 {
				end = size + next
			}
			pieces = append(pieces, piece{text[:end], p.first && len(pieces) == 0})
			text = text[end:]
		}
		return pieces, nil
	})
	return nil
}

func isPunctuation(r rune) bool {
	return r < unicode.MaxASCII && (unicode.IsPunct(r) || unicode.IsSymbol(r)) || unicode.IsPunct(r)
}

// splitBERT splits at blanks, and makes a word of each sign of punctuation.
func splitBERT(s string) []string {
	var all []string
	for word := range strings.FieldsSeq(s) {
		begin := 0
		for at, r := range word {
			if !isPunctuation(r) {
				continue
			}
			if begin < at {
				all = append(all, word[begin:at])
			}
			begin = at + utf8.RuneLen(r)
			all = append(all, word[at:begin])
		}
		if begin < len(word) {
			all = append(all, word[begin:])
		}
	}
	return all
}

// isWord is \w.
func isWord(r rune) bool {
	return unicode.IsLetter(r) || unicode.In(r, unicode.M, unicode.Nd, unicode.Nl, unicode.Pc, unicode.Other_Alphabetic, unicode.Join_Control)
}

// splitWords is \w+|[^\w\s]+.
func splitWords(s string) []string {
	var all []string
	for field := range strings.FieldsSeq(s) {
		for field != "" {
			first, _ := utf8.DecodeRuneInString(field)
			kind := isWord(first)
			end := strings.IndexFunc(field, func(r rune) bool { return isWord(r) != kind })
			if end < 0 {
				end = len(field)
			}
			all = append(all, field[:end])
			field = field[end:]
		}
	}
	return all
}

// splitGPT2 is 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+.
func splitGPT2(s string) []string {
	var all []string
	for s != "" {
		n := gpt2Length(s)
		all = append(all, s[:n])
		s = s[n:]
	}
	return all
}

func gpt2Length(s string) int {
	for _, short := range []string{"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"} {
		if strings.HasPrefix(s, short) {
			return len(short)
		}
	}
	lead := 0
	if s[0] == ' ' {
		lead = 1
	}
	first, _ := utf8.DecodeRuneInString(s[lead:])
	if len(s) > lead && !unicode.IsSpace(first) {
		kind := gpt2Kind(first)
		end := strings.IndexFunc(s[lead:], func(r rune) bool { return unicode.IsSpace(r) || gpt2Kind(r) != kind })
		if end < 0 {
			return len(s)
		}
		return lead + end
	}
	end := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsSpace(r) })
	if end < 0 {
		return len(s)
	}
	_, last := utf8.DecodeLastRuneInString(s[:end])
	if end > last { // the last blank belongs to the word behind it
		return end - last
	}
	return end
}

func gpt2Kind(r rune) int {
	switch {
	case unicode.IsLetter(r):
		return 1
	case unicode.IsNumber(r):
		return 2
	}
	return 3
}

// byteLevel writes each byte as a letter that can be seen, as GPT-2's vocabulary has it.
func byteLevel(s string) []string {
	var b strings.Builder
	for i := range len(s) {
		b.WriteRune(letters[s[i]])
	}
	return []string{b.String()}
}

var letters = byteLetters() //nolint:gochecknoglobals // a table, never changed

func byteLetters() (table [256]rune) {
	next := rune(256)
	for b := range table {
		if b >= '!' && b <= '~' || b >= 0xa1 && b <= 0xac || b >= 0xae {
			table[b] = rune(b)
			continue
		}
		table[b] = next
		next++
	}
	return table
}
