package vision

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"os/exec"
	"path/filepath"
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
		t.Skipf("torchvision and matplotlib are not in the environment of FLAMBEAU_TEST_PYTHON: %v: %.300s", err, out)
	}
	return dir
}

// TestAsTorchvision compares pixels and inputs of real pictures. What is compressed without loss has to be the same to the bit; decoders of lossy formats round
// differently, by what the table says at most.
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
		values, h, w := transform.Apply(p)
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
		allowed, input := 0, 1e-5
		switch {
		case strings.HasSuffix(name, ".jpg"):
			allowed, input = jpegSlack, 3.1/255/0.224
		case name == "lossy.webp" || name == "odd.webp":
			allowed, input = 1, 1.5/255/0.224
		}
		if worst > allowed || far > input {
			t.Errorf("%s: pixels differ by %d, want %d at most; the input by %g, want %g", name, worst, allowed, far, input)
		}
	}
}

// jpegSlack is by how much a pixel of a JPEG picture may differ: Go's inverse transform rounds differently from libjpeg's.
const jpegSlack = 3

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
	f.Add([]byte("RIFF\x00\x00\x00\x00WEBPVP8 "))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := Decode(data, 1<<16)
		if err != nil {
			return
		}
		transform := Transform{Resize: 8, Width: 7, Height: 9, Scale: 1}
		if values, h, w := transform.Apply(p); len(values) != channels*h*w {
			t.Errorf("%d values for %d × %d", len(values), w, h)
		}
	})
}
