// Package vision makes model inputs of pictures with the pixels that PIL and torchvision give.
package vision

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/png" // a format of PIL's

	_ "golang.org/x/image/bmp"  // another
	_ "golang.org/x/image/tiff" // another
	_ "golang.org/x/image/webp" // another
)

// RGB is a picture with three bytes for each pixel, row by row.
type RGB struct {
	Width, Height int
	Pix           []byte
}

const channels = 3

// MaxPixels is what PIL refuses to decode beyond, unless its limit is lifted.
const MaxPixels = 2 * 89478485

// ErrTooLarge is the error of a picture with more pixels than are allowed.
var ErrTooLarge = errors.New("the picture has too many pixels")

// Decode reads a JPEG, PNG, WebP, GIF, BMP or TIFF file, as PIL's Image.open(…).convert("RGB") does: what is transparent keeps its colour, and a rotation that only the
// metadata tell is left alone. It refuses more than maxPixels.
func Decode(data []byte, maxPixels int) (*RGB, error) {
	if isJPEG(data) {
		p, err := decodeJPEG(data, maxPixels)
		if err != nil && !errors.Is(err, ErrTooLarge) {
			err = fmt.Errorf("the jpeg picture cannot be decoded: %w", err)
		}
		return p, err
	}
	if frame, canvas, ok := firstFrame(data); ok {
		return decodeFrame(frame, canvas, maxPixels)
	}
	config, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the picture cannot be read: it is no JPEG, PNG, WebP, GIF, BMP or TIFF file, or a broken one: %w", err)
	}
	if config.Width <= 0 || config.Height <= 0 {
		return nil, errEmpty
	}
	if config.Width > maxPixels/config.Height {
		return nil, tooLarge(config.Width, config.Height, maxPixels)
	}
	if format == "gif" {
		return decodeGIF(data)
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the %s picture cannot be decoded: %w", format, err)
	}
	out := pixelsOf(img)
	if format == "tiff" && isNegativeFax(data) {
		for i, v := range out.Pix {
			out.Pix[i] = ^v
		}
	}
	return out, nil
}

var errEmpty = errors.New("the picture is empty")

func tooLarge(width, height, maxPixels int) error {
	return fmt.Errorf("%w: %d × %d, and %d are allowed", ErrTooLarge, width, height, maxPixels)
}

func pixelsOf(img image.Image) *RGB {
	bounds := img.Bounds()
	out := &RGB{Width: bounds.Dx(), Height: bounds.Dy(), Pix: make([]byte, channels*bounds.Dx()*bounds.Dy())}
	switch x := img.(type) {
	case *image.YCbCr:
		out.fromYCbCr(x)
	case *image.NYCbCrA:
		out.fromYCbCr(&x.YCbCr)
	default:
		out.fromAny(img)
	}
	return out
}

// fromAny copies pixels without their transparency.
func (p *RGB) fromAny(img image.Image) {
	at, b := 0, img.Bounds()
	set := func(r, g, b byte) {
		p.Pix[at], p.Pix[at+1], p.Pix[at+2] = r, g, b
		at += channels
	}
	four := func(row []byte) {
		for x := 0; x < 4*p.Width; x += 4 {
			set(row[x], row[x+1], row[x+2])
		}
	}
	whole, is := img.(*image.RGBA)
	opaque := is && whole.Opaque()
	for y := b.Min.Y; y < b.Max.Y; y++ {
		switch i := img.(type) { // the kinds that large files have; the others take many times as long
		case *image.Gray:
			for _, v := range i.Pix[i.PixOffset(b.Min.X, y):][:p.Width] {
				set(v, v, v)
			}
			continue
		case *image.Gray16: // PIL cuts what does not fit in a byte
			for x := b.Min.X; x < b.Max.X; x++ {
				v := byte(min(i.Gray16At(x, y).Y, 255))
				set(v, v, v)
			}
			continue
		case *image.NRGBA:
			four(i.Pix[i.PixOffset(b.Min.X, y):])
			continue
		case *image.RGBA:
			if opaque {
				four(i.Pix[i.PixOffset(b.Min.X, y):])
				continue
			}
		}
		for x := b.Min.X; x < b.Max.X; x++ {
			c, _ := color.NRGBAModel.Convert(img.At(x, y)).(color.NRGBA)
			set(c.R, c.G, c.B)
		}
	}
}

// fromYCbCr makes colours of luminance and chrominance as libwebp does: chrominance of half the resolution is interpolated.
func (p *RGB) fromYCbCr(img *image.YCbCr) {
	cb, cr := make([]byte, p.Width), make([]byte, p.Width)
	for y := range p.Height {
		p.plane(img, img.Cb, y, cb)
		p.plane(img, img.Cr, y, cr)
		luma := img.Y[img.YOffset(img.Rect.Min.X, img.Rect.Min.Y+y):]
		for x := range p.Width {
			at := channels * (y*p.Width + x)
			p.Pix[at], p.Pix[at+1], p.Pix[at+2] = webpPixel(int32(luma[x]), int32(cb[x]), int32(cr[x]))
		}
	}
}

// plane gives a row of a chrominance plane in full resolution. All files of WebP have half of it in both directions.
func (p *RGB) plane(img *image.YCbCr, from []byte, y int, out []byte) {
	near := y / 2
	far := min(max(near-1+2*(y%2), 0), (p.Height+1)/2-1)
	width := (p.Width + 1) / 2
	widenWebP(out, from[near*img.CStride:][:width], from[far*img.CStride:][:width])
}

// widen420 interpolates a row between two, as libjpeg's "fancy upsampling": three quarters of what is near, a quarter of what is far, in both directions.
func widen420(out, near, far []byte) {
	far = far[:len(near)]
	here := 3*int32(near[0]) + int32(far[0])
	before := here
	for i := range near {
		after := here
		if i+1 < len(near) {
			after = 3*int32(near[i+1]) + int32(far[i+1])
		}
		out[2*i] = byte((3*here + before + 8) >> 4)
		if 2*i+1 < len(out) {
			out[2*i+1] = byte((3*here + after + 7) >> 4)
		}
		before, here = here, after
	}
}

// widen422 interpolates within a row.
func widen422(out, row []byte) {
	last := len(row) - 1
	for x := range out {
		i := x / 2
		switch {
		case x%2 == 0 && i == 0, x%2 == 1 && i == last:
			out[x] = row[i]
		case x%2 == 0:
			out[x] = byte((3*int32(row[i]) + int32(row[i-1]) + 1) >> 2)
		default:
			out[x] = byte((3*int32(row[i]) + int32(row[i+1]) + 2) >> 2)
		}
	}
}

// widenWebP interpolates a row between two as libwebp does, whose roundings are others.
func widenWebP(out, near, far []byte) {
	last := len(near) - 1
	for x := range out {
		i := x / 2
		side := i - 1 + 2*(x%2)
		a, c := int32(near[i]), int32(far[i])
		if side < 0 || side > last {
			out[x] = byte((3*a + c + 2) >> 2)
			continue
		}
		b, d := int32(near[side]), int32(far[side])
		out[x] = byte(((a+3*b+3*c+d+8)>>3 + a) >> 1)
	}
}

func clamp(v int32) byte { return byte(min(max(v, 0), 255)) }

// jpegPixel converts by the formula of JFIF in libjpeg's fixed-point numbers.
func jpegPixel(y, cb, cr int32) (r, g, b byte) {
	const half = 1 << 15
	cb -= 128
	cr -= 128
	return clamp(y + (91881*cr+half)>>16), clamp(y + (-22554*cb-46802*cr+half)>>16), clamp(y + (116130*cb+half)>>16)
}

// webpPixel converts by the formula of ITU-R BT.601 for video in libwebp's fixed-point numbers.
func webpPixel(y, u, v int32) (r, g, b byte) {
	const fraction = 6
	luma := y * 19077 >> 8
	return clamp((luma + v*26149>>8 - 14234) >> fraction), clamp((luma - u*6419>>8 - v*13320>>8 + 8708) >> fraction), clamp((luma + u*33050>>8 - 17685) >> fraction)
}
