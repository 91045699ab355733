package archive

import (
	"log/slog"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
)

// Options say where the models are and what an archive may do. Zero limits have generous defaults.
type Options struct {
	// Store is the model store. With "" there is none, and Open refuses every URL, as TorchServe does.
	Store string
	// Temp is the folder below which models are unpacked, in Temp/models/<32 hex digits>.
	Temp   string
	Limits Limits
	// Fetcher fetches archives, and says which URLs are allowed. Nil: none is.
	Fetcher Fetcher
	// Logger is required.
	Logger *slog.Logger
}

// Limits bound what one archive may cost. A zero value stands for its default in limits.go.
type Limits struct {
	UnpackedBytes int64 // largest sum of an archive's files
	Ratio         int64 // largest unpacked size as a multiple of the packed one, looked at once RatioFloor bytes are unpacked
	RatioFloor    int64 // unpacked bytes below which Ratio is not looked at
	Entries       int   // most files and folders of an archive
	PathBytes     int   // longest name of an entry
	MetadataBytes int64 // largest manifest and largest model configuration
}

// Archive is one opened model: its files on disk, its manifest and its settings. Its fields are not changed after Open.
type Archive struct {
	URL string // as it was asked for, without what is secret in it
	// Dir is the folder that workers run in: Temp/models/<32 hex digits>, or for a folder that is used in place
	// Temp/models/<32 hex digits>/<its name>, a link to it, as TorchServe lays them out. A process that is started there sees the real path.
	Dir         string
	FileBase    string // the model's name of last resort, made from the URL as TorchServe makes it at start-up
	Fetched     bool   // it was downloaded into the store by this Open
	InPlace     bool   // Dir is a link to the user's own folder
	Kept        bool   // Dir is a folder that Keep left, and that Close does not remove
	HasManifest bool   // MAR-INF/MANIFEST.json was there; without one Manifest has TorchServe's defaults and no model name
	Plugin      string // a plugin's program below Dir, "" for other runtimes
	// Program is what a plugin's workers start: the program in Dir or, if Dir is the user's own folder, a copy, so that the user can write over theirs.
	Program string
	// NotProgram says why a file that is called as the model, and may be executed, is not taken for a plugin's program; "" when there is no such file. It is only
	// told of what else may be a model in Python.
	NotProgram string
	// Ensemble is nil for what is none. Its models are not looked at here.
	Ensemble *pipeline.Definition
	// Triton is the model's config.pbtxt, and Labels the names of the classes that it names, by output; nil without.
	Triton *pbtxt.Config
	Labels map[string][]string
	// BackendConfig is a configuration file for the backend, in place of the one in Dir; "" when that is the right one.
	BackendConfig string
	Problem       string // why it may be of no use although TorchServe takes it: a .mar that is no zip file; "" otherwise
	Manifest      Manifest
	Settings      Settings
	// Digest is "sha256:" and the hex digest of the archive file; of a folder, "tree:" and a digest of its files' names, sizes and times. "" when not known.
	Digest string
	// Source is where the model lies in the store, relative to it and with slashes; "" for one from elsewhere.
	Source string
	Bytes  int64 // of the archive file; of a folder, the sum of its files

	store   *Store
	folder  *folder // below Temp/models, nil for a kept one
	closed  bool    // guarded by store.mu
	saved   *copied // the file in the store that Forget removes, nil unless it came from a URL
	layout  layout  // what its place in the store says
	beside  string  // the folder that a version's folder lies in, "" for another place
	warmUps string  // the folder that has the folder of the warm-up files of config.pbtxt
}

// Manifest is MAR-INF/MANIFEST.json.
type Manifest struct {
	CreatedOn       string
	Description     string
	ArchiverVersion string
	Runtime         string // python, python3, LSP, plugin, onnx for a bare ONNX model, or "" when the manifest names one that there is not
	Model           ManifestModel
}

// ManifestModel is the manifest's part about the model.
type ManifestModel struct {
	ModelName        string // "" when the manifest does not say
	ModelVersion     string // "" when the manifest does not say: TorchServe then takes "1.0"
	Description      string
	Handler          string
	Envelope         string
	SerializedFile   string
	ModelFile        string
	RequirementsFile string
	ConfigFile       string
}

// Settings are the server's keys of a model's configuration file (model-config.yaml). A nil pointer means that the key is absent or that its value
// cannot be used, which was logged. Other keys are the handler's business.
type Settings struct {
	// HasConfig says that the archive names a configuration file and that it could be read. ResponseTimeout and StartupTimeout are then never
	// nil: TorchServe takes 120 seconds for an absent one, before it looks at any other source.
	HasConfig       bool
	MinWorkers      *int           // at least 1
	MaxWorkers      *int           // at least 0
	BatchSize       *int           // at least 1
	MaxBatchDelay   *time.Duration // more than 0: TorchServe takes 0 for absent
	ResponseTimeout *time.Duration
	StartupTimeout  *time.Duration
	DeviceType      string // cpu, gpu or ""
	DeviceIDs       []int  // nil when absent; not compared with the devices that there are
	ParallelType    string // pp, tp, pptp, custom or ""
	ParallelLevel   int    // 0 when absent
	TorchRun        *TorchRun
	MaxRetryTimeout *time.Duration // absent: 300 seconds
	ClientTimeout   *time.Duration // absent: no limit
	JobQueueSize    *int           // absent: the server's

	MaxConcurrency int             // requests that may wait and run at the same time; 0 when absent: no such limit
	Fairness       *infer.Fairness // how clients share the queue; nil when absent: as the server says

	PriorityLevels       int // classes of priority, 100 at most; 0 when absent: one
	DefaultPriorityLevel int // the class of a request that asks for none, counted from 1; 0 when absent: the last one

	Batching            string        // adaptive or torchserve: how batches are made; "" for the server's
	PreferredBatchSizes []int         // sizes at which the model is at its best, each at least 1; nil when absent
	PaddedBatchSizes    bool          // the model pads a batch to the next preferred size, which all sizes up to it cost as much as
	LatencyGoal         time.Duration // slo.p99_ms: toward which batch size and delay are moved within their bounds; 0 when absent

	NoRetry bool // retry: false: a request is never given to a second worker when the one that had it has died

	Plugin     string   // the program of a model that is one, relative to the archive
	PluginArgs []string // its arguments

	KeepAlive time.Duration // how long the last worker stays without a request, with ToZero; 0 when absent
	ToZero    bool          // minWorkers is 0 and there is a keepAlive: without requests there is no worker
	Recycle   Recycle

	Swap   string         // dual, in_place, or "" for the server's
	WarmUp []WarmUpSample // nil when absent: then the files of the folder warmup/ are the samples

	UseJobTicket            bool
	SequenceBatching        bool
	ContinuousBatching      bool
	AsyncCommunication      bool
	UseVenv                 bool
	SequenceMaxIdle         time.Duration
	SequenceTimeout         time.Duration
	MaxSequenceJobQueueSize int // 1 when absent
	MaxNumSequence          int // 1 when absent
}

// WarmUpSample is a request that a new worker must answer before it gets any other.
type WarmUpSample struct {
	File        string // path in the archive
	ContentType string // "": by the file's extension
	Name        string // of the part; "": body
	Count       int    // how often; at least 1
}

// TorchRun is the torchrun part of a model's configuration file, with TorchServe's defaults.
type TorchRun struct {
	Nodes           int
	ProcsPerNode    int
	Backend         string
	Endpoint        string
	Conf            string
	MonitorInterval time.Duration
	NodeRank        int
	OMPThreads      int
	MasterAddr      string
	MasterPort      int
}

// Validate says whether the archive can be registered under name and runtime, which override the manifest's unless they are empty. The texts
// and their order are TorchServe's.
func (a *Archive) Validate(name, runtime string) error {
	switch {
	case name == "" && a.Manifest.Model.ModelName == "":
		return &fault.Error{
			Kind: fault.InvalidModel, Message: "Model name is not defined.", Detail: a.Problem,
			Hint: "give model_name, or make the archive with torch-model-archiver, which writes " + manifestPath,
		}
	case runtime == "" && a.Manifest.Runtime == "":
		return &fault.Error{
			Kind: fault.InvalidModel, Message: "Runtime is not defined or invalid.",
			Hint: "the manifest's runtime is to be python, python3, LSP or plugin",
		}
	}
	return nil
}

// Workers gives the pair of worker counts, and whether it can be used: TorchServe takes it only if there is a minimum and the maximum is not
// below it. With ToZero the minimum is 0.
func (s *Settings) Workers() (minWorkers, maxWorkers int, ok bool) {
	if s.MinWorkers != nil {
		minWorkers = *s.MinWorkers
	}
	if s.MaxWorkers != nil {
		maxWorkers = *s.MaxWorkers
	}
	if s.ToZero && maxWorkers > 0 {
		return 0, maxWorkers, true
	}
	return minWorkers, maxWorkers, minWorkers > 0 && maxWorkers >= minWorkers
}
