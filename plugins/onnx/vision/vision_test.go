package vision

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// reference gives the folder with what PIL and torchvision make of pictures.
func reference(t *testing.T) string {
	t.Helper()
	python := os.Getenv("FLAMBEAU_TEST_PYTHON")
	if python == "" {
		python = "../../../.venv-test/bin/python"
	}
	dir := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), python, "testdata/reference.py", dir).CombinedOutput(); err != nil { //nolint:gosec // the tests' Python
		if os.Getenv("FLAMBEAU_TEST_REQUIRED") != "" {
			t.Fatalf("%v: %s", err, out)
		}
		t.Skipf("torchvision, OpenCV and matplotlib are not in the environment of FLAMBEAU_TEST_PYTHON: %v: %.300s", err, out)
	}
	return dir
}

// TestAsTorchvision compares pixels and inputs of real pictures, which have to be the same to the bit.
func TestAsTorchvision(t *testing.T) {
	dir := reference(t)
	text, err := os.ReadFile(filepath.Join(dir, "list.json"))
	if err != nil {
		t.Fatal(err)
	}
	var sizes map[string][2]int
	if err := json.Unmarshal(text, &sizes); err != nil {
		t.Fatal(err)
	}
	for name, size := range sizes {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join(dir, name+".rgb"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := Decode(data, MaxPixels)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if p.Width != size[0] || p.Height != size[1] {
			t.Errorf("%s: %d × %d, want %v", name, p.Width, p.Height, size)
			continue
		}
		worst, sum := 0, 0
		for i := range want {
			d := int(p.Pix[i]) - int(want[i])
			worst, sum = max(worst, d, -d), sum+max(d, -d)
		}
		transform := ImageNet()
		values, h, w, err := transform.Apply(p)
		if err != nil {
			t.Fatal(err)
		}
		floats, err := os.ReadFile(filepath.Join(dir, name+".f32"))
		if err != nil {
			t.Fatal(err)
		}
		if len(floats) != 4*len(values) || h != 224 || w != 224 {
			t.Fatalf("%s: %d values, want %d", name, len(values), len(floats)/4)
		}
		far := 0.0
		for i, v := range values {
			far = max(far, math.Abs(float64(v)-float64(math.Float32frombits(binary.LittleEndian.Uint32(floats[4*i:])))))
		}
		t.Logf("%-16s pixels differ by %d at most, %.4f on average; the input by %.5f at most", name, worst, float64(sum)/float64(len(want)), far)
		if worst > 0 || far > 1e-5 {
			t.Errorf("%s: pixels differ by %d, the input by %g", name, worst, far)
		}
	}
}

// TestLongAndThin: a picture of one column has a shorter side of one, and gets very long when that is made 256. Only its middle is computed, and all of it is refused.
func TestLongAndThin(t *testing.T) {
	t.Parallel()
	p := &RGB{Width: 1, Height: 1 << 20, Pix: make([]byte, channels<<20)}
	for i := range p.Pix {
		p.Pix[i] = 200
	}
	transform := ImageNet()
	values, height, width, err := transform.Apply(p)
	if err != nil || height != 224 || width != 224 || math.Abs(float64(values[0])-(200.0/255-0.485)/0.229) > 1e-6 || values[224*224-1] != values[0] {
		t.Errorf("%d × %d, %v, %v", width, height, values[0], err)
	}
	transform.Width, transform.Height = 0, 0
	if _, _, _, err := transform.Apply(p); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	transform = Transform{Width: 640, Height: 640, Stretch: true}
	for range 2 {
		if _, _, _, err := transform.Apply(p); !errors.Is(err, ErrTooLarge) {
			t.Errorf("stretched: %v", err)
		}
		p.Width, p.Height = p.Height, p.Width
	}
}

// TestMiddles: the part that is computed is that of the whole picture, with a border around what is smaller.
func TestMiddles(t *testing.T) {
	t.Parallel()
	p := &RGB{Width: 37, Height: 23, Pix: make([]byte, channels*37*23)}
	for i := range p.Pix {
		p.Pix[i] = byte(i * i / 7)
	}
	for _, size := range [][2]int{{37, 23}, {37, 50}, {80, 23}, {74, 46}, {11, 9}, {5, 300}} {
		whole := Resize(p, size[0], size[1])
		for _, cut := range [][2]int{{10, 10}, {37, 23}, {36, 24}, {100, 7}, {3, 101}} {
			got := resizedCenter(p, size[0], size[1], cut[0], cut[1])
			left, top := offset(size[0], cut[0]), offset(size[1], cut[1])
			for y := range cut[1] {
				for x := range channels * cut[0] {
					want, column, row := byte(0), x+channels*left, y+top
					if column >= 0 && column < channels*size[0] && row >= 0 && row < size[1] {
						want = whole.Pix[channels*row*size[0]+column]
					}
					if got.Pix[channels*y*cut[0]+x] != want {
						t.Fatalf("%v of %v: at %d, %d it is %d, want %d", cut, size, x/channels, y, got.Pix[channels*y*cut[0]+x], want)
					}
				}
			}
		}
	}
}

// TestBrokenJPEG: a file that is cut off is refused; one with nothing in its scan is grey, as libjpeg makes it; heads that mean nothing are refused.
func TestBrokenJPEG(t *testing.T) {
	t.Parallel()
	segment := func(marker byte, content ...byte) []byte {
		return append([]byte{0xff, marker, 0, byte(len(content) + 2)}, content...)
	}
	table := func(class byte) []byte { // one code of one bit, for zero
		return segment(markDHT, append(append([]byte{class, 1}, make([]byte, 15)...), 0)...)
	}
	quant := segment(markDQT, make([]byte, 65)...)
	frame := func(height byte, sampling byte) []byte {
		return segment(markSOF0, 8, 0, height, 0, 9, 1, 1, sampling, 0)
	}
	scan, end := segment(markSOS, 1, 1, 0, 0, 63, 0), []byte{0xff, markEOI}
	file := func(segments ...[]byte) []byte {
		return slices.Concat(append([][]byte{{0xff, markSOI}}, segments...)...)
	}
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"whole":          {file(quant, frame(3, 0x11), table(0), table(0x10), scan, []byte{0}, end), ""},
		"nothing there":  {file(quant, frame(3, 0x11), table(0), table(0x10), scan, end), ""},
		"cut off":        {file(quant, frame(3, 0x11), table(0), table(0x10), scan), "cut off"},
		"before a scan":  {file(quant, frame(3, 0x11)), "cut off"},
		"no scan":        {file(quant, frame(3, 0x11), end), "no scan"},
		"no frame":       {file(quant, end), "no picture"},
		"scan first":     {file(scan, end), "before the frame"},
		"no table":       {file(quant, frame(3, 0x11), scan, end), "Huffman table is missing"},
		"no quants":      {file(frame(3, 0x11), table(0), table(0x10), scan, end), "quantization table is missing"},
		"no height":      {file(frame(0, 0x11)), "the picture is empty"},
		"no sampling":    {file(frame(3, 0x01)), "sampling factors"},
		"two frames":     {file(frame(3, 0x11), frame(3, 0x11)), "two frames"},
		"too many codes": {file(segment(markDHT, append(append([]byte{0, 3}, make([]byte, 15)...), 0, 0, 0)...)), "more codes than fit"},
		"scanned twice":  {file(quant, segment(markSOF0, 8, 0, 3, 0, 9, 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0), table(0), table(0x10), scan, []byte{0}, scan, []byte{0}, end), "a component is there twice"},
		"501 scans":      {file(quant, segment(markSOF2, 8, 0, 3, 0, 9, 1, 1, 0x11, 0), table(0), bytes.Repeat(segment(markSOS, 1, 1, 0, 0, 0, 0), 501), end), "more than 500 scans"},
		"arithmetic":     {file(segment(0xc9, 8, 0, 3, 0, 9, 1, 1, 0x11, 0)), "not supported"},
		"twelve bits":    {file(segment(markSOF1, 12, 0, 3, 0, 9, 1, 1, 0x11, 0)), "12 bits"},
	} {
		p, err := Decode(c.data, MaxPixels)
		switch {
		case c.want == "" && (err != nil || p.Width != 9 || p.Height != 3 || slices.ContainsFunc(p.Pix, func(v byte) bool { return v != 128 })):
			t.Errorf("%s: %v, %v", name, p, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Decode(file(segment(markSOF0, 8, 200, 3, 200, 9, 1, 1, 0x11, 0)), 1<<20); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
	head := [][]byte{quant, segment(markSOF2, 8, 4, 0, 4, 0, 1, 1, 0x11, 0), table(0)} // 16,384 blocks
	for scans, want := range map[int]string{200: "", 400: "too often"} {
		again := slices.Concat(slices.Repeat(segment(markSOS, 1, 1, 0, 0, 0, 0), scans), end)
		if _, err := Decode(file(append(head, again)...), MaxPixels); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%d scans: %v", scans, err)
		}
	}
}

func TestPicturesThatAreNone(t *testing.T) {
	t.Parallel()
	if _, err := Decode([]byte("no picture"), MaxPixels); err == nil {
		t.Error("no error")
	}
	// A BMP file's head: 60,000 × 60,000 pixels.
	head := append([]byte("BM"), make([]byte, 60)...)
	binary.LittleEndian.PutUint32(head[10:], 54)
	binary.LittleEndian.PutUint32(head[14:], 40)
	binary.LittleEndian.PutUint32(head[18:], 60000)
	binary.LittleEndian.PutUint32(head[22:], 60000)
	head[26], head[28] = 1, 24
	if _, err := Decode(head, MaxPixels); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v", err)
	}
}

// FuzzDecode: nothing that is sent may panic.
func FuzzDecode(f *testing.F) {
	f.Add([]byte("GIF89a\x01\x00\x01\x00\x00\x00\x00,\x00\x00\x00\x00\x01\x00\x01\x00\x00\x02\x00;"))
	f.Add([]byte("\xff\xd8\xff\xe0"))
	f.Add(slices.Concat([]byte("\xff\xd8\xff\xdb\x00\x43\x00"), make([]byte, 64), []byte("\xff\xc2\x00\x11\x08\x00\x09\x00\x0b\x03\x01\x22\x00\x02\x11\x00\x03\x11\x00\xff\xc4\x00\x15\x00\x00\x02"),
		make([]byte, 14), []byte("\x03\x01\xff\xc4\x00\x15\x10\x00\x02"), make([]byte, 14), []byte("\x13\x01\xff\xdd\x00\x02\x00\x01\xff\xda\x00\x0c\x03\x01\x00\x02\x00\x03\x00\x00\x00\x01\x5a\xff\xd0\xa5"),
		[]byte("\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x01\x12\x34\xff\xda\x00\x08\x01\x01\x00\x01\x3f\x10\x9b\xff\xd9")))
	f.Add([]byte("RIFF\x46\x00\x00\x00WEBPVP8X\x0a\x00\x00\x00\x02\x00\x00\x00\x07\x00\x00\x07\x00\x00ANMF\x1c\x00\x00\x00\x01\x00\x00\x00\x00\x00\x03\x00\x00\x03\x00\x00\x00\x00\x00\x00VP8L\x04\x00\x00\x00\x2f\x03\xc0\x00"))
	f.Add([]byte("II*\x00\x08\x00\x00\x00\x02\x00\x03\x01\x03\x00\x01\x00\x00\x00\x04\x00\x00\x00\x06\x01\x03\x00\x01\x00\x00\x00\x01"))
	f.Add([]byte("RIFF\x00\x00\x00\x00WEBPVP8 "))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Decode(data, 1<<16)
		if err != nil {
			return
		}
		for _, transform := range []Transform{{Resize: 8, Width: 7, Height: 9, Scale: 1}, {Width: 7, Height: 9, Stretch: true}} {
			if values, h, w, err := transform.Apply(p); err != nil || len(values) != channels*h*w {
				t.Errorf("%d values for %d × %d", len(values), w, h)
			}
		}
	})
}
