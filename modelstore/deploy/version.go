package deploy

import (
	"cmp"
	"slices"
	"strings"
)

// CompareVersions orders version names as people read them: numbers as numbers (10 comes after 9, 1.10 after 1.9), a longer one after its beginning
// (1.0.1 after 1.0), but what comes before a release before it (1.0-rc1 before 1.0).
func CompareVersions(a, b string) int {
	x, y := tokens(a), tokens(b)
	if n := slices.CompareFunc(x, y, token.compare); n != 0 {
		return n
	}
	return strings.Compare(a, b)
}

// token is a number or a word of a version name.
type token struct {
	rank int
	text string // of a number: without zeros before it
}

// The ranks of tokens, the least first.
const (
	rankEarly  = iota // a word for what comes before a release
	rankEnd           // the end of the name
	rankWord          // another word
	rankNumber        // a number
)

func (t token) compare(other token) int {
	if t.rank != other.rank {
		return cmp.Compare(t.rank, other.rank)
	}
	if t.rank == rankNumber && len(t.text) != len(other.text) {
		return cmp.Compare(len(t.text), len(other.text))
	}
	return strings.Compare(t.text, other.text)
}

// tokens takes a version name apart.
func tokens(s string) []token {
	var list []token
	for s != "" {
		n := run(s)
		switch word := s[:n]; {
		case isDigit(word[0]):
			list = append(list, token{rankNumber, strings.TrimLeft(word, "0")})
		case isLetter(word[0]):
			list = append(list, wordToken(word))
		}
		s = s[n:]
	}
	return append(list, token{rank: rankEnd})
}

func wordToken(word string) token {
	word = strings.ToLower(word)
	switch word {
	case "alpha", "beta", "dev", "pre", "preview", "rc", "snapshot":
		return token{rankEarly, word}
	}
	return token{rankWord, word}
}

// run gives the length of the token, or of the separators, that a text begins with.
func run(s string) int {
	class := func(c byte) int {
		switch {
		case isDigit(c):
			return 1
		case isLetter(c):
			return 2
		}
		return 0
	}
	n := 1
	for n < len(s) && class(s[n]) == class(s[0]) {
		n++
	}
	return n
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isLetter takes every byte of other alphabets for a letter.
func isLetter(c byte) bool { return 'a' <= c|0x20 && c|0x20 <= 'z' || c >= 0x80 }
