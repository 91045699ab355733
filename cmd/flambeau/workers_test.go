package main

import (
	"log/slog"
	"slices"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/crashes"
	"github.com/flambeau-serve/flambeau/plugins/threads"
)

// TestThreadsOfWorkers by mode, kind of worker, and what the environment says already.
func TestThreadsOfWorkers(t *testing.T) {
	four := threads.CPUs{Seen: 8, Quota: 4}
	for _, tt := range []struct {
		name string
		mode threads.Mode
		r    rollout.ProcessRequest
		env  []string
		want []string
	}{
		{"python", threads.Share, rollout.ProcessRequest{Runtime: "python", Workers: 2}, []string{"A=1"}, []string{"A=1", "OMP_NUM_THREADS=2"}},
		{"quota", threads.Quota, rollout.ProcessRequest{Runtime: "python3", Workers: 2}, nil, []string{"OMP_NUM_THREADS=4"}},
		{"off", threads.Off, rollout.ProcessRequest{Runtime: "python", Workers: 2}, []string{"A=1"}, []string{"A=1"}},
		{"set already", threads.Share, rollout.ProcessRequest{Runtime: "python", Workers: 2}, []string{"OMP_NUM_THREADS=7"}, []string{"OMP_NUM_THREADS=7"}},
		{"plugin", threads.Share, rollout.ProcessRequest{Runtime: archive.RuntimePlugin, Workers: 4}, nil, []string{"GOMAXPROCS=2", "OMP_NUM_THREADS=1"}},
		{"several ranks", threads.Share, rollout.ProcessRequest{Runtime: "python", Workers: 2, Parallel: &rollout.Parallel{}}, nil, nil},
		{"ensemble", threads.Share, rollout.ProcessRequest{Runtime: pipeline.Runtime, Workers: 2, Ensemble: &pipeline.Definition{}}, nil, nil},
	} {
		got := sharing{tt.mode, four}.share(&tt.r, backend.ProcessSpec{Env: tt.env})
		if !slices.Equal(got.Env, tt.want) {
			t.Errorf("%s: %v, not %v", tt.name, got.Env, tt.want)
		}
	}
}

func TestSettingsOfWorkers(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	auto := &config.Config{WorkerThreads: settingAuto}
	if ours, theirs := newSharing(auto, false, log).mode, newSharing(auto, true, log).mode; ours != threads.Share || theirs != threads.Off {
		t.Errorf("flambeau serve has %s, the torchserve command %s", ours, theirs)
	}
	if got := newSharing(&config.Config{WorkerThreads: "quota"}, true, log).mode; got != threads.Quota {
		t.Errorf("quota is %s", got)
	}
	if h := heartbeat(&config.Config{}); h.Interval >= 0 {
		t.Errorf("off: %+v", h)
	}
	if h := heartbeat(&config.Config{HeartbeatTimeout: 9 * time.Second}); h.Interval != 0 || h.Patience != 9*time.Second {
		t.Errorf("%+v", h)
	}
	if autoscaleOf(&config.Config{}) != nil {
		t.Error("it is on when it is off")
	}
	if a := autoscaleOf(&config.Config{Autoscale: true, AutoscaleWait: time.Second, AutoscaleCalm: time.Minute}); a == nil || a.Wait != time.Second || a.Calm != time.Minute {
		t.Errorf("%+v", a)
	}
	if n := usableCPUs(); n < 1 {
		t.Errorf("%d processors", n)
	}
}

// told counts the changes that it is told of.
type told struct {
	observer

	events int
}

func (o *told) InstanceChanged(rollout.Event) { o.events++ }

// TestCrashesAreKept of instances that have failed by one, and of nothing else.
func TestCrashesAreKept(t *testing.T) {
	c := &core{crashes: &crashes.Book{}}
	watch := &told{}
	tell := c.instanceChanged(watch)
	ref := infer.ModelRef{Name: "m", Version: "1.0"}
	crash := &backend.CrashError{Crash: &backend.Crash{Reason: backend.CrashWedged, How: "killed by the server"}}
	for _, to := range []rollout.State{rollout.Loading, rollout.Failed, rollout.Stopped} {
		tell(rollout.Event{Ref: ref, WorkerID: 9001, To: to, Cause: crash, Generation: 3, Restarts: 2})
	}
	tell(rollout.Event{Ref: ref, To: rollout.Failed})
	got := crashBook{c.crashes}.Crashes(ref)
	if watch.events != 4 || len(got) != 1 || got[0].Worker != 9001 || got[0].Generation != 3 || got[0].Restarts != 2 || got[0].Reason != backend.CrashWedged {
		t.Errorf("%d events, %+v", watch.events, got)
	}
}

func TestCrashIsShown(t *testing.T) {
	out := &strings.Builder{}
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	p := &program{stdout: out, now: func() time.Time { return at.Add(3 * time.Minute) }}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	p.printCrash(w, &crashes.Record{Model: "m", Version: "1.0", Worker: 9001, Generation: 3, Restarts: 2, LeftOut: 4, Crash: backend.Crash{
		PID: 77, At: at, Ran: 1.5, Served: 12, Reason: backend.CrashOutOfMemory, How: "killed by signal 9 (killed)", Loading: true,
		Memory:   backend.CrashMemory{Peak: 300 << 20, Limit: 256 << 20, LimitOf: "its control group", Evidence: "the kernel says so"},
		Requests: []backend.CrashRequest{{ID: "r\x1b[31m", Batch: 5, Ran: .25, Parts: []backend.CrashPart{{Name: "body", ContentType: "image/png", Bytes: 9}}}},
		Lines:    []backend.CrashLine{{Stream: "stderr", Text: "MemoryError\x1b[0m"}},
	}})
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	got := out.String()
	for _, want := range []string{
		"out_of_memory: killed by signal 9 (killed)", "m 1.0, generation 3", "9001 (pid 77), started again 2 times before", "3m ago), after 1.5s and 12 batches, while it loaded the model",
		"300 MiB at most; a limit of 256 MiB (its control group); the kernel says so", "batch 5, for 250ms: body (image/png, 9 bytes)", "and 4 requests more", "MemoryError",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, "\x1b") {
		t.Errorf("what a worker wrote controls the terminal:\n%q", got)
	}
}
