package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/javaregex"
)

// defaultAllowedURLs is TorchServe's default: one expression.
const defaultAllowedURLs = `file://.*|http(s)?://.*`

// Options lists every key, by section, in the order of the documentation: names, defaults and meanings are written here and nowhere else.
func Options() []Option {
	sections := []struct {
		name    string
		options []Option
	}{
		{"Addresses", addressOptions()},
		{"TLS and CORS", tlsOptions()},
		{"Models", modelOptions()},
		{"Watching the model store", storeOptions()},
		{"Access", accessOptions()},
		{"Workers", workerOptions()},
		{"Python", pythonOptions()},
		{"Requests and queues", requestOptions()},
		{"Metrics", metricOptions()},
		{"gRPC", grpcOptions()},
		{"The settings themselves", metaOptions()},
		{"Accepted without an effect", ignoredOptions()},
	}
	var all []Option
	for _, s := range sections {
		for _, o := range s.options {
			o.Section = s.name
			all = append(all, o)
		}
	}
	return all
}

func addressOptions() []Option {
	return []Option{
		address("inference_address", "http://127.0.0.1:8080",
			"Where predictions are asked for: `http://host:port`, `https://host:port` or `unix:/path`. Without a port: 80, or 443 for https.",
			defaultPorts{80, 443}, func(c *Config) *Address { return &c.Inference }),
		address("management_address", "http://127.0.0.1:8081",
			"Where models are managed. Without a port: 8081, or 8444 for https. The same address as `inference_address` makes one listener for both.",
			defaultPorts{8081, 8444}, func(c *Config) *Address { return &c.Management }),
		address("metrics_address", "http://127.0.0.1:8082",
			"Where metrics are read. Without a port: 8082, or 8445 for https. It has to differ from the other two.",
			defaultPorts{8082, 8445}, func(c *Config) *Address { return &c.Metrics }),
		boolean("enable_metrics_api", true, "Whether there is a listener for metrics.", func(c *Config) *bool { return &c.MetricsAPI }),
		text("readiness_models", "all", "Which models have to be ready for `/readyz` to say so: `all`, `any` (one is enough), or a list of names, which have to be loaded, too.",
			func(c *Config) *string { return &c.ReadinessModels }),
	}
}

func tlsOptions() []Option {
	return []Option{
		path("keystore", "PKCS12 file with the key and the certificates for https addresses. It goes before `private_key_file`.",
			func(c *Config) *string { return &c.TLS.Keystore }),
		text("keystore_pass", "changeit", "Password of the keystore.", func(c *Config) *string { return &c.TLS.KeystorePass }).secret(),
		{
			Key: "keystore_type", Type: "PKCS12", Default: "PKCS12", Env: envName("keystore_type"),
			Doc: "Type of the keystore. JKS files have to be converted: `keytool -importkeystore -deststoretype pkcs12`.",
			set: func(c *Config, s string) error {
				if !strings.EqualFold(s, "PKCS12") {
					return fmt.Errorf("a keystore of the type %s cannot be read; convert it with keytool -importkeystore -deststoretype pkcs12, "+
						"or give certificate_file and private_key_file", s)
				}
				c.TLS.KeystoreType = "PKCS12"
				return nil
			},
		},
		path("private_key_file", "PEM file with the key for https addresses (PKCS 8, PKCS 1 or EC). With neither this nor a keystore the server makes "+
			"a certificate of its own, which no client trusts.", func(c *Config) *string { return &c.TLS.PrivateKeyFile }),
		path("certificate_file", "PEM file with the certificate and its chain.", func(c *Config) *string { return &c.TLS.CertificateFile }),
		text("cors_allowed_origin", "", "`Access-Control-Allow-Origin` of every answer.", func(c *Config) *string { return &c.CORS.Origin }),
		text("cors_allowed_methods", "", "`Access-Control-Allow-Methods` of every answer.", func(c *Config) *string { return &c.CORS.Methods }),
		text("cors_allowed_headers", "", "`Access-Control-Allow-Headers` of every answer.", func(c *Config) *string { return &c.CORS.Headers }),
	}
}

func modelOptions() []Option {
	return []Option{
		path("model_store", "Folder with the model archives. It has to exist.", func(c *Config) *string { return &c.ModelStore }).flag("--model-store"),
		{
			Key: "load_models", Type: "list", Env: envName("load_models"), Flag: "--models",
			Doc: "Models to load at the start, separated by commas: `all` for the whole store, or `file.mar`, `name=file.mar`, a folder, or a URL.",
			set: func(c *Config, s string) error {
				c.Models, c.AllModels = parseModels(s)
				return nil
			},
		},
		Option{
			Key: "models", Type: "JSON",
			Doc: "Settings of models by name and version: `{\"name\": {\"1.0\": {\"minWorkers\": 1, \"maxWorkers\": 1, \"batchSize\": 4, " +
				"\"maxBatchDelay\": 50, \"responseTimeout\": 120, \"startupTimeout\": 120, \"runtimeType\": \"python\"}}}`. The file of a model " +
				"(model-config.yaml) goes before it, but for the batch also what a registration asks for.",
			set: func(c *Config, s string) (err error) {
				c.Presets, err = parsePresets(s)
				return err
			},
		}.fileOnly(),
		Option{
			Key: "model_snapshot", Type: "JSON",
			Doc: "The models to serve, as TorchServe writes them into its snapshots: `{\"models\": {\"name\": {\"1.0\": {\"defaultVersion\": true, " +
				"\"marName\": \"name.mar\", \"minWorkers\": 1, \"maxWorkers\": 1, \"batchSize\": 1, \"maxBatchDelay\": 100}}}}`. It goes before " +
				"`load_models`.",
			set: func(c *Config, s string) (err error) {
				c.Snapshot, err = parseSnapshot(s)
				return err
			},
		}.fileOnly(),
		{
			Key: "allowed_urls", Type: "list of regular expressions", Default: defaultAllowedURLs, Env: envName("allowed_urls"),
			Doc: "Which URLs models may be fetched from: expressions in Java's syntax, separated by commas, one of which has to match the whole URL, in " +
				"any case. The default lets the URLs of object stores pass as well (`s3`, `gs`, `azblob`). The environment variable counts only with `use_env_allowed_urls`.",
			set: func(c *Config, s string) error {
				c.AllowedURLs = nil
				for expr := range strings.SplitSeq(s, ",") {
					if _, err := javaregex.CompileFold(expr); err != nil {
						return err
					}
					c.AllowedURLs = append(c.AllowedURLs, expr)
				}
				return nil
			},
		},
		boolean("install_py_dep_per_model", false, "Whether a model's requirements file is installed by pip when it is registered, once for all "+
			"models, workers and starts of the server that ask for the same.", func(c *Config) *bool { return &c.InstallDependencies }),
		path("dependency_cache", "Folder for what is installed. Not set: `flambeau/dependencies` in the user's cache folder, or else in that of "+
			"temporary files. What nobody has used for 30 days is removed at the next installation.",
			func(c *Config) *string { return &c.DependencyCache }),
		seconds("dependency_timeout", 1800, atLeast(1), "How long the installation of one model's requirements may take.",
			func(c *Config) *time.Duration { return &c.DependencyTimeout }),
		size("archive_max_unpacked_size", 512<<30, atLeast(1), "Largest sum of the files of one archive.",
			func(c *Config) *int64 { return &c.MaxUnpackedBytes }),
		size("archive_max_download_size", 256<<30, atLeast(1), "Largest archive that is fetched from a URL.",
			func(c *Config) *int64 { return &c.MaxDownloadBytes }),
		path("workflow_store", "Folder with workflow archives; `model_store` when it is not set.",
			func(c *Config) *string { return &c.WorkflowStore }).flag("--workflow-store").effect(Pending),
	}
}

func storeOptions() []Option {
	return []Option{
		boolean("watch_model_store", true, "Whether changes of the model store are followed while the server runs: of the models in `load_models`, or of the "+
			"whole store when that is `all`. `flambeau serve` without `load_models` takes the whole store.", func(c *Config) *bool { return &c.Watch }),
		seconds("model_store_poll", 30, atLeast(1), "How often the whole store is read again, for network folders and lost notifications.",
			func(c *Config) *time.Duration { return &c.StorePoll }),
		millisecondsOr("model_store_settle", 200, "How long an archive file must not have changed before it is opened.",
			func(c *Config) *time.Duration { return &c.StoreSettle }),
		millisecondsOr("model_store_folder_settle", 2000, "The same for a folder, which nothing but silence tells to be complete.",
			func(c *Config) *time.Duration { return &c.StoreFolderSettle }),
		choice("model_store_removal", "auto", "What happens to a watched model whose archive is removed from the store: `unregister`, or `keep` serving what was "+
			"unpacked. `auto`: `unregister` for `flambeau serve`, and `keep` for the `torchserve` command.", []string{"auto", "keep", "unregister"},
			func(c *Config) *string { return &c.StoreRemoval }),
		seconds("model_store_removal_delay", 10, atLeast(0), "How long an archive must be gone before its model is unregistered.",
			func(c *Config) *time.Duration { return &c.StoreRemovalDelay }),
		choice("default_version_policy", "auto", "Which version of a watched model is the default one, unless it was set by hand: `latest`, or the `first` that was "+
			"loaded. `auto`: `latest` for folders with versions and for `flambeau serve`, `first` for files of the `torchserve` command.",
			[]string{"auto", "latest", "first"}, func(c *Config) *string { return &c.DefaultVersionPolicy }),
		choice("model_swap", "dual", "How a changed model replaces the old one: `dual` starts the new workers beside the old ones; `in_place` ends the old ones first, "+
			"which needs the memory of one, and lets requests wait meanwhile. A model's own `swap` goes before it.", []string{"dual", "in_place"},
			func(c *Config) *string { return &c.Swap }),
		choice("batching", "adaptive", "When a batch leaves that is not full: `adaptive` begins as TorchServe's rule, and soon waits only where that pays; "+
			"`torchserve` always waits for `maxBatchDelay`. A model's own `batching` goes before it.", []string{"adaptive", "torchserve"},
			func(c *Config) *string { return &c.Batching }),
		boolean("swap_memory_guard", true, "Whether a `dual` swap is refused, and no worker added for the load, when the memory that is left would not hold the new workers.",
			func(c *Config) *bool { return &c.SwapMemoryGuard }),
		choice("model_warmup", "auto", "What a new worker runs before it takes requests: the archive's `samples`, nothing (`off`), or, with `auto`, the samples or else the "+
			"last request that the old one answered well.", []string{"auto", "samples", "off"}, func(c *Config) *string { return &c.WarmUp }),
		choice("model_check", "warn", "What is done with the findings of `flambeau check`, which looks at each archive before it is started: `off`, `warn`, or `strict`, "+
			"which refuses an archive with errors before a process is started.", []string{"off", "warn", "strict"},
			func(c *Config) *string { return &c.ModelCheck }),
		path("state_dir", "Folder for what is kept across restarts: events, history, earlier archives. Not set: `flambeau` in the log folder.",
			func(c *Config) *string { return &c.StateDir }),
		integer("rollback_keep", 1, atLeast(0), "How many earlier archives of each model version are kept for `flambeau rollback`.",
			func(c *Config) *int { return &c.RollbackKeep }),
		Option{
			Key: "archive_private_networks", Type: "list of networks", Env: envName("archive_private_networks"),
			Doc: "Networks in CIDR form, separated by commas, from which archives may be fetched although they are private, link-local, multicast or the like. Hosts that an " +
				"`allowed_urls` of your own names may be fetched from, too; loopback addresses, when only this machine can reach `management_address`. Through a proxy " +
				"(`HTTPS_PROXY`) the proxy resolves names, and only what this machine knows of them is checked.",
			set: func(c *Config, s string) (err error) {
				c.PrivateNetworks, err = parseNetworks(s)
				return err
			},
		}.opens(),
	}
}

func accessOptions() []Option {
	return []Option{
		boolean("enable_model_api", false, "Whether models can be registered and unregistered over the management API. Scaling is always possible.",
			func(c *Config) *bool { return &c.ModelAPI }).flag("--enable-model-api").opens(),
		negated("disable_token_authorization", false, "Whether requests go without the keys of `key_file.json`.",
			func(c *Config) *bool { return &c.TokenAuth }).flag("--disable-token-auth").opens(),
		Option{
			Key: "token_expiration_min", Type: "minutes", Default: "60", Env: []string{"TS_TOKEN_EXPIRATION_TIME_MIN"},
			Doc: "How long the two keys of `key_file.json` are good. Fractions are allowed.",
			set: func(c *Config, s string) error {
				const fallback = time.Hour
				minutes, err := strconv.ParseFloat(s, 64)
				c.TokenTTL = time.Duration(minutes * float64(time.Minute))
				if err != nil || minutes < 0 || minutes > float64(1<<62)/float64(time.Minute) || minutes != minutes {
					c.TokenTTL = fallback
					return tolerated(fmt.Sprintf("%q is not a number of minutes; it is 60 then", s))
				}
				return nil
			},
		}.alsoEnv("TS_TOKEN_EXPIRATION_MIN"),
	}
}

func workerOptions() []Option {
	return []Option{
		integer("default_workers_per_model", 0, atLeast(0), "Workers of a model for which nobody else says it. 0: at the start as many as GPUs, or "+
			"else CPUs, and for a registration none.", func(c *Config) *int { return &c.DefaultWorkers }),
		seconds("default_response_timeout", 120, atLeast(1), "How long a worker may take for one batch.",
			func(c *Config) *time.Duration { return &c.ResponseTimeout }),
		seconds("default_startup_timeout", 120, atLeast(1), "How long a worker may take to load its model.",
			func(c *Config) *time.Duration { return &c.StartupTimeout }),
		seconds("worker_start_timeout", 120, atLeast(1), "How long a worker's process may take until it speaks, before it loads anything.",
			func(c *Config) *time.Duration { return &c.WorkerStartTimeout }),
		seconds("worker_stop_timeout", 10, atLeast(1), "How long a worker may take to end before it is killed.",
			func(c *Config) *time.Duration { return &c.WorkerStopTimeout }),
		seconds("unregister_model_timeout", 120, atLeast(1), "How long a worker that is removed may take for the batch that it works on.",
			func(c *Config) *time.Duration { return &c.DrainTimeout }),
		seconds("shutdown_timeout", 25, atLeast(1), "How long the server may take to end, from the signal to its exit: for requests under way, and "+
			"for its workers. The default stays below the 30 seconds that Kubernetes gives.", func(c *Config) *time.Duration { return &c.ShutdownTimeout }),
		seconds("drain_accept_for", 0, atLeast(0), "How long the server, asked to end, still takes requests while it says that it is not ready, so that load balancers "+
			"notice. Part of shutdown_timeout. In a pod of Kubernetes 5 when it is not set.", func(c *Config) *time.Duration { return &c.DrainAccept }),
		{
			Key: "number_of_gpu", Type: "integer", Env: envName("number_of_gpu"), Doc: "Most GPUs that are used; all that there are when it is not set.",
			set: func(c *Config, s string) error {
				n, err := atLeast(0).parse(s)
				if err == nil {
					c.GPULimit = int(n)
				}
				return err
			},
		},
		boolean("autoscale", true, "Whether the number of workers follows the load for a model whose `maxWorkers` is above its `minWorkers`, and whether one with a `keepAlive` "+
			"may be without workers. Without it a model has its `minWorkers`, as with TorchServe.", func(c *Config) *bool { return &c.Autoscale }),
		millisecondsOr("autoscale_queue_time", 100, "How long a request may wait for a worker before workers are added.",
			func(c *Config) *time.Duration { return &c.AutoscaleWait }),
		seconds("autoscale_calm_time", 30, atLeast(1), "For how long fewer workers must have been enough before some are ended.",
			func(c *Config) *time.Duration { return &c.AutoscaleCalm }),
		choice("worker_threads", "auto", "How many threads the libraries in a worker are told to use, unless its environment says it: `share`, its part of the processors; `quota`, "+
			"the processor quota where there is one; `off`, nothing. `auto`: `share` for `flambeau serve`, `off` for the `torchserve` command.",
			[]string{"auto", "off", "quota", "share"}, func(c *Config) *string { return &c.WorkerThreads }),
		seconds("heartbeat_timeout", 5, atLeast(0), "How long the process of a worker may answer no heartbeat, and use no processor, before it is killed and another one is started. "+
			"0: there are no heartbeats.", func(c *Config) *time.Duration { return &c.HeartbeatTimeout }),
		integer("initial_worker_port", 9000, bounds{0, 1 << 30}, "Identifier of the first worker; it is counted up, and no identifier is used twice. "+
			"Workers use no ports here.", func(c *Config) *int { return &c.InitialWorkerPort }),
		integer("initial_distribution_port", 29500, bounds{0, maxPort}, "The same for workers of parallel models; each counts as many "+
			"as its parallelLevel.", func(c *Config) *int { return &c.InitialDistributionPort }),
		{
			Key: "blacklist_env_vars", Type: "regular expression", Env: envName("blacklist_env_vars"),
			Doc: "Environment variables whose whole name matches it are hidden from workers. Java's syntax.",
			set: func(c *Config, s string) (err error) {
				c.BlacklistEnv, err = javaregex.Compile(s)
				return err
			},
		},
		boolean("debug", false, "Whether workers are started by hand.", func(c *Config) *bool { return &c.Debug }).effect(Pending),
	}
}

func pythonOptions() []Option {
	return []Option{
		path("python", "Python interpreter of the workers. Not set: the variable FLAMBEAU_PYTHON, which the `torchserve` command of the wheel sets to "+
			"its own; else `python3` or `python` on the PATH.", func(c *Config) *string { return &c.Python }).fileOnly(),
		text("default_service_handler", "", "Handler of a model whose archive names none.", func(c *Config) *string { return &c.DefaultHandler }),
		text("service_envelope", "", "Request envelope of all models: `body`, `json`, `kserve` or `kservev2`.",
			func(c *Config) *string { return &c.Envelope }),
		boolean("decode_input_request", true, "Whether JSON and text bodies are decoded before the handler sees them.",
			func(c *Config) *bool { return &c.DecodeInput }),
		boolean("limit_max_image_pixels", true, "Whether Pillow's limit on the pixels of an image holds in workers.",
			func(c *Config) *bool { return &c.LimitMaxImagePixels }),
		boolean("ipex_enable", false, "Tells handlers to use Intel's extension for PyTorch (TS_IPEX_ENABLE).", func(c *Config) *bool { return &c.IPEX }),
		boolean("ipex_gpu_enable", false, "The same on Intel GPUs (TS_IPEX_GPU_ENABLE).", func(c *Config) *bool { return &c.IPEXGPU }),
		boolean("cpu_launcher_enable", false, "Whether workers are pinned to cores by `torch.backends.xeon.run_cpu`.",
			func(c *Config) *bool { return &c.CPULauncher }).effect(Pending),
		text("cpu_launcher_args", "", "Its arguments.", func(c *Config) *string { return &c.CPULauncherArgs }).effect(Pending),
	}
}

func requestOptions() []Option {
	return []Option{
		integer("job_queue_size", 100, atLeast(1), "Most requests that wait for one model version; more are refused at once with 503.",
			func(c *Config) *int { return &c.QueueSize }),
		size("job_queue_max_bytes", 1<<30, atLeast(0), "Most payload bytes that wait for one model version; 0 for no limit.",
			func(c *Config) *int64 { return &c.QueueBytes }),
		size("queue_max_bytes", 2<<30, atLeast(0), "Most payload bytes that wait in the queues of all models together, also those of an ensemble's steps, which no client "+
			"has sent; 0 for no limit.", func(c *Config) *int64 { return &c.QueueServerBytes }),
		fairnessKey(), fairnessShare(),
		size("inflight_max_bytes", 2<<30, atLeast(0), "Most bytes of request bodies in the server at the same time, of all models; what comes beyond is refused with "+
			"503 before it is read. 0 for no limit.", func(c *Config) *int64 { return &c.InflightBytes }),
		seconds("poison_memory", 600, atLeast(0), "How long a request that has ended a worker is remembered. The second time it is refused without a try until then. 0: nothing is "+
			"remembered.", func(c *Config) *time.Duration { return &c.PoisonMemory }),
		boolean("request_history", true, "Whether the latest requests and the slowest ones of each model are remembered, for `flambeau slow` and `flambeau trace`: how long "+
			"each part took, and not what was in them.", func(c *Config) *bool { return &c.RequestHistory }),
		size("max_request_size", 6553500, atLeast(1), "Largest body of a request; a larger one is answered with 413.",
			func(c *Config) *int64 { return &c.MaxRequestBytes }),
		size("max_response_size", 6553500, atLeast(1), "Largest answer of a handler; a larger one fails its request, and not its worker.",
			func(c *Config) *int64 { return &c.MaxResponseBytes }),
		boolean("ts_open_inference_protocol", false, "Whether the general routes of the Open Inference Protocol are there. The environment variable is read "+
			"always, and has to be `oip`.", func(c *Config) *bool { return &c.OpenInference }),
		choice("open_inference", "auto", "What is served of the Open Inference Protocol (`/v2`): `full`, all of it, over REST and gRPC; `torchserve`, only what "+
			"TorchServe answers. `auto`: `full` for `flambeau serve`, `torchserve` for the `torchserve` command.", []string{"auto", "full", "torchserve"},
			func(c *Config) *string { return &c.Protocol }),
		boolean("system_shared_memory", false, "Whether clients of the Open Inference Protocol on this machine can register POSIX shared memory and have tensors read from and "+
			"written to it. Who has the management key, or anybody on this machine where there are no keys, can then reach the "+
			"objects of all programs of this user in `/dev/shm`.", func(c *Config) *bool { return &c.SharedMemory }).opens(),
		path("trace_file", "File for the traces of requests of the Open Inference Protocol; none can be traced when it is not set. What is traced, clients say (`/v2/trace/setting`).",
			func(c *Config) *string { return &c.TraceFile }),
		size("trace_max_bytes", 256<<20, atLeast(1<<20), "Most bytes of the files of traces together. A file that is full becomes `FILE.old`, and the oldest traces go.",
			func(c *Config) *int64 { return &c.TraceBytes }),
		text("ts_header_key_sequence_id", "ts_request_sequence_id", "Header with a sequence's identifier.",
			func(c *Config) *string { return &c.SequenceHeaders.ID }),
		text("ts_header_key_sequence_start", "ts_request_sequence_start", "Header that begins a sequence.",
			func(c *Config) *string { return &c.SequenceHeaders.Start }),
		text("ts_header_key_sequence_end", "ts_request_sequence_end", "Header that ends a sequence.",
			func(c *Config) *string { return &c.SequenceHeaders.End }),
	}
}

func metricOptions() []Option {
	return []Option{
		oneOf("metrics_mode", "auto", "Where metrics go: to log files only, or to `/metrics`. `auto`: `log` for the `torchserve` command; `prometheus` for `flambeau serve`, "+
			"which then keeps what handlers measure, too, unless `metrics_config` or `model_metrics_auto_detect` says otherwise.", []string{"auto", "log", "prometheus", "legacy"},
			func(c *Config) *string { return &c.MetricsMode }),
		path("metrics_config", "YAML file that lists the metrics; Flambeau's own when it is not set.", func(c *Config) *string { return &c.MetricsConfig }),
		boolean("model_metrics_auto_detect", false, "Whether metrics of handlers that the file does not list are kept. What a handler counted before it failed counts.",
			func(c *Config) *bool { return &c.MetricsAutoDetect }),
		negated("disable_system_metrics", false, "Whether metrics of the machine are left out.", func(c *Config) *bool { return &c.SystemMetrics }),
		text("system_metrics_cmd", "", "Command that collects metrics of the machine, which the server does itself here.",
			func(c *Config) *string { return &c.SystemMetricsCmd }).fileOnly().effect(Pending),
		seconds("metric_time_interval", 60, atLeast(1), "How often metrics of the machine are collected.",
			func(c *Config) *time.Duration { return &c.MetricsInterval }).fileOnly(),
	}
}

func grpcOptions() []Option {
	inference, management := func(c *Config) *GRPC { return &c.GRPCInference }, func(c *Config) *GRPC { return &c.GRPCManagement }
	host := func(g func(*Config) *GRPC) func(*Config) *string {
		return func(c *Config) *string { return &g(c).Host }
	}
	port := func(g func(*Config) *GRPC) func(*Config) *int { return func(c *Config) *int { return &g(c).Port } }
	age := func(g func(*Config) *GRPC) func(*Config) *time.Duration {
		return func(c *Config) *time.Duration { return &g(c).MaxAge }
	}
	grace := func(g func(*Config) *GRPC) func(*Config) *time.Duration {
		return func(c *Config) *time.Duration { return &g(c).MaxAgeWait }
	}
	return []Option{
		text("grpc_inference_address", "127.0.0.1", "Host of the gRPC inference API, which serves the Open Inference Protocol.", host(inference)),
		integer("grpc_inference_port", 7070, bounds{0, maxPort}, "Its port. When it is not set and another program has it, there is no gRPC API.",
			port(inference)),
		text("grpc_management_address", "127.0.0.1", "Host of the gRPC management API.", host(management)).effect(Pending),
		integer("grpc_management_port", 7071, bounds{0, maxPort}, "Its port.", port(management)).effect(Pending),
		milliseconds("grpc_inference_max_connection_age_ms", "How long a connection lives; without a limit when it is not set.", age(inference)),
		milliseconds("grpc_inference_max_connection_age_grace_ms", "How long its calls may go on after that.", grace(inference)),
		milliseconds("grpc_management_max_connection_age_ms", "How long a connection lives; without a limit when it is not set.",
			age(management)).effect(Pending),
		milliseconds("grpc_management_max_connection_age_grace_ms", "How long its calls may go on after that.", grace(management)).effect(Pending),
		boolean("enable_grpc_ssl", false, "Whether gRPC uses `certificate_file` and `private_key_file`.", func(c *Config) *bool { return &c.GRPCTLS }),
	}
}

func metaOptions() []Option {
	return []Option{
		boolean(enableEnvKey, false, "Whether environment variables named `TS_` and the key in capitals are read. They go before the command line and the "+
			"file.", func(c *Config) *bool { return &c.useEnv }).fileOnly(),
		boolean(envURLsKey, false, "Whether `TS_ALLOWED_URLS` is read, too.", func(c *Config) *bool { return &c.useEnvAllowed }).fileOnly(),
	}
}

// Keys that decide about other keys.
const (
	enableEnvKey   = "enable_envvars_config"
	envURLsKey     = "use_env_allowed_urls"
	allowedURLsKey = "allowed_urls"
	oipKey         = "ts_open_inference_protocol"
	loadModelsKey  = "load_models"
	snapshotKey    = "model_snapshot"
	pythonKey      = "python"
	notRestoredKey = "flambeau_not_restored"
)

func ignoredOptions() []Option {
	cpp := path("cpp_log_config", "Log settings of C++ workers, which there are none of.", func(c *Config) *string { return &c.CPPLogConfig })
	plugins := path("plugins_path", "Java plugins, which cannot run here.", func(c *Config) *string { return &c.PluginsPath })
	return []Option{
		accepted("vmargs", "text", "", "Arguments of the Java virtual machine.", JVMOnly).fileOnly(),
		accepted("number_of_netty_threads", "integer", "0", "Threads of TorchServe's HTTP server.", JVMOnly),
		accepted("netty_client_threads", "integer", "0", "Threads of its connections to workers.", JVMOnly),
		accepted("prefer_direct_buffer", "true or false", "false", "Memory of its network buffers.", JVMOnly),
		accepted("async_logging", "true or false", "false", "How log4j writes.", JVMOnly),
		accepted("use_native_io", "true or false", "true", "Unix or TCP sockets to workers.", JVMOnly).fileOnly(),
		accepted("io_ratio", "integer", "50", "Share of time for I/O in its threads.", JVMOnly).fileOnly(),
		cpp.flag("--cpp-log-config").effect(Pending),
		plugins.fileOnly().flag("--plugins-path").effect(Pending),
		accepted("model_server_home", "path", "", "Where TorchServe's Python files are.", Informal),
		accepted("NUM_WORKERS", "integer", "", "Read by SageMaker's plugin.", Informal).fileOnly(),
		accepted("version", "text", "", "Written by TorchServe into its snapshots.", Informal).fileOnly(),
		accepted("tsConfigFile", "path", "", "Written by TorchServe into its snapshots.", Informal).fileOnly(),
		accepted(notRestoredKey, "list", "", "Written into snapshots: which switches were on that are not restored.", Informal).fileOnly(),
	}
}
