package check

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// serverKeys are the keys of model-config.yaml that the server reads.
func serverKeys() []string {
	return []string{
		"minWorkers", "maxWorkers", "batchSize", "maxBatchDelay", "responseTimeout", "startupTimeout", "deviceType", "deviceIds", "parallelType",
		"parallelLevel", "torchrun", "maxRetryTimeoutInSec", "clientTimeoutInMills", "jobQueueSize", "useJobTicket", "sequenceBatching",
		"priorityLevels", "defaultPriorityLevel", "continuousBatching", "asyncCommunication", "sequenceMaxIdleMSec", "sequenceTimeoutMSec", "maxSequenceJobQueueSize", "maxNumSequence",
		"maxConcurrency", "fairness", "batching", "preferredBatchSizes", "paddedBatchSizes", "slo", "useVenv", "retry", "keepAlive", "recycle", "swap", "warmup", "plugin", "pluginArgs", "ensemble",
	}
}

// tritonFindings tells what of a config.pbtxt has no effect. One that cannot be used keeps the model from being opened at all.
func (s *subject) tritonFindings() {
	if s.archive.Triton == nil {
		return
	}
	for _, w := range s.archive.Triton.Warnings {
		s.found.add(Warning, ConfigValue, "config.pbtxt", w.Line, "docs/triton.md says what is read", "%s", w.Text)
	}
}

// configFindings looks at the model's configuration file.
func (s *subject) configFindings(o *Options) {
	name := s.archive.Manifest.Model.ConfigFile
	if name == "" || !s.has(name) {
		return
	}
	text, ok := s.readText(name, mostText)
	if !ok {
		s.found.add(Error, ConfigUnreadable, name, 0, "", "the configuration file cannot be read, or it is larger than %d MiB", mostText>>20)
		return
	}
	settings, entries, problems, err := archive.ReadConfig(text)
	if err != nil {
		s.found.add(Error, ConfigUnreadable, name, 0, "correct the file; the server would go on without it, and the worker fail to load it", "the configuration file cannot be read: %v", err)
		return
	}
	for _, p := range problems {
		if p.Expected == "" {
			s.found.add(Warning, ConfigValue, name, p.Line, "", "the parameter %s is ignored: it is not supported", p.Key)
			continue
		}
		s.found.add(Warning, ConfigValue, name, p.Line, "", "%s is ignored: %q is not %s", p.Key, p.Value, p.Expected)
	}
	lines := map[string]int{}
	for _, e := range entries {
		lines[e.Key] = e.Line
		if near := nearestKey(e.Key); near != "" && !e.Server {
			s.found.add(Warning, ConfigUnknownKey, name, e.Line, "rename it if the server is meant; the handler sees every key in context.model_yaml_config",
				"the server does not know %s; did you mean %s?", e.Key, near)
		}
	}
	s.contradictions(name, lines, &settings)
	s.devices(name, lines, &settings, o)
}

// nearestKey gives the server's key that another one looks like, "" when it looks like none or is one itself.
func nearestKey(key string) string {
	plain := func(k string) string {
		return strings.ToLower(strings.NewReplacer("_", "", "-", "", ".", "").Replace(k))
	}
	keys := serverKeys()
	if slices.Contains(keys, key) {
		return ""
	}
	const shortest = 6 // a short key is like too many others
	best, distance := "", 3
	for _, known := range keys {
		d := editDistance(plain(key), plain(known))
		if d > 0 && (len(known) < shortest || d > len(known)/5) {
			continue
		}
		if d < distance {
			best, distance = known, d
		}
	}
	return best
}

// longestKey bounds what is compared.
const longestKey = 64

// editDistance counts the letters to insert, remove or change.
func editDistance(a, b string) int {
	if len(a) > longestKey {
		return longestKey
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func (s *subject) contradictions(name string, lines map[string]int, y *archive.Settings) {
	say := func(key, hint, format string, args ...any) {
		s.found.add(Warning, ConfigContradiction, name, lines[key], hint, format, args...)
	}
	if y.MinWorkers != nil && y.MaxWorkers != nil && *y.MinWorkers > *y.MaxWorkers {
		say("minWorkers", "make maxWorkers at least as large", "minWorkers is %d and maxWorkers %d, so neither has an effect", *y.MinWorkers, *y.MaxWorkers)
	}
	if y.MinWorkers != nil && y.MaxWorkers == nil {
		say("minWorkers", fmt.Sprintf("add maxWorkers: %d", *y.MinWorkers), "minWorkers has no effect without maxWorkers")
	}
	if y.MaxWorkers != nil && y.MinWorkers == nil {
		say("maxWorkers", "add minWorkers: 1", "maxWorkers has no effect without minWorkers")
	}
	if y.SequenceBatching && y.SequenceMaxIdle == 0 {
		say("sequenceBatching", "add sequenceMaxIdleMSec", "sequenceBatching without sequenceMaxIdleMSec: a sequence that a client leaves open is never ended")
	}
	for _, key := range []string{"sequenceMaxIdleMSec", "sequenceTimeoutMSec", "maxSequenceJobQueueSize", "maxNumSequence"} {
		if lines[key] > 0 && !y.SequenceBatching {
			say(key, "add sequenceBatching: true, or leave it out", "%s has no effect without sequenceBatching", key)
		}
	}
	if y.TorchRun != nil && y.ParallelType == "" {
		say("torchrun", "add parallelType: tp, pp, pptp or custom", "torchrun has no effect without parallelType")
	}
	if y.TorchRun == nil && y.ParallelType == "" && lines["parallelLevel"] > 0 {
		say("parallelLevel", "add parallelType: tp, pp, pptp or custom", "parallelLevel has no effect without parallelType")
	}
	if y.UseVenv && s.archive.Manifest.Runtime == archive.RuntimePython3 {
		say("useVenv", "make the manifest's runtime python", "useVenv has no effect with the runtime python3")
	}
	if y.MaxBatchDelay != nil && y.BatchSize == nil {
		say("maxBatchDelay", "add batchSize", "maxBatchDelay has no effect without a batchSize above 1, unless the registration gives one")
	}
}

func (s *subject) devices(name string, lines map[string]int, y *archive.Settings, o *Options) {
	if o.GPUs == nil {
		return
	}
	gpus := *o.GPUs
	for _, id := range y.DeviceIDs {
		if id < 0 || id >= gpus {
			s.found.add(Warning, ConfigDevices, name, lines["deviceIds"], "correct the list, or leave it out", "deviceIds has %d, and the server has %s", id, plural(gpus, "GPU"))
		}
	}
	if y.DeviceType == "gpu" && gpus == 0 {
		s.found.add(Warning, ConfigDevices, name, lines["deviceType"], "", "deviceType is gpu, and the server has none: the model runs on the CPU")
	}
}
