package vision

import "slices"

// lookBits is the length of codes that are found at once.
const lookBits = 9

// huffman is a table of codes.
type huffman struct {
	look   [1 << lookBits]uint16 // the length of the code above its value; 0: it is longer
	last   [17]int32             // the largest code of a length, -1 for none
	offset [17]int32             // from a code to its value's place
	values []byte
}

// newHuffman builds a table of how many codes there are of each length. It fails when they do not fit.
func newHuffman(counts [16]byte, values []byte) (*huffman, bool) {
	h := &huffman{values: values}
	code, k := int32(0), int32(0)
	for length := 1; length <= 16; length++ {
		n := int32(counts[length-1])
		h.last[length] = -1
		h.offset[length] = k - code
		for range n {
			if code >= 1<<length {
				return nil, false
			}
			if length <= lookBits {
				first := code << (lookBits - length)
				for i := range int32(1) << (lookBits - length) {
					h.look[first+i] = uint16(length)<<8 | uint16(values[k])
				}
			}
			h.last[length] = code
			code++
			k++
		}
		code <<= 1
	}
	return h, true
}

// bitReader reads a scan's bits, up to the next marker.
type bitReader struct {
	data   []byte
	at     int
	bits   uint64
	n      int
	marker bool // there are no more before a marker
	short  bool // more were wanted than there are: they counted as zeros
	end    bool // the file ended there
}

// fill makes sure that there are as many bits as are wanted, at most 32.
func (b *bitReader) fill(want int) {
	for b.n <= 48 && !b.marker {
		if b.at >= len(b.data) {
			b.marker, b.end = true, true
			break
		}
		v := b.data[b.at]
		if v == 0xff {
			next := b.at + 1
			for next < len(b.data) && b.data[next] == 0xff {
				next++
			}
			if next >= len(b.data) {
				b.marker, b.end = true, true
				break
			}
			if b.data[next] != 0 {
				b.marker = true
				break
			}
			b.at = next
		}
		b.at++
		b.bits = b.bits<<8 | uint64(v)
		b.n += 8
	}
	if b.n < want {
		b.short = true
		b.bits <<= 32
		b.n += 32
	}
}

func (b *bitReader) take(n int) int32 {
	if n == 0 {
		return 0
	}
	if b.n < n {
		b.fill(n)
	}
	b.n -= n
	return int32(b.bits>>b.n) & (1<<n - 1)
}

// code reads a code of a table, 0 for one that it does not have.
func (b *bitReader) code(h *huffman) byte {
	if b.n < 16 {
		b.fill(1)
	}
	if b.n >= lookBits {
		if e := h.look[b.bits>>(b.n-lookBits)&(1<<lookBits-1)]; e != 0 {
			b.n -= int(e >> 8)
			return byte(e)
		}
	}
	code := int32(0)
	for length := 1; length <= 16; length++ {
		code = code<<1 | b.take(1)
		if code <= h.last[length] {
			return h.values[code+h.offset[length]]
		}
	}
	return 0
}

// signed reads a number of so many bits, whose first one tells the sign.
func (b *bitReader) signed(n int) int32 {
	v := b.take(n)
	if n > 0 && v < 1<<(n-1) {
		v += -1<<n + 1
	}
	return v
}

// scanHead is what a scan brings: coefficients first to last of each block, from some bit on.
type scanHead struct {
	parts         []*jpegPart
	direct, other []*huffman
	first, last   int
	high, low     int // high is not 0: another bit of what is there
}

func (f *jpegFile) scanHead(s []byte) (*scanHead, error) {
	if f.parts == nil {
		return nil, invalid("a scan comes before the frame")
	}
	if f.scans++; f.scans > mostScans {
		return nil, invalid("it has more than %d scans", mostScans)
	}
	if len(s) < 1 || s[0] < 1 || s[0] > 4 || len(s) != 4+2*int(s[0]) {
		return nil, invalid("a scan's head has %d bytes", len(s))
	}
	n := int(s[0])
	h := &scanHead{first: int(s[1+2*n]), last: int(s[2+2*n]), high: int(s[3+2*n] >> 4), low: int(s[3+2*n] & 15)}
	if !f.progressive {
		h.first, h.last, h.high, h.low = 0, 63, 0, 0
	}
	if h.last > 63 || h.first > h.last || h.low > 13 || f.progressive && (h.first == 0 && h.last != 0 || h.first > 0 && n > 1) {
		return nil, invalid("a scan has coefficients %d to %d of %d components, from bit %d", h.first, h.last, n, h.low)
	}
	blocks := 0
	for i := range n {
		part, err := f.scanPart(h, s[1+2*i], s[2+2*i])
		if err != nil {
			return nil, err
		}
		blocks += part.h * part.v
	}
	if n > 1 && blocks > 10 {
		return nil, invalid("a scan has units of %d blocks", blocks)
	}
	return h, nil
}

// scanPart adds a component to a scan, with its tables.
func (f *jpegFile) scanPart(h *scanHead, id, tables byte) (*jpegPart, error) {
	at := slices.IndexFunc(f.parts, func(p jpegPart) bool { return p.id == id })
	direct, other := tables>>4, tables&15
	if at < 0 || direct > 3 || other > 3 {
		return nil, invalid("a scan has a component or a table that there is not")
	}
	part := &f.parts[at]
	if slices.Contains(h.parts, part) || !f.progressive && part.seen {
		return nil, invalid("a component is there twice")
	}
	if part.quant == nil { // what its first scan finds holds for the others
		part.quant = f.quant[part.table]
	}
	if h.first == 0 && h.high == 0 && f.direct[direct] == nil || h.last > 0 && f.other[other] == nil {
		return nil, invalid("a scan's Huffman table is missing")
	}
	h.parts, h.direct, h.other = append(h.parts, part), append(h.direct, f.direct[direct]), append(h.other, f.other[other])
	part.seen = part.seen || h.first == 0
	return part, nil
}

// scan reads the bits of a scan.
func (f *jpegFile) scan(s []byte) error {
	h, err := f.scanHead(s)
	if err != nil {
		return err
	}
	f.bits = bitReader{data: f.data, at: f.at}
	f.reset()
	wide, high := up(f.width, 8*f.widest), up(f.height, 8*f.highest)
	if len(h.parts) == 1 {
		wide, high = up(h.parts[0].width, 8), up(h.parts[0].height, 8)
	}
	for _, p := range h.parts {
		f.blocks += p.wide * p.high
	}
	if whole := up(f.width, 8) * up(f.height, 8); f.blocks > mostRounds*whole+freeBlocks {
		return invalid("its scans go over the picture too often")
	}
	units := 0
	for y := range high {
		for x := range wide {
			if f.restart > 0 && units > 0 && units%f.restart == 0 {
				f.restartHere()
			}
			units++
			if err := f.unit(h, x, y); err != nil {
				return err
			}
		}
	}
	if f.bits.short && f.bits.end {
		return errTruncated
	}
	f.at = f.bits.at
	return nil
}

// unit reads what a scan has for one place: a block of its component, or some of each.
func (f *jpegFile) unit(h *scanHead, x, y int) error {
	switch {
	case f.bits.short && f.bits.end:
		return errTruncated
	case f.bits.short && f.progressive:
		return nil // the rest of the scan is not there
	}
	gone := f.bits.short // what follows in the scan is not there
	if len(h.parts) == 1 {
		return f.block(h, 0, x, y, gone)
	}
	for i, p := range h.parts {
		for k := range p.h * p.v {
			if err := f.block(h, i, x*p.h+k%p.h, y*p.v+k/p.h, gone); err != nil {
				return err
			}
		}
	}
	return nil
}

func (f *jpegFile) reset() {
	f.run = 0
	for i := range f.parts {
		f.parts[i].prediction = 0
	}
}

// restartHere goes to the marker from which on nothing depends on what was before.
func (f *jpegFile) restartHere() {
	b := &f.bits
	at := b.at
	for at+1 < len(b.data) && (b.data[at] != 0xff || b.data[at+1] == 0 || b.data[at+1] == 0xff) {
		at++
	}
	switch {
	case at+1 >= len(b.data):
		b.at, b.n, b.marker, b.short, b.end = len(b.data), 0, true, true, true
	case b.data[at+1] >= markRST0 && b.data[at+1] <= markRST7:
		*b = bitReader{data: b.data, at: at + 2}
	default: // another marker: the rest is not there
		b.at, b.n, b.marker, b.short = at, 0, true, true
	}
	f.reset()
}

// block reads one block of a scan, or takes it for empty.
func (f *jpegFile) block(h *scanHead, i, x, y int, gone bool) error {
	p := h.parts[i]
	if f.progressive {
		c := p.coefficients[64*(y*p.wide+x):][:64]
		switch {
		case h.first == 0 && h.high == 0:
			p.prediction += f.bits.signed(int(f.bits.code(h.direct[i]) & 15))
			c[0] = int16(p.prediction << h.low)
		case h.first == 0:
			c[0] |= int16(f.bits.take(1) << h.low)
		case h.high == 0:
			f.firstBits(h, c)
		default:
			f.nextBit(h, c)
		}
		return nil
	}
	if p.quant == nil {
		return invalid("a quantization table is missing")
	}
	var c [64]int32
	if !gone {
		b := &f.bits
		p.prediction += b.signed(int(b.code(h.direct[i]) & 15))
		c[0] = int32(int16(p.prediction)) * p.quant[0]
		table := h.other[i]
		for k := 1; k < 64; k++ {
			code := b.code(table)
			k += int(code >> 4)
			if size := int(code & 15); size > 0 {
				at := zigzag[k]
				c[at] = b.signed(size) * p.quant[at]
			} else if code != 0xf0 {
				break
			}
		}
	}
	inverse(&c, p.plane[64*y*p.wide+8*x:], 8*p.wide)
	return nil
}

// firstBits reads coefficients of a progressive scan that were not there before.
func (f *jpegFile) firstBits(h *scanHead, c []int16) {
	if f.run > 0 {
		f.run--
		return
	}
	b := &f.bits
	for k := h.first; k <= h.last; k++ {
		code := b.code(h.other[0])
		skip, size := int(code>>4), int(code&15)
		switch {
		case size > 0:
			k += skip
			c[zigzag[k]] = int16(b.signed(size) << h.low)
		case skip == 15:
			k += 15
		default:
			f.run = 1<<skip + int(b.take(skip)) - 1
			return
		}
	}
}

// nextBit reads another bit of the coefficients that there are, and those that this bit makes more than zero.
func (f *jpegFile) nextBit(h *scanHead, c []int16) {
	b := &f.bits
	one := int16(1) << h.low
	k := h.first
	if f.run == 0 {
		for ; k <= h.last; k++ {
			code := b.code(h.other[0])
			skip, size := int(code>>4), code&15
			value := int16(0)
			switch {
			case size > 0:
				if value = -one; b.take(1) == 1 {
					value = one
				}
			case skip < 15:
				f.run = 1<<skip + int(b.take(skip))
			}
			if f.run > 0 {
				break
			}
			k = f.refine(c, k, h.last, skip, one)
			if value != 0 {
				c[zigzag[k]] = value
			}
		}
	}
	if f.run > 0 {
		f.refine(c, k, h.last, 64, one)
		f.run--
	}
}

// refine reads a bit for each coefficient that is not zero, until so many zeros have been passed and one more is met. It gives that one's place.
func (f *jpegFile) refine(c []int16, k, last, zeros int, one int16) int {
	for ; k <= last; k++ {
		v := &c[zigzag[k]]
		if *v == 0 {
			if zeros--; zeros < 0 {
				break
			}
			continue
		}
		if f.bits.take(1) == 1 && *v&one == 0 {
			if *v >= 0 {
				*v += one
			} else {
				*v -= one
			}
		}
	}
	return k
}

// fromCoefficients computes the samples of a progressive file's component.
func (f *jpegFile) fromCoefficients(p *jpegPart) error {
	if p.coefficients == nil {
		return nil
	}
	if p.quant == nil {
		return invalid("a quantization table is missing")
	}
	for y := range p.high {
		for x := range p.wide {
			var c [64]int32
			for i, v := range p.coefficients[64*(y*p.wide+x):][:64] {
				c[i] = int32(v) * p.quant[i]
			}
			inverse(&c, p.plane[64*y*p.wide+8*x:], 8*p.wide)
		}
	}
	p.coefficients = nil
	return nil
}

// The cosines of the inverse transform, in fixed-point numbers of thirteen binary places: sums of products of square roots and cosines of multiples of a sixteenth of pi.
const (
	places = 13
	extra  = 2 // places that are kept between the two passes

	c0298, c0390, c0541, c0765, c0899, c1175 = 2446, 3196, 4433, 6270, 7373, 9633
	c1501, c1847, c1961, c2053, c2562, c3072 = 12299, 15137, 16069, 16819, 20995, 25172
)

// inverse is the inverse cosine transform of Loeffler, Ligtenberg and Moschytz, columns first, with the roundings of libjpeg's "slow" one.
func inverse(c *[64]int32, to []byte, stride int) {
	const first, second = places - extra, places + extra + 3
	for x := range 8 {
		if c[8+x]|c[16+x]|c[24+x]|c[32+x]|c[40+x]|c[48+x]|c[56+x] == 0 {
			v := c[x] << extra
			c[8+x], c[16+x], c[24+x], c[32+x], c[40+x], c[48+x], c[56+x], c[x] = v, v, v, v, v, v, v, v
			continue
		}
		r0, r1, r2, r3, r4, r5, r6, r7 := eight(c[x], c[8+x], c[16+x], c[24+x], c[32+x], c[40+x], c[48+x], c[56+x], 1<<(first-1))
		c[x], c[8+x], c[16+x], c[24+x] = r0>>first, r1>>first, r2>>first, r3>>first
		c[32+x], c[40+x], c[48+x], c[56+x] = r4>>first, r5>>first, r6>>first, r7>>first
	}
	for y := range 8 {
		row := (*[8]int32)(c[8*y:])
		out := (*[8]byte)(to[y*stride:])
		if row[1]|row[2]|row[3]|row[4]|row[5]|row[6]|row[7] == 0 {
			v := clamp((row[0]+1<<(extra+2))>>(extra+3) + 128)
			*out = [8]byte{v, v, v, v, v, v, v, v}
			continue
		}
		r0, r1, r2, r3, r4, r5, r6, r7 := eight(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], 128<<second+1<<(second-1))
		out[0], out[1], out[2], out[3] = clamp(r0>>second), clamp(r1>>second), clamp(r2>>second), clamp(r3>>second)
		out[4], out[5], out[6], out[7] = clamp(r4>>second), clamp(r5>>second), clamp(r6>>second), clamp(r7>>second)
	}
}

// eight is the transform of eight numbers. bias is added to each result.
func eight(i0, i1, i2, i3, i4, i5, i6, i7, bias int32) (r0, r1, r2, r3, r4, r5, r6, r7 int32) {
	z := (i2 + i6) * c0541
	t2, t3 := z-i6*c1847, z+i2*c0765
	t0, t1 := (i0+i4)<<places+bias, (i0-i4)<<places+bias
	e0, e3, e1, e2 := t0+t3, t0-t3, t1+t2, t1-t2

	z1, z2, z3, z4 := -(i7+i1)*c0899, -(i5+i3)*c2562, i7+i3, i5+i1
	z5 := (z3 + z4) * c1175
	z3, z4 = z5-z3*c1961, z5-z4*c0390
	o0, o1, o2, o3 := i7*c0298+z1+z3, i5*c2053+z2+z4, i3*c3072+z2+z3, i1*c1501+z1+z4
	return e0 + o3, e1 + o2, e2 + o1, e3 + o0, e3 - o0, e2 - o1, e1 - o2, e0 - o3
}
