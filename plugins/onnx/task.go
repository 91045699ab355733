package onnx

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
	"github.com/flambeau-serve/flambeau/plugins/onnx/settings"
)

// Names that the key handler of model-config.yaml may have.
const (
	handlerRaw       = settings.Raw
	handlerImages    = settings.Images
	handlerObjects   = settings.Objects
	handlerTexts     = settings.Texts
	handlerEmbedding = settings.Embedding
)

// task is what people do with a model: it makes tensors of pictures or texts, and answers of tensors. Requests of the Open Inference Protocol pass it by.
type task interface {
	// read fills in the inputs of a job, with their rows.
	read(item *handlersdk.Item, j *job) error
	// gather is given the jobs of a batch before they run.
	gather(jobs []*job)
	// answer gives what is written as JSON.
	answer(j *job) (any, error)
}

// newTask makes the task that the settings name, nil for none.
func (h *Handler) newTask(s *modelOptions) (task, error) {
	switch s.handler {
	case "", handlerRaw:
		return nil, nil //nolint:nilnil // tensors need none
	case handlerImages, handlerObjects:
		return h.newPictures(s)
	case handlerTexts, handlerEmbedding:
		return h.newTexts(s)
	}
	return nil, fmt.Errorf("%s: the handler %q is none of %s", settingsFile, s.handler, settings.Listed())
}

const (
	labelsFile = "index_to_name.json"
	maxLabels  = 64 << 20
)

// readLabels reads index_to_name.json as the Python handlers do: an object by the class's number, whose values are texts or lists that end with the text, or
// {"object_type_names": [...]}. Without the file it is nil.
func readLabels(dir string) (map[string]string, error) {
	text, err := readBounded(filepath.Join(dir, labelsFile), maxLabels)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil //nolint:nilnil // answers have the classes' numbers then
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", labelsFile, err)
	}
	var file map[string]any
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("%s has to be a JSON object, from the class's number to its label: %s", labelsFile, malformed.JSON(err))
	}
	labels := map[string]string{}
	if names, ok := file["object_type_names"].([]any); ok {
		file = map[string]any{}
		for i, name := range names {
			file[strconv.Itoa(i)] = name
		}
	}
	for class, value := range file {
		if list, ok := value.([]any); ok && len(list) > 0 {
			value = list[len(list)-1]
		}
		label, ok := value.(string)
		if !ok {
			return nil, fmt.Errorf("%s: the label of class %s has to be a text, or a list that ends with one", labelsFile, class)
		}
		labels[class] = label
	}
	return labels, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > limit {
		return nil, fmt.Errorf("it is larger than %d bytes", limit)
	}
	return os.ReadFile(path)
}

// label names a class; without a file it is its number.
func label(labels map[string]string, class int) (string, error) {
	text := strconv.Itoa(class)
	if labels == nil {
		return text, nil
	}
	name, ok := labels[text]
	if !ok {
		return "", fmt.Errorf("%s has no label for class %d", labelsFile, class)
	}
	return name, nil
}

// softmax makes probabilities of scores.
func softmax(scores []float32) []float32 {
	highest := slices.Max(scores)
	out := make([]float32, len(scores))
	sum := 0.0
	for _, s := range scores {
		sum += math.Exp(float64(s - highest))
	}
	for i, s := range scores {
		out[i] = float32(math.Exp(float64(s-highest)) / sum)
	}
	return out
}

// best gives the indices of the k largest, the largest first; of equal ones the first.
func best(values []float32, k int) []int {
	order := make([]int, len(values))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int {
		switch {
		case values[a] > values[b]:
			return -1
		case values[a] < values[b]:
			return 1
		}
		return 0
	})
	return order[:min(k, len(order))]
}

// classified names the classes of each row: all, or the best.
func classified(t *tensor.Tensor, s *modelOptions, labels map[string]string, top int) ([]any, error) {
	values, err := t.Floats()
	if err != nil {
		return nil, err
	}
	rows := int(t.Rows())
	if !isScores(t.Shape) || rows == 0 || len(values)%rows != 0 || len(values) == 0 {
		return nil, fmt.Errorf("the output %q has the shape %v, and a classifier's is [rows, classes]", t.Name, t.Shape)
	}
	classes := len(values) / rows
	var all []any
	for row := range rows {
		scores := values[row*classes : (row+1)*classes]
		if !s.noSoftmax {
			scores = softmax(scores)
		}
		order := best(scores, top)
		if top <= 0 {
			order = make([]int, classes)
			for i := range order {
				order[i] = i
			}
		}
		var one object
		for _, class := range order {
			name, err := label(labels, class)
			if err != nil {
				return nil, err
			}
			one.set(name, number(scores[class]))
		}
		all = append(all, one)
	}
	return all, nil
}

// object is a JSON object whose members keep their order.
type object []member

type member struct {
	name  string
	value any
}

// set adds a member, or replaces one of the same name, as a Python dict does.
func (o *object) set(name string, value any) {
	if i := slices.IndexFunc(*o, func(m member) bool { return m.name == name }); i >= 0 {
		(*o)[i].value = value
		return
	}
	*o = append(*o, member{name, value})
}

// MarshalJSON implements json.Marshaler.
func (o object) MarshalJSON() ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, m := range o {
		if i > 0 {
			b.WriteByte(',')
		}
		name, err := json.Marshal(m.name)
		if err != nil {
			return nil, err
		}
		value, err := json.Marshal(m.value)
		if err != nil {
			return nil, err
		}
		b.Write(name)
		b.WriteByte(':')
		b.Write(value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// number is a float32 as Python writes it once it is a float64: 0.5, 1.0, 1e-05.
type number float32

// MarshalJSON implements json.Marshaler. What JSON has no number for is null.
func (n number) MarshalJSON() ([]byte, error) {
	f := float64(n)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return []byte("null"), nil
	}
	if abs := math.Abs(f); abs != 0 && (abs < 1e-4 || abs >= 1e16) {
		return strconv.AppendFloat(nil, f, 'e', -1, 64), nil
	}
	text := strconv.AppendFloat(nil, f, 'f', -1, 64)
	if !bytes.ContainsRune(text, '.') {
		text = append(text, ".0"...)
	}
	return text, nil
}

// taskAnswer writes the answer of a task as the Python worker does.
func (h *Handler) taskAnswer(j *job) (handlersdk.Result, error) {
	value, err := h.task.answer(j)
	if err != nil {
		return handlersdk.Result{}, err
	}
	body, err := json.MarshalIndent(value, "", "  ")
	return handlersdk.Result{Header: []handlersdk.Field{{Name: "content-type", Value: jsonType}}, Body: body}, err
}

// output gives one of a job's outputs by the place of its name among the model's.
func (h *Handler) output(j *job, name string) (*tensor.Tensor, error) {
	i := slices.Index(h.namesOf(j), name)
	if i < 0 || i >= len(j.outputs) || j.outputs[i].Tensor == nil {
		return nil, fmt.Errorf("the output %q is no tensor", name)
	}
	return j.outputs[i].Tensor, nil
}

// outputNamed finds the output that the settings name, else the only one or the first of those that are usual, else the first.
func (h *Handler) outputNamed(name string, usual ...string) (string, error) {
	if name != "" {
		if !slices.Contains(h.names, name) {
			return "", fmt.Errorf("%s: the model has no output %q; it has %s", settingsFile, name, describe(h.session.Outputs))
		}
		return name, nil
	}
	for _, u := range usual {
		if i := slices.IndexFunc(h.names, func(n string) bool { return strings.EqualFold(n, u) }); i >= 0 {
			return h.names[i], nil
		}
	}
	if len(h.names) == 0 {
		return "", errors.New("the model has no outputs")
	}
	return h.names[0], nil
}

// outputShape gives the shape of an output, nil if it is not known.
func (h *Handler) outputShape(name string) []int64 {
	return h.session.Outputs[slices.Index(h.names, name)].Shape
}

// isScores says whether a shape is one of rows and classes. Dimensions of one may follow.
func isScores(shape []int64) bool {
	return len(shape) >= 2 && !slices.ContainsFunc(shape[2:], func(n int64) bool { return n > 1 })
}

// checkScores refuses an output that does not have a score for each class.
func (h *Handler) checkScores(handler, output string, labels map[string]string) error {
	port := &h.session.Outputs[slices.Index(h.names, output)]
	if port.IsTensor() && (port.Shape == nil || isScores(port.Shape)) {
		h.warnOfLabels(port.Shape, labels)
		return nil
	}
	return fmt.Errorf("the handler %s wants an output of [rows, classes], and %q is %s: name another one by output below onnx; the model has %s", handler, output, describePort(port),
		describe(h.session.Outputs))
}

// warnOfLabels tells of a class without a label: TorchServe's handlers take such a file as well, and fail with requests whose answer has that class.
func (h *Handler) warnOfLabels(shape []int64, labels map[string]string) {
	if labels == nil || len(shape) < 2 {
		return
	}
	for class := range shape[1] {
		if _, ok := labels[strconv.FormatInt(class, 10)]; !ok {
			h.opts.Logger.Warn("a class has no label: requests whose answer has it will fail", "model", h.model.Name, "class", class, "classes", shape[1], "file", labelsFile)
			return
		}
	}
}

// What the content of a request is called: a field of a form, and a body.
const (
	fieldData = "data"
	fieldBody = "body"
)

// payload gives what a request of a task carries: the part that is called data, else body, as the Python handlers take it, else the only one.
func payload(item *handlersdk.Item) (handlersdk.Part, error) {
	for _, name := range []string{fieldData, fieldBody} {
		if p, ok := item.Part(name); ok && len(p.Data) > 0 {
			return p, nil
		}
	}
	if len(item.Parts) == 1 && len(item.Parts[0].Data) > 0 {
		return item.Parts[0], nil
	}
	if err := misread(item); err != nil {
		return handlersdk.Part{}, err
	}
	filled := slices.DeleteFunc(slices.Clone(item.Parts), func(p handlersdk.Part) bool { return len(p.Data) == 0 })
	switch {
	case len(filled) == 0:
		return handlersdk.Part{}, bad("the request is empty: send the content as the body, or as the form's field data")
	case saidForm(item):
		return handlersdk.Part{}, errForm()
	}
	return handlersdk.Part{}, bad("the request has %d parts, and none of them is called data: send the content as the form's field data, or as the body", len(item.Parts))
}

// saidForm says whether a body was read as the fields of a form that are joined by &, for its content type said so.
func saidForm(item *handlersdk.Item) bool {
	contentType, _ := headerOf(item, "content-type")
	return strings.Contains(strings.ToLower(contentType), "x-www-form-urlencoded")
}

// misread tells of a body that was taken for a form: its fields have names and no values then, or there is not even a name.
func misread(item *handlersdk.Item) error {
	if len(item.Parts) == 0 && !saidForm(item) || slices.ContainsFunc(item.Parts, func(p handlersdk.Part) bool {
		return p.Name == "" || p.Name == fieldBody || p.Name == fieldData || len(p.Data) > 0
	}) {
		return nil
	}
	return errForm()
}

func errForm() error {
	return bad("the body came as a form, for its content type said so (curl -d and --data-binary do that by themselves): send it with the header Content-Type: application/json, or text/plain, or the picture's type")
}

// convert makes a port's element type of floats.
func convert(port *session.Port, shape []int64, values []float32) (tensor.Tensor, error) {
	t := tensor.FromFloats(port.Name, shape, values)
	switch port.DType { //nolint:exhaustive // pictures come as these
	case tensor.FP32:
		return t, nil
	case tensor.FP16:
		data := make([]byte, 0, 2*len(values))
		for _, v := range values {
			half := tensor.FloatToHalf(v)
			data = append(data, byte(half), byte(half>>8))
		}
		t.DType, t.Data = tensor.FP16, data
		return t, nil
	case tensor.Uint8:
		data := make([]byte, len(values))
		for i, v := range values {
			data[i] = byte(min(max(v, 0), 255))
		}
		t.DType, t.Data = tensor.Uint8, data
		return t, nil
	}
	return t, fmt.Errorf("the input %q is %s, and pictures are given as FP32, FP16 or UINT8", port.Name, port.DType)
}
