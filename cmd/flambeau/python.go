package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/cmd/flambeau/internal/argparse"
	"github.com/flambeau-serve/flambeau/internal/config"
	"github.com/flambeau-serve/flambeau/plugins/python"
)

// newPythonCommand makes the command of Python workers. Nothing is looked for yet: a machine without Python serves the models that need none.
func newPythonCommand(cfg *config.Config) (*python.Command, error) {
	return python.New(python.Options{ //nolint:wrapcheck // it says what is missing
		Find: func() (python.Place, error) { return findWorker(cfg) }, Env: cfg.Env.All,
		Hidden:        func(name string) bool { return cfg.BlacklistEnv != nil && cfg.BlacklistEnv.Match(name) },
		MetricsConfig: absolute(cfg.MetricsConfig), DecodeInput: cfg.DecodeInput, IPEX: cfg.IPEX, IPEXGPU: cfg.IPEXGPU,
	})
}

// tellOfPython logs at the start what a Python model will lack. It is a warning only where somebody has named a Python.
func tellOfPython(cfg *config.Config, command *python.Command, log *slog.Logger) {
	err := command.Missing()
	switch {
	case err == nil:
	case cfg.Python != "" || cfg.Env.Python != "":
		log.Warn("Python models cannot be loaded yet", "reason", err.Error())
	default:
		log.Info("models that need Python cannot be loaded yet; the others are served", "reason", err.Error())
	}
}

// findWorker finds the interpreter and the packages of the workers.
func findWorker(cfg *config.Config) (python.Place, error) {
	var place python.Place
	var err error
	if place.Interpreter, err = findPython(cmp.Or(cfg.Python, cfg.Env.Python), "python3", "python"); err != nil {
		return place, err
	}
	if place.Python3, err = findPython("", "python3"); err != nil {
		place.Python3 = place.Interpreter
	}
	if place.Home, err = findHome(cfg.Env.Home, place.Interpreter); err != nil {
		return place, err
	}
	place.Library = findLibrary(cfg.Env.Library, place.Home)
	return place, nil
}

// usePython puts the interpreter that --python names, if it is given, into the place of the configuration's.
func usePython(cfg *config.Config, args *argparse.Args) error {
	named := args.Get("--python")
	if named == "" {
		return nil
	}
	path, err := exec.LookPath(named)
	if err != nil {
		return fmt.Errorf("--python %s: %w", named, err)
	}
	cfg.Python, err = filepath.Abs(path)
	return err
}

// findPython gives the absolute path of the interpreter that was named, or of the first of names that is on the PATH.
func findPython(named string, names ...string) (string, error) {
	if named != "" {
		path, err := exec.LookPath(named)
		if err != nil {
			return "", fmt.Errorf("the Python interpreter %s cannot be run: %w; correct the key python in config.properties or FLAMBEAU_PYTHON", named, err)
		}
		return filepath.Abs(path)
	}
	for _, name := range names {
		if path, err := exec.LookPath(name); err == nil {
			return filepath.Abs(path)
		}
	}
	return "", errors.New("no Python is on the server's PATH; install Python 3.8 or later with the flambeau wheel, or name one that has it by the key " +
		"python in config.properties or by FLAMBEAU_PYTHON")
}

// findHome gives the folder that holds the packages flambeau and ts: beside the binary in the wheel, in the checkout that it was built in, or where the
// wheel is installed for the interpreter.
func findHome(named, interpreter string) (string, error) {
	if named != "" {
		return filepath.Abs(named)
	}
	exe, err := os.Executable()
	if err == nil {
		exe, err = filepath.EvalSymlinks(exe)
	}
	if err != nil {
		return "", fmt.Errorf("the place of this program is not known: %w; set FLAMBEAU_HOME to the folder of the package flambeau", err)
	}
	folder := filepath.Dir(exe)
	homes := []string{filepath.Join(folder, "..", ".."), filepath.Join(folder, "..", "python_compat", "src")}
	if installed := installedHome(interpreter); installed != "" {
		homes = append(homes, installed)
	}
	for _, home := range homes {
		if isFile(filepath.Join(home, "flambeau", "worker", "__main__.py")) {
			return home, nil
		}
	}
	return "", fmt.Errorf("the Python package flambeau is neither beside %s nor installed for %s; install the flambeau wheel (%s -m pip install flambeau-*.whl), "+
		"or set FLAMBEAU_HOME to the folder that holds the package", exe, interpreter, interpreter)
}

// askPython bounds how long an interpreter may take to tell where a package is.
const askPython = 10 * time.Second

// installedHome asks an interpreter in which folder it has the package flambeau; "" for none.
func installedHome(interpreter string) string {
	const question = "import importlib.util, os; s = importlib.util.find_spec('flambeau'); print(os.path.dirname(os.path.dirname(s.origin)) if s and s.origin else '')"
	ctx, cancel := context.WithTimeout(context.Background(), askPython)
	defer cancel()
	cmd := exec.CommandContext(ctx, interpreter, "-c", question)
	cmd.Dir = "/" // where the server was started is nothing that Python should import from
	cmd.WaitDelay = time.Second
	said, err := cmd.Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(said))
}

// findLibrary prefers the library beside the binary, as `make build` leaves it, when the packages have none.
func findLibrary(named, home string) string {
	if named != "" {
		return named
	}
	packaged := filepath.Join(home, "flambeau", "_lib", "libflambeau.so")
	if isFile(packaged) {
		return packaged
	}
	if exe, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(exe), "libflambeau.so"); isFile(beside) {
			return beside
		}
	}
	return packaged
}
