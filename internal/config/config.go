package config

import (
	"net/netip"
	"time"

	"github.com/flambeau-serve/flambeau/internal/javaregex"
)

// Config is all that can be set. Load fills it; nobody changes it afterwards.
type Config struct {
	File string // the properties file that was read, "" for none
	// RestoredFrom is the snapshot that was read, "" for none. It is File, too.
	RestoredFrom string
	SnapshotDir  string // where snapshots are written, "" for nowhere

	// Where it listens. A metrics address that equals another one is refused.
	Inference, Management, Metrics Address
	MetricsAPI                     bool
	ReadinessModels                string // all, any, or names with commas between them
	GRPCInference, GRPCManagement  GRPC
	GRPCTLS                        bool
	TLS                            TLS
	CORS                           CORS

	// What it serves.
	ModelStore    string
	WorkflowStore string
	Models        []StartupModel // load_models, but for AllModels; not looked at when there is a Snapshot
	AllModels     bool           // load_models is "all": also after a Snapshot
	Presets       map[string]map[string]Preset
	Snapshot      *Snapshot // model_snapshot
	AllowedURLs   []string
	ModelAPI      bool
	TokenAuth     bool
	TokenTTL      time.Duration

	// Workers.
	DefaultWorkers          int // 0: as many as GPUs, or else CPUs
	GPULimit                int // -1: all that there are
	ResponseTimeout         time.Duration
	StartupTimeout          time.Duration
	WorkerStartTimeout      time.Duration
	WorkerStopTimeout       time.Duration
	DrainTimeout            time.Duration
	ShutdownTimeout         time.Duration
	DrainAccept             time.Duration
	Autoscale               bool
	AutoscaleWait           time.Duration
	AutoscaleCalm           time.Duration
	WorkerThreads           string        // auto, off, quota or share
	HeartbeatTimeout        time.Duration // 0: no heartbeats
	InitialWorkerPort       int
	InitialDistributionPort int
	DefaultHandler          string
	Envelope                string
	InstallDependencies     bool
	DependencyCache         string // "": Env.CacheDirs
	DependencyTimeout       time.Duration
	Python                  string
	BlacklistEnv            *javaregex.Pattern
	CPULauncher             bool
	CPULauncherArgs         string
	IPEX, IPEXGPU           bool
	DecodeInput             bool
	LimitMaxImagePixels     bool
	Debug                   bool

	// Requests.
	QueueSize        int
	QueueBytes       int64
	InflightBytes    int64
	QueueServerBytes int64   // of all queues together
	FairnessKey      string  // "": clients are not told apart
	FairnessShare    float64 // of a queue for one client
	MaxRequestBytes  int64
	MaxResponseBytes int64
	SequenceHeaders  SequenceHeaders
	OpenInference    bool
	PoisonMemory     time.Duration // how long a request that ends workers is remembered
	RequestHistory   bool
	Protocol         string // open_inference: auto, full or torchserve
	SharedMemory     bool   // clients may use system shared memory
	TraceFile        string
	TraceBytes       int64 // of all files of traces together

	// Archives.
	MaxUnpackedBytes int64
	MaxDownloadBytes int64

	// The model store.
	Watch                bool
	StorePoll            time.Duration
	StoreSettle          time.Duration
	StoreFolderSettle    time.Duration
	StoreRemoval         string // auto, keep or unregister
	StoreRemovalDelay    time.Duration
	DefaultVersionPolicy string // auto, latest or first
	Swap                 string // dual or in_place
	Batching             string // adaptive or torchserve
	SwapMemoryGuard      bool
	WarmUp               string // auto, samples or off
	ModelCheck           string // off, warn or strict
	StateDir             string // "": in Env.LogDir
	RollbackKeep         int
	PrivateNetworks      []netip.Prefix

	// Metrics.
	MetricsMode       string // log, prometheus or legacy
	MetricsConfig     string // "": the one that Flambeau brings
	MetricsAutoDetect bool
	SystemMetrics     bool
	SystemMetricsCmd  string
	MetricsInterval   time.Duration

	// C++ workers and TorchServe's plugins.
	CPPLogConfig string
	PluginsPath  string

	Env Environment

	useEnv        bool // enable_envvars_config
	useEnvAllowed bool // use_env_allowed_urls
	values        map[string]Value
	written       map[string]string // values of the file that stand for others, as they are written there
	warnings      []string
}

// GRPC is where a gRPC server listens.
type GRPC struct {
	Host               string
	Port               int
	MaxAge, MaxAgeWait time.Duration // 0 for no limit
}

// TLS is where the certificate of https addresses comes from: the keystore, else the two PEM files, else a certificate of its own making.
type TLS struct {
	Keystore, KeystorePass, KeystoreType string
	CertificateFile, PrivateKeyFile      string
}

// CORS are the headers that are set on every answer, "" for none.
type CORS struct{ Origin, Methods, Headers string }

// SequenceHeaders are the names of the headers that carry sequences.
type SequenceHeaders struct{ ID, Start, End string }

// StartupModel is one entry of load_models.
type StartupModel struct{ Name, URL string }

// Preset is what models= says about a version. Zero values mean that it does not say.
type Preset struct {
	MinWorkers, MaxWorkers, BatchSize              int
	MaxBatchDelay, ResponseTimeout, StartupTimeout time.Duration
	Runtime                                        string
}

// Snapshot is what model_snapshot= restores: these models exactly as they are described, and no others unless AllModels.
type Snapshot struct {
	Name   string
	Models []SnapshotModel // by name, then by version
}

// SnapshotModel is one version of a snapshot.
type SnapshotModel struct {
	Name, Version string
	Default       bool
	File          string // marName: a file or folder of the model store
	Handler       string // Flambeau's own: what the registration asked for, "" for the archive's
	Preset
}

// Environment is what is taken from the environment and has no key in config.properties.
type Environment struct {
	TempDir       string   // TEMP, else TMPDIR, else /tmp
	CacheDirs     []string // where what can be made again may be kept, the best first
	PIDDir        string   // where TorchServe's command keeps its process identifier: TMPDIR, TEMP, TMP, else /tmp
	LogDir        string   // LOG_LOCATION, else logs
	MetricsLogDir string   // METRICS_LOCATION, else logs
	Home          string   // FLAMBEAU_HOME: where the Python packages are, "" when not set
	Library       string   // FLAMBEAU_LIBRARY: libflambeau.so, "" when not set
	ONNXRuntime   string   // FLAMBEAU_ONNXRUNTIME: ONNX Runtime's library or its folder, "" when not set
	Python        string   // FLAMBEAU_PYTHON, "" when not set
	Path          string   // PATH
	VisibleGPUs   *string
	All           []string // KEY=VALUE, for the workers
}

// Value is where a setting came from.
type Value struct {
	Key, Text string
	Origin    Origin
}

// Origin says who set a value.
type Origin struct {
	Kind OriginKind
	Name string // the file, the flag or the variable
	Line int    // in the file
}

// OriginKind is the kind of an Origin. A later one wins over an earlier one.
type OriginKind int

// The kinds of origins, in the order of their precedence.
const (
	FromDefault OriginKind = iota
	FromFile
	FromFlag
	FromEnv
)

// Value tells how a key came to its value.
func (c *Config) Value(key string) Value { return c.values[key] }

// Values lists the settings in the order of the documentation, secrets blanked.
func (c *Config) Values() []Value {
	var all []Value
	for _, o := range Options() {
		v := c.values[o.Key]
		if o.Secret && v.Text != "" {
			v.Text = "********"
		}
		all = append(all, v)
	}
	return all
}

// Warnings are what the user should hear about the settings although they can be used.
func (c *Config) Warnings() []string { return c.warnings }
