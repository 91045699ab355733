package archive

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

func TestSwapAndWarmUpSettings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, text, swap string
		warmUp           []WarmUpSample
		warns            string
	}{
		{name: "absent", text: "a: 1\n"},
		{name: "dual", text: "swap: dual\n", swap: SwapDual},
		{name: "in place", text: "swap: IN_PLACE\n", swap: SwapInPlace},
		{name: "another word", text: "swap: never\n", warns: "expected=\"dual, in_place\""},
		{name: "names", text: "warmup: [a.json, sub/b.jpg]\n", warmUp: []WarmUpSample{{File: "a.json", Count: 1}, {File: "sub/b.jpg", Count: 1}}},
		{name: "one name", text: "warmup: a.json\n", warmUp: []WarmUpSample{{File: "a.json", Count: 1}}},
		{
			name: "maps", text: "warmup:\n- file: a.bin\n  contentType: image/jpeg\n  name: data\n  count: 3\n- b.json\n",
			warmUp: []WarmUpSample{{File: "a.bin", ContentType: "image/jpeg", Name: "data", Count: 3}, {File: "b.json", Count: 1}},
		},
		{name: "one map", text: "warmup: {file: a}\n", warmUp: []WarmUpSample{{File: "a", Count: 1}}},
		{name: "by an alias", text: "x: &x {file: a, count: 2}\nwarmup: [*x]\n", warmUp: []WarmUpSample{{File: "a", Count: 2}}},
		{name: "off", text: "warmup: off\n", warmUp: []WarmUpSample{}},
		{name: "empty", text: "warmup: []\n", warmUp: []WarmUpSample{}},
		{name: "too often", text: "warmup: {file: a, count: 5000}\n", warmUp: []WarmUpSample{{File: "a", Count: maxSampleCount}}, warns: "at most 100"},
		{name: "never", text: "warmup: {file: a, count: 0}\n", warmUp: []WarmUpSample{{File: "a", Count: 1}}, warns: "at least 1"},
		{name: "no file", text: "warmup: [{count: 2}]\n", warns: "a file of the archive"},
		{name: "a number", text: "warmup: 3\n", warns: "a list of files"},
		{name: "a list of lists", text: "warmup: [[a]]\n", warns: "a file of the archive"},
		{name: "an unknown key", text: "warmup: {file: a, times: 2}\n", warmUp: []WarmUpSample{{File: "a", Count: 1}}, warns: "times"},
		{name: "in a large file", text: strings.Repeat("a: b\n", 20_000) + "swap: dual\nwarmup: [a]\n", swap: SwapDual, warmUp: []WarmUpSample{{File: "a", Count: 1}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			got, err := parseSettings([]byte(tt.text), slog.New(slog.NewTextHandler(&log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			if got.Swap != tt.swap {
				t.Errorf("swap %q", got.Swap)
			}
			if diff := cmp.Diff(tt.warmUp, got.WarmUp); diff != "" {
				t.Error(diff)
			}
			if tt.warns == "" && log.Len() > 0 || !strings.Contains(log.String(), tt.warns) {
				t.Errorf("log %q, want one that says %q", log.String(), tt.warns)
			}
		})
	}
}

func TestSamples(t *testing.T) {
	t.Parallel()
	config := func(text string) entry { return entry{name: "c.yaml", text: text} }
	manifest := entry{name: manifestPath, text: goodManifest}
	many := []entry{manifest, config("")}
	for _, letter := range "abcdefghijklmnopq" {
		many = append(many, entry{name: "warmup/" + string(letter)})
	}
	tests := []struct {
		name    string
		entries []entry
		want    []infer.Part
		err     string
	}{
		{name: "none", entries: []entry{manifest, config("")}},
		{
			name: "folder", entries: []entry{
				manifest, config(""),
				{name: "warmup/b.json", text: "{}"},
				{name: "warmup/a.jpg", text: "J"},
				{name: "warmup/.DS_Store", text: "x"},
				{name: "warmup/sub/x", text: "x"},
			},
			want: []infer.Part{{Name: "body", ContentType: "image/jpeg", Data: []byte("J")}, {Name: "body", ContentType: "application/json", Data: []byte("{}")}},
		},
		{
			name: "named", entries: []entry{
				manifest, config("warmup:\n- {file: s/a.bin, contentType: 'text/plain; charset=utf-8', name: data, count: 2}\n- x.csv\n"),
				{name: "s/a.bin", text: "A"},
				{name: "x.csv", text: "1,2"},
				{name: "warmup/b.json", text: "{}"},
			},
			want: []infer.Part{
				{Name: "data", ContentType: "text/plain", Data: []byte("A")},
				{Name: "data", ContentType: "text/plain", Data: []byte("A")},
				{Name: "body", ContentType: "text/csv", Data: []byte("1,2")},
			},
		},
		{name: "off", entries: []entry{manifest, config("warmup: false\n"), {name: "warmup/b.json", text: "{}"}}},
		{name: "a file of that name", entries: []entry{manifest, config(""), {name: "warmup", text: "x"}}},
		{name: "not there", entries: []entry{manifest, config("warmup: [nope]\n")}, err: "holds no such file"},
		{name: "a folder", entries: []entry{manifest, config("warmup: [s]\n"), {name: "s/x", text: ""}}, err: "not a regular file"},
		{name: "elsewhere", entries: []entry{manifest, config("warmup: [../../../store/secret]\n")}, err: "escapes"},
		{name: "absolute", entries: []entry{manifest, config("warmup: [/etc/passwd]\n")}, err: "escapes"},
		{name: "too many", entries: many, err: "at most 16"},
		{name: "too large", entries: []entry{manifest, config("warmup: [big]\n"), {name: "big", text: strings.Repeat("x", maxSampleBytes+1)}}, err: "at most 16777216"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write(t, "store/secret", []byte("s"))
			p.write(t, "store/m.mar", makeZip(t, tt.entries))
			a := mustOpen(t, p.open(t, nil), "m.mar")
			items, err := a.Samples()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("error %v, want one that says %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			ids := map[string]bool{}
			var parts []infer.Part
			for _, sample := range items {
				item := sample.Item
				if ids[item.ID] = true; len(item.Parts) != 1 || item.ID == "" {
					t.Fatalf("got %+v", item)
				}
				if kind := item.Header[0].Value; !strings.HasPrefix(kind, item.Parts[0].ContentType) {
					t.Errorf("the header says %q, the part %q", kind, item.Parts[0].ContentType)
				}
				parts = append(parts, item.Parts...)
			}
			if diff := cmp.Diff(tt.want, parts); diff != "" || len(ids) != len(items) {
				t.Errorf("%d ids for %d items; %s", len(ids), len(items), diff)
			}
		})
	}
}

// TestSamplesOfFolder: a folder that is used in place gives its samples, but not what its links lead to elsewhere.
func TestSamplesOfFolder(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m/handler.py", nil)
	p.write(t, "store/m/warmup/a.txt", []byte("A"))
	p.write(t, "secret", []byte("s"))
	s := p.open(t, nil)
	a := mustOpen(t, s, "m")
	items, err := a.Samples()
	if err != nil || len(items) != 1 || string(items[0].Item.Parts[0].Data) != "A" {
		t.Errorf("got %v, %v", items, err)
	}
	if err := os.Symlink(filepath.Join(p.dir, "secret"), filepath.Join(p.store, "m/warmup/b.txt")); err != nil {
		t.Fatal(err)
	}
	if items, err := a.Samples(); err == nil || !strings.Contains(err.Error(), "b.txt") {
		t.Errorf("a link to elsewhere: %v, %v", items, err)
	}
}
