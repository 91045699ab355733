package archive

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// openConfig opens an archive with that configuration file.
func openConfig(t *testing.T, text string) (*Archive, *place, error) {
	t.Helper()
	p := newPlace(t)
	p.write(t, "store/m.mar", makeZip(t, []entry{{name: manifestPath, text: goodManifest}, {name: "c.yaml", text: text}}))
	a, err := p.open(t, nil).OpenEntry(t.Context(), "m.mar")
	return a, p, err
}

// TestKeyTwice: TorchServe, PyYAML and this server all take the last one, so nobody is deceived; but somebody made a mistake.
func TestKeyTwice(t *testing.T) {
	t.Parallel()
	a, p, err := openConfig(t, "minWorkers: 1\nhandler: {x: 1, x: 2}\nmaxWorkers: 9\nminWorkers: 3\n")
	if err != nil {
		t.Fatal(err)
	}
	if lo, hi, ok := a.Settings.Workers(); lo != 3 || hi != 9 || !ok {
		t.Errorf("%d to %d workers (%v)", lo, hi, ok)
	}
	for _, says := range []string{"key=minWorkers line=4", "key=x line=2"} {
		if !strings.Contains(p.log.String(), says) {
			t.Errorf("the log does not say %q: %s", says, p.log.String())
		}
	}
}

// TestHugeValues: values that no configuration has take no time, and are refused or left out.
func TestHugeValues(t *testing.T) {
	t.Parallel()
	const huge = 3 << 20
	tests := map[string]struct{ text, refused, log string }{
		"a text of megabytes":         {text: "x: " + strings.Repeat("a", huge) + "\n", refused: "longer than 1048576 bytes"},
		"a number of megabytes":       {text: "batchSize: " + strings.Repeat("9", huge) + "\n", refused: "longer than 1048576 bytes"},
		"a number of many digits":     {text: "batchSize: " + strings.Repeat("9", 50_000) + "\n", log: "key=batchSize"},
		"many lines of the server's":  {text: strings.Repeat("batchSize: 1\n", 200_000), log: "take more than 65536 bytes"},
		"many lines of the handler's": {text: strings.Repeat("x: 1\n", 500_000) + "batchSize: 2\n"},
		"an empty file of megabytes":  {text: strings.Repeat("\n", huge)},
		"deep by spaces":              {text: deepBySpaces(1500)},
		"deep by brackets":            {text: "x: " + strings.Repeat("[", 100_000), log: "nested too deeply"},
		"deep by hidden brackets":     {text: "x: " + strings.Repeat(`["]",`, 10_000), log: "cannot be read"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begun := time.Now()
			_, p, err := openConfig(t, tt.text)
			if took := time.Since(begun); took > time.Minute {
				t.Errorf("it took %v", took)
			}
			if tt.refused != "" {
				if !fault.Is(err, fault.InvalidModel) || !strings.Contains(err.Error(), tt.refused) {
					t.Errorf("got %v, want one that says %q", err, tt.refused)
				}
				return
			}
			if err != nil || !strings.Contains(p.log.String(), tt.log) {
				t.Errorf("got %v, and a log of %d bytes that does not say %q", err, p.log.Len(), tt.log)
			}
		})
	}
}

func deepBySpaces(depth int) string {
	var text strings.Builder
	for i := range depth {
		text.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	return text.String()
}

// TestGoodYAML: what files of real models have in them is no reason to refuse one.
func TestGoodYAML(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"a: !!str 1\nb: !!binary aGVsbG8=\nc: !!set {x, y}\nd: !!float 1\ne: !!timestamp 2001-12-14\n",
		"prompt: |\n  Hello!! <!-- !!python/object -->\n  &amp; *bold*\nx: \"!!python/object\"\ny: 'a & b'\n",
		"base: &b {x: 1}\none: *b\ntwo: {<<: *b, y: 2}\n",
		"a: &a [1, 2]\nb: [*a, *a]\nc: &a [3]\nd: *a\n",
		"%YAML 1.1\n---\na: 1\n",
	} {
		a, p, err := openConfig(t, text)
		if err != nil || !a.Settings.HasConfig {
			t.Errorf("%q: %v, %s", text, err, p.log.String())
		}
	}
	keys, settings, problems := configKeys(t, "swap: dual\nwarmup: [a]\nother: 1\n")
	if diff := cmp.Diff([]string{"swap true", "warmup true", "other false"}, keys); diff != "" || settings.Swap != SwapDual || len(problems) > 0 {
		t.Errorf("%s, %+v, %v", diff, settings, problems)
	}
}

// configKeys reads a file as `flambeau check` does.
func configKeys(t *testing.T, text string) (keys []string, settings Settings, problems []ConfigProblem) {
	t.Helper()
	settings, entries, problems, err := ReadConfig([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		keys = append(keys, e.Key+map[bool]string{true: " true", false: " false"}[e.Server])
	}
	return keys, settings, problems
}
