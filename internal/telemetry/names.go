package telemetry

// Keys of log records. The same thing has the same key in every package.
const (
	KeyAddress   = "address"
	KeyDetail    = "detail" // a traceback, or a worker's last words
	KeyDuration  = "duration_ms"
	KeyError     = "error"
	KeyFrom      = "from" // the state before
	KeyHint      = "hint"
	KeyMessage   = "message" // what the client reads
	KeyMethod    = "method"
	KeyMetric    = "metric"
	KeyModel     = "model"
	KeyPanic     = "panic"
	KeyPath      = "path"
	KeyPeer      = "peer"
	KeyPID       = "pid"
	KeyPort      = "port"
	KeyReason    = "reason" // a word of internal/fault
	KeyRequestID = "request_id"
	KeyStack     = "stack"
	KeyStatus    = "status"
	KeyTarget    = "target" // a request's, as sent but for passwords and signatures
	KeyTo        = "to"     // the state after
	KeyURL       = "url"
	KeyVersion   = "version" // of a model
	KeyWorker    = "worker"
)

// Names of TorchServe's metrics.
const (
	Requests2XX          = "Requests2XX"
	Requests4XX          = "Requests4XX"
	Requests5XX          = "Requests5XX"
	InferenceRequests    = "ts_inference_requests_total"
	InferenceLatency     = "ts_inference_latency_microseconds"
	QueueLatency         = "ts_queue_latency_microseconds"
	QueueTime            = "QueueTime"
	WorkerThreadTime     = "WorkerThreadTime"
	WorkerLoadTime       = "WorkerLoadTime"
	CPUUtilization       = "CPUUtilization"
	MemoryUsed           = "MemoryUsed"
	MemoryAvailable      = "MemoryAvailable"
	MemoryUtilization    = "MemoryUtilization"
	DiskUsage            = "DiskUsage"
	DiskUtilization      = "DiskUtilization"
	DiskAvailable        = "DiskAvailable"
	GPUMemoryUtilization = "GPUMemoryUtilization"
	GPUMemoryUsed        = "GPUMemoryUsed"
	GPUUtilization       = "GPUUtilization"
	HandlerTime          = "HandlerTime"
	PredictionTime       = "PredictionTime"
)

// Names of the metrics that TorchServe does not have.
const (
	RequestDuration = "flambeau_request_duration_seconds"
	QueueDuration   = "flambeau_queue_duration_seconds"
	Failures        = "flambeau_request_failures_total"
	QueueDepth      = "flambeau_queue_depth"
	QueueCapacity   = "flambeau_queue_capacity"
	Workers         = "flambeau_workers"
	WorkerStarts    = "flambeau_worker_starts_total"
	WorkerFailures  = "flambeau_worker_failures_total"
	AutoscaleSteps  = "flambeau_autoscale_steps_total"
	WorkersRecycled = "flambeau_workers_recycled_total"
	Panics          = "flambeau_panics_total"

	ModelSwaps        = "flambeau_model_swaps_total"
	ModelSwapDuration = "flambeau_model_swap_duration_seconds"
	ModelGeneration   = "flambeau_model_generation"
	ModelLastChange   = "flambeau_model_last_change_timestamp_seconds"
	StoreEntries      = "flambeau_store_entries"
)

// Labels of the metrics. TorchServe's differ from one metric to the next in how they are written.
const (
	labelLevel        = "Level"
	labelHostname     = "Hostname"
	labelDevice       = "DeviceId"
	labelWorkerName   = "WorkerName"
	labelModelName    = "ModelName"
	labelTSModel      = "model_name"
	labelTSVersion    = "model_version"
	labelTSHost       = "hostname"
	labelModel        = "model"
	labelVersion      = "version"
	labelReason       = "reason"
	labelState        = "state"
	labelOutcome      = "outcome"
	labelDirection    = "direction"
	labelPart         = "part"
	levelHost         = "Host"
	levelModel        = "Model"
	unitCount         = "Count"
	unitMilliseconds  = "Milliseconds"
	unitMicroseconds  = "Microseconds"
	unitPercent       = "Percent"
	unitMegabytes     = "Megabytes"
	unitGigabytes     = "Gigabytes"
	defaultVersion    = "default" // what TorchServe calls a version that the request did not name
	noModel           = ""        // of failures before a model is known
	otherModels       = "other"   // of models beyond the label budget
	defaultLabelQuota = 1000
)
