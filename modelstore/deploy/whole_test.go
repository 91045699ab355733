package deploy_test

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/deploy"
	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// mar makes an archive whose handler's text says what its instances do when they are loaded.
func mar(t *testing.T, name, version, handler string) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := zip.NewWriter(&buf)
	for file, text := range map[string]string{
		"MAR-INF/MANIFEST.json": fmt.Sprintf(`{"createdOn":"now","runtime":"python","archiverVersion":"0.12.0","model":{"modelName":%q,"modelVersion":%q,"handler":"h.py"}}`,
			name, version),
		"h.py": handler,
	} {
		f, err := w.Create(file)
		if err == nil {
			_, err = f.Write([]byte(text))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

// house is a server without processes and listeners.
type house struct {
	*deploy.Deployer

	t        *testing.T
	store    string
	models   *rollout.Manager
	launcher *backendtest.Launcher
	facade   *deploy.Facade
	end      func()
}

// folders are what outlives a house.
type folders struct{ store, state, temp string }

func newFolders(t *testing.T) folders {
	t.Helper()
	root := t.TempDir()
	f := folders{filepath.Join(root, "store"), filepath.Join(root, "state"), filepath.Join(root, "temp")}
	for _, dir := range []string{f.store, f.temp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func (f folders) requireNothingLeft(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{"*", "models/*"} {
		left, err := filepath.Glob(filepath.Join(f.temp, pattern))
		if err != nil || len(left) > 0 {
			t.Errorf("left in the temporary folder: %v, %v", left, err)
		}
	}
}

func must[T any](t *testing.T) func(v T, err error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func open(t *testing.T, f folders) *house {
	t.Helper()
	log := slog.New(slog.DiscardHandler)
	h := &house{t: t, store: f.store, launcher: &backendtest.Launcher{LaunchFunc: launch}}
	records := must[*ledger.Ledger](t)(ledger.Open(ledger.Options{Dir: f.state, Logger: log}))
	archives := must[*archive.Store](t)(archive.New(archive.Options{Store: f.store, Temp: f.temp, Fetcher: fetcher{}, Logger: log}))
	h.models = must[*rollout.Manager](t)(rollout.New(rollout.Options{
		Launcher: h.launcher, Archives: archives, Limits: backend.Limits{Start: 10 * time.Second, Stop: time.Second},
		Process: func(r rollout.ProcessRequest) (backend.ProcessSpec, error) {
			return backend.ProcessSpec{Dir: r.Dir}, nil
		},
		DefaultWorkers: 1, ResponseTimeout: time.Minute, StartupTimeout: time.Minute, QueueSize: 10, Drain: 10 * time.Second, Logger: log,
		Replaced: func(ctx context.Context, old rollout.Replaced) { h.Replaced(ctx, old) },
	}))
	watcher := must[*watch.Watcher](t)(watch.New(watch.Options{
		Root: f.store, Settle: 20 * time.Millisecond, FolderSettle: 50 * time.Millisecond, Poll: time.Second, Logger: log,
	}))
	h.Deployer = must[*deploy.Deployer](t)(deploy.New(deploy.Options{
		Models: h.models, Archives: archives, Watcher: watcher, Ledger: records, Root: f.store, Scope: deploy.Scope{All: true},
		Removal: deploy.RemovalUnregister, RemovalDelay: 50 * time.Millisecond, FilePolicy: deploy.PolicyLatest, FolderPolicy: deploy.PolicyLatest,
		Keep: 1, KeepDir: filepath.Join(f.state, "kept"), Logger: log,
	}))
	h.facade = &deploy.Facade{Manager: h.models, Deployer: h.Deployer}
	ctx, cancel := context.WithCancel(context.Background())
	watched, done := make(chan error, 1), make(chan error, 1)
	go func() { watched <- watcher.Run(ctx) }()
	if err := h.Start(ctx, nil, func(name, url string, err error) {
		if err != nil {
			t.Errorf("start of %s %s: %v", name, url, err)
		}
	}); err != nil {
		t.Error(err)
	}
	go func() { done <- h.Run(ctx) }()
	h.end = func() {
		cancel()
		err := errors.Join(<-watched, <-done, h.models.Close(t.Context()), archives.Close(), records.Close())
		if err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the end: %v", err)
		}
		if n := len(h.launcher.Live()); n > 0 {
			t.Errorf("%d instances are left", n)
		}
	}
	return h
}

// launch makes an instance that fails to load if its handler says so.
func launch(_ context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
	i := backendtest.NewInstance(strconv.Itoa(n))
	if text, err := os.ReadFile(filepath.Join(spec.Dir, "h.py")); err == nil && strings.Contains(string(text), "slow to end") {
		i.StopFunc = func(ctx context.Context) error {
			select {
			case <-time.After(500 * time.Millisecond):
			case <-ctx.Done():
			}
			return nil
		}
	}
	i.LoadFunc = func(context.Context, backend.LoadSpec) (backend.Info, error) {
		text, err := os.ReadFile(filepath.Join(spec.Dir, "h.py"))
		if err == nil && strings.Contains(string(text), "raise") {
			err = errors.New("the handler raises")
		}
		return backend.Info{}, err
	}
	return i, nil
}

// fetcher fetches archives from the folder that a URL names.
type fetcher struct{}

func (fetcher) Allowed(string) error { return nil }

func (fetcher) Told(url string) string { return url }

func (fetcher) Fetch(_ context.Context, url, dir string, _ func(done, total int64)) (path string, bytes int64, digest string, err error) {
	content, err := os.ReadFile(strings.TrimPrefix(url, "file://"))
	path = filepath.Join(dir, ".fetched")
	return path, int64(len(content)), "", errors.Join(err, os.WriteFile(path, content, 0o600))
}

// put renames a file into the store.
func (h *house) put(path string, content []byte) {
	h.t.Helper()
	whole := filepath.Join(h.store, path)
	hidden := filepath.Join(filepath.Dir(whole), ".new")
	if err := errors.Join(os.MkdirAll(filepath.Dir(whole), 0o700), os.WriteFile(hidden, content, 0o600), os.Rename(hidden, whole)); err != nil {
		h.t.Fatal(err)
	}
}

// running is what a version runs: "version digest's last change", the default one first.
func (h *house) running(name string) string {
	all, err := h.facade.DescribeAll(name)
	if err != nil {
		return ""
	}
	var first string
	var rest []string
	for i := range all {
		line := fmt.Sprintf("%s:%s", all[i].Ref.Version, all[i].State)
		if all[i].Default {
			first = line
		} else {
			rest = append(rest, line)
		}
	}
	return strings.Join(append([]string{first}, rest...), " ")
}

func (h *house) generation(name string) int {
	d, err := h.facade.Describe(infer.ModelRef{Name: name})
	if err != nil {
		return 0
	}
	return d.Generation
}

func (h *house) eventually(what string, is func() bool) {
	h.t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !is() {
		select {
		case <-limit.C:
			h.t.Fatalf("%s: it did not come to that; m runs %q; the store: %+v", what, h.running("m"), h.Entries())
		case <-tick.C:
		}
	}
}

func (h *house) eventuallyRuns(name, want string) {
	h.t.Helper()
	h.eventually(name+" "+want, func() bool { return h.running(name) == want })
}

func TestWholeLife(t *testing.T) {
	f := newFolders(t)
	h := open(t, f)
	h.put("m.mar", mar(t, "m", "1.0", "a"))
	h.eventuallyRuns("m", "1.0:serving")
	h.put("m.mar", mar(t, "m", "1.0", "b"))
	h.eventually("a swap", func() bool { return h.generation("m") == 2 })

	h.put("m.mar", mar(t, "m", "1.0", "raise"))
	h.eventually("a failure", func() bool {
		d, err := h.facade.Describe(infer.ModelRef{Name: "m"})
		return err == nil && d.State == "serving" && d.LastFailure != nil && strings.Contains(d.LastFailure.Reason, "the handler raises")
	})
	h.put("m.mar", mar(t, "m", "2.0", "c"))
	h.eventuallyRuns("m", "2.0:serving")
	if _, err := h.Rollback(t.Context(), "m", "", ""); err != nil { // also across an unregistered version
		t.Fatal(err)
	}
	h.eventuallyRuns("m", "1.0:serving")

	h.put("v/9/m.mar", mar(t, "x", "1", "a"))
	h.put("v/10/m.mar", mar(t, "x", "1", "b"))
	h.eventuallyRuns("v", "10:serving 9:serving")
	if err := os.RemoveAll(filepath.Join(f.store, "v", "10")); err != nil {
		t.Fatal(err)
	}
	h.eventuallyRuns("v", "9:serving")
	if err := h.facade.Unregister(t.Context(), infer.ModelRef{Name: "v"}); err != nil {
		t.Fatal(err)
	}
	h.end()

	h = open(t, f) // what was decided holds
	h.eventuallyRuns("m", "1.0:serving")
	if got := h.running("v"); got != "" {
		t.Errorf("what was unregistered by hand runs again: %s", got)
	}
	if err := h.Reload(t.Context(), "m"); err != nil {
		t.Fatal(err)
	}
	h.eventuallyRuns("m", "2.0:serving")
	if _, err := h.facade.Register(t.Context(), rollout.Spec{URL: "m.mar"}); err != nil {
		t.Errorf("the registration of what is loaded already: %v", err)
	}
	if err := os.Remove(filepath.Join(f.store, "m.mar")); err != nil {
		t.Fatal(err)
	}
	h.eventuallyRuns("m", "")
	h.end()
	f.requireNothingLeft(t)
	if left, err := os.ReadDir(filepath.Join(f.state, "kept")); err != nil || len(left) > 0 {
		t.Errorf("kept of a model that is gone: %v, %v", left, err)
	}
}

// TestLastFailureIsTold drops programs over one that serves: each fault is told in the place of the one before, whether the program was started or not even
// opened.
func TestLastFailureIsTold(t *testing.T) {
	h := open(t, newFolders(t))
	program := func(text, handler string) {
		t.Helper()
		h.put("m/h.py", []byte(handler))
		whole, hidden := filepath.Join(h.store, "m", "m"), filepath.Join(h.store, "m", ".new")
		if err := errors.Join(os.WriteFile(hidden, []byte(text), 0o600), os.Chmod(hidden, 0o700), os.Rename(hidden, whole)); err != nil {
			t.Fatal(err)
		}
	}
	elf := func(machine byte) string { // the head of a program that ends there
		head := make([]byte, 64)
		copy(head, "\x7fELF\x02\x01\x01")
		head[18], head[40], head[58], head[60] = machine, 64, 64, 8
		return string(head)
	}
	const others, arm, amd = 0xF3, 0xB7, 0x3E // of RISC-V, which none of the machines is that this runs on
	mine := byte(amd)
	if runtime.GOARCH == "arm64" {
		mine = arm
	}
	told := func(what, want string) {
		t.Helper()
		h.eventually(what, func() bool {
			d, err := h.facade.Describe(infer.ModelRef{Name: "m"})
			return err == nil && d.State == "serving" && d.LastFailure != nil && strings.Contains(d.LastFailure.Reason, want) &&
				strings.HasSuffix(d.Reason, d.LastFailure.Reason)
		})
	}
	program("#!/bin/sh\n", "good")
	h.eventuallyRuns("m", "1.0:serving")
	program("#!/bin/sh\n", "raise")
	told("one that fails when it is loaded", "the handler raises")
	program(elf(others), "good")
	told("one for another machine", "for another kind of CPU")
	program(elf(mine), "good")
	told("one that is cut off", "is cut off")
	if d, err := h.facade.Describe(infer.ModelRef{Name: "m"}); err != nil || d.LastFailure.Attempts != 1 {
		t.Errorf("the first try of a program is told as %+v, %v", d.LastFailure, err)
	}
	program("#!/bin/sh\n", "raise again")
	told("one that fails when it is loaded", "the handler raises")
	program("#!/bin/sh\n", "good again")
	h.eventually("a good one", func() bool {
		d, err := h.facade.Describe(infer.ModelRef{Name: "m"})
		return err == nil && d.LastFailure == nil && d.Reason == ""
	})
	h.end()
}

// TestUnregisteredBeforeItsCopySettles registers a URL and unregisters it at once: its copy is still there while its worker ends, and is seen by then.
func TestUnregisteredBeforeItsCopySettles(t *testing.T) {
	f := newFolders(t)
	elsewhere := filepath.Join(t.TempDir(), "m.mar")
	if err := os.WriteFile(elsewhere, mar(t, "m", "1.0", "slow to end"), 0o600); err != nil {
		t.Fatal(err)
	}
	h := open(t, f)
	if _, err := h.facade.Register(t.Context(), rollout.Spec{URL: "file://" + elsewhere, Synchronous: true}); err != nil {
		t.Fatal(err)
	}
	if err := h.facade.Unregister(t.Context(), infer.ModelRef{Name: "m"}); err != nil {
		t.Fatal(err)
	}
	h.eventually("the copy is gone", func() bool { return len(h.Entries()) == 0 })
	if n := len(h.launcher.Instances()); n != 1 {
		t.Errorf("%d workers were started; want the one of the registration", n)
	}
	h.end()
	f.requireNothingLeft(t)
}

func TestManyChanges(t *testing.T) {
	f := newFolders(t)
	h := open(t, f)
	for i := range 30 {
		text := mar(t, "m", "1.0", strings.Repeat("x", i)+"text")
		h.put("m.mar", text)
		h.eventually("the change is seen", func() bool {
			return slices.ContainsFunc(h.Entries(), func(e deploy.EntryStatus) bool { return e.Path == "m.mar" && e.Bytes == int64(len(text)) })
		})
	}
	last := mar(t, "m", "1.0", "the last one")
	h.put("m.mar", last)
	h.eventually("the last one", func() bool {
		for _, e := range h.Entries() {
			if e.Path == "m.mar" && e.Decision == deploy.DecisionServing && e.Bytes == int64(len(last)) && e.Digest == e.Serving {
				return true
			}
		}
		return false
	})
	h.end()
	f.requireNothingLeft(t)
}
