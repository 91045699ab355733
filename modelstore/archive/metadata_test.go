package archive

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

func TestManifest(t *testing.T) {
	t.Parallel()
	python := Manifest{Runtime: RuntimePython}
	tests := []struct {
		name, text string
		want       Manifest
		err        string
	}{
		{name: "nothing said", text: `{}`, want: python},
		{name: "all said", text: `{"createdOn": "c", "description": "d", "archiverVersion": "v", "runtime": "LSP", "other": {"x": 1}, "model": {
			"modelName": "n", "modelVersion": "2.1", "description": "md", "handler": "h.py", "envelope": "json", "serializedFile": "s.pt",
			"modelFile": "m.py", "requirementsFile": "r.txt", "configFile": "c.yaml", "version": "ignored"}}`, want: Manifest{
			CreatedOn: "c", Description: "d", ArchiverVersion: "v", Runtime: RuntimeLSP, Model: ManifestModel{
				ModelName: "n", ModelVersion: "2.1", Description: "md", Handler: "h.py", Envelope: "json", SerializedFile: "s.pt",
				ModelFile: "m.py", RequirementsFile: "r.txt", ConfigFile: "c.yaml",
			},
		}},
		{name: "numbers and booleans are their text", text: `{"model": {"modelVersion": 1.0, "modelName": true}}`, want: Manifest{
			Runtime: RuntimePython, Model: ManifestModel{ModelVersion: "1.0", ModelName: "true"},
		}},
		{name: "keys have one case", text: `{"Model": {"modelName": "x"}, "model": {"MODELNAME": "y"}}`, want: python},
		{name: "nulls", text: `{"createdOn": null, "model": null}`, want: python},
		{name: "null runtime", text: `{"runtime": null}`, want: Manifest{}},
		{name: "unknown runtime", text: `{"runtime": "java"}`, want: Manifest{}},
		{name: "no object", text: `[]`, err: "it is an array and has to be an object"},
		{name: "null", text: `null`, err: "not a JSON object"},
		{name: "empty", text: ``, err: "line 1"},
		{name: "syntax", text: "{\n\"a\": 1,\n oops}", err: "line 3"},
		{name: "more after the end", text: `{} {}`, err: "after top-level value"},
		{name: "model is a text", text: `{"model": "x"}`, err: "model: it is a string and has to be an object"},
		{name: "name is an object", text: `{"model": {"modelName": {}}}`, err: "modelName: it has to be a text"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseManifest([]byte(tt.text))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want one that says %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	a := &Archive{Manifest: Manifest{Model: ManifestModel{ModelName: "m"}}}
	if err := a.Validate("", ""); fault.Message(err) != "Runtime is not defined or invalid." {
		t.Error(err)
	}
	if err := a.Validate("", "python3"); err != nil {
		t.Error(err)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	sec, ms := time.Second, time.Millisecond
	base := func(change func(*Settings)) Settings {
		s := Settings{
			HasConfig: true, ResponseTimeout: new(120 * sec), StartupTimeout: new(120 * sec), MaxSequenceJobQueueSize: 1, MaxNumSequence: 1,
		}
		if change != nil {
			change(&s)
		}
		return s
	}
	tests := []struct {
		name, text string
		want       Settings
		warns      string // a part of the log, "" for none
		err        string
	}{
		{name: "empty", text: "", want: base(nil)},
		{name: "comment only", text: "# nothing\n", want: base(nil)},
		{name: "other keys", text: "handler:\n  model_name: x\n  deviceType: gpu\n", want: base(nil)},
		{
			name: "all", text: `minWorkers: 1
maxWorkers: 3
batchSize: 8
maxBatchDelay: 50
responseTimeout: 9
startupTimeout: 33
deviceType: "GPU"
deviceIds: [0, 1]
parallelType: tp
parallelLevel: 2
maxRetryTimeoutInSec: 60
clientTimeoutInMills: 7000
jobQueueSize: 20
useJobTicket: true
sequenceBatching: yes
continuousBatching: True
asyncCommunication: on
useVenv: true
sequenceMaxIdleMSec: 1500
sequenceTimeoutMSec: 2500
maxSequenceJobQueueSize: 4
maxNumSequence: 5
`, want: base(func(s *Settings) {
				s.MinWorkers, s.MaxWorkers, s.BatchSize, s.MaxBatchDelay = new(1), new(3), new(8), new(50*ms)
				s.ResponseTimeout, s.StartupTimeout = new(9*sec), new(33*sec)
				s.DeviceType, s.DeviceIDs, s.ParallelType, s.ParallelLevel = "gpu", []int{0, 1}, "tp", 2
				s.MaxRetryTimeout, s.ClientTimeout, s.JobQueueSize = new(60*sec), new(7*sec), new(20)
				s.UseJobTicket, s.SequenceBatching, s.ContinuousBatching, s.AsyncCommunication, s.UseVenv = true, true, true, true, true
				s.SequenceMaxIdle, s.SequenceTimeout, s.MaxSequenceJobQueueSize, s.MaxNumSequence = 1500*ms, 2500*ms, 4, 5
			}),
		},
		{name: "least values", text: "minWorkers: 0\nbatchSize: -4\nmaxSequenceJobQueueSize: 0\nmaxNumSequence: -1\n", want: base(func(s *Settings) {
			s.MinWorkers, s.BatchSize = new(1), new(1)
		})},
		{name: "zero is unset", text: "maxBatchDelay: 0\nclientTimeoutInMills: 0\njobQueueSize: 0\n", want: base(nil)},
		{name: "a text for a number", text: "batchSize: \"8\"\n", want: base(nil), warns: "key=batchSize line=1 value=\"\\\"8\\\"\" expected=\"an integer\""},
		{name: "a fraction", text: "\nresponseTimeout: 1.5\n", want: base(nil), warns: "key=responseTimeout line=2"},
		{name: "too large for Java", text: "batchSize: 3000000000\n", want: base(nil), warns: "key=batchSize"},
		{name: "too small", text: "responseTimeout: 0\nmaxWorkers: -1\n", want: base(nil), warns: "expected=\"an integer of at least 0\""},
		{name: "quoted boolean", text: "useJobTicket: \"true\"\nuseVenv: 'yes'\n", want: base(nil), warns: "key=useVenv"},
		{name: "priorities", text: "priorityLevels: 3\ndefaultPriorityLevel: 2\n", want: base(func(s *Settings) {
			s.PriorityLevels, s.DefaultPriorityLevel = 3, 2
		})},
		{name: "batching", text: "batching: TorchServe\npreferredBatchSizes: [8, 4]\npaddedBatchSizes: true\nslo: {p99_ms: 80}\n", want: base(func(s *Settings) {
			s.Batching, s.PreferredBatchSizes, s.PaddedBatchSizes, s.LatencyGoal = BatchingTorchServe, []int{8, 4}, true, 80*time.Millisecond
		})},
		{name: "batching of no kind", text: "batching: greedy\n", want: base(nil), warns: "adaptive, torchserve"},
		{name: "a preferred size of nothing", text: "preferredBatchSizes: [4, 0]\n", want: base(nil), warns: "a list of integers of at least 1"},
		{name: "a preferred size alone", text: "preferredBatchSizes: 4\n", want: base(nil), warns: "a list of integers of at least 1"},
		{name: "a goal that is none", text: "slo: {p99_ms: 0}\n", want: base(nil), warns: "a mapping with p99_ms"},
		{name: "a goal of another kind", text: "slo: {p99_ms: 80, p50_ms: 10}\n", want: base(nil), warns: "a mapping with p99_ms"},
		{name: "a goal without a name", text: "slo: 80\n", want: base(nil), warns: "a mapping with p99_ms"},
		{name: "too many priorities", text: "priorityLevels: 101\n", want: base(nil), warns: "an integer from 0 to 100"},
		{name: "unknown device", text: "deviceType: neuron\n", want: base(nil), warns: "expected=\"cpu, gpu\""},
		{name: "bad device ids", text: "deviceIds: [0, x]\n", want: base(nil), warns: "key=deviceIds"},
		{name: "device ids in lines", text: "deviceIds:\n- 0\n- 2\n", want: base(func(s *Settings) { s.DeviceIDs = []int{0, 2} })},
		{name: "no device ids", text: "deviceIds: []\n", want: base(func(s *Settings) { s.DeviceIDs = []int{} })},
		{name: "null", text: "batchSize:\nminWorkers: ~\n", want: base(nil), warns: "key=minWorkers"},
		{name: "the last of two wins", text: "batchSize: 1\nbatchSize: 2\n", want: base(func(s *Settings) { s.BatchSize = new(2) })},
		{name: "yaml 1.1 numbers", text: "batchSize: 010\nmaxWorkers: 1_0\n", want: base(func(s *Settings) { s.BatchSize, s.MaxWorkers = new(8), new(10) })},
		{name: "anchors", text: "x: &n 4\nbatchSize: *n\nmaxWorkers: &m 2\nminWorkers: *m\n", want: base(func(s *Settings) {
			s.BatchSize, s.MaxWorkers, s.MinWorkers = new(4), new(2), new(2)
		})},
		{name: "merged", text: "base: &b\n  batchSize: 4\n  maxWorkers: 2\n<<: *b\nmaxWorkers: 3\n", want: base(func(s *Settings) {
			s.BatchSize, s.MaxWorkers = new(4), new(3)
		})},
		{
			name: "torchrun", text: `torchrun:
    nproc-per-node: 4
    nnodes: 2
    rdzv-backend: static
    rdzv-endpoint: "h:1"
    rdzv-conf: a=b
    monitor-interval: 7
    node-rank: 1
    OMP_NUMBER_THREADS: 3
    max-restarts: 3
`, want: base(func(s *Settings) {
				s.ParallelLevel = 4
				s.TorchRun = &TorchRun{
					Nodes: 2, ProcsPerNode: 4, Backend: "static", Endpoint: "h:1", Conf: "a=b", MonitorInterval: 7 * sec, NodeRank: 1, OMPThreads: 3,
				}
			}), warns: "key=max-restarts",
		},
		{name: "the later of torchrun and level wins", text: "torchrun: {nproc-per-node: 4}\nparallelLevel: 2\n", want: base(func(s *Settings) {
			s.ParallelLevel = 2
			s.TorchRun = &TorchRun{Nodes: 1, ProcsPerNode: 4, Backend: "c10d", MonitorInterval: 5 * sec, OMPThreads: 1}
		})},
		{name: "document marks", text: "%YAML 1.1\n---\nbatchSize: 2\n...\n", want: base(func(s *Settings) { s.BatchSize = new(2) })},
		{name: "json", text: `{"batchSize": 2}`, want: base(func(s *Settings) { s.BatchSize = new(2) })},
		{name: "large", text: "labels:\n" + strings.Repeat("  k: v\n", 20_000) + "batchSize: 2\nmore: |\n  batchSize: 7\n", want: base(func(s *Settings) {
			s.BatchSize = new(2)
		})},
		{name: "large with a warning", text: "labels:\n" + strings.Repeat("  k: v\n", 20_000) + "batchSize: x\n", want: base(nil), warns: "line=20002"},
		{name: "syntax", text: "a: [\n", err: "[1:4]"},
		{name: "a list", text: "- 1\n", err: "it is a sequence"},
		{name: "two documents", text: "a: 1\n---\nb: 2\n", err: "more than one document"},
		{name: "deep brackets", text: strings.Repeat("[", 50_000), err: "nested too deeply"},
		{name: "deep dashes", text: strings.Repeat("- ", 50_000) + "x", err: "nested too deeply"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			got, err := parseSettings([]byte(tt.text), slog.New(slog.NewTextHandler(&log, nil)))
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("error %v, want one that says %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
			if tt.warns == "" && log.Len() > 0 || !strings.Contains(log.String(), tt.warns) {
				t.Errorf("log %q, want one that says %q", log.String(), tt.warns)
			}
		})
	}
}

// TestBillionLaughs: aliases of aliases cost nothing, for only scalars and the server's own maps are followed.
func TestBillionLaughs(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	text.WriteString("a0: &a0 {batchSize: 1}\n")
	for i := 1; i < 40; i++ {
		fmt.Fprintf(&text, "a%d: &a%d\n  <<: *a%d\n  x: [*a%d, *a%d]\n", i, i, i-1, i-1, i-1)
	}
	text.WriteString("<<: *a39\n<<: *a39\nloop: &l\n  <<: *l\ntorchrun: *l\n")
	if _, err := parseSettings([]byte(text.String()), discard()); err != nil {
		t.Fatal(err)
	}
}

func TestConfigFile(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, file, log string
		has             bool
	}{
		{name: "there", file: "conf/c.yaml", has: true},
		{name: "not there", file: "nope.yaml", log: "--config-file"},
		{name: "outside", file: "../outside.yaml", log: "has to be a file of the archive"},
		{name: "a folder", file: "conf", log: "not a regular file"},
		{name: "not yaml", file: "conf/bad.yaml", log: "[1:4]"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			manifest := `{"archiverVersion":"1","createdOn":"1","model": {"modelName": "m", "configFile": "` + tt.file + `"}}`
			p.write(t, "store/m.mar", makeZip(t, []entry{
				{name: manifestPath, text: manifest}, {name: "conf/c.yaml", text: "batchSize: 2"}, {name: "conf/bad.yaml", text: "a: ["},
			}))
			p.write(t, "tmp/models/outside.yaml", []byte("batchSize: 2"))
			a := mustOpen(t, p.open(t, nil), "m.mar")
			if a.Settings.HasConfig != tt.has || (a.Settings.ResponseTimeout != nil) != tt.has {
				t.Errorf("got %+v", a.Settings)
			}
			if tt.log == "" && p.log.Len() > 0 || !strings.Contains(p.log.String(), tt.log) {
				t.Errorf("log %q, want one that says %q", p.log.String(), tt.log)
			}
			if err := os.Remove(filepath.Join(p.temp, "models/outside.yaml")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestWorkersThatComeAndGo are keys that TorchServe does not know.
func TestWorkersThatComeAndGo(t *testing.T) {
	for _, tt := range []struct {
		text       string
		keep       time.Duration
		recycle    Recycle
		min, max   int
		toZero, ok bool
		warns      string
	}{
		{text: "minWorkers: 0\nmaxWorkers: 3\nkeepAlive: 60\n", keep: time.Minute, max: 3, toZero: true, ok: true},
		{text: "keepAlive: 60\nmaxWorkers: 3\nminWorkers: 0\n", keep: time.Minute, max: 3, toZero: true, ok: true},
		{text: "minWorkers: 0\nmaxWorkers: 3\n", min: 1, max: 3, ok: true}, // TorchServe's 1
		{text: "minWorkers: 2\nmaxWorkers: 3\nkeepAlive: 60\n", keep: time.Minute, min: 2, max: 3, ok: true},
		{text: "minWorkers: 0\nmaxWorkers: 0\nkeepAlive: 60\n", keep: time.Minute, min: 1, max: 0, toZero: true},
		{text: "minWorkers: -1\nmaxWorkers: 3\nkeepAlive: 0\n", min: 1, max: 3, ok: true, warns: "key=keepAlive"},
		{text: "recycle: {requests: 1000, memoryMb: 2048}\n", recycle: Recycle{Requests: 1000, MemoryMiB: 2048}},
		{text: "recycle:\n  requests: 5\n  hours: 3\n", recycle: Recycle{Requests: 5}, warns: "key=hours"},
		{text: "recycle:\n  requests: 0\n", warns: "key=requests"},
		{text: "recycle: 5\n", warns: "key=recycle"},
	} {
		log := &strings.Builder{}
		s, err := parseSettings([]byte(tt.text), slog.New(slog.NewTextHandler(log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		minWorkers, maxWorkers, ok := s.Workers()
		if s.KeepAlive != tt.keep || s.Recycle != tt.recycle || s.ToZero != tt.toZero || minWorkers != tt.min || maxWorkers != tt.max || ok != tt.ok {
			t.Errorf("%q: keepAlive %s, recycle %+v, to zero %t, workers %d to %d, %t", tt.text, s.KeepAlive, s.Recycle, s.ToZero, minWorkers, maxWorkers, ok)
		}
		if tt.warns == "" && log.Len() > 0 || !strings.Contains(log.String(), tt.warns) {
			t.Errorf("%q: %s", tt.text, log)
		}
	}
}
