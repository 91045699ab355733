package tokenize

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
)

// What Hugging Face's library takes for these, whatever the Unicode of this Go says of newer characters.
var ( //nolint:gochecknoglobals // tables, never changed
	punctuation = sync.OnceValue(func() *unicode.RangeTable { return setOf(punctuationTable) })
	marks       = sync.OnceValue(func() *unicode.RangeTable { return setOf(markTable) })
	accents     = sync.OnceValue(func() *unicode.RangeTable { return setOf(accentTable) })
	noText      = sync.OnceValue(func() *unicode.RangeTable { return setOf(controlTable) })
	apart       = sync.OnceValue(newMarks)
)

// decomposedLater are characters whose decompositions are newer than the library's table of them.
var decomposedLater = &unicode.RangeTable{ //nolint:gochecknoglobals // a table, never changed
	R16: []unicode.Range16{{0x32ff, 0x32ff, 1}, {0xa7f2, 0xa7f4, 1}, {0xab69, 0xab69, 1}},
	R32: []unicode.Range32{
		{0x10781, 0x10785, 1},
		{0x10787, 0x107b0, 1},
		{0x107b2, 0x107ba, 1},
		{0x11930, 0x11930, 1},
		{0x11938, 0x11938, 1},
		{0x1e030, 0x1e06d, 1},
		{0x1f16c, 0x1f16c, 1},
		{0x1fbf0, 0x1fbf9, 1},
	},
}

// newMarks are the characters that the library's normal forms leave as and where they are, although they are marks that go with others, or have a decomposition.
func newMarks() *unicode.RangeTable {
	all := map[rune]bool{}
	each := func(table *unicode.RangeTable, do func(r rune)) {
		for _, r := range table.R16 {
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				do(c)
			}
		}
		for _, r := range table.R32 {
			for c := rune(r.Lo); c <= rune(r.Hi); c += rune(r.Stride) {
				do(c)
			}
		}
	}
	each(unicode.M, func(r rune) {
		if !unicode.Is(marks(), r) {
			all[r] = true
		}
	})
	each(decomposedLater, func(r rune) { all[r] = true })
	table := &unicode.RangeTable{}
	sorted := make([]rune, 0, len(all))
	for r := range all {
		sorted = append(sorted, r)
	}
	slices.Sort(sorted)
	for _, r := range sorted {
		appendRange(table, r, r)
	}
	return table
}

// appendRange adds characters behind all others.
func appendRange(table *unicode.RangeTable, first, last rune) {
	const wide = 1 << 16
	if first < wide && last >= wide {
		appendRange(table, first, wide-1)
		first = wide
	}
	if last < wide {
		table.R16 = append(table.R16, unicode.Range16{Lo: uint16(first), Hi: uint16(last), Stride: 1})
		if last <= unicode.MaxLatin1 {
			table.LatinOffset++
		}
		return
	}
	table.R32 = append(table.R32, unicode.Range32{Lo: uint32(first), Hi: uint32(last), Stride: 1})
}

// setOf reads a table of ranges.
func setOf(text string) *unicode.RangeTable {
	table := &unicode.RangeTable{}
	for _, r := range scriptsOf(text) {
		appendRange(table, r.begin, r.end-1)
	}
	return table
}

// scripts are ranges of characters with their script, in order.
type scripts []scriptRange

type scriptRange struct {
	begin, end rune // the first one and the one behind the last
	script     int
}

// anyScript is what a blank has, and what was no character in Unicode 9: it goes with every script.
const anyScript = -1

// scriptsOf reads a table: how many characters are missing before each range, how many it has, and, if the table says so, their script.
func scriptsOf(text string) (all scripts) {
	at := rune(0)
	for word := range strings.FieldsSeq(text) {
		var numbers [3]rune
		for i, digits := range strings.Split(word, ",") {
			n, _ := strconv.ParseInt(digits, 16, 32) // the tables are generated
			numbers[i] = rune(n)
		}
		begin := at + numbers[0]
		at = begin + numbers[1]
		all = append(all, scriptRange{begin, at, int(numbers[2])})
	}
	return all
}

func (all scripts) of(r rune) int {
	i, found := slices.BinarySearchFunc(all, r, func(s scriptRange, r rune) int {
		if s.begin <= r && r < s.end {
			return 0
		}
		return cmp.Compare(s.begin, r)
	})
	if !found {
		return anyScript
	}
	return all[i].script
}

// split splits where the script changes. What goes with every script belongs to what is before it; at the beginning there is nothing before it, and it goes.
func (all scripts) split(p piece, _ bounds) ([]piece, error) {
	var pieces []piece
	begin, last := -1, anyScript
	for at, r := range p.text {
		script := all.of(r)
		if script == anyScript || script == last {
			continue
		}
		if begin >= 0 {
			pieces = append(pieces, p.part(begin, at))
		}
		begin, last = at, script
	}
	if begin >= 0 {
		pieces = append(pieces, p.part(begin, len(p.text)))
	}
	return pieces, nil
}
