package vision

import (
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

// Apply gives the numbers of an input, and its height and width.
func (t *Transform) Apply(p *RGB) (values []float32, height, width int) {
	switch {
	case t.Stretch && t.Width > 0 && t.Height > 0:
		p = Resize(p, t.Width, t.Height)
	default:
		if t.Resize > 0 {
			w, h := shorterSide(p.Width, p.Height, t.Resize)
			p = Resize(p, w, h)
		}
		if t.Width > 0 && t.Height > 0 {
			p = CenterCrop(p, t.Width, t.Height)
		}
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
	return values, p.Height, p.Width
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

// CenterCrop cuts the middle out. What is smaller gets a black border.
func CenterCrop(p *RGB, width, height int) *RGB {
	out := &RGB{Width: width, Height: height, Pix: make([]byte, channels*width*height)}
	left, top := offset(p.Width, width), offset(p.Height, height)
	for y := range height {
		from := y + top
		if from < 0 || from >= p.Height {
			continue
		}
		begin, end := max(0, -left), min(width, p.Width-left)
		if begin < end {
			copy(out.Pix[channels*(y*width+begin):channels*(y*width+end)], p.Pix[channels*(from*p.Width+begin+left):])
		}
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

// bilinear computes the weights of PIL's bilinear filter: a triangle that is as wide as the source pixels of two pixels, so that nothing is skipped.
func bilinear(from, to int) []weights {
	scale := float64(from) / float64(to)
	support := max(scale, 1)
	all := make([]weights, to)
	for i := range all {
		center := (float64(i) + 0.5) * scale
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
	if width != p.Width {
		out := &RGB{Width: width, Height: p.Height, Pix: make([]byte, channels*width*p.Height)}
		columns := bilinear(p.Width, width)
		for y := range p.Height {
			row, to := p.Pix[channels*y*p.Width:channels*(y+1)*p.Width], out.Pix[channels*y*width:]
			for x := range columns {
				blend(to[channels*x:], row, &columns[x], channels)
			}
		}
		p = out
	}
	if height == p.Height {
		return p
	}
	out := &RGB{Width: width, Height: height, Pix: make([]byte, channels*width*height)}
	rows := bilinear(p.Height, height)
	for y := range rows {
		for x := range width {
			blend(out.Pix[channels*(y*width+x):], p.Pix[channels*x:], &rows[y], channels*width)
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
