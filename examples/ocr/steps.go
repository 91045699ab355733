package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// What the models want, as in the package's config.yaml.
const (
	mostSide    = 2000 // a page is made smaller to it
	fewestSide  = 30   // and larger to this
	widest      = 8    // of a page, for its height; a wider one gets black above and below
	detectSide  = 736  // of the shorter side for the detector, whose sides are multiples of grid
	grid        = 32
	inputHeight = 48 // of a line of text
	clsWidth    = 192
	recWidth    = 320 // at least
	turnedFrom  = 0.9 // a line that is upside down with more than this is turned
	goodText    = 0.5 // a text with less is left out
)

// port is a tensor that a step takes or gives.
func port(name string, dtype tensor.DType, shape ...int64) handlersdk.Port {
	return handlersdk.Port{Name: name, DataType: dtype, Shape: shape}
}

// The tensors that go by the models: the page's geometry is its width and height, by what its boxes are multiplied, and the rows above it.
func pagePort() handlersdk.Port     { return port("page", tensor.Uint8, -1, -1, channels) }
func geometryPort() handlersdk.Port { return port("geometry", tensor.FP32, 5) }
func boxesPort() handlersdk.Port    { return port("boxes", tensor.FP32, -1, 4, 2) }
func cropsPort() handlersdk.Port    { return port("crops", tensor.Uint8, -1) }
func sizesPort() handlersdk.Port    { return port("sizes", tensor.Int32, -1, 2) }

// pageStep makes the detector's input of a file.
func pageStep() step {
	return step{
		inputs:  []handlersdk.Port{port("image", tensor.Bytes, 1)},
		outputs: []handlersdk.Port{port("x", tensor.FP32, 1, channels, -1, -1), pagePort(), geometryPort()},
		run: func(in map[string]tensor.Tensor) ([]tensor.Tensor, error) {
			image := in["image"]
			files, err := image.Elements()
			if err != nil || len(files) != 1 {
				return nil, errors.Join(errors.New("one image is wanted"), err)
			}
			p, err := decoded(files[0])
			if err != nil {
				return nil, err
			}
			p, geometry := fitted(p)
			width, height := detectSize(p.width, p.height)
			if width <= 0 || height <= 0 {
				return nil, fmt.Errorf("the image has %d × %d pixels, which is no page", p.width, p.height)
			}
			return []tensor.Tensor{
				tensor.FromFloats("x", []int64{1, channels, int64(height), int64(width)}, detectInput(p.resized(width, height))),
				{Name: "page", DType: tensor.Uint8, Shape: []int64{int64(p.height), int64(p.width), channels}, Data: p.pix},
				tensor.FromFloats("geometry", []int64{int64(len(geometry))}, geometry),
			}, nil
		},
	}
}

// fitted makes a page of a picture: not too large, too small or too wide.
func fitted(p *picture) (*picture, []float32) {
	rawWidth, rawHeight := p.width, p.height
	ratioWidth, ratioHeight := 1.0, 1.0
	scale := func(ratio float64) {
		width, height := onGrid(float64(p.width)*ratio), onGrid(float64(p.height)*ratio)
		if width <= 0 || height <= 0 {
			return
		}
		ratioWidth, ratioHeight = float64(p.width)/float64(width), float64(p.height)/float64(height)
		p = p.resized(width, height)
	}
	if side := max(p.width, p.height); side > mostSide {
		scale(float64(mostSide) / float64(side))
	}
	if side := min(p.width, p.height); side < fewestSide {
		scale(float64(fewestSide) / float64(side))
	}
	above := 0
	if p.height <= fewestSide || float64(p.width)/float64(p.height) > widest {
		height := max(p.width/widest, fewestSide) * 2
		above = max(height-p.height, p.height-height) / 2
		p = p.padded(above)
	}
	return p, []float32{float32(rawWidth), float32(rawHeight), float32(ratioWidth), float32(ratioHeight), float32(above)}
}

// onGrid rounds a length to a multiple of grid, as Python rounds.
func onGrid(length float64) int { return int(math.RoundToEven(math.Trunc(length)/grid)) * grid }

func detectSize(width, height int) (w, h int) {
	ratio := 1.0
	if side := min(width, height); side < detectSide {
		ratio = float64(detectSide) / float64(side)
	}
	return onGrid(float64(width) * ratio), onGrid(float64(height) * ratio)
}

// detectInput gives the numbers between -1 and 1 of a picture, channel by channel.
func detectInput(p *picture) []float32 {
	const scale = float32(1.0 / full)
	var table [full + 1]float32
	for v := range table {
		table[v] = float32((float64(float32(v)*scale) - 0.5) / 0.5)
	}
	n := p.width * p.height
	values := make([]float32, channels*n)
	for i := range n {
		for c := range channels {
			values[c*n+i] = table[p.pix[channels*i+c]]
		}
	}
	return values
}

// cropsStep cuts the page into lines, and makes the input of the model that says whether they are upside down. A page without text has a blank line without a box.
func cropsStep() step {
	table := newCubics()
	return step{
		inputs:  []handlersdk.Port{port("map", tensor.FP32, 1, 1, -1, -1), pagePort()},
		outputs: []handlersdk.Port{port("x", tensor.FP32, -1, channels, inputHeight, clsWidth), boxesPort(), cropsPort(), sizesPort()},
		run: func(in map[string]tensor.Tensor) ([]tensor.Tensor, error) {
			read, raw := in["map"], in["page"]
			values, err := read.Floats()
			if err != nil {
				return nil, err
			}
			page := &picture{int(raw.Shape[1]), int(raw.Shape[0]), raw.Data}
			h := &heat{int(read.Shape[3]), int(read.Shape[2]), values}
			var boxes []float32
			var lines []*picture
			for _, box := range h.boxesOf(page.width, page.height) {
				line := page.upright(box, table)
				if line == nil {
					continue
				}
				lines = append(lines, line)
				for _, p := range box {
					boxes = append(boxes, p.x, p.y)
				}
			}
			if len(lines) == 0 {
				lines = []*picture{newPicture(inputHeight, inputHeight)}
			}
			var x []float32
			out := []tensor.Tensor{{}, tensor.FromFloats("boxes", []int64{int64(len(boxes) / 8), 4, 2}, boxes), {Name: "crops", DType: tensor.Uint8}, {Name: "sizes", DType: tensor.Int32}}
			for _, line := range lines {
				x = line.resized(inputWidth(line, clsWidth), inputHeight).appendInput(x, clsWidth)
				out[2].Data = append(out[2].Data, line.pix...)
				out[3].Data = binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(out[3].Data, uint32(line.width)), uint32(line.height))
			}
			n := int64(len(lines))
			out[0] = tensor.FromFloats("x", []int64{n, channels, inputHeight, clsWidth}, x)
			out[2].Shape, out[3].Shape = []int64{int64(len(out[2].Data))}, []int64{n, 2}
			return out, nil
		},
	}
}

// inputWidth is that of a line in an input's height, at most so wide.
func inputWidth(line *picture, most int) int {
	return min(int(math.Ceil(inputHeight*(float64(line.width)/float64(line.height)))), most)
}

// linesOf gives the lines of their pixels and sizes.
func linesOf(pixels, sizes *tensor.Tensor) ([]*picture, error) {
	all, err := sizes.Floats()
	if err != nil {
		return nil, err
	}
	var lines []*picture
	rest := pixels.Data
	for i := 0; i+1 < len(all); i += 2 {
		width, height := int(all[i]), int(all[i+1])
		n := channels * width * height
		if width <= 0 || height <= 0 || n/height != channels*width || n > len(rest) {
			return nil, fmt.Errorf("there are no pixels for a line of %d × %d", width, height)
		}
		lines = append(lines, &picture{width, height, rest[:n]})
		rest = rest[n:]
	}
	return lines, nil
}

// linesStep turns what is upside down, and makes the reader's input: all lines in the width of the widest.
func linesStep() step {
	return step{
		inputs:  []handlersdk.Port{cropsPort(), sizesPort(), port("directions", tensor.FP32, -1, 2)},
		outputs: []handlersdk.Port{port("x", tensor.FP32, -1, channels, inputHeight, -1)},
		run: func(in map[string]tensor.Tensor) ([]tensor.Tensor, error) {
			pixels, sizes, directions := in["crops"], in["sizes"], in["directions"]
			lines, err := linesOf(&pixels, &sizes)
			if err != nil {
				return nil, err
			}
			turned, err := directions.Floats()
			if err != nil || len(turned) != 2*len(lines) {
				return nil, errors.Join(fmt.Errorf("there are %d lines and %d directions", len(lines), len(turned)/2), err)
			}
			widest := float64(recWidth) / inputHeight
			for i, line := range lines {
				if upside := turned[2*i+1]; upside > turned[2*i] && upside > turnedFrom {
					lines[i] = line.turnedAround()
				}
				widest = max(widest, float64(line.width)/float64(line.height))
			}
			width := int(inputHeight * widest)
			var x []float32
			for _, line := range lines {
				x = line.resized(inputWidth(line, width), inputHeight).appendInput(x, width)
			}
			return []tensor.Tensor{tensor.FromFloats("x", []int64{int64(len(lines)), channels, inputHeight, int64(width)}, x)}, nil
		},
	}
}

// textStep makes texts of the most likely characters, which the model gives for each column: a character that goes on is one, and 0 is none.
func textStep(characters []string) step {
	return step{
		inputs:  []handlersdk.Port{port("index", tensor.Int64, -1, -1), port("likely", tensor.FP32, -1, -1), boxesPort(), geometryPort()},
		outputs: []handlersdk.Port{port("text", tensor.Bytes, -1), port("score", tensor.FP32, -1), port("box", tensor.FP32, -1, 4, 2)},
		run: func(in map[string]tensor.Tensor) ([]tensor.Tensor, error) {
			index, likely, boxes, geometry := in["index"], in["likely"], in["boxes"], in["geometry"]
			chances, err := likely.Floats()
			if err != nil {
				return nil, err
			}
			corners, err := boxes.Floats()
			if err != nil {
				return nil, err
			}
			page, err := geometry.Floats()
			if err != nil {
				return nil, err
			}
			rows, columns := int(index.Shape[0]), int(index.Shape[1])
			if len(chances) != rows*columns || int(boxes.Shape[0]) > rows {
				return nil, fmt.Errorf("%d rows of %d characters do not fit %d likelihoods and %d boxes", rows, columns, len(chances), boxes.Shape[0])
			}
			text := tensor.Tensor{Name: "text", DType: tensor.Bytes}
			var scores, kept []float32
			for i := range int(boxes.Shape[0]) {
				numbers := make([]int64, columns)
				for k := range numbers {
					numbers[k] = int64(binary.LittleEndian.Uint64(index.Data[8*(i*columns+k):]))
				}
				line, score := spelled(characters, numbers, chances[i*columns:(i+1)*columns])
				if score < goodText {
					continue
				}
				text.Data = tensor.AppendElement(text.Data, []byte(line))
				scores = append(scores, float32(score))
				kept = append(kept, restored(corners[8*i:8*i+8], page)...)
			}
			n := int64(len(scores))
			text.Shape = []int64{n}
			return []tensor.Tensor{text, tensor.FromFloats("score", []int64{n}, scores), tensor.FromFloats("box", []int64{n, 4, 2}, kept)}, nil
		},
	}
}

// spelled gives a text and how sure it is on average.
func spelled(characters []string, numbers []int64, chances []float32) (text string, score float64) {
	var spelling strings.Builder
	n, before := 0, int64(0)
	for i, c := range numbers {
		goesOn := c == before
		before = c
		if c == 0 || goesOn {
			continue
		}
		if at := int(c) - 1; at >= 0 && at < len(characters) {
			spelling.WriteString(characters[at])
		} else {
			spelling.WriteByte(' ') // the last class
		}
		score += float64(chances[i])
		n++
	}
	if n == 0 {
		return "", 0
	}
	return spelling.String(), score / float64(n)
}

// restored moves a box from the page to the picture that was sent.
func restored(box, page []float32) []float32 {
	all := make([]float32, len(box))
	for i := 0; i+1 < len(box); i += 2 {
		all[i] = min(max(box[i]*page[2], 0), page[0])
		all[i+1] = min(max((box[i+1]-page[4])*page[3], 0), page[1])
	}
	return all
}
