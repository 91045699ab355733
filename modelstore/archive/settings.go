package archive

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
)

// What TorchServe takes for the timeouts of a model that has a configuration file which does not name them.
const (
	yamlResponseTimeout = 120 * time.Second
	yamlStartupTimeout  = 120 * time.Second
)

// readSettings reads the model's configuration file. One that cannot be read is logged and taken for absent, as TorchServe does; one that is made to
// harm whoever reads it is an error.
func (a *Archive) readSettings(limits Limits, logger *slog.Logger) (Settings, error) {
	name := a.Manifest.Model.ConfigFile
	if name == "" {
		return Settings{}, nil
	}
	logger = logger.With(slog.String("url", a.URL), slog.String("config_file", name))
	settings, err := a.loadSettings(name, limits, logger)
	if _, harmful := errors.AsType[*refusal](err); harmful {
		return Settings{}, err
	}
	if err != nil {
		logger.Error("the model's configuration file is ignored: it cannot be read", slog.Any("error", err))
		return Settings{}, nil
	}
	return settings, nil
}

func (a *Archive) loadSettings(name string, limits Limits, logger *slog.Logger) (Settings, error) {
	if !filepath.IsLocal(name) {
		return Settings{}, errors.New("the manifest's configFile has to be a file of the archive")
	}
	text, err := readSmall(filepath.Join(a.Dir, name), limits.MetadataBytes)
	if errors.Is(err, os.ErrNotExist) {
		return Settings{}, errors.New("the archive holds no such file; add it with torch-model-archiver's --config-file")
	}
	if err != nil {
		return Settings{}, err
	}
	if err := checkLines(text); err != nil {
		return Settings{}, err
	}
	file, err := readYAML(text)
	if err != nil {
		return Settings{}, err
	}
	twice, err := checkYAML(file)
	if err != nil {
		return Settings{}, err
	}
	for _, key := range twice {
		logger.Warn("a key of the model's configuration file is there twice; the last one counts, as for TorchServe and for the handler",
			slog.String("key", key.name), slog.Int("line", key.line))
	}
	return settingsOf(file, logger)
}

// parseSettings reads the server's keys of a model-config.yaml.
func parseSettings(text []byte, logger *slog.Logger) (Settings, error) {
	file, err := readYAML(text)
	if err != nil {
		return Settings{}, err
	}
	return settingsOf(file, logger)
}

// settingsOf takes the server's keys. Values of a wrong type are warned of and left out.
func settingsOf(file *ast.File, logger *slog.Logger) (Settings, error) {
	entries, err := topLevel(file)
	if err != nil {
		return Settings{}, err
	}
	r := &settingsReader{logger: logger, s: Settings{
		HasConfig: true, ResponseTimeout: new(yamlResponseTimeout), StartupTimeout: new(yamlStartupTimeout),
		MaxSequenceJobQueueSize: 1, MaxNumSequence: 1,
	}}
	for _, e := range entries {
		r.read(e)
	}
	r.s.ToZero = r.zero && r.s.KeepAlive > 0
	return r.s, nil
}

// settingsReader fills the settings key by key, in the order of the file: a later torchrun or parallelLevel wins over an earlier one.
type settingsReader struct {
	s      Settings
	zero   bool // minWorkers is 0
	logger *slog.Logger
}

func (r *settingsReader) warn(e yamlEntry, want string) {
	r.logger.Warn("value of the model's configuration file is ignored", slog.String("key", e.key), slog.Int("line", e.line),
		slog.String("value", e.shown()), slog.String("expected", want))
}

func (r *settingsReader) read(e yamlEntry) {
	if r.readFlag(e) || r.readCount(e) || r.readTime(e) {
		return
	}
	switch e.key {
	case "deviceType":
		r.word(e, &r.s.DeviceType, "cpu", "gpu")
	case "parallelType":
		r.word(e, &r.s.ParallelType, "pp", "tp", "pptp", "custom")
	case "deviceIds":
		r.deviceIDs(e)
	case "torchrun":
		r.torchRun(e)
	case "batching":
		r.word(e, &r.s.Batching, BatchingAdaptive, BatchingTorchServe)
	case "preferredBatchSizes":
		r.batchSizes(e)
	case "slo":
		r.goal(e)
	case "recycle":
		r.recycle(e)
	case "swap":
		r.word(e, &r.s.Swap, SwapDual, SwapInPlace)
	case "warmup":
		r.warmUp(e)
	case "fairness":
		r.fairness(e)
	case "plugin":
		if v, ok := e.text(); ok {
			r.s.Plugin = v
		} else {
			r.warn(e, "the path of a program in the archive")
		}
	case "pluginArgs":
		r.pluginArgs(e)
	}
}

func (r *settingsReader) readFlag(e yamlEntry) bool {
	retry := !r.s.NoRetry
	defer func() { r.s.NoRetry = !retry }()
	flags := map[string]*bool{
		"retry":        &retry,
		"useJobTicket": &r.s.UseJobTicket, "sequenceBatching": &r.s.SequenceBatching, "continuousBatching": &r.s.ContinuousBatching,
		"asyncCommunication": &r.s.AsyncCommunication, "useVenv": &r.s.UseVenv, "paddedBatchSizes": &r.s.PaddedBatchSizes,
	}
	dst, ok := flags[e.key]
	if !ok {
		return false
	}
	if v, ok := e.boolean(); ok {
		*dst = v
	} else {
		r.warn(e, "true or false")
	}
	return true
}

func (r *settingsReader) readCount(e yamlEntry) bool {
	switch e.key {
	case "minWorkers":
		r.minWorkers(e)
	case "keepAlive":
		r.keepAlive(e)
	case "maxWorkers":
		r.count(e, 0, func(n int) { r.s.MaxWorkers = &n })
	case "batchSize":
		r.count(e, math.MinInt32, func(n int) { r.s.BatchSize = new(max(1, n)) })
	case "parallelLevel":
		r.count(e, 0, func(n int) { r.s.ParallelLevel = n })
	case "jobQueueSize":
		r.count(e, math.MinInt32, func(n int) {
			r.s.JobQueueSize = nil
			if n > 0 {
				r.s.JobQueueSize = &n
			}
		})
	case "maxConcurrency":
		r.count(e, 0, func(n int) { r.s.MaxConcurrency = n })
	case "priorityLevels":
		r.level(e, &r.s.PriorityLevels)
	case "defaultPriorityLevel":
		r.level(e, &r.s.DefaultPriorityLevel)
	case "maxSequenceJobQueueSize":
		r.count(e, math.MinInt32, func(n int) { r.s.MaxSequenceJobQueueSize = max(1, n) })
	case "maxNumSequence":
		r.count(e, math.MinInt32, func(n int) { r.s.MaxNumSequence = max(1, n) })
	default:
		return false
	}
	return true
}

func (r *settingsReader) readTime(e yamlEntry) bool {
	const ms, s = time.Millisecond, time.Second
	switch e.key {
	case "maxBatchDelay":
		r.count(e, 0, func(n int) {
			r.s.MaxBatchDelay = nil
			if n > 0 {
				r.s.MaxBatchDelay = new(time.Duration(n) * ms)
			}
		})
	case "responseTimeout":
		r.count(e, 1, func(n int) { r.s.ResponseTimeout = new(time.Duration(n) * s) })
	case "startupTimeout":
		r.count(e, 1, func(n int) { r.s.StartupTimeout = new(time.Duration(n) * s) })
	case "maxRetryTimeoutInSec":
		r.count(e, math.MinInt32, func(n int) { r.s.MaxRetryTimeout = new(time.Duration(max(0, n)) * s) })
	case "clientTimeoutInMills":
		r.count(e, math.MinInt32, func(n int) {
			r.s.ClientTimeout = nil
			if n > 0 {
				r.s.ClientTimeout = new(time.Duration(n) * ms)
			}
		})
	case "sequenceMaxIdleMSec":
		r.count(e, math.MinInt32, func(n int) { r.s.SequenceMaxIdle = time.Duration(max(0, n)) * ms })
	case "sequenceTimeoutMSec":
		r.count(e, math.MinInt32, func(n int) { r.s.SequenceTimeout = time.Duration(max(0, n)) * ms })
	default:
		return false
	}
	return true
}

// count takes an integer that is not below least.
func (r *settingsReader) count(e yamlEntry, least int, set func(int)) {
	n, ok := e.integer()
	if !ok || n < least {
		want := "an integer"
		if least > math.MinInt32 {
			want = fmt.Sprintf("an integer of at least %d", least)
		}
		r.warn(e, want)
		return
	}
	set(n)
}

// level takes a class of priority, or how many there are.
func (r *settingsReader) level(e yamlEntry, dst *int) {
	const most = 100
	if n, ok := e.integer(); ok && 0 <= n && n <= most {
		*dst = n
		return
	}
	r.warn(e, fmt.Sprintf("an integer from 0 to %d", most))
}

// word takes one of a few words, in any case. Any other text is none, as in TorchServe.
func (r *settingsReader) word(e yamlEntry, dst *string, words ...string) {
	v, ok := e.text()
	if ok {
		*dst = ""
		for _, w := range words {
			if strings.EqualFold(v, w) {
				*dst = w
				return
			}
		}
	}
	if v != "" || !ok {
		r.warn(e, strings.Join(words, ", "))
	}
}

func (r *settingsReader) deviceIDs(e yamlEntry) {
	seq, ok := e.value.(*ast.SequenceNode)
	if !ok {
		r.warn(e, "a list of integers")
		return
	}
	ids := make([]int, 0, len(seq.Values))
	for _, node := range seq.Values {
		id, ok := e.with(node).integer()
		if !ok {
			r.warn(e, "a list of integers")
			r.s.DeviceIDs = nil
			return
		}
		ids = append(ids, id)
	}
	r.s.DeviceIDs = ids
}

// pluginArgs takes the arguments of a plugin; a number or a boolean stands for its text.
func (r *settingsReader) pluginArgs(e yamlEntry) {
	seq, ok := e.value.(*ast.SequenceNode)
	if !ok {
		r.warn(e, "a list of texts")
		return
	}
	args := make([]string, 0, len(seq.Values))
	for _, node := range seq.Values {
		arg, ok := e.with(node).scalarText()
		if !ok {
			r.warn(e, "a list of texts")
			return
		}
		args = append(args, arg)
	}
	r.s.PluginArgs = args
}

func (r *settingsReader) torchRun(e yamlEntry) {
	mapping, ok := e.value.(*ast.MappingNode)
	if !ok {
		r.warn(e, "a map with torchrun's parameters")
		return
	}
	t := &TorchRun{Nodes: 1, ProcsPerNode: 1, Backend: "c10d", MonitorInterval: 5 * time.Second, OMPThreads: 1}
	for _, sub := range e.entries(mapping) {
		r.torchRunKey(sub, t)
	}
	r.s.TorchRun, r.s.ParallelLevel = t, t.ProcsPerNode
}

func (r *settingsReader) torchRunKey(e yamlEntry, t *TorchRun) {
	texts := map[string]*string{
		"rdzv-backend": &t.Backend, "rdzv-endpoint": &t.Endpoint, "rdzv-conf": &t.Conf, "master-addr": &t.MasterAddr,
	}
	if dst, ok := texts[e.key]; ok {
		if v, ok := e.text(); ok {
			*dst = v
		} else {
			r.warn(e, "a text")
		}
		return
	}
	switch e.key {
	case "nnodes":
		r.count(e, 1, func(n int) { t.Nodes = n })
	case "nproc-per-node":
		r.count(e, 1, func(n int) { t.ProcsPerNode = n })
	case "monitor-interval":
		r.count(e, 1, func(n int) { t.MonitorInterval = time.Duration(n) * time.Second })
	case "node-rank":
		r.count(e, 0, func(n int) { t.NodeRank = n })
	case "OMP_NUMBER_THREADS":
		r.count(e, 1, func(n int) { t.OMPThreads = n })
	case "master-port":
		r.count(e, 1, func(n int) { t.MasterPort = n })
	default:
		r.logger.Warn("parameter of torchrun is not supported", slog.String("key", e.key), slog.Int("line", e.line))
	}
}
