package rollout

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/plugins/backend"
	"github.com/flambeau-serve/flambeau/plugins/backendtest"
)

func TestWarmUp(t *testing.T) {
	refuse := func(*backendtest.Instance) ([]infer.Result, error) { return []infer.Result{{Status: 422}}, nil }
	die := func(i *backendtest.Instance) ([]infer.Result, error) { i.Die(nil); return nil, errors.New("died") }
	for name, c := range map[string]struct {
		mode   string
		sample string
		answer func(i *backendtest.Instance) ([]infer.Result, error)
		fails  string
		ran    int
	}{
		"last request":                  {mode: WarmUpAuto, ran: 1},
		"last request, off":             {mode: WarmUpOff},
		"last request, samples only":    {mode: WarmUpSamples},
		"last request is refused":       {mode: WarmUpAuto, ran: 1, answer: refuse},
		"last request kills the worker": {mode: WarmUpAuto, ran: 1, answer: die, fails: "did not survive"},
		"sample":                        {mode: WarmUpSamples, ran: 1, sample: "a.json"},
		"sample, off":                   {mode: WarmUpOff, sample: "a.json"},
		"sample is refused":             {mode: WarmUpAuto, ran: 1, sample: "a.json", answer: refuse, fails: "a.json"},
		"sample kills the worker":       {mode: WarmUpAuto, ran: 1, sample: "a.json", answer: die, fails: "a.json"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, digest := range []string{"one/warmup", "two/warmup"} {
				if err := os.MkdirAll(filepath.Join(dir, digest), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if c.sample != "" {
				if err := os.WriteFile(filepath.Join(dir, "two/warmup", c.sample), []byte("{}"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			synctest.Test(t, func(t *testing.T) { warmUp(t, dir, c.mode, c.answer, c.fails, c.ran) })
		})
	}
}

func warmUp(t *testing.T, dir, mode string, script func(i *backendtest.Instance) ([]infer.Result, error), fails string, want int) {
	t.Helper()
	var ran atomic.Int64
	l := digestLauncher(nil)
	launch := l.LaunchFunc
	l.LaunchFunc = func(ctx context.Context, n int, spec backend.ProcessSpec) (*backendtest.Instance, error) {
		i, err := launch(ctx, n, spec)
		if strings.HasSuffix(spec.Dir, "/two") {
			answer := i.PredictFunc
			i.PredictFunc = func(ctx context.Context, items []infer.Item) ([]infer.Result, error) {
				if ran.Add(1) == 1 && script != nil {
					return script(i)
				}
				return answer(ctx, items)
			}
		}
		return i, err
	}
	h := newHouse(t, l, archives{}, func(o *Options) { o.WarmUp = mode })
	defer h.end(t)
	at := func(digest string) Spec {
		a := load(digest)
		a.Dir = filepath.Join(dir, digest)
		return Spec{Archive: a, Synchronous: true}
	}
	register(t, h, at("one"))
	mustAnswer(t, h, "one")
	_, err := h.Deploy(t.Context(), at("two"))
	if (err != nil) != (fails != "") || err != nil && !strings.Contains(err.Error(), fails) {
		t.Fatalf("deploy: %v, want an error with %q", err, fails)
	}
	if n := ran.Load(); n != int64(want) {
		t.Errorf("%d warm-up requests, want %d", n, want)
	}
}
