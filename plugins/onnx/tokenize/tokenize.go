package tokenize

import (
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Tokenizer is safe for concurrent use.
type Tokenizer struct {
	MaxLength int   // tokens that a text is cut to, those around it among them; 0: not by the file
	Pad       int64 // what shorter texts are filled up with

	raw, later    addedTokens // found in the text as it came, and in what the normalizer makes of it
	normalize     []step
	split         []split
	first         bool    // whether a piece begins the text matters to one of split
	before, after []int64 // tokens around a text
	words         words
}

// words finds the tokens of a word, and appends their numbers.
type words interface {
	tokens(ids []int64, word string) []int64
}

// step is one of a normalizer.
type step struct {
	do    func(string) string
	blind bool // it takes what follows for the beginning of the text when it drops that
}

// split is one of the pre-tokenizers: it makes pieces of a piece, and may not take longer than until.
type split func(p piece, until time.Time) ([]piece, error)

// piece is a part of a text.
type piece struct {
	text  string
	first bool // it begins where the text begins
}

// Encode gives the numbers of a text's tokens, with those around it, cut to limit tokens if limit is not 0. The only error is ErrTooLong.
func (t *Tokenizer) Encode(text string, limit int) ([]int64, error) {
	inner, err := t.tokens(strings.ToValidUTF8(text, "\ufffd"))
	if err != nil {
		return nil, err
	}
	if room := limit - len(t.before) - len(t.after); limit > 0 && len(inner) > room {
		inner = inner[:max(room, 0)]
	}
	all := make([]int64, 0, len(t.before)+len(inner)+len(t.after))
	return append(append(append(all, t.before...), inner...), t.after...), nil
}

// tokens tokenizes what lies between the added tokens.
func (t *Tokenizer) tokens(text string) ([]int64, error) {
	var ids []int64
	until := time.Now().Add(textLimit)
	for span := range t.raw.spans(text) {
		if span.token != nil {
			ids = append(ids, span.token.ID)
			continue
		}
		part, first := t.normalized(text[span.begin:span.end], span.begin == 0)
		for inner := range t.later.spans(part) {
			if inner.token != nil {
				ids = append(ids, inner.token.ID)
				continue
			}
			pieces, err := t.pieces(piece{part[inner.begin:inner.end], first && inner.begin == 0}, until)
			if err != nil {
				return nil, err
			}
			for _, p := range pieces {
				ids = t.words.tokens(ids, p.text)
			}
		}
	}
	return ids, nil
}

// normalized does the normalizer's steps, and says whether the text's first character is still represented.
func (t *Tokenizer) normalized(text string, first bool) (string, bool) {
	for _, step := range t.normalize {
		if t.first && first && !step.blind && text != "" {
			_, size := utf8.DecodeRuneInString(text)
			first = step.do(text[:size]+"a") != step.do("a")
		}
		text = step.do(text)
	}
	return text, first
}

// pieces does the steps of the pre-tokenizers. Nothing of it is empty.
func (t *Tokenizer) pieces(p piece, until time.Time) ([]piece, error) {
	pieces := []piece{p}
	for _, split := range t.split {
		finer := make([]piece, 0, len(pieces))
		for _, p := range pieces {
			parts, err := split(p, until)
			if err != nil {
				return nil, err
			}
			finer = append(finer, parts...)
		}
		pieces = finer
	}
	return slices.DeleteFunc(pieces, func(p piece) bool { return p.text == "" }), nil
}
