package onnx

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/plugins/onnx/tokenize"
)

// TestWordsOfMalformedFilesAndRequests has no error that names what only this program knows.
func TestWordsOfMalformedFilesAndRequests(t *testing.T) {
	t.Parallel()
	request := func(text string) error {
		_, err := (&Handler{}).protocol([]byte(text), nil, &job{})
		return err
	}
	file := func(text string) error {
		_, err := parseOptions([]byte(text))
		return err
	}
	labels := func(text string) error {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, labelsFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := readLabels(dir)
		return err
	}
	tokenizer := func(text string) error {
		_, err := tokenize.Parse([]byte(text))
		return err
	}
	const model = `"model":{"type":"WordLevel","unk_token":"u","vocab":`
	for _, tc := range []struct {
		of         func(string) error
		text, want string
	}{
		{request, `[]`, `: it is an array and has to be an object (byte 1)`},
		{request, `{"inputs":{}}`, `: "inputs" is an object and has to be an array (byte 11)`},
		{request, `{"inputs":[{"name":5}]}`, `: "inputs.name" is a number and has to be a string (byte 20)`},
		{request, `{"inputs":[{"shape":["1"]}]}`, `: "inputs.shape" is a string and has to be a whole number (byte 24)`},
		{request, `{"parameters":{"binary_data_output":1}}`, `"parameters.binary_data_output" is a number and has to be true or false`},
		{request, `{"inputs":[`, `: unexpected end of JSON input`},
		{file, "onnx: [1]\n", `model-config.yaml: line 1: "onnx" is a list and has to be a map of keys to values`},
		{file, "onnx:\n  topK: many\n", `model-config.yaml: line 2: "topK" is the string "many" and has to be a whole number`},
		{file, "onnx:\n  image:\n    crop: [a, 2]\n", `model-config.yaml: line 3: an element of "crop" is the string "a" and has to be a whole number`},
		{file, "onnx:\n  session: {a: [1]}\n", `model-config.yaml: line 2: "a" is a list and has to be a string`},
		{file, "onnx: [1\n", `model-config.yaml: line 1: sequence end token ']' not found`},
		{labels, `["cat"]`, `index_to_name.json has to be a JSON object, from the class's number to its label: it is an array and has to be an object`},
		{labels, `{"0": cat}`, `invalid character 'c' looking for beginning of value (byte 7)`},
		{tokenizer, `[]`, `tokenizer.json: it is an array and has to be an object`},
		{tokenizer, `{"model":{"type":5}}`, `tokenizer.json: "model.type" is a number and has to be a string`},
		{tokenizer, `{"model":{"vocab":{"u":0},"merges":[5]}}`, `is a number and has to be a string`},
		{tokenizer, `{` + model + `["u"]}}`, `tokenizer.json: the vocabulary: it is an array and has to be an object`},
		{tokenizer, `{` + model + `{"u":"0"}}}`, `tokenizer.json: the vocabulary: `},
		{tokenizer, `{"model":{"type":"Unigram","vocab":[5]}}`, `tokenizer.json: the vocabulary: `},
	} {
		err := tc.of(tc.text)
		if err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%q: %v, want %q", tc.text, err, tc.want)
			continue
		}
		for _, inside := range []string{"json:", "Go ", "struct", "interface", "unmarshal", "map[", "\n"} {
			if strings.Contains(strings.ReplaceAll(err.Error(), "tokenizer.json", ""), inside) {
				t.Errorf("%q: %v", tc.text, err)
			}
		}
	}
}
