package handlertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
)

// rich is a handler with everything that came after the first SDK.
type rich struct{ upper }

var (
	_ handlersdk.Streamer   = (*rich)(nil)
	_ handlersdk.Concurrent = (*rich)(nil)
	_ handlersdk.Describer  = (*rich)(nil)
	_ handlersdk.Featured   = (*rich)(nil)
)

func (r *rich) HandleStream(ctx context.Context, items []handlersdk.Item, emit handlersdk.Emit) ([]handlersdk.Result, error) {
	for i := range items {
		if err := emit(i, handlersdk.Result{Body: []byte("a piece")}); err != nil {
			return nil, err
		}
	}
	return r.Handle(ctx, items)
}

func (r *rich) Concurrent() bool { return true }

func (r *rich) Describe() handlersdk.Description {
	return handlersdk.Description{Accepts: []string{"text/plain"}}
}

func (r *rich) Features() []string {
	return []string{handlersdk.FeatureOIPBinary, "of_a_later_version"}
}

// firstRelease builds a program of testdata/first.
func firstRelease(t *testing.T, name string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, "./testdata/first/"+name)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return program
}

// TestFirstSDK holds the rules for plugins against one that was built with the first SDK: they have not become narrower since.
func TestFirstSDK(t *testing.T) {
	t.Parallel()
	opts := options("")
	miscounts := text("miscount")
	opts.Env, opts.Miscounts = nil, &miscounts
	program := firstRelease(t, "plugin")
	handlertest.RunConformance(t, program, opts)

	p := handlertest.Start(t, program, opts)
	if loaded := p.MustLoad(); len(loaded.GetFeatures()) > 0 || len(loaded.GetDescriptionJson()) > 0 {
		t.Errorf("it tells what did not exist then: %v", loaded)
	}
	results := p.MustAsk(text("a"), text("refuse"), text("status"), text("memory"))
	if string(results[0].Body) != "A" || results[1].Status != 422 || results[2].Status != 203 || results[3].Failure == nil || results[3].Failure.Reason != "out_of_memory" {
		t.Errorf("%+v", results)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// firstLoaded and firstAnswer are what testdata/first/server writes.
type (
	firstLoaded struct {
		Protocol int
		Features []string
		Unknown  int
		Failure  string
	}
	firstAnswer struct {
		Status                        uint32
		Body, Reason, Message, Detail string
	}
)

// underFirstServer runs this binary as a plugin under the first server.
func underFirstServer(t *testing.T, server, mode string, args []string, batches string) (stdout, stderr string, err error) {
	t.Helper()
	self, err := filepath.Abs(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	var out, errors bytes.Buffer
	cmd := exec.CommandContext(t.Context(), server, append(args, self)...) //nolint:gosec // programs of this test
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), options(mode).Env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(batches), &out, &errors
	err = cmd.Run()
	return out.String(), errors.String(), err
}

// TestUnderFirstServer runs plugins of this SDK, with and without what came later, under the server's side of the first release.
func TestUnderFirstServer(t *testing.T) {
	t.Parallel()
	server := firstRelease(t, "server")
	for mode, want := range map[string]firstLoaded{
		"good": {Protocol: 1}, "streams": {Protocol: 1},
		"rich": {Protocol: 1, Features: []string{"oip_binary", "of_a_later_version", "streams", "concurrent"}, Unknown: len(`xx{"accepts":["text/plain"]}`)},
	} {
		stdout, stderr, err := underFirstServer(t, server, mode, nil, `["a","refuse","b"]
["panic"]
["short"]
["fail"]
["once more"]
`)
		if err != nil {
			t.Errorf("%s: %v\n%s", mode, err, stderr)
			continue
		}
		var loaded firstLoaded
		answers := make([][]firstAnswer, 5)
		d := json.NewDecoder(strings.NewReader(stdout))
		if err := d.Decode(&loaded); err != nil {
			t.Fatalf("%s: %v in %s", mode, err, stdout)
		}
		for i := range answers {
			if err := d.Decode(&answers[i]); err != nil {
				t.Fatalf("%s: %v in %s", mode, err, stdout)
			}
			for n := range answers[i] { // stacks
				answers[i][n].Detail, _, _ = strings.Cut(answers[i][n].Detail, "\n")
			}
		}
		if diff := cmp.Diff(want, loaded); diff != "" {
			t.Errorf("%s: what it tells of itself (-want +got):\n%s", mode, diff)
		}
		const refusal, failed = `I do not like "refuse"`, "Prediction failed"
		if diff := cmp.Diff([][]firstAnswer{
			{{Body: "A"}, {Status: 422, Reason: "handler_failed", Message: refusal, Detail: refusal}, {Body: "B"}},
			{{Reason: "handler_failed", Message: failed, Detail: "panic: as asked"}},
			{{Reason: "invalid_output", Message: "number of batch response mismatched", Detail: "the handler gave 0 results for 1 items"}},
			{{Reason: "handler_failed", Message: failed, Detail: "secret"}},
			{{Body: "ONCE MORE"}},
		}, answers); diff != "" {
			t.Errorf("%s: answers (-want +got):\n%s", mode, diff)
		}
	}
}

// TestUnderServerOfOtherVersions: a server that does not speak this version of the protocol, be it an older or a later one, learns which one the plugin speaks.
func TestUnderServerOfOtherVersions(t *testing.T) {
	t.Parallel()
	server := firstRelease(t, "server")
	for version, says := range map[string]string{"0": "[0]", "2": "[2]"} {
		_, stderr, err := underFirstServer(t, server, "good", []string{"-version", version}, "")
		if err == nil || !strings.Contains(stderr, "Plugin version: 1") || !strings.Contains(stderr, says) {
			t.Errorf("under a server of version %s: %v, it says %q", version, err, stderr)
		}
	}
}
