package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/config"
)

// outcome is what a command line came to.
type outcome struct {
	status         int
	stdout, stderr string
}

// cli runs a command line in this process. The working folder is the package's: tests that need another one change to it.
func cli(environ []string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	p := &program{environ: environ, stdout: &stdout, stderr: &stderr, now: func() time.Time { return time.Date(2026, 1, 2, 3, 7, 10, 0, time.UTC) }}
	status := p.run(context.Background(), append([]string{"flambeau"}, args...))
	return outcome{status, stdout.String(), stderr.String()}
}

func TestCommandLine(t *testing.T) {
	t.Parallel()
	tests := []struct {
		args           string
		status         int
		stdout, stderr string // parts
	}{
		{"", exitUsage, "", "usage: flambeau COMMAND"},
		{"help", exitOK, "usage: flambeau COMMAND", ""},
		{"--help", exitOK, "serve models in the foreground", ""},
		{"help", exitOK, "\n\nlook at a server:\n  ps          list the models", ""},
		{"help rollback", exitOK, "usage: flambeau rollback [-h] [--to DIGEST] [--yes]", ""},
		{"help traffic", exitOK, "\nwhich server:\n  --url URL", ""},
		{"rollback", exitUsage, "", "required: MODEL[/VERSION]"},
		{"history a b", exitUsage, "", "unrecognized arguments: b"},
		{"traffic m --weight canary", exitUsage, "", `--weight is "canary": it has to be VERSION=PERCENT`},
		{"traffic m --weight canary=x", exitUsage, "", `--weight is "canary=x"`},
		{"traffic m --label =2.0", exitUsage, "", `--label is "=2.0": it has to be LABEL=VERSION`},
		{"rollback m --url http://127.0.0.1:1", exitUsage, "", "say so by --yes"},
		{"rollback m --yes --url http://127.0.0.1:1", exitUnreachable, "", "no server answers"},
		{"events --follow --url http://127.0.0.1:1", exitUnreachable, "", "no server answers"},
		{"help serve", exitOK, "usage: flambeau serve", ""},
		{"version", exitOK, "flambeau dev (TorchServe 0.12.0)", ""},
		{"--version", exitOK, "flambeau dev (TorchServe 0.12.0)", ""},
		{"nope", exitUsage, "", `there is no command "nope"`},
		{"serve --nope", exitUsage, "", "flambeau serve: error: unrecognized arguments: --nope"},
		{"ps x", exitUsage, "", "unrecognized arguments: x"},
		{"show", exitUsage, "", "the following arguments are required: MODEL[/VERSION]"},
		{"ps --url ftp://x", exitFailed, "", "is no management address"},
		{"ps --url http://127.0.0.1:1", exitUnreachable, "", "no server answers at http://127.0.0.1:1: "},
		{"serve", exitFailed, "", "there is no model store"},
		{"serve --model-store /nope", exitFailed, "", "the model store /nope is not there (--model-store): make the folder"},
		{"serve --model-store main.go", exitFailed, "", "the model store main.go is not a folder (--model-store)"},
		{"serve --ts-config /nope", exitFailed, "", "/nope"},
		{"docs", exitUsage, "", "required: PAGE"},
		{"docs nope", exitUsage, "", "there is no page"},
		{"docs configuration", exitOK, "# Configuration", ""},
		{"torchserve --version", exitOK, "TorchServe Version is 0.12.0\n", ""},
		{"torchserve --vers", exitOK, "TorchServe Version is 0.12.0\n", ""},
		{"torchserve --start --stop", exitUsage, "", "torchserve: error: argument --stop: not allowed with argument --start"},
		{"torchserve --help", exitOK, "usage: torchserve [-h] [-v | --start | --stop]", ""},
	}
	for _, tt := range tests {
		t.Run(tt.args, func(t *testing.T) {
			t.Parallel()
			got := cli([]string{"TMPDIR=" + t.TempDir()}, strings.Fields(tt.args)...)
			if got.status != tt.status {
				t.Errorf("status %d, want %d", got.status, tt.status)
			}
			if !strings.Contains(got.stdout, tt.stdout) || tt.stdout == "" && got.stdout != "" {
				t.Errorf("stdout %q, want %q", got.stdout, tt.stdout)
			}
			if !strings.Contains(got.stderr, tt.stderr) || tt.stderr == "" && got.stderr != "" {
				t.Errorf("stderr %q, want %q", got.stderr, tt.stderr)
			}
		})
	}
}

// TestCalledAsTorchserve: a link of that name is that command.
func TestCalledAsTorchserve(t *testing.T) {
	t.Parallel()
	var stdout bytes.Buffer
	p := &program{stdout: &stdout, stderr: &stdout}
	if status := p.run(t.Context(), []string{"/usr/bin/torchserve", "-v"}); status != exitOK || stdout.String() != "TorchServe Version is 0.12.0\n" {
		t.Errorf("%d: %q", status, stdout.String())
	}
}

// TestTorchserveRefusals: what TorchServe's command checks before it starts anything, with its words on stdout.
func TestTorchserveRefusals(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := write("good.properties", "model_store="+dir)
	bad := write("bad.properties", "model_store="+dir+"\njob_queue_size=abc")
	noEnv := write("noenv.properties", "model_store=$$FLAMBEAU_NOPE$$")
	noStore := write("nostore.properties", "model_store=/nope")
	tests := []struct {
		name, args string
		env        string
		stdout     string
		stderr     string
	}{
		{name: "no store", args: "--start", stdout: "Missing mandatory parameter --model-store\n"},
		{name: "store is not there", args: "--start --model-store /nope", stdout: "--model-store directory not found: /nope\n"},
		{name: "store of the file", args: "--ts-config " + noStore, stdout: "--model-store directory not found: /nope\n"},
		{name: "config is not there", args: "--ts-config /nope --model-store " + dir, stdout: "--ts-config file not found: /nope\n"},
		{name: "config of the variable", args: "--ts-config " + good, env: "TS_CONFIG_FILE=/nope2", stdout: "--ts-config file not found: /nope2\n"},
		{name: "log config", args: "--log-config /nope --model-store /nope", stdout: "--log-config file not found: /nope\n"},
		{
			name: "temp", args: "--model-store /nope", env: "TEMP=/nope3",
			stdout: "Invalid temp directory: /nope3, please check TEMP environment variable.\n",
		},
		{name: "workflow store", args: "--workflow-store /nope --ts-config " + good, stdout: "--workflow-store directory not found: /nope\n"},
		{name: "cpp log config", args: "--cpp-log-config /nope --ts-config " + good, stdout: "--cpp-log-config file not found: /nope\n"},
		{name: "bad value", args: "--ts-config " + bad, stderr: "Invalid configuration: " + bad + ", line 2: job_queue_size: \"abc\" is not an integer"},
		{name: "no variable", args: "--ts-config " + noEnv, stderr: "Invalid Environment Variable FLAMBEAU_NOPE"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := cli([]string{"TMPDIR=" + t.TempDir(), tt.env}, append([]string{"torchserve"}, strings.Fields(tt.args)...)...)
			if got.status != exitFailed || got.stdout != tt.stdout || !strings.Contains(got.stderr, tt.stderr) {
				t.Errorf("got %+v, want status 1, stdout %q, stderr %q", got, tt.stdout, tt.stderr)
			}
		})
	}
}

func TestStopWithoutServer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	env := []string{"TMPDIR=" + dir}
	if got := cli(env, "torchserve", "--stop"); got != (outcome{exitOK, "TorchServe is not currently running.\n", ""}) {
		t.Errorf("got %+v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, ".model_server.pid"), []byte("999999999"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := outcome{exitOK, "Removing orphan pid file.\nTorchServe is not currently running.\n", ""}
	if got := cli(env, "torchserve", "--stop"); got != want {
		t.Errorf("with an orphan: %+v", got)
	}
}

// managementAPI answers as a TorchServe with two models.
func managementAPI(t *testing.T) string {
	t.Helper()
	const worker = `{"id": "9000", "startTime": "2026-01-02T03:04:05.678Z", "status": "READY", "memoryUsage": 104857600, "pid": 7, "gpu": false, "gpuUsage": "N/A"}`
	version := func(number, workers string) string {
		return `{"modelName": "m", "modelVersion": "` + number + `", "modelUrl": "m.mar", "runtime": "python", "minWorkers": 1, "maxWorkers": 1, "batchSize": 4,
			"workers": [` + workers + `], "jobQueueStatus": {"remainingCapacity": 90, "pendingRequests": 10}}`
	}
	answers := map[string]string{
		"/models":       `{"models": [{"modelName": "m", "modelUrl": "m.mar"}, {"modelName": "gone", "modelUrl": "g.mar"}]}`,
		"/models/m":     "[" + version("1.0", worker) + "]",
		"/models/m/2":   "[" + version("2", "") + "]",
		"/models/m/all": "[" + version("1.0", worker) + "," + version("2", "") + "]",
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if text, ok := answers[r.URL.Path]; ok && r.Header.Get("Authorization") == "Bearer secret" {
			printf(w, "%s", text)
			return
		}
		w.WriteHeader(http.StatusNotFound)
		if strings.HasPrefix(r.URL.Path, "/admin/") {
			printf(w, "%s", `{"code": 404, "type": "ResourceNotFoundException", "message": "Requested resource is not found, please refer to API document."}`)
			return
		}
		printf(w, "%s", `{"code": 404, "type": "ModelNotFoundException", "message": "Model not found: gone"}`)
	}))
	t.Cleanup(srv.Close)
	return srv.URL
}

func TestPS(t *testing.T) {
	t.Parallel()
	url := managementAPI(t)
	got := cli([]string{"FLAMBEAU_URL=" + url}, "ps", "--token", "secret")
	want := `NAME  VERSION  STATE    WORKERS  QUEUE   BATCH  P99  MEM      SINCE   REASON
m     1.0 *    serving  1/1      10/100  4      -    100 MiB  3m ago  -
m     2        idle     0/0      10/100  4      -    -        -       -
`
	if diff := cmp.Diff(outcome{exitOK, want, ""}, got, cmp.AllowUnexported(outcome{})); diff != "" {
		t.Error(diff)
	}
	got = cli([]string{"FLAMBEAU_TOKEN=secret"}, "ps", "--json", "--url", url)
	var versions []map[string]any
	if err := json.Unmarshal([]byte(got.stdout), &versions); err != nil || len(versions) != 2 || versions[1]["modelVersion"] != "2" {
		t.Errorf("%v: %+v", err, got)
	}
}

func TestShow(t *testing.T) {
	t.Parallel()
	env := []string{"FLAMBEAU_URL=" + managementAPI(t), "FLAMBEAU_TOKEN=secret"}
	got := cli(env, "show", "m")
	want := `m 1.0 *: serving
  modelUrl    m.mar
  runtime     python
  minWorkers  1
  maxWorkers  1
  batchSize   4
  waiting     10 of 100

  WORKER  PID  STATE  MEMORY   RESTARTS  STARTED
  9000    7    ready  100 MiB  0         2026-01-02T03:04:05.678Z

m 2: idle
  modelUrl    m.mar
  runtime     python
  minWorkers  1
  maxWorkers  1
  batchSize   4
  waiting     10 of 100
  no workers
`
	if diff := cmp.Diff(want, trimLines(got.stdout)); diff != "" || got.status != exitOK {
		t.Errorf("%d %s\n%s", got.status, got.stderr, diff)
	}
	if got := cli(env, "show", "m/2", "--json"); got.status != exitOK || strings.Count(got.stdout, "modelVersion") != 1 {
		t.Errorf("one version: %+v", got)
	}
	if got := cli(env, "show", "gone"); got.status != exitFailed || got.stderr != "flambeau show: error: Model not found: gone\n" {
		t.Errorf("unknown: %+v", got)
	}
}

func trimLines(s string) string {
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimRight(line, " \n") + "\n")
	}
	return b.String()
}

// TestWhereTheServerIs needs the working folder, so it is not parallel.
func TestWhereTheServerIs(t *testing.T) {
	url := managementAPI(t)
	dir := t.TempDir()
	t.Chdir(dir)
	for name, text := range map[string]string{
		config.DefaultFile: "management_address=http://127.0.0.1:1\n", "other.properties": "management_address=" + url,
		"key_file.json": `{"management": {"key": "secret", "expiration time": "x"}}`,
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got := cli(nil, "ps"); got.status != exitUnreachable || !strings.Contains(got.stderr, "http://127.0.0.1:1 (management_address, config.properties, line 1)") {
		t.Errorf("the file of the folder: %+v", got)
	}
	if got := cli(nil, "ps", "--ts-config", "other.properties"); got.status != exitOK {
		t.Errorf("a named file, and the key file: %+v", got)
	}
	if got := cli([]string{"TS_CONFIG_FILE=other.properties"}, "ps"); got.status != exitOK {
		t.Errorf("the variable: %+v", got)
	}
	if got := cli([]string{"FLAMBEAU_URL=" + url}, "ps"); got.status != exitOK {
		t.Errorf("FLAMBEAU_URL: %+v", got)
	}
	if got := cli([]string{"FLAMBEAU_URL=http://127.0.0.1:1"}, "ps", "--url", url); got.status != exitOK {
		t.Errorf("--url: %+v", got)
	}
	if got := cli([]string{"FLAMBEAU_URL=http://127.0.0.1:1"}, "ps"); !strings.Contains(got.stderr, "(FLAMBEAU_URL)") {
		t.Errorf("the origin is not told: %+v", got)
	}
}

func TestConfigCommand(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "x.properties")
	if err := os.WriteFile(file, []byte("job_queue_size=7\nvmargs=-X\nkeystore_pass=hunter2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := cli(nil, "config", "--ts-config", file, "--model-store", "/s")
	for _, part := range []string{"job_queue_size", "line 1", "model_store", "--model-store", "********"} {
		if !strings.Contains(got.stdout, part) {
			t.Errorf("%q is not in %q", part, got.stdout)
		}
	}
	if got.status != exitOK || strings.Contains(got.stdout+got.stderr, "hunter2") || !strings.Contains(got.stderr, "vmargs has no effect") ||
		strings.Contains(got.stdout, "max_request_size") {
		t.Errorf("got %+v", got)
	}
	var entries []map[string]string
	if got := cli(nil, "config", "--all", "--json", "--ts-config", file); json.Unmarshal([]byte(got.stdout), &entries) != nil || len(entries) < 50 {
		t.Errorf("got %+v", got)
	}
}

// stuck is a terminal that takes nothing until it is let go.
type stuck struct {
	bytes.Buffer
	entered, release chan struct{}
}

func (s *stuck) Write(p []byte) (int, error) {
	select {
	case s.entered <- struct{}{}:
	default:
	}
	<-s.release
	return s.Buffer.Write(p)
}

func TestConsoleDoesNotBlock(t *testing.T) {
	t.Parallel()
	terminal := &stuck{entered: make(chan struct{}, 1), release: make(chan struct{})}
	c := newConsole(terminal)
	printf(c, "first\n")
	<-terminal.entered
	for i := range consoleLines + 10 {
		printf(c, "%d\n", i)
	}
	close(terminal.release)
	c.flush()
	if got := terminal.String(); !strings.Contains(got, fmt.Sprintf("\n%d\n", consoleLines-1)) {
		t.Errorf("flush returned after %.100q", got[max(0, len(got)-100):])
	}
	c.close()
	c.flush()
	printf(c, "after the end\n") // is lost, and does no harm
	got := terminal.String()
	if !strings.HasPrefix(got, "first\n... 10 lines were not written here") || !strings.HasSuffix(got, fmt.Sprintf("\n%d\n", consoleLines-1)) {
		t.Errorf("got %.200q ... %.100q", got, got[len(got)-100:])
	}
}

func TestConsoleOfDeadTerminal(t *testing.T) {
	t.Parallel()
	terminal := &stuck{entered: make(chan struct{}, 1), release: make(chan struct{})}
	defer close(terminal.release)
	c := newConsole(terminal)
	printf(c, "x\n")
	begun := time.Now()
	c.close()
	if took := time.Since(begun); took > 10*consoleFlush {
		t.Errorf("close took %s", took)
	}
}

func TestTroubles(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := &troubles{out: &out}
	lines := []string{
		"2026-01-02T03:04:05,678 [WARN ] main flambeau - a\n", "2026-01-02T03:04:05,678 [INFO ] main flambeau - b\n",
		"2026-01-02T03:04:05,678 [ERROR] main flambeau - c\n", "2026-01-02T03:04:05,678 [WARN ] W-9000-m_1.0-stderr MODEL_LOG - d\n",
	}
	printf(w, "%s", lines[0])
	w.open()
	for _, line := range lines {
		printf(w, "%s", line)
	}
	if got := out.String(); got != lines[0]+lines[2] {
		t.Errorf("got %q", got)
	}
}
