package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/frontend/httpapi"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/snapshot"
)

// shelf are models that only say that they are there.
type shelf struct {
	httpapi.Models

	mu   sync.Mutex // guards what follows
	all  map[infer.ModelRef]rollout.Description
	fail error // of Register
}

func newShelf(all ...rollout.Description) *shelf {
	s := &shelf{all: map[infer.ModelRef]rollout.Description{}}
	for _, d := range all {
		s.all[d.Ref] = d
	}
	return s
}

func (s *shelf) List() []rollout.Listed {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := map[string]bool{}
	for ref := range s.all {
		names[ref.Name] = true
	}
	var list []rollout.Listed
	for _, name := range slices.Sorted(maps.Keys(names)) {
		list = append(list, rollout.Listed{Name: name})
	}
	return list
}

func (s *shelf) DescribeAll(name string) ([]rollout.Description, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []rollout.Description
	for ref, d := range s.all {
		if ref.Name == name {
			all = append(all, d)
		}
	}
	if all == nil {
		return nil, errors.New("it is gone")
	}
	return all, nil
}

func (s *shelf) Register(_ context.Context, spec rollout.Spec) (rollout.Registered, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ref := infer.ModelRef{Name: spec.Name, Version: "1.0"}
	if s.fail == nil {
		s.all[ref] = rollout.Description{Ref: ref, URL: spec.URL}
	}
	return rollout.Registered{Ref: ref}, s.fail
}

func (s *shelf) Scale(_ context.Context, ref infer.ModelRef, minimum, maximum int, _ bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.all[ref]
	d.MinWorkers, d.MaxWorkers = minimum, maximum
	s.all[ref] = d
	return nil
}

func (s *shelf) Unregister(_ context.Context, ref infer.ModelRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.all, ref)
	return nil
}

func (s *shelf) SetDefault(_ context.Context, ref infer.ModelRef) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for other, d := range s.all {
		d.Default = other == ref
		s.all[other] = d
	}
	return nil
}

func ref(name, version string) infer.ModelRef { return infer.ModelRef{Name: name, Version: version} }

// fromDir is what a start without a configuration file would read.
func fromDir(t *testing.T, logs string) *config.Config {
	t.Helper()
	p := &program{environ: []string{"LOG_LOCATION=" + logs}}
	src := config.Source{Environ: p.environ, Dir: t.TempDir()}
	p.lookForSnapshots(&src)
	cfg, err := config.Load(src)
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

func begin(t *testing.T, cfg *config.Config, models described, log *slog.Logger) *snapshots {
	t.Helper()
	s, err := newSnapshots(cfg, models, log, nil)
	if err != nil || s == nil {
		t.Fatalf("%v, %v", s, err)
	}
	s.begin()
	t.Cleanup(s.end)
	return s
}

// models lists what a configuration restores: name, version, file, workers, and a star for the default version.
func models(cfg *config.Config) []string {
	var all []string
	if cfg.Snapshot == nil {
		return nil
	}
	for _, m := range cfg.Snapshot.Models {
		line := fmt.Sprintf("%s %s %s %d-%d", m.Name, m.Version, m.File, m.MinWorkers, m.MaxWorkers)
		if m.Default {
			line += " *"
		}
		all = append(all, line)
	}
	return all
}

// TestSnapshotRoundTrip writes a snapshot of a server and reads it as the next start does.
func TestSnapshotRoundTrip(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	file := filepath.Join(t.TempDir(), "a.properties")
	if err := os.WriteFile(file, []byte("inference_address=http://0.0.0.0:85\ncors_allowed_origin=\\u00e9 = :\nkeystore_pass= \\ a#b\nmetrics_mode=prometheus\n"+
		"enable_model_api=true\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file, SnapshotDir: filepath.Join(logs, "config"), Flags: map[string]string{"model_store": logs, "disable_token_authorization": "true"}})
	if err != nil {
		t.Fatal(err)
	}
	full := rollout.Description{
		Ref: ref("m", "2.0"), URL: "http://host/models/m.mar?x=y#sha256=1", Runtime: "python3", MinWorkers: 2, MaxWorkers: 3, BatchSize: 4, MaxBatchDelay: 50 * time.Millisecond,
		ResponseTimeout: 33 * time.Second, StartupTimeout: time.Second, Default: true, ParallelLevel: 2, Handler: "mine:run",
	}
	idle := rollout.Description{Ref: ref("m", "1.0"), URL: "store/sub/m1.mar", Source: "m1.mar", BatchSize: 1}
	s := begin(t, cfg, newShelf(full, idle), slog.New(slog.DiscardHandler))
	s.end()
	again := fromDir(t, logs)
	if again.Inference.String() != "http://0.0.0.0:85" || again.CORS.Origin != "é = :" || again.TLS.KeystorePass != "a#b" || again.MetricsMode != "prometheus" || again.ModelStore != logs {
		t.Errorf("%v, %q, %q, %q, %q", again.Inference, again.CORS.Origin, again.TLS.KeystorePass, again.MetricsMode, again.ModelStore)
	}
	if again.ModelAPI || !again.TokenAuth {
		t.Error("a switch was restored that takes a protection away")
	}
	if !strings.HasSuffix(again.RestoredFrom, "-shutdown.cfg") {
		t.Errorf("restored from %s", again.RestoredFrom)
	}
	specs := snapshotSpecs(again.Snapshot)
	batch, delay, response, load, workers := 4, 50*time.Millisecond, 33*time.Second, time.Second, 2
	one, none := 1, 0
	want := []rollout.Spec{
		{URL: "m1.mar", Name: "m", Version: "1.0", InitialWorkers: &none, BatchSize: &one, Exact: true, AtStartup: true},
		{
			URL: "m.mar", Name: "m", Version: "2.0", Handler: "mine:run", Runtime: "python3", InitialWorkers: &workers, MaxWorkers: 3, BatchSize: &batch, MaxBatchDelay: &delay, ResponseTimeout: &response,
			StartupTimeout: &load, Exact: true, AtStartup: true,
		},
	}
	if len(specs) != 2 || specs[0].Default || !specs[1].Default {
		t.Fatalf("%+v", specs)
	}
	for i := range want {
		if diff := cmp.Diff(want[i], specs[i].Spec); diff != "" {
			t.Error(diff)
		}
	}
}

func TestMarName(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, tt := range []struct{ source, url, want string }{
		{"m.mar", "m.mar", "m.mar"},
		{"", "m.mar", "m.mar"},
		{"resnet/2", "resnet/2", "resnet/2"},
		{"", "https://host/a/m.mar?x=/y", "m.mar"},
		{"", "s3://bucket/a/m.mar", "m.mar"},
		{"", "/elsewhere/m.mar", "m.mar"},
		{dir, dir, dir},
		{"", "https://host", ""},
		{"", "", ""},
	} {
		if got := marName(rollout.Description{Source: tt.source, URL: tt.url}); got != tt.want {
			t.Errorf("%q, %q: %q, want %q", tt.source, tt.url, got, tt.want)
		}
	}
}

// TestChangesAreKept: when a call of the management API returns, the next start has what it did, also after a kill.
func TestChangesAreKept(t *testing.T) {
	t.Parallel()
	logs := t.TempDir()
	cfg := &config.Config{SnapshotDir: filepath.Join(logs, "config")}
	shelf := newShelf()
	s := begin(t, cfg, shelf, slog.New(slog.DiscardHandler))
	api := s.recorded(shelf)
	ctx := t.Context()
	check := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, models(fromDir(t, logs))); diff != "" {
			t.Error(diff)
		}
	}
	if got := fromDir(t, logs); !strings.HasSuffix(got.RestoredFrom, "-startup.cfg") {
		t.Errorf("restored from %s", got.RestoredFrom)
	}
	for _, name := range []string{"a", "b"} {
		if _, err := api.Register(ctx, rollout.Spec{Name: name, URL: name + ".mar"}); err != nil {
			t.Fatal(err)
		}
	}
	check("a 1.0 a.mar 0-0", "b 1.0 b.mar 0-0")
	if err := api.Scale(ctx, ref("a", "1.0"), 2, 3, false); err != nil {
		t.Fatal(err)
	}
	check("a 1.0 a.mar 2-3", "b 1.0 b.mar 0-0")
	if err := api.SetDefault(ctx, ref("a", "1.0")); err != nil {
		t.Fatal(err)
	}
	check("a 1.0 a.mar 2-3 *", "b 1.0 b.mar 0-0")
	if err := api.Unregister(ctx, ref("b", "1.0")); err != nil {
		t.Fatal(err)
	}
	check("a 1.0 a.mar 2-3 *")
	shelf.fail = errors.New("no")
	if _, err := api.Register(ctx, rollout.Spec{Name: "c"}); !errors.Is(err, shelf.fail) {
		t.Errorf("%v", err)
	}

	// What the store's watcher changes is written, too, though nobody waits for it.
	shelf.fail = nil
	if _, err := shelf.Register(ctx, rollout.Spec{Name: "d", URL: "d.mar"}); err != nil {
		t.Fatal(err)
	}
	if _, err := shelf.Register(ctx, rollout.Spec{Name: "nowhere"}); err != nil {
		t.Fatal(err)
	}
	s.changed(rollout.Change{Kind: rollout.ChangeRegistered, Ref: ref("d", "1.0")})
	s.changed(rollout.Change{Kind: rollout.ChangeWorkerFailed})
	s.keep(ctx)
	check("a 1.0 a.mar 2-3 *", "d 1.0 d.mar 0-0")

	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			name := fmt.Sprint("x", i)
			if _, err := api.Register(ctx, rollout.Spec{Name: name, URL: name + ".mar"}); err != nil {
				t.Error(err)
			}
			if !slices.Contains(models(fromDir(t, logs)), name+" 1.0 "+name+".mar 0-0") {
				t.Errorf("%s was registered and would not come back", name)
			}
		})
	}
	all.Wait()
}

// TestAbsentModels: what did not come back stays in the snapshots until it does, or until it is not wanted any more.
func TestAbsentModels(t *testing.T) {
	t.Parallel()
	of := func(name, version, file string, standard bool) config.SnapshotModel {
		return config.SnapshotModel{Name: name, Version: version, File: file, Default: standard, Preset: config.Preset{MinWorkers: 1, MaxWorkers: 2}}
	}
	restored := []config.SnapshotModel{of("m", "1.0", "m1.mar", true), of("m", "2.0", "m2.mar", false), of("n", "1.0", "n.mar", true)}
	start := func(t *testing.T, shelf *shelf) (*snapshots, string) {
		t.Helper()
		logs := t.TempDir()
		return begin(t, &config.Config{SnapshotDir: filepath.Join(logs, "config"), Snapshot: &config.Snapshot{Models: restored}}, shelf, slog.New(slog.DiscardHandler)), logs
	}
	second := rollout.Description{Ref: ref("m", "2.0"), Source: "m2.mar", Default: true, MinWorkers: 1, MaxWorkers: 2}
	check := func(t *testing.T, logs string, want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, models(fromDir(t, logs))); diff != "" {
			t.Error(diff)
		}
	}
	t.Run("an empty store", func(t *testing.T) {
		t.Parallel()
		s, logs := start(t, newShelf())
		check(t, logs, "m 1.0 m1.mar 1-2 *", "m 2.0 m2.mar 1-2", "n 1.0 n.mar 1-2 *")
		s.end()
		check(t, logs, "m 1.0 m1.mar 1-2 *", "m 2.0 m2.mar 1-2", "n 1.0 n.mar 1-2 *")
	})
	t.Run("the default version", func(t *testing.T) {
		t.Parallel()
		shelf := newShelf(second)
		s, logs := start(t, shelf)
		check(t, logs, "m 1.0 m1.mar 1-2 *", "m 2.0 m2.mar 1-2", "n 1.0 n.mar 1-2 *")
		if err := s.recorded(shelf).SetDefault(t.Context(), second.Ref); err != nil {
			t.Fatal(err)
		}
		check(t, logs, "m 1.0 m1.mar 1-2", "m 2.0 m2.mar 1-2 *", "n 1.0 n.mar 1-2 *")
	})
	t.Run("it comes back and is removed by hand", func(t *testing.T) {
		t.Parallel()
		shelf := newShelf(second)
		s, logs := start(t, shelf)
		s.changed(rollout.Change{Kind: rollout.ChangeRegistered, Ref: ref("n", "1.0")})
		s.changed(rollout.Change{Kind: rollout.ChangeUnregistered, Ref: ref("n", "1.0")})
		s.keep(t.Context())
		check(t, logs, "m 1.0 m1.mar 1-2 *", "m 2.0 m2.mar 1-2")
	})
	t.Run("its archive has another version now", func(t *testing.T) {
		t.Parallel()
		_, logs := start(t, newShelf(rollout.Description{Ref: ref("n", "9"), Source: "n.mar", Default: true}))
		check(t, logs, "m 1.0 m1.mar 1-2 *", "m 2.0 m2.mar 1-2", "n 9 n.mar 0-0 *")
	})
}

// TestSnapshotsCannotBeWritten: the server goes on and says so once.
func TestSnapshotsCannotBeWritten(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	shelf := newShelf()
	s := begin(t, &config.Config{SnapshotDir: dir}, shelf, slog.New(slog.NewTextHandler(&log, nil)))
	api := s.recorded(shelf)
	for range 3 {
		if _, err := api.Register(t.Context(), rollout.Spec{Name: "a", URL: "a.mar"}); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	s.keep(t.Context())
	s.end()
	if strings.Count(log.String(), "level=ERROR") != 1 || !strings.Contains(log.String(), "written again") {
		t.Error(log.String())
	}
	if found, err := snapshot.Find(dir, config.CheckSnapshot); err != nil || found.Path == "" {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestWithoutSnapshots: a start that failed writes none, and nil does nothing.
func TestWithoutSnapshots(t *testing.T) {
	t.Parallel()
	none, err := newSnapshots(&config.Config{}, newShelf(), slog.New(slog.DiscardHandler), nil)
	if none != nil || err != nil {
		t.Fatalf("%v, %v", none, err)
	}
	none.begin()
	none.changed(rollout.Change{Kind: rollout.ChangeDefault})
	none.end()
	shelf := newShelf()
	if got := none.recorded(shelf); got != httpapi.Models(shelf) {
		t.Errorf("%T", got)
	}
	dir := filepath.Join(t.TempDir(), "config")
	failed, err := newSnapshots(&config.Config{SnapshotDir: dir}, shelf, slog.New(slog.DiscardHandler), nil)
	if err != nil {
		t.Fatal(err)
	}
	failed.changed(rollout.Change{Kind: rollout.ChangeRegistered})
	failed.keep(t.Context())
	failed.end()
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
}

func TestRecordOf(t *testing.T) {
	t.Parallel()
	at := time.Now()
	got := recordOf(rollout.Change{
		At: at, Ref: ref("m", "1.0"), Kind: rollout.ChangeSwapped, Generation: 2, Digest: "sha256:1", Source: "m.mar", Actor: rollout.Actor{Who: "store", Why: "changed"},
		Reason: "r", Took: time.Second, Steps: []rollout.Step{{Name: "load", Took: time.Millisecond}},
	})
	text, err := got.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	const want = `"model":"m","version":"1.0","kind":"swapped","generation":2,"digest":"sha256:1","source":"m.mar","who":"store","why":"changed","reason":"r","took_ms":1000,` +
		`"steps":[{"name":"load","took_ms":1}]}`
	if !strings.HasSuffix(string(text), want) || !got.At.Equal(at) {
		t.Errorf("%s", text)
	}
}
