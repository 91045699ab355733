// Package wordcount tests the backend in JavaScript.
package wordcount

import (
	"os"
	"os/exec"
	"testing"

	"github.com/flambeau-serve/flambeau/handlersdk"
	"github.com/flambeau-serve/flambeau/handlersdk/handlertest"
)

func TestConformance(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("there is no Node.js")
	}
	if _, err := os.Stat("node_modules/@grpc/grpc-js"); err != nil {
		t.Skip("run npm ci --ignore-scripts in this folder")
	}
	opts := handlertest.Options{Sample: handlertest.Body("text/plain", []byte("one two\nthree\n")), Refused: &handlersdk.Item{}}
	handlertest.RunConformance(t, "wordcount.js", opts)
	p := handlertest.Start(t, "wordcount.js", opts)
	p.MustLoad()
	for i, r := range p.MustAsk(opts.Sample, handlertest.Body("", []byte("é"))) {
		if want := []string{`{"lines":2,"words":3,"letters":14}`, `{"lines":1,"words":1,"letters":1}`}[i]; string(r.Body) != want || r.Failure != nil {
			t.Errorf("%s, %+v", r.Body, r.Failure)
		}
	}
}
