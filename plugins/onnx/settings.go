package onnx

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
	"github.com/flambeau-serve/flambeau/plugins/onnx/vision"
)

// settingsFile is the model's configuration file.
const settingsFile = "model-config.yaml"

// maxSettings bounds that file.
const maxSettings = 1 << 20

// settings say how the model is run, and what for.
type settings struct {
	session session.Options
	apart   bool // requests are never joined

	handler                string
	output                 string
	boxes, classes, scores string
	topK                   int
	noSoftmax              bool
	threshold              float64
	image                  imageSettings
	maxLength              int
	pooling                string
	noNormalize            bool
}

// Ways to make one vector of many.
const (
	poolingMean  = "mean"
	poolingFirst = "cls"
)

// onnxSettings are the keys below onnx: in the file.
type onnxSettings struct {
	Providers []providerSettings `yaml:"providers"`
	IntraOp   int                `yaml:"intraOpThreads"`
	InterOp   int                `yaml:"interOpThreads"`
	Spinning  bool               `yaml:"spinning"`
	Arena     *bool              `yaml:"arena"`
	Patterns  *bool              `yaml:"memoryPattern"`
	Optimize  string             `yaml:"graphOptimization"`
	Session   map[string]string  `yaml:"session"`
	Batching  *bool              `yaml:"batching"`

	Output  string `yaml:"output"`
	Outputs struct {
		Boxes  string `yaml:"boxes"`
		Labels string `yaml:"labels"`
		Scores string `yaml:"scores"`
	} `yaml:"outputs"`
	TopK      int           `yaml:"topK"`
	Softmax   *bool         `yaml:"softmax"`
	Threshold *float64      `yaml:"threshold"`
	Image     imageSettings `yaml:"image"`
	Text      struct {
		MaxLength int    `yaml:"maxLength"`
		Pooling   string `yaml:"pooling"`
		Normalize *bool  `yaml:"normalize"`
	} `yaml:"text"`
}

type imageSettings struct {
	Resize  *int      `yaml:"resize"`
	Crop    []int     `yaml:"crop"` // width and height
	Stretch bool      `yaml:"stretch"`
	Mean    []float32 `yaml:"mean"`
	Std     []float32 `yaml:"std"`
	Scale   *float32  `yaml:"scale"`
	BGR     bool      `yaml:"bgr"`
}

type providerSettings struct {
	Name    string            `yaml:"name"`
	Options map[string]string `yaml:"options"`
}

// readSettings reads how the model is to be run. No file: the defaults.
func readSettings(file string) (settings, error) {
	text, err := readBounded(file, maxSettings)
	if errors.Is(err, os.ErrNotExist) {
		return parseSettings(nil)
	}
	if err != nil {
		return settings{}, fmt.Errorf("%s: %w", settingsFile, err)
	}
	return parseSettings(text)
}

const defaultThreshold = 0.5

func parseSettings(text []byte) (settings, error) {
	var file struct {
		Handler any          `yaml:"handler"` // a mapping belongs to Python handlers
		ONNX    onnxSettings `yaml:"onnx"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return settings{}, fmt.Errorf("%s: %s", settingsFile, malformed.YAML(err))
	}
	if err := onlyKnown(text); err != nil {
		return settings{}, err
	}
	o := &file.ONNX
	s := settings{
		session: session.Options{
			IntraOp: o.IntraOp, InterOp: o.InterOp, Spin: o.Spinning, NoArena: isNo(o.Arena), NoPatterns: isNo(o.Patterns), Optimize: o.Optimize, Config: o.Session,
		},
		apart: isNo(o.Batching), output: o.Output, boxes: o.Outputs.Boxes, classes: o.Outputs.Labels, scores: o.Outputs.Scores, topK: o.TopK, noSoftmax: isNo(o.Softmax),
		threshold: defaultThreshold, image: o.Image, maxLength: o.Text.MaxLength, pooling: o.Text.Pooling, noNormalize: isNo(o.Text.Normalize),
	}
	switch handler := file.Handler.(type) {
	case nil, map[string]any:
	case string:
		s.handler = handler
	default:
		return settings{}, fmt.Errorf("%s: the handler %v is no name", settingsFile, handler)
	}
	if o.Threshold != nil {
		s.threshold = *o.Threshold
	}
	for _, p := range o.Providers {
		if p.Name == "" {
			return settings{}, fmt.Errorf("%s: a provider below onnx has no name", settingsFile)
		}
		s.session.Providers = append(s.session.Providers, session.Provider(p))
	}
	return s, s.check()
}

// onlyKnown refuses keys below onnx that mean nothing: most are misspelt, and what they were to change would go on as before.
func onlyKnown(text []byte) error {
	var file struct {
		ONNX map[string]any `yaml:"onnx"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return fmt.Errorf("%s: %s", settingsFile, malformed.YAML(err))
	}
	return knownKeys("onnx", file.ONNX, reflect.TypeFor[onnxSettings]())
}

// knownKeys compares the keys of a mapping with those that a struct has.
func knownKeys(path string, value any, t reflect.Type) error {
	if list, ok := value.([]any); ok && t.Kind() == reflect.Slice {
		for _, member := range list {
			if err := knownKeys(path, member, t.Elem()); err != nil {
				return err
			}
		}
		return nil
	}
	members, ok := value.(map[string]any)
	if !ok || t.Kind() != reflect.Struct {
		return nil
	}
	known := map[string]reflect.Type{}
	for field := range t.Fields() {
		known[field.Tag.Get("yaml")] = field.Type
	}
	for _, key := range slices.Sorted(maps.Keys(members)) {
		field, ok := known[key]
		if !ok {
			return fmt.Errorf("%s: below %s there is no key %q; the keys are %s", settingsFile, path, key, strings.Join(slices.Sorted(maps.Keys(known)), ", "))
		}
		if err := knownKeys(path+"."+key, members[key], field); err != nil {
			return err
		}
	}
	return nil
}

func notFinite(f float32) bool { return math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) }

func isNo(b *bool) bool { return b != nil && !*b }

// check refuses values that mean nothing.
func (s *settings) check() error {
	i := &s.image
	for problem, wrong := range map[string]bool{
		"intraOpThreads and interOpThreads cannot be negative":      s.session.IntraOp < 0 || s.session.InterOp < 0,
		"topK and text.maxLength cannot be negative":                s.topK < 0 || s.maxLength < 0,
		"text.pooling is none of mean, cls":                         s.pooling != "" && s.pooling != poolingMean && s.pooling != poolingFirst,
		"image.resize has to be positive, or 0 for none":            i.Resize != nil && (*i.Resize < 0 || *i.Resize > maxSide),
		"image.crop has to be [width, height], or [] for none":      len(i.Crop) != 0 && (len(i.Crop) != 2 || min(i.Crop[0], i.Crop[1]) < 1 || max(i.Crop[0], i.Crop[1]) > maxSide),
		"image.stretch needs image.crop":                            i.Stretch && len(i.Crop) != 2,
		"image.mean and image.std have to have a number per colour": len(i.Mean) != 0 && len(i.Mean) != 3 || len(i.Std) != 0 && len(i.Std) != 3,
		"image.std and image.scale cannot be 0":                     slices.Contains(i.Std, 0) || i.Scale != nil && *i.Scale == 0,
		"image.mean, image.std and image.scale have to be finite":   slices.ContainsFunc(slices.Concat(i.Mean, i.Std), notFinite) || i.Scale != nil && notFinite(*i.Scale),
	} {
		if wrong {
			return fmt.Errorf("%s: below onnx, %s", settingsFile, problem)
		}
	}
	return nil
}

// maxSide bounds what pictures are made to.
const maxSide = 1 << 14

// transform says how a picture becomes the input: as torchvision's classifiers want it, or, for a detector, as it is; a model that wants another size gets it.
func (s *settings) transform(port *session.Port, asItIs bool) vision.Transform {
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
