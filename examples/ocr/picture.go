package main

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/draw"
	_ "image/gif"  // formats that are read
	_ "image/jpeg" // the same
	_ "image/png"  // the same
	"math"

	_ "golang.org/x/image/bmp"  // the same
	_ "golang.org/x/image/webp" // the same
)

// picture has three bytes for each place: blue, green, red, as OpenCV has them.
type picture struct {
	width, height int
	pix           []byte
}

const (
	channels = 3
	// mostPixels bounds what a small file can make the handler decode.
	mostPixels = 50_000_000
	full       = 255
)

func newPicture(width, height int) *picture {
	return &picture{width, height, make([]byte, channels*width*height)}
}

// decoded reads a file.
func decoded(file []byte) (*picture, error) {
	config, format, err := image.DecodeConfig(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("a JPEG, PNG, GIF, BMP or WebP image is wanted: %w", err)
	}
	if config.Width <= 0 || config.Height <= 0 || config.Width > mostPixels/config.Height {
		return nil, fmt.Errorf("the image has %d × %d pixels, and %d are the most", config.Width, config.Height, mostPixels)
	}
	from, _, err := image.Decode(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("the %s image cannot be read: %w", format, err)
	}
	bounds := from.Bounds()
	if bounds.Empty() {
		return nil, errors.New("the image is empty")
	}
	n, ok := from.(*image.NRGBA)
	if !ok {
		n = image.NewNRGBA(image.Rect(0, 0, bounds.Dx(), bounds.Dy()))
		draw.Draw(n, n.Bounds(), from, bounds.Min, draw.Src)
	}
	return fromNRGBA(n, ok), nil
}

// fromNRGBA gives a picture's colours. One with an alpha channel is drawn as the package does it: on white when its colours are all black, else inverted.
func fromNRGBA(n *image.NRGBA, alpha bool) *picture {
	p := newPicture(n.Bounds().Dx(), n.Bounds().Dy())
	black := true
	const step = 4
	for y := range p.height {
		row := n.Pix[y*n.Stride:]
		for x := range p.width {
			from, to := row[step*x:step*x+step], p.pix[channels*(y*p.width+x):]
			if alpha && from[3] == 0 {
				continue
			}
			to[0], to[1], to[2] = from[2], from[1], from[0]
			black = black && from[0]|from[1]|from[2] == 0
		}
	}
	if !alpha {
		return p
	}
	for y := range p.height {
		for x := range p.width {
			to := p.pix[channels*(y*p.width+x) : channels*(y*p.width+x)+channels]
			for c := range to {
				if black {
					to[c] = byte(min(int(to[c])+full-int(n.Pix[y*n.Stride+step*x+3]), full))
				} else {
					to[c] = full - to[c]
				}
			}
		}
	}
	return p
}

// weight is how much of two neighbours goes into a place, in parts of one.
type weight struct {
	first, second int
	a, b          int32
}

// one is a whole weight: eleven binary places, as in OpenCV.
const one = 1 << 11

// weightsOf are those of a line that gets another length. Rows beyond the end are the last one's, columns there count alone, which is the same but for rounding.
func weightsOf(from, to int, columns bool) []weight {
	scale := 1 / (float64(to) / float64(from))
	all := make([]weight, to)
	for i := range all {
		f := float32((float64(i)+0.5)*scale - 0.5)
		at := int(math.Floor(float64(f)))
		f -= float32(at)
		if columns && at < 0 {
			at, f = 0, 0
		}
		if columns && at >= from-1 {
			at, f = from-1, 0
		}
		all[i] = weight{
			min(max(at, 0), from-1), min(max(at+1, 0), from-1), int32(math.RoundToEven(float64((1 - f) * one))), int32(math.RoundToEven(float64(f * one))),
		}
	}
	return all
}

// resized is cv2.resize with INTER_LINEAR.
func (p *picture) resized(width, height int) *picture {
	if width == p.width && height == p.height {
		return p
	}
	if 2*width == p.width && 2*height == p.height {
		return p.halved()
	}
	out := newPicture(width, height)
	columns, rows := weightsOf(p.width, width, true), weightsOf(p.height, height, false)
	lines := map[int][]int32{}
	line := func(y int) []int32 {
		if made, ok := lines[y]; ok {
			return made
		}
		made := make([]int32, channels*width)
		row := p.pix[channels*y*p.width:]
		for x, w := range columns {
			for c := range channels {
				made[channels*x+c] = int32(row[channels*w.first+c])*w.a + int32(row[channels*w.second+c])*w.b
			}
		}
		lines[y] = made
		return made
	}
	for y, w := range rows {
		upper, lower := line(w.first), line(w.second)
		for at := range lines {
			if at < w.first {
				delete(lines, at)
			}
		}
		to := out.pix[channels*y*width : channels*(y+1)*width]
		for i := range to {
			to[i] = byte(((w.a*(upper[i]>>4))>>16 + (w.b*(lower[i]>>4))>>16 + 2) >> 2)
		}
	}
	return out
}

// halved is what OpenCV does for half of both sides: the mean of four.
func (p *picture) halved() *picture {
	out := newPicture(p.width/2, p.height/2)
	for y := range out.height {
		for x := range out.width {
			for c := range channels {
				at := channels*(2*y*p.width+2*x) + c
				sum := int(p.pix[at]) + int(p.pix[at+channels]) + int(p.pix[at+channels*p.width]) + int(p.pix[at+channels*(p.width+1)])
				out.pix[channels*(y*out.width+x)+c] = byte((sum + 2) / 4)
			}
		}
	}
	return out
}

// padded puts black rows above and below.
func (p *picture) padded(rows int) *picture {
	out := newPicture(p.width, p.height+2*rows)
	copy(out.pix[channels*rows*p.width:], p.pix)
	return out
}

// turnedAround is the picture upside down.
func (p *picture) turnedAround() *picture {
	out := newPicture(p.width, p.height)
	n := p.width * p.height
	for i := range n {
		copy(out.pix[channels*i:channels*(i+1)], p.pix[channels*(n-1-i):])
	}
	return out
}

// turnedLeft is the picture after a quarter of a turn, as numpy.rot90.
func (p *picture) turnedLeft() *picture {
	out := newPicture(p.height, p.width)
	for y := range out.height {
		for x := range out.width {
			from := channels * (x*p.width + p.width - 1 - y)
			copy(out.pix[channels*(y*out.width+x):], p.pix[from:from+channels])
		}
	}
	return out
}

// appendInput adds the numbers between -1 and 1 of a picture, channel by channel, with zeros to the right up to a width.
func (p *picture) appendInput(values []float32, width int) []float32 {
	var table [full + 1]float32
	for v := range table {
		table[v] = (float32(v)/full - 0.5) / 0.5
	}
	for c := range channels {
		for y := range p.height {
			for x := range width {
				value := float32(0)
				if x < p.width {
					value = table[p.pix[channels*(y*p.width+x)+c]]
				}
				values = append(values, value)
			}
		}
	}
	return values
}
