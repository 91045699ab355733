package backendtest_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var items = []infer.Item{{ID: "1", Parts: []infer.Part{{Data: []byte("a")}}}, {ID: "2"}}

func TestEchoAndRecords(t *testing.T) {
	t.Parallel()
	l := &backendtest.Launcher{}
	inst, err := l.Launch(t.Context(), backend.ProcessSpec{Path: "p"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := inst.Load(t.Context(), backend.LoadSpec{Dir: "d"}); err != nil {
		t.Fatal(err)
	}
	results, err := inst.Predict(t.Context(), items)
	if err != nil || len(results) != 2 || string(results[0].Body) != "a" {
		t.Fatalf("%v, %v", results, err)
	}
	fake := l.Instances()[0]
	if l.Specs()[0].Path != "p" || fake.Loads()[0].Dir != "d" || len(fake.Batches()[0]) != 2 || len(l.Live()) != 1 {
		t.Error("the calls were not recorded")
	}
	if err := inst.Stop(t.Context()); err != nil || inst.Err() != nil || len(l.Live()) != 0 || fake.Stops() != 1 {
		t.Errorf("stop: %v, err %v", err, inst.Err())
	}
	if _, err := inst.Predict(t.Context(), items); !fault.Is(err, fault.Draining) {
		t.Errorf("predict after stop: %v", err)
	}
}

func TestDieEndsWhatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inst := backendtest.NewInstance("x")
		inst.PredictFunc = func(ctx context.Context, _ []infer.Item) ([]infer.Result, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		time.AfterFunc(time.Minute, func() { inst.Die(nil) })
		begin := time.Now()
		_, err := inst.Predict(t.Context(), items)
		if !fault.Is(err, fault.BackendDied) || time.Since(begin) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		inst.Die(errors.New("again"))
		if !fault.Is(inst.Err(), fault.BackendDied) {
			t.Errorf("a second death changed the first: %v", inst.Err())
		}
	})
}

func TestStopIsBoundedByContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inst := backendtest.NewInstance("x")
		inst.StopFunc = func(ctx context.Context) error { <-ctx.Done(); return nil }
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := inst.Stop(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		<-inst.Done()
		if inst.Err() != nil {
			t.Error(inst.Err())
		}
	})
}

func TestPool(t *testing.T) {
	t.Parallel()
	p := backendtest.NewPool(backendtest.NewInstance("x"))
	if p.Free() != 1 {
		t.Errorf("%d free", p.Free())
	}
	slot, err := p.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	full := errors.New("full")
	cancel(full)
	if _, err := p.Acquire(ctx); !errors.Is(err, full) {
		t.Errorf("a second slot: %v", err)
	}
	if r, err := slot.Execute(t.Context(), items); err != nil || len(r) != 2 {
		t.Errorf("%v, %v", r, err)
	}
	if p.Held() != 1 || p.Free() != 0 {
		t.Errorf("%d held, %d free", p.Held(), p.Free())
	}
	slot.Release()
	if p.Held() != 0 || p.Acquired() != 1 {
		t.Errorf("%d held, %d acquired", p.Held(), p.Acquired())
	}
	defer func() {
		if recover() == nil {
			t.Error("a second release went unseen")
		}
	}()
	slot.Release()
}
