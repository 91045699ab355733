package main

import (
	"bytes"
	"image"
	"image/color"
	"image/jpeg"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
)

// picture is red on its left half and transparent on its right one.
func picture(t *testing.T, w, h int) []byte {
	t.Helper()
	img := image.NewNRGBA(image.Rect(0, 0, w, h))
	for y := range h {
		for x := range w / 2 {
			img.Set(x, y, color.NRGBA{R: 255, A: 255})
		}
	}
	var out bytes.Buffer
	if err := png.Encode(&out, img); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func handler(t *testing.T) *thumbnails {
	t.Helper()
	h := &thumbnails{}
	if err := h.Initialize(t.Context(), handlersdk.Model{Name: "thumbnail"}); err != nil {
		t.Fatal(err)
	}
	return h
}

func TestThumbnails(t *testing.T) {
	body := func(data []byte) handlersdk.Item { return handlertest.Body("image/png", data) }
	wide, tall, tiny := body(picture(t, 600, 300)), body(picture(t, 10, 400)), body(picture(t, 4, 4))
	tall.Header = []handlersdk.Field{{Name: "x-side", Value: "100"}}
	cut := body(picture(t, 50, 50)[:80])
	wrong := body(picture(t, 4, 4))
	wrong.Parts = append(wrong.Parts, handlersdk.Part{Name: "side", Data: []byte("0")})
	results, err := handler(t).Handle(t.Context(), []handlersdk.Item{wide, tall, tiny, cut, wrong, body([]byte("text")), {}})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []image.Point{{128, 64}, {2, 100}, {4, 4}} {
		img, err := jpeg.Decode(bytes.NewReader(results[i].Body))
		if err != nil || img.Bounds().Size() != want {
			t.Fatalf("%d: %v, %v", i, img, err)
		}
	}
	img, err := jpeg.Decode(bytes.NewReader(results[0].Body))
	if err != nil {
		t.Fatal(err)
	}
	for at, want := range map[image.Point][2]uint32{{20, 30}: {255, 0}, {110, 30}: {255, 255}} { // red, and green as in white
		if r, g, _, _ := img.At(at.X, at.Y).RGBA(); r>>8 < want[0]-5 || g>>8 > want[1]+5 || g>>8+5 < want[1] {
			t.Errorf("at %v: red %d, green %d", at, r>>8, g>>8)
		}
	}
	for i := 3; i < len(results); i++ {
		if results[i].Err == nil {
			t.Errorf("%d was answered", i)
		}
	}
}

func TestConformance(t *testing.T) {
	program := filepath.Join(t.TempDir(), "thumbnail")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	refused := handlertest.Body("", []byte("text"))
	handlertest.RunConformance(t, program, handlertest.Options{Sample: handlertest.Body("image/png", picture(t, 300, 200)), Refused: &refused})
}
