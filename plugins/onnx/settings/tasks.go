package settings

import (
	"slices"
	"strings"
)

// The values of the key handler in the model-config.yaml of an ONNX model.
const (
	Images    = "image_classifier" // a picture in, its classes out
	Texts     = "text_classifier"  // a text in, its classes out
	Embedding = "embedding"        // a text in, a vector out
	Objects   = "object_detector"  // a picture in, the things in it out
	Raw       = "raw"              // tensors in, tensors out; what a model without the key is
)

// Names lists all of them.
func Names() []string { return []string{Images, Texts, Embedding, Objects, Raw} }

// Known says whether there is a task of that name. No name is Raw.
func Known(name string) bool { return name == "" || slices.Contains(Names(), name) }

// Listed gives all the names for a message.
func Listed() string { return strings.Join(Names(), ", ") }
