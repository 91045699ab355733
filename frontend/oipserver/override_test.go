package oipserver

import (
	"encoding/base64"
	"errors"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// model is as little of an ONNX model as the store takes for one: a version, an empty graph, a set of operators.
var model = []byte{0x08, 0x08, 0x3a, 0x00, 0x42, 0x02, 0x10, 0x11} //nolint:gochecknoglobals // a constant

// withStore makes a server with a real store that holds adder/1.
func withStore(t *testing.T) (*world, *Server, string) {
	t.Helper()
	w, store, temp := newWorld(), t.TempDir(), t.TempDir()
	if err := os.MkdirAll(store+"/adder/1", 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(store+"/adder/1/model.onnx", model, 0o600); err != nil {
		t.Fatal(err)
	}
	archives, err := archive.New(archive.Options{Store: store, Temp: temp, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := archives.Close(); err != nil {
			t.Error(err)
		}
		left, err := os.ReadDir(temp)
		if err != nil || slices.ContainsFunc(left, func(e os.DirEntry) bool { return e.Name() != "models" }) {
			t.Errorf("%v: something is left: %v", err, left)
		}
	})
	w.models = w.models[:1]
	return w, serve(t, w, func(o *Options) { o.Archives, o.Deployer, o.Temp = archives, w, temp }), temp
}

func TestLoadWithFiles(t *testing.T) {
	w, s, _ := withStore(t)
	config := `{"name":"new","backend":"onnxruntime","max_batch_size":8,"dynamic_batching":{"max_queue_delay_microseconds":"2000"},"instance_group":[{"count":3,"kind":"KIND_GPU","gpus":[1]}],
		"sequence_batching":{"max_sequence_idle_microseconds":5000000}}`
	files := map[string][]byte{"2/model.onnx": model, "10/model.onnx": model, "labels.txt": []byte("a"), "2/weights/w.bin": []byte("w")}
	if err := s.Load(t.Context(), "new", Overrides{Config: config, Files: files}); err != nil {
		t.Fatal(err)
	}
	if len(w.deployed) != 2 || w.deployed[0].Version != "10" || w.deployed[1].Version != "2" {
		t.Fatalf("%+v", w.deployed)
	}
	spec := w.deployed[1]
	if spec.Name != "new" || *spec.BatchSize != 8 || *spec.MaxBatchDelay != 2*time.Millisecond || *spec.InitialWorkers != 3 || !spec.Exact || !spec.Synchronous {
		t.Errorf("%+v", spec)
	}
	set := spec.Archive.Settings
	if set.DeviceType != "gpu" || !cmp.Equal(set.DeviceIDs, []int{1}) || !set.SequenceBatching || set.SequenceMaxIdle != 5*time.Second {
		t.Errorf("%+v", set)
	}
	if spec.Archive.Manifest.Runtime != archive.RuntimeONNX || spec.Archive.InPlace {
		t.Errorf("%+v", spec.Archive)
	}
	// Files for one of two versions only, and then for the model of the store.
	wantRefused(t, s.Load(t.Context(), "new", Overrides{Config: "{}", Files: map[string][]byte{"2/model.onnx": model}}), "version 10 of 'new' runs")
	if err := s.Load(t.Context(), "adder", Overrides{Config: "{}", Files: map[string][]byte{"1/model.onnx": model}}); err != nil {
		t.Fatal(err)
	}
	w.deployed = nil
	if err := s.Load(t.Context(), "adder", Overrides{}); err != nil {
		t.Fatal(err)
	}
	if len(w.deployed) != 1 || w.deployed[0].Archive.Source != "adder/1" || w.deployed[0].BatchSize != nil {
		t.Errorf("without files it is the store's again: %+v", w.deployed)
	}
	if err := s.Unload(t.Context(), "new", false); err != nil {
		t.Fatal(err)
	}
	wantRefused(t, s.Load(t.Context(), "new", Overrides{}), "failed to load 'new'")
}

func TestFilesThatAreRefused(t *testing.T) {
	w, s, _ := withStore(t)
	good := map[string][]byte{"1/model.onnx": model}
	with := func(name string) map[string][]byte {
		return map[string][]byte{"1/model.onnx": model, name: []byte("x")}
	}
	for _, tc := range []struct {
		model, config, want string
		files               map[string][]byte
	}{
		{"m", "{}", "no path below", with("1/../../x")},
		{"m", "{}", "no path below", with("/etc/passwd")},
		{"m", "{}", "no path below", with("1//x")},
		{"m", "{}", "no path below", with(`1\x`)},
		{"m", "{}", "for the model store only", with("1/MAR-INF/MANIFEST.json")},
		{"m", "{}", "for the model store only", with("1/mar-inf/x")},
		{"m", "{}", "for the model store only", with("model-config.yaml")},
		{"m", "{}", "no version of 'm'", map[string][]byte{"model.onnx": model}},
		{"m", "{}", "no version of 'm'", map[string][]byte{"x/model.onnx": model}},
		{"m", "{}", "has no model.onnx", map[string][]byte{"1/model.py": []byte("x")}},
		{"../m", "{}", "cannot be the name", good},
		{".m", "{}", "cannot be the name", good},
		{"m", "[]", "no JSON object", good},
		{"m", "null", "no JSON object", good},
		{"m", `{"name":"other"}`, "its name is 'other'", good},
		{"m", `{"max_batch_size":-1}`, "max_batch_size", good},
		{"m", `{"max_batch_size":"x"}`, "cannot be used", good},
		{"m", `{"ensemble_scheduling":{}}`, "cannot be set here", good},
		{"m", `{"version_policy":{"latest":{"num_versions":1}}}`, "version_policy", good},
		{"m", `{"default_model_filename":"model.plan"}`, "default_model_filename", good},
		{"m", `{"instance_group":[{"count":1},{"count":1}]}`, "one instance_group", good},
		{"m", `{"instance_group":[{"kind":"KIND_MODEL"}]}`, "KIND_MODEL", good},
		{"m", `{"dynamic_batching":{"max_queue_delay_microseconds":-1}}`, "max_queue_delay_microseconds", good},
		{"m", `{"sequence_batching":{"max_sequence_idle_microseconds":1e30}}`, "max_sequence_idle_microseconds", good},
	} {
		wantRefused(t, s.Load(t.Context(), tc.model, Overrides{Config: tc.config, Files: tc.files}), tc.want)
	}
	if len(w.deployed) != 0 {
		t.Errorf("%+v", w.deployed)
	}
	w.refuse = errors.New("its workers did not start")
	if err := s.Load(t.Context(), "m", Overrides{Config: "{}", Files: good}); !errors.Is(err, w.refuse) {
		t.Errorf("%v", err)
	}
	why := fault.New(fault.LoadFailed, "Failed to start workers for model m version: 1", nil)
	why.Hint = "the model is damaged at byte 3"
	w.refuse = why
	if err := s.Load(t.Context(), "m", Overrides{Config: "{}", Files: good}); !fault.Is(err, fault.InvalidModel) || !strings.HasSuffix(fault.Message(err), "the model is damaged at byte 3") {
		t.Errorf("%v", err)
	}
}

func TestLoadWithConfig(t *testing.T) {
	w, s, _ := withStore(t)
	if err := s.Load(t.Context(), "adder", Overrides{Config: `{"max_batch_size":8,"backend":"python","input":[],"version_policy":{"all":{}}}`}); err != nil {
		t.Fatal(err)
	}
	if spec := w.deployed[0]; *spec.BatchSize != 1 || spec.Archive.Source != "adder/1" || spec.MaxBatchDelay != nil || spec.InitialWorkers != nil {
		t.Errorf("without dynamic_batching nothing is gathered: %+v", spec)
	}
	wantRefused(t, s.Load(t.Context(), "adder", Overrides{Config: `{"instance_group":[{"kind":"KIND_GPU"}]}`}), "model-config.yaml")
	wantRefused(t, s.Load(t.Context(), "adder", Overrides{Config: `{"sequence_batching":{}}`}), "model-config.yaml")
	if err := s.Load(t.Context(), "adder", Overrides{}); err != nil || len(w.deployed) != 2 {
		t.Errorf("%v %+v", err, w.deployed)
	}
	if err := s.Load(t.Context(), "adder", Overrides{}); err != nil || len(w.deployed) != 2 {
		t.Errorf("nothing is overridden any more: %v %+v", err, w.deployed)
	}
	w.models = append(w.models, rollout.Description{Ref: infer.ModelRef{Name: "fetched", Version: "1"}, Default: true})
	wantRefused(t, s.Load(t.Context(), "fetched", Overrides{Config: "{}"}), "not one of the model store")
	closed := serve(t, w, func(o *Options) { o.ModelAPI = false })
	wantRefused(t, closed.Load(t.Context(), "adder", Overrides{Config: "{}"}), "cannot be loaded")
	bare := serve(t, w)
	wantRefused(t, bare.Load(t.Context(), "adder", Overrides{Config: "{}"}), "without a config or files")
}

// needs says that adder is made of bigger, and that of big.
type needs struct{}

func (needs) DependentsOf(name string) []string {
	if name == "adder" {
		return []string{"bigger", "big"}
	}
	return nil
}

func TestUnloadDependents(t *testing.T) {
	for _, dependents := range []bool{false, true} {
		w := newWorld()
		for _, name := range []string{"big", "bigger"} {
			w.models = append(w.models, rollout.Description{Ref: infer.ModelRef{Name: name, Version: "1"}, Default: true})
		}
		s := serve(t, w, func(o *Options) { o.Dependents = needs{} })
		if err := s.Unload(t.Context(), "adder", dependents); err != nil {
			t.Fatal(err)
		}
		left := map[bool]int{false: 3, true: 1}[dependents] // handler in any case
		if len(w.models) != left {
			t.Errorf("%v: %+v", dependents, w.models)
		}
	}
}

func TestParseOverrides(t *testing.T) {
	values := map[string]string{"config": "{}", "file:1/model.onnx": base64.StdEncoding.EncodeToString(model), "file:2/x": "?"}
	parse := func(names ...string) (Overrides, error) {
		return ParseOverrides(names, func(name string) (string, bool) { v, ok := values[name]; return v, ok },
			func(name string) ([]byte, error) { return base64.StdEncoding.DecodeString(values[name]) })
	}
	o, err := parse("config", "file:1/model.onnx")
	if err != nil || o.Config != "{}" || !cmp.Equal(o.Files, map[string][]byte{"1/model.onnx": model}) {
		t.Errorf("%v %+v", err, o)
	}
	if o, err := parse(); err != nil || o.Config != "" || o.Files != nil {
		t.Errorf("%v %+v", err, o)
	}
	for want, names := range map[string][]string{
		"has to be given when files are": {"file:1/model.onnx"}, "cannot be read": {"config", "file:2/x"}, "no load parameter 'other'": {"other"},
	} {
		_, err := parse(names...)
		wantRefused(t, err, want)
	}
	delete(values, "config")
	_, err = parse("config")
	wantRefused(t, err, "has to be a text")
}
