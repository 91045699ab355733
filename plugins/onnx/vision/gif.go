package vision

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/gif"
)

// gifHead is what a GIF file says of its first picture.
type gifHead struct {
	width, height int    // of what its pictures are shown on
	colours       []byte // three bytes each
	background    int    // which of them is around a picture that is smaller
}

var errGIF = errors.New("the gif picture cannot be decoded: its head is broken")

// headOfGIF reads it: image/gif forgets the colour of what is transparent.
func headOfGIF(data []byte) (*gifHead, error) {
	const head, graphics, frame, local = 13, 0xf9, 9, 0x80
	if len(data) < head {
		return nil, errGIF
	}
	g := &gifHead{width: int(binary.LittleEndian.Uint16(data[6:])), height: int(binary.LittleEndian.Uint16(data[8:]))}
	g.colours, data = coloursOfGIF(data[head:], data[10])
	for len(data) > 2 && data[0] == '!' {
		if data[1] == graphics && len(data) > 6 && data[2] >= 4 && data[3]&1 != 0 {
			g.background = int(data[6])
		}
		data = data[2:]
		for len(data) > 0 && data[0] != 0 {
			data = data[min(1+int(data[0]), len(data)):]
		}
		data = data[min(1, len(data)):]
	}
	if len(data) <= frame || data[0] != ',' {
		return nil, errGIF
	}
	if data[frame]&local != 0 {
		g.colours, _ = coloursOfGIF(data[frame+1:], data[frame])
	}
	if channels*(g.background+1) > len(g.colours) {
		g.background = 0
	}
	if len(g.colours) < channels {
		return nil, errGIF
	}
	return g, nil
}

// coloursOfGIF cuts a table of colours off, if flags say that there is one.
func coloursOfGIF(data []byte, flags byte) (colours, rest []byte) {
	if flags&0x80 == 0 {
		return nil, data
	}
	n := min(channels<<(1+flags&7), len(data))
	return data[:n], data[n:]
}

// decodeGIF reads the first picture of a file. It may be smaller than what it is shown on, where the transparent colour is around it then, or else the first one.
func decodeGIF(data []byte) (*RGB, error) {
	img, err := gif.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the gif picture cannot be decoded: %w", err)
	}
	g, err := headOfGIF(data)
	if err != nil {
		return nil, err
	}
	picture, ok := img.(*image.Paletted)
	if !ok || !picture.Rect.In(image.Rect(0, 0, g.width, g.height)) {
		return nil, errGIF
	}
	out := &RGB{Width: g.width, Height: g.height, Pix: bytes.Repeat(g.colours[channels*g.background:][:channels], g.width*g.height)}
	box := picture.Rect
	for y := box.Min.Y; y < box.Max.Y; y++ {
		for i, index := range picture.Pix[picture.PixOffset(box.Min.X, y):][:box.Dx()] {
			if from := channels * int(index); from+channels <= len(g.colours) {
				copy(out.Pix[channels*(y*g.width+box.Min.X+i):][:channels], g.colours[from:])
			}
		}
	}
	return out, nil
}
