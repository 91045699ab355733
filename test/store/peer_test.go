package store

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// reload is what came of one way of changing a model, several times under load.
type reload struct {
	changes, seen    int // seen: how many of the changes were served in the end
	requests, failed int
	unanswered       int           // of those that failed: without any answer within the limit
	gap              time.Duration // the longest time between two good answers
}

func (r reload) String() string {
	return fmt.Sprintf("%2d changes, %2d of them served; %6d requests, %4d failed, %3d of these without an answer; longest time without a good answer %5d ms",
		r.changes, r.seen, r.requests, r.failed, r.unanswered, r.gap.Milliseconds())
}

// change runs a load, changes the model a number of times, and counts.
func change(t *testing.T, address string, changes int, limit time.Duration, next func(number int)) reload {
	t.Helper()
	load := e2e.LoadOn(t, address, e2e.LoadOptions{Clients: 8, Path: predict, Every: 5 * time.Millisecond, Limit: limit})
	e2e.Pause(t.Context(), time.Second)
	r := reload{changes: changes}
	base := load.Newest()
	for i := 1; i <= changes; i++ {
		next(base + i)
		if e2e.Eventually(10*time.Second, func() bool { return load.Newest() >= base+i }) {
			r.seen++
		}
	}
	e2e.Pause(t.Context(), time.Second)
	samples := load.Stop()
	r.requests = len(samples)
	var good []time.Duration
	for _, sample := range samples {
		if sample.Failure == "" {
			good = append(good, sample.Received)
		}
	}
	slices.Sort(good)
	for i := 1; i < len(good); i++ {
		r.gap = max(r.gap, good[i]-good[i-1])
	}
	for _, sample := range e2e.Failures(samples) {
		r.failed++
		if sample.Status == 0 {
			r.unanswered++
		}
	}
	return r
}

// TestBesideTorchServe changes a model under load in two ways, on a real TorchServe and on this server, and prints what each made of it: a new file in
// the model store, and DELETE and POST on the management API.
func TestBesideTorchServe(t *testing.T) {
	peer := os.Getenv("FLAMBEAU_PEER")
	if peer == "" {
		t.Skip("FLAMBEAU_PEER does not name the folder of commands of an environment with TorchServe (make swaps makes one)")
	}
	changes := long(t, "FLAMBEAU_PEER_CHANGES", 3)
	const limit = 10 * time.Second // TorchServe leaves requests without an answer
	var made [2][2]reload
	for i, run := range []func(t *testing.T, box *e2e.Box) *peerServer{torchServe(peer), flambeau} {
		box := e2e.NewBox(t)
		put(t, box, model, 1)
		s := run(t, box)
		made[i][0] = change(t, s.inference, changes, limit, func(number int) { put(t, box, model, number) })
		made[i][1] = change(t, s.inference, changes, limit, func(number int) {
			put(t, box, model, number)
			request(t, http.MethodDelete, s.management+"/models/"+model)
			request(t, http.MethodPost, s.management+"/models?url="+file+"&initial_workers=1&synchronous=true")
		})
		s.stop(t)
	}
	t.Log("a new file in the store:")
	t.Logf("  TorchServe  %s", made[0][0])
	t.Logf("  Flambeau    %s", made[1][0])
	t.Log("DELETE and POST:")
	t.Logf("  TorchServe  %s", made[0][1])
	t.Logf("  Flambeau    %s", made[1][1])
	if r := made[1][0]; r.seen != changes || r.failed > 0 {
		t.Errorf("files in the store: %s; want all served and nothing failed", r)
	}
	if r := made[1][1]; r.unanswered > 0 {
		t.Errorf("DELETE and POST left requests without an answer: %s", r)
	}
	if r := made[0][0]; r.seen > 0 {
		t.Errorf("TorchServe followed its model store, which is said not to happen: %s", r)
	}
}

func request(t *testing.T, method, url string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close() //nolint:errcheck // nothing is read
	if response.StatusCode != http.StatusOK {
		t.Errorf("%s %s: %s", method, url, response.Status)
	}
}

// peerServer is a server of either kind.
type peerServer struct {
	inference, management string
	stop                  func(t *testing.T)
}

func flambeau(t *testing.T, box *e2e.Box) *peerServer {
	t.Helper()
	s := migrated(t, box)
	requireAnswer(t, s, predict, 1)
	return &peerServer{inference: s.Inference, management: s.Management, stop: s.Stop}
}

// torchServe starts a real one.
func torchServe(bin string) func(t *testing.T, box *e2e.Box) *peerServer {
	return func(t *testing.T, box *e2e.Box) *peerServer {
		t.Helper()
		ports := e2e.FreePorts(t, 5)
		at := func(i int) string { return fmt.Sprintf("http://127.0.0.1:%d", ports[i]) }
		config := box.WriteConfig(t, map[string]string{
			"inference_address": at(0), "management_address": at(1), "metrics_address": at(2), "grpc_inference_port": strconv.Itoa(ports[3]),
			"grpc_management_port": strconv.Itoa(ports[4]), "default_workers_per_model": "1", "number_of_gpu": "0", "install_py_dep_per_model": "false",
		})
		command := func(args ...string) *exec.Cmd {
			cmd := box.Command(context.WithoutCancel(t.Context()), filepath.Join(bin, "torchserve"), args...)
			cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
			return cmd
		}
		log, err := os.Create(filepath.Join(box.Dir, "torchserve.out"))
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close() //nolint:errcheck // the command has its own
		cmd := command("--start", "--foreground", "--ncs", "--ts-config", config, "--model-store", box.Store, "--models", model+"="+file,
			"--disable-token-auth", "--enable-model-api")
		cmd.Stdout, cmd.Stderr = log, log
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = cmd.Wait() // it is stopped by its own command, or killed
		}()
		stop := func(t *testing.T) {
			t.Helper()
			if out, err := command("--stop", "--foreground").CombinedOutput(); err != nil {
				t.Logf("torchserve --stop: %v: %s", err, out)
			}
			for _, pid := range box.Processes(t) {
				if process, err := os.FindProcess(pid); err == nil {
					_ = process.Kill() // its workers may outlive it
				}
			}
			<-ended
			requireEmptied(t, box.Tmp)
		}
		t.Cleanup(func() { stop(t) })
		if !e2e.Eventually(patience, func() bool {
			r, err := http.Post(at(0)+predict, octets, http.NoBody) //nolint:noctx // the test's limit is that of Eventually
			if err != nil {
				return false
			}
			defer r.Body.Close() //nolint:errcheck // nothing is read
			return r.StatusCode == http.StatusOK
		}) {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("TorchServe does not answer:\n%.20000s", text)
		}
		return &peerServer{inference: at(0), management: at(1), stop: stop}
	}
}

// requireEmptied empties a folder of what TorchServe left there.
func requireEmptied(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if err := os.RemoveAll(filepath.Join(dir, entry.Name())); err != nil {
			t.Error(err)
		}
	}
}
