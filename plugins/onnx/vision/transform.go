package vision

import (
	"fmt"
	"math"
)

// Transform says how a picture becomes an input, by the names of torchvision's transforms.
type Transform struct {
	Resize        int // length of the shorter side; 0: as it is
	Width, Height int // of the centre that is cut out, or, with Stretch, that the whole picture gets; 0: the whole
	Stretch       bool
	Mean, Std     [channels]float32
	Scale         float32 // a byte is multiplied by this first
	BGR           bool    // the order of the channels
	Last          bool    // the channels are the last dimension
}

// ImageNet is what torchvision's classifiers are trained with, and the built-in handler image_classifier does.
func ImageNet() Transform {
	return Transform{
		Resize: 256, Width: 224, Height: 224, Mean: [channels]float32{0.485, 0.456, 0.406}, Std: [channels]float32{0.229, 0.224, 0.225}, Scale: 1.0 / 255,
	}
}

// Apply gives the numbers of an input, and its height and width. It refuses to make more than MaxPixels of a picture, also on the way.
func (t *Transform) Apply(p *RGB) (values []float32, height, width int, err error) {
	width, height = p.Width, p.Height
	crops := t.Width > 0 && t.Height > 0
	switch {
	case t.Stretch && crops: // the rows come first, all of them in the new width
		if width, height = t.Width, t.Height; width > MaxPixels/p.Height || height > MaxPixels/p.Width {
			return nil, 0, 0, fmt.Errorf("%w to be made %d × %d: %d × %d", ErrTooLarge, width, height, p.Width, p.Height)
		}
	case t.Resize > 0:
		width, height = shorterSide(width, height, t.Resize)
	}
	switch {
	case crops:
		p = resizedCenter(p, max(width, 1), max(height, 1), t.Width, t.Height)
	case t.Resize > 0 && width > MaxPixels/height:
		return nil, 0, 0, fmt.Errorf("%w once its shorter side is %d: %d × %d, and %d are allowed", ErrTooLarge, t.Resize, width, height, MaxPixels)
	default:
		p = Resize(p, width, height)
	}
	n := p.Width * p.Height
	values = make([]float32, channels*n)
	for c := range channels {
		from := c
		if t.BGR {
			from = channels - 1 - c
		}
		table := t.table(c)
		for i := range n {
			to := c*n + i
			if t.Last {
				to = channels*i + c
			}
			values[to] = table[p.Pix[channels*i+from]]
		}
	}
	return values, p.Height, p.Width, nil
}

// table has the number for each byte of a channel.
func (t *Transform) table(channel int) (table [256]float32) {
	for v := range table {
		x := float32(v) * t.Scale
		if t.Scale == 1.0/255 {
			x = float32(v) / 255 // which rounds as torchvision does
		}
		if t.Std[channel] != 0 {
			x = (x - t.Mean[channel]) / t.Std[channel]
		}
		table[v] = x
	}
	return table
}

// shorterSide gives the size whose shorter side is size long, as torchvision rounds it.
func shorterSide(width, height, size int) (w, h int) {
	if width <= height {
		return size, size * height / width
	}
	return size * width / height, size
}

// resizedCenter makes a picture of width × height, and cuts a middle of wide × high out. Only that is computed: a picture that is long and thin becomes a very large one. What is
// smaller gets a black border.
func resizedCenter(p *RGB, width, height, wide, high int) *RGB {
	left, top := offset(width, wide), offset(height, high)
	inner := resizeWindow(p, window{width, max(left, 0), min(left+wide, width)}, window{height, max(top, 0), min(top+high, height)})
	if inner.Width == wide && inner.Height == high {
		return inner
	}
	out := &RGB{Width: wide, Height: high, Pix: make([]byte, channels*wide*high)}
	left, top = max(-left, 0), max(-top, 0)
	for y := range inner.Height {
		copy(out.Pix[channels*((y+top)*wide+left):], inner.Pix[channels*y*inner.Width:channels*(y+1)*inner.Width])
	}
	return out
}

// offset is where the middle begins; half a pixel goes to the even side, as Python rounds. The border of what is smaller has the larger part after it.
func offset(has, wants int) int {
	if has < wants {
		return -((wants - has) / 2)
	}
	return int(math.RoundToEven(float64(has-wants) / 2))
}

// precision is the number of binary places of a weight.
const precision = 32 - 8 - 2

// weights are those of the source pixels first, first+1, … for one pixel.
type weights struct {
	first  int
	factor []int32
}

// window is what is wanted of one direction of a picture: the pixels begin to end of all that there would be.
type window struct{ all, begin, end int }

// bilinear computes the weights of PIL's bilinear filter: a triangle that is as wide as the source pixels of two pixels, so that nothing is skipped.
func bilinear(from int, to window) []weights {
	scale := float64(from) / float64(to.all)
	support := max(scale, 1)
	all := make([]weights, to.end-to.begin)
	for i := range all {
		center := (float64(i+to.begin) + 0.5) * scale
		first := max(int(center-support+0.5), 0)
		last := min(int(center+support+0.5), from)
		factors := make([]float64, last-first)
		sum := 0.0
		for k := range factors {
			factors[k] = max(1-math.Abs((float64(k+first)-center+0.5)/support), 0)
			sum += factors[k]
		}
		all[i] = weights{first: first, factor: make([]int32, len(factors))}
		for k, f := range factors {
			if sum != 0 {
				f /= sum
			}
			all[i].factor[k] = int32(0.5 + f*(1<<precision))
		}
	}
	return all
}

// Resize resamples as PIL's resize with Image.Resampling.BILINEAR: first the rows, rounded to bytes, then the columns.
func Resize(p *RGB, width, height int) *RGB {
	width, height = max(width, 1), max(height, 1)
	return resizeWindow(p, window{width, 0, width}, window{height, 0, height})
}

// resizeWindow computes a part of a resized picture, and reads no more of the source than that takes.
func resizeWindow(p *RGB, columns, rows window) *RGB {
	if columns == (window{p.Width, 0, p.Width}) && rows == (window{p.Height, 0, p.Height}) {
		return p
	}
	tall := bilinear(p.Height, rows)
	first, last := tall[0].first, tall[len(tall)-1].first+len(tall[len(tall)-1].factor)
	width := columns.end - columns.begin
	middle := &RGB{Width: width, Height: last - first, Pix: make([]byte, channels*width*(last-first))}
	var wide []weights
	if columns.all != p.Width {
		wide = bilinear(p.Width, columns)
	}
	for y := range middle.Height {
		row, to := p.Pix[channels*(y+first)*p.Width:channels*(y+first+1)*p.Width], middle.Pix[channels*y*width:]
		if wide == nil {
			copy(to[:channels*width], row[channels*columns.begin:])
			continue
		}
		for x := range wide {
			blend(to[channels*x:], row, &wide[x], channels)
		}
	}
	if rows.all == p.Height { // and so rows.begin is first
		middle.Height = rows.end - rows.begin
		middle.Pix = middle.Pix[:channels*width*middle.Height]
		return middle
	}
	out := &RGB{Width: width, Height: len(tall), Pix: make([]byte, channels*width*len(tall))}
	for y := range tall {
		tall[y].first -= first
		for x := range width {
			blend(out.Pix[channels*(y*width+x):], middle.Pix[channels*x:], &tall[y], channels*width)
		}
	}
	return out
}

// blend mixes pixels that are step bytes apart.
func blend(to, from []byte, w *weights, step int) {
	const half = 1 << (precision - 1)
	r, g, b := int32(half), int32(half), int32(half)
	at := w.first * step
	for _, f := range w.factor {
		r += int32(from[at]) * f
		g += int32(from[at+1]) * f
		b += int32(from[at+2]) * f
		at += step
	}
	to[0], to[1], to[2] = clamp(r>>precision), clamp(g>>precision), clamp(b>>precision)
}
