package tokenize

import (
	"errors"
	"math"
	"slices"
	"unicode/utf8"
)

// unigrams finds the likeliest way to make a text of tokens.
type unigrams struct {
	vocabulary
	lengths     map[rune][]int // in bytes, of the tokens that begin with a character; the shortest first
	unknown     int64          // noUnknown: none, and a text that would need it is refused
	unlikeliest float64        // score of what is unknown
	bytes       *byteTokens    // for what is unknown; nil: the token for it
}

// penalty is how much less likely a character that is not known is than the unlikeliest token.
const penalty = 10

func newUnigrams(m *model, v vocabulary) (words, error) {
	u := &unigrams{vocabulary: v, lengths: map[rune][]int{}, unknown: noUnknown, unlikeliest: math.Inf(1)}
	if m.UnknownID != nil {
		if u.unknown = *m.UnknownID; u.unknown < 0 || u.unknown >= int64(len(v.scores)) {
			return nil, errors.New("the unk_id of its model Unigram is not the number of a token of its vocabulary")
		}
	}
	for _, score := range v.scores {
		u.unlikeliest = min(u.unlikeliest, score)
	}
	u.unlikeliest -= penalty
	for token := range v.ids {
		first, _ := utf8.DecodeRuneInString(token)
		u.lengths[first] = withLength(u.lengths[first], len(token))
	}
	if m.ByteFallback {
		u.bytes = newByteTokens(v.ids)
	}
	return u, nil
}

// withLength adds a length to those that are known, which are in order. Nothing is no token.
func withLength(lengths []int, length int) []int {
	at, ok := slices.BinarySearch(lengths, length)
	if ok || length == 0 {
		return lengths
	}
	return slices.Insert(lengths, at, length)
}

// ending is the best way to the tokens of a text that ends somewhere.
type ending struct {
	score float64
	begin int32 // of its last token, -1: there is none yet
	id    int32 // of that token; a vocabulary in a file is far smaller
}

func (u *unigrams) tokens(ids []int64, text string) ([]int64, error) {
	best := make([]ending, len(text)+1)
	for i := range best {
		best[i].begin = -1
	}
	better := func(begin, end int, id int64, score float64) bool {
		score += best[begin].score
		is := best[end].begin < 0 || score > best[end].score
		if is {
			best[end] = ending{score, int32(begin), int32(id)}
		}
		return is
	}
	for at, r := range text {
		_, size := utf8.DecodeRuneInString(text[at:])
		known := false // the character alone is a token
		for _, length := range u.lengths[r] {
			end := at + length
			if end > len(text) {
				break
			}
			if id, ok := u.ids[text[at:end]]; ok {
				better(at, end, id, u.scores[id])
				known = known || end == at+size
			}
		}
		if !known && better(at, at+size, u.unknown, u.unlikeliest) && u.unknown == noUnknown {
			return nil, ErrUnknown
		}
	}
	return u.back(ids, best, text), nil
}

// back follows the best way from the end of the text. Neighbours that are unknown are one token.
func (u *unigrams) back(ids []int64, best []ending, text string) []int64 {
	type token struct{ begin, end int32 }
	var reversed []token
	fused := false
	for end := int32(len(text)); end > 0; end = best[end].begin {
		e := &best[end]
		if unknown := int64(e.id) == u.unknown; unknown && fused {
			reversed[len(reversed)-1].begin = e.begin
		} else {
			reversed = append(reversed, token{e.begin, end})
			fused = unknown
		}
	}
	for _, t := range slices.Backward(reversed) {
		part := text[t.begin:t.end]
		id, ok := u.ids[part]
		if ok {
			ids = append(ids, id)
			continue
		}
		if u.bytes != nil {
			ids, ok = u.bytes.appendTo(ids, part)
		}
		if !ok {
			ids = append(ids, u.unknown)
		}
	}
	return ids
}
