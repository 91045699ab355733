package deploy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// running is a version of a fake Models.
type running struct {
	digest, source string
	min, max       int
	archive        *archive.Archive
	void           context.CancelCauseFunc
	state, reason  string
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
		Reason: v.reason,
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

func (m *fakeModels) setState(name, version, state string, reason ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v := m.versions[infer.ModelRef{Name: name, Version: version}]
	v.state, v.reason = state, strings.Join(reason, " ")
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
