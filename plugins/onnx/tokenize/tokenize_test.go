package tokenize

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func parsed(t *testing.T, path string) *Tokenizer {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	k, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// TestAsTheirLibrary compares with what Hugging Face's library gave (testdata/golden.py). FLAMBEAU_TEST_TOKENIZER names a further tokenizer.json, whose .want file lies
// beside it or is named by FLAMBEAU_TEST_TOKENIZER_WANT.
func TestAsTheirLibrary(t *testing.T) {
	t.Parallel()
	files := [][2]string{{"testdata/wordpiece.json", "testdata/wordpiece.want"}, {"testdata/bytepairs.json", "testdata/bytepairs.want"}}
	if more := os.Getenv("FLAMBEAU_TEST_TOKENIZER"); more != "" {
		files = append(files, [2]string{more, os.Getenv("FLAMBEAU_TEST_TOKENIZER_WANT")})
	}
	for _, pair := range files {
		compare(t, pair[0], pair[1])
	}
}

// compare encodes the texts of a file and wants its numbers.
func compare(t *testing.T, tokenizer, want string) {
	t.Helper()
	k := parsed(t, tokenizer)
	text, err := os.ReadFile(want)
	if err != nil {
		t.Fatal(err)
	}
	var cases []stepCase
	if err := json.Unmarshal(text, &cases); err != nil || len(cases) == 0 {
		t.Fatal(err, len(cases))
	}
	compareCases(t, tokenizer, k, cases)
}

// stepCase is a text, with its tokens, none if there is no token for something; and what token_type_ids says of these, unless all are 0.
type stepCase struct {
	Text  string  `json:"text"`
	IDs   []int64 `json:"ids"`
	Types []int64 `json:"types"`
}

func compareCases(t *testing.T, name string, k *Tokenizer, cases []stepCase) {
	t.Helper()
	const most = 10
	failed := 0
	for _, c := range cases {
		got, err := k.Encode(c.Text, k.MaxLength)
		if errors.Is(err, ErrUnknown) && c.IDs == nil {
			continue
		}
		if err == nil && c.IDs != nil && slices.Equal(got.IDs, c.IDs) && slices.Equal(got.Types, c.Types) {
			continue
		}
		if failed++; failed <= most {
			at := 0
			for at < min(len(got.IDs), len(c.IDs)) && got.IDs[at] == c.IDs[at] {
				at++
			}
			t.Errorf("%s: %.200q: %v, from token %d on\n got %v %v\nwant %v %v", name, c.Text, err, at, shortened(got.IDs[at:]), shortened(got.Types), shortened(c.IDs[at:]), shortened(c.Types))
		}
	}
	if failed > 0 {
		t.Errorf("%s: %d of %d texts", name, failed, len(cases))
	}
}

// TestSteps compares with what Hugging Face's library made of texts with every step of a tokenizer.json (testdata/steps.py).
func TestSteps(t *testing.T) {
	t.Parallel()
	var all []struct {
		Tokenizer json.RawMessage `json:"tokenizer"`
		Cases     []stepCase      `json:"cases"`
	}
	decoded(t, "testdata/steps.json", &all)
	if len(all) < 40 {
		t.Fatalf("%d tokenizers", len(all))
	}
	for _, one := range all {
		k, err := Parse(withBytes(t, one.Tokenizer))
		if err != nil {
			t.Errorf("%s is refused: %v", one.Tokenizer, err)
			continue
		}
		compareCases(t, string(one.Tokenizer), k, one.Cases)
	}
}

// withBytes writes the vocabulary of steps.py for its name.
func withBytes(t *testing.T, file []byte) []byte {
	t.Helper()
	vocab := map[string]int{}
	for b := range 256 {
		vocab[fmt.Sprintf("<0x%02X>", b)] = b
	}
	text, err := json.Marshal(vocab)
	if err != nil {
		t.Fatal(err)
	}
	return bytes.ReplaceAll(file, []byte(`"BYTES"`), text)
}

func encoded(t *testing.T, k *Tokenizer, text string, limit int) []int64 {
	t.Helper()
	ids, err := k.Encode(text, limit)
	if err != nil {
		t.Fatal(err)
	}
	return ids.IDs
}

func shortened(ids []int64) []int64 { return ids[:min(len(ids), 12)] }

// trained gives the folder with tokenizers that Hugging Face's library trains now, and with what it makes of unpleasant texts.
func trained(t *testing.T) string {
	t.Helper()
	if dir := os.Getenv("FLAMBEAU_TEST_TOKENIZERS"); dir != "" {
		return dir
	}
	python := os.Getenv("FLAMBEAU_TEST_PYTHON")
	if python == "" {
		python = "../../../.venv-test/bin/python"
	}
	dir := t.TempDir()
	out, err := exec.CommandContext(t.Context(), python, "testdata/compare.py", dir).CombinedOutput() //nolint:gosec // the tests' Python
	if err == nil {
		return dir
	}
	if os.Getenv("FLAMBEAU_TEST_REQUIRED") != "" {
		t.Fatalf("%v: %s", err, out)
	}
	t.Skipf("the environment of FLAMBEAU_TEST_PYTHON lacks tokenizers or sentencepiece: %v: %.500s", err, out)
	return ""
}

// TestAsTrainedThere trains tokenizers of every kind with Hugging Face's library, and wants the same tokens for emoji, control characters, marks, long texts and more.
func TestAsTrainedThere(t *testing.T) {
	t.Parallel()
	dir := trained(t)
	files, err := filepath.Glob(filepath.Join(dir, "*.want"))
	if err != nil || len(files) != 31+147 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".want"), func(t *testing.T) {
			t.Parallel()
			compare(t, strings.TrimSuffix(file, ".want")+".json", file)
		})
	}
	t.Run("pieces", func(t *testing.T) {
		t.Parallel()
		comparePieces(t, dir)
	})
	t.Run("sets", func(t *testing.T) {
		t.Parallel()
		compareSets(t, dir)
	})
	t.Run("single", func(t *testing.T) {
		t.Parallel()
		compareSingle(t, dir)
	})
}

// processorTime is what this thread has used, which other work on the machine does not change.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	const thisThread = 1 // RUSAGE_THREAD
	var use syscall.Rusage
	if err := syscall.Getrusage(thisThread, &use); err != nil {
		t.Fatal(err)
	}
	return time.Duration(use.Utime.Nano() + use.Stime.Nano())
}

// TestLongTextsTakeLittle: nothing takes more than a time in proportion to the text's length, but for a logarithm. In proportion to its square it would be minutes.
func TestLongTextsTakeLittle(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const model = `{"type": "BPE", "unk_token": "u", "vocab": {"u": 0, "a": 1, "b": 2, "aa": 3, "aaaa": 4}, "merges": ["a a", "aa aa"]}`
	const unigram = `{"type": "Unigram", "unk_id": 0, "vocab": [["u", 0], ["a", -1], ["aa", -1.5], ["aaaa", -2]]}`
	const added = `"added_tokens": [{"id": 9, "content": "<x>"}, {"id": 9, "content": "<xy>"}]`
	for _, file := range []string{`{"model": ` + model + `, ` + added + `}`, `{"model": ` + unigram + `, ` + added + `}`} {
		k, err := Parse([]byte(file))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{strings.Repeat("a", 1<<18), strings.Repeat("<x>", 1<<17), strings.Repeat("<", 1<<18), strings.Repeat("\u4f60", 1<<18)} {
			began := processorTime(t)
			ids := encoded(t, k, text, 0)
			if took := processorTime(t) - began; took > 20*time.Second {
				t.Errorf("%.40s: %.4q… took %v for %d tokens", file, text, took, len(ids))
			}
		}
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	k := parsed(t, "testdata/wordpiece.json")
	whole := encoded(t, k, "A man is eating food.", 0)
	cut := encoded(t, k, "A man is eating food.", 4)
	if len(cut) != 4 || cut[0] != 2 || cut[3] != 3 || cut[1] != whole[1] || cut[2] != whole[2] {
		t.Errorf("%v of %v", cut, whole)
	}
	if tiny := encoded(t, k, "A man", 1); len(tiny) != 2 {
		t.Errorf("%v", tiny)
	}
}

// TestUnknownSteps: what cannot be done right is refused.
func TestUnknownSteps(t *testing.T) {
	t.Parallel()
	const model = `"model": {"type": "WordPiece", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"}`
	for text, want := range map[string]string{
		`{`:                              "tokenizer.json",
		`{"model": {"type": "Unigram"}}`: "vocab",
		`{"model": {"type": "Unigram", "vocab": {"a": 1}}}`:                                                            "vocab",
		`{"model": {"type": "Unigram", "vocab": [["a", -1]], "unk_id": 1}}`:                                            "unk_id",
		`{"model": {"type": "Other", "vocab": {"a": 1}}}`:                                                              "Other",
		`{"normalizer": {"type": "Precompiled"}, ` + model + `}`:                                                       "Precompiled",
		`{"normalizer": {"type": "Precompiled", "precompiled_charsmap": "/////w=="}, ` + model + `}`:                   "cut off",
		`{"normalizer": {"type": "Replace", "pattern": {"Regex": "(a)\\1"}}, ` + model + `}`:                           "Replace",
		`{"normalizer": {"type": "Replace"}, ` + model + `}`:                                                           "Replace",
		`{"normalizer": {"type": "Mystery"}, ` + model + `}`:                                                           "Mystery",
		`{"pre_tokenizer": {"type": "Metaspace"}, ` + model + `}`:                                                      "Metaspace",
		`{"pre_tokenizer": {"type": "Split", "behavior": "Isolated"}, ` + model + `}`:                                  "Split",
		`{"pre_tokenizer": {"type": "Split", "pattern": {"String": "a"}}, ` + model + `}`:                              "behavior",
		`{"pre_tokenizer": {"type": "Punctuation", "behavior": "Other"}, ` + model + `}`:                               "Punctuation",
		`{"post_processor": {"type": "Other"}, ` + model + `}`:                                                         "Other",
		`{"model": {"type": "WordPiece", "vocab": {"a": 1}}}`:                                                          "unk_token",
		`{"model": {"type": "WordLevel", "vocab": {"a": 1}}}`:                                                          "unk_token",
		`{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [1]}}`:                                                 "tokenizer.json",
		`{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["a b"]}}`:                                             "merge",
		`{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": ["a b c"]}}`:                                           "two tokens",
		`{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [], "dropout": 2}}`:                                    "dropout",
		`{"model": {"type": "WordLevel", "vocab": {"a": -1}, "unk_token": "a"}}`:                                       "-1",
		`{"version": "2.0", ` + model + `}`:                                                                            "version",
		`{"truncation": {"max_length": 5, "direction": "Up"}, ` + model + `}`:                                          "truncation",
		`{"truncation": {"max_length": -5}, ` + model + `}`:                                                            "-5",
		`{"padding": {"direction": "Up"}, ` + model + `}`:                                                              "padding",
		`{"padding": {"strategy": "Longest"}, ` + model + `}`:                                                          "strategy",
		`{"padding": {"strategy": {"Fixed": 10000000}}, ` + model + `}`:                                                "1048576",
		"{\"version\": \"\xff\"}":                                                                                      "UTF-8",
		`{"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": "ab"}, ` + model + `}`:                          "one character",
		`{"pre_tokenizer": {"type": "FixedLength", "length": 0}, ` + model + `}`:                                       "FixedLength",
		`{"normalizer": {"type": "Strip"}, "added_tokens": [{"content": " ", "normalized": true}], ` + model + `}`:     "leaves nothing",
		`{"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B"}}]}, ` + model + `}`:     "$B",
		`{"post_processor": {"type": "TemplateProcessing", "single": [{}]}, ` + model + `}`:                            "member",
		`{"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}, ` + model + `}`: "special tokens",
		`{"post_processor": {"type": "Sequence", "processors": [{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}, {"Sequence": {"id": "A"}}]},
			{"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}]}, ` + model + `}`: "one or two",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// FuzzParse: no file and no text may panic.
func FuzzParse(f *testing.F) {
	for _, path := range []string{"testdata/wordpiece.json", "testdata/bytepairs.json"} {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text, "A man isn't \u4f60\xff")
	}
	for _, model := range []string{
		`{"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": [["<unk>", 0], ["\u2581", -1], ["\u2581a", -1.5], ["a", -2.5]]}`,
		`{"type": "BPE", "unk_token": "u", "fuse_unk": true, "vocab": {"u": 0, "a": 1, "##b": 2, "ab": 3}, "continuing_subword_prefix": "##", "merges": ["a ##b"]}`,
		`{"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0}}`,
	} {
		f.Add([]byte(`{"normalizer": {"type": "Sequence", "normalizers": [{"type": "Strip"}, {"type": "NFKC"}, {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
			{"type": "Precompiled", "precompiled_charsmap": "CAAAAAAEAAABAAAAYQA="}]}, "pre_tokenizer": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first"},
			"added_tokens": [{"id": 7, "content": "<m>", "lstrip": true, "rstrip": true, "normalized": true, "single_word": true}], "model": `+model+`}`), "a  <m> \u4f60\xffab")
		f.Add([]byte(`{"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(?i:'s)|[^\\r\\n\\p{L}]?\\p{L}+|\\s+(?!\\S)"},
			"behavior": "MergedWithNext", "invert": true}, {"type": "Digits", "individual_digits": true}, {"type": "Punctuation", "behavior": "Contiguous"}]}, "model": `+model+`}`), "a's  12, b")
	}
	steps, err := os.ReadFile("testdata/steps.json")
	if err != nil {
		f.Fatal(err)
	}
	var files []struct {
		Tokenizer json.RawMessage `json:"tokenizer"`
	}
	if err := json.Unmarshal(bytes.ReplaceAll(steps, []byte(`"BYTES"`), []byte(`{"<0x61>": 1, "u": 2}`)), &files); err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		f.Add([]byte(file.Tokenizer), "a \u30abe\u0301\u2581<x>  b\xff")
	}
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		k, err := Parse(file)
		if err != nil {
			return
		}
		for _, limit := range []int{0, 3} {
			e, err := k.Encode(text, limit)
			if err != nil && !errors.Is(err, ErrTooLong) && !errors.Is(err, ErrUnknown) {
				t.Error(err)
			}
			if e.Types != nil && len(e.Types) != len(e.IDs) {
				t.Errorf("%d tokens, and the types of %d", len(e.IDs), len(e.Types))
			}
		}
	})
}
