package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

const neverLoads = `def handle(data, ctx):
    if data is None:
        print("one more try")
        raise RuntimeError("weights.bin is missing")
    return ["ok"] * len(data)
`

const good = `import os


def handle(data, ctx):
    return [str(os.getpid())] * len(data or [])
`

// described is a version as GET /models/M?details=true tells.
type described struct {
	State, Reason string
	Workers       []struct {
		PID                   int
		Status, State, Reason string
		Restarts              int
	}
	JobQueueStatus struct{ PendingRequests int }
}

func (s *Server) described(t *testing.T, model string) described {
	t.Helper()
	var versions []described
	answer := s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/"+model+"?details=true", nil)
	if err := json.Unmarshal(answer.Body, &versions); err != nil || len(versions) != 1 {
		t.Fatalf("%v: %s", err, answer.Body)
	}
	return versions[0]
}

// restarts is how often workers of a model were started again.
func (d *described) restarts() (n int) {
	for _, w := range d.Workers {
		n += w.Restarts
	}
	return n
}

// TestTriesEnd registers a model that cannot load beside one that serves: the answer says why, the tries have an end, are counted, and while it is there the server is not
// ready. The other one serves throughout.
func TestTriesEnd(t *testing.T) {
	box := NewBox(t)
	box.Put(t, "bad.mar", Archive{Name: "bad", Handler: neverLoads, Config: "maxRetryTimeoutInSec: 4\n"}.Bytes(t))
	s := box.serving(t, Options{}, Archive{Name: "good", Handler: good})
	load := s.StartLoad(t, LoadOptions{Clients: 1, Path: "/predictions/good", Every: 10 * time.Millisecond})
	const register = "/models?url=bad.mar&initial_workers=1&synchronous="
	refused := s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, s.Management+register+"true", nil)
	if hint := refused.Header.Get("X-Flambeau-Hint"); !strings.Contains(hint, "weights.bin is missing") {
		t.Errorf("the answer to the registration says %q: %s", hint, refused.Body)
	}
	s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/readyz", nil)
	before := strings.Count(s.Output(), "one more try")

	begun := time.Now()
	s.MustAsk(t, http.StatusAccepted, http.MethodPost, s.Management+register+"false", nil)
	var d described
	if !Eventually(startLimit, func() bool {
		d = s.described(t, "bad")
		return d.State == "failed" && len(d.Workers) == 1 && d.Workers[0].State == "failed"
	}) {
		t.Fatalf("the tries have no end: %+v", d)
	}
	ended, tries := time.Since(begun), strings.Count(s.Output(), "one more try")-before
	if !strings.Contains(d.Reason, "weights.bin is missing") || !strings.Contains(d.Workers[0].Reason, "weights.bin is missing") || d.restarts() != tries-1 {
		t.Errorf("after %d tries it is described as %+v", tries, d)
	}
	if tries < 2 || tries > 5 || ended < 4*time.Second {
		t.Errorf("%d tries in %v", tries, ended)
	}
	s.MustAsk(t, http.StatusServiceUnavailable, http.MethodGet, s.Inference+"/readyz", nil)
	said := string(s.MustAsk(t, http.StatusServiceUnavailable, http.MethodGet, s.Inference+"/readyz?model=bad&verbose", nil).Body)
	requireTexts(t, "/readyz", said, []string{"weights.bin is missing"})
	if a := s.predict(t, "bad", octets, "x"); a.Status != http.StatusServiceUnavailable || a.took > 10*time.Second {
		t.Errorf("a request to it: status %d after %v: %s", a.Status, a.took, a.Body)
	}
	if again := strings.Count(s.Output(), "one more try") - before; again != tries {
		t.Errorf("it was tried again after it had been given up: %d times in all, and %d before", again, tries)
	}
	RequireNoFailure(t, load.Stop())
}

const dying = `import os


def handle(data, ctx):
    if data is None:
        return None
    how = data[0]["body"].get("die")
    if how == "exit":
        os._exit(3)
    if how == "kill":
        os.kill(os.getpid(), 9)
    return [str(os.getpid())] * len(data)
`

// TestRequestThatEndsItsWorker is answered at once, and what comes right after it is answered by another process. The exit is counted and told. A signal that
// may have come from anybody is tried once more, unless the model says that nothing is to be tried again.
func TestRequestThatEndsItsWorker(t *testing.T) {
	box := NewBox(t)
	s := box.serving(t, Options{}, Archive{Name: "tries", Handler: dying}, Archive{Name: "once", Handler: dying, Config: "retry: false\n"})
	for _, tc := range []struct {
		model, die, told string
		status, deaths   int
	}{
		{"tries", "exit", "status 3", http.StatusInternalServerError, 1},
		{"tries", "kill", "signal 9", http.StatusInsufficientStorage, 2},
		{"once", "exit", "status 3", http.StatusInternalServerError, 1},
		{"once", "kill", "signal 9", http.StatusInsufficientStorage, 1},
	} {
		t.Run(tc.model+" "+tc.die, func(t *testing.T) {
			pid := string(s.predict(t, tc.model, asJSON, `{}`).Body)
			d := s.described(t, tc.model)
			before := d.restarts()
			if a := s.predict(t, tc.model, asJSON, fmt.Sprintf(`{"die": %q}`, tc.die)); a.Status != tc.status || a.took > 20*time.Second {
				t.Errorf("the one that ends it: status %d after %v: %s", a.Status, a.took, a.Body)
			}
			a := s.predict(t, tc.model, asJSON, `{}`)
			if a.Status != http.StatusOK || string(a.Body) == pid || a.took > 30*time.Second {
				t.Errorf("the next one: status %d after %v: %s, and the process was %s", a.Status, a.took, a.Body, pid)
			}
			if d = s.described(t, tc.model); d.restarts() != before+tc.deaths || len(d.Workers) != 1 || strconv.Itoa(d.Workers[0].PID) != string(a.Body) {
				t.Errorf("%d restarts before, and then %+v, want %d more", before, d, tc.deaths)
			}
			if !Eventually(startLimit, func() bool { return tellsOf(t, box, tc.told, tc.model) }) {
				t.Errorf("no line of the log has %q and the model", tc.told)
			}
		})
	}
}

const sleepy = `import os
import time


def handle(data, ctx):
    if data is None:
        return None
    if "mark" in data[0]["body"]:
        open(data[0]["body"]["mark"], "w").close()
    time.sleep(data[0]["body"].get("s", 0))
    return [str(os.getpid())] * len(data)
`

// TestSlowHandlerMeetsItsLimit while another model is not held up: the late request fails when the limit is over, with the limit in its reason, the one behind it is
// answered, and one process of the model is left.
func TestSlowHandlerMeetsItsLimit(t *testing.T) {
	const limit = 3 * time.Second
	box := NewBox(t)
	s := box.serving(t, Options{}, Archive{Name: "slow", Handler: sleepy, Config: "responseTimeout: 3\n"}, Archive{Name: "fast", Handler: good})
	load := s.StartLoad(t, LoadOptions{Clients: 1, Path: "/predictions/fast", Every: 100 * time.Millisecond})
	mark, late := filepath.Join(box.Dir, "running"), make(chan timed, 1)
	go func() { late <- s.predict(t, "slow", asJSON, fmt.Sprintf(`{"s": 60, "mark": %q}`, mark)) }()
	if !Eventually(startLimit, func() bool { return there(mark) }) {
		t.Fatal("the slow one does not run")
	}
	second := s.predict(t, "slow", asJSON, `{}`)
	a := <-late
	if a.Status != http.StatusInternalServerError || a.took < limit || a.took > limit+20*time.Second {
		t.Errorf("the late one: status %d after %v: %s", a.Status, a.took, a.Body)
	}
	requireReason(t, a.Answer, "response_timeout", "within the response timeout of 3s; raise responseTimeout")
	if !Eventually(startLimit, func() bool {
		return tellsOf(t, box, "request failed", "response timeout of 3s", "/predictions/slow", a.Header.Get("X-Request-Id"))
	}) {
		t.Error("the log does not have the request, its model and the limit")
	}
	if second.Status != http.StatusOK || second.took > 30*time.Second {
		t.Errorf("the one behind it: status %d after %v: %s", second.Status, second.took, second.Body)
	}
	if a := s.predict(t, "slow", asJSON, `{}`); a.Status != http.StatusOK || string(a.Body) != string(second.Body) {
		t.Errorf("after that: status %d by %s, and before by %s", a.Status, a.Body, second.Body)
	}
	samples := load.Stop()
	RequireNoFailure(t, samples)
	if others := Latencies(samples, 0, time.Hour); others.Max > limit-time.Second/2 {
		t.Errorf("the other model was held up: %s", others)
	}
	if !Eventually(startLimit, func() bool { return len(box.Workers(t)) == 2 }) {
		t.Errorf("processes %v are left, want one for each model", box.Workers(t))
	}
}
