package vision

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// jpegFile is a JPEG file while it is decoded: Huffman-coded pictures of eight bits, at once or progressively. All steps that round are libjpeg's, and what that library puts up with
// is put up with here.
type jpegFile struct {
	data          []byte
	at            int
	width, height int
	progressive   bool
	parts         []jpegPart
	widest        int // sampling factors
	highest       int
	quant         [4]*[64]int32 // in natural order
	direct, other [4]*huffman   // tables for the first coefficient of a block, and for the others
	restart       int
	jfif          bool
	adobe         int // the transform that its marker tells, -1 without one
	scans         int
	blocks        int // that the scans have gone over
	bits          bitReader
	run           int // blocks that have nothing more in this scan
}

// jpegPart is a component: luminance, one of chrominance, or a colour.
type jpegPart struct {
	id            byte
	h, v          int
	table         byte
	quant         *[64]int32 // of that number, when its first scan began
	width, height int        // samples
	wide, high    int        // blocks, with those that only fill up the last units
	plane         []byte
	coefficients  []int16 // of a progressive file
	prediction    int32
	seen          bool
}

var (
	errJPEG      = errors.New("invalid JPEG file")
	errTruncated = errors.New("the file is cut off")
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errJPEG, fmt.Sprintf(format, args...))
}

func isJPEG(data []byte) bool {
	return len(data) > 2 && data[0] == 0xff && data[1] == 0xd8 && data[2] == 0xff
}

// Markers.
const (
	markSOF0, markSOF1, markSOF2 = 0xc0, 0xc1, 0xc2
	markDHT, markDAC             = 0xc4, 0xcc
	markRST0, markRST7           = 0xd0, 0xd7
	markSOI, markEOI, markSOS    = 0xd8, 0xd9, 0xda
	markDQT, markDRI             = 0xdb, 0xdd
	markAPP0, markAPP14          = 0xe0, 0xee
)

// What bounds how often a file may go over its picture: a few bytes are enough to go over all of it, and files in use do so ten times or less.
const (
	mostScans  = 500
	mostRounds = 20      // over all the blocks of a component that has as many as the picture
	freeBlocks = 4 << 20 // besides
)

func decodeJPEG(data []byte, maxPixels int) (*RGB, error) {
	f := &jpegFile{data: data, at: 2, adobe: -1}
	for more := true; more; {
		var err error
		if more, err = f.next(maxPixels); err != nil {
			return nil, err
		}
	}
	if f.parts == nil {
		return nil, invalid("it has no picture")
	}
	for i := range f.parts {
		if !f.parts[i].seen {
			return nil, invalid("a component has no scan")
		}
		if err := f.fromCoefficients(&f.parts[i]); err != nil {
			return nil, err
		}
	}
	return f.picture(), nil
}

// next reads a segment, and says whether more are to be read.
func (f *jpegFile) next(maxPixels int) (more bool, err error) {
	marker, err := f.marker()
	switch {
	case err != nil || marker == markEOI:
		return false, err
	case marker == 0x01 || marker >= markRST0 && marker <= markSOI: // without a length
		return true, nil
	}
	segment, err := f.segment()
	if err != nil {
		return false, err
	}
	if err := f.read(marker, segment, maxPixels); err != nil {
		return false, err
	}
	return marker != markSOS || f.progressive || int(segment[0]) != len(f.parts), nil // what follows the only scan is not looked at
}

// marker goes to the next one, past anything else.
func (f *jpegFile) marker() (byte, error) {
	for f.at+1 < len(f.data) {
		if m := f.data[f.at+1]; f.data[f.at] == 0xff && m != 0 && m != 0xff {
			f.at += 2
			return m, nil
		}
		f.at++
	}
	return 0, errTruncated
}

func (f *jpegFile) segment() ([]byte, error) {
	if f.at+2 > len(f.data) {
		return nil, errTruncated
	}
	length := int(binary.BigEndian.Uint16(f.data[f.at:]))
	switch {
	case length < 2:
		return nil, invalid("a segment has the length %d", length)
	case f.at+length > len(f.data):
		return nil, errTruncated
	}
	s := f.data[f.at+2 : f.at+length]
	f.at += length
	return s, nil
}

func (f *jpegFile) read(marker byte, s []byte, maxPixels int) error {
	switch marker {
	case markSOF0, markSOF1, markSOF2:
		f.progressive = marker == markSOF2
		return f.frame(s, maxPixels)
	case markDHT:
		return f.huffmanTables(s)
	case markDQT:
		return f.quantTables(s)
	case markDRI:
		if len(s) != 2 {
			return invalid("the restart interval has %d bytes", len(s))
		}
		f.restart = int(binary.BigEndian.Uint16(s))
	case markAPP0:
		f.jfif = f.jfif || len(s) >= 14 && string(s[:5]) == "JFIF\x00"
	case markAPP14:
		if len(s) >= 12 && string(s[:5]) == "Adobe" {
			f.adobe = int(s[11])
		}
	case markSOS:
		return f.scan(s)
	default:
		if marker >= markSOF0 && marker < markRST0 && marker != 0xc8 && marker != markDAC {
			return errors.New("this kind of JPEG is not supported: lossless, hierarchical or with arithmetic coding")
		}
	}
	return nil
}

// frame reads how large the picture is, and what it is made of.
func (f *jpegFile) frame(s []byte, maxPixels int) error {
	if f.parts != nil {
		return invalid("it has two frames")
	}
	if len(s) < 6 || len(s) != 6+3*int(s[5]) {
		return invalid("the frame's head has %d bytes", len(s))
	}
	if s[0] != 8 {
		return fmt.Errorf("JPEG with %d bits for each sample is not supported", s[0])
	}
	f.height, f.width = int(binary.BigEndian.Uint16(s[1:])), int(binary.BigEndian.Uint16(s[3:]))
	if f.width == 0 || f.height == 0 {
		return errEmpty
	}
	if f.width > maxPixels/f.height {
		return tooLarge(f.width, f.height, maxPixels)
	}
	n := int(s[5])
	if n != 1 && n != 3 && n != 4 {
		return fmt.Errorf("JPEG with %d components is not supported", n)
	}
	parts := make([]jpegPart, n)
	for i := range parts {
		p := &parts[i]
		c := s[6+3*i:]
		p.id, p.h, p.v, p.table = c[0], int(c[1]>>4), int(c[1]&15), c[2]
		if p.h < 1 || p.h > 4 || p.v < 1 || p.v > 4 || p.table > 3 {
			return invalid("component %d has the sampling factors %d and %d, and table %d", i+1, p.h, p.v, p.table)
		}
		f.widest, f.highest = max(f.widest, p.h), max(f.highest, p.v)
	}
	for i := range parts {
		p := &parts[i]
		if f.widest%p.h != 0 || f.highest%p.v != 0 {
			return errors.New("JPEG whose components do not divide each other is not supported")
		}
		p.width, p.height = up(f.width*p.h, f.widest), up(f.height*p.v, f.highest)
		p.wide, p.high = up(f.width, 8*f.widest)*p.h, up(f.height, 8*f.highest)*p.v
		p.plane = make([]byte, 64*p.wide*p.high)
		if f.progressive {
			p.coefficients = make([]int16, 64*p.wide*p.high)
		}
	}
	f.parts = parts
	return nil
}

// up divides, and rounds up.
func up(a, b int) int { return (a + b - 1) / b }

// zigzag gives the place of a coefficient in its block. Broken files lead beyond the end.
var zigzag = [64 + 16]byte{ //nolint:gochecknoglobals // a table, never changed
	0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
	58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63, 63,
}

func (f *jpegFile) quantTables(s []byte) error {
	for len(s) > 0 {
		wide, to := int(s[0]>>4), s[0]&15
		s = s[1:]
		if wide > 1 || to > 3 || len(s) < 64*(wide+1) {
			return invalid("a quantization table is broken")
		}
		table := &[64]int32{}
		for i := range table {
			v := int32(s[i*(wide+1)])
			if wide == 1 {
				v = v<<8 | int32(s[2*i+1])
			}
			table[zigzag[i]] = v
		}
		f.quant[to] = table
		s = s[64*(wide+1):]
	}
	return nil
}

func (f *jpegFile) huffmanTables(s []byte) error {
	for len(s) > 0 {
		if len(s) < 17 || s[0]&15 > 3 || s[0]>>4 > 1 {
			return invalid("a Huffman table is broken")
		}
		total := 0
		for _, n := range s[1:17] {
			total += int(n)
		}
		if total > 256 || len(s) < 17+total {
			return invalid("a Huffman table has %d codes", total)
		}
		h, ok := newHuffman([16]byte(s[1:17]), s[17:17+total])
		if !ok {
			return invalid("a Huffman table has more codes than fit")
		}
		if s[0]>>4 == 0 {
			f.direct[s[0]&15] = h
		} else {
			f.other[s[0]&15] = h
		}
		s = s[17+total:]
	}
	return nil
}

// picture makes colours of the components.
func (f *jpegFile) picture() *RGB {
	out := &RGB{Width: f.width, Height: f.height, Pix: make([]byte, channels*f.width*f.height)}
	rows := make([][]byte, len(f.parts))
	buffers := make([][]byte, len(f.parts))
	for i := range buffers {
		buffers[i] = make([]byte, f.width)
	}
	toRGB := f.colours()
	for y := range f.height {
		for i := range f.parts {
			rows[i] = f.row(&f.parts[i], y, buffers[i])
		}
		toRGB(out.Pix[channels*y*f.width:channels*(y+1)*f.width], rows)
	}
	return out
}

// row gives a component's samples for a row of the picture, in full width.
func (f *jpegFile) row(p *jpegPart, y int, buffer []byte) []byte {
	line := func(y int) []byte { return p.plane[8*p.wide*y:][:p.width] }
	right, down := f.widest/p.h, f.highest/p.v
	near, far := y/down, 0
	if down == 2 {
		far = min(max(near-1+2*(y%2), 0), p.height-1)
	}
	smooth := right != 2 || p.width > 2
	switch {
	case right == 1 && down == 1:
		return line(near)
	case right == 1 && down == 2:
		a, b := line(near), line(far)
		bias := int32(1 + y%2)
		for x := range buffer {
			buffer[x] = byte((3*int32(a[x]) + int32(b[x]) + bias) >> 2)
		}
	case right == 2 && down == 1 && smooth:
		widen422(buffer, line(near))
	case right == 2 && down == 2 && smooth:
		widen420(buffer, line(near), line(far))
	default:
		a := line(near)
		for x := range buffer {
			buffer[x] = a[x/right]
		}
	}
	return buffer
}

// colours gives what makes the colours of a row, by the rules of libjpeg for what the components are.
func (f *jpegFile) colours() func(to []byte, rows [][]byte) {
	switch {
	case len(f.parts) == 1:
		return func(to []byte, rows [][]byte) {
			for x, v := range rows[0] {
				to[channels*x], to[channels*x+1], to[channels*x+2] = v, v, v
			}
		}
	case len(f.parts) == 4:
		return fourColours(f.adobe > 0)
	case !f.jfif && (f.adobe == 0 || f.adobe < 0 && f.parts[0].id == 'R' && f.parts[1].id == 'G' && f.parts[2].id == 'B'):
		return func(to []byte, rows [][]byte) {
			for x := range rows[0] {
				to[channels*x], to[channels*x+1], to[channels*x+2] = rows[0][x], rows[1][x], rows[2][x]
			}
		}
	}
	return func(to []byte, rows [][]byte) {
		luma, blue, red := rows[0], rows[1], rows[2]
		for x := range luma {
			to[channels*x], to[channels*x+1], to[channels*x+2] = jpegPixel(int32(luma[x]), int32(blue[x]), int32(red[x]))
		}
	}
}

// fourColours converts what printers use as PIL does: all such files are taken for inverted ones.
func fourColours(luminance bool) func(to []byte, rows [][]byte) {
	return func(to []byte, rows [][]byte) {
		for x := range rows[0] {
			c, m, y, black := rows[0][x], rows[1][x], rows[2][x], rows[3][x]
			if luminance {
				r, g, b := jpegPixel(int32(c), int32(m), int32(y))
				c, m, y = 255-r, 255-g, 255-b
			}
			for i, v := range [channels]byte{c, m, y} {
				product := uint32(255-v)*uint32(black) + 128
				to[channels*x+i] = clamp(int32(black) - int32((product>>8+product)>>8))
			}
		}
	}
}
