package tokenize

import (
	"cmp"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// joiner is what the package norm puts between more than thirty marks, so that nobody has to keep more of them in mind. Others do not.
const joiner = "\u034f"

// form brings a text into one of Unicode's normal forms.
func form(f norm.Form) step {
	do := func(s string) string {
		made := f.String(s)
		if strings.Contains(made, joiner) {
			return longForm(f, s)
		}
		return made
	}
	return func(p piece, _ bounds) (piece, error) {
		made := piece{text: formed(p.text, do)}
		if p.first > 0 {
			made.first = lead(made.text, formed(p.text[:p.first], do))
		}
		return made, nil
	}
}

// mark is a character with its class: 0 for what begins something, and for marks, which go with it, the order that they are brought into.
type mark struct {
	r     rune
	class uint8
}

// longForm brings a text into a form however many marks follow each other.
func longForm(f norm.Form, s string) string {
	decomposed := norm.NFD
	if f == norm.NFKC || f == norm.NFKD {
		decomposed = norm.NFKD
	}
	all := make([]mark, 0, len(s))
	begin := 0 // of the marks that are still to be brought into order
	for _, r := range s {
		for _, r := range decomposed.String(string(r)) {
			class := norm.NFD.PropertiesString(string(r)).CCC()
			if class == 0 {
				inOrder(all[begin:])
				begin = len(all) + 1
			}
			all = append(all, mark{r, class})
		}
	}
	inOrder(all[begin:])
	if f == norm.NFC || f == norm.NFKC {
		all = composed(all)
	}
	var b strings.Builder
	b.Grow(len(s))
	for _, m := range all {
		b.WriteRune(m.r)
	}
	return b.String()
}

func inOrder(marks []mark) {
	slices.SortStableFunc(marks, func(a, b mark) int { return cmp.Compare(a.class, b.class) })
}

// composed joins marks to what they go with, where there is a character for both.
func composed(all []mark) []mark {
	made := all[:0]
	begin, last := -1, uint8(0) // what the marks go with, and the class of the last of these that stays
	for _, m := range all {
		if begin >= 0 && (last == 0 || last < m.class) {
			if r, ok := pairOf(made[begin].r, m.r); ok {
				made[begin].r = r
				continue
			}
		}
		if m.class == 0 {
			begin = len(made)
		}
		last = m.class
		made = append(made, m)
	}
	return made
}

// pairOf gives the one character that stands for two.
func pairOf(a, b rune) (rune, bool) {
	text := norm.NFC.String(string([]rune{a, b}))
	r, size := utf8.DecodeRuneInString(text)
	return r, size == len(text)
}

// formed brings what lies between the characters that are apart into a form.
func formed(s string, do func(string) string) string {
	next := func(s string) int {
		return strings.IndexFunc(s, func(r rune) bool { return r >= firstApart && unicode.Is(apart(), r) })
	}
	at := next(s)
	if at < 0 {
		return do(s)
	}
	var b strings.Builder
	for ; at >= 0; at = next(s) {
		_, size := utf8.DecodeRuneInString(s[at:])
		b.WriteString(do(s[:at]) + s[at:at+size])
		s = s[at+size:]
	}
	b.WriteString(do(s))
	return b.String()
}

// firstApart spares most texts the search.
const firstApart = 0x7fd

// lead gives how long the beginning of a text is that stands for what is begin by itself: begin, unless its end was joined with what follows to another character.
func lead(text, begin string) int {
	n := 0
	for n < len(begin) {
		_, size := utf8.DecodeRuneInString(begin[n:])
		if !strings.HasPrefix(text[n:], begin[n:n+size]) {
			_, size = utf8.DecodeRuneInString(text[n:])
			return n + size
		}
		n += size
	}
	return n
}
