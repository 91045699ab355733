package host_test

import (
	"context"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/host"
)

func TestMain(m *testing.M) {
	reexec.Main(map[reexec.Mode]func(){modeHost: runHost})
	goleak.VerifyTestMain(m)
}

// Generous: the machine may be busy. Tests of limits set their own.
const (
	longLimit  = time.Minute
	shortLimit = 300 * time.Millisecond
	maxMessage = 64 << 20
)

// socketDir is a short folder; t.TempDir is too long for sockets.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fl") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// newLauncher makes a launcher that is closed at the test's end, and nothing may be left then.
func newLauncher(t *testing.T, change ...func(*host.Options)) *host.Launcher {
	t.Helper()
	opts := host.Options{
		SocketDir: socketDir(t), MaxMessageBytes: maxMessage,
		Limits: backend.Limits{Start: longLimit, Load: longLimit, Stop: longLimit},
	}
	for _, f := range change {
		f(&opts)
	}
	l, err := host.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
		if left, err := os.ReadDir(opts.SocketDir); err != nil || len(left) > 0 {
			t.Errorf("left in the folder for sockets: %v, %v", left, err)
		}
	})
	return l
}

// lines collects a process's output.
type lines struct {
	mu  sync.Mutex // guards all
	all []backend.OutputLine
	new chan struct{} // room for one
}

func newLines() *lines { return &lines{new: make(chan struct{}, 1)} }

func (l *lines) add(line backend.OutputLine) {
	l.mu.Lock()
	l.all = append(l.all, line)
	l.mu.Unlock()
	select {
	case l.new <- struct{}{}:
	default:
	}
}

// wait waits for a line that begins with prefix.
func (l *lines) wait(t *testing.T, prefix string) backend.OutputLine {
	t.Helper()
	timeout := time.After(longLimit)
	for {
		l.mu.Lock()
		for _, line := range l.all {
			if strings.HasPrefix(line.Text, prefix) {
				l.mu.Unlock()
				return line
			}
		}
		all := l.all
		l.mu.Unlock()
		select {
		case <-l.new:
		case <-timeout:
			t.Fatalf("no line %q in %v", prefix, all)
		}
	}
}

func launch(t *testing.T, l *host.Launcher, spec backend.ProcessSpec) backend.Instance {
	t.Helper()
	inst, err := l.Launch(t.Context(), spec)
	if err != nil {
		t.Fatalf("%v\n%s", err, detail(err))
	}
	return inst
}

func load(t *testing.T, inst backend.Instance, m backend.LoadSpec) {
	t.Helper()
	if _, err := inst.Load(t.Context(), m); err != nil {
		t.Fatalf("%v\n%s", err, detail(err))
	}
}

// ready launches and loads.
func ready(t *testing.T, l *host.Launcher, spec backend.ProcessSpec) backend.Instance {
	t.Helper()
	inst := launch(t, l, spec)
	load(t, inst, backend.LoadSpec{Model: infer.ModelRef{Name: "m", Version: "1.0"}, GPU: backend.NoGPU, BatchSize: 4})
	return inst
}

func item(body string) infer.Item {
	return infer.Item{ID: "id-" + body[:min(len(body), 8)], Parts: []infer.Part{{Name: "body", Data: []byte(body)}}}
}

// alive tells whether a process exists and is no zombie.
func alive(pid int) bool {
	s := state(pid)
	return s != "" && s != "Z" && s != "X"
}

// state is the letter that the kernel has for it, "" for a process that does not exist.
func state(pid int) string {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	_, rest, ok := strings.Cut(string(stat), ") ")
	if err != nil || !ok {
		return ""
	}
	return rest[:1]
}

// eventually waits for a condition that other processes bring about.
func eventually(t *testing.T, limit time.Duration, what string, ok func() bool) {
	t.Helper()
	timeout, tick := time.After(limit), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not within %v: %s", limit, what)
		}
	}
}
