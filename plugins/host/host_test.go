package host_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/reexec"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/host"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

func detail(err error) string {
	if f, ok := errors.AsType[*fault.Error](err); ok {
		return f.Detail + "\n" + f.Hint
	}
	return ""
}

// wantFault checks the kind, and that the texts are in the message, the cause or the detail.
func wantFault(t *testing.T, err error, kind fault.Kind, texts ...string) {
	t.Helper()
	if err == nil || fault.KindOf(err) != kind {
		t.Fatalf("%v (%v), want %v", err, fault.KindOf(err), kind)
	}
	all := err.Error() + "\n" + detail(err)
	for _, text := range texts {
		if !strings.Contains(all, text) {
			t.Errorf("%q is not in:\n%s", text, all)
		}
	}
}

func TestEcho(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	inst := ready(t, l, reexec.Spec(reexec.Echo))
	items := []infer.Item{item("one"), {ID: "two", Header: []infer.Field{{Name: "X-A", Value: "1"}, {Name: "X-A", Value: "2"}}}}
	got, err := inst.Predict(t.Context(), items)
	if err != nil {
		t.Fatal(err)
	}
	want := []infer.Result{{Header: []infer.Field{}, Body: []byte("one")}, {Header: items[1].Header, Body: []byte{}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got, err := inst.Predict(t.Context(), nil); err != nil || len(got) != 0 {
		t.Errorf("no items: %v, %v", got, err)
	}
	if err := inst.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	if inst.Err() != nil || alive(inst.PID()) {
		t.Errorf("after stop: %v, alive %t", inst.Err(), alive(inst.PID()))
	}
	_, err = inst.Predict(t.Context(), items)
	wantFault(t, err, fault.Draining)
}

func TestConcurrentBatchesGetTheirOwnAnswers(t *testing.T) {
	t.Parallel()
	inst := ready(t, newLauncher(t), reexec.Spec(reexec.Echo))
	var wg sync.WaitGroup
	for n := range 200 {
		wg.Go(func() {
			body := strings.Repeat(strconv.Itoa(n)+" ", 1+n*50)
			got, err := inst.Predict(t.Context(), []infer.Item{item(body), item(body + "x")})
			if err != nil || string(got[0].Body) != body || string(got[1].Body) != body+"x" {
				t.Errorf("batch %d: %v", n, err)
			}
		})
	}
	wg.Wait()
}

func TestLargePayloads(t *testing.T) {
	t.Parallel()
	inst := ready(t, newLauncher(t), reexec.Spec(reexec.Echo))
	body := bytes.Repeat([]byte("0123456789abcdef"), 20<<16)
	got, err := inst.Predict(t.Context(), []infer.Item{{ID: "1", Parts: []infer.Part{{Data: body}}}})
	if err != nil || !bytes.Equal(got[0].Body, body) {
		t.Errorf("%v", err)
	}
}

func TestAnswersOverTheLimitCostOneItem(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, func(o *host.Options) { o.MaxMessageBytes = 1 << 20 })
	inst := launch(t, l, reexec.Spec(reexec.Big))
	load(t, inst, backend.LoadSpec{GPU: backend.NoGPU, MaxResponseBytes: 1000})
	for name, size := range map[string]string{"answer": "1001", "message": strconv.Itoa(2 << 20)} {
		got, err := inst.Predict(t.Context(), []infer.Item{item("1000"), item(size), item("not a number")})
		if err == nil && got[2].Err != nil { // the handler answers all with 400
			wantFault(t, got[0].Err, fault.HandlerFailed, "invalid syntax")
			if s := fault.HTTPStatus(got[0].Err); s != 400 {
				t.Errorf("status %d", s)
			}
		}
		got, err = inst.Predict(t.Context(), []infer.Item{item("1000"), item(size)})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if len(got[0].Body) != 1000 || got[0].Err != nil {
			t.Errorf("%s: the neighbour has %d bytes, %v", name, len(got[0].Body), got[0].Err)
		}
		wantFault(t, got[1].Err, fault.ResponseTooLarge, size, "1000")
	}
	_, err := inst.Predict(t.Context(), []infer.Item{item(strings.Repeat("1", 2<<20))})
	wantFault(t, err, fault.TooLarge, "1048576")
	if got, err := inst.Predict(t.Context(), []infer.Item{item("5")}); err != nil || len(got[0].Body) != 5 {
		t.Errorf("after all that: %v", err)
	}
}

func TestHandlerFailures(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	for mode, text := range map[reexec.Mode]string{
		reexec.Panic: "the handler's own panic",
		reexec.Short: "the handler gave 1 results for 2 items",
	} {
		inst := ready(t, l, reexec.Spec(mode))
		got, err := inst.Predict(t.Context(), []infer.Item{item("a"), item("b")})
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range got {
			wantFault(t, r.Err, fault.HandlerFailed, text)
			if s := fault.HTTPStatus(r.Err); s != 503 {
				t.Errorf("%s: status %d", mode, s)
			}
		}
	}
}

func TestLoadFailures(t *testing.T) {
	t.Parallel()
	l := newLauncher(t, func(o *host.Options) { o.Limits.Load = shortLimit })
	inst := launch(t, l, reexec.Spec(reexec.LoadFails))
	_, err := inst.Load(t.Context(), backend.LoadSpec{Dir: "/models/x"})
	wantFault(t, err, fault.LoadFailed, "no weights in /models/x")
	_, err = inst.Load(t.Context(), backend.LoadSpec{})
	wantFault(t, err, fault.Internal, "once")
	_, err = inst.Predict(t.Context(), []infer.Item{item("a")})
	wantFault(t, err, fault.Internal, "no model")

	slow := launch(t, l, reexec.Spec(reexec.SlowLoad))
	_, err = slow.Load(t.Context(), backend.LoadSpec{})
	wantFault(t, err, fault.LoadFailed, "300ms", "load limit")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := slow.Stop(ctx); err == nil || alive(slow.PID()) || slow.Err() != nil {
		t.Errorf("a stop without time: %v, alive %t, err %v", err, alive(slow.PID()), slow.Err())
	}
}

func TestDeathInLoad(t *testing.T) {
	t.Parallel()
	inst := launch(t, newLauncher(t), reexec.Spec(reexec.ExitInLoad))
	_, err := inst.Load(t.Context(), backend.LoadSpec{})
	wantFault(t, err, fault.BackendDied, "exit status 4")
}

func TestAnswersThatAreNone(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	inst := ready(t, l, reexec.Spec(reexec.Miscount))
	for range 2 { // it costs the batch, not the worker
		_, err := inst.Predict(t.Context(), []infer.Item{item("a")})
		wantFault(t, err, fault.Internal, "0 results for 1 requests")
	}
	inst = ready(t, l, reexec.Spec(reexec.Malformed))
	_, err := inst.Predict(t.Context(), []infer.Item{item("a")})
	wantFault(t, err, fault.BackendDied, "killed by the server", "malformed frame")
	<-inst.Done()
	wantFault(t, inst.Err(), fault.BackendDied, "malformed frame")
}

// Backends of earlier and of later versions of the protocol serve, as far as both sides know the same (docs/protocol.md).
func TestOtherVersions(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	for mode, want := range map[reexec.Mode]backend.Info{
		reexec.Older: {Features: map[string]bool{}},
		reexec.Later: {Features: map[string]bool{"telepathy": true}, Description: &backend.Description{
			Platform: "p", Inputs: []backend.Port{{Name: "x", DataType: "COMPLEX128", Shape: []int64{-1}}},
		}},
	} {
		inst, err := l.Launch(t.Context(), reexec.Spec(mode))
		if err != nil {
			t.Fatal(mode, err)
		}
		info, err := inst.Load(t.Context(), backend.LoadSpec{Model: infer.ModelRef{Name: "m"}, GPU: backend.NoGPU})
		if err != nil {
			t.Fatal(mode, err)
		}
		if diff := cmp.Diff(want, info); diff != "" {
			t.Errorf("%s: %s", mode, diff)
		}
		for range 2 {
			results, err := inst.Predict(t.Context(), []infer.Item{item("a"), item("b")})
			if err != nil || len(results) != 2 || string(results[1].Body) != "2" {
				t.Errorf("%s: %+v, %v", mode, results, err)
			}
		}
		if err := inst.Stop(t.Context()); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
	}
	_, err := l.Launch(t.Context(), reexec.Spec(reexec.OtherOne))
	wantFault(t, err, fault.StartFailed, "speaks version 2 of the protocol", "this server speaks version 1")
}

// A process gets the descriptors and the environment of docs/protocol.md, and nothing else.
func TestProcessSeesNothingElse(t *testing.T) {
	t.Setenv("FLAMBEAU_TEST_SECRET", "hidden")
	out := newLines()
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	l := newLauncher(t)
	go func() {
		_, err := l.Launch(ctx, backend.ProcessSpec{
			Path: "/bin/sh", Args: []string{"-c", "env >&2; echo pid $$ >&2; exec sleep 1000"}, Dir: "/usr",
			Env: []string{"MINE=1", "FLAMBEAU_PLUGIN=mine"}, Output: out.add,
		})
		result <- err
	}()
	proc := "/proc/" + strings.TrimPrefix(out.wait(t, "pid ").Text, "pid ")
	for file, want := range map[string]string{"/fd/0": os.DevNull, "/cwd": "/usr"} {
		if got, err := os.Readlink(proc + file); err != nil || got != want {
			t.Errorf("%s is %s, %v", file, got, err)
		}
	}
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		checkDescriptor(t, proc, fd.Name())
	}
	cancel()
	wantFault(t, <-result, fault.StartFailed)
	for _, want := range []string{"MINE=1", backendv1.CookieKey + "=" + backendv1.CookieValue, "FLAMBEAU_MAX_MESSAGE_BYTES=67108864", "PLUGIN_UNIX_SOCKET_DIR=/"} {
		out.wait(t, want)
	}
	for _, line := range out.all {
		if strings.Contains(line.Text, "SECRET") {
			t.Error("it sees the server's environment")
		}
	}
}

// checkDescriptor accepts 0 to 4, if they block, and what this process was started with and no exec closes. What the shell
// keeps for itself is closed by its exec.
func checkDescriptor(t *testing.T, proc, fd string) {
	t.Helper()
	n, err := strconv.Atoi(fd)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile(proc + "/fdinfo/" + fd)
	if errors.Is(err, os.ErrNotExist) {
		return // closed by the exec a moment ago
	}
	_, text, _ := strings.Cut(string(info), "flags:\t")
	text, _, _ = strings.Cut(text, "\n")
	flags, parseErr := strconv.ParseInt(text, 8, 64)
	if err != nil || parseErr != nil {
		t.Fatalf("descriptor %d: %v, %v", n, err, parseErr)
	}
	own, err := unix.FcntlInt(uintptr(n), unix.F_GETFD, 0)
	switch {
	case n <= backendv1.FramesFD:
		if flags&syscall.O_NONBLOCK != 0 {
			t.Errorf("descriptor %d does not block", n)
		}
	case flags&syscall.O_CLOEXEC == 0 && (err != nil || own&unix.FD_CLOEXEC != 0):
		t.Errorf("it has descriptor %d: %s", n, info)
	}
}

func TestStartFailures(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec  backend.ProcessSpec
		texts []string
	}{
		"no such program": {backend.ProcessSpec{Path: "/nonexistent/python"}, []string{"/nonexistent/python", "no such file"}},
		"no such command": {backend.ProcessSpec{Path: "nonexistent-python"}, []string{"nonexistent-python", "not found"}},
		"no such folder":  {backend.ProcessSpec{Path: "/bin/true", Dir: "/nonexistent"}, []string{"/bin/true", "no such file"}},
		"not a plugin":    {backend.ProcessSpec{Path: "/bin/true"}, []string{"ended before its handshake", "exit status 0"}},
		"by shell":        {backend.ProcessSpec{Path: "/bin/sh", Args: []string{"-c", "kill -9 $$"}}, []string{"killed by signal 9"}},
		"exits":           {reexec.Spec(reexec.ExitAtStart), []string{"exit status 3", "no such module: torch"}},
		"no handshake":    {reexec.Spec(reexec.NoHandshake), []string{"not ready in time", "300ms", "killed by the server"}},
		"slow":            {reexec.Spec(reexec.SlowStart, "1h"), []string{"not ready in time", "300ms"}},
		"dead socket":     {reexec.Spec(reexec.DeadSocket), []string{"did its handshake, but cannot be used"}},
		"noise":           {reexec.Spec(reexec.StdoutNoise), []string{`"hello from a print"`, "before its handshake"}},
		"other version": {
			backend.ProcessSpec{Path: "/bin/sh", Args: []string{"-c", "echo '1|99|unix|/x|grpc'; sleep 1000"}},
			[]string{"speaks version 99", "Build it again", "99"},
		},
		"a child holds the outputs": {
			backend.ProcessSpec{Path: "/bin/sh", Args: []string{"-c", "sleep 1000 & echo gone >&2; exit 7"}},
			[]string{"exit status 7", "gone"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLauncher(t, func(o *host.Options) {
				if strings.Contains(strings.Join(tc.texts, " "), "300ms") {
					o.Limits.Start = shortLimit
				}
			})
			_, err := l.Launch(t.Context(), tc.spec)
			wantFault(t, err, fault.StartFailed, tc.texts...)
		})
	}
}

func TestSlowStartWithinTheLimit(t *testing.T) {
	t.Parallel()
	// The load limit is no part of it.
	l := newLauncher(t, func(o *host.Options) { o.Limits.Load = 10 * time.Second })
	ready(t, l, reexec.Spec(reexec.SlowStart, "200ms"))
}

func TestLaunchIsGivenUp(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	out := newLines()
	spec := backend.ProcessSpec{Path: "/bin/sh", Args: []string{"-c", "echo started >&2; sleep 1000"}, Output: out.add}
	result := make(chan error, 1)
	go func() {
		_, err := l.Launch(ctx, spec)
		result <- err
	}()
	out.wait(t, "started")
	cancel(errors.New("no longer wanted"))
	wantFault(t, <-result, fault.StartFailed, "given up", "no longer wanted")
}

func TestContextEndsPredict(t *testing.T) {
	t.Parallel()
	inst := ready(t, newLauncher(t, func(o *host.Options) { o.Limits.Stop = shortLimit }), reexec.Spec(reexec.Wedge))
	for name, tc := range map[string]struct {
		cause error
		kind  fault.Kind
	}{
		"cancelled":   {nil, fault.Cancelled},
		"own words":   {fault.New(fault.ClientTimeout, "too late", nil), fault.ClientTimeout},
		"other words": {errors.New("went away"), fault.Cancelled},
	} {
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(50*time.Millisecond, func() { cancel(tc.cause) })
		_, err := inst.Predict(ctx, []infer.Item{item("a")})
		if fault.KindOf(err) != tc.kind {
			t.Errorf("%s: %v", name, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := inst.Predict(ctx, []infer.Item{item("a")})
	wantFault(t, err, fault.ResponseTimeout)
	// One that waits when the worker is stopped.
	result := make(chan error, 1)
	go func() {
		_, err := inst.Predict(context.WithoutCancel(t.Context()), []infer.Item{item("a")})
		result <- err
	}()
	if err := inst.Stop(t.Context()); err == nil || !strings.Contains(err.Error(), "300ms") {
		t.Errorf("stop: %v", err)
	}
	wantFault(t, <-result, fault.Draining, "Worker stopped.")
	if inst.Err() != nil {
		t.Error(inst.Err())
	}
}

func TestCancelledBatchesAreNotRun(t *testing.T) {
	t.Parallel()
	inst := ready(t, newLauncher(t), reexec.Spec(reexec.Echo))
	for range 100 {
		ctx, cancel := context.WithCancel(t.Context())
		go cancel()
		_, err := inst.Predict(ctx, []infer.Item{item(strings.Repeat("x", 100_000))})
		if err != nil && !fault.Is(err, fault.Cancelled) {
			t.Fatal(err)
		}
	}
	if got, err := inst.Predict(t.Context(), []infer.Item{item("a")}); err != nil || string(got[0].Body) != "a" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestGroupEndsWithItsLeader(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, inst backend.Instance){
		"stop": func(t *testing.T, inst backend.Instance) {
			t.Helper()
			if err := inst.Stop(t.Context()); err != nil {
				t.Error(err)
			}
		},
		"death": func(t *testing.T, inst backend.Instance) {
			t.Helper()
			_ = syscall.Kill(inst.PID(), syscall.SIGKILL)
			<-inst.Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out := newLines()
			spec := reexec.Spec(reexec.Fork)
			spec.Output = out.add
			inst := ready(t, newLauncher(t), spec)
			child, err := strconv.Atoi(strings.TrimPrefix(out.wait(t, "child ").Text, "child "))
			if err != nil || !alive(child) {
				t.Fatalf("child %d: %v", child, err)
			}
			end(t, inst)
			eventually(t, 2*time.Second, "the child is gone", func() bool { return !alive(child) })
		})
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	out := newLines()
	spec := reexec.Spec(reexec.Chatty)
	spec.Output = out.add
	inst := ready(t, newLauncher(t), spec)
	if _, err := inst.Predict(t.Context(), []infer.Item{item("a")}); err != nil {
		t.Fatal(err)
	}
	want := backend.OutputLine{Stream: backend.Stdout, Level: "INFO", RequestIDs: []string{"id-a"}, Text: "to stdout"}
	if diff := cmp.Diff(want, out.wait(t, "to stdout")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	want = backend.OutputLine{Stream: backend.Stderr, Text: "to stderr"}
	if diff := cmp.Diff(want, out.wait(t, "to stderr")); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// A child that has left the group outlives its worker and holds its outputs; nobody waits for it.
func TestEscapedChildDoesNotHoldTheEnd(t *testing.T) {
	t.Parallel()
	pidFile := filepath.Join(t.TempDir(), "pid")
	script := `echo "words before" >&2; setsid sh -c 'echo $$ >` + pidFile + `; exec sleep 1000' & while [ ! -s ` + pidFile + ` ]; do :; done; exit 1`
	l := newLauncher(t)
	_, err := l.Launch(t.Context(), backend.ProcessSpec{Path: "/bin/sh", Args: []string{"-c", script}})
	wantFault(t, err, fault.StartFailed, "exit status 1", "words before")
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil || !alive(n) {
		t.Fatalf("the child %d does not live: %v", n, err)
	}
	if err := syscall.Kill(n, syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	limits := backend.Limits{Start: 1, Load: 1, Stop: 1}
	open := socketDir(t)
	if err := os.Chmod(open, 0o755); err != nil {
		t.Fatal(err)
	}
	taken := socketDir(t)
	first, err := host.New(host.Options{SocketDir: taken, MaxMessageBytes: 1, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(socketDir(t), "l")
	if err := os.Symlink(socketDir(t), link); err != nil {
		t.Fatal(err)
	}
	for text, opts := range map[string]host.Options{
		"not a directory":    {SocketDir: link, MaxMessageBytes: 1, Limits: limits},
		"another user":       {SocketDir: foreignDir(t), MaxMessageBytes: 1, Limits: limits},
		"MaxMessageBytes":    {SocketDir: socketDir(t), Limits: limits},
		"Limits":             {SocketDir: socketDir(t), MaxMessageBytes: 1, Limits: backend.Limits{Start: 1}},
		"SocketDir":          {MaxMessageBytes: 1, Limits: limits},
		"shorter one":        {SocketDir: "/tmp/" + strings.Repeat("x", host.MaxSocketDir), MaxMessageBytes: 1, Limits: limits},
		"mode 0755":          {SocketDir: open, MaxMessageBytes: 1, Limits: limits},
		"another server use": {SocketDir: taken, MaxMessageBytes: 1, Limits: limits},
	} {
		if _, err := host.New(opts); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if err := os.Mkdir(filepath.Join(taken, "plugin-dir1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := first.Close(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
	second, err := host.New(host.Options{SocketDir: taken, MaxMessageBytes: 1, Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(taken); err != nil || len(left) != 0 {
		t.Errorf("what an earlier launcher left is there: %v, %v", left, err)
	}
	if err := second.Close(t.Context()); err != nil {
		t.Error(err)
	}
	_, err = second.Launch(t.Context(), reexec.Spec(reexec.Echo))
	wantFault(t, err, fault.StartFailed, "shuts down")
}

// foreignDir is a private folder of another user.
func foreignDir(t *testing.T) string {
	t.Helper()
	const nobody = 65534
	dir := socketDir(t)
	if os.Geteuid() != 0 {
		return "/" // root's, which is enough of another user
	}
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCloseStopsWhatRuns(t *testing.T) {
	t.Parallel()
	l := newLauncher(t)
	a, b := ready(t, l, reexec.Spec(reexec.Echo)), launch(t, l, reexec.Spec(reexec.Echo))
	if a.ID() == b.ID() || a.PID() == b.PID() {
		t.Error("two instances are one")
	}
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, i := range []backend.Instance{a, b} {
		select {
		case <-i.Done():
		default:
			t.Error("an instance is not done")
		}
		if i.Err() != nil || alive(i.PID()) {
			t.Errorf("%v, alive %t", i.Err(), alive(i.PID()))
		}
	}
}
