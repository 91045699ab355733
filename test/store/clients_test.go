package store

import (
	"context"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// clientsLimit is how long all the calls of one test's clients may take on a busy machine, and how long their environment may take to be made.
const clientsLimit = 8 * time.Minute

// oip runs one of the programs of test/oip, and gives what it wrote.
func oip(t *testing.T, command string, args ...string) (output string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientsLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, command, args...).CombinedOutput()
	return string(out), err
}

// clients gives a Python with the clients of the Open Inference Protocol. It is made where tests are required, and else only used if it is there.
func clients(t *testing.T) string {
	t.Helper()
	script := repository(t, "test/oip/environment.sh")
	if os.Getenv("FLAMBEAU_TEST_REQUIRED") == "" {
		if _, err := os.Stat(repository(t, ".build/oip/clients/mark")); err != nil {
			t.Skip("there are no clients of the Open Inference Protocol: test/oip/environment.sh clients makes them")
		}
	}
	out, err := oip(t, script, "clients")
	if err != nil {
		t.Fatalf("the clients of the Open Inference Protocol cannot be installed: %v\n%s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	return lines[len(lines)-1]
}

// repository gives the absolute path of a file of the repository.
func repository(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(filepath.Join("../..", path))
	if err != nil {
		t.Fatal(err)
	}
	return abs
}

// startProtocol starts a server on a store with all that clients of the protocol may want, and gives its addresses.
func startProtocol(t *testing.T, box *e2e.Box, config ...string) (s *e2e.Server, rest, grpc string) {
	t.Helper()
	address := "127.0.0.1:" + strconv.Itoa(e2e.FreePorts(t, 1)[0])
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	s = start(t, box, append([]string{
		"grpc_inference_port", port, "enable_model_api", "true", "disable_token_authorization", "true", "system_shared_memory", "true",
		"trace_file", filepath.Join(box.Dir, "trace.json"), "default_workers_per_model", "1", "max_request_size", "67108864", "max_response_size", "67108864",
	}, config...)...)
	u, err := url.Parse(s.Inference)
	if err != nil {
		t.Fatal(err)
	}
	return s, u.Host, address
}

// TestClients makes every call of tritonclient and KServe's client. What they do with a real Triton, they do here.
func TestClients(t *testing.T) {
	box := e2e.NewBox(t)
	python := clients(t)
	if out, err := oip(t, python, repository(t, "test/oip/repository.py"), box.Store); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s, rest, grpc := startProtocol(t, box)
	requireReady(t, s, "addsub")
	for _, script := range []string{"calls.py", "kserve_calls.py"} {
		out, err := oip(t, python, repository(t, "test/oip/"+script), rest, grpc)
		if err != nil {
			t.Errorf("%s: %v\n%s", script, err, out)
		}
	}
	scripts := repository(t, "../shared/oip")
	if _, err := os.Stat(scripts); err != nil {
		return // they are recorded with a real Triton, and not everywhere
	}
	out, err := oip(t, python, repository(t, "test/oip/clients.py"), "--scripts", scripts, "--http", rest, "--grpc", grpc)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	seen := map[string]string{}
	for line := range strings.Lines(out) {
		if parts := strings.Split(strings.TrimSpace(line), "\t"); len(parts) > 1 {
			seen[parts[0]] = parts[1]
		}
	}
	for client, recorded := range map[string]string{"http": "triton-2.51-http.txt", "grpc": "triton-2.51-grpc.txt"} {
		text, err := os.ReadFile(filepath.Join(scripts, recorded))
		if err != nil {
			t.Fatal(err)
		}
		requireRecorded(t, client, string(text), seen)
	}
	for name, result := range seen {
		if strings.HasPrefix(name, "kserve") && result != "OK" {
			t.Errorf("%s: %s", name, result)
		}
	}
}

// requireRecorded compares results with those of a real Triton: lines of OK or FAIL, a name, and what was seen.
func requireRecorded(t *testing.T, client, recorded string, seen map[string]string) {
	t.Helper()
	okay := regexp.MustCompile(`(?m)^OK {3}(.*)$`)
	matched := 0
	for _, line := range okay.FindAllStringSubmatch(recorded, -1) {
		name := ""
		for candidate := range seen { // names may begin alike: the longest one is meant
			if own, ok := strings.CutPrefix(candidate, client+" "); ok && strings.HasPrefix(line[1], own) && len(own) > len(name) {
				name = own
			}
		}
		if name == "" {
			t.Errorf("%s: the call %.40q was not made", client, line[1])
			continue
		}
		matched++
		if result := seen[client+" "+name]; result != "OK" {
			t.Errorf("%s %s: %s, and Triton says OK", client, name, result)
		}
	}
	if matched == 0 {
		t.Errorf("%s: nothing recorded was found", client)
	}
}

// requireReady waits for a model.
func requireReady(t *testing.T, s *e2e.Server, model string) {
	t.Helper()
	if !e2e.Eventually(patience, func() bool {
		a, err := s.Ask(t.Context(), http.MethodGet, s.Inference+"/v2/models/"+model+"/ready", nil)
		return err == nil && a.Status == http.StatusOK
	}) {
		t.Fatalf("%s does not get ready: %s", model, e2e.Lines(s.Events(t, "")))
	}
}

// TestVerifiedModels has models that people use answer as they do in Python, over REST, gRPC and TorchServe's route, alone and together.
func TestVerifiedModels(t *testing.T) {
	box := e2e.NewBox(t)
	python := clients(t)
	script := repository(t, "test/oip/models.py")
	if out, err := oip(t, python, script, "prepare", box.Store, box.Home); err != nil {
		e2e.Lacks(t, err.Error()+"\n"+out)
	}
	s, rest, grpc := startProtocol(t, box)
	models, err := os.ReadDir(box.Store)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		requireReady(t, s, m.Name())
	}
	out, err := oip(t, python, script, "ask", box.Store, rest, grpc)
	t.Log(out)
	if err != nil {
		t.Error(err)
	}
}
