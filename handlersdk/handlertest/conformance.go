package handlertest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/flambeau-serve/flambeau/handlersdk"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
	"github.com/flambeau-serve/flambeau/proto/backend/v1/frame"
)

// RunConformance tests that the plugin at path keeps to the protocol with the server (docs/protocol.md), whatever language it is written in: start, load,
// batches, failures, and all ways to end.
func RunConformance(t *testing.T, path string, opts Options) {
	t.Helper()
	path, err := filepath.Abs(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []struct {
		name string
		run  func(*testing.T, string, Options)
	}{
		{"by hand", byHand},
		{startPart, loadAndStop},
		{"batches", batches},
		{"failures", failures},
		{"frames of later versions", laterFrames},
		{"servers of other versions", otherServers},
		{"lifeline", lifeline},
		{"end of the stream", streamEnd},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(t, path, opts) }) && part.name == startPart {
			t.Log("the rest needs a program that starts, loads and stops, and was not run")
			return
		}
	}
}

const startPart = "load and stop"

// byHand starts it without the server: it must say so and end, and take nobody with it.
func byHand(t *testing.T, path string, opts Options) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), usualLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, opts.Args...)
	cmd.Dir, cmd.Env = opts.Dir, append(os.Environ(), opts.Env...)
	out, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() <= 0 || len(strings.TrimSpace(string(out))) == 0 {
		t.Errorf("started by hand it has to say what it is and end with a status above 0: %v, it said %q", err, out)
	}
}

func loadAndStop(t *testing.T, path string, opts Options) {
	t.Helper()
	p := Start(t, path, opts)
	if _, err := p.Load(); err != nil {
		t.Fatalf("load: %v\n%s", err, p.Output())
	}
	if _, err := p.Load(); status.Code(err) == codes.OK {
		t.Error("a second Load has to be refused with an error: a process has one model")
	}
	if err := p.Stop(); err != nil {
		t.Errorf("%v\n%s", err, p.Output())
	}
	if rest, err := io.ReadAll(p.handshake); err != nil || len(rest) > 0 {
		t.Errorf("standard output is for the handshake alone, and has %q behind it (%v)", rest, err)
	}
}

func batches(t *testing.T, path string, opts Options) {
	t.Helper()
	p := Start(t, path, opts)
	p.MustLoad()
	for _, n := range []int{1, 2, p.opts.Batch, 1} {
		items := make([]handlersdk.Item, n)
		for i := range items {
			items[i] = opts.Sample
		}
		for i, r := range p.MustAsk(items...) {
			if r.Failure != nil {
				t.Errorf("item %d of %d: %+v", i, n, r.Failure)
			}
		}
	}
	first, err := p.send([]handlersdk.Item{opts.Sample})
	if err != nil {
		t.Fatal(err)
	}
	second, err := p.send([]handlersdk.Item{opts.Sample})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[uint64]bool{}
	for !seen[first] || !seen[second] { // in any order
		var b []byte
		if err := p.stream.RecvMsg(&b); err != nil {
			t.Fatal(err)
		}
		if head, _, err := frame.DecodeResults(b); err == nil && head.Kind == frame.KindResults {
			seen[head.BatchID] = true
		}
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

func failures(t *testing.T, path string, opts Options) {
	t.Helper()
	p := Start(t, path, opts)
	p.MustLoad()
	for name, c := range map[string]struct {
		item   *handlersdk.Item
		reason string
	}{
		"refused": {opts.Refused, string(frame.ReasonHandlerFailed)}, "panic": {opts.Panics, string(frame.ReasonHandlerFailed)},
		"wrong number of results": {opts.Miscounts, string(frame.ReasonInvalidOutput)},
	} {
		if c.item == nil {
			continue
		}
		r := p.MustAsk(*c.item)[0]
		if r.Failure == nil || r.Failure.Reason != c.reason {
			t.Errorf("%s: answered %d %q, %+v; the result has to fail with the reason %s", name, r.Status, r.Body, r.Failure, c.reason)
		}
		if r.Failure != nil && r.Failure.Message == "" {
			t.Errorf("%s: a failed result needs a message for its client", name)
		}
	}
	// A request without parts may be answered in any way, but has to be.
	p.MustAsk(handlersdk.Item{})
	past := opts.Sample
	past.Deadline = time.Now().Add(-time.Minute)
	p.MustAsk(past)
	if r := p.MustAsk(opts.Sample)[0]; r.Failure != nil {
		t.Errorf("after failures the sample is not answered any more: %+v", r.Failure)
	}
}

// laterFrames sends what this version has no meaning for, and cancellations of nothing: both are to be ignored.
func laterFrames(t *testing.T, path string, opts Options) {
	t.Helper()
	p := Start(t, path, opts)
	p.MustLoad()
	unknown := frame.EncodeCancel(1).Join()
	unknown[0] = 200
	flagged := frame.EncodeCancel(2).Join()
	flagged[1] = 0x80
	for _, b := range [][]byte{unknown, flagged, frame.EncodeCancel(77).Join()} {
		if err := p.stream.SendMsg(frame.Buffers{b}); err != nil {
			t.Fatal(err)
		}
	}
	p.last = 100
	if r := p.MustAsk(opts.Sample)[0]; r.Failure != nil {
		t.Errorf("after frames that it has to ignore: %+v", r.Failure)
	}
}

// otherServers are one that speaks this version and later ones, in words that are not known yet, and one that says of the model only what nobody can do without.
func otherServers(t *testing.T, path string, opts Options) {
	t.Helper()
	later, earliest := opts, opts
	later.versions = fmt.Sprintf("%d,%d,%d", backendv1.ProtocolVersion, backendv1.ProtocolVersion+1, backendv1.ProtocolVersion+2)
	later.Env = append(slices.Clone(opts.Env), "FLAMBEAU_OF_A_LATER_VERSION=1")
	earliest.earliest = true
	for name, o := range map[string]Options{"a later server": later, "the earliest server": earliest} {
		p := Start(t, path, o)
		p.MustLoad()
		if r := p.MustAsk(opts.Sample)[0]; r.Failure != nil {
			t.Errorf("%s: %+v", name, r.Failure)
		}
		if err := p.Stop(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, p.Output())
		}
	}
}

// lifeline ends as the server's death does.
func lifeline(t *testing.T, path string, opts Options) {
	t.Helper()
	p := Start(t, path, opts)
	p.MustLoad()
	if err := p.lifeline.Close(); err != nil {
		t.Fatal(err)
	}
	const limit = 5 * time.Second
	select {
	case <-p.exited:
	case <-time.After(limit):
		t.Errorf("it lives %v after descriptor %d, the lifeline, was closed", limit, backendv1.LifelineFD)
	}
}

// streamEnd closes the stream: a backend whose stream ends has nothing left to do.
func streamEnd(t *testing.T, path string, opts Options) {
	t.Helper()
	p := Start(t, path, opts)
	p.MustLoad()
	if err := p.stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.exited:
	case <-time.After(p.opts.Limit):
		t.Error("it lives on after its stream has ended")
	}
}
