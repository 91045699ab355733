package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
)

func text(s string) handlersdk.Item { return handlertest.Body("text/plain", []byte(s)) }

func TestCountdown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &countdown{pause: time.Second}
		if err := c.Initialize(t.Context(), handlersdk.Model{Name: "countdown"}); err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		results, err := c.Handle(t.Context(), []handlersdk.Item{text("3\n"), text("0"), text("x"), text("-1"), {}})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(results[0].Body) + string(results[1].Body); got != "3\n2\n1\nlift-off\nlift-off\n" {
			t.Errorf("%q", got)
		}
		for _, r := range results[2:] {
			if r.Err == nil || len(r.Body) > 0 {
				t.Errorf("%+v", r)
			}
		}
		if took := time.Since(begun); took != 3*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

func TestConformance(t *testing.T) {
	program := filepath.Join(t.TempDir(), "countdown")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	refused := text("many")
	opts := handlertest.Options{Sample: text("1"), Refused: &refused}
	handlertest.RunConformance(t, program, opts)
	p := handlertest.Start(t, program, opts)
	p.MustLoad()
	r := p.MustAsk(text("3"))[0]
	var pieces []string
	for _, piece := range r.Pieces {
		pieces = append(pieces, strings.TrimSpace(string(piece)))
	}
	if strings.Join(pieces, " ") != "3 2 1" || string(r.Body) != "lift-off\n" {
		t.Errorf("pieces %q, the end %q", pieces, r.Body)
	}
}
