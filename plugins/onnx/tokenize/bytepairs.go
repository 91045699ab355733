package tokenize

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// bytePairs joins the pair that was learned first, again and again.
type bytePairs struct {
	vocab          map[string]int64
	merges         map[[2]int64]learned
	unknown        int64 // -1: what is unknown has no token
	fuse           bool  // of several unknown characters in a row one token is made
	prefix, suffix string
	whole          bool        // a word that is a token is one, whatever the merges make of it
	bytes          *[256]int64 // for characters that are not in the vocabulary; nil: unknown
}

// learned is what a pair becomes.
type learned struct {
	rank int
	id   int64
}

func newBytePairs(m *model, vocab map[string]int64, unknown int64) (words, error) {
	b := &bytePairs{vocab: vocab, merges: make(map[[2]int64]learned, len(m.Merges)), unknown: unknown, fuse: m.FuseUnknown, whole: m.IgnoreMerges}
	if m.Prefix != nil {
		b.prefix = *m.Prefix
	}
	if m.Suffix != nil {
		b.suffix = *m.Suffix
	}
	if m.ByteFallback {
		if b.bytes = bytesTokens(vocab); b.bytes == nil {
			return nil, errors.New("byte_fallback needs the tokens <0x00> to <0xFF>")
		}
	}
	for i, pair := range m.Merges {
		left, okLeft := vocab[pair[0]]
		right, okRight := vocab[pair[1]]
		joined, ok := int64(0), len(pair[1]) >= len(b.prefix)
		if ok {
			joined, ok = vocab[pair[0]+pair[1][len(b.prefix):]]
		}
		if !okLeft || !okRight || !ok {
			return nil, fmt.Errorf("the tokens of the merge %q are not in the vocabulary", pair)
		}
		b.merges[[2]int64{left, right}] = learned{i, joined}
	}
	return b, nil
}

// symbol is a token of a word that is being put together; those that were joined to the left one have gone.
type symbol struct {
	id         int64
	prev, next int // -1: none
	gone       bool
}

func (b *bytePairs) tokens(ids []int64, word string) []int64 {
	if b.whole {
		if id, ok := b.vocab[word]; ok {
			return append(ids, id)
		}
	}
	symbols := b.characters(word)
	b.join(symbols)
	for i := range symbols {
		if !symbols[i].gone {
			ids = append(ids, symbols[i].id)
		}
	}
	return ids
}

// characters gives a token for each character.
func (b *bytePairs) characters(word string) []symbol {
	var ids []int64
	pending := false // an unknown one, whose token comes with the next one that is known
	for at := range word {
		_, size := utf8.DecodeRuneInString(word[at:])
		end := at + size
		text := word[at:end]
		if at > 0 && b.prefix != "" {
			text = b.prefix + text
		}
		if end == len(word) && b.suffix != "" {
			text += b.suffix
		}
		id, ok := b.vocab[text]
		switch {
		case ok:
			if pending {
				ids, pending = append(ids, b.unknown), false
			}
			ids = append(ids, id)
		case b.bytes != nil:
			ids = appendBytes(ids, b.bytes, text)
		case b.unknown >= 0:
			if pending && !b.fuse {
				ids = append(ids, b.unknown)
			}
			pending = true
		}
	}
	if pending {
		ids = append(ids, b.unknown)
	}
	symbols := make([]symbol, len(ids))
	for i, id := range ids {
		symbols[i] = symbol{id: id, prev: i - 1, next: i + 1}
	}
	if len(symbols) > 0 {
		symbols[len(symbols)-1].next = -1
	}
	return symbols
}

// candidate is a pair that may be joined: that of the symbol at, and the next one.
type candidate struct {
	learned
	at int
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
	consider := func(at int) {
		if at < 0 || symbols[at].next < 0 {
			return
		}
		if l, ok := b.merges[[2]int64{symbols[at].id, symbols[symbols[at].next].id}]; ok {
			waiting.push(candidate{l, at})
		}
	}
	for i := range symbols {
		consider(i)
	}
	for len(waiting) > 0 {
		best := waiting.pop()
		left := &symbols[best.at]
		if left.gone || left.next < 0 {
			continue
		}
		right := &symbols[left.next]
		if l, ok := b.merges[[2]int64{left.id, right.id}]; !ok || l.id != best.id {
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
