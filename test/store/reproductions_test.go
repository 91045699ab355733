package store

// The cases of public bug reports about other servers that have to do with the model store, reloads, versions and packaging, and which tests would fail on their faults:
//
//	settings from several sources, and what a restart keeps   e2e.TestSourcesOfSettings, e2e.TestRestartKeepsWhatTheAPIDid, config.TestPrecedence, rollout.TestPrecedenceOfSettings
//	handlers of TorchServe without torch and torchserve       e2e.TestMigratedHandlerNeedsNoTorch, e2e.TestBareInterpreters, e2e.TestTorchComesWithBaseHandlerAtTheEarliest
//	a handler that cannot initialize                          store.TestModelThatDoesNotLoadBesideOneThatServes, e2e.TestWhyAModelDoesNotLoad, deploy.TestBackOff
//	a model that loads for longer than a minute               store.TestLoadingHasItsOwnLimit, rollout.TestStartupTimeout
//	a model replaced under load                               store.TestSlowlyLoadingVersionTakesOverWithoutAFailure, store.TestSwapsUnderLoad, store.TestManifestVersionsUnderLoad, store.TestVersionFoldersUnderLoad
//	an archive that is copied slowly                          store.TestCopyInPieces, store.TestSlowWriter, store.TestCopiedFolder, watch.TestFolderCopiedFileByFile
//	a new version that is no good                             store.TestBrokenArchiveLeavesTheOldOne, store.TestBadVersionIsCounted, store.TestFailingArchiveIsTriedLessAndLess
//	large bodies while a model is replaced                    store.TestLargeBodiesAcrossASwap
//	models with the same names inside                         store.TestModelsWithTheSameNamesInside, e2e.TestModelsWithEqualNames, e2e.TestModulesNamedLikeThePlatforms
//	requirements of models                                    e2e.TestDependenciesOfModels, e2e.TestDependenciesAreOffByDefault
//	a server that is asked to end                             e2e.TestSIGTERMAnswersWhatRuns, e2e.TestKilledServerLeavesNoProcess, store.TestKilledServerServesWhatIsInTheStore
//	requests while a model is unregistered or scaled down     e2e.TestUnregisterAndScaleDownLoseNothing, store.TestVersionsUnderLoad, rollout.TestScaleDownLetsRunningBatchesEnd
//
// TestReproductionsAreThere holds this list to the tests that there are.

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/test/e2e"
)

// TestSlowlyLoadingVersionTakesOverWithoutAFailure sends 50 requests in a second from 8 clients, and puts a version in place that needs 3 s to load:
// each client sees the old one, then the new one, and never the old one again; afterwards the old processes are gone.
func TestSlowlyLoadingVersionTakesOverWithoutAFailure(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, model, 1)
	s := start(t, box)
	requireAnswer(t, s, predict, 1)
	old := box.Workers(t)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 8, Path: predict, Every: 160 * time.Millisecond})
	e2e.Pause(t.Context(), time.Second)
	content := e2e.Numbered(model, 2, "time.sleep(3)").Bytes(t)
	put := load.Now()
	box.Put(t, file, content)
	s.RequireServing(t, model, e2e.Digest(content))
	requireAnswer(t, s, predict, 2)
	e2e.Pause(t.Context(), time.Second)
	samples := load.Stop()
	e2e.RequireNoFailure(t, samples)
	e2e.RequireFresh(t, samples, nil)
	at := slices.IndexFunc(samples, func(sample e2e.Sample) bool { return sample.Number == 2 })
	if at < 0 || samples[at].Received-put < 3*time.Second {
		t.Errorf("the new version answered before it can have loaded")
	}
	if !e2e.Eventually(patience, func() bool { return len(box.Workers(t)) == len(old) }) {
		t.Errorf("workers %v, want as many as before: %v", box.Workers(t), old)
	}
	for _, pid := range box.Workers(t) {
		if slices.Contains(old, pid) {
			t.Errorf("process %d of the old version still runs", pid)
		}
	}
}

// TestBadVersionIsCounted has a version fail and a later one heal it, without a restart: a metric counts the failure.
func TestBadVersionIsCounted(t *testing.T) {
	box, s, load := serveZero(t, "metrics_mode", "prometheus")
	failed := func() float64 {
		t.Helper()
		var sum float64
		for line := range strings.Lines(string(s.MustAsk(t, http.StatusOK, http.MethodGet, s.Metrics+"/metrics", nil).Body)) {
			line = strings.TrimSpace(line)
			if !strings.HasPrefix(line, "#") && strings.Contains(line, `_swaps_total{`) && strings.Contains(line, `outcome="failed"`) && strings.Contains(line, `"`+model+`"`) {
				n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
				if err != nil {
					t.Fatal(err)
				}
				sum += n
			}
		}
		return sum
	}
	before := failed()
	content := e2e.Numbered(model, 1, `raise ValueError("planted")`).Bytes(t)
	box.Put(t, file, content)
	requireEvent(t, s, e2e.Digest(content), "swap_failed")
	if !e2e.Eventually(patience, func() bool { return failed() > before }) {
		t.Error("no metric counts the failed swap")
	}
	s.RequireServing(t, model, put(t, box, model, 2))
	requireFlawless(t, load)
}

const sameNames = `
import json
import os

import utils
from pkg import tag


class Handler:
    def initialize(self, context):
        self.dir = context.system_properties["model_dir"]

    def handle(self, data, context):
        def read(path):
            with open(os.path.join(self.dir, path)) as f:
                return json.load(f)["v"]

        return ["|".join([utils.NAME, tag, read("conf.json"), read("pkg/conf.json")])] * len(data)
`

// TestModelsWithTheSameNamesInside has two models whose files have equal names: each answers with its own, also after both were replaced. A model
// with a module that is called as one of Python's is on its own.
func TestModelsWithTheSameNamesInside(t *testing.T) {
	box := e2e.NewBox(t)
	same := func(name, mark string) {
		t.Helper()
		box.Put(t, name+".mar", e2e.Archive{Name: name, Handler: sameNames, Files: map[string]string{
			"utils.py": "NAME = '" + mark + "utils'\n", "pkg/__init__.py": "tag = '" + mark + "pkg'\n",
			"conf.json": `{"v": "` + mark + `top"}`, "pkg/conf.json": `{"v": "` + mark + `inner"}`,
		}}.Bytes(t))
	}
	same("one", "A")
	same("two", "B")
	s := start(t, box)
	require := func(name, mark string) {
		t.Helper()
		want, last := fmt.Sprintf("%[1]sutils|%[1]spkg|%[1]stop|%[1]sinner", mark), ""
		if !e2e.Eventually(patience, func() bool {
			a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+"/predictions/"+name, []byte("x"))
			last = string(a.Body)
			return err == nil && last == want
		}) {
			t.Errorf("%s answers %s, want %s", name, last, want)
		}
	}
	require("one", "A")
	require("two", "B")
	same("one", "C")
	same("two", "D")
	require("one", "C")
	require("two", "D")
	for _, module := range []string{"logging.py", "ts.py"} {
		a := e2e.Numbered("odd", len(module), "")
		a.Files = map[string]string{module: "HERE = 1\n"}
		content := a.Bytes(t)
		box.Put(t, "odd.mar", content)
		// Either it serves, or it says what is wrong; the others go on.
		if !e2e.Eventually(patience, func() bool {
			m, _ := s.Model(t, "odd", "")
			return m.State == "serving" && m.Digest == e2e.Digest(content) || strings.Contains(m.Reason+fmt.Sprint(m.LastFailure), module)
		}) {
			t.Errorf("a model with %s neither serves nor says why: %+v", module, s.Models(t))
		}
		require("one", "C")
	}
}

// TestModelThatDoesNotLoadBesideOneThatServes starts with a broken model and a good one: the good one serves throughout, the reason is told, the tries
// are spaced, and a good archive in the broken one's place serves.
func TestModelThatDoesNotLoadBesideOneThatServes(t *testing.T) {
	box := e2e.NewBox(t)
	put(t, box, "good", 50)
	box.Put(t, file, e2e.Numbered(model, 1, `print("one", "more", "try"); raise RuntimeError("weights.bin is missing")`).Bytes(t))
	s := start(t, box)
	requireAnswer(t, s, "/predictions/good", 50)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: "/predictions/good"})
	began := time.Now()
	if !e2e.Eventually(patience, func() bool { return tells(t, s, "weights.bin is missing") }) {
		t.Errorf("nobody says what is missing: %+v, %s", s.Models(t), e2e.Lines(s.Events(t, "")))
	}
	e2e.Pause(t.Context(), time.Until(began.Add(10*time.Second)))
	counted := tries(t, box)
	if counted < 2 || counted > 5 {
		t.Errorf("%d tries in 10 s, want 2 to 5", counted)
	}
	asked := time.Now()
	got := s.MustAsk(t, http.StatusInternalServerError, http.MethodPost, s.Management+"/models?url="+file+"&initial_workers=1&synchronous=true", nil)
	if took := time.Since(asked); took > 30*time.Second || !strings.Contains(got.Header.Get("X-Flambeau-Hint"), "weights.bin is missing") {
		t.Errorf("the answer to a registration came after %v and says %q: %s", took, got.Header.Get("X-Flambeau-Hint"), got.Body)
	}
	e2e.RequireNoFailure(t, load.Stop())
	s.RequireServing(t, model, put(t, box, model, 2))
	requireAnswer(t, s, predict, 2)
}

// tries counts how often the handler of TestModelThatDoesNotLoadBesideOneThatServes was run.
func tries(t *testing.T, box *e2e.Box) int {
	t.Helper()
	log, err := os.ReadFile(box.Dir + "/logs/model_log.log")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(log), "one more try")
}

// tells says whether the model list or the description of the model has a text.
func tells(t *testing.T, s *e2e.Server, text string) bool {
	t.Helper()
	m, there := s.Model(t, model, "")
	if there && strings.Contains(m.Reason, text) {
		return true
	}
	return strings.Contains(s.InStore(t, file).Why, text)
}

// TestLoadingHasItsOwnLimit has a model load for longer than a response may take, and one that exceeds its startup timeout. What is sent to a model that loads waits for it, as
// on TorchServe; nobody else does.
func TestLoadingHasItsOwnLimit(t *testing.T) {
	box := e2e.NewBox(t)
	loading := time.Duration(long(t, "FLAMBEAU_LOAD_SECONDS", 4)) * time.Second
	slow := e2e.Numbered(model, 1, fmt.Sprintf("time.sleep(%d)", int(loading.Seconds())))
	slow.Config = "responseTimeout: 2\nstartupTimeout: 90\n"
	box.Put(t, file, slow.Bytes(t))
	late := e2e.Numbered("late", 2, "time.sleep(1000)")
	late.Config = "startupTimeout: 2\n"
	box.Put(t, "late.mar", late.Bytes(t))
	put(t, box, "good", 50)
	began := time.Now()
	s := start(t, box)
	requireAnswer(t, s, "/predictions/good", 50)
	load := s.StartLoad(t, e2e.LoadOptions{Clients: 2, Path: "/predictions/good", Every: 5 * time.Millisecond})
	if m, _ := s.Model(t, model, ""); m.State != "deploying" {
		t.Errorf("a model that loads is said to be %+v", m)
	}
	s.MustAsk(t, http.StatusOK, http.MethodGet, s.Inference+"/ping", nil)
	waited := s.MustAsk(t, http.StatusOK, http.MethodPost, s.Inference+predict, []byte("x"), "Content-Type", octets)
	if took := time.Since(began); string(waited.Body) != "1" || took < loading {
		t.Errorf("a request to a model that loads for %v was answered %q after %v", loading, waited.Body, took)
	}
	samples := load.Stop()
	e2e.RequireNoFailure(t, samples)
	if others := e2e.Latencies(samples, 0, time.Hour); others.P99 > time.Second {
		t.Errorf("another model was slow meanwhile: %s", others)
	}
	if !e2e.Eventually(patience, func() bool {
		m, _ := s.Model(t, "late", "")
		return strings.Contains(m.Reason+s.InStore(t, "late.mar").Why, "startup timeout of 2s")
	}) {
		t.Errorf("nobody says that the startup timeout is over: %+v", s.Models(t))
	}
}

// TestLargeBodiesAcrossASwap sends and gets large bodies while the model is replaced.
func TestLargeBodiesAcrossASwap(t *testing.T) {
	box := e2e.NewBox(t)
	place := func(number int) string {
		t.Helper()
		content := e2e.Archive{Name: model, Handler: fmt.Sprintf(`
class Handler:
    def initialize(self, context):
        pass

    def handle(self, data, context):
        return [b"%d" * len(row["body"]) for row in data]
`, number)}.Bytes(t)
		box.Put(t, file, content)
		return e2e.Digest(content)
	}
	s := start(t, box, "max_request_size", strconv.Itoa(30<<20), "max_response_size", strconv.Itoa(30<<20))
	s.RequireServing(t, model, place(1))
	body := strings.Repeat("y", 20<<20)
	bodies := make(chan string, 16)
	go func() {
		defer close(bodies)
		for range 8 {
			a, err := s.Ask(t.Context(), http.MethodPost, s.Inference+predict, []byte(body), "Content-Type", octets)
			if err != nil || a.Status != http.StatusOK || len(a.Body) != len(body) || strings.Trim(string(a.Body), string(a.Body[:1])) != "" {
				bodies <- fmt.Sprintf("status %d, %d bytes, %v", a.Status, len(a.Body), err)
			}
		}
	}()
	s.RequireServing(t, model, place(2))
	for wrong := range bodies {
		t.Error(wrong)
	}
}

// TestReproductionsAreThere: each test that the list at the top names exists.
func TestReproductionsAreThere(t *testing.T) {
	t.Parallel()
	rows := e2e.Reproductions(t, "reproductions_test.go")
	e2e.RequireTests(t, rows, map[string]string{
		"store": ".", "e2e": "../e2e", "config": "../../internal/config", "rollout": "../../modelstore/rollout", "deploy": "../../modelstore/deploy", "watch": "../../modelstore/watch",
	})
	if len(rows) < 12 {
		t.Errorf("the list has %d rows", len(rows))
	}
}
