package poison

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/host"
)

func TestMain(m *testing.M) {
	reexec.Main(nil)
	goleak.VerifyTestMain(m)
}

// crew is one worker at a time, a real process.
type crew struct {
	t        *testing.T
	launcher *host.Launcher
	mode     reexec.Mode
	inst     backend.Instance
	starts   int
	before   func(inst backend.Instance, try int) // a batch is sent
	tries    int
}

func newCrew(t *testing.T, mode reexec.Mode) *crew {
	t.Helper()
	dir, err := os.MkdirTemp("", "fl") //nolint:usetesting // its path must be short
	if err != nil {
		t.Fatal(err)
	}
	limits := backend.Limits{Start: time.Minute, Load: time.Minute, Stop: time.Minute}
	l, err := host.New(host.Options{SocketDir: dir, MaxMessageBytes: 1 << 20, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		_ = os.RemoveAll(dir)
	})
	return &crew{t: t, launcher: l, mode: mode, before: func(backend.Instance, int) {}}
}

func (c *crew) ready() backend.Instance {
	if c.inst != nil {
		select {
		case <-c.inst.Done():
		default:
			return c.inst
		}
	}
	inst, err := c.launcher.Launch(c.t.Context(), reexec.Spec(c.mode))
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := inst.Load(c.t.Context(), backend.LoadSpec{GPU: backend.NoGPU, BatchSize: 8}); err != nil {
		c.t.Fatal(err)
	}
	c.starts++
	c.inst = inst
	return inst
}

func (c *crew) run(batch []*request) error {
	inst := c.ready()
	c.tries++
	c.before(inst, c.tries)
	items := make([]infer.Item, len(batch))
	for i, r := range batch {
		items[i] = r.item
	}
	_, err := inst.Predict(c.t.Context(), items)
	if errors.Is(err, backend.ErrNotDelivered) {
		c.t.Error("a batch for a living worker was not delivered")
	}
	return err
}

// The rules and what a real process leaves fit together: a batch of eight with one that aborts is seven answers, one failure and three starts.
func TestRealPoison(t *testing.T) {
	t.Parallel()
	c := newCrew(t, reexec.Poison)
	s := &server{book: New(Options{}), batch: 8, real: c.run}
	var all []*request
	for i := range 8 {
		body := fmt.Sprint("body", i)
		if i == 3 {
			body = "poison"
		}
		all = append(all, newRequest(i, body, i == 3))
		s.submit(all[i])
	}
	s.run()
	for i, r := range all {
		if r.answers != 1 || (r.err != nil) != (i == 3) {
			t.Errorf("request %d: %d answers, %v", i, r.answers, r.err)
		}
	}
	crash := backend.CrashOf(all[3].err)
	if fault.HTTPStatus(all[3].err) != 500 || fault.Message(all[3].err) != "Worker died." || crash == nil || crash.Signal != "SIGABRT" {
		t.Errorf("%v, %+v", all[3].err, crash)
	}
	again := newRequest(8, "poison", true)
	s.submit(again)
	s.run()
	if !fault.Is(again.err, fault.Poisoned) || fault.HTTPStatus(again.err) != 500 || c.starts > 3 {
		t.Errorf("%v after %d starts", again.err, c.starts)
	}
	t.Log(again.err)
}

// A worker that an operator kills, or stops for ever, costs its request nothing but time.
func TestRealKill(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{"kill": syscall.SIGKILL, "term": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCrew(t, reexec.Burn)
			c.before = func(inst backend.Instance, try int) {
				if try == 1 {
					time.AfterFunc(50*time.Millisecond, func() { _ = syscall.Kill(inst.PID(), signal) })
				}
			}
			s := &server{book: New(Options{}), batch: 8, real: c.run}
			r := newRequest(1, "400ms", false)
			s.submit(r)
			s.run()
			if r.answers != 1 || r.err != nil || c.starts != 2 || r.past.Tries != 1 {
				t.Errorf("%d answers, %v, %d starts, %+v", r.answers, r.err, c.starts, r.past)
			}
			if len(s.book.List(ref)) != 0 {
				t.Error("it is remembered")
			}
		})
	}
}
