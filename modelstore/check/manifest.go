package check

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/malformed"
	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

const (
	manifestPath = "MAR-INF/MANIFEST.json"
	labelsPath   = "index_to_name.json"
	mostText     = 4 << 20
)

var (
	modelName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_\-.]*$`)
	modelVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_\-.+]*$`)
)

// manifestFindings compares the manifest with the files.
func (s *subject) manifestFindings() {
	a := s.archive
	if a.Problem != "" {
		s.found.add(Error, ArchiveUnusable, "", 0, "make it with torch-model-archiver", "%s", a.Problem)
		return
	}
	if !a.HasManifest && (s.handler != "" || a.Manifest.Runtime == archive.RuntimeONNX || a.Manifest.Runtime == archive.RuntimePlugin || a.Ensemble != nil) {
		return
	}
	if !a.HasManifest {
		s.found.add(Warning, ManifestMissing, "", 0, "pack it with torch-model-archiver, or give model_name and handler with the registration",
			"there is no %s, so it does not say what it is called and which handler it has", manifestPath)
		if a.NotProgram != "" {
			s.found.add(Warning, ManifestMissing, "", 0, "if it is meant to be a plugin, copy its program again; it is taken for a model in Python now", "%s", a.NotProgram)
		}
		return
	}
	m := &a.Manifest.Model
	line := func(key string) int { return keyLine(s.manifest, `"`+key+`"`) }
	switch {
	case m.ModelName == "":
		s.found.add(Warning, ManifestValue, manifestPath, line("model"), "give it by torch-model-archiver --model-name", "the manifest names no model (model.modelName)")
	case !modelName.MatchString(m.ModelName):
		s.found.add(Warning, ManifestValue, manifestPath, line("modelName"), "use letters, digits and _-. only",
			"the model's name %q has characters that URLs and metrics do not carry as they are", m.ModelName)
	}
	if m.ModelVersion != "" && !modelVersion.MatchString(m.ModelVersion) {
		s.found.add(Warning, ManifestValue, manifestPath, line("modelVersion"), "use letters, digits and _-.+ only",
			"the model's version %q has characters that URLs do not carry as they are", m.ModelVersion)
	}
	if a.Manifest.Runtime == "" {
		s.found.add(Error, ManifestValue, manifestPath, line("runtime"), "write python", "the manifest's runtime is none that there is: python, python3, LSP or plugin")
	}
	s.namedFile("serializedFile", m.SerializedFile, "--serialized-file", line)
	s.namedFile("modelFile", m.ModelFile, "--model-file", line)
	s.namedFile("configFile", m.ConfigFile, "--config-file", line)
	if s.requirementsAt = m.RequirementsFile; s.requirementsAt != "" && !s.has(s.requirementsAt) {
		// TorchServe installs nothing then, and goes on.
		s.found.add(severity(s.installs), ManifestFileMissing, manifestPath, line("requirementsFile"), "pack it with --requirements-file",
			"the manifest's requirementsFile, %s, is not in the archive", s.requirementsAt)
		s.requirementsAt = ""
	}
}

func (s *subject) namedFile(key, name, flag string, line func(string) int) {
	if name == "" || s.has(name) {
		return
	}
	why := "is not in the archive"
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		why = "is no path inside of the archive"
	}
	hint := "pack the model again with " + flag
	for _, f := range s.files {
		if filepath.Base(f.path) == filepath.Base(name) && f.path != name {
			hint = fmt.Sprintf("the archive has it as %s: write that into the manifest, or put it at the top", f.path)
			break
		}
	}
	s.found.add(Error, ManifestFileMissing, manifestPath, line(key), hint, "the manifest's %s, %s, %s", key, name, why)
}

// labels looks at index_to_name.json, which BaseHandler and handlers like it read.
func (s *subject) labels() {
	reads := s.answer != nil && s.answer.Base.Initialize
	text, ok := s.readText(labelsPath, mostText)
	if !ok || !reads {
		return
	}
	var mapping map[string]json.RawMessage
	if err := json.Unmarshal(text, &mapping); err != nil {
		line := 0
		if syntax := (*json.SyntaxError)(nil); asSyntax(err, &syntax) {
			line = 1 + strings.Count(string(text[:min(int(syntax.Offset), len(text))]), "\n")
		}
		s.found.add(Error, LabelsInvalid, labelsPath, line, `write {"0": "cat", "1": "dog"}`, "BaseHandler reads it as a JSON object of class index to label, and it is none: %s", malformed.JSON(err))
		return
	}
	if names, ok := mapping["object_type_names"]; ok && strings.HasPrefix(strings.TrimSpace(string(names)), "[") {
		return
	}
	for index, raw := range mapping {
		if !isLabel(raw) {
			s.found.add(Error, LabelsInvalid, labelsPath, keyLine(text, `"`+index+`"`), "a label is a text, or a list whose last element is one",
				"the label of class %q is %s", index, shorten(string(raw)))
			return
		}
	}
}

func asSyntax(err error, into **json.SyntaxError) bool {
	syntax, ok := err.(*json.SyntaxError) //nolint:errorlint // Unmarshal does not wrap it
	*into = syntax
	return ok
}

func isLabel(raw json.RawMessage) bool {
	var text string
	if json.Unmarshal(raw, &text) == nil && string(raw) != "null" {
		return true
	}
	var list []json.RawMessage
	return json.Unmarshal(raw, &list) == nil && len(list) > 0 && json.Unmarshal(list[len(list)-1], &text) == nil && string(list[len(list)-1]) != "null"
}

func shorten(text string) string {
	const most = 80
	if len(text) > most {
		return strings.ToValidUTF8(text[:most], "") + "…"
	}
	return text
}

// runtimeOf is the Python runtime of a model, "" for one that runs on something else.
func runtimeOf(a *archive.Archive) string {
	switch a.Manifest.Runtime {
	case archive.RuntimePython, archive.RuntimePython3:
		return a.Manifest.Runtime
	}
	return ""
}
