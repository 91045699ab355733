package oipserver

import (
	"archive/tar"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/infer"
	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Overrides are what a client wants instead of what the model store has.
type Overrides struct {
	Config string            // a model configuration of Triton's as JSON; "" for none
	Files  map[string][]byte // by their paths: the version's folder, then the file's name
}

// Names of the parameters of load.
const (
	paramConfig = "config"
	paramFile   = "file:"
)

// ParseOverrides makes overrides of the parameters of load. Files are given by fileOf, the front's way to write bytes.
func ParseOverrides(names []string, text func(name string) (string, bool), fileOf func(name string) ([]byte, error)) (Overrides, error) {
	var o Overrides
	for _, name := range names {
		file, isFile := strings.CutPrefix(name, paramFile)
		switch {
		case isFile:
			content, err := fileOf(name)
			if err != nil {
				return o, fault.New(fault.BadRequest, "the load parameter '"+name+"' cannot be read: "+err.Error(), err)
			}
			if o.Files == nil {
				o.Files = map[string][]byte{}
			}
			o.Files[file] = content
		case name == paramConfig:
			value, ok := text(name)
			if !ok || value == "" {
				return o, fault.New(fault.BadRequest, "the load parameter 'config' has to be a text: the model's configuration as JSON", nil)
			}
			o.Config = value
		default:
			return o, fault.Newf(fault.BadRequest, "there is no load parameter '%.100s'; config and file:VERSION/NAME are", name)
		}
	}
	if len(o.Files) > 0 && o.Config == "" {
		return o, fault.New(fault.BadRequest, "load parameter 'config' has to be given when files are, the text {} at least", nil)
	}
	return o, nil
}

// overridden is a model that was loaded with overrides.
type overridden struct {
	sources map[string]string // by version: where in the store that lies which they replace, "" for nowhere
	files   bool              // it was made of a client's files
}

// modelConfig is what of a client's configuration has an effect here.
type modelConfig struct {
	Name     string `json:"name"`
	MaxBatch int    `json:"max_batch_size"`
	Batching *struct {
		Delay json.Number `json:"max_queue_delay_microseconds"`
	} `json:"dynamic_batching"`
	Sequences *struct {
		Idle json.Number `json:"max_sequence_idle_microseconds"`
	} `json:"sequence_batching"`
	Groups []struct {
		Kind  string `json:"kind"`
		Count int    `json:"count"`
		GPUs  []int  `json:"gpus"`
	} `json:"instance_group"`
	Policy map[string]json.RawMessage `json:"version_policy"`
	File   string                     `json:"default_model_filename"`
}

// describing are keys of a configuration that tell what a model is, which it says by itself here.
var describing = []string{ //nolint:gochecknoglobals // a constant list
	"platform", "backend", "runtime", "input", "output", "metric_tags", "parameters", "optimization", "model_transaction_policy", "cc_model_filenames",
}

// modelFile is what a model's file is called.
const modelFile = "model.onnx"

// parseConfig reads a client's configuration. What it asks for and what cannot be had is an error: it would not be what the client believes.
func parseConfig(model, text string) (*modelConfig, error) {
	refuse := func(format string, args ...any) error {
		return fault.Newf(fault.BadRequest, "the config for '"+model+"' cannot be used: "+format, args...)
	}
	var keys map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &keys); err != nil || keys == nil {
		return nil, refuse("it is no JSON object")
	}
	c := &modelConfig{}
	for key := range keys {
		if key != "name" && key != "max_batch_size" && key != "dynamic_batching" && key != "sequence_batching" && key != "instance_group" &&
			key != "version_policy" && key != "default_model_filename" && !slices.Contains(describing, key) {
			return nil, refuse("'%.100s' cannot be set here", key)
		}
	}
	if err := json.Unmarshal([]byte(text), c); err != nil {
		return nil, refuse("%s", malformed.JSON(err))
	}
	switch _, all := c.Policy["all"]; {
	case c.Name != "" && c.Name != model:
		return nil, refuse("its name is '%.100s'", c.Name)
	case c.MaxBatch < 0:
		return nil, refuse("max_batch_size is %d", c.MaxBatch)
	case len(c.Policy) > 0 && !all:
		return nil, refuse("all versions are served here, and the only version_policy is all")
	case c.File != "" && c.File != modelFile:
		return nil, refuse("default_model_filename has to be %s", modelFile)
	case len(c.Groups) > 1:
		return nil, refuse("one instance_group can be had, and it has %d", len(c.Groups))
	}
	for _, g := range c.Groups {
		if g.Count < 0 || g.Kind != "" && g.Kind != "KIND_AUTO" && g.Kind != "KIND_CPU" && g.Kind != "KIND_GPU" {
			return nil, refuse("instance_group with kind %.40q and count %d", g.Kind, g.Count)
		}
	}
	if _, err := c.delay(); err != nil {
		return nil, refuse("max_queue_delay_microseconds: %v", err)
	}
	if _, err := c.idle(); err != nil {
		return nil, refuse("max_sequence_idle_microseconds: %v", err)
	}
	return c, nil
}

func (c *modelConfig) delay() (time.Duration, error) {
	if c.Batching == nil || c.Batching.Delay == "" {
		return 0, nil
	}
	return microseconds(c.Batching.Delay)
}

func (c *modelConfig) idle() (time.Duration, error) {
	if c.Sequences == nil || c.Sequences.Idle == "" {
		return 0, nil
	}
	return microseconds(c.Sequences.Idle)
}

func microseconds(n json.Number) (time.Duration, error) {
	us, err := strconv.ParseUint(n.String(), 10, 63)
	if err != nil || us > uint64(time.Hour/time.Microsecond) {
		return 0, errors.New("it has to be a whole number, an hour at most")
	}
	return time.Duration(us) * time.Microsecond, nil
}

// spec is what a registration has of the configuration.
func (c *modelConfig) spec() rollout.Spec {
	s := rollout.Spec{Synchronous: true, Exact: true} // what a client asks for goes before model-config.yaml
	size := 1                                         // requests are not gathered, as in Triton, without dynamic_batching
	if c.Batching != nil {
		size = max(c.MaxBatch, 1)
	}
	s.BatchSize = &size
	if delay, err := c.delay(); err == nil && c.Batching != nil {
		s.MaxBatchDelay = &delay
	}
	for _, g := range c.Groups {
		s.InitialWorkers = new(max(g.Count, 1))
	}
	return s
}

// yaml is what of the configuration only a model's own file can say.
func (c *modelConfig) yaml() []byte {
	var b strings.Builder
	for _, g := range c.Groups {
		switch g.Kind {
		case "KIND_CPU":
			b.WriteString("deviceType: cpu\n")
		case "KIND_GPU":
			b.WriteString("deviceType: gpu\n")
		}
		if len(g.GPUs) > 0 {
			ids := make([]string, len(g.GPUs))
			for i, id := range g.GPUs {
				ids[i] = strconv.Itoa(id)
			}
			b.WriteString("deviceIds: [" + strings.Join(ids, ", ") + "]\n")
		}
	}
	if c.Sequences != nil {
		b.WriteString("sequenceBatching: true\n")
		if idle, err := c.idle(); err == nil && idle > 0 {
			b.WriteString("sequenceMaxIdleMSec: " + strconv.FormatInt(idle.Milliseconds(), 10) + "\n")
		}
	}
	return []byte(b.String())
}

// needsFile says whether the configuration wants what only the model's own file can say, and it does not.
func (c *modelConfig) needsFile(d *rollout.Description) bool {
	if c.Sequences != nil && !d.Stateful {
		return true
	}
	for _, g := range c.Groups {
		isGPU := d.DeviceType == "gpu"
		if g.Kind == "KIND_GPU" && !isGPU || g.Kind == "KIND_CPU" && isGPU || len(g.GPUs) > 0 && !slices.Equal(g.GPUs, d.DeviceIDs) {
			return true
		}
	}
	return false
}

// loadWith loads a model with a client's configuration, and from the client's files if there are any.
func (s *Server) loadWith(ctx context.Context, name string, o Overrides) error {
	if s.opts.Deployer == nil || s.opts.Archives == nil {
		return fault.New(fault.BadRequest, "this server loads models as the model store has them, without a config or files of a client", nil)
	}
	c, err := parseConfig(name, o.Config)
	if err != nil {
		return err
	}
	if len(o.Files) > 0 {
		return s.loadFiles(ctx, name, c, o.Files)
	}
	if _, err := s.opts.Models.DescribeAll(name); fault.Is(err, fault.ModelNotFound) {
		if err := s.load(ctx, name); err != nil { // as it is, first
			return err
		}
	}
	all, err := s.opts.Models.DescribeAll(name)
	if err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	s.mu.Lock()
	was := s.overridden[name]
	s.mu.Unlock()
	made := overridden{sources: map[string]string{}}
	for i := range all {
		if c.needsFile(&all[i]) {
			return fault.Newf(fault.BadRequest, "devices and sequences of '%s' are those of its model-config.yaml; a config can change batching and the number of instances", name)
		}
		source := cmp.Or(all[i].Source, was.sources[all[i].Ref.Version])
		if source == "" || was.files {
			return fault.Newf(fault.BadRequest, "'%s' is not one of the model store: its settings cannot be changed by a config; send its files, too", name)
		}
		if err := s.deployEntry(ctx, all[i].Ref, source, c.spec()); err != nil {
			return err
		}
		made.sources[all[i].Ref.Version] = source
	}
	s.note(name, made)
	return nil
}

func (s *Server) note(name string, made overridden) {
	s.mu.Lock()
	s.overridden[name] = made
	s.mu.Unlock()
}

// deployEntry has what lies at a place of the store run with other settings.
func (s *Server) deployEntry(ctx context.Context, ref infer.ModelRef, source string, spec rollout.Spec) error {
	a, err := s.opts.Archives.OpenEntry(ctx, source)
	if err != nil {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	spec.Archive, spec.URL, spec.Name, spec.Version, spec.Synchronous = a, source, ref.Name, ref.Version, true
	_, err = s.opts.Deployer.Deploy(ctx, spec)
	return err //nolint:wrapcheck // the same
}

// loadFiles makes a model of files that a client has sent: an ONNX model, since anything else would be a client's own code.
func (s *Server) loadFiles(ctx context.Context, name string, c *modelConfig, files map[string][]byte) error {
	if !isFileName(name) {
		return fault.Newf(fault.BadRequest, "'%.100s' cannot be the name of a model that is made of files", name)
	}
	versions, err := sortFiles(name, files)
	if err != nil {
		return err
	}
	made := overridden{sources: map[string]string{}, files: true}
	all, err := s.opts.Models.DescribeAll(name)
	if err != nil && !fault.Is(err, fault.ModelNotFound) {
		return err //nolint:wrapcheck // the model store's words are the client's
	}
	s.mu.Lock()
	was := s.overridden[name]
	s.mu.Unlock()
	for i := range all {
		version := all[i].Ref.Version
		if versions[version] == nil {
			return fault.Newf(fault.BadRequest, "version %s of '%s' runs, and is not among the files; unload the model first, or send files for it", version, name)
		}
		made.sources[version] = cmp.Or(all[i].Source, was.sources[version])
	}
	for _, version := range slices.Sorted(maps.Keys(versions)) {
		if err := s.deployFiles(ctx, infer.ModelRef{Name: name, Version: version}, c, versions[version]); err != nil {
			return err
		}
	}
	s.note(name, made)
	return nil
}

// isFileName says whether a model's name can be that of a file.
func isFileName(name string) bool {
	return name != "" && name[0] != '.' && len(name) <= 200 && !strings.ContainsAny(name, "/\\\x00")
}

// sortFiles gives the files of each version. Those that are of none belong to all.
func sortFiles(model string, files map[string][]byte) (map[string]map[string][]byte, error) {
	versions, common := map[string]map[string][]byte{}, map[string][]byte{}
	for place, content := range files {
		version, rest, inVersion := strings.Cut(place, "/")
		if !filepath.IsLocal(place) || path.Clean(place) != place || strings.Contains(place, `\`) {
			return nil, fault.Newf(fault.BadRequest, "the file '%.100s' has no path below the model's folder", place)
		}
		if _, err := strconv.ParseUint(version, 10, 63); !inVersion || err != nil {
			common[place] = content
			continue
		}
		if versions[version] == nil {
			versions[version] = map[string][]byte{}
		}
		versions[version][rest] = content
	}
	if len(versions) == 0 {
		return nil, fault.Newf(fault.BadRequest, "no version of '%s' is among the files: send them as file:1/%s", model, modelFile)
	}
	for version, own := range versions {
		for place, content := range common {
			if _, is := own[place]; !is {
				own[place] = content
			}
		}
		if err := checkFiles(model, version, own); err != nil {
			return nil, err
		}
	}
	return versions, nil
}

// checkFiles looks whether a version's files are those of an ONNX model, and of nothing else.
func checkFiles(model, version string, files map[string][]byte) error {
	if files[modelFile] == nil {
		return fault.Newf(fault.BadRequest, "version %s of '%s' has no %s: models that a client sends are ONNX models", version, model, modelFile)
	}
	for place := range files {
		if first, _, _ := strings.Cut(place, "/"); strings.EqualFold(first, "MAR-INF") || strings.EqualFold(place, "model-config.yaml") {
			return fault.Newf(fault.BadRequest, "'%.100s' is for the model store only: models that a client sends are ONNX models, and config has their settings", place)
		}
	}
	return nil
}

// deployFiles packs a version's files, has the archive opened as any other, and deploys it.
func (s *Server) deployFiles(ctx context.Context, ref infer.ModelRef, c *modelConfig, files map[string][]byte) error {
	dir, err := os.MkdirTemp(s.opts.Temp, ".fl-load-")
	if err != nil {
		return fault.New(fault.Internal, "the files cannot be written", err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what is left is the temp folder's
	packed := filepath.Join(dir, ref.Name+".tar.gz")
	files = maps.Clone(files)
	if text := c.yaml(); len(text) > 0 {
		files["model-config.yaml"] = text
	}
	if err := pack(packed, files); err != nil {
		return fault.New(fault.Internal, "the files cannot be written", err)
	}
	a, err := s.opts.Archives.OpenFile(ctx, packed)
	if err != nil {
		return err //nolint:wrapcheck // the archive's words are the client's
	}
	if a.Manifest.Runtime != archive.RuntimeONNX {
		return errors.Join(fault.Newf(fault.InvalidModel, "the files of '%s' are no ONNX model", ref.Name), a.Close())
	}
	spec := c.spec()
	spec.Archive, spec.URL, spec.Name, spec.Version = a, ref.Name+".tar.gz", ref.Name, ref.Version
	_, err = s.opts.Deployer.Deploy(ctx, spec)
	if fault.Is(err, fault.LoadFailed) { // the files are the client's
		f := fault.New(fault.InvalidModel, "version "+ref.Version+" of '"+ref.Name+"' does not load: "+fault.Message(err), err)
		if why, ok := errors.AsType[*fault.Error](err); ok && why.Hint != "" {
			f.Message += ": " + why.Hint // the cause, which clients of the protocol see only in the text
		}
		return f
	}
	return err //nolint:wrapcheck // the same
}

// pack writes files as a tar file.
func pack(to string, files map[string][]byte) (err error) {
	file, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	packer, err := gzip.NewWriterLevel(file, gzip.NoCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(packer)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(files[name])), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := w.Write(files[name]); err != nil {
			return err
		}
	}
	return errors.Join(w.Close(), packer.Close())
}

// restore lets what the store has of a model run as it is again.
func (s *Server) restore(ctx context.Context, name string) error {
	s.mu.Lock()
	was, is := s.overridden[name]
	delete(s.overridden, name)
	s.mu.Unlock()
	if !is {
		return nil
	}
	for _, version := range slices.Sorted(maps.Keys(was.sources)) {
		source := was.sources[version]
		if source == "" {
			continue
		}
		err := s.deployEntry(ctx, infer.ModelRef{Name: name, Version: version}, source, rollout.Spec{})
		if err != nil {
			return err
		}
	}
	return nil
}
