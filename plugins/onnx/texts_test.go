package onnx

import (
	"strings"
	"testing"

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
