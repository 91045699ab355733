package dispatch

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// TestDemand of requests and of sequences: what a worker has does not wait.
func TestDemand(t *testing.T) {
	for name, a := range map[string]archive.Archive{
		"requests":  {},
		"sequences": {Settings: archive.Settings{SequenceBatching: true, SequenceMaxIdle: time.Minute, MaxNumSequence: 10, MaxSequenceJobQueueSize: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newScene(t, slow(time.Second), a, 1)
				v, err := s.models.Resolve(infer.ModelRef{Name: "m"})
				if err != nil {
					t.Fatal(err)
				}
				want := func(waiting int, oldest time.Duration) {
					t.Helper()
					synctest.Wait()
					if n, since := s.Demand(v); n != waiting || since != oldest {
						t.Errorf("%d wait for %s, not %d for %s", n, since, waiting, oldest)
					}
				}
				want(0, 0)
				done := make(chan error, 3)
				for i := range 3 {
					one := item("x")
					one.Sequence = string(rune('a' + i))
					go func() {
						_, err := s.Submit(t.Context(), model, one)
						done <- err
					}()
					synctest.Wait()
					<-time.After(300 * time.Millisecond)
				}
				want(2, 600*time.Millisecond)
				<-time.After(200 * time.Millisecond) // the first one is answered after a second
				want(1, 500*time.Millisecond)
				for range 3 {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				want(0, 0)
				s.end(t)
			})
		})
	}
}
