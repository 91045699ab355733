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
}

// fakeStore is a model store: a Watcher and Archives.
type fakeStore struct {
	snapshots chan watch.Snapshot

	mu      sync.Mutex
	files   map[string]file
	kept    map[string]file // by folder
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
		since: map[string]time.Time{},
	}
}

func (s *fakeStore) Snapshots() <-chan watch.Snapshot { return s.snapshots }

func (s *fakeStore) Rescan() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.rescans++
}

// put writes files and tells of them in one snapshot.
func (s *fakeStore) put(files map[string]file) {
	s.mu.Lock()
	for path, f := range files {
		s.edits++
		if f.digest == "" && f.state == "" {
			delete(s.files, path)
			continue
		}
		s.files[path] = f
		s.stamps[path] = fmt.Sprint("stamp ", s.edits)
		s.since[path] = time.Now()
	}
	s.mu.Unlock()
	s.send()
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
	snapshot := watch.Snapshot{At: time.Now()}
	for path, f := range s.files {
		e := watch.Entry{
			Path: path, Kind: f.kind, Fingerprint: s.stamps[path], State: f.state, Reason: f.reason, Name: f.folder, Version: f.number, Versioned: f.folder != "",
			Since: s.since[path],
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

// running is a version of a fake Models.
type running struct {
	digest, source string
	min, max       int
	archive        *archive.Archive
	void           context.CancelCauseFunc
	state          string
}

// fakeModels is Models in memory.
type fakeModels struct {
	mu       sync.Mutex
	versions map[infer.ModelRef]*running
	standard map[string]string
	calls    []string
	specs    []rollout.Spec
	takes    time.Duration            // of a Deploy
	delays   map[string]time.Duration // by digest
	broken   map[string]error         // by digest
	replaced func(context.Context, rollout.Replaced)
	drains   time.Duration // until a replaced version has ended
	ending   sync.WaitGroup
	most     int // Deploys at the same time
	now      int
}

func newFakeModels() *fakeModels {
	return &fakeModels{
		versions: map[infer.ModelRef]*running{}, standard: map[string]string{}, delays: map[string]time.Duration{}, broken: map[string]error{},
		takes: 100 * time.Millisecond,
	}
}

func (m *fakeModels) called(ctx context.Context, format string, args ...any) {
	who := rollout.ActorOf(ctx).Who
	if who == "" {
		who = "?"
	}
	m.calls = append(m.calls, who+": "+fmt.Sprintf(format, args...))
}

// log gives the calls so far and forgets them.
func (m *fakeModels) log() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls := m.calls
	m.calls = nil
	return calls
}

func (m *fakeModels) Deploy(ctx context.Context, s rollout.Spec) (rollout.Registered, error) {
	ref := infer.ModelRef{Name: s.Name, Version: s.Version}
	ctx, void := context.WithCancelCause(ctx)
	defer void(nil)
	m.mu.Lock()
	m.specs = append(m.specs, s)
	m.called(ctx, "deploy %s/%s %s", s.Name, s.Version, s.Archive.Digest)
	m.now++
	m.most = max(m.most, m.now)
	v := m.versions[ref]
	fresh := v == nil
	if fresh { // it is there while it is loaded
		v = &running{digest: s.Archive.Digest, source: s.Archive.Source, min: 1, max: 1, archive: s.Archive, state: "deploying"}
		m.versions[ref] = v
		if m.standard[ref.Name] == "" {
			m.standard[ref.Name] = ref.Version
		}
	}
	if v != nil {
		if v.void != nil {
			v.void(rollout.ErrSuperseded)
		}
		v.void = void
	}
	takes, broken := m.takes, m.broken[s.Archive.Digest]
	if d, ok := m.delays[s.Archive.Digest]; ok {
		takes = d
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		m.now--
		m.mu.Unlock()
	}()
	var err error
	select {
	case <-time.After(takes):
		err = broken
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	if err != nil {
		if fresh {
			m.retract(ref, v)
		}
		return rollout.Registered{}, err
	}
	old := m.swap(ref, s)
	if fresh {
		old = nil
	}
	if old != nil && m.replaced != nil {
		m.ending.Go(func() {
			time.Sleep(m.drains)
			m.replaced(context.WithoutCancel(ctx), rollout.Replaced{Ref: ref, Digest: old.digest, Source: old.source, Archive: old.archive, Next: s.Archive.Digest})
		})
	}
	return rollout.Registered{Ref: ref, Workers: 1}, nil
}

// retract takes a version back that did not come up.
func (m *fakeModels) retract(ref infer.ModelRef, v *running) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.versions[ref] != v {
		return
	}
	delete(m.versions, ref)
	delete(m.standard, ref.Name)
	for other := range m.versions {
		if other.Name == ref.Name {
			m.standard[ref.Name] = max(m.standard[ref.Name], other.Version)
		}
	}
}

func (m *fakeModels) swap(ref infer.ModelRef, s rollout.Spec) *running {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.versions[ref]
	fresh := &running{digest: s.Archive.Digest, source: s.Archive.Source, min: 1, max: 1, archive: s.Archive, state: "serving"}
	if v != nil {
		fresh.min, fresh.max = v.min, v.max
	}
	m.versions[ref] = fresh
	if m.standard[ref.Name] == "" {
		m.standard[ref.Name] = ref.Version
	}
	return v
}

func (m *fakeModels) Register(ctx context.Context, s rollout.Spec) (rollout.Registered, error) {
	m.mu.Lock()
	m.specs = append(m.specs, s)
	ref := infer.ModelRef{Name: s.Name, Version: s.Version}
	if s.Archive == nil { // from a URL
		if ref.Name == "" {
			ref.Name = strings.TrimSuffix(s.URL, ".mar")
		}
		if ref.Version == "" {
			ref.Version = "1.0"
		}
		digest := "posted"
		if i := strings.IndexByte(s.URL, '#'); i >= 0 {
			digest = s.URL[i+1:]
		}
		s.Archive = &archive.Archive{Digest: digest, Source: s.URL}
	}
	m.called(ctx, "register %s/%s %s", ref.Name, ref.Version, s.Archive.Digest)
	if m.versions[ref] != nil {
		m.mu.Unlock()
		return rollout.Registered{}, fault.Newf(fault.Conflict, "Model version %s is already registered for model %s", ref.Version, ref.Name)
	}
	broken := m.broken[s.Archive.Digest]
	m.mu.Unlock()
	if broken != nil {
		return rollout.Registered{}, broken
	}
	m.swap(ref, s)
	return rollout.Registered{Ref: ref, Workers: 1}, nil
}

func (m *fakeModels) Unregister(ctx context.Context, ref infer.ModelRef) error {
	m.mu.Lock()
	if ref.Version == "" {
		ref.Version = m.standard[ref.Name]
	}
	v := m.versions[ref]
	if v == nil {
		m.mu.Unlock()
		return fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	others := 0
	for other := range m.versions {
		if other.Name == ref.Name && other != ref {
			others++
		}
	}
	if others > 0 && m.standard[ref.Name] == ref.Version {
		m.mu.Unlock()
		return fault.Newf(fault.InvalidVersion, "Cannot remove default version for model %s", ref.Name)
	}
	m.called(ctx, "unregister %s/%s", ref.Name, ref.Version)
	delete(m.versions, ref)
	if others == 0 {
		delete(m.standard, ref.Name)
	}
	m.mu.Unlock()
	if m.replaced != nil {
		m.replaced(ctx, rollout.Replaced{Ref: ref, Digest: v.digest, Source: v.source, Archive: v.archive})
	}
	return nil
}

func (m *fakeModels) SetDefault(ctx context.Context, ref infer.ModelRef) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.versions[ref] == nil {
		return fault.Newf(fault.VersionNotFound, "Model version %s does not exist for model %s", ref.Version, ref.Name)
	}
	m.called(ctx, "default %s/%s", ref.Name, ref.Version)
	m.standard[ref.Name] = ref.Version
	return nil
}

func (m *fakeModels) Scale(ctx context.Context, ref infer.ModelRef, minimum, maximum int, _ bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ref.Version == "" {
		ref.Version = m.standard[ref.Name]
	}
	v := m.versions[ref]
	if v == nil {
		return fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	m.called(ctx, "scale %s/%s %d %d", ref.Name, ref.Version, minimum, maximum)
	v.min, v.max = minimum, maximum
	return nil
}

func (m *fakeModels) Describe(ref infer.ModelRef) (rollout.Description, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if ref.Version == "" {
		ref.Version = m.standard[ref.Name]
	}
	v := m.versions[ref]
	if v == nil {
		return rollout.Description{}, fault.Newf(fault.ModelNotFound, "Model not found: %s", ref.Name)
	}
	return m.describe(ref, v), nil
}

func (m *fakeModels) describe(ref infer.ModelRef, v *running) rollout.Description {
	return rollout.Description{
		Ref: ref, Digest: v.digest, Source: v.source, MinWorkers: v.min, MaxWorkers: v.max, Default: m.standard[ref.Name] == ref.Version, State: v.state,
	}
}

func (m *fakeModels) DescribeAll(name string) ([]rollout.Description, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []rollout.Description
	for ref, v := range m.versions {
		if ref.Name == name {
			all = append(all, m.describe(ref, v))
		}
	}
	if all == nil {
		return nil, fault.Newf(fault.ModelNotFound, "Model not found: %s", name)
	}
	slices.SortFunc(all, func(a, b rollout.Description) int { return strings.Compare(a.Ref.Version, b.Ref.Version) })
	return all, nil
}

// serving lists what runs: "model/version digest", the default versions with a star.
func (m *fakeModels) serving() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []string
	for ref, v := range m.versions {
		if v.state == "deploying" && v.void != nil {
			continue
		}
		line := ref.Name + "/" + ref.Version + " " + v.digest
		if m.standard[ref.Name] == ref.Version {
			line += "*"
		}
		all = append(all, line)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func (m *fakeModels) setState(name, version, state string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.versions[infer.ModelRef{Name: name, Version: version}].state = state
}

func (m *fakeModels) breakDigest(digest string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.broken[digest] = err
}

func (m *fakeModels) mostAtOnce() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.most
}

func (m *fakeModels) slow(takes time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.takes = takes
}

// asked gives the Specs so far, and forgets them.
func (m *fakeModels) asked() []rollout.Spec {
	m.mu.Lock()
	defer m.mu.Unlock()
	specs := m.specs
	m.specs = nil
	return specs
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
