// Package settings reads what the model-config.yaml of an ONNX model says of how it is run, and what it is served as.
package settings

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// FileName is what the file is called in the model's folder.
const FileName = "model-config.yaml"

// Settings are the keys of the file that the server itself has no use for.
type Settings struct {
	Handler string // "" when the file names none, or has a mapping there, which belongs to Python handlers
	ONNX    ONNX
}

// ONNX are the keys below onnx. Those that are nil, 0 or "" were not given, or say the same as if they were not.
type ONNX struct {
	Providers     []Provider        `yaml:"providers"`
	IntraOp       int               `yaml:"intraOpThreads"`
	InterOp       int               `yaml:"interOpThreads"`
	Spinning      bool              `yaml:"spinning"`
	Arena         *bool             `yaml:"arena"`
	MemoryPattern *bool             `yaml:"memoryPattern"`
	Optimize      string            `yaml:"graphOptimization"`
	Session       map[string]string `yaml:"session"`
	Batching      *bool             `yaml:"batching"`

	Output  string `yaml:"output"`
	Outputs struct {
		Boxes  string `yaml:"boxes"`
		Labels string `yaml:"labels"`
		Scores string `yaml:"scores"`
	} `yaml:"outputs"`
	TopK      int      `yaml:"topK"`
	Softmax   *bool    `yaml:"softmax"`
	Threshold *float64 `yaml:"threshold"`
	Image     Image    `yaml:"image"`
	Text      struct {
		MaxLength int    `yaml:"maxLength"` // tokens
		Pooling   string `yaml:"pooling"`
		Normalize *bool  `yaml:"normalize"`
	} `yaml:"text"`
}

// Provider is an execution provider of ONNX Runtime.
type Provider struct {
	Name    string            `yaml:"name"`
	Options map[string]string `yaml:"options"`
}

// Image says how a picture becomes an input.
type Image struct {
	Resize  *int      `yaml:"resize"` // pixels of the shorter side; 0: it stays
	Crop    []int     `yaml:"crop"`   // width and height; empty, and not nil: none
	Stretch bool      `yaml:"stretch"`
	Mean    []float32 `yaml:"mean"`
	Std     []float32 `yaml:"std"`
	Scale   *float32  `yaml:"scale"`
	BGR     bool      `yaml:"bgr"`
}

// Ways to make one vector of many.
const (
	PoolingMean  = "mean"
	PoolingFirst = "cls"
)

// Error is what is wrong with the file.
type Error struct {
	Key  string // the innermost one that it is about; "" when it is about the file
	Text string // without the file's name
}

// Error implements error.
func (e *Error) Error() string { return FileName + ": " + e.Text }

// Parse reads the file, and refuses what means nothing. Whether there is a handler of that name is not looked at, see Known. Every error is an *Error.
func Parse(text []byte) (*Settings, error) {
	var file struct {
		Handler any  `yaml:"handler"`
		ONNX    ONNX `yaml:"onnx"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return nil, &Error{Text: malformed.YAML(err)}
	}
	if err := onlyKnown(text); err != nil {
		return nil, err
	}
	s := &Settings{ONNX: file.ONNX}
	switch handler := file.Handler.(type) {
	case nil, map[string]any:
	case string:
		s.Handler = handler
	default:
		return nil, &Error{"handler", fmt.Sprintf("the handler %v is no name", handler)}
	}
	return s, s.ONNX.check()
}

// onlyKnown refuses keys below onnx that mean nothing: most are misspelt, and what they were to change would go on as before.
func onlyKnown(text []byte) error {
	var file struct {
		ONNX map[string]any `yaml:"onnx"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return &Error{Text: malformed.YAML(err)}
	}
	return knownKeys("onnx", file.ONNX, reflect.TypeFor[ONNX]())
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
			return &Error{key, fmt.Sprintf("below %s there is no key %q; the keys are %s", path, key, strings.Join(slices.Sorted(maps.Keys(known)), ", "))}
		}
		if err := knownKeys(path+"."+key, members[key], field); err != nil {
			return err
		}
	}
	return nil
}

func notFinite(f float32) bool { return math.IsNaN(float64(f)) || math.IsInf(float64(f), 0) }

// MaxSide bounds what pictures are made to.
const MaxSide = 1 << 14

// check refuses values that mean nothing.
func (o *ONNX) check() error {
	i := &o.Image
	for _, rule := range []struct {
		wrong     bool
		key, text string
	}{
		{slices.ContainsFunc(o.Providers, func(p Provider) bool { return p.Name == "" }), "providers", "a provider has no name"},
		{o.IntraOp < 0, "intraOpThreads", "intraOpThreads cannot be negative"},
		{o.InterOp < 0, "interOpThreads", "interOpThreads cannot be negative"},
		{o.TopK < 0, "topK", "topK cannot be negative"},
		{o.Text.MaxLength < 0, "maxLength", "text.maxLength cannot be negative"},
		{!slices.Contains([]string{"", PoolingMean, PoolingFirst}, o.Text.Pooling), "pooling", "text.pooling is none of mean, cls"},
		{i.Resize != nil && (*i.Resize < 0 || *i.Resize > MaxSide), "resize", "image.resize has to be positive, or 0 for none"},
		{
			len(i.Crop) != 0 && (len(i.Crop) != 2 || min(i.Crop[0], i.Crop[1]) < 1 || max(i.Crop[0], i.Crop[1]) > MaxSide),
			"crop", "image.crop has to be [width, height], or [] for none",
		},
		{i.Stretch && len(i.Crop) != 2, "stretch", "image.stretch needs image.crop"},
		{len(i.Mean) != 0 && len(i.Mean) != 3, "mean", "image.mean has to have a number per colour"},
		{len(i.Std) != 0 && len(i.Std) != 3, "std", "image.std has to have a number per colour"},
		{slices.Contains(i.Std, 0), "std", "image.std cannot be 0"},
		{slices.ContainsFunc(i.Mean, notFinite), "mean", "image.mean has to be finite"},
		{slices.ContainsFunc(i.Std, notFinite), "std", "image.std has to be finite"},
		{i.Scale != nil && (*i.Scale == 0 || notFinite(*i.Scale)), "scale", "image.scale cannot be 0, and has to be finite"},
	} {
		if rule.wrong {
			return &Error{rule.key, "below onnx, " + rule.text}
		}
	}
	return nil
}
