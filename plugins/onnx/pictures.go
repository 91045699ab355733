package onnx

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
	"github.com/flambeau-serve/flambeau/plugins/onnx/vision"
)

// pictures is image_classifier and object_detector.
type pictures struct {
	h         *Handler
	options   *modelOptions
	port      *session.Port
	transform vision.Transform
	labels    map[string]string
	maxPixels int

	output                string // of a classifier
	boxes, classes, score string // of a detector
}

const defaultTop = 5

func (h *Handler) newPictures(s *modelOptions) (*pictures, error) {
	if len(h.session.Inputs) != 1 {
		return nil, fmt.Errorf("the handler %s wants a model with one input, and it has %s", s.handler, describe(h.session.Inputs))
	}
	p := &pictures{h: h, options: s, port: &h.session.Inputs[0], maxPixels: math.MaxInt}
	if n := len(p.port.Shape); n != 3 && n != 4 {
		return nil, fmt.Errorf("the handler %s wants an input of three or four dimensions, and the model has %s", s.handler, describe(h.session.Inputs))
	}
	if h.model.LimitMaxImagePixels {
		p.maxPixels = vision.MaxPixels
	}
	p.transform = s.transform(p.port, s.handler == handlerObjects)
	err := p.checkSize()
	if err != nil {
		return nil, err
	}
	if p.labels, err = readLabels(h.model.Dir); err != nil {
		return nil, err
	}
	if s.handler == handlerImages {
		if p.output, err = h.outputNamed(s.output); err != nil {
			return nil, err
		}
		return p, h.checkScores(s.handler, p.output, p.labels)
	}
	var errs [3]error
	p.boxes, errs[0] = h.outputNamed(s.boxes, "boxes")
	p.classes, errs[1] = h.outputNamed(s.classes, "labels", "classes")
	p.score, errs[2] = h.outputNamed(s.scores, "scores")
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if p.boxes == p.classes || p.boxes == p.score || p.classes == p.score {
		return nil, fmt.Errorf("%s: name the outputs with boxes, labels and scores below onnx: outputs:; the model has %s", settingsFile, describe(h.session.Outputs))
	}
	if boxes, scores := h.outputShape(p.boxes), h.outputShape(p.score); boxes != nil && scores != nil && len(boxes) <= len(scores) {
		return nil, fmt.Errorf("%s: boxes have a dimension more than scores, for their corners: name the outputs with boxes, labels and scores below onnx: outputs:; the model has %s",
			settingsFile, describe(h.session.Outputs))
	}
	h.joins.Store(false) // how many objects there are does not follow from how many pictures
	return p, nil
}

// checkSize compares the size that the settings say with the model's, where that is fixed.
func (p *pictures) checkSize() error {
	shape := p.port.Shape[len(p.port.Shape)-3:]
	height, width := shape[1], shape[2]
	if p.transform.Last {
		height, width = shape[0], shape[1]
	}
	t := &p.transform
	if t.Height > 0 && height > 0 && height != int64(t.Height) || t.Width > 0 && width > 0 && width != int64(t.Width) {
		return fmt.Errorf("%s: pictures are made %d wide and %d high, which image.crop below onnx changes, and the model has %s", settingsFile, t.Width, t.Height, describe(p.h.session.Inputs))
	}
	return nil
}

// read makes the input of a picture: a file, a text with one in base64, or numbers.
func (p *pictures) read(item *handlersdk.Item, j *job) error {
	part, err := payload(item)
	if err != nil {
		return err
	}
	data := part.Data
	text := bytes.TrimSpace(data)
	if len(text) > 0 && text[0] == '[' || tensor.IsNPY(data) {
		t, err := one(p.port, data, true)
		if err != nil {
			return err
		}
		return p.h.arrange(j, []tensor.Tensor{t})
	}
	if decoded, ok := fromBase64(text); ok {
		data = decoded
	}
	picture, err := vision.Decode(data, p.maxPixels)
	switch {
	case err != nil && saidForm(item) && part.Name != fieldData && !errors.Is(err, vision.ErrTooLarge): // most likely it is the rest of a picture
		return errForm()
	case err != nil:
		return bad("%w", err)
	}
	values, height, width, err := p.transform.Apply(picture)
	if err != nil {
		return bad("%w", err)
	}
	shape := []int64{3, int64(height), int64(width)}
	if p.transform.Last {
		shape = []int64{int64(height), int64(width), 3}
	}
	if len(p.port.Shape) == 4 {
		shape = slices.Insert(shape, 0, 1)
	}
	t, err := convert(p.port, shape, values)
	if err != nil {
		return err
	}
	if err := p.h.arrange(j, []tensor.Tensor{t}); err != nil {
		return err
	}
	j.single = true
	return nil
}

// fromBase64 reads a picture's file from a text, which may be a JSON string.
func fromBase64(text []byte) ([]byte, bool) {
	if len(text) > 1 && text[0] == '"' {
		var inner string
		if json.Unmarshal(text, &inner) != nil {
			return nil, false
		}
		text = []byte(inner)
	}
	if len(text) == 0 || text[0] < '+' || text[0] > 'z' { // every picture's file begins with, or has soon, what base64 has not
		return nil, false
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(out, text)
	return out[:n], err == nil
}

func (p *pictures) gather([]*job) {}

func (p *pictures) answer(j *job) (any, error) {
	if p.options.handler == handlerObjects {
		return p.objects(j)
	}
	t, err := p.h.output(j, p.output)
	if err != nil {
		return nil, err
	}
	top := p.options.topK
	if top == 0 {
		top = defaultTop
	}
	all, err := classified(t, p.options, p.labels, top)
	if err != nil || len(all) != 1 || !j.single {
		return all, err
	}
	return all[0], nil
}

// objects lists what was found with a score that is high enough.
func (p *pictures) objects(j *job) (any, error) {
	var values [3][]float32
	for i, name := range []string{p.boxes, p.classes, p.score} {
		t, err := p.h.output(j, name)
		if err != nil {
			return nil, err
		}
		if values[i], err = t.Floats(); err != nil {
			return nil, err
		}
	}
	boxes, classes, scores := values[0], values[1], values[2]
	const corners = 4
	if len(boxes) != corners*len(scores) || len(classes) != len(scores) {
		return nil, fmt.Errorf("the model gave %d numbers of boxes, %d labels and %d scores, which is not one of each for every object", len(boxes), len(classes), len(scores))
	}
	found := []object{}
	for i, score := range scores {
		if float64(score) < p.options.threshold {
			continue
		}
		name, err := label(p.labels, int(classes[i]))
		if err != nil {
			return nil, err
		}
		box := make([]number, corners)
		for k := range box {
			box[k] = number(boxes[corners*i+k])
		}
		one := object{{name, box}}
		one.set("score", number(score))
		found = append(found, one)
	}
	return found, nil
}
