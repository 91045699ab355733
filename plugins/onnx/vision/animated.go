package vision

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"image"

	"golang.org/x/image/webp"
)

// A file of WebP is chunks with a name of four letters and a length; a chunk of an odd length has a byte more.
const (
	chunkHead = 8
	frameHead = 16 // where a frame lies, how large it is, how long it is shown
)

// chunk cuts a chunk off.
func chunk(data []byte) (name string, content, rest []byte, ok bool) {
	if len(data) < chunkHead {
		return "", nil, nil, false
	}
	length := int(binary.LittleEndian.Uint32(data[4:]))
	if length > len(data)-chunkHead {
		return "", nil, nil, false
	}
	end := min(chunkHead+length+length%2, len(data))
	return string(data[:4]), data[chunkHead : chunkHead+length], data[end:], true
}

func uint24(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

// canvas is what the pictures of an animation are shown on, and the place of the first one there.
type canvas struct{ width, height, left, top int }

// firstFrame makes a WebP file of the first picture of an animated one, which golang.org/x/image does not read.
func firstFrame(data []byte) (file []byte, c canvas, ok bool) {
	const head = 12
	if len(data) < head || string(data[:4]) != "RIFF" || string(data[8:head]) != "WEBP" {
		return nil, c, false
	}
	name, content, rest, ok := chunk(data[head:])
	if !ok || name != "VP8X" || len(content) != 10 || content[0]&2 == 0 {
		return nil, c, false
	}
	c.width, c.height = uint24(content[4:])+1, uint24(content[7:])+1
	for name != "ANMF" {
		if name, content, rest, ok = chunk(rest); !ok {
			return nil, c, false
		}
	}
	if len(content) < frameHead {
		return nil, c, false
	}
	c.left, c.top = 2*uint24(content), 2*uint24(content[3:])
	size := content[6:12]
	content = content[frameHead:]
	alpha := byte(0)
	if bytes.HasPrefix(content, []byte("ALPH")) {
		alpha = 1 << 4
	}
	file = append([]byte("RIFF\x00\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00"), alpha, 0, 0, 0)
	file = append(append(file, size...), content...)
	binary.LittleEndian.PutUint32(file[4:], uint32(len(file)-chunkHead))
	return file, c, true
}

// decodeFrame puts a picture where it is on its canvas, which is black elsewhere.
func decodeFrame(file []byte, c canvas, maxPixels int) (*RGB, error) {
	if c.width > maxPixels/c.height {
		return nil, tooLarge(c.width, c.height, maxPixels)
	}
	config, err := webp.DecodeConfig(bytes.NewReader(file))
	if err == nil && (c.left+config.Width > c.width || c.top+config.Height > c.height) {
		return nil, errors.New("the webp picture cannot be decoded: its first frame is larger than the picture")
	}
	var img image.Image
	if err == nil {
		img, err = webp.Decode(bytes.NewReader(file))
	}
	if err != nil {
		return nil, fmt.Errorf("the webp picture cannot be decoded: %w", err)
	}
	frame := pixelsOf(img)
	if frame.Width == c.width && frame.Height == c.height {
		return frame, nil
	}
	out := &RGB{Width: c.width, Height: c.height, Pix: make([]byte, channels*c.width*c.height)}
	for y := range frame.Height {
		copy(out.Pix[channels*((c.top+y)*c.width+c.left):], frame.Pix[channels*y*frame.Width:channels*(y+1)*frame.Width])
	}
	return out, nil
}
