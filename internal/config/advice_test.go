package config

import (
	"os"
	"path/filepath"
	"testing"
)

func TestHowToSet(t *testing.T) {
	t.Parallel()
	const key = "inference_address"
	file := func(dir, name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	dir := t.TempDir()
	sets := file(dir, "sets.properties", "# mine\n"+key+"=http://127.0.0.1:9\n")
	other := file(dir, "other.properties", "enable_envvars_config=true\n")
	snapshot := file(dir, "1-shutdown.cfg", key+"=http://127.0.0.1:9\n")
	here := t.TempDir()
	file(here, DefaultFile, key+"=http://127.0.0.1:9\n")
	for name, tc := range map[string]struct {
		src  Source
		want string
	}{
		"nothing":                  {Source{}, "write inference_address into a file config.properties in this folder, where there is none, or into one that --ts-config names"},
		"a file":                   {Source{File: sets}, "change inference_address in " + sets + ", line 2"},
		"the file":                 {Source{Dir: here}, "change inference_address in " + filepath.Join(here, DefaultFile) + ", line 1"},
		"a file that does not say": {Source{File: other}, "write inference_address into " + other},
		"a variable":               {Source{File: other, Environ: []string{"TS_INFERENCE_ADDRESS=http://127.0.0.1:9"}}, "change the environment variable TS_INFERENCE_ADDRESS"},
		"a snapshot": {
			Source{Snapshot: SnapshotFile{Path: snapshot}},
			"write inference_address into a file and name that by --ts-config: the settings are those of the last run, from " + snapshot,
		},
	} {
		if tc.src.Dir == "" {
			tc.src.Dir = t.TempDir()
		}
		c, err := Load(tc.src)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.HowToSet(key); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	c, err := Load(Source{Dir: t.TempDir(), Flags: map[string]string{"model_store": "store"}})
	if err != nil {
		t.Fatal(err)
	}
	if got := c.HowToSet("model_store"); got != "give --model-store another value" {
		t.Error(got)
	}
}
