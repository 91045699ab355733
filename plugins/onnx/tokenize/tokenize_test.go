package tokenize

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
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
		k := parsed(t, pair[0])
		text, err := os.ReadFile(pair[1])
		if err != nil {
			t.Fatal(err)
		}
		var cases []struct {
			Text string  `json:"text"`
			IDs  []int64 `json:"ids"`
		}
		if err := json.Unmarshal(text, &cases); err != nil || len(cases) == 0 {
			t.Fatal(err, len(cases))
		}
		for _, c := range cases {
			if got := k.Encode(c.Text, 0); !slices.Equal(got, c.IDs) {
				t.Errorf("%s: %q\n got %v\nwant %v", pair[0], c.Text, got, c.IDs)
			}
		}
	}
}

func TestLimit(t *testing.T) {
	t.Parallel()
	k := parsed(t, "testdata/wordpiece.json")
	whole := k.Encode("A man is eating food.", 0)
	cut := k.Encode("A man is eating food.", 4)
	if len(cut) != 4 || cut[0] != 2 || cut[3] != 3 || cut[1] != whole[1] || cut[2] != whole[2] {
		t.Errorf("%v of %v", cut, whole)
	}
	if tiny := k.Encode("A man", 1); len(tiny) != 2 {
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
		`{"model": {"type": "Unigram", "vocab": {"a": 1}}}`:            "Unigram",
		`{"normalizer": {"type": "Precompiled"}, ` + model + `}`:       "Precompiled",
		`{"pre_tokenizer": {"type": "Metaspace"}, ` + model + `}`:      "Metaspace",
		`{"post_processor": {"type": "Other"}, ` + model + `}`:         "Other",
		`{"model": {"type": "WordPiece", "vocab": {"a": 1}}}`:          "unk_token",
		`{"model": {"type": "BPE", "vocab": {"a": 1}, "merges": [1]}}`: "tokenizer.json",
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
	f.Fuzz(func(_ *testing.T, file []byte, text string) {
		if k, err := Parse(file); err == nil {
			k.Encode(text, 0)
			k.Encode(text, 3)
		}
	})
}
