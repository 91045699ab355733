package dispatch

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// late tells of a version, and lets something happen before it is used.
type late struct {
	*rollout.Manager

	then func()
}

func (l *late) Route(ref infer.ModelRef, header func(string) string, sequence func() string) (*rollout.Version, error) {
	v, err := l.Manager.Route(ref, header, sequence)
	if then := l.then; then != nil {
		l.then = nil
		then()
	}
	return v, err
}

// TestVersionThatGoesBetween removes the default version after a request was sent its way: one that named no version goes to the new default, one that
// named it is told that it is gone.
func TestVersionThatGoesBetween(t *testing.T) {
	for name, c := range map[string]struct {
		ref   infer.ModelRef
		warm  bool // the version's queue is there already
		fails bool
	}{
		"no version":                 {ref: model},
		"no version, with its queue": {ref: model, warm: true},
		"that version":               {ref: infer.ModelRef{Name: "m", Version: "1.0"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, &backendtest.Launcher{}, archive.Archive{}, 1)
				defer s.end(t)
				one := 1
				if _, err := s.models.Register(t.Context(), rollout.Spec{URL: "m.mar", Version: "2.0", InitialWorkers: &one, Synchronous: true}); err != nil {
					t.Fatal(err)
				}
				if c.warm {
					if _, err := s.Submit(t.Context(), model, item("first")); err != nil {
						t.Fatal(err)
					}
				}
				between := &late{Manager: s.models}
				s.opts.Models = between
				between.then = func() {
					ctx := context.Background()
					if err := s.models.SetDefault(ctx, infer.ModelRef{Name: "m", Version: "2.0"}); err != nil {
						t.Error(err)
					}
					if err := s.models.Unregister(ctx, infer.ModelRef{Name: "m", Version: "1.0"}); err != nil {
						t.Error(err)
					}
				}
				r, err := s.Submit(t.Context(), c.ref, item("hello"))
				if c.fails != (err != nil) || err != nil && !fault.Is(err, fault.ModelNotFound, fault.NoWorker) || err == nil && string(r.Body) != "hello" {
					t.Errorf("%q, %v", r.Body, err)
				}
			})
		})
	}
}
