package tokenize

import (
	"encoding/binary"
	"errors"
	"strings"

	"github.com/clipperhouse/uax29/v2/graphemes"
)

// charsMap is SentencePiece's normalizer: a double-array trie of what is replaced, and what by, each text ended by a zero.
type charsMap struct {
	units []uint32
	texts string
}

// precompiled reads a charsMap: the size of the trie, the trie, the texts.
func precompiled(data []byte) (func(string) string, error) {
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
	return m.normalize, nil
}

// longCluster is a length in bytes from which on a character that readers see as one is replaced in parts only.
const longCluster = 6

func (m *charsMap) normalize(s string) string {
	var b strings.Builder
	b.Grow(len(s))
	for clusters := graphemes.FromString(s); clusters.Next(); {
		cluster := clusters.Value()
		if len(cluster) < longCluster {
			if text, ok := m.of(cluster); ok {
				b.WriteString(text)
				continue
			}
		}
		for _, r := range cluster {
			if text, ok := m.of(string(r)); ok {
				b.WriteString(text)
			} else {
				b.WriteRune(r)
			}
		}
	}
	return strings.ToValidUTF8(b.String(), "\ufffd")
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
