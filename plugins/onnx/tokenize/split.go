package tokenize

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

func (t *Tokenizer) preTokenizer(p *stage) error {
	if p == nil {
		return nil
	}
	if p.Type == typeSequence {
		for i := range p.PreTokenizers {
			if err := t.preTokenizer(&p.PreTokenizers[i]); err != nil {
				return err
			}
		}
		return nil
	}
	steps, err := splitSteps(p)
	if err != nil {
		return err
	}
	t.first = t.first || p.Type == typeMetaspace && p.Scheme == schemeFirst
	t.split = append(t.split, steps...)
	return nil
}

const typeMetaspace = "Metaspace"

func splitSteps(p *stage) ([]split, error) {
	switch p.Type {
	case "BertPreTokenizer":
		return []split{into(splitBERT)}, nil
	case "Whitespace":
		return []split{into(splitWords)}, nil
	case "WhitespaceSplit":
		return []split{into(strings.Fields)}, nil
	case "ByteLevel":
		return byteLevel(p), nil
	case typeMetaspace:
		do, err := metaspace(p)
		return []split{do}, err
	case "Split":
		do, err := splitPattern(p)
		return []split{do}, err
	case "Digits", "Punctuation":
		do, err := splitKind(p)
		return []split{do}, err
	case "CharDelimiterSplit":
		do, err := splitDelimiter(p)
		return []split{do}, err
	case "FixedLength":
		do, err := fixed(p)
		return []split{do}, err
	case "UnicodeScripts":
		return []split{scriptsOf(scriptTable).split}, nil
	}
	return nil, fmt.Errorf("its pre-tokenizer %q is not known here", p.Type)
}

// into makes a step of a function that gives parts of a text, in order.
func into(parts func(string) []string) split {
	return func(p piece, _ bounds) ([]piece, error) {
		texts := parts(p.text)
		pieces := make([]piece, len(texts))
		at := 0
		for i, text := range texts {
			pieces[i].text = text
			if at < p.first {
				at += strings.Index(p.text[at:], text)
				pieces[i] = p.part(at, at+len(text))
				at += len(text)
			}
		}
		return pieces, nil
	}
}

// byteLevel puts a blank before a text, splits it as GPT-2 does, and writes its bytes as letters.
func byteLevel(p *stage) (steps []split) {
	if flag(p.PrefixSpace, true) {
		steps = append(steps, func(p piece, _ bounds) ([]piece, error) {
			if strings.HasPrefix(p.text, " ") {
				return []piece{p}, nil
			}
			return []piece{p.behind(" ")}, nil
		})
	}
	if flag(p.UseRegex, true) {
		steps = append(steps, into(splitGPT2))
	}
	toLetters := each(bytesAsLetters)
	return append(steps, func(p piece, b bounds) ([]piece, error) {
		p, err := toLetters(p, b)
		return []piece{p}, err
	})
}

// Which texts Metaspace puts a blank before.
const (
	schemeAlways = "always"
	schemeFirst  = "first" // that with the first character
	schemeNever  = "never"
)

// metaspace writes blanks as SentencePiece does, with one before the text, and makes a piece of each and what follows it.
func metaspace(p *stage) (split, error) {
	blank := p.Replacement
	if utf8.RuneCountInString(blank) != 1 {
		return nil, fmt.Errorf("its Metaspace replaces blanks by %q, which is not one character", blank)
	}
	scheme := p.Scheme
	if scheme == "" {
		scheme = schemeAlways
		if !flag(p.PrefixSpace, true) {
			scheme = schemeNever
		}
	}
	if scheme != schemeAlways && scheme != schemeFirst && scheme != schemeNever {
		return nil, fmt.Errorf("its Metaspace has the prepend_scheme %q, which is not known here", scheme)
	}
	whole := !flag(p.Split, true)
	write := each(func(s string) string { return strings.ReplaceAll(s, " ", blank) })
	return func(p piece, b bounds) ([]piece, error) {
		p, err := write(p, b)
		if err != nil {
			return nil, err
		}
		if (scheme == schemeAlways || scheme == schemeFirst && p.first > 0) && !strings.HasPrefix(p.text, blank) {
			p = p.behind(blank)
		}
		if whole {
			return []piece{p}, nil
		}
		var pieces []piece
		for begin := 0; begin < len(p.text); {
			end := len(p.text)
			_, size := utf8.DecodeRuneInString(p.text[begin:])
			if next := strings.Index(p.text[begin+size:], blank); next >= 0 {
				end = begin + size + next
			}
			pieces = append(pieces, p.part(begin, end))
			begin = end
		}
		return pieces, nil
	}, nil
}

// splitDelimiter splits at a character, which goes.
func splitDelimiter(p *stage) (split, error) {
	delimiter, size := utf8.DecodeRuneInString(p.Delimiter)
	if size == 0 || size != len(p.Delimiter) {
		return nil, fmt.Errorf("its pre-tokenizer CharDelimiterSplit has the delimiter %q, which is not one character", p.Delimiter)
	}
	return splitStep(runeFinder(func(r rune) bool { return r == delimiter }), removed, false)
}

// fixed makes pieces of so many characters each.
func fixed(p *stage) (split, error) {
	length := 5
	if p.Length != nil {
		length = *p.Length
	}
	if length < 1 {
		return nil, fmt.Errorf("its pre-tokenizer FixedLength has the length %d, and at least 1 is needed", length)
	}
	return func(p piece, _ bounds) ([]piece, error) {
		var pieces []piece
		begin, n := 0, 0
		for at := range p.text {
			if n == length {
				pieces = append(pieces, p.part(begin, at))
				begin, n = at, 0
			}
			n++
		}
		return append(pieces, p.part(begin, len(p.text))), nil
	}, nil
}

func isPunctuation(r rune) bool { return unicode.Is(punctuation(), r) }

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
