package deploy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/modelstore/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// file is what a fake store has at a path.
type file struct {
	digest, name, version string
	state                 watch.State // "": settled
	reason                string
	folder                string // name of the versioned folder
	number                string // and the version
	kind                  watch.Kind
	workers               int
	superseded            bool
}

// fakeStore is a model store: a Watcher and Archives.
type fakeStore struct {
	snapshots chan watch.Snapshot

	mu      sync.Mutex
	files   map[string]file
	kept    map[string]file // by folder
	copies  map[string]bool // that belong to clients' registrations
	broken  map[string]error
	opened  []string
	edits   int
	stamps  map[string]string
	rescans int
	since   map[string]time.Time
}

func newFakeStore() *fakeStore {
	return &fakeStore{
		snapshots: make(chan watch.Snapshot, 1), files: map[string]file{}, kept: map[string]file{}, broken: map[string]error{}, stamps: map[string]string{},
		since: map[string]time.Time{}, copies: map[string]bool{},
	}
}

func (s *fakeStore) IsCopy(path string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.copies[path]
}

// lend makes a file a client's copy, or anybody's.
func (s *fakeStore) lend(path string, lent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies[path] = lent
}

func (s *fakeStore) Snapshots() <-chan watch.Snapshot { return s.snapshots }

func (s *fakeStore) Rescan() {
	s.mu.Lock()
	s.rescans++
	s.mu.Unlock()
	s.send()
}

// put writes files and tells of them in one snapshot.
func (s *fakeStore) put(files map[string]file) {
	for path, f := range files {
		s.lay(path, f)
	}
	s.send()
}

// lay writes a file, of which the next snapshot tells.
func (s *fakeStore) lay(path string, f file) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.edits++
	if f.digest == "" && f.state == "" {
		delete(s.files, path)
		return
	}
	s.files[path] = f
	s.stamps[path] = fmt.Sprint("stamp ", s.edits)
	s.since[path] = time.Now()
}

func (s *fakeStore) remove(paths ...string) {
	files := map[string]file{}
	for _, path := range paths {
		files[path] = file{}
	}
	s.put(files)
}

func (s *fakeStore) snapshot() watch.Snapshot {
	s.mu.Lock()
	defer s.mu.Unlock()
	snapshot := watch.Snapshot{At: time.Now(), Began: time.Now()}
	for path, f := range s.files {
		e := watch.Entry{
			Path: path, Kind: f.kind, Fingerprint: s.stamps[path], State: f.state, Reason: f.reason, Name: f.folder, Version: f.number, Versioned: f.folder != "",
			Since: s.since[path], Superseded: f.superseded,
		}
		if e.State == "" {
			e.State = watch.Settled
		}
		if e.Kind == "" {
			e.Kind = watch.Mar
		}
		snapshot.Entries = append(snapshot.Entries, e)
	}
	slices.SortFunc(snapshot.Entries, func(a, b watch.Entry) int { return strings.Compare(a.Path, b.Path) })
	return snapshot
}

// send puts the present snapshot in the place of one that nobody has taken.
func (s *fakeStore) send() { s.emit(s.snapshot()) }

func (s *fakeStore) emit(snapshot watch.Snapshot) {
	select {
	case <-s.snapshots:
	default:
	}
	s.snapshots <- snapshot
}

func (s *fakeStore) fail(err error) { s.emit(watch.Snapshot{At: time.Now(), Err: err}) }

func (s *fakeStore) breakOpening(path string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.broken[path] = err
}

func (s *fakeStore) opens(path string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, p := range s.opened {
		if p == path {
			n++
		}
	}
	return n
}

func (s *fakeStore) OpenEntry(ctx context.Context, path string) (*archive.Archive, error) {
	select {
	case <-time.After(10 * time.Millisecond):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened = append(s.opened, path)
	if err := s.broken[path]; err != nil {
		return nil, err
	}
	f, ok := s.files[path]
	if !ok {
		return nil, fault.Newf(fault.ModelNotFound, "Model not found at: %s", path)
	}
	return f.archive(path), nil
}

func (f *file) archive(path string) *archive.Archive {
	a := &archive.Archive{URL: path, Digest: f.digest, Source: path, FileBase: "base"}
	a.Manifest.Model.ModelName, a.Manifest.Model.ModelVersion = f.name, f.version
	if f.workers > 0 {
		a.Settings.MinWorkers, a.Settings.MaxWorkers = &f.workers, &f.workers
	}
	return a
}

func (s *fakeStore) OpenKept(_ context.Context, dir, _, source, digest string) (*archive.Archive, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.kept[dir]
	if !ok {
		return nil, fault.New(fault.ModelNotFound, "it is not kept", nil)
	}
	a := f.archive(source)
	a.Digest, a.Kept = digest, true
	return a, nil
}

// keep is what the Deployer calls for (*archive.Archive).Keep.
func (s *fakeStore) keep(a *archive.Archive, into string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.InPlace {
		return errors.New("it is used in place")
	}
	s.kept[into] = file{digest: a.Digest, name: a.Manifest.Model.ModelName, version: a.Manifest.Model.ModelVersion}
	return nil
}

// bench is a Deployer with its fakes, inside a bubble.
type bench struct {
	*Deployer

	t      *testing.T
	store  *fakeStore
	models *fakeModels

	mu      sync.Mutex
	changes []rollout.Change
}

// events gives what was told so far, and forgets it.
func (b *bench) events() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []string
	for _, c := range b.changes {
		all = append(all, fmt.Sprintf("%s %s/%s: %s", c.Kind, c.Ref.Name, c.Ref.Version, c.Reason))
	}
	b.changes = nil
	return all
}

// standard are the options that most tests have.
func standard(t *testing.T) Options {
	t.Helper()
	return Options{
		Scope: Scope{All: true}, Root: "/store", Removal: RemovalUnregister, RemovalDelay: 10 * time.Second, FilePolicy: PolicyLatest,
		FolderPolicy: PolicyLatest, Keep: 1, KeepDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler),
	}
}

// in runs a test in a bubble, with a Deployer whose Run begins when the test calls the function that it gets.
func in(t *testing.T, change func(*Options), test func(b *bench, run func())) {
	t.Helper()
	opts := standard(t)
	synctest.Test(t, func(t *testing.T) {
		b := &bench{t: t, store: newFakeStore(), models: newFakeModels()}
		opts.Models, opts.Archives, opts.Watcher = b.models, b.store, b.store
		opts.Changed = func(c rollout.Change) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.changes = append(b.changes, c)
		}
		if change != nil {
			change(&opts)
		}
		var err error
		if b.Deployer, err = New(opts); err != nil {
			t.Fatal(err)
		}
		b.Deployer.keep = b.store.keep
		b.models.replaced = b.Deployer.Replaced
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		began := false
		test(b, func() {
			began = true
			go func() { done <- b.Run(ctx) }()
		})
		cancel()
		b.models.ending.Wait()
		if began {
			if err := <-done; err != nil {
				t.Errorf("Run: %v", err)
			}
		}
	})
}

// after lets time pass and checks what runs then.
func (b *bench) after(d time.Duration, want string) {
	b.t.Helper()
	time.Sleep(d)
	synctest.Wait()
	if got := b.models.serving(); got != want {
		b.t.Errorf("after %s: serving %q, want %q", d, got, want)
	}
}

func (b *bench) entry(path string) EntryStatus {
	b.t.Helper()
	for _, e := range b.Entries() {
		if e.Path == path {
			return e
		}
	}
	b.t.Fatalf("there is no entry %s", path)
	return EntryStatus{}
}

func (b *bench) wantDecision(path string, want Decision, words ...string) {
	b.t.Helper()
	e := b.entry(path)
	if e.Decision != want {
		b.t.Errorf("%s: decision %q (%s), want %q", path, e.Decision, e.Reason, want)
	}
	for _, w := range words {
		if !strings.Contains(e.Reason, w) {
			b.t.Errorf("%s: reason %q does not say %q", path, e.Reason, w)
		}
	}
}

func (b *bench) wantEvent(words ...string) {
	b.t.Helper()
	events := b.events()
	for _, e := range events {
		all := true
		for _, w := range words {
			all = all && strings.Contains(e, w)
		}
		if all {
			return
		}
	}
	b.t.Errorf("no event has %q: %q", words, events)
}

func ref(name, version string) infer.ModelRef { return infer.ModelRef{Name: name, Version: version} }
