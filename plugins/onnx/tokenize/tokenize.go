package tokenize

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer is safe for concurrent use.
type Tokenizer struct {
	MaxLength int   // tokens that a text is cut to, those around it among them; 0: not by the file
	Pad       int64 // what shorter texts are filled up with

	added         []added // the longest first
	normalize     []func(string) string
	split         []func(string) []string
	before, after []int64 // tokens around a text

	vocab    map[string]int64
	unknown  int64 // -1: none
	word     bool  // WordPiece; else byte pairs
	prefix   string
	maxChars int
	ranks    map[merge]int
}

// added is a token that is found in the text as it is.
type added struct {
	text string
	id   int64
}

// Encode gives the numbers of a text's tokens, with those around it, cut to limit tokens if limit is not 0.
func (t *Tokenizer) Encode(text string, limit int) []int64 {
	inner := t.tokens(text)
	if room := limit - len(t.before) - len(t.after); limit > 0 && len(inner) > room {
		inner = inner[:max(room, 0)]
	}
	all := make([]int64, 0, len(t.before)+len(inner)+len(t.after))
	return append(append(append(all, t.before...), inner...), t.after...)
}

// tokens tokenizes what lies between the added tokens.
func (t *Tokenizer) tokens(text string) []int64 {
	var ids []int64
	for text != "" {
		at, token := t.nextAdded(text)
		if at < 0 {
			return append(ids, t.plain(text)...)
		}
		ids = append(append(ids, t.plain(text[:at])...), token.id)
		text = text[at+len(token.text):]
	}
	return ids
}

// nextAdded finds the first added token, -1 for none.
func (t *Tokenizer) nextAdded(text string) (int, added) {
	first, token := -1, added{}
	for _, a := range t.added {
		if a.text == "" {
			continue
		}
		if at := strings.Index(text, a.text); at >= 0 && (first < 0 || at < first) {
			first, token = at, a
		}
	}
	return first, token
}

func (t *Tokenizer) plain(text string) []int64 {
	for _, step := range t.normalize {
		text = step(text)
	}
	if text == "" {
		return nil
	}
	pieces := []string{text}
	for _, split := range t.split {
		var finer []string
		for _, p := range pieces {
			finer = append(finer, split(p)...)
		}
		pieces = finer
	}
	var ids []int64
	for _, p := range pieces {
		if t.word {
			ids = append(ids, t.wordPiece(p)...)
		} else {
			ids = append(ids, t.bytePairs(p)...)
		}
	}
	return ids
}

// wordPiece takes the longest token that a word begins with, and goes on with the rest.
func (t *Tokenizer) wordPiece(word string) []int64 {
	if utf8.RuneCountInString(word) > t.maxChars {
		return []int64{t.unknown}
	}
	var ids []int64
	for rest := word; rest != ""; {
		lead := ""
		if len(rest) < len(word) {
			lead = t.prefix
		}
		end := len(rest)
		for ; end > 0; end-- {
			if end < len(rest) && !utf8.RuneStart(rest[end]) {
				continue
			}
			if id, ok := t.vocab[lead+rest[:end]]; ok {
				ids = append(ids, id)
				break
			}
		}
		if end == 0 {
			return []int64{t.unknown}
		}
		rest = rest[end:]
	}
	return ids
}

// bytePairs joins the pair that was learned first, again and again. Words are short: a list is faster here than a heap.
func (t *Tokenizer) bytePairs(word string) []int64 {
	parts := strings.Split(word, "")
	for len(parts) > 1 {
		best, at := len(t.ranks), -1
		for i := range len(parts) - 1 {
			if rank, ok := t.ranks[merge{parts[i], parts[i+1]}]; ok && rank < best {
				best, at = rank, i
			}
		}
		if at < 0 {
			break
		}
		pair := merge{parts[at], parts[at+1]}
		joined := parts[:0]
		for i := 0; i < len(parts); i++ {
			if i+1 < len(parts) && (merge{parts[i], parts[i+1]}) == pair {
				joined = append(joined, pair[0]+pair[1])
				i++
				continue
			}
			joined = append(joined, parts[i])
		}
		parts = joined
	}
	var ids []int64
	for _, p := range parts {
		if id, ok := t.vocab[p]; ok {
			ids = append(ids, id)
		} else if t.unknown >= 0 {
			ids = append(ids, t.unknown)
		}
	}
	return ids
}

var normalizers = map[string]func(string) string{ //nolint:gochecknoglobals // a table, never changed
	"Lowercase": strings.ToLower, "NFC": norm.NFC.String, "NFD": nfd, "NFKC": norm.NFKC.String, "NFKD": norm.NFKD.String, "StripAccents": dropMarks,
	"Strip": strings.TrimSpace,
}

func nfd(s string) string { return norm.NFD.String(s) }

func dropMarks(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.Is(unicode.Mn, r) {
			return -1
		}
		return r
	}, s)
}

func cleanText(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\t' || r == '\n' || r == '\r' || unicode.IsSpace(r):
			return ' '
		case r == 0 || r == utf8.RuneError || unicode.In(r, unicode.Cc, unicode.Cf, unicode.Co, unicode.Cs):
			return -1
		}
		return r
	}, s)
}

// spaceChinese puts blanks around each Chinese character.
func spaceChinese(s string) string {
	var b strings.Builder
	for _, r := range s {
		if isChinese(r) {
			b.WriteString(" " + string(r) + " ")
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func isChinese(r rune) bool {
	return r >= 0x4e00 && r <= 0x9fff || r >= 0x3400 && r <= 0x4dbf || r >= 0x20000 && r <= 0x2a6df || r >= 0x2a700 && r <= 0x2b73f || r >= 0x2b740 && r <= 0x2b81f ||
		r >= 0x2b820 && r <= 0x2ceaf || r >= 0xf900 && r <= 0xfaff || r >= 0x2f800 && r <= 0x2fa1f
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

func isWord(r rune) bool {
	return r == '_' || unicode.IsLetter(r) || unicode.Is(unicode.M, r) || unicode.Is(unicode.Nd, r) || unicode.Is(unicode.Nl, r) || unicode.Is(unicode.Pc, r)
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
