// Package store tests, on the built product, that what is served follows the model store: under load, with broken archives, slow writers, full
// disks and killed processes. `make test` runs short versions; `make swaps` runs long ones and prints the figures.
package store

import (
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

const (
	patience = 60 * time.Second // for what has to happen, on a busy machine
	model    = "m"              // most tests have one model, in m.mar
	file     = model + ".mar"
	predict  = "/predictions/" + model
	octets   = "application/octet-stream"
)

// long says how large the long version of a test is to be; without the variable it gives the short one's size.
func long(t *testing.T, variable string, short int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return short
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return n
}

// start starts a server as `flambeau serve` on the box's store.
func start(t *testing.T, box *e2e.Box, config ...string) *e2e.Server {
	t.Helper()
	return box.Start(t, e2e.Options{Command: []string{"flambeau", "serve", "--model-store", box.Store}, Config: pairs(config)})
}

// migrated starts a server as the torchserve command on the whole store.
func migrated(t *testing.T, box *e2e.Box, config ...string) *e2e.Server {
	t.Helper()
	return box.Start(t, e2e.Options{
		Command: []string{"torchserve", "--start", "--foreground", "--ncs", "--model-store", box.Store, "--models", "all"}, Config: pairs(config),
	})
}

func pairs(list []string) map[string]string {
	all := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		all[list[i]] = list[i+1]
	}
	return all
}

// put puts the archive that answers with a number into the store, by rename, and gives its digest.
func put(t *testing.T, box *e2e.Box, name string, number int) string {
	t.Helper()
	content := e2e.Numbered(name, number, "").Bytes(t)
	box.Put(t, name+".mar", content)
	return e2e.Digest(content)
}

// answer asks a model once.
func answer(t *testing.T, s *e2e.Server, path string) string {
	t.Helper()
	return string(s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+path, []byte("x"), "Content-Type", octets).Body)
}

// requireAnswer waits until a model answers with a number.
func requireAnswer(t *testing.T, s *e2e.Server, path string, number int) {
	t.Helper()
	want, last := strconv.Itoa(number), ""
	if !e2e.Eventually(patience, func() bool {
		a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+path, []byte("x"), "Content-Type", octets)
		last = fmt.Sprintf("%d %s %v", a.Status, a.Body, err)
		return err == nil && a.Status == http.StatusOK && string(a.Body) == want
	}) {
		t.Fatalf("%s does not answer %s, last: %s\n%s", path, want, last, e2e.Lines(s.Events(t, "")))
	}
}

// requireFailure waits for the event that says why an archive does not serve, and gives its reason. One that could not be read has no digest.
func requireFailure(t *testing.T, s *e2e.Server, digest string, after uint64) string {
	t.Helper()
	var event e2e.Event
	if !e2e.Eventually(patience, func() bool {
		for _, event = range s.Events(t, "") {
			if event.ID > after && (event.Kind == "swap_failed" || event.Kind == "refused") && (event.Digest == digest || event.Digest == "") {
				return true
			}
		}
		return false
	}) {
		t.Fatalf("no event after %d says why %s does not serve:%s", after, digest, e2e.Lines(s.Events(t, "")))
	}
	return event.Reason
}

// newest is the ID of the newest event.
func newest(t *testing.T, s *e2e.Server) uint64 {
	t.Helper()
	events := s.Events(t, "")
	if len(events) == 0 {
		return 0
	}
	return events[len(events)-1].ID
}

// requireEvent waits for an event of one of the kinds about a digest, and gives it.
func requireEvent(t *testing.T, s *e2e.Server, digest string, kinds ...string) e2e.Event {
	t.Helper()
	var event e2e.Event
	if !e2e.Eventually(patience, func() bool {
		var found bool
		event, found = e2e.Find(s.Events(t, ""), digest, kinds...)
		return found
	}) {
		t.Fatalf("no event %v about %s:%s", kinds, digest, e2e.Lines(s.Events(t, "")))
	}
	return event
}
