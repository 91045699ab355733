package check

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// question is what the target's Python is asked (flambeau.inspection in python_compat).
type question struct {
	Folder     string   `json:"folder"`
	Handler    string   `json:"handler"`
	ModelFile  string   `json:"model_file"`
	Envelope   string   `json:"envelope"`
	PythonPath []string `json:"python_path"`
}

// pythonFacts is what the interpreter says of itself.
type pythonFacts struct {
	Executable        string            `json:"executable"`
	Version           string            `json:"version"`
	Implementation    string            `json:"implementation"`
	FreeThreaded      bool              `json:"free_threaded"`
	ExtensionSuffixes []string          `json:"extension_suffixes"`
	Machine           string            `json:"machine"`
	Platform          string            `json:"platform"`
	Libc              string            `json:"libc"`
	LibcVersion       string            `json:"libc_version"`
	Markers           map[string]string `json:"markers"`
}

// minor is the 11 of 3.11.
func (p *pythonFacts) minor() (int, bool) {
	parts := strings.Split(p.Version, ".")
	if len(parts) < 2 || parts[0] != "3" {
		return 0, false
	}
	return number(parts[1]), true
}

// answer is what the target's Python says.
type answer struct {
	Python         pythonFacts       `json:"python"`
	Distributions  map[string]string `json:"distributions"`
	LibraryFolders []string          `json:"library_folders"`
	TorchFormat    int               `json:"torch_format"`
	Missing        []missingImport   `json:"missing"`
	Problems       []problem         `json:"problems"`
	Incomplete     string            `json:"incomplete"`
	Modules        []string          `json:"modules"`
	BuiltIn        string            `json:"built_in"`
	Base           struct {
		Initialize  bool `json:"initialize"`
		TorchScript bool `json:"torchscript"`
		Pickled     bool `json:"pickled"`
	} `json:"base"`
}

// missingImport is an import that fails.
type missingImport struct {
	Kind      string   `json:"kind"` // module or name
	Module    string   `json:"module"`
	Name      string   `json:"name"` // the name that is imported, or the part of the module's name that there is not
	File      string   `json:"file"`
	Line      int      `json:"line"`
	Certain   bool     `json:"certain"`
	Function  string   `json:"function"`
	Via       string   `json:"via"` // our own module that has the import
	Pip       string   `json:"pip"`
	PipNames  []string `json:"pip_names"`
	Elsewhere []string `json:"elsewhere"` // where the archive has a module of that name
	OtherABI  []string `json:"other_abi"` // extension modules of that name for other Pythons
	Origin    string   `json:"origin"`    // of the top module when it is there
}

// problem is a finding that the Python side has words for.
type problem struct {
	Code    Code   `json:"code"`
	File    string `json:"file"`
	Line    int    `json:"line"`
	Message string `json:"message"`
	Hint    string `json:"hint"`
	Error   bool   `json:"error"`
}

// ask has the target's Python read the archive's code.
func (c *Checker) ask(ctx context.Context, s *subject) (*answer, error) {
	text, err := json.Marshal(question{
		Folder: s.dir, Handler: s.handler, ModelFile: s.archive.Manifest.Model.ModelFile, Envelope: c.opts.Envelope,
		PythonPath: s.pythonPath(c.opts.Env),
	})
	if err != nil {
		return nil, err
	}
	said, err := c.opts.Inspector.Inspect(ctx, s.runtime, text)
	if err != nil {
		return nil, err //nolint:wrapcheck // it names the interpreter
	}
	var a answer
	if err := json.Unmarshal(said, &a); err != nil {
		return nil, fmt.Errorf("the answer of the Python that was asked cannot be read: %w", err)
	}
	return &a, nil
}

// pythonPath is what the workers' PYTHONPATH gives for this archive.
func (s *subject) pythonPath(env []string) []string {
	var entries []string
	for entry := range strings.SplitSeq(lookup(env, "PYTHONPATH"), string(os.PathListSeparator)) {
		if entry == "" {
			continue
		}
		if !filepath.IsAbs(entry) {
			entry = filepath.Join(s.dir, entry)
		}
		entries = append(entries, entry)
	}
	return entries
}

func lookup(env []string, name string) string {
	value := ""
	for _, entry := range env {
		if v, ok := strings.CutPrefix(entry, name+"="); ok {
			value = v
		}
	}
	return value
}

// pythonFindings makes findings of what the Python says.
func (s *subject) pythonFindings(a *answer) {
	for i := range a.Problems {
		p := &a.Problems[i]
		s.found.add(severity(p.Error), p.Code, p.File, s.lineOf(p.File, p.Line, `"handler"`), p.Hint, "%s", p.Message)
	}
	if a.Incomplete != "" {
		s.found.add(Warning, CheckIncomplete, "", 0, "", "%s", a.Incomplete)
	}
	for i := range a.Missing {
		s.missingImport(&a.Missing[i])
	}
}

func severity(isError bool) Severity {
	if isError {
		return Error
	}
	return Warning
}

// missingImport is one import that fails.
func (s *subject) missingImport(m *missingImport) {
	line := s.lineOf(m.File, m.Line, `"handler"`)
	where := ""
	switch {
	case m.Via != "":
		where = " (needed by " + m.Via + ")"
	case m.Function != "":
		where = " (imported when " + m.Function + " runs)"
	}
	if m.Kind == "name" {
		s.found.add(severity(m.Certain), ImportName, m.File, line, s.aboutName(m), "%s has no %q%s", m.Module, m.Name, where)
		return
	}
	top, _, _ := strings.Cut(m.Module, ".")
	if m.Name != top {
		s.found.add(severity(m.Certain), ImportMissing, m.File, line, s.aboutName(m), "there is no module %s in %s%s", m.Name, top, where)
		return
	}
	level, hint := s.howToGet(m)
	if !m.Certain && level == Error {
		level = Warning
	}
	if level != "" {
		s.found.add(level, ImportMissing, m.File, line, hint, "module %s is not there%s", m.Module, where)
	}
}

// aboutName says what to do about a package that is there and lacks something.
func (s *subject) aboutName(m *missingImport) string {
	if m.Origin == "local" {
		return "the archive's own module lacks it: correct the import or the module"
	}
	if m.Origin == "ours" {
		return "it is part of the server, which has no such name; TorchServe 0.12.0 has none either, or it is listed in docs/compatibility.md"
	}
	for _, name := range m.PipNames {
		if version := s.answer.Distributions[name]; version != "" {
			return fmt.Sprintf("%s %s is installed in %s; another version of it may have it", name, version, s.answer.Python.Executable)
		}
	}
	return "another version of it may have it: this is Python " + s.answer.Python.Version
}

// howToGet says how bad it is that a module is not there, and what to do about it. The severity is "" when it will be installed.
func (s *subject) howToGet(m *missingImport) (Severity, string) {
	python := s.answer.Python.Executable
	top, _, _ := strings.Cut(m.Module, ".")
	if len(m.OtherABI) > 0 {
		return Error, fmt.Sprintf("the archive has it as %s, which Python %s does not load: build it for this Python", strings.Join(m.OtherABI, ", "), s.answer.Python.Version)
	}
	if len(m.Elsewhere) > 0 {
		return Error, fmt.Sprintf("the archive has it as %s, and only its top folder is searched", strings.Join(m.Elsewhere, ", "))
	}
	if req := s.requires(m); req != nil {
		if s.installs {
			return "", ""
		}
		s.named[req.name] = true
		return Error, fmt.Sprintf("%s:%d asks for it: start the server with install_py_dep_per_model=true, or install %s for %s", req.file, req.line, m.Pip, python)
	}
	if slices.Contains(s.wheelModules, top) && s.installs {
		return "", ""
	}
	if s.installs && s.requirements.file != "" && s.mayBring() {
		return Warning, fmt.Sprintf("%s does not name it; it may come with one of the packages there. To be sure add %s", s.requirements.file, m.Pip)
	}
	what := m.Pip
	if what == top {
		what = fmt.Sprintf("if it is a file of yours, add it to the archive by --extra-files; if it is a pip package, install %s for %s", top, python)
	} else {
		what = fmt.Sprintf("it comes with the pip package %s: install it for %s", m.Pip, python)
	}
	return Error, what + ", or add it to the archive's requirements file (--requirements-file) and start the server with install_py_dep_per_model=true"
}

// requires gives the requirement that brings a module.
func (s *subject) requires(m *missingImport) *requirement {
	for i := range s.requirements.all {
		req := &s.requirements.all[i]
		if req.name != "" && slices.Contains(m.PipNames, req.name) && req.applies(&s.answer.Python) {
			return req
		}
	}
	return nil
}

// mayBring says whether a requirement that is not installed yet may bring modules of other names.
func (s *subject) mayBring() bool {
	return slices.ContainsFunc(s.requirements.all, func(r requirement) bool {
		return r.applies(&s.answer.Python) && (r.name == "" || s.answer.Distributions[r.name] == "" || r.extras)
	})
}
