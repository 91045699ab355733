// Package vision makes model inputs of pictures with the pixels that PIL and torchvision give.
package vision

import (
	"bytes"
	"errors"
	"fmt"
	"image"
	"image/color"
	_ "image/gif"  // a format of PIL's
	_ "image/jpeg" // another
	_ "image/png"  // another

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
	config, format, err := image.DecodeConfig(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the picture cannot be read: it is no JPEG, PNG, WebP, GIF, BMP or TIFF file, or a broken one: %w", err)
	}
	if config.Width <= 0 || config.Height <= 0 {
		return nil, errors.New("the picture is empty")
	}
	if config.Width > maxPixels/config.Height {
		return nil, fmt.Errorf("%w: %d × %d, and %d are allowed", ErrTooLarge, config.Width, config.Height, maxPixels)
	}
	img, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("the %s picture cannot be decoded: %w", format, err)
	}
	bounds := img.Bounds()
	out := &RGB{Width: bounds.Dx(), Height: bounds.Dy(), Pix: make([]byte, channels*bounds.Dx()*bounds.Dy())}
	switch x := img.(type) {
	case *image.YCbCr:
		out.fromYCbCr(x, format == "webp")
	case *image.NYCbCrA:
		out.fromYCbCr(&x.YCbCr, format == "webp")
	default:
		out.fromAny(img)
	}
	return out, nil
}

// fromAny copies pixels without their transparency.
func (p *RGB) fromAny(img image.Image) {
	at, b := 0, img.Bounds()
	if gray, ok := img.(*image.Gray16); ok { // PIL cuts what does not fit in a byte
		for y := b.Min.Y; y < b.Max.Y; y++ {
			for x := b.Min.X; x < b.Max.X; x++ {
				v := byte(min(gray.Gray16At(x, y).Y, 255))
				p.Pix[at], p.Pix[at+1], p.Pix[at+2] = v, v, v
				at += channels
			}
		}
		return
	}
	for y := b.Min.Y; y < b.Max.Y; y++ {
		for x := b.Min.X; x < b.Max.X; x++ {
			c, _ := color.NRGBAModel.Convert(img.At(x, y)).(color.NRGBA)
			p.Pix[at], p.Pix[at+1], p.Pix[at+2] = c.R, c.G, c.B
			at += channels
		}
	}
}

// fromYCbCr makes colours of luminance and chrominance as libjpeg and libwebp do: chrominance of half the resolution is interpolated.
func (p *RGB) fromYCbCr(img *image.YCbCr, webp bool) {
	cb, cr := p.plane(img, img.Cb, webp), p.plane(img, img.Cr, webp)
	convert := jpegPixel
	if webp {
		convert = webpPixel
	}
	for y := range p.Height {
		luma := img.Y[img.YOffset(img.Rect.Min.X, img.Rect.Min.Y+y):]
		row := y * p.Width
		for x := range p.Width {
			at := channels * (row + x)
			p.Pix[at], p.Pix[at+1], p.Pix[at+2] = convert(int32(luma[x]), int32(cb[row+x]), int32(cr[row+x]))
		}
	}
}

// plane gives a chrominance plane in full resolution.
func (p *RGB) plane(img *image.YCbCr, from []byte, webp bool) []byte {
	full := make([]byte, p.Width*p.Height)
	half := img.SubsampleRatio == image.YCbCrSubsampleRatio420 || img.SubsampleRatio == image.YCbCrSubsampleRatio422
	if !half || img.Rect.Min != (image.Point{}) {
		for y := range p.Height {
			for x := range p.Width {
				full[y*p.Width+x] = from[img.COffset(img.Rect.Min.X+x, img.Rect.Min.Y+y)]
			}
		}
		return full
	}
	width := (p.Width + 1) / 2
	for y := range p.Height {
		near := y
		far := y
		if img.SubsampleRatio == image.YCbCrSubsampleRatio420 {
			near = y / 2
			far = min(max(near-1+2*(y%2), 0), (p.Height+1)/2-1)
		}
		a, b := from[near*img.CStride:][:width], from[far*img.CStride:][:width]
		out := full[y*p.Width:][:p.Width]
		switch {
		case webp:
			widenWebP(out, a, b)
		case img.SubsampleRatio == image.YCbCrSubsampleRatio420:
			widen420(out, a, b)
		default:
			widen422(out, a)
		}
	}
	return full
}

// widen420 interpolates a row between two, as libjpeg's "fancy upsampling": three quarters of what is near, a quarter of what is far, in both directions.
func widen420(out, near, far []byte) {
	sum := func(i int) int32 { return 3*int32(near[i]) + int32(far[i]) }
	last := len(near) - 1
	for x := range out {
		i := x / 2
		switch {
		case x%2 == 0 && i == 0:
			out[x] = byte((4*sum(0) + 8) >> 4)
		case x%2 == 0:
			out[x] = byte((3*sum(i) + sum(i-1) + 8) >> 4)
		case i == last:
			out[x] = byte((4*sum(i) + 7) >> 4)
		default:
			out[x] = byte((3*sum(i) + sum(i+1) + 7) >> 4)
		}
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
