package main

import (
	"archive/zip"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// runHandlers are the handlers of the tests, by file.
var runHandlers = map[string]string{ //nolint:gochecknoglobals // a table
	"length.py": `
from ts.torch_handler.base_handler import BaseHandler
class Length(BaseHandler):
    def initialize(self, context):
        self.initialized = True
        print("a word from initialize")
    def preprocess(self, data):
        return [row.get("data") or row["body"] for row in data]
    def inference(self, values):
        if values[0] == b"fail":
            raise ValueError("the input is not liked")
        return [len(value) for value in values]
    def postprocess(self, lengths):
        return [{"length": length} for length in lengths]
`,
	"steps.py": `
from ts.handler_utils.utils import send_intermediate_predict_response
def handle(data, context):
    if data is None:
        return None
    context.set_response_content_type(0, "text/plain")
    context.set_response_status(203, "", 0)
    send_intermediate_predict_response(["one;"], context.request_ids, "ok", 200, context)
    return ["two"]
`,
	"stop.py": `
def handle(data, context):
    if data is None:
        return None
    answer = 41
    breakpoint()
    return [str(answer + 1)]
`,
	"sleep.py": `
import os, time
def handle(data, context):
    if data is None:
        return None
    open("pid", "w").write(str(os.getpid()))
    time.sleep(600)
`,
	"exit.py": `
import os
def handle(data, context):
    if data is None:
        return None
    os.kill(os.getpid(), 11)
`,
}

func newRunBox(t *testing.T) *box {
	t.Helper()
	b := newBox(t, "")
	for name, text := range runHandlers {
		folder := filepath.Join(b.dir, strings.TrimSuffix(name, ".py"))
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		for file, content := range map[string]string{filepath.Join(folder, name): text, filepath.Join(b.dir, "in.txt"): "hello"} {
			if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return b
}

// pack makes an archive of a handler.
func (b *box) pack(t *testing.T, archive, handler string) {
	t.Helper()
	var packed bytes.Buffer
	w := zip.NewWriter(&packed)
	manifest := `{"runtime":"python","archiverVersion":"1","createdOn":"now","model":{"modelName":"packed","modelVersion":"2.5","handler":"` + handler + `"}}`
	for name, text := range map[string]string{"MAR-INF/MANIFEST.json": manifest, handler: runHandlers[handler]} {
		file, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(file, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, archive), packed.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestRun(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, args string
		status     int
		stdout     string   // all of it
		stderr     []string // parts
	}{
		{
			"an archive", "packed.mar --input in.txt", exitOK, "{\n  \"length\": 5\n}",
			[]string{"a word from initialize", "packed 2.5", "class Length of module length", "row 0        body: bytearray, 5 bytes, b'hello'", "unpack", "initialize", "postprocess"},
		},
		{"a folder", "length --handler length.py --input in.txt --batch 2", exitOK, "{\n  \"length\": 5\n}\n{\n  \"length\": 5\n}\n", []string{"row 1", "answer 1"}},
		{"a file", "length/length.py --input in.txt --content-type text/plain --repeat 3", exitOK, "{\n  \"length\": 5\n}", []string{"body: str, 5 characters, 'hello'", "median"}},
		{"a form", "length/length.py --form data=@in.txt --form more=x", exitOK, "{\n  \"length\": 5\n}", []string{"data: str, 5 characters", "more: bytearray, 1 byte, b'x'"}},
		{"a stream", "steps/steps.py --input in.txt -i", exitOK, "HTTP 203 Non-Authoritative Information\ncontent-type: text/plain\nts_stream_next: true\n\none;two", []string{"1 before the end"}},
		{"a missing input", "packed.mar --input nope", exitUsage, "", []string{"--input nope: no such file or directory"}},
		{"a missing archive", "nope.mar --input in.txt", exitUsage, "", []string{"the model nope.mar: no such file or directory"}},
		{"no archive", "in.txt --input in.txt", exitUsage, "", []string{"the model in.txt cannot be opened"}},
		{"no handler", "length --input in.txt", exitUsage, "", []string{"length names no handler"}},
		{"no request", "packed.mar", exitUsage, "", []string{"there is no request"}},
		{"two requests", "packed.mar --input in.txt --form a=b", exitUsage, "", []string{"--form is a request of its own"}},
		{"no number", "packed.mar --input in.txt --batch 0", exitUsage, "", []string{"--batch 0: a number from 1 on is needed"}},
		{"a bad header", "packed.mar --input in.txt --header x", exitUsage, "", []string{"--header x: it has to be NAME:VALUE"}},
		{"no field", "packed.mar --form x", exitUsage, "", []string{"--form x: it has to be NAME=VALUE or NAME=@FILE"}},
		{"stdin for two", "packed.mar --input - --debugger", exitUsage, "", []string{"--debugger needs stdin for itself"}},
		{"no Python", "packed.mar --input in.txt --python nope", exitUsage, "", []string{"--python nope: "}},
		{"a breakpoint", "stop/stop.py --input in.txt", exitFailed, "", []string{"BdbQuit", "add --debugger"}},
		{"a crash", "exit/exit.py --input in.txt", exitFailed, "", []string{"was ended by a signal: signal: segmentation fault"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			b := newRunBox(t)
			b.pack(t, "packed.mar", "length.py")
			got := b.run(t, append([]string{"run"}, strings.Fields(tt.args)...)...)
			if got.status != tt.status || got.stdout != tt.stdout {
				t.Errorf("status %d, stdout %q; want %d, %q\n%s", got.status, got.stdout, tt.status, tt.stdout, got.stderr)
			}
			for _, part := range tt.stderr {
				if !strings.Contains(got.stderr, part) {
					t.Errorf("stderr lacks %q:\n%s", part, got.stderr)
				}
			}
			b.requireClean(t)
		})
	}
}

// TestRunThatFails: the traceback has the handler's frames and none of ours.
func TestRunThatFails(t *testing.T) {
	t.Parallel()
	b := newRunBox(t)
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, b.exe, "run", "length/length.py", "--input", "-") //nolint:gosec // the binary under test
	cmd.Dir, cmd.Env, cmd.Stdin = b.dir, b.env, strings.NewReader("fail")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != exitFailed || len(out) > 0 {
		t.Fatalf("%v, stdout %q\n%s", err, out, &stderr)
	}
	files := regexp.MustCompile(`File ".*/(\w+\.py)", line`).FindAllStringSubmatch(stderr.String(), -1)
	var frames []string
	for _, match := range files {
		frames = append(frames, match[1])
	}
	if diff := cmp.Diff([]string{"base_handler.py", "length.py"}, frames); diff != "" {
		t.Errorf("files of the traceback: %s\n%s", diff, &stderr)
	}
	for _, part := range []string{"ValueError: the input is not liked", "the handler failed at length.py:11: a client would get 503, Prediction failed"} {
		if !strings.Contains(stderr.String(), part) {
			t.Errorf("stderr lacks %q:\n%s", part, &stderr)
		}
	}
	b.requireClean(t)
}

func TestRunJSON(t *testing.T) {
	t.Parallel()
	b := newRunBox(t)
	got := b.run(t, "run", "length/length.py", "--input", "in.txt", "--json", "--header", "X-User: me")
	var report struct {
		Headers []map[string]any
		Rows    []map[string]map[string]any
		Answers []struct {
			Status int
			Body   string
		}
		Times map[string]float64   `json:"times_ms"`
		Runs  []map[string]float64 `json:"runs_ms"`
	}
	if err := json.Unmarshal([]byte(got.stdout), &report); err != nil || got.status != exitOK {
		t.Fatalf("%v: %+v", err, got)
	}
	if len(report.Answers) != 1 || report.Answers[0].Status != 200 || report.Answers[0].Body != "{\n  \"length\": 5\n}" {
		t.Errorf("answers %+v", report.Answers)
	}
	if report.Headers[0]["X-User"] != "me" || report.Headers[0]["explain"] != "False" || report.Rows[0]["body"]["type"] != "bytearray" {
		t.Errorf("headers %v, rows %v", report.Headers, report.Rows)
	}
	for step, times := range map[string]map[string]float64{
		"unpack": report.Times, "start": report.Times, "import": report.Times, "initialize": report.Times,
		"preprocess": report.Runs[0], "inference": report.Runs[0], "postprocess": report.Runs[0], "handle": report.Runs[0], "encode": report.Runs[0],
	} {
		if _, ok := times[step]; !ok {
			t.Errorf("there is no time of %s: %s", step, got.stdout)
		}
	}
}

// TestRunDebugger talks to pdb over a terminal.
func TestRunDebugger(t *testing.T) {
	t.Parallel()
	b := newRunBox(t)
	ctx, cancel := context.WithTimeout(t.Context(), runLimit)
	defer cancel()
	// Python's own module makes the terminal, and types what comes from its stdin.
	cmd := exec.CommandContext(ctx, "python3", "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)", //nolint:gosec // the binary under test
		b.exe, "run", "stop/stop.py", "--input", "in.txt", "--debugger")
	cmd.Dir, cmd.Env = b.dir, append(b.env, "TERM=dumb")
	typed, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	shown, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var seen strings.Builder
	until := func(prompt string) {
		t.Helper()
		from := seen.Len()
		for one := make([]byte, 1); !strings.Contains(seen.String()[from:], prompt); seen.Write(one) {
			if _, err := io.ReadFull(shown, one); err != nil {
				t.Fatalf("%v; the terminal shows %q", err, seen.String())
			}
		}
	}
	for _, line := range []string{"answer = 99\n", "continue\n"} {
		until("(Pdb) ")
		if _, err := io.WriteString(typed, line); err != nil {
			t.Fatal(err)
		}
	}
	until("\n100")
	rest, err := io.ReadAll(shown)
	if err != nil && !errors.Is(err, os.ErrClosed) {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("%v; the terminal shows %q", err, seen.String()+string(rest))
	}
	b.requireClean(t)
}

// TestRunEndsWithItsCommand: a command that is told to end cleans up, and one that is killed leaves no handler behind.
func TestRunEndsWithItsCommand(t *testing.T) {
	t.Parallel()
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		b := newRunBox(t)
		cmd := exec.CommandContext(t.Context(), b.exe, "run", "sleep/sleep.py", "--input", "in.txt") //nolint:gosec // the binary under test
		cmd.Dir, cmd.Env = b.dir, b.env
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var pid int
		eventually(t, "the handler's file", func() bool {
			text, err := os.ReadFile(filepath.Join(b.dir, "sleep", "pid"))
			if err == nil {
				pid, err = strconv.Atoi(string(text))
			}
			return err == nil
		})
		if err := cmd.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		var exit *exec.ExitError
		if err := cmd.Wait(); !errors.As(err, &exit) {
			t.Errorf("after %v the command ended with %v", s, err)
		}
		eventually(t, "the end of the handler", func() bool { return syscall.Kill(pid, 0) != nil || hasEnded(pid) })
		if s == syscall.SIGTERM {
			b.requireClean(t)
		}
	}
}

// TestRunInterrupted: a Ctrl-C ends a download that stands still.
func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	b := newRunBox(t)
	asked, release := make(chan struct{}), make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		close(asked)
		<-release
	}))
	defer server.Close()
	defer close(release)
	cmd := exec.CommandContext(t.Context(), b.exe, "run", server.URL+"/model.mar", "--input", "in.txt") //nolint:gosec // the binary under test
	cmd.Dir, cmd.Env = b.dir, b.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-asked
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != exitUsage || !strings.Contains(stderr.String(), "cannot be opened") {
		t.Errorf("%v: %s", err, &stderr)
	}
	b.requireClean(t)
}
