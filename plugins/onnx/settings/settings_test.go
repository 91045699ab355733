package settings

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	s, err := Parse([]byte("handler: embedding\nminWorkers: 2\nonnx:\n  topK: 3\n  arena: false\n  providers: [{name: CPU}]\n  image: {crop: [], scale: 0.5}\n  text: {maxLength: 7, pooling: cls}\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := &s.ONNX
	if s.Handler != Embedding || o.TopK != 3 || o.Arena == nil || *o.Arena || o.MemoryPattern != nil || len(o.Providers) != 1 || o.Providers[0].Name != "CPU" ||
		o.Image.Crop == nil || *o.Image.Scale != 0.5 || o.Text.MaxLength != 7 || o.Text.Pooling != PoolingFirst {
		t.Errorf("%+v", s)
	}
	for _, text := range []string{"", "handler: {a: b}", "handler: null", "onnx:", "handler: no_such_handler"} {
		if _, err := Parse([]byte(text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]struct{ key, says string }{
		"onnx: [":                            {"", "line 1"},
		"onnx: 5":                            {"", "line 1"},
		"onnx: {topK: many}":                 {"", `"topK" is the string "many"`},
		"handler: [a]":                       {"handler", "the handler [a] is no name"},
		"onnx: {topk: 3}":                    {"topk", `below onnx there is no key "topk"; the keys are arena, batching,`},
		"onnx: {text: {max: 3}}":             {"max", `below onnx.text there is no key "max"; the keys are maxLength, normalize, pooling`},
		"onnx: {providers: [{names: CPU}]}":  {"names", `below onnx.providers there is no key "names"`},
		"onnx: {providers: [{options: {}}]}": {"providers", "no name"},
		"onnx: {interOpThreads: -1}":         {"interOpThreads", "interOpThreads cannot be negative"},
		"onnx: {text: {maxLength: -1}}":      {"maxLength", "negative"},
		"onnx: {text: {pooling: max}}":       {"pooling", "none of mean, cls"},
		"onnx: {image: {resize: 20000}}":     {"resize", "has to be positive"},
		"onnx: {image: {crop: [1, 0]}}":      {"crop", "[width, height]"},
		"onnx: {image: {stretch: true}}":     {"stretch", "needs image.crop"},
		"onnx: {image: {mean: [1, 2]}}":      {"mean", "a number per colour"},
		"onnx: {image: {std: [1, 2, .inf]}}": {"std", "finite"},
		"onnx: {image: {scale: 0}}":          {"scale", "cannot be 0"},
	} {
		_, err := Parse([]byte(text))
		wrong, is := errors.AsType[*Error](err)
		if !is || wrong.Key != want.key || !strings.Contains(wrong.Text, want.says) || !strings.HasPrefix(err.Error(), FileName+": ") {
			t.Errorf("%s: %v, key %q; want %q, %q", text, err, wrong.Key, want.says, want.key)
		}
	}
}

// FuzzParse: nothing may panic, and every error is told in the same way.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"onnx: {image: {crop: [1, 2], mean: [0, .nan, 1]}}", "handler: [a]", "onnx: &a {text: *a}", "onnx: {providers: [{name: CPU, options: {a: b}}, 5]}", "\x00"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		s, err := Parse(text)
		if _, is := errors.AsType[*Error](err); (s == nil || err != nil) && !is {
			t.Errorf("%v, %v", s, err)
		}
	})
}
