package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/pipeline"
	"github.com/flambeau-serve/flambeau/modelstore/pbtxt"
)

// readTriton reads the config.pbtxt of a model in the layout of Triton's model repository: it lies beside the folders of the versions. It says whether there
// is one.
func (a *Archive) readTriton(limits Limits, logger *slog.Logger) (bool, error) {
	beside, name := a.beside, a.layout.name
	if beside == "" || !isFile(filepath.Join(beside, pbtxt.File)) {
		if beside = a.Dir; !isFile(filepath.Join(beside, pbtxt.File)) {
			return false, nil
		}
		if !a.InPlace {
			name = "" // an archive file may be called as it likes
		}
	}
	text, err := readSmall(filepath.Join(beside, pbtxt.File), min(limits.MetadataBytes, pbtxt.MaxBytes))
	if err != nil {
		return true, refuse("", "%s cannot be read: %v", pbtxt.File, err)
	}
	c, err := pbtxt.Parse(text, name)
	if err != nil {
		hint := ""
		if e, ok := errors.AsType[*pbtxt.Error](err); ok {
			hint = e.Hint
		}
		return true, refuse(hint, "%s: %v", pbtxt.File, err)
	}
	logger = logger.With(slog.String("url", a.URL), slog.String("config_file", pbtxt.File))
	for _, w := range c.Warnings {
		logger.Warn("not all of the model's configuration has an effect", slog.Int("line", w.Line), slog.String("reason", w.Text))
	}
	a.Triton = c
	if beside == a.Dir {
		a.enterVersion(c)
	}
	a.Manifest.Model = ManifestModel{ModelName: a.layout.name, ModelVersion: a.layout.version}
	if name == "" && c.Name != "" {
		a.Manifest.Model.ModelName = c.Name
	}
	if err := a.tritonSettings(c, beside, limits, logger); err != nil {
		return true, err
	}
	if a.Labels, err = readLabels(c, beside, limits); err != nil {
		return true, err
	}
	a.warmUps = beside
	if c.Ensemble != nil {
		a.becomeEnsemble(c.Ensemble, false)
		return true, nil
	}
	return true, a.tritonModel(c)
}

// enterVersion makes the folder of a whole model, with config.pbtxt and a folder for each version, the folder of the newest of those that are to be served.
func (a *Archive) enterVersion(c *pbtxt.Config) {
	file := onnxName
	if c.File != "" {
		file = c.File
	}
	if c.ONNX && isFile(filepath.Join(a.Dir, file)) {
		return
	}
	entries, err := os.ReadDir(a.Dir)
	if err != nil {
		return // what is missing is told later
	}
	var versions []string
	for _, e := range entries {
		if info, err := os.Stat(filepath.Join(a.Dir, e.Name())); err == nil && info.IsDir() && isVersion(e.Name()) {
			versions = append(versions, e.Name())
		}
	}
	if selected := c.Policy.Select(versions); len(selected) > 0 {
		a.Dir = filepath.Join(a.Dir, selected[0])
		a.layout.version = selected[0]
	}
}

// tritonModel finds the model's file.
func (a *Archive) tritonModel(c *pbtxt.Config) error {
	file := onnxName
	if c.File != "" {
		file = c.File
	}
	if !filepath.IsLocal(filepath.FromSlash(file)) {
		return refuse("", "%s: default_model_filename %q is not in the folder of the version", pbtxt.File, file)
	}
	path := filepath.Join(a.Dir, filepath.FromSlash(file))
	if !isFile(path) {
		hint := "put the model there, or name it by default_model_filename in " + pbtxt.File
		if isFile(filepath.Join(a.Dir, "model.py")) {
			hint = "models of Triton's Python backend are not run here: docs/triton.md says how to make a handler of one"
		}
		return refuse(hint, "the folder of the version has no file %s", file)
	}
	if err := checkONNXFile(path); err != nil {
		return err
	}
	a.Manifest.Runtime, a.Manifest.Model.SerializedFile = RuntimeONNX, file
	if file != onnxName {
		a.Manifest.Model.Handler = file
	}
	return nil
}

// tritonSettings takes the settings of a config.pbtxt. Those of a model-config.yaml in the version's folder, or else beside config.pbtxt, go before them.
func (a *Archive) tritonSettings(c *pbtxt.Config, beside string, limits Limits, logger *slog.Logger) error {
	a.Settings = settingsFrom(c)
	var own []byte
	for _, dir := range []string{a.Dir, beside} {
		path := filepath.Join(dir, configName)
		if !isFile(path) {
			continue
		}
		text, err := readSmall(path, limits.MetadataBytes)
		if err != nil {
			return refuse("", "%s cannot be read: %v", configName, err)
		}
		own = text
		break
	}
	if own != nil {
		if err := a.overrule(own, logger); err != nil {
			return refuse("correct the file, or remove it", "%s, beside %s, cannot be read: %v", configName, pbtxt.File, err)
		}
	}
	return a.backendSettings(c, own)
}

// overrule puts the settings of a model-config.yaml over those that are there.
func (a *Archive) overrule(text []byte, logger *slog.Logger) error {
	if err := checkLines(text); err != nil {
		return err
	}
	file, err := readYAML(text)
	if err != nil {
		return err
	}
	if _, err := checkYAML(file); err != nil {
		return err
	}
	entries, err := topLevel(file)
	if err != nil {
		return err
	}
	r := &settingsReader{logger: logger, s: a.Settings}
	r.s.HasConfig, r.s.ResponseTimeout, r.s.StartupTimeout = true, new(yamlResponseTimeout), new(yamlStartupTimeout)
	for _, e := range entries {
		r.read(e)
	}
	a.Settings = r.s
	return nil
}

// manySequenceJobs is how many requests of one sequence may wait: Triton has no bound.
const manySequenceJobs = 1000

// settingsFrom makes settings of a config.pbtxt.
func settingsFrom(c *pbtxt.Config) Settings {
	s := Settings{MaxSequenceJobQueueSize: 1, MaxNumSequence: 1}
	if !c.Auto {
		s.BatchSize, s.MaxBatchDelay = new(1), new(time.Duration)
	}
	if b := c.Batching; b != nil {
		s.BatchSize, s.MaxBatchDelay, s.PriorityLevels, s.DefaultPriorityLevel = new(c.MaxBatch), &b.Delay, b.Levels, b.Default
		s.PreferredBatchSizes = b.Preferred
		if b.QueueSize > 0 {
			s.JobQueueSize = new(b.QueueSize)
		}
	}
	if q := c.Sequences; q != nil {
		s.SequenceBatching, s.SequenceMaxIdle, s.MaxNumSequence, s.MaxSequenceJobQueueSize = true, q.Idle, q.Most, manySequenceJobs
		s.BatchSize, s.MaxBatchDelay = new(max(c.MaxBatch, 1)), &q.Delay
	}
	if i := c.Instances; i != nil {
		s.MinWorkers, s.MaxWorkers, s.DeviceType, s.DeviceIDs = new(i.Count), new(i.Count), i.GPU, i.GPUs
	}
	return s
}

// ownConfigs is the folder with the server's own configuration file for a backend.
const ownConfigs = ".config"

// backendSettings writes what the backend is to read in the place of the model's own configuration file, if that is not all.
func (a *Archive) backendSettings(c *pbtxt.Config, own []byte) error {
	if !c.ONNX {
		return nil
	}
	text := own
	if added := onnxSettings(c); added != "" && !hasTopLevel(own, "onnx") {
		text = append(slices.Clone(own), "\n"+added...)
		if _, err := parseYAML(text); err != nil {
			return refuse("write it as a map in lines, not in braces", "%s cannot be completed from %s: %v", configName, pbtxt.File, err)
		}
	}
	if len(text) == 0 {
		return nil
	}
	root := a.Dir
	if a.InPlace {
		root = a.folder.root
	}
	dir := filepath.Join(root, ownConfigs)
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	path := filepath.Join(dir, configName)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		return a.store.asSpace(dir, int64(len(text)), err)
	}
	a.BackendConfig = path
	return nil
}

func hasTopLevel(text []byte, wanted string) bool {
	for line := range strings.Lines(string(text)) {
		if key, ok := topLevelKey([]byte(line)); ok && key == wanted {
			return true
		}
	}
	return false
}

// onnxSettings writes the key onnx of a model-config.yaml; "" when there is nothing to say.
func onnxSettings(c *pbtxt.Config) string {
	r := &c.Runtime
	var lines []string
	say := func(format string, args ...any) { lines = append(lines, "  "+fmt.Sprintf(format, args...)) }
	if r.Optimize != "" {
		say("graphOptimization: %q", r.Optimize)
	}
	if r.IntraOp > 0 {
		say("intraOpThreads: %d", r.IntraOp)
	}
	if r.InterOp > 0 {
		say("interOpThreads: %d", r.InterOp)
	}
	if r.Arena != nil {
		say("arena: %t", *r.Arena)
	}
	if r.Patterns != nil {
		say("memoryPattern: %t", *r.Patterns)
	}
	if c.Batching == nil && c.Sequences == nil && !c.Auto {
		say("batching: false")
	}
	if providers := usableProviders(c); len(providers) > 0 {
		say("providers:")
		for _, p := range providers {
			say("  - name: %q", p.Name)
			say("    options: %s", inBraces(p.Options))
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "onnx:\n" + strings.Join(lines, "\n") + "\n"
}

// usableProviders leaves out the accelerators of GPUs for a model whose instances are on the CPU, as Triton does.
func usableProviders(c *pbtxt.Config) []pbtxt.Provider {
	if c.Instances == nil || c.Instances.GPU != "cpu" {
		return c.Runtime.Providers
	}
	return slices.DeleteFunc(slices.Clone(c.Runtime.Providers), func(p pbtxt.Provider) bool { return p.Name == "TensorRT" || p.Name == "CUDA" })
}

// inBraces writes a map of texts on one line. Go's quoted texts are those of YAML, but for what no option has in it.
func inBraces(options map[string]string) string {
	all := make([]string, 0, len(options))
	for name, value := range options {
		all = append(all, fmt.Sprintf("%q: %q", name, value))
	}
	slices.Sort(all)
	return "{" + strings.Join(all, ", ") + "}"
}

// readLabels reads the files with the names of the classes.
func readLabels(c *pbtxt.Config, beside string, limits Limits) (map[string][]string, error) {
	var labels map[string][]string
	for _, o := range c.Outputs {
		if o.Labels == "" {
			continue
		}
		if !filepath.IsLocal(filepath.FromSlash(o.Labels)) {
			return nil, refuse("", "%s: label_filename %q of the output %s is not in the model's folder", pbtxt.File, o.Labels, o.Name)
		}
		text, err := readSmall(filepath.Join(beside, filepath.FromSlash(o.Labels)), limits.MetadataBytes)
		if err != nil {
			return nil, refuse("put the file beside "+pbtxt.File+", or leave label_filename out", "%s: the labels %s of the output %s cannot be read: %v", pbtxt.File, o.Labels, o.Name, err)
		}
		if labels == nil {
			labels = map[string][]string{}
		}
		for line := range strings.Lines(string(text)) {
			labels[o.Name] = append(labels[o.Name], strings.TrimRight(line, "\r\n"))
		}
	}
	return labels, nil
}

// besideSum adds to the digest of a version's folder one of what lies beside the folders of the versions, if config.pbtxt is there: it belongs to each version.
func (a *Archive) besideSum(ctx context.Context) error {
	if a.beside == "" || a.Digest == "" || !isFile(filepath.Join(a.beside, pbtxt.File)) {
		return nil
	}
	entries, err := os.ReadDir(a.beside)
	if err != nil {
		return err
	}
	h := sha256.New()
	_, _ = h.Write([]byte(a.Digest)) // a hash never fails
	for _, e := range entries {
		path := filepath.Join(a.beside, e.Name())
		info, err := os.Stat(path)
		if ignored(e.Name()) || err != nil || info.IsDir() && isVersion(e.Name()) {
			continue
		}
		_, _ = fmt.Fprintf(h, "\x00%q", e.Name())
		if info.IsDir() {
			sum, _, err := treeSum(ctx, path)
			if err != nil {
				return err
			}
			_, _ = fmt.Fprintf(h, " %s", sum)
			continue
		}
		_, _ = fmt.Fprintf(h, " %d %d", info.Size(), info.ModTime().UnixNano())
	}
	a.Digest = treeDigest + hex.EncodeToString(h.Sum(nil))
	return nil
}

// onnxRows is how many rows a model of ONNX says that it takes when nothing is configured.
const onnxRows = 4

// DeclaredRows says how many rows of a request the model tells that it takes, by its configuration alone; false when only the loaded model knows, or there are no rows.
func (a *Archive) DeclaredRows() (int, bool) {
	switch {
	case a.Triton != nil && !a.Triton.Auto:
		return a.Triton.MaxBatch, a.Triton.MaxBatch > 0
	case a.Ensemble != nil:
		return a.Ensemble.MaxBatch, a.Ensemble.MaxBatch > 0
	case a.Manifest.Runtime == RuntimeONNX && a.Settings.BatchSize != nil && *a.Settings.BatchSize > 1:
		return *a.Settings.BatchSize, true
	}
	return onnxRows, a.Manifest.Runtime == RuntimeONNX
}

// DeclaredPorts are the tensors that a config.pbtxt declares.
func (a *Archive) DeclaredPorts() (inputs, outputs []pipeline.Port) {
	if a.Triton == nil {
		return nil, nil
	}
	ports := func(from []pbtxt.Port) []pipeline.Port {
		all := make([]pipeline.Port, 0, len(from))
		for _, p := range from {
			all = append(all, pipeline.Port{Name: p.Name, DataType: p.DataType, Shape: p.Shape})
		}
		return all
	}
	return ports(a.Triton.Inputs), ports(a.Triton.Outputs)
}
