package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"image"
	"image/color"
	"image/png"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
)

// striped is a picture whose colours differ from place to place.
func striped(width, height int) *picture {
	p := newPicture(width, height)
	for i := range p.pix {
		p.pix[i] = byte(i * 37)
	}
	return p
}

func encoded(t *testing.T, m image.Image) []byte {
	t.Helper()
	var file bytes.Buffer
	if err := png.Encode(&file, m); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestDecoded(t *testing.T) {
	plain, seeThrough, black := image.NewRGBA(image.Rect(0, 0, 2, 1)), image.NewNRGBA(image.Rect(0, 0, 2, 1)), image.NewNRGBA(image.Rect(0, 0, 2, 1))
	plain.Set(0, 0, color.RGBA{1, 2, 3, 255})
	plain.Set(1, 0, color.RGBA{4, 5, 6, 255})
	seeThrough.Set(0, 0, color.NRGBA{1, 2, 3, 128})
	seeThrough.Set(1, 0, color.NRGBA{4, 5, 6, 0})
	black.Set(0, 0, color.NRGBA{0, 0, 0, 255})
	black.Set(1, 0, color.NRGBA{0, 0, 0, 55})
	for name, c := range map[string]struct {
		picture image.Image
		want    []byte
	}{
		"blue comes first":         {plain, []byte{3, 2, 1, 6, 5, 4}},
		"with alpha it is inverse": {seeThrough, []byte{252, 253, 254, 255, 255, 255}},
		"black goes on white":      {black, []byte{0, 0, 0, 200, 200, 200}},
	} {
		if p, err := decoded(encoded(t, c.picture)); err != nil || !bytes.Equal(p.pix, c.want) {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
	for _, file := range []string{"", "no picture", "\x89PNG\r\n\x1a\n"} {
		if _, err := decoded([]byte(file)); err == nil {
			t.Errorf("%q is a picture", file)
		}
	}
}

// TestResized has what cv2.resize gives for such rows.
func TestResized(t *testing.T) {
	p := &picture{4, 1, []byte{0, 10, 20, 100, 110, 120, 200, 210, 220, 40, 50, 60}}
	for width, want := range map[int][]byte{
		3: {17, 27, 37, 150, 160, 170, 67, 77, 87},
		8: {0, 10, 20, 25, 35, 45, 75, 85, 95, 125, 135, 145, 175, 185, 195, 160, 170, 180, 80, 90, 100, 40, 50, 60},
	} {
		if got := p.resized(width, 1).pix; !bytes.Equal(got, want) {
			t.Errorf("%d: %v, want %v", width, got, want)
		}
	}
	square := &picture{2, 2, []byte{1, 1, 1, 2, 2, 2, 3, 3, 3, 5, 5, 5}}
	if got := square.resized(1, 1).pix; !bytes.Equal(got, []byte{3, 3, 3}) {
		t.Errorf("half: %v", got)
	}
	if same := p.resized(4, 1); same != p {
		t.Error("a picture that has its size is made again")
	}
}

func TestTurned(t *testing.T) {
	p := striped(5, 3)
	if got := p.turnedAround().turnedAround(); !bytes.Equal(got.pix, p.pix) || bytes.Equal(p.turnedAround().pix, p.pix) {
		t.Error("turned around")
	}
	left := p.turnedLeft()
	if left.width != 3 || left.height != 5 || !bytes.Equal(left.pix[:3], p.pix[3*4:3*5]) { // the right end comes up
		t.Errorf("turned left: %v", left)
	}
	if got := p.turnedLeft().turnedLeft(); !bytes.Equal(got.pix, p.turnedAround().pix) {
		t.Error("turned left twice")
	}
	padded := p.padded(2)
	if padded.height != 7 || !bytes.Equal(padded.pix[3*2*5:3*5*5], p.pix) || slices.ContainsFunc(padded.pix[:3*2*5], func(b byte) bool { return b != 0 }) {
		t.Error("padded")
	}
}

// TestUpright cuts boxes out: one with straight sides is a copy, one that stands is laid down, one without an area is none.
func TestUpright(t *testing.T) {
	p, table := striped(40, 30), newCubics()
	for i := range table {
		sum := int32(0)
		for _, w := range table[i] {
			sum += w
		}
		if sum != whole {
			t.Fatalf("the weights of place %d sum up to %d", i, sum)
		}
	}
	box := func(left, top, right, bottom float32) [4]point {
		return [4]point{{left, top}, {right, top}, {right, bottom}, {left, bottom}}
	}
	got := p.upright(box(5, 4, 25, 14), table)
	if got.width != 20 || got.height != 10 {
		t.Fatalf("%d × %d", got.width, got.height)
	}
	for y := range got.height {
		if !bytes.Equal(got.pix[3*20*y:3*20*(y+1)], p.pix[3*((y+4)*40+5):3*((y+4)*40+25)]) {
			t.Errorf("row %d differs", y)
		}
	}
	if standing := p.upright(box(5, 4, 15, 24), table); standing.width != 20 || standing.height != 10 || !bytes.Equal(standing.pix[:3], p.pix[3*(4*40+14):3*(4*40+15)]) {
		t.Errorf("%d × %d", standing.width, standing.height)
	}
	for _, none := range [][4]point{box(5, 5, 5, 5), {{0, 0}, {10, 10}, {20, 20}, {30, 30}}} {
		if got := p.upright(none, table); got != nil {
			t.Errorf("%v is cut out", none)
		}
	}
}

func TestLeastRectangle(t *testing.T) {
	diamond := []point{{5, 0}, {10, 5}, {5, 10}, {0, 5}, {5, 5}}
	corners, side := leastRectangle(diamond, false)
	if want := float32(5 * math.Sqrt2); math.Abs(float64(side-want)) > 1e-4 {
		t.Errorf("side %g, want %g", side, want)
	}
	for _, p := range diamond[:4] {
		if !slices.ContainsFunc(corners[:], func(c point) bool { return length(point{c.x - p.x, c.y - p.y}) < 1e-4 }) {
			t.Errorf("%v is no corner of %v", p, corners)
		}
	}
	for _, few := range [][]point{nil, {{1, 1}}, {{1, 1}, {2, 2}}, {{1, 1}, {2, 2}, {3, 3}}} {
		if _, side := leastRectangle(few, true); side != 0 {
			t.Errorf("%v: side %g", few, side)
		}
	}
}

// TestWidened: as far outward as the area is for the outline, with corners that are round.
func TestWidened(t *testing.T) {
	made := widened([4]point{{10, 10}, {110, 10}, {110, 30}, {10, 30}}, 1.6) // 2000 * 1.6 / 240: 13.3 pixels
	low, high := made[0], made[0]
	for _, p := range made {
		low, high = point{min(low.x, p.x), min(low.y, p.y)}, point{max(high.x, p.x), max(high.y, p.y)}
	}
	if low != (point{-3, -3}) || high != (point{123, 43}) || len(made) < 12 {
		t.Errorf("%v to %v, %d points", low, high, len(made))
	}
	if got := widened([4]point{{1, 1}, {1.5, 1}, {1.5, 1.5}, {1, 1.5}}, 1.6); got != nil {
		t.Errorf("what has no area in whole numbers: %v", got)
	}
}

// TestBoxesOf finds two lines and leaves a speck out; the order is that of reading.
func TestBoxesOf(t *testing.T) {
	h := &heat{200, 100, make([]float32, 200*100)}
	fill := func(left, top, right, bottom int, v float32) {
		for y := top; y < bottom; y++ {
			for x := left; x < right; x++ {
				h.values[y*h.width+x] = v
			}
		}
	}
	fill(100, 20, 180, 32, 0.9)
	fill(20, 24, 80, 36, 0.9)
	fill(20, 60, 180, 72, 0.9)
	fill(90, 90, 91, 91, 0.9)
	fill(20, 85, 60, 95, 0.4) // pale
	boxes := h.boxesOf(400, 200)
	if len(boxes) != 3 {
		t.Fatalf("%v", boxes)
	}
	for i, want := range []point{{20, 24}, {100, 20}, {20, 60}} {
		if p := boxes[i][0]; p.x > 2*want.x || p.x < 2*want.x-30 || p.y > 2*want.y || p.y < 2*want.y-30 {
			t.Errorf("box %d begins at %v, and the text at %v", i, p, want)
		}
	}
	if none := (&heat{10, 10, make([]float32, 100)}).boxesOf(10, 10); len(none) != 0 {
		t.Errorf("%v", none)
	}
}

func TestFitted(t *testing.T) {
	for _, c := range []struct {
		width, height, wantWidth, wantHeight int
		above                                float32
	}{
		{720, 480, 720, 480, 0}, {2400, 1600, 1984, 1344, 0}, {1400, 60, 1400, 350, 145}, {160, 26, 192, 32, 0},
	} {
		p, geometry := fitted(newPicture(c.width, c.height))
		if p.width != c.wantWidth || p.height != c.wantHeight || geometry[4] != c.above || geometry[0] != float32(c.width) {
			t.Errorf("%d × %d: %d × %d, %v", c.width, c.height, p.width, p.height, geometry)
		}
	}
}

func TestSpelled(t *testing.T) {
	text, score := spelled([]string{"a", "b"}, []int64{0, 1, 1, 0, 1, 2, 3, 0}, []float32{1, 0.5, 0.9, 1, 0.7, 0.6, 0.8, 1})
	if text != "aab " || math.Abs(score-0.65) > 1e-6 {
		t.Errorf("%q, %g", text, score)
	}
	if text, score := spelled(nil, []int64{0, 0}, []float32{1, 1}); text != "" || score != 0 {
		t.Errorf("%q, %g", text, score)
	}
}

// asked runs a step.
func asked(t *testing.T, name string, inputs ...tensor.Tensor) (map[string]tensor.Tensor, error) {
	t.Helper()
	h := &handler{name: name}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "characters.txt"), []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := h.Initialize(t.Context(), handlersdk.Model{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	request, err := write(inputs)
	if err != nil {
		t.Fatal(err)
	}
	item := handlersdk.Item{Parts: []handlersdk.Part{{Name: "body", Data: bytes.Replace(request.Body, []byte(`"outputs"`), []byte(`"inputs" `), 1)}}, Header: request.Header}
	results, err := h.Handle(t.Context(), []handlersdk.Item{item})
	if err != nil {
		t.Fatal(err)
	}
	if results[0].Err != nil {
		return nil, results[0].Err
	}
	answer := handlersdk.Item{Parts: []handlersdk.Part{{Name: "body", Data: bytes.Replace(results[0].Body, []byte(`"outputs"`), []byte(`"inputs" `), 1)}}, Header: results[0].Header}
	all, err := read(&answer, h.step.outputs)
	if err != nil {
		t.Fatal(err)
	}
	return all, nil
}

// TestSteps lets a page go through all of them, with a map and likelihoods in place of the models'.
func TestSteps(t *testing.T) {
	file := encoded(t, image.NewGray(image.Rect(0, 0, 300, 100)))
	page, err := asked(t, "page", tensor.Tensor{Name: "image", DType: tensor.Bytes, Shape: []int64{1}, Data: tensor.AppendElement(nil, file)})
	if err != nil {
		t.Fatal(err)
	}
	shape := page["x"].Shape
	if !slices.Equal(shape, []int64{1, 3, 736, 2208}) {
		t.Fatalf("%v", shape)
	}
	values := make([]float32, shape[2]*shape[3])
	for y := range 200 {
		for x := range 1000 {
			values[(y+200)*int(shape[3])+x+100] = 1
		}
	}
	blank := make([]float32, len(values))
	for name, c := range map[string]struct {
		values []float32
		want   string
	}{"a line": {values, "\x02\x00\x00\x00ab"}, "nothing": {blank, ""}} {
		found, err := asked(t, "crops", tensor.FromFloats("map", []int64{1, 1, shape[2], shape[3]}, c.values), page["page"])
		if err != nil {
			t.Fatal(err)
		}
		lines, err := asked(t, "lines", found["crops"], found["sizes"], tensor.FromFloats("directions", []int64{1, 2}, []float32{0.01, 0.99}))
		if err != nil {
			t.Fatal(err)
		}
		if x := lines["x"]; x.Shape[0] != 1 || x.Shape[2] != inputHeight {
			t.Errorf("%s: %v", name, x.Shape)
		}
		index := tensor.Tensor{Name: "index", DType: tensor.Int64, Shape: []int64{1, 2}, Data: binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 1), 2)}
		text, err := asked(t, "text", index, tensor.FromFloats("likely", []int64{1, 2}, []float32{0.9, 0.8}), found["boxes"], page["geometry"])
		if err != nil {
			t.Fatal(err)
		}
		if got := string(text["text"].Data); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if _, err := asked(t, "lines", tensor.Tensor{Name: "crops", DType: tensor.Uint8, Shape: []int64{1}, Data: []byte{1}},
		tensor.Tensor{Name: "sizes", DType: tensor.Int32, Shape: []int64{1, 2}, Data: []byte{9, 0, 0, 0, 9, 0, 0, 0}}, tensor.FromFloats("directions", []int64{1, 2}, []float32{1, 0}),
	); err == nil || !strings.Contains(err.Error(), "no pixels") {
		t.Errorf("a line without pixels: %v", err)
	}
	if _, err := asked(t, "page"); err == nil || !strings.Contains(err.Error(), "the input image has to be BYTES [1]") {
		t.Errorf("no image: %v", err)
	}
	if err := (&handler{name: "other"}).Initialize(t.Context(), handlersdk.Model{}); err == nil {
		t.Error("a step that there is not")
	}
}

func TestConformance(t *testing.T) {
	program := filepath.Join(t.TempDir(), "step")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	script := filepath.Join(t.TempDir(), "page")
	if err := os.WriteFile(script, []byte("#!/bin/sh\nexec "+program+" page\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	body := map[string]any{"inputs": []any{map[string]any{"name": "image", "datatype": "BYTES", "shape": []int{1}, "data": []string{"no picture"}}}}
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	image := encoded(t, image.NewGray(image.Rect(0, 0, 40, 40)))
	request, err := write([]tensor.Tensor{{Name: "image", DType: tensor.Bytes, Shape: []int64{1}, Data: tensor.AppendElement(nil, image)}})
	if err != nil {
		t.Fatal(err)
	}
	sample := handlersdk.Item{Parts: []handlersdk.Part{{Name: "body", Data: bytes.Replace(request.Body, []byte(`"outputs"`), []byte(`"inputs" `), 1)}}, Header: request.Header}
	refused := handlertest.Body("application/json", text)
	handlertest.RunConformance(t, script, handlertest.Options{Dir: t.TempDir(), Sample: sample, Refused: &refused})
}
