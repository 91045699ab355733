package dispatch

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

// named opens an archive called as its URL; one called e is an ensemble.
type named struct{}

func (named) Open(_ context.Context, url string) (*archive.Archive, error) {
	a := &archive.Archive{}
	a.Manifest.Model.ModelName, a.Manifest.Runtime = url, "python"
	if url == "e" {
		a.Manifest.Runtime = pipeline.Runtime
	}
	return a, nil
}

// While the server drains, an ensemble that has begun gets the steps that it still needs, and nothing else is taken.
func TestDrainOfAnEnsemble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d *Dispatcher
		launcher := &backendtest.Launcher{LaunchFunc: func(_ context.Context, n int, _ backend.ProcessSpec) (*backendtest.Instance, error) {
			i := backendtest.NewInstance(strconv.Itoa(n))
			i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
				time.Sleep(time.Second)
				if string(items[0].Parts[0].Data) == "whole" { // the ensemble
					if items[0].Gone == nil {
						t.Error("nobody can tell it that its client is gone")
					}
					r, err := d.Steps().Submit(ctx, infer.ModelRef{Name: "member"}, item("part"))
					return []infer.Result{r}, err
				}
				return backendtest.Echo(items), nil
			}
			return i, nil
		}}
		models, err := rollout.New(rollout.Options{
			Launcher: launcher, Archives: named{}, Limits: backend.Limits{Start: time.Second, Stop: time.Second},
			Process:         func(rollout.ProcessRequest) (backend.ProcessSpec, error) { return backend.ProcessSpec{}, nil },
			ResponseTimeout: time.Minute, StartupTimeout: time.Minute, QueueSize: 3, Drain: 10 * time.Second, Logger: slog.New(slog.DiscardHandler),
			Retire: func(ctx context.Context, v *rollout.Version) { d.Retire(ctx, v) }, WarmUp: rollout.WarmUpOff,
		})
		if err != nil {
			t.Fatal(err)
		}
		if d, err = New(Options{Models: models}); err != nil {
			t.Fatal(err)
		}
		one := 1
		for _, name := range []string{"e", "member"} {
			if _, err := models.Register(t.Context(), rollout.Spec{URL: name, InitialWorkers: &one, Synchronous: true}); err != nil {
				t.Fatal(err)
			}
		}
		var all sync.WaitGroup
		all.Go(func() {
			r, err := d.Submit(t.Context(), infer.ModelRef{Name: "e"}, item("whole"))
			if err != nil || string(r.Body) != "part" {
				t.Errorf("%s, %v", r.Body, err)
			}
		})
		synctest.Wait()
		all.Go(func() {
			if err := d.Drain(t.Context()); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		for _, name := range []string{"e", "member"} {
			if _, err := d.Submit(t.Context(), infer.ModelRef{Name: name}, item("late")); !fault.Is(err, fault.Draining) {
				t.Errorf("%s while draining: %v", name, err)
			}
		}
		all.Wait()
		if _, err := d.Steps().Submit(t.Context(), infer.ModelRef{Name: "member"}, item("late")); !fault.Is(err, fault.Draining) {
			t.Errorf("a step after it: %v", err)
		}
		d.Close()
		if err := models.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
}
