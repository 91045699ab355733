package config

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func update() bool {
	f := flag.Lookup("update")
	return f != nil && f.Value.String() == "true"
}

func TestMain(m *testing.M) {
	flag.Bool("update", false, "rewrite docs/configuration.md")
	flag.Parse()
	os.Exit(m.Run())
}

// load reads a config.properties with that text.
func load(t *testing.T, text string, flags map[string]string, environ ...string) (*Config, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, DefaultFile), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return Load(Source{Dir: dir, Flags: flags, Environ: environ})
}

func mustLoad(t *testing.T, text string, flags map[string]string, environ ...string) *Config {
	t.Helper()
	c, err := load(t, text, flags, environ...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// noUsersCache is where things are kept for a user without a home.
func noUsersCache() []string { return []string{fmt.Sprintf("/tmp/flambeau-%d", os.Getuid())} }

func TestDefaults(t *testing.T) {
	t.Parallel()
	c, err := Load(Source{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	c.values, c.BlacklistEnv = nil, nil
	want := &Config{
		Inference: Address{Host: "127.0.0.1", Port: 8080}, Management: Address{Host: "127.0.0.1", Port: 8081},
		Metrics: Address{Host: "127.0.0.1", Port: 8082}, MetricsAPI: true, ReadinessModels: "all",
		GRPCInference: GRPC{Host: "127.0.0.1", Port: 7070}, GRPCManagement: GRPC{Host: "127.0.0.1", Port: 7071},
		TLS:         TLS{KeystorePass: "changeit", KeystoreType: "PKCS12"},
		AllowedURLs: []string{`file://.*|http(s)?://.*`}, TokenAuth: true, TokenTTL: time.Hour, GPULimit: -1,
		ResponseTimeout: 2 * time.Minute, StartupTimeout: 2 * time.Minute, DrainTimeout: 2 * time.Minute, WorkerStartTimeout: 2 * time.Minute,
		WorkerStopTimeout: 10 * time.Second, ShutdownTimeout: 25 * time.Second, Autoscale: true, AutoscaleWait: 100 * time.Millisecond, AutoscaleCalm: 30 * time.Second,
		WorkerThreads: "auto", HeartbeatTimeout: 5 * time.Second, InitialWorkerPort: 9000, InitialDistributionPort: 29500, DependencyTimeout: 30 * time.Minute,
		DecodeInput: true, LimitMaxImagePixels: true, QueueSize: 100, QueueBytes: 1 << 30, InflightBytes: 2 << 30, QueueServerBytes: 2 << 30, FairnessShare: 0.5, PoisonMemory: 10 * time.Minute, RequestHistory: true, MaxRequestBytes: 6553500, MaxResponseBytes: 6553500,
		SequenceHeaders:  SequenceHeaders{"ts_request_sequence_id", "ts_request_sequence_start", "ts_request_sequence_end"},
		MaxUnpackedBytes: 512 << 30, MaxDownloadBytes: 256 << 30, TraceBytes: 256 << 20,
		Watch: true, StorePoll: 30 * time.Second, StoreSettle: 200 * time.Millisecond, StoreFolderSettle: 2 * time.Second, StoreRemoval: "auto",
		StoreRemovalDelay: 10 * time.Second, DefaultVersionPolicy: "auto", Protocol: "auto", Swap: "dual", Batching: "adaptive", SwapMemoryGuard: true, WarmUp: "auto", ModelCheck: "warn", RollbackKeep: 1,
		MetricsMode: "auto", SystemMetrics: true, MetricsInterval: time.Minute,
		Env: Environment{
			TempDir: "/tmp", CacheDirs: noUsersCache(), PIDDir: "/tmp", LogDir: "logs", MetricsLogDir: "logs",
		},
	}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(Config{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestPrecedence(t *testing.T) {
	t.Parallel()
	const key = "model_store"
	flags := map[string]string{key: "/flag"}
	tests := []struct {
		name, file string
		flags      map[string]string
		env        []string
		want       string
		origin     string
	}{
		{name: "default", want: "", origin: "default"},
		{name: "file", file: "model_store=/file", want: "/file", origin: "config.properties, line 1"},
		{name: "flag over file", file: "model_store=/file", flags: flags, want: "/flag", origin: "--model-store"},
		{name: "variables are off", file: "model_store=/file", env: []string{"TS_MODEL_STORE=/env"}, want: "/file", origin: "config.properties, line 1"},
		{
			name: "variable over flag", file: "model_store=/file\nenable_envvars_config=TRUE", flags: flags, env: []string{"TS_MODEL_STORE=/env"},
			want: "/env", origin: "the environment variable TS_MODEL_STORE",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			c := mustLoad(t, tt.file, tt.flags, tt.env...)
			if c.ModelStore != tt.want {
				t.Errorf("got %q, want %q", c.ModelStore, tt.want)
			}
			if got := c.Value(key).Origin.String(); !strings.HasSuffix(got, tt.origin) {
				t.Errorf("origin %q, want %q", got, tt.origin)
			}
		})
	}
}

func TestWhichFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"one", "two", DefaultFile} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("load_models="+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	tests := []struct {
		name string
		src  Source
		want string
	}{
		{"the folder's own", Source{Dir: dir}, DefaultFile},
		{"named", Source{Dir: dir, File: one}, "one"},
		{"variable first", Source{Dir: dir, File: one, Environ: []string{"TS_CONFIG_FILE=" + two}}, "two"},
		{"empty variable", Source{Dir: dir, File: one, Environ: []string{"TS_CONFIG_FILE="}}, "one"},
	}
	for _, tt := range tests {
		c, err := Load(tt.src)
		if err != nil {
			t.Fatalf("%s: %v", tt.name, err)
		}
		if diff := cmp.Diff([]StartupModel{{URL: tt.want}}, c.Models); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
	}
	if _, err := Load(Source{Dir: dir, File: filepath.Join(dir, "nope")}); err == nil || !strings.Contains(err.Error(), "nope") {
		t.Errorf("a file that is not there: %v", err)
	}
}

func TestSubstitution(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "model_store=/a/$$STORE$$/$$SUB$$\ndefault_service_handler=$$STORE$$\ncors_allowed_origin=$$\nservice_envelope=$$ $$", nil,
		"STORE=x$1\\", "SUB=y", " = ")
	if c.ModelStore != `/a/x$1\/y` || c.DefaultHandler != `x$1\` || c.CORS.Origin != "$$" {
		t.Errorf("got %q, %q, %q", c.ModelStore, c.DefaultHandler, c.CORS.Origin)
	}
	_, err := load(t, "\nmodel_store=$$NOPE$$", nil)
	if err == nil {
		t.Fatal("it was loaded")
	}
	for _, part := range []string{"config.properties, line 2", "model_store", "Invalid Environment Variable NOPE"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q does not say %q", err, part)
		}
	}
}

func TestErrors(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, file string
		says       []string
	}{
		{"no number", "a=b\njob_queue_size=abc", []string{"line 2: job_queue_size", `"abc" is not an integer`}},
		{"empty number", "job_queue_size=", []string{`"" is not an integer`}},
		{"too large", "job_queue_size=3000000000", []string{"above 2147483647"}},
		{"far too large", "job_queue_size=99999999999999999999", []string{"out of range"}},
		{"no key of clients", "fairness_key=ip", []string{"line 1: fairness_key", `"ip" is none of off, client_ip, token`}},
		{"no share", "fairness_max_share=0", []string{"not a number above 0 and at most 1"}},
		{"too small", "job_queue_size=0", []string{"0 is below 1"}},
		{"negative", "default_workers_per_model=-1", []string{"-1 is negative"}},
		{"port", "inference_address=http://h:70000", []string{"inference_address", "above 65535"}},
		{"no address", "inference_address=127.0.0.1:8080", []string{"http://host:port"}},
		{"same address", "metrics_address=http://127.0.0.1:8081", []string{"metrics_address", "the same as management_address"}},
		{"expression", "allowed_urls=(?!a).*", []string{"allowed_urls", "lookahead"}},
		{"black list", "blacklist_env_vars=[", []string{"blacklist_env_vars"}},
		{"keystore", "keystore_type=JKS", []string{"keystore_type", "keytool"}},
		{"half a pair", "inference_address=https://h\ncertificate_file=x", []string{"one of them is missing"}},
		{"models", "models={", []string{"models: it is not JSON"}},
		{"models of a wrong shape", `models={"m": 1}`, []string{"not an object of names"}},
		{"a model's number", `models={"m": {"1.0": {"batchSize": "x"}}}`, []string{"m 1.0", "batchSize is not an integer"}},
		{"a model's runtime", `models={"m": {"1.0": {"runtimeType": "java"}}}`, []string{"runtimeType"}},
		{"snapshot without a file", `model_snapshot={"models": {"m": {"1.0": {}}}}`, []string{"model_snapshot", "marName"}},
		{"several", "job_queue_size=x\nmax_request_size=y", []string{"line 1: job_queue_size", "line 2: max_request_size"}},
		{"escape", `a=\u1`, []string{"line 1", "uXXXX"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			_, err := load(t, tt.file, nil)
			if err == nil {
				t.Fatal("it was loaded")
			}
			for _, part := range append(tt.says, "config.properties") {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
		})
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, file string
		env        []string
		want       string // "" for none
	}{
		{name: "misspelt", file: "job_queue_sise=5", want: "line 1: the key job_queue_sise is not known and has no effect; did you mean job_queue_size?"},
		{name: "unknown", file: "zzz=5", want: "the key zzz is not known and has no effect"},
		{name: "java", file: "vmargs=-Xmx1g", want: "vmargs has no effect"},
		{name: "java's default", file: "use_native_io=true"},
		{name: "not yet", file: "grpc_management_port=7", want: "grpc_management_port has no effect yet"},
		{name: "not yet, default", file: "grpc_management_port=7071"},
		{name: "for others", file: "NUM_WORKERS=1"},
		{name: "half a boolean", file: "enable_model_api=yes", want: `"yes" is neither true nor false, and is taken for false`},
		{name: "metrics mode", file: "metrics_mode=foo", want: `"foo" is none of auto, log, prometheus, legacy; it is auto then`},
		{name: "expiration", file: "token_expiration_min=soon", want: `"soon" is not a number of minutes; it is 60 then`},
		{name: "twice", file: "job_queue_size=1\njob_queue_size=2", want: "line 2: job_queue_size is set again, and the value of line 1 does not count"},
		{
			name: "variable", file: "enable_envvars_config=true", env: []string{"TS_JOB_QUEUE_SIZ=1", "TS_CONFIG_FILE="},
			want: "the environment variable TS_JOB_QUEUE_SIZ is not known and has no effect; did you mean TS_JOB_QUEUE_SIZE?",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(mustLoad(t, tt.file, nil, tt.env...).Warnings(), "\n")
			if tt.want == "" && got != "" || !strings.Contains(got, tt.want) || strings.Contains(got, "\n") {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestAllKeys sets each key to something else than its default.
func TestAllKeys(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, `
inference_address = https://0.0.0.0
management_address = http://0.0.0.0
metrics_address=unix:/tmp/metrics.sock
readiness_models=a, b
enable_metrics_api=false
keystore=/k.p12
keystore_pass=secret
keystore_type=pkcs12
private_key_file=/k.pem
certificate_file=/c.pem
cors_allowed_origin=*
cors_allowed_methods=GET, POST
cors_allowed_headers=X
model_store=/store
load_models=a.mar,b=c.mar,,d=http://h/x.mar?a=b
models={\
  "m": {"1.0": {"minWorkers": 1, "maxWorkers": "2", "batchSize": 4, "maxBatchDelay": 33, "responseTimeout": 44, "startupTimeout": 0, "runtimeType": "python3", "other": {}}}\
}
model_snapshot={"name": "startup.cfg", "modelCount": 1, "models": {"m": {"2.0": {"marName": "n.mar"}, "1.0": {"defaultVersion": true, "marName": "m.mar", "minWorkers": 1, "maxWorkers": 5, "batchSize": 1, "maxBatchDelay": 200, "responseTimeout": 60}}}}
allowed_urls=http://a/.*,file:///b/.*
install_py_dep_per_model=true
dependency_cache=/cache
dependency_timeout=10
archive_max_unpacked_size=10
archive_max_download_size=11
watch_model_store=false
model_store_poll=31
model_store_settle=32
model_store_folder_settle=33
model_store_removal=Keep
model_store_removal_delay=34
default_version_policy=latest
model_swap=in_place
batching=torchserve
swap_memory_guard=false
model_warmup=off
model_check=strict
state_dir=/state
rollback_keep=35
archive_private_networks=10.1.2.3/8, 192.168.0.7
workflow_store=/wf
enable_model_api=true
disable_token_authorization=true
token_expiration_min=0.5
default_workers_per_model=3
default_response_timeout=4
default_startup_timeout=5
worker_start_timeout=6
worker_stop_timeout=7
unregister_model_timeout=8
shutdown_timeout=9
drain_accept_for=3
number_of_gpu=2
initial_worker_port=9100
blacklist_env_vars=.*SECRET.*|AWS_.*
python=/usr/bin/python3.9
default_service_handler=h.py
service_envelope=kserve
decode_input_request=false
limit_max_image_pixels=false
ipex_enable=true
ipex_gpu_enable=true
job_queue_size=12
job_queue_max_bytes=13
inflight_max_bytes=113
trace_max_bytes=1048577
queue_max_bytes=213
fairness_key=Header: X-Tenant
fairness_max_share=0.25
poison_memory=18
request_history=false
max_request_size=14
max_response_size=15
ts_open_inference_protocol=true
open_inference=full
metrics_mode=Prometheus
metrics_config=/m.yaml
model_metrics_auto_detect=true
disable_system_metrics=true
system_metrics_cmd=x.py --gpu 0
metric_time_interval=16
grpc_inference_port=1
grpc_inference_max_connection_age_ms=17
`, nil)
	if !c.BlacklistEnv.Match("MY_SECRET_X") || c.BlacklistEnv.Match("XAWS_Y") {
		t.Error("the black list does not match as a whole")
	}
	c.values, c.BlacklistEnv, c.warnings, c.File = nil, nil, nil, ""
	s := time.Second
	want := &Config{
		Inference: Address{TLS: true, Host: "0.0.0.0", Port: 443}, Management: Address{Host: "0.0.0.0", Port: 8081},
		Metrics: Address{Path: "/tmp/metrics.sock"}, ReadinessModels: "a, b",
		GRPCInference: GRPC{Host: "127.0.0.1", Port: 1, MaxAge: 17 * time.Millisecond}, GRPCManagement: GRPC{Host: "127.0.0.1", Port: 7071},
		TLS:        TLS{Keystore: "/k.p12", KeystorePass: "secret", KeystoreType: "PKCS12", CertificateFile: "/c.pem", PrivateKeyFile: "/k.pem"},
		CORS:       CORS{"*", "GET, POST", "X"},
		ModelStore: "/store", WorkflowStore: "/wf",
		Models: []StartupModel{{URL: "a.mar"}, {Name: "b", URL: "c.mar"}, {Name: "d", URL: "http://h/x.mar?a=b"}},
		Presets: map[string]map[string]Preset{"m": {"1.0": {
			MinWorkers: 1, MaxWorkers: 2, BatchSize: 4, MaxBatchDelay: 33 * time.Millisecond, ResponseTimeout: 44 * s, Runtime: "python3",
		}}},
		Snapshot: &Snapshot{Name: "startup.cfg", Models: []SnapshotModel{
			{Name: "m", Version: "1.0", Default: true, File: "m.mar", Preset: Preset{
				MinWorkers: 1, MaxWorkers: 5, BatchSize: 1, MaxBatchDelay: 200 * time.Millisecond, ResponseTimeout: 60 * s,
			}},
			{Name: "m", Version: "2.0", File: "n.mar"},
		}},
		AllowedURLs: []string{"http://a/.*", "file:///b/.*"}, MaxUnpackedBytes: 10, MaxDownloadBytes: 11,
		StorePoll: 31 * s, StoreSettle: 32 * time.Millisecond, StoreFolderSettle: 33 * time.Millisecond, StoreRemoval: "keep", StoreRemovalDelay: 34 * s,
		DefaultVersionPolicy: "latest", Swap: "in_place", Batching: "torchserve", WarmUp: "off", ModelCheck: "strict", StateDir: "/state", RollbackKeep: 35,
		PrivateNetworks:     []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.7/32")},
		InstallDependencies: true, DependencyCache: "/cache", DependencyTimeout: 10 * s,
		ModelAPI: true, TokenTTL: 30 * s, DefaultWorkers: 3, GPULimit: 2,
		ResponseTimeout: 4 * s, StartupTimeout: 5 * s, WorkerStartTimeout: 6 * s, WorkerStopTimeout: 7 * s, DrainTimeout: 8 * s, ShutdownTimeout: 9 * s, DrainAccept: 3 * s,
		Autoscale: true, AutoscaleWait: 100 * time.Millisecond, AutoscaleCalm: 30 * s, WorkerThreads: "auto", HeartbeatTimeout: 5 * s,
		InitialWorkerPort: 9100, InitialDistributionPort: 29500, Python: "/usr/bin/python3.9", DefaultHandler: "h.py", Envelope: "kserve",
		IPEX: true, IPEXGPU: true, QueueSize: 12, QueueBytes: 13, InflightBytes: 113, TraceBytes: 1048577, QueueServerBytes: 213, FairnessKey: "header:X-Tenant", FairnessShare: 0.25, PoisonMemory: 18 * s, MaxRequestBytes: 14, MaxResponseBytes: 15,
		SequenceHeaders: SequenceHeaders{"ts_request_sequence_id", "ts_request_sequence_start", "ts_request_sequence_end"},
		OpenInference:   true, Protocol: "full", MetricsMode: "prometheus", MetricsConfig: "/m.yaml", MetricsAutoDetect: true, SystemMetricsCmd: "x.py --gpu 0",
		MetricsInterval: 16 * s, Env: Environment{
			TempDir: "/tmp", CacheDirs: noUsersCache(), PIDDir: "/tmp", LogDir: "logs", MetricsLogDir: "logs",
		},
	}
	if diff := cmp.Diff(want, c, cmp.AllowUnexported(Config{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestVariables(t *testing.T) {
	t.Parallel()
	c := mustLoad(t, "enable_envvars_config=true", nil, "TS_SERVICE_ENVELOPE=kservev2", "TS_TOKEN_EXPIRATION_TIME_MIN=1", "TS_MODELS={",
		"TS_ALLOWED_URLS=x", "TS_DEFAULT_WORKERS_PER_MODEL=7", "TS_ENABLE_MODEL_API=true")
	if c.Envelope != "kservev2" || c.TokenTTL != time.Minute || c.DefaultWorkers != 7 || !c.ModelAPI || c.Presets != nil ||
		c.AllowedURLs[0] != defaultAllowedURLs {
		t.Errorf("got %+v", c)
	}
	c = mustLoad(t, "enable_envvars_config=true\nuse_env_allowed_urls=true", nil, "TS_ALLOWED_URLS=x")
	if diff := cmp.Diff([]string{"x"}, c.AllowedURLs); diff != "" {
		t.Error(diff)
	}
	for env, want := range map[string]bool{"oip": true, "kfs": false, "": true} {
		c = mustLoad(t, "ts_open_inference_protocol=true", nil, "TS_OPEN_INFERENCE_PROTOCOL="+env)
		if c.OpenInference != want {
			t.Errorf("TS_OPEN_INFERENCE_PROTOCOL=%s: %v", env, c.OpenInference)
		}
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := mustLoad(t, "", nil, "TEMP="+dir, "TMPDIR=/nope", "LOG_LOCATION=/l", "METRICS_LOCATION=/m", "FLAMBEAU_HOME=/h", "CUDA_VISIBLE_DEVICES=")
	if c.Env.TempDir != dir || c.Env.PIDDir != dir || c.Env.LogDir != "/l" || c.Env.MetricsLogDir != "/m" || c.Env.Home != "/h" ||
		c.Env.VisibleGPUs == nil {
		t.Errorf("got %+v", c.Env)
	}
	for want, environ := range map[string][]string{"/c/flambeau": {"HOME=/h", "XDG_CACHE_HOME=/c"}, "/h/.cache/flambeau": {"HOME=/h", "XDG_CACHE_HOME=c"}} {
		c := mustLoad(t, "", nil, append(environ, "TMPDIR="+dir)...)
		if diff := cmp.Diff([]string{want, fmt.Sprintf("%s/flambeau-%d", dir, os.Getuid())}, c.Env.CacheDirs); diff != "" {
			t.Error(diff)
		}
	}
	if _, err := load(t, "", nil, "TEMP="+dir+"/nope"); err == nil ||
		!strings.Contains(err.Error(), "Invalid temp directory: "+dir+"/nope, please check TEMP environment variable.") {
		t.Errorf("a TEMP that is not there: %v", err)
	}
}

func TestManagement(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(text string) {
		if err := os.WriteFile(filepath.Join(dir, DefaultFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name, file string
		env        []string
		want       string
		says       string
	}{
		{name: "default", want: "http://127.0.0.1:8081"},
		{name: "file", file: "management_address=http://0.0.0.0:9", want: "http://0.0.0.0:9"},
		{name: "other keys do not matter", file: "model_store=$$NOPE$$\njob_queue_size=x\nmanagement_address=http://h:9", want: "http://h:9"},
		{
			name: "variable", file: "enable_envvars_config=true\nmanagement_address=http://h:9", env: []string{"TS_MANAGEMENT_ADDRESS=unix:/s"},
			want: "unix:/s",
		},
		{name: "wrong", file: "management_address=h:9", says: "management_address"},
		{name: "variable is not there", file: "management_address=$$NOPE$$", says: "NOPE"},
	}
	for _, tt := range tests {
		write(tt.file)
		c, err := Management(Source{Dir: dir, Environ: tt.env})
		if tt.says != "" {
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%s: %v, want an error that says %q", tt.name, err, tt.says)
			}
			continue
		}
		if err != nil || c.Management.String() != tt.want {
			t.Errorf("%s: %v, %v, want %s", tt.name, c, err, tt.want)
		}
	}
}

func TestAddress(t *testing.T) {
	t.Parallel()
	tests := []struct{ in, out, listen string }{
		{"http://127.0.0.1:8080", "http://127.0.0.1:8080", "127.0.0.1:8080"},
		{"HTTPS://h", "https://h:2", "h:2"},
		{"http://h/", "http://h:1", "h:1"},
		{"http://[::1]:8080", "http://[::1]:8080", "[::1]:8080"},
		{"unix:/tmp/x.sock", "unix:/tmp/x.sock", "/tmp/x.sock"},
		{"http://h:0", "http://h:0", "h:0"},
		{"http://::1:8080", "", ""},
		{"h:1", "", ""},
		{"unix:x", "", ""},
		{"http://h:x", "", ""},
		{"http://", "", ""},
		{"http://h:99999999999999999999", "", ""},
	}
	for _, tt := range tests {
		a, err := parseAddress(tt.in, defaultPorts{1, 2})
		if tt.out == "" {
			if err == nil {
				t.Errorf("%q was accepted as %v", tt.in, a)
			}
			continue
		}
		if err != nil || a.String() != tt.out || a.Listen() != tt.listen {
			t.Errorf("%q: %v %q %q, want %q %q", tt.in, err, a, a.Listen(), tt.out, tt.listen)
		}
	}
}

// TestTable checks what every option has to have, and that no two share a name.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := map[string]string{}
	for _, o := range Options() {
		for _, name := range append([]string{o.Key, o.Flag}, o.Env...) {
			if other, twice := seen[name]; twice && name != "" {
				t.Errorf("%s is used by %s and %s", name, other, o.Key)
			}
			seen[name] = o.Key
		}
		if o.Doc == "" || o.Type == "" || o.Section == "" || !strings.HasSuffix(o.Doc, ".") {
			t.Errorf("%s is not documented: %+v", o.Key, o)
		}
		if o.set == nil && o.Effect != JVMOnly && o.Effect != Informal {
			t.Errorf("%s works and is read by nobody", o.Key)
		}
	}
}

func TestSecretsAreHidden(t *testing.T) {
	t.Parallel()
	for _, v := range mustLoad(t, "keystore_pass=hunter2", nil).Values() {
		if strings.Contains(v.Text, "hunter2") {
			t.Errorf("%s is shown", v.Key)
		}
	}
}

func TestDocs(t *testing.T) {
	t.Parallel()
	file := filepath.Join("..", "..", "docs", "configuration.md")
	if update() {
		if err := os.WriteFile(file, []byte(Markdown()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Markdown(), string(got)); diff != "" {
		t.Errorf("docs/configuration.md is old; run: go run ./cmd/flambeau docs configuration > docs/configuration.md\n%s", diff)
	}
}

func FuzzModels(f *testing.F) {
	f.Add(`{"m": {"1.0": {"marName": "m.mar", "batchSize": "4", "maxBatchDelay": 1e3}}}`)
	f.Add(`{"models": {"m": {"1.0": {"marName": "m.mar", "defaultVersion": "TRUE"}}}}`)
	f.Add(`{"m": {"1.0": {"batchSize": NaN}}}`)
	f.Fuzz(func(t *testing.T, s string) {
		if presets, err := parsePresets(s); err == nil {
			for _, versions := range presets {
				for _, p := range versions {
					if p.BatchSize < 0 || p.MaxBatchDelay < 0 {
						t.Errorf("negative: %+v", p)
					}
				}
			}
		}
		if snapshot, err := parseSnapshot(s); err == nil {
			for _, m := range snapshot.Models {
				if m.File == "" {
					t.Errorf("no file: %+v", m)
				}
			}
		}
	})
}
