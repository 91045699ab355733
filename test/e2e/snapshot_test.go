package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// batchHandler answers with the batch size that the handler is told.
const batchHandler = `
def handle(data, context):
    if data is None:
        return None
    return [str(context.system_properties["batch_size"])] * len(data)

def other(data, context):
    return None if data is None else ["other"] * len(data)
`

// packBatch makes NAME.mar, whose handler answers with its batch size. Settings are a model-config.yaml, "" for none.
func packBatch(t *testing.T, box *Box, file, name, version, settings string) {
	t.Helper()
	dir := t.TempDir()
	args := []string{"--model-name", name, "--version", version, "--handler", filepath.Join(dir, "h.py"), "--export-path", dir}
	if err := os.WriteFile(filepath.Join(dir, "h.py"), []byte(batchHandler), 0o600); err != nil {
		t.Fatal(err)
	}
	if settings != "" {
		if err := os.WriteFile(filepath.Join(dir, "c.yaml"), []byte(settings), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config-file", filepath.Join(dir, "c.yaml"))
	}
	box.Run(t, "torch-model-archiver", args...)
	if err := os.Rename(filepath.Join(dir, name+".mar"), filepath.Join(box.Store, file)); err != nil {
		t.Fatal(err)
	}
}

// again starts a server in the working folder of one that has ended, without a configuration file: it has to find its addresses by itself.
func again(t *testing.T, before *Server, args ...string) *Server {
	t.Helper()
	s := &Server{Inference: before.Inference, Management: before.Management, Metrics: before.Metrics, box: before.box, out: &output{}, exited: make(chan struct{})}
	s.cmd = s.box.server(context.WithoutCancel(t.Context()), append([]string{"torchserve", "--start", "--foreground"}, args...))
	s.cmd.Stdout, s.cmd.Stderr = s.out, s.out
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		s.err = s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(func() {
		s.Stop(t)
		if t.Failed() {
			t.Logf("what the restarted server wrote:\n%s", s.Output())
		}
	})
	if !Eventually(startLimit, func() bool { return s.ended() || strings.Contains(s.Output(), "Model server started.") }) || s.ended() {
		t.Fatalf("the server did not start again (exit: %v)\n%s", s.cmd.ProcessState, s.Output())
	}
	return s
}

// withSnapshots is the torchserve command without --ncs.
func withSnapshots() []string { return []string{"torchserve", "--start", "--foreground"} }

// versionOf is a version as GET /models/NAME/all has it.
type versionOf struct {
	Version    string `json:"modelVersion"`
	URL        string `json:"modelUrl"`
	MinWorkers int    `json:"minWorkers"`
	MaxWorkers int    `json:"maxWorkers"`
	BatchSize  int    `json:"batchSize"`
	Delay      int    `json:"maxBatchDelay"`
	Response   int    `json:"responseTimeout"`
}

func (s *Server) versions(t *testing.T, model string) []versionOf {
	t.Helper()
	var all []versionOf
	if err := json.Unmarshal(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/"+model+"/all", nil).Body, &all); err != nil {
		t.Fatal(err)
	}
	return all
}

func (s *Server) batchSeen(t *testing.T, model string) string {
	t.Helper()
	var body string
	Eventually(startLimit, func() bool { // the worker of a restored model may still be loading
		answer, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/"+model, []byte("x"))
		body = string(answer.Body)
		return err == nil && answer.Status == http.StatusOK
	})
	return body
}

// settings are what `flambeau config` says about each key.
func settingsOf(t *testing.T, box *Box, env []string, args ...string) map[string][2]string {
	t.Helper()
	cmd := box.server(t.Context(), append([]string{"flambeau", "config", "--json"}, args...))
	cmd.Env = append(cmd.Env, env...)
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("flambeau config: %v", err)
	}
	var entries []struct{ Key, Value, Origin string }
	if err := json.Unmarshal(text, &entries); err != nil {
		t.Fatal(err)
	}
	all := map[string][2]string{}
	for _, e := range entries {
		all[e.Key] = [2]string{e.Value, e.Origin}
	}
	return all
}

// TestSourcesOfSettings sets the same thing in several places: the handler sees the winner that the documentation names, the log and `flambeau config` give
// each value with its source, and a key that is not known is named.
func TestSourcesOfSettings(t *testing.T) {
	box := NewBox(t)
	packBatch(t, box, "plain.mar", "plain", "1.0", "")
	packBatch(t, box, "filed.mar", "filed", "1.0", "batchSize: 4\nmaxBatchDelay: 10\n")
	packBatch(t, box, "asked.mar", "asked", "1.0", "batchSize: 4\nmaxBatchDelay: 10\n")
	env := []string{"TS_JOB_QUEUE_SIZE=33"}
	s := box.Start(t, Options{
		Args: []string{"--models", "plain.mar", "filed.mar"}, Env: env,
		Config: map[string]string{
			"models":                `{"plain": {"1.0": {"batchSize": 2}}, "filed": {"1.0": {"batchSize": 2}}, "asked": {"1.0": {"batchSize": 2}}}`,
			"enable_envvars_config": "true", "job_queue_size": "22", "load_models": "asked.mar", "job_queue_sise": "1", "default_response_timeout": "44",
		},
	})
	s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=asked.mar&batch_size=8&initial_workers=1&synchronous=true", nil)
	for model, want := range map[string]string{"plain": "2", "filed": "4", "asked": "8"} {
		if got := s.batchSeen(t, model); got != want {
			t.Errorf("the handler of %s sees the batch size %s, want %s", model, got, want)
		}
	}
	file := filepath.Join(box.Dir, "e2e.properties")
	want := map[string][2]string{
		"job_queue_size":           {"33", "the environment variable TS_JOB_QUEUE_SIZE"},
		"load_models":              {"plain.mar,filed.mar", "--models"},
		"default_response_timeout": {"44", file},
	}
	got := settingsOf(t, box, env, "--ts-config", file, "--models", "plain.mar", "filed.mar")
	for key, w := range want {
		if g := got[key]; g[0] != w[0] || !strings.HasPrefix(g[1], w[1]) {
			t.Errorf("flambeau config: %s is %q, want %q", key, g, w)
		}
		origin := w[1]
		if !strings.Contains(s.Output(), "key="+key+" value="+w[0]+" origin=") || !strings.Contains(s.Output(), origin) {
			t.Errorf("the log does not say that %s is %s because of %s", key, w[0], origin)
		}
	}
	if !strings.Contains(s.Output(), "the key job_queue_sise is not known and has no effect; did you mean job_queue_size?") {
		t.Error("the key that is not known is not reported")
	}
}

// TestRestartKeepsWhatTheAPIDid registers, scales and removes models through the management API, ends the server, and starts it without a word about any of
// that: all is back, and nothing is open that was not opened again.
func TestRestartKeepsWhatTheAPIDid(t *testing.T) {
	for _, end := range []string{"stopped", "killed"} {
		t.Run(end, func(t *testing.T) {
			box := NewBox(t)
			packBatch(t, box, "first.mar", "first", "1.0", "batchSize: 4\n")
			packBatch(t, box, "second.mar", "second", "1.0", "")
			packBatch(t, box, "second2.mar", "second", "2.0", "")
			packBatch(t, box, "gone.mar", "gone", "1.0", "")
			s := box.Start(t, Options{Command: withSnapshots(), Args: []string{"--models", "first.mar", "gone.mar"}, Config: map[string]string{"allowed_urls": "https://mine/.*"}})
			for _, step := range [][2]string{
				{http.MethodPost, "/models?url=second.mar&batch_size=2&initial_workers=1&synchronous=true"},
				{http.MethodDelete, "/models/second"}, // the way to change its batch size
				{http.MethodPost, "/models?url=second.mar&batch_size=6&max_batch_delay=70&response_timeout=55&initial_workers=1&synchronous=true"},
				{http.MethodPost, "/models?url=second2.mar&initial_workers=0"},
				{http.MethodPut, "/models/second/2.0/set-default"},
				{http.MethodPut, "/models/second/1.0?min_worker=2&max_worker=3&synchronous=true"},
				{http.MethodPut, "/models/second/2.0?min_worker=1&synchronous=true"},
				{http.MethodDelete, "/models/gone"},
				{http.MethodPost, "/models?url=first.mar&model_name=other&handler=h.py:other&initial_workers=1&synchronous=true"},
			} {
				s.MustAsk(t, http.StatusOK, step[0], s.Management+step[1], nil)
			}
			before := s.versions(t, "second")
			if end == "killed" {
				s.Kill(t)
				Eventually(goneLimit, func() bool { return len(box.Processes(t)) == 0 })
			} else {
				s.Stop(t)
			}

			s = again(t, s, "--disable-token-auth", "--models", "gone.mar")
			after := s.versions(t, "second")
			if !slices.Equal(before, after) || len(after) != 2 || after[0] != (versionOf{"1.0", "second.mar", 2, 3, 6, 70, 55}) {
				t.Errorf("before %+v, after %+v", before, after)
			}
			if got := s.batchSeen(t, "second/1.0"); got != "6" {
				t.Errorf("the handler of second 1.0 sees the batch size %s", got)
			}
			if got := s.versionsOfDefault(t, "second"); got != "2.0" {
				t.Errorf("the default version is %s", got)
			}
			if got := s.batchSeen(t, "first"); got != "4" {
				t.Errorf("the handler of first sees the batch size %s", got)
			}
			if got := s.batchSeen(t, "other"); got != "other" {
				t.Errorf("the handler of the registration is not back: %s", got)
			}
			s.MustAsk(t, http.StatusNotFound, http.MethodGet, s.Management+"/models/gone", nil)
			// The model API was open in the first run, by a file that is not named any more.
			s.MustAsk(t, http.StatusMethodNotAllowed, http.MethodPost, s.Management+"/models?url=gone.mar", nil)
			for _, want := range []string{
				"--models has no effect: the models of the snapshot logs/config/", "enable_model_api=true is not restored from a snapshot", `key=allowed_urls value=https://mine/.* origin="logs/config/`,
			} {
				if !strings.Contains(s.Output(), want) {
					t.Errorf("the start does not say: %s", want)
				}
			}
			if strings.Contains(s.Output(), "disable_token_authorization=true is not restored") {
				t.Error("a switch that was given again is warned of")
			}
			s.Stop(t)

			// Without the option, keys are needed again; an archive that is missing does not keep the others.
			away := filepath.Join(box.Dir, "away.mar")
			if err := os.Rename(filepath.Join(box.Store, "second.mar"), away); err != nil {
				t.Fatal(err)
			}
			s = again(t, s)
			s.MustAsk(t, http.StatusBadRequest, http.MethodPost, s.Inference+"/predictions/first", []byte("x"))
			if out := s.Output(); !strings.Contains(out, "archive=second.mar") || !strings.Contains(out, "disable_token_authorization=true is not restored") {
				t.Errorf("the start does not name the missing archive, or what is not restored")
			}
			s.Stop(t)

			// It comes back with its archive, although a run was without it.
			if err := os.Rename(away, filepath.Join(box.Store, "second.mar")); err != nil {
				t.Fatal(err)
			}
			s = again(t, s, "--disable-token-auth")
			if after := s.versions(t, "second"); !slices.Equal(before, after) {
				t.Errorf("before %+v, after the archive came back %+v", before, after)
			}
			s.Stop(t)

			// --ncs knows nothing of it.
			s = again(t, s, "--ncs", "--disable-token-auth", "--model-store", box.Store, "--ts-config", filepath.Join(box.Dir, "e2e.properties"))
			s.MustAsk(t, http.StatusNotFound, http.MethodGet, s.Management+"/models/second", nil)
		})
	}
}

// versionsOfDefault is the version that a request without one gets.
func (s *Server) versionsOfDefault(t *testing.T, model string) string {
	t.Helper()
	var all []versionOf
	if err := json.Unmarshal(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Management+"/models/"+model, nil).Body, &all); err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	return all[0].Version
}

// TestStraySnapshots starts beside files that are no snapshots, half ones and empty ones: TorchServe does not.
func TestStraySnapshots(t *testing.T) {
	box := NewBox(t)
	packBatch(t, box, "m.mar", "m", "1.0", "")
	s := box.Start(t, Options{Command: withSnapshots(), Args: []string{"--models", "m.mar"}})
	s.Stop(t)
	folder := filepath.Join(box.Dir, "logs", "config")
	files, err := filepath.Glob(filepath.Join(folder, "*-shutdown.cfg"))
	if err != nil || len(files) != 1 {
		t.Fatalf("%v, %v", files, err)
	}
	whole, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"20991231235959001-startup.cfg": whole[:len(whole)/2], "20991231235959002-snapshot.cfg": nil, "zzz.txt": []byte("x"), ".hidden": nil,
	} {
		if err := os.WriteFile(filepath.Join(folder, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = again(t, s, "--disable-token-auth")
	if got := s.batchSeen(t, "m"); got != "1" {
		t.Errorf("the handler answers %s", got)
	}
	for _, name := range []string{"20991231235959001-startup.cfg cannot be used", "20991231235959002-snapshot.cfg cannot be used"} {
		if !strings.Contains(s.Output(), name) {
			t.Errorf("the start does not say: %s", name)
		}
	}
}

// TestSnapshotsOfTorchServe has a real TorchServe write a snapshot, starts with it, and has TorchServe start with ours. FLAMBEAU_PEER is the folder with its
// commands; Java has to be on the PATH.
func TestSnapshotsOfTorchServe(t *testing.T) {
	peer := os.Getenv("FLAMBEAU_PEER")
	if peer == "" {
		t.Skip("FLAMBEAU_PEER does not name the folder of the commands of a real TorchServe")
	}
	box := NewBox(t)
	packBatch(t, box, "m.mar", "m", "1.0", "")
	packBatch(t, box, "m2.mar", "m", "2.0", "batchSize: 4\nminWorkers: 1\nmaxWorkers: 2\n")
	ports := FreePorts(t, 5)
	s := &Server{box: box, out: &output{}}
	s.Inference, s.Management, s.Metrics = local(ports[0]), local(ports[1]), local(ports[2])
	file := box.WriteConfig(t, map[string]string{
		"inference_address": s.Inference, "management_address": s.Management, "metrics_address": s.Metrics, "grpc_inference_port": strconv.Itoa(ports[3]),
		"grpc_management_port": strconv.Itoa(ports[4]), "model_store": box.Store, "default_workers_per_model": "1", "cors_allowed_origin": `sch\u00f6n`, "number_of_gpu": "0",
	})
	var before []versionOf
	runPeer(t, peer, s, []string{"--ts-config", file, "--models", "m.mar", "--enable-model-api"}, func() {
		s.MustAsk(t, http.StatusOK, http.MethodPost, s.Management+"/models?url=m2.mar&batch_size=3&initial_workers=1&synchronous=true", nil)
		s.MustAsk(t, http.StatusOK, http.MethodPut, s.Management+"/models/m/2.0/set-default", nil)
		s.MustAsk(t, http.StatusOK, http.MethodPut, s.Management+"/models/m/1.0?min_worker=2&max_worker=3&synchronous=true", nil)
		before = s.versions(t, "m")
	})

	ours := again(t, s, "--disable-token-auth", "--enable-model-api")
	if after := ours.versions(t, "m"); !slices.Equal(before, after) || len(after) != 2 {
		t.Errorf("TorchServe had %+v, and we have %+v", before, after)
	}
	if got := ours.versionsOfDefault(t, "m"); got != "2.0" {
		t.Errorf("the default version is %s", got)
	}
	if got := ours.batchSeen(t, "m"); got != "3" {
		t.Errorf("the handler sees the batch size %s", got)
	}
	if got := ours.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/ping", nil).Header.Get("Access-Control-Allow-Origin"); got != "schön" {
		t.Errorf("a setting came back as %q", got)
	}
	ours.MustAsk(t, http.StatusOK, http.MethodPut, s.Management+"/models/m/2.0?min_worker=2&max_worker=4&synchronous=true", nil)
	before = ours.versions(t, "m")
	ours.Stop(t)

	newest, err := filepath.Glob(filepath.Join(box.Dir, "logs", "config", "*.cfg"))
	if err != nil || len(newest) == 0 {
		t.Fatalf("%v, %v", newest, err)
	}
	for name, args := range map[string][]string{"named": {"--ncs", "--ts-config", slices.Max(newest)}, "found": {"--model-store", box.Store}} {
		runPeer(t, peer, s, args, func() {
			if after := s.versions(t, "m"); !slices.Equal(before, after) {
				t.Errorf("%s: we had %+v, and TorchServe has %+v", name, before, after)
			}
			if got := s.batchSeen(t, "m"); got != "3" {
				t.Errorf("%s: the handler sees the batch size %s", name, got)
			}
		})
	}
	if err := os.RemoveAll(filepath.Join(box.Tmp, "models")); err != nil { // TorchServe's own
		t.Error(err)
	}
}

func local(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// runPeer starts a real TorchServe, calls use when it is up, and stops it.
func runPeer(t *testing.T, peer string, s *Server, args []string, use func()) {
	t.Helper()
	command := func(args ...string) *exec.Cmd {
		cmd := s.box.Command(context.WithoutCancel(t.Context()), filepath.Join(peer, "torchserve"), args...)
		cmd.Env = append(cmd.Env, "PATH="+peer+":"+os.Getenv("PATH"), "TEMP="+s.box.Tmp)
		cmd.Stdout, cmd.Stderr = s.out, s.out
		return cmd
	}
	server := command(append([]string{"--start", "--foreground", "--disable-token-auth"}, args...)...)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer func() {
		if err := command("--stop", "--foreground").Run(); err != nil {
			t.Errorf("torchserve --stop: %v", err)
		}
		if err := <-ended; err != nil {
			t.Errorf("TorchServe: %v", err)
		}
		Eventually(stopLimit, func() bool { return len(s.box.Processes(t)) == 0 })
	}()
	if !Eventually(2*time.Minute, func() bool { return s.healthy(t) }) {
		t.Fatalf("TorchServe is not up\n%s", s.Output())
	}
	use()
}
