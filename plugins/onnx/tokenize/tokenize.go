package tokenize

import (
	"errors"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Tokenizer is safe for concurrent use.
type Tokenizer struct {
	MaxLength int // tokens that a text is cut to, those around it among them; 0: not by the file
	Padding   Padding

	raw, later addedTokens // found in the text as it came, and in what the normalizer makes of it
	normalize  []step
	split      []split
	first      bool // whether a piece begins the text matters to one of split
	around     []place
	specials   int  // tokens that come with a text: it is cut to the limit less these
	cutLeft    bool // the end of a long text is kept, and not its beginning
	words      words
}

// Padding is what shorter texts are filled up with, and where.
type Padding struct {
	ID, Type int64
	Left     bool // it comes before the text
	Fixed    int  // tokens that every text has at least; 0: as many as the longest
	Multiple int  // what the number of tokens is a multiple of; 0: any number
}

// Length gives the number of tokens that texts have, the longest of which has so many, when they are filled up as the file says. A text that is longer than a fixed length
// stays as long as it is, multiple or not: so does Hugging Face's library.
func (p *Padding) Length(longest int) int {
	length := longest
	if p.Fixed > 0 {
		length = p.Fixed
	}
	if p.Multiple > 0 && length%p.Multiple > 0 {
		length += p.Multiple - length%p.Multiple
	}
	return max(longest, length)
}

// Encoded has the tokens of a text.
type Encoded struct {
	IDs   []int64
	Types []int64 // what token_type_ids says of each; nil: all are 0
}

// ErrUnknown says that a text has something for which there is no token, and that there is none for what is unknown.
var ErrUnknown = errors.New("the text has something that its tokenizer has no token for, and the tokenizer has none for what is unknown")

// ErrTooMuch says that the steps of tokenizer.json make far more of a text than it is.
var ErrTooMuch = errors.New("the normalizer or pre-tokenizer of tokenizer.json makes more of this text than is kept in memory: one of its steps puts much in the place of little, or several do")

// words finds the tokens of a word, and appends their numbers. The only error is ErrUnknown.
type words interface {
	tokens(ids []int64, word string) ([]int64, error)
}

// step is one of a normalizer. It keeps to the bounds where it may run on or grow without them.
type step func(p piece, b bounds) (piece, error)

// split is one of the pre-tokenizers: it makes pieces of a piece, and keeps to the bounds as a step does.
type split func(p piece, b bounds) ([]piece, error)

// bounds are what the steps may take for a text.
type bounds struct {
	until time.Time
	size  int // bytes that they may make of it
}

// Steps in use make twice as much of a text, or three times for a few languages. NFKC makes eleven times as much of U+FDFA, and so it may, unless the text is long.
const (
	maxGrowth = 4
	smallText = 16 << 20 // bytes that may be made of any text
	maxText   = 1 << 30  // bytes that no text may have: places in it are kept in 32 bits
)

func boundsOf(text string) bounds {
	return bounds{time.Now().Add(textLimit), min(max(maxGrowth*len(text), smallText), maxText)}
}

func (b *bounds) check(size int) error {
	if size > b.size {
		return ErrTooMuch
	}
	return nil
}

// piece is a part of a text, as far as it has been made.
type piece struct {
	text  string
	first int // of its bytes, how many of the first ones stand for the first character of the whole text; 0 when that matters to nobody
}

// part gives a part of a piece.
func (p piece) part(begin, end int) piece {
	return piece{p.text[begin:end], max(0, min(p.first, end)-begin)}
}

// Encode gives the tokens of a text, with those around it, cut to limit tokens if limit is not 0. What is cut off need not be looked at, so nothing there is an error, as it
// is in Hugging Face's library. A limit that leaves no room for the text leaves nothing of it; that library cuts nothing when the limit is below the number of tokens around
// it, as its number runs below zero. The only errors are ErrTooLong, ErrTooMuch and ErrUnknown.
func (t *Tokenizer) Encode(text string, limit int) (Encoded, error) {
	most := limit
	if t.cutLeft || limit <= 0 {
		most = -1
	}
	inner, err := t.tokens(strings.ToValidUTF8(text, "\ufffd"), most)
	if err != nil {
		return Encoded{}, err
	}
	if room := max(limit-t.specials, 0); limit > 0 && len(inner) > room {
		if t.cutLeft {
			inner = inner[len(inner)-room:]
		} else {
			inner = inner[:room]
		}
	}
	return t.surrounded(inner), nil
}

// tokens tokenizes what lies between the added tokens. It may stop once there are as many tokens as most, if that is not negative.
func (t *Tokenizer) tokens(text string, most int) ([]int64, error) {
	var ids []int64
	b := boundsOf(text)
	made := 0
	for span := range t.raw.spans(text) {
		if most >= 0 && len(ids) >= most {
			break
		}
		if span.token != nil {
			ids = append(ids, span.token.ID)
			continue
		}
		p := piece{text: text[span.begin:span.end]}
		if t.first && span.begin == 0 {
			_, p.first = utf8.DecodeRuneInString(text)
		}
		p, err := t.normalized(p, b)
		if err == nil {
			made += len(p.text) // a part is small, and there may be many
			err = b.check(made)
		}
		if err != nil {
			return nil, err
		}
		if ids, err = t.inner(ids, p, most, b); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

// inner tokenizes a part of a text that has been normalized.
func (t *Tokenizer) inner(ids []int64, p piece, most int, b bounds) ([]int64, error) {
	for span := range t.later.spans(p.text) {
		if span.token != nil {
			ids = append(ids, span.token.ID)
			continue
		}
		pieces, err := t.pieces(p.part(span.begin, span.end), b)
		if err != nil {
			return nil, err
		}
		for _, word := range pieces {
			if most >= 0 && len(ids) >= most {
				return ids, nil
			}
			if ids, err = t.words.tokens(ids, word.text); err != nil {
				return nil, err
			}
		}
	}
	return ids, nil
}

// normalized does the normalizer's steps.
func (t *Tokenizer) normalized(p piece, b bounds) (piece, error) {
	for _, do := range t.normalize {
		var err error
		if p, err = do(p, b); err != nil {
			return p, err
		}
		if err := b.check(len(p.text)); err != nil {
			return p, err
		}
	}
	return p, nil
}

// pieces does the steps of the pre-tokenizers. Nothing of it is empty.
func (t *Tokenizer) pieces(p piece, b bounds) ([]piece, error) {
	empty := func(p piece) bool { return p.text == "" }
	pieces := slices.DeleteFunc([]piece{p}, empty)
	for _, split := range t.split {
		finer := make([]piece, 0, len(pieces))
		size := 0
		for _, p := range pieces {
			parts, err := split(p, b)
			if err != nil {
				return nil, err
			}
			for i := range parts {
				size += len(parts[i].text)
			}
			if err := b.check(size); err != nil {
				return nil, err
			}
			finer = append(finer, parts...)
		}
		pieces = slices.DeleteFunc(finer, empty)
	}
	return pieces, nil
}
