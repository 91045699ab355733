package archive

import (
	"bytes"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/flambeau-serve/flambeau/internal/pipeline"
)

// keyEnsemble is the key of a configuration file that makes a folder an ensemble.
const keyEnsemble = "ensemble"

// readEnsemble makes an ensemble of a folder without a manifest whose configuration file has the key ensemble. It says whether it did.
func (a *Archive) readEnsemble(limits Limits, logger *slog.Logger) (bool, error) {
	path := filepath.Join(a.Dir, configName)
	if !namesKey(path, keyEnsemble, limits.MetadataBytes) {
		return false, nil
	}
	text, err := readSmall(path, limits.MetadataBytes)
	if err != nil {
		return true, err
	}
	entries, err := parseYAML(text)
	if err != nil {
		return true, refuse("correct the file", "%s cannot be read: %v", configName, err)
	}
	at := slices.IndexFunc(entries, func(e yamlEntry) bool { return e.key == keyEnsemble })
	if at < 0 {
		return false, nil
	}
	d, err := ensembleOf(entries[at])
	if err == nil {
		_, err = d.Checked()
	}
	if err != nil {
		return true, refuse("docs/ensembles.md has the rules", "the key ensemble of %s: %v", configName, err)
	}
	a.Manifest.Model = ManifestModel{ModelName: a.layout.name, ModelVersion: a.layout.version, ConfigFile: configName}
	if a.Settings, err = a.readSettings(limits, logger); err != nil {
		return true, err
	}
	a.becomeEnsemble(d, hasTopLevel(text, "startupTimeout"))
	return true, nil
}

// becomeEnsemble makes the archive one of an ensemble, which needs one worker that is no process, and no device. timed says that its settings have a startup
// timeout of their own.
func (a *Archive) becomeEnsemble(d *pipeline.Definition, timed bool) {
	a.Manifest.Runtime, a.Ensemble = pipeline.Runtime, d
	s := &a.Settings
	if s.MinWorkers == nil && s.MaxWorkers == nil {
		s.MinWorkers, s.MaxWorkers = new(1), new(1)
	}
	s.DeviceType, s.DeviceIDs = "cpu", nil
	if s.MaxRetryTimeout == nil {
		s.MaxRetryTimeout = new(patience)
	}
	if !timed {
		s.StartupTimeout = new(patience)
	}
}

// patience is how long an ensemble waits for its models: they may be repaired at any time, and it costs nothing.
const patience = 10 * 365 * 24 * time.Hour

// namesKey says whether a configuration file has a key at the top. A file that cannot be read has not.
func namesKey(path, wanted string, limit int64) bool {
	text, err := readSmall(path, limit)
	if err != nil {
		return false
	}
	for line := range bytes.Lines(text) {
		if key, ok := topLevelKey(line); ok && key == wanted {
			return true
		}
	}
	return false
}

// wrong is an error about a place of the file.
func (e yamlEntry) wrong(want string) error {
	return fmt.Errorf("line %d: %s has to be %s", e.line, e.key, want)
}

// mapping gives the entries of a value that is a map.
func (e yamlEntry) mapping(want string) ([]yamlEntry, error) {
	node, ok := e.value.(*ast.MappingNode)
	if !ok {
		return nil, e.wrong(want)
	}
	return e.entries(node), nil
}

// list gives the members of a value that is a list.
func (e yamlEntry) list(want string) ([]yamlEntry, error) {
	node, ok := e.value.(*ast.SequenceNode)
	if !ok {
		return nil, e.wrong(want)
	}
	all := make([]yamlEntry, 0, len(node.Values))
	for _, value := range node.Values {
		member := e.with(value)
		if tok := value.GetToken(); tok != nil && tok.Position != nil {
			member.line = tok.Position.Line
		}
		all = append(all, member)
	}
	return all, nil
}

// unknownKey refuses a key: a misspelled one of an ensemble would else make another graph.
func (e yamlEntry) unknownKey(known ...string) error {
	return fmt.Errorf("line %d: there is no key %q here; there are %s", e.line, e.key, strings.Join(known, ", "))
}

// ensembleOf reads the key ensemble.
func ensembleOf(e yamlEntry) (*pipeline.Definition, error) {
	const want = "a map with steps, and inputs, outputs and maxBatchSize if they are to be said"
	entries, err := e.mapping(want)
	if err != nil {
		return nil, err
	}
	d := &pipeline.Definition{}
	for _, sub := range entries {
		var err error
		switch sub.key {
		case "steps":
			d.Steps, err = ensembleSteps(sub)
		case "inputs":
			d.Inputs, err = ensemblePorts(sub)
		case "outputs":
			d.Outputs, err = ensemblePorts(sub)
		case "maxBatchSize":
			n, ok := sub.integer()
			if !ok || n < 0 {
				err = sub.wrong("a number of rows")
			}
			d.MaxBatch = n
		default:
			err = sub.unknownKey("steps", "inputs", "outputs", "maxBatchSize")
		}
		if err != nil {
			return nil, err
		}
	}
	return d, nil
}

func ensembleSteps(e yamlEntry) ([]pipeline.Step, error) {
	members, err := e.list("a list of maps, each with model, inputs and outputs")
	if err != nil {
		return nil, err
	}
	steps := make([]pipeline.Step, 0, len(members))
	for _, member := range members {
		s, err := ensembleStep(member)
		if err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

func ensembleStep(e yamlEntry) (pipeline.Step, error) {
	s := pipeline.Step{}
	entries, err := e.mapping("a map with model, inputs and outputs for each step")
	if err != nil {
		return s, err
	}
	for _, sub := range entries {
		var ok bool
		switch sub.key {
		case "name":
			s.Name, ok = sub.scalarText()
		case "model":
			s.Model, ok = sub.scalarText()
		case "version":
			s.Version, ok = sub.scalarText()
		case "inputs":
			s.Inputs, err = names(sub)
			ok = true
		case "outputs":
			s.Outputs, err = names(sub)
			ok = true
		default:
			return s, sub.unknownKey("model", "version", "name", "inputs", "outputs")
		}
		if err == nil && !ok {
			err = sub.wrong("a text")
		}
		if err != nil {
			return s, err
		}
	}
	return s, nil
}

// names reads a map of the model's names to the ensemble's, or a list of names that are the same for both.
func names(e yamlEntry) (map[string]string, error) {
	const want = "a map of the model's names to the ensemble's, or a list of names that are the same for both"
	all := map[string]string{}
	if _, isList := e.value.(*ast.SequenceNode); isList {
		members, err := e.list(want)
		if err != nil {
			return nil, err
		}
		for _, member := range members {
			name, ok := member.scalarText()
			if !ok {
				return nil, member.wrong(want)
			}
			all[name] = name
		}
		return all, nil
	}
	entries, err := e.mapping(want)
	if err != nil {
		return nil, err
	}
	for _, sub := range entries {
		value, ok := sub.scalarText()
		if !ok {
			return nil, sub.wrong("the name of a tensor of the ensemble")
		}
		if _, twice := all[sub.key]; twice {
			return nil, fmt.Errorf("line %d: %s is there twice", sub.line, sub.key)
		}
		all[sub.key] = value
	}
	return all, nil
}

// ensemblePorts reads a list of tensors: each by its name, or as a map.
func ensemblePorts(e yamlEntry) ([]pipeline.Port, error) {
	const want = "a list of names, or of maps with name, datatype and shape"
	members, err := e.list(want)
	if err != nil {
		return nil, err
	}
	ports := make([]pipeline.Port, 0, len(members))
	for _, member := range members {
		p := pipeline.Port{}
		if name, ok := member.scalarText(); ok {
			p.Name = name
		} else if err := ensemblePort(member, want, &p); err != nil {
			return nil, err
		}
		ports = append(ports, p)
	}
	return ports, nil
}

func ensemblePort(e yamlEntry, want string, p *pipeline.Port) error {
	entries, err := e.mapping(want)
	if err != nil {
		return err
	}
	for _, sub := range entries {
		ok := true
		switch sub.key {
		case "name":
			p.Name, ok = sub.scalarText()
		case "datatype":
			p.DataType, ok = sub.scalarText()
			p.DataType = strings.ToUpper(p.DataType)
		case "shape":
			p.Shape, err = shape(sub)
		default:
			return sub.unknownKey("name", "datatype", "shape")
		}
		if err == nil && !ok {
			err = sub.wrong("a text")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func shape(e yamlEntry) ([]int64, error) {
	members, err := e.list("a list of numbers, with -1 for any size")
	if err != nil {
		return nil, err
	}
	dims := make([]int64, 0, len(members))
	for _, member := range members {
		n, ok := member.integer()
		if !ok || n < -1 {
			return nil, member.wrong("a list of numbers, with -1 for any size")
		}
		dims = append(dims, int64(n))
	}
	return dims, nil
}
