package onnx

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goccy/go-yaml"

	"github.com/flambeau-serve/flambeau/plugins/onnx/session"
)

// settingsFile is the model's configuration file.
const settingsFile = "model-config.yaml"

// maxSettings bounds that file.
const maxSettings = 1 << 20

// onnxSettings are the keys below onnx: in the file.
type onnxSettings struct {
	Providers []providerSettings `yaml:"providers"`
	IntraOp   int                `yaml:"intraOpThreads"`
	InterOp   int                `yaml:"interOpThreads"`
	Spinning  bool               `yaml:"spinning"`
	Arena     *bool              `yaml:"arena"`
	Patterns  *bool              `yaml:"memoryPattern"`
	Optimize  string             `yaml:"graphOptimization"`
	Session   map[string]string  `yaml:"session"`
}

type providerSettings struct {
	Name    string            `yaml:"name"`
	Options map[string]string `yaml:"options"`
}

// readSettings reads how the model is to be run. No file: the defaults.
func readSettings(dir string) (session.Options, error) {
	path := filepath.Join(dir, settingsFile)
	info, err := os.Stat(path)
	if errors.Is(err, os.ErrNotExist) {
		return session.Options{}, nil
	}
	if err == nil && info.Size() > maxSettings {
		err = fmt.Errorf("it is larger than %d bytes", maxSettings)
	}
	if err != nil {
		return session.Options{}, fmt.Errorf("%s: %w", settingsFile, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return session.Options{}, fmt.Errorf("%s: %w", settingsFile, err)
	}
	return parseSettings(text)
}

func parseSettings(text []byte) (session.Options, error) {
	var file struct {
		ONNX onnxSettings `yaml:"onnx"`
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		return session.Options{}, fmt.Errorf("%s: %w", settingsFile, err)
	}
	s := &file.ONNX
	if s.IntraOp < 0 || s.InterOp < 0 {
		return session.Options{}, fmt.Errorf("%s: intraOpThreads and interOpThreads cannot be negative", settingsFile)
	}
	o := session.Options{
		IntraOp: s.IntraOp, InterOp: s.InterOp, Spin: s.Spinning, NoArena: s.Arena != nil && !*s.Arena, NoPatterns: s.Patterns != nil && !*s.Patterns,
		Optimize: s.Optimize, Config: s.Session,
	}
	for _, p := range s.Providers {
		if p.Name == "" {
			return session.Options{}, fmt.Errorf("%s: a provider below onnx has no name", settingsFile)
		}
		o.Providers = append(o.Providers, session.Provider(p))
	}
	return o, nil
}
