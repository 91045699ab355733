// Package check reads a model's archive without running its code, and says what will fail on this machine.
package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// Inspector has a model's own Python read the archive's code. question and answer are JSON (docs/check.md); runtime is "python" or "python3".
// None of the archive's code may be run.
type Inspector interface {
	Inspect(ctx context.Context, runtime string, question []byte) (answer []byte, err error)
}

// Options say what an archive is compared with. Inspector is required.
type Options struct {
	Inspector Inspector
	// Env is the environment of workers, KEY=VALUE: PYTHONPATH and LD_LIBRARY_PATH count.
	Env []string
	// Installs says whether the server installs the requirements of archives (install_py_dep_per_model).
	Installs bool
	// Handler is what an archive runs whose manifest names no handler (default_service_handler).
	Handler string
	// Envelope is the server's service_envelope.
	Envelope string
	// ONNXRuntime tells the version of ONNX Runtime that the server itself runs models of the runtime "onnx" with, "" when that is not known. It is asked
	// for such models only. Nil: it is not known.
	ONNXRuntime func(ctx context.Context) string
	// Workers is how many workers a model gets that does not say so itself; 0 means one.
	Workers int
	// GPUs is how many GPUs the server uses, nil when that is not known.
	GPUs *int
	// MemoryBytes is the memory that is left for workers. 0: what the machine and the cgroup say.
	MemoryBytes int64
	// Protocol is the version of the protocol with plugins that the server speaks. 0: it is not compared.
	Protocol int
	// Rows tells how many rows of a request a model takes that lies beside an ensemble, false when that is not known. Nil: it is not compared.
	Rows func(ctx context.Context, ensemble *archive.Archive, model, version string) (int, bool)
	// Ensemble gives an ensemble that lies beside another one, nil when there is none of that name. Its files may be gone. Nil: circles of several are not looked for.
	Ensemble func(ctx context.Context, beside *archive.Archive, model, version string) *archive.Archive
	// TempDir is where the server unpacks archives; "" when its room is not to be looked at.
	TempDir string
	// Limit is how long one check may take. 0: 20 seconds.
	Limit time.Duration
}

const defaultLimit = 20 * time.Second

// Checker checks archives. It is safe for concurrent use.
type Checker struct{ opts Options }

// New checks the options.
func New(opts Options) (*Checker, error) {
	if opts.Inspector == nil {
		return nil, errors.New("check: Options.Inspector is required")
	}
	opts.Limit = cmp.Or(opts.Limit, defaultLimit)
	return &Checker{opts: opts}, nil
}

// modelOf is what a model is called that nobody calls otherwise.
func modelOf(a *archive.Archive) string { return cmp.Or(a.Manifest.Model.ModelName, a.FileBase) }

// subject is one archive that is checked.
type subject struct {
	archive        *archive.Archive
	dir            string // real path
	runtime        string
	handler        string
	installs       bool
	onnxRuntime    string
	manifest       []byte
	files          []member
	answer         *answer // nil when no Python was asked
	requirements   requirements
	requirementsAt string
	wheelModules   []string
	named          map[string]bool // requirements that a finding has named already
	found          findings
}

// Check says what will fail. The error is for archives that could not be checked, and for a Python that could not be asked; what is wrong
// with the archive is in the report, which is of use even beside an error.
func (c *Checker) Check(ctx context.Context, a *archive.Archive) (Report, error) {
	begun := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, c.opts.Limit, fmt.Errorf("the check took longer than %s", c.opts.Limit))
	defer cancel()
	r := Report{Path: a.URL, Model: modelOf(a), Version: a.Manifest.Model.ModelVersion, Digest: a.Digest}
	dir, err := filepath.EvalSymlinks(a.Dir)
	if err != nil {
		return r, fmt.Errorf("the unpacked archive: %w", err)
	}
	s := &subject{
		archive: a, dir: dir, runtime: runtimeOf(a), handler: cmp.Or(a.Manifest.Model.Handler, c.opts.Handler), named: map[string]bool{},
		installs: c.opts.Installs,
	}
	if c.opts.ONNXRuntime != nil && a.Manifest.Runtime == archive.RuntimeONNX {
		s.onnxRuntime = c.opts.ONNXRuntime(ctx)
	}
	err = c.look(ctx, s)
	if s.answer != nil {
		r.Python = &Python{Executable: s.answer.Python.Executable, Version: s.answer.Python.Version}
	}
	r.Findings, r.Took = s.found.sorted(), time.Since(begun)
	return r, err
}

// look does all the parts. The Python is asked even when another part has failed.
func (c *Checker) look(ctx context.Context, s *subject) error {
	if err := s.walk(ctx); err != nil {
		return err
	}
	s.manifest, _ = s.readText(manifestPath, mostText)
	s.manifestFindings()
	s.readRequirements()
	asked := c.askFor(ctx, s)
	if ctx.Err() != nil {
		return errors.Join(asked, context.Cause(ctx))
	}
	s.pointers()
	s.wheels()
	if s.answer != nil {
		s.pythonFindings(s.answer)
	}
	s.requirementFindings()
	s.baseHandler(s.weightsFiles())
	s.labels()
	s.configFindings(&c.opts)
	s.onnxTask()
	s.tritonFindings()
	s.ensembleFindings(ctx, &c.opts)
	s.objects(c.opts.Env)
	s.plugin(&c.opts)
	s.sizes(&c.opts)
	if ctx.Err() != nil {
		return errors.Join(asked, context.Cause(ctx))
	}
	return asked
}

// crashed is what an Inspector's error says when the archive itself made the Python crash.
type crashed interface{ Crashed() bool }

// noPython is what an Inspector's error says when this machine has no Python to ask.
type noPython interface{ NoPython() bool }

// askFor asks the Python, unless the model does not run on one.
func (c *Checker) askFor(ctx context.Context, s *subject) error {
	if s.runtime == "" || s.archive.Problem != "" {
		return nil
	}
	if s.handler == "" && s.archive.HasManifest {
		s.found.add(Error, HandlerUnnamed, manifestPath, keyLine(s.manifest, `"model"`), "give it by torch-model-archiver --handler, or set default_service_handler",
			"the manifest names no handler (model.handler)")
	}
	said, err := c.ask(ctx, s)
	if crash := crashed(nil); errors.As(err, &crash) && crash.Crashed() {
		s.found.add(Error, PythonCrashed, "", 0, "remove or correct the Python file that does it: a worker would crash as well", "the archive's Python files could not be read: %v", err)
		return nil
	}
	if missing := noPython(nil); errors.As(err, &missing) && missing.NoPython() {
		s.found.add(Error, PythonMissing, "", 0, "", "the model needs Python: %v", err)
		return nil
	}
	s.answer = said
	return err
}

func (s *subject) objects(env []string) {
	if !slices.ContainsFunc(s.files, func(f member) bool { return f.elf || isSharedObject(f.path) }) {
		return
	}
	var brought []string
	if s.answer != nil {
		brought = s.answer.LibraryFolders
	}
	machine := thisMachine(runtime.GOARCH)
	s.sharedObjects(newLoader(machine, env, brought))
}

// readRequirements reads the manifest's requirements file and those that it includes.
func (s *subject) readRequirements() {
	if s.requirementsAt == "" {
		return
	}
	const mostIncluded = 20
	queue, seen := []string{s.requirementsAt}, map[string]bool{}
	s.requirements.file = s.requirementsAt
	for len(queue) > 0 && len(seen) < mostIncluded {
		name := queue[0]
		queue = queue[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		text, ok := s.readText(name, mostText)
		if !ok {
			s.found.add(severity(s.installs), RequirementMalformed, s.requirementsAt, 0, "add it by --extra-files", "it includes %s, which the archive does not have", name)
			continue
		}
		r := parseRequirements(name, string(text))
		for _, p := range r.problems {
			s.found.add(severity(s.installs), RequirementMalformed, name, p.line, "pip would refuse the whole file", "%q is no requirement: %s", p.text, p.why)
		}
		s.requirements.all = append(s.requirements.all, r.all...)
		queue = append(queue, r.includes...)
	}
}

// requirementFindings compares the requirements with what is installed, when the server installs none.
func (s *subject) requirementFindings() {
	if s.installs || s.answer == nil {
		return
	}
	python := s.answer.Python.Executable
	for i := range s.requirements.all {
		r := &s.requirements.all[i]
		if r.name == "" || !r.applies(&s.answer.Python) {
			continue
		}
		installed, ok := s.answer.Distributions[r.name]
		switch {
		case !ok && !s.named[r.name]:
			s.found.add(Warning, RequirementNotInstalled, r.file, r.line,
				"start the server with install_py_dep_per_model=true, or install it for "+python, "%s is not installed, and requirements are not installed by this server", r.name)
		case ok && !satisfies(installed, r.specifiers):
			s.found.add(Warning, RequirementConflict, r.file, r.line,
				"start the server with install_py_dep_per_model=true, or install that version for "+python, "it asks for %s, and %s is installed", shorten(r.text), installed)
		}
	}
}

// wheels looks at the wheels in the archive.
func (s *subject) wheels() {
	for _, f := range s.files {
		if lowerExt(f.path) != ".whl" || f.lfs {
			continue
		}
		name, err := parseWheelName(f.path)
		if err != nil {
			s.found.add(Warning, WheelName, f.path, 0, "give it the name that it was built with", "pip does not take the wheel: %v", err)
			continue
		}
		if s.answer == nil {
			continue
		}
		if why := name.unfit(&s.answer.Python); why != "" {
			s.found.add(s.wheelLevel(f), WheelUnfit, f.path, 0, "take the wheel for this Python and this machine", "the wheel cannot be installed: %s", why)
			continue
		}
		s.wheelFile(f)
	}
}

// wheelLevel is an error for a wheel that the requirements file names and the server installs.
func (s *subject) wheelLevel(f member) Severity {
	named := slices.ContainsFunc(s.requirements.all, func(r requirement) bool { return path.Base(r.direct) == path.Base(f.path) })
	return severity(s.installs && named)
}

func (s *subject) wheelFile(f member) {
	s.reading(f, func(file *os.File) {
		contents, err := readWheel(file, f.size)
		if err != nil {
			s.found.add(s.wheelLevel(f), WheelUnfit, f.path, 0, "copy it again", "the wheel cannot be read: %v", err)
			return
		}
		s.wheelModules = append(s.wheelModules, contents.modules...)
		clauses, err := parseSpecifiers(contents.requiresPython)
		if err == nil && !satisfies(s.answer.Python.Version, clauses) {
			s.found.add(s.wheelLevel(f), WheelPython, f.path, 0, "take a version of the package for this Python",
				"the wheel asks for Python %s, and this is %s", contents.requiresPython, s.answer.Python.Version)
		}
	})
}
