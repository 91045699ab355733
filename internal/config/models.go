package config

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// parseModels reads load_models.
func parseModels(s string) (models []StartupModel, all bool) {
	if strings.EqualFold(strings.TrimSpace(s), "all") {
		return nil, true
	}
	for entry := range strings.SplitSeq(s, ",") {
		name, url, named := strings.Cut(entry, "=")
		if !named {
			name, url = "", entry
		}
		if url = strings.TrimSpace(url); url != "" {
			models = append(models, StartupModel{Name: strings.TrimSpace(name), URL: url})
		}
	}
	return models, false
}

// version is one version's object in models= or model_snapshot=, whose keys are told apart by case.
type version map[string]json.RawMessage

// parsePresets reads models=.
func parsePresets(s string) (map[string]map[string]Preset, error) {
	var raw map[string]map[string]version
	if err := unmarshal(s, &raw); err != nil {
		return nil, err
	}
	presets := map[string]map[string]Preset{}
	for name, versions := range raw {
		presets[name] = map[string]Preset{}
		for v, object := range versions {
			p, err := object.preset()
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", name, v, err)
			}
			presets[name][v] = p
		}
	}
	return presets, nil
}

// parseSnapshot reads model_snapshot=.
func parseSnapshot(s string) (*Snapshot, error) {
	var raw struct {
		Name   string                        `json:"name"`
		Models map[string]map[string]version `json:"models"`
	}
	if err := unmarshal(s, &raw); err != nil {
		return nil, err
	}
	snapshot := &Snapshot{Name: raw.Name}
	for _, name := range slices.Sorted(maps.Keys(raw.Models)) {
		for _, v := range slices.Sorted(maps.Keys(raw.Models[name])) {
			m, err := raw.Models[name][v].snapshotModel(name, v)
			if err != nil {
				return nil, fmt.Errorf("%s %s: %w", name, v, err)
			}
			snapshot.Models = append(snapshot.Models, m)
		}
	}
	return snapshot, nil
}

func unmarshal(s string, into any) error {
	err := json.Unmarshal([]byte(s), into)
	var syntax *json.SyntaxError
	var mismatch *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		at := min(int(syntax.Offset), len(s))
		return fmt.Errorf("it is not JSON: %w, after %q", err, lastOf(s[:at]))
	case errors.As(err, &mismatch):
		return fmt.Errorf("it is not an object of names, versions and settings: there is a %s after %q", mismatch.Value, lastOf(s[:min(int(mismatch.Offset), len(s))]))
	}
	return err
}

func lastOf(s string) string {
	const most = 30
	return s[max(0, len(s)-most):]
}

func (v version) snapshotModel(name, number string) (SnapshotModel, error) {
	m := SnapshotModel{Name: name, Version: number}
	var err error
	if m.File, err = v.word("marName"); err != nil {
		return m, err
	}
	if m.File == "" {
		return m, errors.New("marName, the archive's name in the model store, is missing")
	}
	if m.Handler, err = v.word("handler"); err != nil {
		return m, err
	}
	if word, err := v.word("defaultVersion"); err != nil || word != "" && !strings.EqualFold(word, "true") && !strings.EqualFold(word, "false") {
		return m, errors.New("defaultVersion has to be true or false")
	} else if strings.EqualFold(word, "true") {
		m.Default = true
	}
	m.Preset, err = v.preset()
	return m, err
}

// preset reads the settings. Numbers that are not above zero do not count.
func (v version) preset() (Preset, error) {
	var p Preset
	var delay, response, startup int
	for key, dst := range map[string]*int{
		"minWorkers": &p.MinWorkers, "maxWorkers": &p.MaxWorkers, "batchSize": &p.BatchSize, "maxBatchDelay": &delay,
		"responseTimeout": &response, "startupTimeout": &startup,
	} {
		n, err := v.number(key)
		if err != nil {
			return p, err
		}
		*dst = max(0, n)
	}
	p.MaxBatchDelay = time.Duration(delay) * time.Millisecond
	p.ResponseTimeout, p.StartupTimeout = time.Duration(response)*time.Second, time.Duration(startup)*time.Second
	var err error
	if p.Runtime, err = v.word("runtimeType"); err != nil {
		return p, err
	}
	if !slices.Contains([]string{"", "python", "python3", "LSP"}, p.Runtime) {
		return p, fmt.Errorf("runtimeType %q is none of python, python3, LSP", p.Runtime)
	}
	return p, nil
}

// number reads an integer, which may be written as a text.
func (v version) number(key string) (int, error) {
	word, err := v.word(key)
	if err != nil || word == "" {
		return 0, err
	}
	f, err := strconv.ParseFloat(word, 64)
	if err != nil || math.IsNaN(f) || math.Abs(f) > math.MaxInt32 {
		return 0, fmt.Errorf("%s is not an integer but %s", key, v[key])
	}
	return int(f), nil
}

// word reads a scalar as a text, "" for null and for an absent one.
func (v version) word(key string) (string, error) {
	raw := bytes.TrimSpace(v[key])
	switch {
	case len(raw) == 0 || raw[0] == 'n':
		return "", nil
	case raw[0] == '"':
		var s string
		err := json.Unmarshal(raw, &s)
		return s, err
	case raw[0] == '{' || raw[0] == '[':
		return "", fmt.Errorf("%s is not a number or a text", key)
	default:
		return string(raw), nil
	}
}

// parseNetworks reads a list of networks in CIDR form, or of single addresses.
func parseNetworks(s string) ([]netip.Prefix, error) {
	var networks []netip.Prefix
	for text := range strings.SplitSeq(s, ",") {
		text = strings.TrimSpace(text)
		if text == "" {
			continue
		}
		network, err := netip.ParsePrefix(text)
		if err != nil {
			address, single := netip.ParseAddr(text)
			if single != nil {
				return nil, fmt.Errorf("%q is no network such as 10.1.0.0/16", text)
			}
			network = netip.PrefixFrom(address, address.BitLen())
		}
		networks = append(networks, network.Masked())
	}
	return networks, nil
}
