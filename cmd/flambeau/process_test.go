package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/pidfile"
)

// built gives the real binary. It is made once, and removed by TestMain.
type built struct {
	once sync.Once
	dir  string
	err  error
}

func (b *built) path(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("builds and runs the real binary")
	}
	b.once.Do(func() {
		if b.dir, b.err = os.MkdirTemp("", "flambeau-bin-"); b.err != nil { //nolint:usetesting // outlives the test that comes first
			return
		}
		cmd := exec.Command("go", "build", "-o", filepath.Join(b.dir, "flambeau"), ".") //nolint:noctx,gosec // outlives the test that comes first
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			b.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if b.err != nil {
		t.Fatal(b.err)
	}
	return filepath.Join(b.dir, "flambeau")
}

var binary built //nolint:gochecknoglobals // TestMain and the tests share it

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.Cleanup(func(status int) {
		if binary.dir != "" {
			_ = os.RemoveAll(binary.dir) // in the temp folder: left behind at worst
		}
		os.Exit(status)
	}))
}

// box is where one test's servers live.
type box struct {
	exe        string
	dir        string // working folder, with config.properties
	tmp        string
	env        []string
	inference  string
	management string
}

// freePort gives a port that nobody uses at the moment.
func freePort(t *testing.T) int {
	t.Helper()
	var lc net.ListenConfig
	l, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port //nolint:errcheck,forcetypeassert // it is TCP
}

func newBox(t *testing.T, settings string) *box {
	t.Helper()
	root, err := os.MkdirTemp("", "fl-") //nolint:usetesting // a socket's path has to be short
	if err != nil {
		t.Fatal(err)
	}
	home, err := filepath.Abs("../../python_compat/src")
	if err != nil {
		t.Fatal(err)
	}
	b := &box{exe: binary.path(t), dir: filepath.Join(root, "work"), tmp: filepath.Join(root, "tmp")}
	for _, dir := range []string{b.dir, b.tmp, filepath.Join(b.dir, "store")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	b.inference, b.management = fmt.Sprintf("127.0.0.1:%d", freePort(t)), fmt.Sprintf("127.0.0.1:%d", freePort(t))
	text := fmt.Sprintf("inference_address=http://%s\nmanagement_address=http://%s\nmetrics_address=http://127.0.0.1:%d\nmodel_store=store\n%s\n",
		b.inference, b.management, freePort(t), settings)
	if err := os.WriteFile(filepath.Join(b.dir, "config.properties"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// No model is loaded, so no worker is started: the library only has to be a file.
	b.env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + root, "TMPDIR=" + b.tmp, "FLAMBEAU_HOME=" + home, "FLAMBEAU_LIBRARY=" + filepath.Join(b.dir, "config.properties"),
	}
	t.Cleanup(func() {
		if pid := b.pid(); pid > 0 {
			t.Errorf("the server of process %d is left", pid)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		if err := os.RemoveAll(root); err != nil {
			t.Error(err)
		}
	})
	return b
}

// pid is the process identifier of the box's server, 0 if there is none.
func (b *box) pid() int {
	text, err := os.ReadFile(filepath.Join(b.tmp, pidfile.Name))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		return 0
	}
	return pid
}

const runLimit = 60 * time.Second

// run runs a command line to its end. Its output goes to a file: a server in the background would keep a pipe open.
func (b *box) run(t *testing.T, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.exe, args...) //nolint:gosec // the binary under test
	cmd.Dir, cmd.Env = b.dir, b.env
	out, err := os.CreateTemp(b.dir, "out")
	if err != nil {
		t.Fatal(err)
	}
	errs, err := os.CreateTemp(b.dir, "err")
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = out, errs
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", args, err)
	}
	return outcome{cmd.ProcessState.ExitCode(), slurp(t, out), slurp(t, errs)}
}

func slurp(t *testing.T, f *os.File) string {
	t.Helper()
	text, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (b *box) ping(t *testing.T) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.inference+"/ping", nil)
	if err != nil {
		t.Fatal(err)
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := c.Do(req)
	if err != nil {
		return 0
	}
	defer func() { _ = resp.Body.Close() }()
	_, _ = io.Copy(io.Discard, resp.Body) // the status is what counts
	return resp.StatusCode
}

// requireClean fails when something is left in the temp folder.
func (b *box) requireClean(t *testing.T) {
	t.Helper()
	entries, err := os.ReadDir(b.tmp)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("left in the temp folder: %s", e.Name())
	}
}

// eventually waits for something that takes its time.
func eventually(t *testing.T, what string, ask func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(runLimit)
	for !ask() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s did not happen within %s", what, runLimit)
		}
	}
}

func (o outcome) require(t *testing.T, what string, status int, stdout, stderr string) {
	t.Helper()
	if o.status != status || !strings.Contains(o.stdout, stdout) || !strings.Contains(o.stderr, stderr) {
		t.Fatalf("%s: status %d, stdout %q, stderr %q; want status %d, stdout %q, stderr %q", what, o.status, o.stdout, o.stderr, status, stdout, stderr)
	}
}

// TestBackground is the life of a server as scripts know it.
func TestBackground(t *testing.T) {
	t.Parallel()
	b := newBox(t, "")
	b.run(t, "torchserve", "--start", "--ncs").require(t, "start", exitOK, "Model server started.\n", "")
	pid := b.pid()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	if session := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))[3]; session != strconv.Itoa(pid) {
		t.Errorf("the server %d is in the session %s, and would end with it", pid, session)
	}
	if _, err := os.Stat(filepath.Join(b.dir, "key_file.json")); err != nil {
		t.Errorf("the key file: %v", err)
	}
	b.run(t, "ps").require(t, "ps with the key file", exitOK, "no models\n", "")
	b.run(t, "torchserve", "--start").require(t, "a second start", exitFailed,
		"TorchServe is already running, please use torchserve --stop to stop TorchServe.\n", "")
	if b.pid() != pid {
		t.Error("the second start changed the file")
	}
	b.run(t, "torchserve", "--stop").require(t, "stop", exitOK, "TorchServe has stopped.\n", "")
	if syscall.Kill(pid, 0) == nil && !hasEnded(pid) {
		t.Error("stop returned before the server had ended")
	}
	if _, err := os.Stat(filepath.Join(b.dir, "key_file.json")); !os.IsNotExist(err) {
		t.Errorf("the key file after the stop: %v", err)
	}
	b.requireClean(t)
	b.run(t, "torchserve", "--stop").require(t, "a second stop", exitOK, "TorchServe is not currently running.\n", "")
	b.run(t, "ps").require(t, "ps without a server", exitUnreachable, "", "no server answers at http://"+b.management)
	b.run(t, "torchserve", "--disable-token-auth").require(t, "start without a verb", exitOK, "Model server started.\n", "")
	if status := b.ping(t); status != http.StatusOK {
		t.Errorf("ping: %d", status)
	}
	b.run(t, "torchserve", "--stop", "--foreground").require(t, "a stop in the foreground", exitOK, "", "")
	b.requireClean(t)
	for _, file := range []string{"ts_log.log"} {
		if info, err := os.Stat(filepath.Join(b.dir, "logs", file)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
}

// TestStartThatFails: the exit status tells, in the background too.
func TestStartThatFails(t *testing.T) {
	t.Parallel()
	b := newBox(t, "")
	var lc net.ListenConfig
	taken, err := lc.Listen(t.Context(), "tcp", b.management)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	for _, args := range [][]string{{"torchserve", "--start"}, {"torchserve", "--start", "--foreground"}, {"serve"}} {
		got := b.run(t, args...)
		got.require(t, strings.Join(args, " "), exitFailed, "", b.management)
		if !strings.Contains(got.stderr, "; stop what uses it, or change management_address in ") || !strings.Contains(got.stderr, "config.properties, line ") || strings.Contains(got.stdout, "Model server started.") {
			t.Errorf("%v: %+v", args, got)
		}
		if pid := b.pid(); pid != 0 {
			t.Errorf("%v left the file of process %d", args, pid)
		}
		b.requireClean(t)
	}
	if err := os.Link(filepath.Join(b.dir, "config.properties"), filepath.Join(b.dir, "mine.properties")); err != nil {
		t.Fatal(err)
	}
	b.run(t, "serve", "--ts-config", "mine.properties").require(t, "serve", exitFailed, "", "or change management_address in mine.properties, line ")
}

// TestForeground: each of the signals stops it, with the exit status 0, and a terminal that is gone does not.
func TestForeground(t *testing.T) {
	t.Parallel()
	b := newBox(t, "disable_token_authorization=true")
	for _, tt := range []struct {
		args   []string
		signal os.Signal
	}{
		{[]string{"torchserve", "--foreground"}, syscall.SIGTERM},
		{[]string{"torchserve", "--foreground"}, syscall.SIGINT},
		{[]string{"serve"}, syscall.SIGTERM},
		{[]string{"serve", "--verbose"}, syscall.SIGHUP},
	} {
		if signal.Ignored(tt.signal) { // the tests run under nohup, or in the background, and so would the server
			continue
		}
		cmd := exec.CommandContext(t.Context(), b.exe, tt.args...) //nolint:gosec // the binary under test
		cmd.Dir, cmd.Env = b.dir, b.env
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil { // whoever read its output has gone
			t.Fatal(err)
		}
		eventually(t, "a ping", func() bool { return b.ping(t) == http.StatusOK })
		if err := cmd.Process.Signal(tt.signal); err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v after %v: %v", tt.args, tt.signal, err)
		}
		want := fmt.Sprintf(`stopping reason="%v signal received" parent="%d (`, tt.signal, os.Getpid())
		if text, err := os.ReadFile(filepath.Join(b.dir, "logs", "ts_log.log")); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%v after %v: the log does not say %s: %v\n%s", tt.args, tt.signal, want, err, text)
		}
		b.requireClean(t)
	}
}

// TestKilledServer: what a killed server leaves is removed by the next one.
func TestKilledServer(t *testing.T) {
	t.Parallel()
	b := newBox(t, "")
	b.run(t, "torchserve", "--start").require(t, "start", exitOK, "", "")
	pid := b.pid()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the end of the server", func() bool { return hasEnded(pid) })
	b.run(t, "torchserve", "--start").require(t, "the next start", exitOK, "Removing orphan pid file.\n", "")
	b.run(t, "torchserve", "--stop").require(t, "stop", exitOK, "TorchServe has stopped.\n", "")
	b.requireClean(t)
}
