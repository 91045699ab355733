package onnx

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
	"github.com/flambeau-serve/flambeau/plugins/onnx/settings"
	"github.com/flambeau-serve/flambeau/plugins/onnx/tokenize"
)

// texts is text_classifier and embedding.
type texts struct {
	h         *Handler
	options   *modelOptions
	tokenizer *tokenize.Tokenizer
	limit     int
	labels    map[string]string
	output    string
	columns   []column // one for each input
	masked    bool     // an input says which tokens are the text's
}

// column says what an input gets: the tokens' numbers, ones for them, which part of the template they are of, or where they are.
type column struct {
	port *session.Port
	kind columnKind
}

type columnKind int

const (
	tokenIDs columnKind = iota
	mask
	parts
	positions
)

const (
	tokenizerFile = "tokenizer.json" //nolint:gosec // a file's name
	maxTokenizer  = 256 << 20
)

func (h *Handler) newTexts(s *modelOptions) (*texts, error) {
	file, err := readBounded(filepath.Join(h.model.Dir, tokenizerFile), maxTokenizer)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("the handler %s needs the file %s beside the model", s.handler, tokenizerFile)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", tokenizerFile, err)
	}
	t := &texts{h: h, options: s}
	if t.tokenizer, err = tokenize.Parse(file); err != nil {
		return nil, err
	}
	t.limit = s.maxLength
	if t.limit == 0 {
		t.limit = t.tokenizer.MaxLength
	}
	if t.limit == 0 {
		t.limit = defaultLength
	}
	for i := range h.session.Inputs {
		port := &h.session.Inputs[i]
		kind, ok := map[string]columnKind{"input_ids": tokenIDs, "attention_mask": mask, "token_type_ids": parts, "position_ids": positions}[port.Name]
		if !ok || len(port.Shape) != 2 || port.DType != tensor.Int64 && port.DType != tensor.Int32 {
			return nil, fmt.Errorf("the handler %s knows the inputs input_ids, attention_mask, token_type_ids and position_ids, whole numbers of [rows, tokens]; the model has %s",
				s.handler, describe(h.session.Inputs))
		}
		t.columns = append(t.columns, column{port, kind})
		t.masked = t.masked || kind == mask
		if fixed := port.Shape[1]; fixed > 0 {
			t.limit = int(min(int64(t.limit), fixed))
		}
	}
	if s.handler == handlerTexts {
		if t.labels, err = readLabels(h.model.Dir); err != nil {
			return nil, err
		}
		if t.output, err = h.outputNamed(s.output, "logits"); err != nil {
			return nil, err
		}
		return t, h.checkScores(s.handler, t.output, t.labels)
	}
	t.output, err = h.outputNamed(s.output, "sentence_embedding", "last_hidden_state")
	return t, err
}

// defaultLength is what most models of this kind take at most.
const defaultLength = 512

// read tokenizes a text, or a list of texts.
func (t *texts) read(item *handlersdk.Item, j *job) error {
	part, err := payload(item)
	if err != nil {
		return err
	}
	list, single, err := textsOf(part)
	if err != nil {
		return err
	}
	longest := 0
	rows := make([]tokenize.Encoded, len(list))
	for i, text := range list {
		if rows[i], err = t.tokenizer.Encode(text, t.limit); err != nil {
			return refused(i, err)
		}
		longest = max(longest, len(rows[i].IDs))
	}
	length := t.length(longest)
	for i := range rows { // what comes with each text may be more than all that the model takes
		rows[i].IDs = rows[i].IDs[:min(len(rows[i].IDs), length)]
	}
	j.tokens = rows
	if err := t.fill(j, length); err != nil {
		return err
	}
	j.single = single
	return nil
}

// length gives the number of tokens in each row, of which the longest has so many.
func (t *texts) length(longest int) int {
	switch fixed := t.columns[0].port.Shape[1]; {
	case fixed > 0:
		return int(fixed)
	case t.masked: // a model that is told which tokens are the text's gives the same answer for any length
		return longest
	}
	return t.tokenizer.Padding.Length(longest)
}

func refused(text int, err error) error {
	if errors.Is(err, tokenize.ErrTooLong) {
		return bad("text %d: %v; send shorter texts", text+1, err)
	}
	return bad("text %d: %v", text+1, err)
}

// fill makes the inputs of a job's tokens, with rows of so many.
func (t *texts) fill(j *job, length int) error {
	j.inputs = nil
	return t.h.arrange(j, t.filled(j, length))
}

func (t *texts) filled(j *job, length int) (all []tensor.Tensor) {
	for _, c := range t.columns {
		x := tensor.Tensor{Name: c.port.Name, DType: c.port.DType, Shape: []int64{int64(len(j.tokens)), int64(length)}}
		for i := range j.tokens {
			row := &j.tokens[i]
			begin := 0
			if t.tokenizer.Padding.Left {
				begin = length - len(row.IDs)
			}
			for i := range length {
				v := t.value(c.kind, row, i-begin)
				if c.port.DType == tensor.Int32 {
					x.Data = binary.LittleEndian.AppendUint32(x.Data, uint32(v))
				} else {
					x.Data = binary.LittleEndian.AppendUint64(x.Data, uint64(v))
				}
			}
		}
		all = append(all, x)
	}
	return all
}

// value gives what an input has for the token at a place of a row, or for what is before or behind them.
func (t *texts) value(kind columnKind, row *tokenize.Encoded, at int) int64 {
	own := at >= 0 && at < len(row.IDs)
	switch {
	case kind == positions:
		return int64(max(at, 0))
	case kind == tokenIDs && own:
		return row.IDs[at]
	case kind == tokenIDs:
		return t.tokenizer.Padding.ID
	case kind == mask && own:
		return 1
	case kind == parts && own && row.Types != nil:
		return row.Types[at]
	case kind == parts && !own:
		return t.tokenizer.Padding.Type
	}
	return 0
}

// gather gives all jobs rows of the same length, so that they may run at once. Models that mind what lies behind a text have no mask, and are left alone.
func (t *texts) gather(jobs []*job) {
	if !t.h.joins.Load() || len(jobs) < 2 || !t.masked {
		return
	}
	longest := 0
	for _, j := range jobs {
		for _, row := range j.tokens {
			longest = max(longest, len(row.IDs))
		}
	}
	for _, j := range jobs {
		if j.err == nil && j.tokens != nil && j.inputs[0].Value.Tensor.Shape[1] != int64(longest) {
			single := j.single
			j.err = t.fill(j, longest)
			j.single = single
		}
	}
}

// asJSON reads a body that is JSON: by its content type, or by what it looks like, if that does not say that it is a text.
func asJSON(part handlersdk.Part) (value any, isJSONBody bool, err error) {
	text := bytes.TrimSpace(part.Data)
	said := isJSON(part.ContentType)
	plain := strings.HasPrefix(strings.ToLower(strings.TrimSpace(part.ContentType)), "text/")
	if !said && (plain || len(text) == 0 || text[0] != '{' && text[0] != '[') {
		return nil, false, nil
	}
	err = json.Unmarshal(text, &value)
	if err != nil && said {
		return nil, false, bad("the content type says JSON, and the body is none: %s; a text as it is goes with the content type text/plain", malformed.JSON(err))
	}
	return value, err == nil, nil // a text may begin with a bracket
}

// textsOf reads a body: a text, or JSON with one, a list of them, or an object with one of the two by the name text, inputs or input.
func textsOf(part handlersdk.Part) (list []string, single bool, err error) {
	if !utf8.Valid(part.Data) {
		return nil, false, bad("the text is no UTF-8")
	}
	value, isJSONBody, err := asJSON(part)
	if err != nil {
		return nil, false, err
	}
	if !isJSONBody {
		return []string{string(part.Data)}, true, nil
	}
	if members, ok := value.(map[string]any); ok {
		value = nil
		for _, name := range []string{"text", "inputs", "input"} {
			if v, has := members[name]; has {
				value = v
				break
			}
		}
	}
	switch v := value.(type) {
	case string:
		return []string{v}, true, nil
	case []any:
		for _, m := range v {
			s, ok := m.(string)
			if !ok {
				return nil, false, bad("a list of texts has something else in it")
			}
			list = append(list, s)
		}
		if len(list) > 0 {
			return list, false, nil
		}
	}
	return nil, false, bad(`send a text, or JSON: "…", ["…", "…"] or {"text": "…"}`)
}

func (t *texts) answer(j *job) (any, error) {
	x, err := t.h.output(j, t.output)
	if err != nil {
		return nil, err
	}
	var all []any
	if t.options.handler == handlerTexts {
		all, err = classified(x, t.options, t.labels, t.options.topK)
	} else {
		all, err = t.vectors(x, j)
	}
	if err != nil || !j.single || len(all) != 1 {
		return all, err
	}
	return all[0], nil
}

// vectors pools what the model gives for each token, unless it gives one vector for each text, and makes their lengths one.
func (t *texts) vectors(x *tensor.Tensor, j *job) ([]any, error) {
	values, err := x.Floats()
	if err != nil {
		return nil, err
	}
	rows := len(j.tokens)
	if len(x.Shape) < 2 || len(x.Shape) > 3 || x.Shape[0] != int64(rows) {
		return nil, fmt.Errorf("the output %q has the shape %v, and an embedding's is [texts, numbers] or [texts, tokens, numbers]", x.Name, x.Shape)
	}
	width := int(x.Shape[len(x.Shape)-1])
	var all []any
	for row := range rows {
		each := values[row*len(values)/rows : (row+1)*len(values)/rows]
		own := 1
		if len(x.Shape) == 3 {
			own = min(len(j.tokens[row].IDs), int(x.Shape[1]))
			if t.tokenizer.Padding.Left {
				each = each[(int(x.Shape[1])-own)*width:]
			}
		}
		if t.options.pooling == settings.PoolingFirst {
			own = min(own, 1)
		}
		vector := mean(each, own, width)
		if !t.options.noNormalize {
			normalize(vector)
		}
		out := make([]number, width)
		for i, v := range vector {
			out[i] = number(v)
		}
		all = append(all, out)
	}
	return all, nil
}

// mean is that of the first count vectors.
func mean(values []float32, count, width int) []float64 {
	vector := make([]float64, width)
	for k := range count {
		for i := range vector {
			vector[i] += float64(values[k*width+i]) / float64(count)
		}
	}
	return vector
}

// normalize makes a vector's length one.
func normalize(vector []float64) {
	sum := 0.0
	for _, v := range vector {
		sum += v * v
	}
	length := max(math.Sqrt(sum), 1e-12)
	for i := range vector {
		vector[i] /= length
	}
}
