package onnx

import (
	"errors"
	"fmt"
	"os"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
	"github.com/flambeau-serve/flambeau/plugins/onnx/settings"
	"github.com/flambeau-serve/flambeau/plugins/onnx/vision"
)

// settingsFile is the model's configuration file.
const settingsFile = settings.FileName

// maxSettings bounds that file.
const maxSettings = 1 << 20

// modelOptions say how the model is run, and what for.
type modelOptions struct {
	session session.Options
	apart   bool // requests are never joined

	handler                string
	output                 string
	boxes, classes, scores string
	topK                   int
	noSoftmax              bool
	threshold              float64
	image                  settings.Image
	maxLength              int
	pooling                string
	noNormalize            bool
}

// readOptions reads how the model is to be run. No file: the defaults.
func readOptions(file string) (modelOptions, error) {
	text, err := readBounded(file, maxSettings)
	if errors.Is(err, os.ErrNotExist) {
		return parseOptions(nil)
	}
	if err != nil {
		return modelOptions{}, fmt.Errorf("%s: %w", settingsFile, err)
	}
	return parseOptions(text)
}

const defaultThreshold = 0.5

func parseOptions(text []byte) (modelOptions, error) {
	file, err := settings.Parse(text)
	if err != nil {
		return modelOptions{}, err //nolint:wrapcheck // it names the file
	}
	o := &file.ONNX
	s := modelOptions{
		session: session.Options{
			IntraOp: o.IntraOp, InterOp: o.InterOp, Spin: o.Spinning, NoArena: isNo(o.Arena), NoPatterns: isNo(o.MemoryPattern), Optimize: o.Optimize, Config: o.Session,
		},
		apart: isNo(o.Batching), handler: file.Handler, output: o.Output, boxes: o.Outputs.Boxes, classes: o.Outputs.Labels, scores: o.Outputs.Scores, topK: o.TopK, noSoftmax: isNo(o.Softmax),
		threshold: defaultThreshold, image: o.Image, maxLength: o.Text.MaxLength, pooling: o.Text.Pooling, noNormalize: isNo(o.Text.Normalize),
	}
	if o.Threshold != nil {
		s.threshold = *o.Threshold
	}
	for _, p := range o.Providers {
		s.session.Providers = append(s.session.Providers, session.Provider(p))
	}
	return s, nil
}

func isNo(b *bool) bool { return b != nil && !*b }

// transform says how a picture becomes the input: as torchvision's classifiers want it, or, for a detector, as it is; a model that wants another size gets it.
func (s *modelOptions) transform(port *session.Port, asItIs bool) vision.Transform {
	shape := port.Shape[len(port.Shape)-3:]
	t := vision.ImageNet()
	if asItIs {
		t = vision.Transform{Scale: t.Scale}
	}
	if t.Last = shape[0] != 3 && shape[2] == 3; t.Last {
		shape = []int64{3, shape[0], shape[1]}
	}
	if port.DType == tensor.Uint8 {
		t.Scale, t.Mean, t.Std = 1, [3]float32{}, [3]float32{}
	}
	if height, width := int(shape[1]), int(shape[2]); height > 0 && width > 0 && (asItIs || height != t.Height || width != t.Width) {
		t.Stretch = asItIs || height != width
		t.Resize, t.Width, t.Height = height*t.Resize/224, width, height
	}
	i := &s.image
	if i.Resize != nil {
		t.Resize = *i.Resize
	}
	if len(i.Crop) == 2 {
		t.Width, t.Height, t.Stretch = i.Crop[0], i.Crop[1], i.Stretch
	} else if i.Crop != nil {
		t.Width, t.Height = 0, 0
	}
	if i.Scale != nil {
		t.Scale = *i.Scale
	}
	if len(i.Mean) == 3 {
		t.Mean = [3]float32(i.Mean)
		if t.Std == ([3]float32{}) {
			t.Std = [3]float32{1, 1, 1}
		}
	}
	if len(i.Std) == 3 {
		t.Std = [3]float32(i.Std)
	}
	t.BGR = i.BGR
	return t
}
