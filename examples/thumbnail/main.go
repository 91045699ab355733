// Command thumbnail is a Flambeau handler that makes small JPEGs of JPEG, PNG, GIF and WebP images.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"image"
	_ "image/gif" // formats that are read
	"image/jpeg"
	_ "image/png" // the same
	"log/slog"
	"runtime"
	"strconv"
	"sync"

	"golang.org/x/image/draw"
	_ "golang.org/x/image/webp" // the same

	"github.com/flambeau-serve/flambeau/handlersdk"
)

func main() {
	slog.SetDefault(slog.New(handlersdk.NewLogHandler(nil)))
	handlersdk.Serve(&thumbnails{})
}

const (
	usualSide = 128
	mostSide  = 2048
	// mostPixels bounds what a small file can make the handler decode.
	mostPixels = 100_000_000
	quality    = 85
)

type thumbnails struct {
	pixels *handlersdk.Metric
}

// Initialize implements handlersdk.Handler.
func (h *thumbnails) Initialize(_ context.Context, m handlersdk.Model) error {
	h.pixels = handlersdk.NewMetrics(m).Histogram("ImagePixels", handlersdk.Count, "Format")
	return nil
}

// Handle implements handlersdk.Handler. The images of a batch are worked on side by side.
func (h *thumbnails) Handle(ctx context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	results := make([]handlersdk.Result, len(items))
	var all sync.WaitGroup
	free := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i := range items {
		all.Go(func() {
			free <- struct{}{}
			defer func() { <-free }()
			if ctx.Err() != nil {
				results[i].Err = context.Cause(ctx)
				return
			}
			results[i] = h.thumbnail(handlersdk.ForItem(ctx, &items[i]), &items[i])
		})
	}
	all.Wait()
	return results, nil
}

// thumbnail answers one request: the image is the body or a form's field "data", the longest side the field "side" or the header X-Side.
func (h *thumbnails) thumbnail(ctx context.Context, item *handlersdk.Item) handlersdk.Result {
	side, err := sideOf(item)
	if err != nil {
		return handlersdk.Result{Err: err}
	}
	data := item.Body().Data
	head, format, err := image.DecodeConfig(bytes.NewReader(data))
	switch {
	case errors.Is(err, image.ErrFormat):
		return handlersdk.Result{Err: handlersdk.Errorf(415, "the request holds no JPEG, PNG, GIF or WebP image: %d bytes", len(data))}
	case err != nil:
		return handlersdk.Result{Err: handlersdk.Errorf(400, "the %s image cannot be read: %w", format, err)}
	case head.Width*head.Height > mostPixels:
		return handlersdk.Result{Err: handlersdk.Errorf(413, "the image has %d x %d pixels, and at most %d are taken", head.Width, head.Height, mostPixels)}
	}
	large, _, err := image.Decode(bytes.NewReader(data))
	if err != nil {
		return handlersdk.Result{Err: handlersdk.Errorf(400, "the %s image cannot be read: %w", format, err)}
	}
	if err := h.pixels.Report(ctx, float64(head.Width*head.Height), format); err != nil {
		slog.WarnContext(ctx, "the metric was not reported", "error", err.Error())
	}
	small := image.NewRGBA(fit(large.Bounds(), side))
	draw.Draw(small, small.Bounds(), image.White, image.Point{}, draw.Src) // JPEG has no transparency
	draw.CatmullRom.Scale(small, small.Bounds(), large, large.Bounds(), draw.Over, nil)
	var out bytes.Buffer
	if err := jpeg.Encode(&out, small, &jpeg.Options{Quality: quality}); err != nil {
		return handlersdk.Result{Err: fmt.Errorf("encode: %w", err)}
	}
	return handlersdk.Result{Header: []handlersdk.Field{{Name: "content-type", Value: "image/jpeg"}}, Body: out.Bytes()}
}

func sideOf(item *handlersdk.Item) (int, error) {
	text := item.Get("X-Side")
	if part, ok := item.Part("side"); ok {
		text = string(part.Data)
	}
	if text == "" {
		return usualSide, nil
	}
	side, err := strconv.Atoi(text)
	if err != nil || side < 1 || side > mostSide {
		return 0, handlersdk.Errorf(400, "side is %.20q, and has to be a number from 1 to %d", text, mostSide)
	}
	return side, nil
}

// fit gives the size of an image whose longest side is to be side. Smaller images keep theirs.
func fit(size image.Rectangle, side int) image.Rectangle {
	w, h := size.Dx(), size.Dy()
	if longest := max(w, h); longest > side {
		w, h = max(1, w*side/longest), max(1, h*side/longest)
	}
	return image.Rect(0, 0, w, h)
}
