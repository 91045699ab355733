package handlertest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
)

const (
	envPlugin = "FLAMBEAU_TEST_PLUGIN"
	envBroken = "FLAMBEAU_TEST_BROKEN"
)

func TestMain(m *testing.M) {
	switch mode := os.Getenv(envPlugin); mode {
	case "":
	case "noise":
		fmt.Println("hello")
		handlersdk.Serve(&upper{})
	case "exit":
		os.Exit(0)
	case "rich":
		handlersdk.Serve(&rich{})
	default:
		handlersdk.Serve(&upper{streams: mode == "streams"})
	}
	os.Exit(m.Run())
}

// upper answers in capitals, and misbehaves on some words.
type upper struct{ streams bool }

func (u *upper) Initialize(context.Context, handlersdk.Model) error { return nil }

func (u *upper) Handle(_ context.Context, items []handlersdk.Item) ([]handlersdk.Result, error) {
	results := make([]handlersdk.Result, len(items))
	for i := range items {
		switch text := string(items[i].Body().Data); text {
		case "panic":
			panic("as asked")
		case "short":
			return results[1:], nil
		case "refuse":
			results[i].Err = handlersdk.Errorf(422, "I do not like %q", text)
		case "fail":
			return nil, errors.New("secret")
		default:
			results[i].Body = []byte(strings.ToUpper(text))
		}
	}
	return results, nil
}

func text(s string) handlersdk.Item { return handlertest.Body("text/plain", []byte(s)) }

func options(mode string) handlertest.Options {
	refused, panics, short := text("refuse"), text("panic"), text("short")
	return handlertest.Options{
		Env: []string{envPlugin + "=" + mode, "GORACE=atexit_sleep_ms=0"}, Sample: text("hello"), Refused: &refused, Panics: &panics, Miscounts: &short,
	}
}

// The SDK keeps to the protocol.
func TestConformance(t *testing.T) {
	handlertest.RunConformance(t, os.Args[0], options("good"))
}

func TestAnswers(t *testing.T) {
	t.Parallel()
	p := handlertest.Start(t, os.Args[0], options("good"))
	p.MustLoad()
	results := p.MustAsk(text("a"), text("refuse"), text("b"))
	if string(results[0].Body) != "A" || string(results[2].Body) != "B" || results[1].Status != 422 || results[1].Failure.Message != `I do not like "refuse"` {
		t.Errorf("%+v", results)
	}
	if r := p.MustAsk(text("fail"))[0]; r.Failure == nil || r.Failure.Message != "Prediction failed" || r.Failure.Detail != "secret" {
		t.Errorf("%+v", r.Failure)
	}
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// TestBroken is run by TestConformanceFinds on plugins that are broken.
func TestBroken(t *testing.T) {
	mode := os.Getenv(envBroken)
	if mode == "" {
		t.Skip("run by another test")
	}
	opts := options(mode)
	if mode == "wrong" { // a handler that answers what it should refuse, and refuses the sample
		fine := text("fine")
		opts = options("good")
		opts.Sample, opts.Refused = text("refuse"), &fine
	}
	handlertest.RunConformance(t, os.Args[0], opts)
}

func TestConformanceFinds(t *testing.T) {
	t.Parallel()
	for mode, says := range map[string][]string{
		"noise": {`its handshake is "hello\n"`, "call handlersdk.Serve first", "was not run"}, "exit": {"it gave no handshake", "started by hand it has to say"}, "wrong": {"item 0 of 1", "refused: answered"},
	} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=TestBroken") //nolint:gosec // this binary
		cmd.Env = append(os.Environ(), envBroken+"="+mode)
		out, err := cmd.CombinedOutput()
		for _, want := range says {
			if err == nil || !strings.Contains(string(out), want) {
				t.Errorf("%s: %v, want %q in\n%s", mode, err, want, out)
			}
		}
	}
}
