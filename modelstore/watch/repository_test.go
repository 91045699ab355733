package watch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// newestOnly is a configuration that wants the newest version, or, if it says so, all; "bare" is an ensemble.
func newestOnly(text []byte, model string) Repository {
	if model == "" {
		return Repository{}
	}
	r := Repository{Select: func(versions []string) []string { return versions[len(versions)-1:] }, Bare: strings.Contains(string(text), "bare")}
	if strings.Contains(string(text), "all") {
		r.Select = slices.Clone[[]string]
	}
	return r
}

func TestRepositories(t *testing.T) {
	root := t.TempDir()
	for _, line := range []string{
		"m/config.pbtxt = newest", "m/1/model.onnx", "m/2/model.onnx", "m/warmup/x = 1", "m/model-config.yaml = a: 1",
		"other/config.pbtxt = all", "other/1/other.onnx", "other/2/x.bin = 1", "pipe/config.pbtxt = bare", "pipe/1/", "empty/config.pbtxt = newest", "empty/1/",
		"flat/config.pbtxt = newest", "flat/model.onnx", "plain/1/model.onnx", "packed/config.pbtxt = newest", "packed/MAR-INF/MANIFEST.json = {}", "packed/1/x = 1",
	} {
		build(t, root, line)
	}
	scan := func() []Entry {
		t.Helper()
		s := &scanner{watch: func(string, ...string) {}, versioned: func(string) bool { return false }, plugin: func(string) bool { return false }, about: newestOnly}
		all, err := s.scan(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		return settle(t, all)
	}
	entries := scan()
	var got []string
	for _, e := range entries {
		text := shown(e)
		if e.Superseded {
			text += " superseded"
		}
		got = append(got, text)
	}
	want := []string{
		"empty/1: folder incomplete name=empty version=1 (the folder is empty)", "flat: onnx settled name=flat",
		"m/1: onnx settled name=m version=1 superseded", "m/2: onnx settled name=m version=2",
		"other/1: folder settled name=other version=1", "other/2: folder settled name=other version=2",
		"packed: folder settled", "pipe/1: folder settled name=pipe version=1", "plain/1: onnx settled name=plain version=1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}

	// What lies beside the folders of the versions belongs to each of them, and to no other model.
	for _, name := range []string{"m/config.pbtxt", "m/warmup/x", "m/model-config.yaml"} {
		when := time.Now().Add(time.Minute)
		if err := os.Chtimes(filepath.Join(root, name), when, when); err != nil {
			t.Fatal(err)
		}
		now := scan()
		for i, e := range now {
			if changed := e.Fingerprint != entries[i].Fingerprint; changed != (e.Name == "m") {
				t.Errorf("after a change of %s: %s has changed: %v", name, e.Path, changed)
			}
		}
		entries = now
	}
	if c := (&scanner{}).configured(filepath.Join(root, "m/config.pbtxt"), "m"); c.Select != nil {
		t.Error("nobody reads configurations, and one was")
	}
}
