package tokenize

import (
	"encoding/binary"
	"errors"
	"strings"
	"unicode/utf8"

	"github.com/clipperhouse/uax29/v2/graphemes"
)

// charsMap is SentencePiece's normalizer: a double-array trie of what is replaced, and what by, each text ended by a zero.
type charsMap struct {
	units []uint32
	texts string
}

// precompiled reads a charsMap: the size of the trie, the trie, the texts.
func precompiled(data []byte) (step, error) {
	if len(data) < 4 {
		return nil, errors.New("its normalizer Precompiled has no precompiled_charsmap")
	}
	size := uint64(binary.LittleEndian.Uint32(data))
	if size%4 != 0 || size == 0 || size > uint64(len(data)-4) {
		return nil, errors.New("its precompiled_charsmap is cut off")
	}
	m := &charsMap{units: make([]uint32, size/4), texts: string(data[4+size:])}
	for i := range m.units {
		m.units[i] = binary.LittleEndian.Uint32(data[4+4*i:])
	}
	return m.normalized, nil
}

// longCluster is a length in bytes from which on a character that readers see as one is replaced in parts only.
const longCluster = 6

// normalized replaces what the trie has. Where it makes nothing of a character, all that follows counts as standing one character before where it does, and the first
// one that is left as the first: so it is there.
func (m *charsMap) normalized(p piece, limits bounds) (piece, error) {
	var b strings.Builder
	b.Grow(len(p.text))
	trail := lag{in: p.text, first: p.first}
	changed := false
	replace := func(from string) bool {
		text, ok := m.of(from)
		if ok {
			changed = true
			b.WriteString(text)
			trail.replaced(from, text)
		}
		return ok
	}
	for clusters := graphemes.FromString(p.text); clusters.Next(); {
		cluster := clusters.Value()
		if err := limits.check(b.Len()); err != nil {
			return p, err
		}
		if len(cluster) < longCluster && replace(cluster) {
			continue
		}
		for _, r := range cluster {
			if err := limits.check(b.Len()); err != nil {
				return p, err
			}
			if !replace(string(r)) {
				b.WriteRune(r)
				trail.replaced(string(r), string(r))
			}
		}
	}
	if !changed {
		return p, nil
	}
	return piece{strings.ToValidUTF8(b.String(), "\ufffd"), trail.lead()}, nil
}

// lag follows which character of a text each character of what is made of it counts as standing for.
type lag struct {
	in    string
	first int
	made  []made // only as long as the first character may matter
}

// made is a character that was made: its length in bytes, and how many characters it takes from the text. One that takes none stands for the same as the one before it.
type made struct{ size, takes int }

func (l *lag) replaced(from, text string) {
	if l.first == 0 {
		return
	}
	before := len(l.made)
	for _, r := range text {
		l.made = append(l.made, made{utf8.RuneLen(r), 1})
	}
	surplus := utf8.RuneCountInString(from) - (len(l.made) - before)
	for i := len(l.made) - 1; surplus < 0 && i >= before; i-- {
		l.made[i].takes = 0
		surplus++
	}
	if surplus > 0 && len(l.made) > 0 {
		l.made[len(l.made)-1].takes += surplus
	}
}

// lead gives how many bytes of what was made stand for the first character of the whole text.
func (l *lag) lead() int {
	length, at := 0, 0
	for _, m := range l.made {
		stands := at
		if m.takes == 0 {
			stands = at - 1
		}
		if stands >= l.first {
			break
		}
		length += m.size
		for range m.takes {
			_, size := utf8.DecodeRuneInString(l.in[at:])
			at += size
		}
	}
	return length
}

// of gives what replaces a character: what the trie has for the shortest beginning of it, as everybody does.
func (m *charsMap) of(character string) (string, bool) {
	at, ok := m.child(0, 0)
	for i := 0; i < len(character) && ok; i++ {
		c := uint32(character[i])
		if c == 0 {
			return "", false
		}
		unit, inside := m.unit(at ^ c)
		if !inside || unit&(1<<31|0xff) != c {
			return "", false
		}
		at ^= c
		leaf := unit>>8&1 == 1
		if at, ok = m.child(at, unit); ok && leaf {
			value, _ := m.unit(at)
			return m.text(value & (1<<31 - 1))
		}
	}
	return "", false
}

func (m *charsMap) unit(at uint32) (uint32, bool) {
	if uint64(at) >= uint64(len(m.units)) {
		return 0, false
	}
	return m.units[at], true
}

// child gives where a node's children begin.
func (m *charsMap) child(at, unit uint32) (uint32, bool) {
	if at == 0 {
		unit = m.units[0]
	}
	at ^= unit >> 10 << (unit & (1 << 9) >> 6)
	return at, uint64(at) < uint64(len(m.units))
}

func (m *charsMap) text(at uint32) (string, bool) {
	if uint64(at) >= uint64(len(m.texts)) {
		return "", false
	}
	text, _, _ := strings.Cut(m.texts[at:], "\x00")
	return text, true
}
