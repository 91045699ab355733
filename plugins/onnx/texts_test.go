package onnx

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/tensor"
	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
	"github.com/flambeau-serve/flambeau/plugins/onnx/settings"
	"github.com/flambeau-serve/flambeau/plugins/onnx/tokenize"
)

// TestTextThatTakesTooLong: a text that keeps the tokenizer's regular expression busy is refused with the place of the text in its list.
func TestTextThatTakesTooLong(t *testing.T) {
	t.Parallel()
	k, err := tokenize.Parse([]byte(`{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?:a|aa)+b"}, "behavior": "Isolated"},
		"model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"}}`))
	if err != nil {
		t.Fatal(err)
	}
	h := &texts{tokenizer: k}
	request := item("application/json", []byte(`["short", "`+strings.Repeat("a", 100)+`!b"]`))
	if err := h.read(&request, &job{}); err == nil || !strings.Contains(err.Error(), "text 2: the regular expression of its tokenizer takes too long for this text; send shorter texts") {
		t.Errorf("%v", err)
	}
}

// TestTextWithoutToken: a text that the tokenizer has no token for is refused, and nobody is told to shorten it.
func TestTextWithoutToken(t *testing.T) {
	t.Parallel()
	k, err := tokenize.Parse([]byte(`{"model": {"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "none"}}`))
	if err != nil {
		t.Fatal(err)
	}
	h := &texts{tokenizer: k}
	request := item("application/json", []byte(`["u", "x"]`))
	if err := h.read(&request, &job{}); err == nil || !strings.Contains(err.Error(), "text 2: the text has something that its tokenizer has no token for") || strings.Contains(err.Error(), "shorter") {
		t.Errorf("%v", err)
	}
	if _, err := k.Encode("x", 0); !errors.Is(err, tokenize.ErrUnknown) {
		t.Errorf("%v", err)
	}
}

// columnsOf are those of a model with inputs of these names.
func columnsOf(kinds ...columnKind) []column {
	var all []column
	for _, kind := range kinds {
		all = append(all, column{&session.Port{Name: fmt.Sprint(kind), DType: tensor.Int64, Shape: []int64{-1, -1}}, kind})
	}
	return all
}

// filledRows gives the rows of each input for some texts.
func filledRows(t *testing.T, h *texts, list []string) map[columnKind][][]int64 {
	t.Helper()
	j := &job{}
	longest := 0
	for _, text := range list {
		e, err := h.tokenizer.Encode(text, 0)
		if err != nil {
			t.Fatal(err)
		}
		j.tokens = append(j.tokens, e)
		longest = max(longest, len(e.IDs))
	}
	rows := map[columnKind][][]int64{}
	for i, x := range h.filled(j, h.length(longest)) {
		width := int(x.Shape[1])
		for row := range list {
			values := make([]int64, width)
			for k := range values {
				values[k] = int64(binary.LittleEndian.Uint64(x.Data[8*(row*width+k):]))
			}
			rows[h.columns[i].kind] = append(rows[h.columns[i].kind], values)
		}
	}
	return rows
}

// TestFilledUp compares with how Hugging Face's library fills texts up (tokenize/testdata/steps.py): on either side, to a length, or to a multiple of one.
func TestFilledUp(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("tokenize/testdata/batches.json")
	if err != nil {
		t.Fatal(err)
	}
	var batches []struct {
		Tokenizer json.RawMessage `json:"tokenizer"`
		Texts     []string        `json:"texts"`
		Rows      []struct {
			IDs   []int64 `json:"ids"`
			Mask  []int64 `json:"mask"`
			Types []int64 `json:"types"`
		} `json:"rows"`
	}
	vocab := map[string]int{}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = b
	}
	bytes, err := json.Marshal(vocab)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(string(text), `"BYTES"`, string(bytes))), &batches); err != nil || len(batches) != 8 {
		t.Fatal(err, len(batches))
	}
	for _, b := range batches {
		k, err := tokenize.Parse(b.Tokenizer)
		if err != nil {
			t.Fatal(err)
		}
		got := filledRows(t, &texts{tokenizer: k, columns: columnsOf(tokenIDs, mask, parts, positions)}, b.Texts)
		for i, want := range b.Rows {
			if !slices.Equal(got[tokenIDs][i], want.IDs) || !slices.Equal(got[mask][i], want.Mask) || !slices.Equal(got[parts][i], want.Types) {
				t.Errorf("%+v, %q:\n got %v %v %v\nwant %v", k.Padding, b.Texts[i], got[tokenIDs][i], got[mask][i], got[parts][i], want)
			}
			first := slices.Index(want.Mask, 1)
			if at := got[positions][i]; at[first] != 0 || at[len(at)-1] < 2 {
				t.Errorf("%+v, %q: positions %v, mask %v", k.Padding, b.Texts[i], at, want.Mask)
			}
		}
		if shortest := filledRows(t, &texts{tokenizer: k, columns: columnsOf(tokenIDs, mask), masked: true}, b.Texts[:1]); len(shortest[mask][0]) != 3 {
			t.Errorf("with a mask a row of three tokens is filled up: %v", shortest)
		}
	}
}

// TestVectorsOfFilledUp: the mean, and the first token, are those of the text's own tokens, whichever side is filled up.
func TestVectorsOfFilledUp(t *testing.T) {
	t.Parallel()
	for _, left := range []bool{false, true} {
		for _, pooling := range []string{"", settings.PoolingFirst} {
			h := &texts{tokenizer: &tokenize.Tokenizer{Padding: tokenize.Padding{Left: left}}, options: &modelOptions{pooling: pooling, noNormalize: true}}
			own, filled := []float32{1, 2, 3, 6}, []float32{100, 100} // two tokens of two numbers, and one
			values := slices.Concat(own, filled)
			if left {
				values = slices.Concat(filled, own)
			}
			x := tensor.Tensor{Name: "x", DType: tensor.FP32, Shape: []int64{1, 3, 2}}
			for _, v := range values {
				x.Data = binary.LittleEndian.AppendUint32(x.Data, math.Float32bits(v))
			}
			got, err := h.vectors(&x, &job{tokens: []tokenize.Encoded{{IDs: []int64{7, 8}}}})
			want := "[[2 4]]"
			if pooling == settings.PoolingFirst {
				want = "[[1 2]]"
			}
			if err != nil || fmt.Sprint(got) != want {
				t.Errorf("left %v, pooling %q: %v, %v, want %s", left, pooling, got, err, want)
			}
		}
	}
}

// TestHalfSurrogates: half of a pair in JSON is a character that stands for what is none, as in the body of a text nothing else is let in.
func TestHalfSurrogates(t *testing.T) {
	t.Parallel()
	request := item("application/json", []byte(`["a\ud800b\udc00\ud83d\ude00"]`))
	part, err := payload(&request)
	if err != nil {
		t.Fatal(err)
	}
	if list, _, err := textsOf(part); err != nil || !slices.Equal(list, []string{"a\ufffdb\ufffd\U0001f600"}) {
		t.Errorf("%q, %v", list, err)
	}
	part.Data = []byte("a\xff")
	if list, _, err := textsOf(part); err == nil {
		t.Errorf("%q", list)
	}
}

// TestWhatIsAText: what is said to be a text is one, whatever it looks like, and what is said to be JSON is never taken for a text. Without a word it is JSON if it can be.
func TestWhatIsAText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		contentType, body string
		want              []string // nil: it is refused
	}{
		{"", `["a", "b"]`, []string{"a", "b"}},
		{"application/octet-stream", `{"text": "a"}`, []string{"a"}},
		{"", `{"text": "a`, []string{`{"text": "a`}},
		{"", `[1, 2]`, nil},
		{"text/plain; charset=utf-8", `[1, 2]`, []string{"[1, 2]"}},
		{"Text/Plain", `["a", "b"]`, []string{`["a", "b"]`}},
		{"text/plain", `{"text": "a"}`, []string{`{"text": "a"}`}},
		{"application/json", `"a"`, []string{"a"}},
		{"Application/JSON", `"a"`, []string{"a"}},
		{"application/json", `{"text": "a`, nil},
		{"application/json", `It was fine.`, nil},
		{"application/json", `{"text": 5}`, nil},
		{"text/json", `["a"]`, []string{"a"}},
	} {
		list, _, err := textsOf(handlersdk.Part{ContentType: c.contentType, Data: []byte(c.body)})
		if !slices.Equal(list, c.want) || (err == nil) != (c.want != nil) {
			t.Errorf("%s as %q: %q, %v, want %q", c.body, c.contentType, list, err, c.want)
		}
	}
}
