// Package e2e tests the installed product from the outside: the commands of the wheel, real workers, real models. Nothing in
// it imports the server's packages.
//
// The tests need a Python environment with the wheel installed; FLAMBEAU_TEST_PYTHON names its interpreter, and `make test`
// makes one. Without it they are skipped, and with FLAMBEAU_TEST_REQUIRED they fail instead. FLAMBEAU_TEST_BINARY names another
// build of the server to be started in place of the installed one, such as one with the race detector.
package e2e

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	startLimit = 60 * time.Second      // process start to a healthy /ping, on a busy machine
	stopLimit  = 60 * time.Second      // SIGTERM to the end of the process
	goneLimit  = 5 * time.Second       // the end of the process to the end of all that it started
	pollPause  = 20 * time.Millisecond // between two looks at something that takes its time
	askLimit   = 120 * time.Second     // one request
	marker     = "E2E_MARKER="         // in the environment of everything that a test starts; backends of programs lose what begins with FLAMBEAU_
)

// Env is an environment with the wheel installed.
type Env struct {
	Python string // its interpreter
	Bin    string // its folder of commands
	Home   string // its folder of packages
}

// RaceBuilt says whether the tests run against a server with the race detector in it, whose own memory says nothing about the server's.
func RaceBuilt() bool {
	info, err := buildinfo.ReadFile(os.Getenv("FLAMBEAU_TEST_BINARY"))
	return err == nil && slices.ContainsFunc(info.Settings, func(s debug.BuildSetting) bool { return s.Key == "-race" && s.Value == "true" })
}

// Lacks ends a test for which something is not there: it is skipped, or fails where FLAMBEAU_TEST_REQUIRED asks for everything.
func Lacks(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("FLAMBEAU_TEST_REQUIRED") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// Installed gives the environment to test, or skips the test.
func Installed(t *testing.T) Env {
	t.Helper()
	python := os.Getenv("FLAMBEAU_TEST_PYTHON")
	if python == "" {
		Lacks(t, "FLAMBEAU_TEST_PYTHON does not name the Python of an environment with the wheel (make test makes one)")
	}
	env := Env{Python: python, Bin: filepath.Dir(python)}
	packages, err := filepath.Glob(filepath.Join(env.Bin, "../lib/python3*/site-packages/flambeau"))
	if err != nil || len(packages) != 1 {
		t.Fatalf("the wheel is not installed in the environment of %s: found %q", python, packages)
	}
	env.Home = filepath.Dir(packages[0])
	return env
}

// Box is where one test's processes live: folders of its own, and a mark by which every one of them is found again.
type Box struct {
	Env
	Dir   string // working folder: logs, key file
	Store string // model store
	Tmp   string // TMPDIR; it must be empty at the end
	mark  string
}

// NewBox makes a box. At the end of the test nothing may be left of what was started in it: no process, no temporary file.
func NewBox(t *testing.T) *Box {
	t.Helper()
	box := &Box{Env: Installed(t)}
	// Not below t.TempDir: its path is long, and a unix socket's must be short.
	root, err := os.MkdirTemp("", "fl-e2e-") //nolint:usetesting // see above
	if err != nil {
		t.Fatal(err)
	}
	box.mark = filepath.Base(root)
	box.Dir, box.Store, box.Tmp = filepath.Join(root, "work"), filepath.Join(root, "store"), filepath.Join(root, "tmp")
	for _, dir := range []string{box.Dir, box.Store, box.Tmp} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		box.RequireNothingLeft(t)
		for _, pid := range box.Processes(t) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the test has failed already; the machine is to stay clean
		}
		if err := os.RemoveAll(root); err != nil {
			t.Errorf("cannot remove the test's folder: %v", err)
		}
	})
	return box
}

// Command prepares a command of the environment, in the box's working folder. Extra settings of the environment may follow.
func (b *Box) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	path := name
	if !filepath.IsAbs(path) {
		path = filepath.Join(b.Bin, name)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Dir = b.Dir
	cmd.Env = append(cleanEnviron(), "PATH="+b.Bin+":"+os.Getenv("PATH"), "TMPDIR="+b.Tmp, marker+b.mark,
		"TORCHINDUCTOR_CACHE_DIR="+filepath.Join(b.Dir, "torchinductor")) // torch leaves a folder in TMPDIR otherwise
	cmd.WaitDelay = time.Second // a child that keeps the pipe open is found by its mark, not waited for
	return cmd
}

// server prepares the installed server's command, or the same of FLAMBEAU_TEST_BINARY.
func (b *Box) server(ctx context.Context, args []string) *exec.Cmd {
	binary := os.Getenv("FLAMBEAU_TEST_BINARY")
	if binary == "" {
		return b.Command(ctx, args[0], args[1:]...)
	}
	if args[0] == "flambeau" {
		args = args[1:] // its other name, torchserve, is a command of the binary
	}
	cmd := b.Command(ctx, binary, args...)
	cmd.Env = append(cmd.Env, "FLAMBEAU_PYTHON="+b.Python, "FLAMBEAU_HOME="+b.Home)
	return cmd
}

// cleanEnviron is this process's environment without what would reach into the server.
func cleanEnviron() []string {
	return slices.DeleteFunc(os.Environ(), func(entry string) bool {
		for _, prefix := range []string{"TS_", "FLAMBEAU_", "PYTHON", "LOG_LOCATION=", "METRICS_LOCATION=", "TMPDIR=", "TEMP=", "TMP=", "PATH="} {
			if strings.HasPrefix(entry, prefix) {
				return true
			}
		}
		return false
	})
}

// Run runs a command of the environment to its end and gives all its output. It must succeed.
func (b *Box) Run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := b.Command(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// Pack makes an archive NAME.mar in the store from a handler file and more files, with the wheel's archiver.
func (b *Box) Pack(t *testing.T, name, handler string, extra ...string) {
	t.Helper()
	args := []string{"--model-name", name, "--version", "1.0", "--handler", absolute(t, handler), "--export-path", b.Store, "--force"}
	if len(extra) > 0 {
		for i := range extra {
			extra[i] = absolute(t, extra[i])
		}
		args = append(args, "--extra-files", strings.Join(extra, ","))
	}
	b.Run(t, "torch-model-archiver", args...)
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	whole, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	return whole
}

// Processes lists what runs with the box's mark in its environment, zombies apart.
func (b *Box) Processes(t *testing.T) []int {
	t.Helper()
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, dir := range dirs {
		environ, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !slices.Contains(strings.Split(string(environ), "\x00"), marker+b.mark) {
			continue // gone meanwhile, another's, or a zombie, which has no environment
		}
		var pid int
		if _, err := fmt.Sscanf(filepath.Base(dir), "%d", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// RequireNothingLeft fails the test when a process of the box still runs, or something is left in its temporary folder.
func (b *Box) RequireNothingLeft(t *testing.T) {
	t.Helper()
	if !Eventually(goneLimit, func() bool { return len(b.Processes(t)) == 0 }) {
		for _, pid := range b.Processes(t) {
			line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // gone meanwhile: an empty line
			t.Errorf("process %d is left: %s", pid, bytes.ReplaceAll(line, []byte{0}, []byte(" ")))
		}
	}
	entries, err := os.ReadDir(b.Tmp)
	if err != nil {
		t.Error(err)
	}
	for _, entry := range entries {
		t.Errorf("left in the temporary folder: %s", entry.Name())
	}
}

// Eventually asks until the answer is yes, and says whether it came within the limit.
func Eventually(limit time.Duration, ask func() bool) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	tick := time.NewTicker(pollPause)
	defer tick.Stop()
	for {
		if ask() {
			return true
		}
		select {
		case <-deadline.C:
			return ask()
		case <-tick.C:
		}
	}
}

// Server is a running server of a box.
type Server struct {
	Inference, Management, Metrics string // base URLs

	box    *Box
	cmd    *exec.Cmd
	out    *output
	exited chan struct{} // closed by the goroutine that waits for cmd
	err    error         // of cmd.Wait; read after exited
}

// Options says how to start a server.
type Options struct {
	// Command is the command line in place of the default, `torchserve --start --foreground --ncs`.
	Command []string
	// Args are added to it.
	Args []string
	// Config is added to the config.properties that gives the ports.
	Config map[string]string
	// Env is added to its environment.
	Env []string
	// Wrap is a command that runs the server's, which follows as its arguments, and becomes it.
	Wrap []string
}

// Start starts a server on free ports with tokens off and the model API on, and waits until it is healthy. The test's end
// stops it with SIGTERM and requires that it ended well, unless Stop or Kill came before.
func (b *Box) Start(t *testing.T, options Options) *Server {
	t.Helper()
	s, settings := &Server{box: b, out: &output{}, exited: make(chan struct{})}, map[string]string{}
	ports := FreePorts(t, 5)
	for i, at := range []struct {
		key string
		url *string
	}{{"inference_address", &s.Inference}, {"management_address", &s.Management}, {"metrics_address", &s.Metrics}} {
		*at.url = fmt.Sprintf("http://127.0.0.1:%d", ports[i])
		settings[at.key] = *at.url
	}
	settings["grpc_inference_port"], settings["grpc_management_port"] = strconv.Itoa(ports[3]), strconv.Itoa(ports[4])
	settings["model_store"] = b.Store
	settings["disable_token_authorization"] = "true"
	settings["enable_model_api"] = "true"
	settings["default_workers_per_model"] = "1"
	settings["number_of_gpu"] = "0"
	maps.Copy(settings, options.Config)
	config := b.WriteConfig(t, settings)

	command := options.Command
	if len(command) == 0 {
		command = []string{"torchserve", "--start", "--foreground", "--ncs"}
	}
	args := slices.Concat(command, []string{"--ts-config", config}, options.Args)
	// The server's life is longer than any context of a call: Stop ends it, or the test's end.
	s.cmd = b.server(context.WithoutCancel(t.Context()), args)
	s.cmd.Env = append(s.cmd.Env, options.Env...)
	if len(options.Wrap) > 0 {
		wrapped := b.Command(context.WithoutCancel(t.Context()), resolve(t, options.Wrap[0]), slices.Concat(options.Wrap[1:], []string{s.cmd.Path}, s.cmd.Args[1:])...)
		wrapped.Env = s.cmd.Env
		s.cmd = wrapped
	}
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		s.Stop(t)
		if t.Failed() {
			t.Logf("what the server wrote:\n%s", s.Output())
		}
	})
	if !Eventually(startLimit, func() bool { return s.ended() || s.healthy(t) }) || s.ended() {
		t.Fatalf("the server did not become healthy (exit: %v)\n%s", s.cmd.ProcessState, s.Output())
	}
	return s
}

// resolve gives the path of a command of the machine.
func resolve(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	return absolute(t, path)
}

// Flambeau runs one of the product's commands, of the same build as the server, and gives its output. It must succeed.
func (b *Box) Flambeau(t *testing.T, args ...string) string {
	t.Helper()
	out, err := b.server(t.Context(), append([]string{"flambeau"}, args...)).CombinedOutput()
	if err != nil {
		t.Errorf("flambeau %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// WriteConfig writes a config.properties into the box's working folder and gives its path.
func (b *Box) WriteConfig(t *testing.T, settings map[string]string) string {
	t.Helper()
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s=%s\n", key, settings[key])
	}
	path := filepath.Join(b.Dir, "e2e.properties")
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// FreePorts gives ports of 127.0.0.1 that nobody listens on at this moment.
func FreePorts(t *testing.T, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		var config net.ListenConfig
		listener, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close() //nolint:errcheck // all at the end, so that no port is given twice
		address, ok := listener.Addr().(*net.TCPAddr)
		if !ok {
			t.Fatalf("not a TCP address: %v", listener.Addr())
		}
		ports[i] = address.Port
	}
	return ports
}

// PID is the server's process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Output is all that the server and its workers have written to the terminal so far.
func (s *Server) Output() string { return s.out.String() }

// Done is closed once the server's process has ended.
func (s *Server) Done() <-chan struct{} { return s.exited }

func (s *Server) ended() bool {
	select {
	case <-s.exited:
		return true
	default:
		return false
	}
}

func (s *Server) healthy(t *testing.T) bool {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.Inference+"/ping", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close() //nolint:errcheck // nothing was written
	return response.StatusCode == http.StatusOK
}

// Stop ends the server with SIGTERM, and requires that it exits with status 0 within the limit and leaves nothing behind. After
// Kill, or a second time, it does nothing.
func (s *Server) Stop(t *testing.T) {
	t.Helper()
	if !s.ended() {
		if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Errorf("SIGTERM: %v", err)
		}
		select {
		case <-s.exited:
		case <-time.After(stopLimit):
			t.Errorf("the server still runs %v after SIGTERM; what it wrote:\n%s", stopLimit, s.Output())
			s.Kill(t)
			return
		}
		if s.err != nil {
			t.Errorf("after SIGTERM the server ended with: %v", s.err)
		}
		if strings.Contains(s.Output(), "WARNING: DATA RACE") {
			t.Error("the server has a data race")
		}
		s.box.RequireNothingLeft(t)
	}
}

// Kill ends the server with SIGKILL, as the kernel's out-of-memory killer does, and waits for the end of that one process.
func (s *Server) Kill(t *testing.T) {
	t.Helper()
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("SIGKILL: %v", err)
	}
	<-s.exited
}

// Answer is what came back for a request.
type Answer struct {
	Status int
	Header http.Header
	Body   []byte
}

// Ask sends one request. Headers are pairs of name and value.
func (s *Server) Ask(ctx context.Context, method, url string, body []byte, header ...string) (Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return Answer{}, fmt.Errorf("request %s: %w", url, err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		request.Header.Set(header[i], header[i+1])
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return Answer{}, fmt.Errorf("ask %s: %w", url, err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end or to an error below
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return Answer{}, fmt.Errorf("read the answer of %s: %w", url, err)
	}
	return Answer{Status: response.StatusCode, Header: response.Header, Body: text}, nil
}

// MustAsk is Ask that requires an answer with the status.
func (s *Server) MustAsk(t *testing.T, status int, method, url string, body []byte, header ...string) Answer {
	t.Helper()
	answer, err := s.Ask(t.Context(), method, url, body, header...)
	if err != nil {
		t.Fatal(err)
	}
	if answer.Status != status {
		t.Fatalf("%s %s: status %d, want %d: %s", method, url, answer.Status, status, answer.Body)
	}
	return answer
}

// output gathers what several processes write; it is safe for concurrent use.
type output struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

// Write adds p.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String gives all so far.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
