package tokenize

import (
	"fmt"
	"unicode/utf8"
)

// bytePairs joins the pair that was learned first, again and again.
type bytePairs struct {
	vocab          map[string]int64
	merges         map[[2]uint32]learned
	unknown        int64 // noUnknown: what is unknown is left out
	fuse           bool  // of several unknown characters in a row one token is made
	prefix, suffix string
	whole          bool        // a word that is a token is one, whatever the merges make of it
	bytes          *byteTokens // for characters that are not in the vocabulary; nil: they are unknown
}

// learned is what a pair becomes.
type learned struct{ rank, id uint32 }

func newBytePairs(m *model, vocab map[string]int64, unknown int64) (words, error) {
	b := &bytePairs{vocab: vocab, merges: make(map[[2]uint32]learned, len(m.Merges)), unknown: unknown, fuse: m.FuseUnknown, whole: m.IgnoreMerges}
	if m.Prefix != nil {
		b.prefix = *m.Prefix
	}
	if m.Suffix != nil {
		b.suffix = *m.Suffix
	}
	if m.ByteFallback {
		b.bytes = newByteTokens(vocab)
	}
	if m.Dropout < 0 || m.Dropout > 1 {
		return nil, fmt.Errorf("its dropout is %v, and has to be from 0 to 1", m.Dropout)
	}
	if m.Dropout == 1 { // nothing is joined, for certain; less is by chance, for training, and left out here
		b.whole = false
		return b, nil
	}
	for i, pair := range m.Merges {
		if pair == (merge{}) {
			continue
		}
		left, okLeft := vocab[pair[0]]
		right, okRight := vocab[pair[1]]
		joined, ok := int64(0), len(pair[1]) >= len(b.prefix)
		if ok {
			joined, ok = vocab[pair[0]+pair[1][len(b.prefix):]]
		}
		if !okLeft || !okRight || !ok {
			return nil, fmt.Errorf("the tokens of the merge %q are not in the vocabulary", pair)
		}
		b.merges[[2]uint32{uint32(left), uint32(right)}] = learned{uint32(i), uint32(joined)}
	}
	return b, nil
}

// symbol is a token of a word that is being put together; those that were joined to the left one have gone. (A word can be as long as a text: it is kept small.)
type symbol struct {
	id         uint32
	prev, next int32 // -1: none
	gone       bool
}

func (b *bytePairs) tokens(ids []int64, word string) ([]int64, error) {
	if b.whole {
		if id, ok := b.vocab[word]; ok {
			return append(ids, id), nil
		}
	}
	symbols, err := b.characters(word)
	if err != nil {
		return nil, err
	}
	b.join(symbols)
	for i := range symbols {
		if !symbols[i].gone {
			ids = append(ids, int64(symbols[i].id))
		}
	}
	return ids, nil
}

// characters gives a token for each character.
func (b *bytePairs) characters(word string) ([]symbol, error) {
	var ids []int64
	pending := false // an unknown one, whose token comes with the next one that is known
	for at := range word {
		_, size := utf8.DecodeRuneInString(word[at:])
		text := b.marked(word, at, at+size)
		if id, ok := b.vocab[text]; ok {
			if pending {
				ids, pending = append(ids, b.unknown), false
			}
			ids = append(ids, id)
			continue
		}
		if b.bytes != nil {
			var ok bool
			if ids, ok = b.bytes.appendTo(ids, text); ok {
				continue
			}
		}
		switch {
		case b.unknown == missingUnknown:
			return nil, ErrUnknown
		case b.unknown == noUnknown:
			continue
		case pending && !b.fuse:
			ids = append(ids, b.unknown)
		}
		pending = true
	}
	if pending {
		ids = append(ids, b.unknown)
	}
	symbols := make([]symbol, len(ids))
	for i, id := range ids {
		symbols[i] = symbol{id: uint32(id), prev: int32(i) - 1, next: int32(i) + 1}
	}
	if len(symbols) > 0 {
		symbols[len(symbols)-1].next = -1
	}
	return symbols, nil
}

// marked gives a character of a word with what says that it does not begin the word, or that it ends it.
func (b *bytePairs) marked(word string, begin, end int) string {
	text := word[begin:end]
	if begin > 0 {
		text = b.prefix + text
	}
	if end == len(word) {
		text += b.suffix
	}
	return text
}

// candidate is a pair that may be joined: that of the symbol at, and the next one.
type candidate struct {
	learned
	at int32
}

// before says whether a pair is joined before another: the one that was learned first, and of equal ones the leftmost.
func (c candidate) before(d candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

// candidates is a heap, the next one to be joined on top. (A text without blanks can be one word of any length.)
type candidates []candidate

func (c *candidates) push(added candidate) {
	*c = append(*c, added)
	all := *c
	for i := len(all) - 1; i > 0; {
		parent := (i - 1) / 2
		if !all[i].before(all[parent]) {
			return
		}
		all[i], all[parent] = all[parent], all[i]
		i = parent
	}
}

func (c *candidates) pop() candidate {
	all := *c
	top, last := all[0], len(all)-1
	all[0] = all[last]
	all = all[:last]
	*c = all
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if all[child].before(all[least]) {
				least = child
			}
		}
		if least == i {
			return top
		}
		all[i], all[least] = all[least], all[i]
		i = least
	}
}

func (b *bytePairs) join(symbols []symbol) {
	var waiting candidates
	consider := func(at int32) {
		if at < 0 || symbols[at].next < 0 {
			return
		}
		if l, ok := b.merges[[2]uint32{symbols[at].id, symbols[symbols[at].next].id}]; ok {
			waiting.push(candidate{l, at})
		}
	}
	for i := range symbols {
		consider(int32(i))
	}
	for len(waiting) > 0 {
		best := waiting.pop()
		left := &symbols[best.at]
		if left.gone || left.next < 0 {
			continue
		}
		right := &symbols[left.next]
		if l, ok := b.merges[[2]uint32{left.id, right.id}]; !ok || l.id != best.id {
			continue // one of the two has been joined to another meanwhile
		}
		left.id, left.next, right.gone = best.id, right.next, true
		if left.next >= 0 {
			symbols[left.next].prev = best.at
		}
		consider(left.prev)
		consider(best.at)
	}
}
