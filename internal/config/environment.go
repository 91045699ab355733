package config

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// environment is a process's environment. The first of two equal names counts, as for getenv.
type environment struct {
	vars map[string]string
	all  []string
}

func newEnvironment(environ []string) environment {
	e := environment{vars: make(map[string]string, len(environ)), all: environ}
	for _, kv := range environ {
		name, value, ok := strings.Cut(kv, "=")
		if _, seen := e.vars[name]; ok && !seen {
			e.vars[name] = value
		}
	}
	return e
}

func (e environment) lookup(name string) (string, bool) {
	v, ok := e.vars[name]
	return v, ok
}

func (e environment) get(name string) string { return e.vars[name] }

func (e environment) names() []string {
	names := make([]string, 0, len(e.vars))
	for name := range e.vars {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// fixed reads what has no key in config.properties.
func (e environment) fixed(problems *[]error) Environment {
	env := Environment{
		TempDir: tempDir(e), CacheDirs: cacheDirs(e), PIDDir: PIDDir(e.all), LogDir: cmp.Or(e.get("LOG_LOCATION"), "logs"),
		MetricsLogDir: cmp.Or(e.get("METRICS_LOCATION"), "logs"), Home: e.get("FLAMBEAU_HOME"), Library: e.get("FLAMBEAU_LIBRARY"),
		ONNXRuntime: e.get("FLAMBEAU_ONNXRUNTIME"),
		Python:      e.get("FLAMBEAU_PYTHON"), Path: e.get("PATH"), All: e.all,
	}
	if gpus, ok := e.lookup("CUDA_VISIBLE_DEVICES"); ok {
		env.VisibleGPUs = &gpus
	}
	if temp := e.get("TEMP"); temp != "" && !isDir(temp) {
		*problems = append(*problems, fmt.Errorf("Invalid temp directory: %s, please check TEMP environment variable.", temp)) //nolint:staticcheck,revive // TorchServe's words
	}
	return env
}

// tempDir is where models are unpacked: TEMP, which only TorchServe's command reads, goes first.
func tempDir(e environment) string {
	return cmp.Or(e.get("TEMP"), e.get("TMPDIR"), "/tmp")
}

// cacheDirs are the user's cache folder as the XDG specification has it, if there is a user, and one in the folder of temporary files.
func cacheDirs(e environment) []string {
	var dirs []string
	if dir := e.get("XDG_CACHE_HOME"); filepath.IsAbs(dir) {
		dirs = append(dirs, filepath.Join(dir, "flambeau"))
	} else if home := e.get("HOME"); filepath.IsAbs(home) {
		dirs = append(dirs, filepath.Join(home, ".cache", "flambeau"))
	}
	return append(dirs, filepath.Join(tempDir(e), "flambeau-"+strconv.Itoa(os.Getuid())))
}

// PIDDir is the folder that TorchServe's command keeps its process identifier in: Python's tempfile.gettempdir.
func PIDDir(environ []string) string {
	e := newEnvironment(environ)
	for _, dir := range []string{e.get("TMPDIR"), e.get("TEMP"), e.get("TMP"), "/tmp", "/var/tmp", "/usr/tmp"} {
		if dir != "" && isDir(dir) {
			if abs, err := filepath.Abs(dir); err == nil {
				return abs
			}
		}
	}
	return "."
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
