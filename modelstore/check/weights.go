package check

import (
	"archive/zip"
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// weightsKind is what a file of weights is, by its contents.
type weightsKind string

const (
	kindTorchScript weightsKind = "a TorchScript archive"
	kindTorchZip    weightsKind = "a torch.save file"
	kindTorchOld    weightsKind = "a torch.save file of the form before torch 1.6"
	kindTorchTar    weightsKind = "a torch.save file of the form before torch 0.1.10"
	kindExported    weightsKind = "a torch.export archive"
	kindZip         weightsKind = "a zip file"
	kindPickle      weightsKind = "a pickle"
	kindOther       weightsKind = "of another format"
)

// weights is what is read of a file of weights.
type weights struct {
	kind      weightsKind
	format    int // TorchScript: the version of the file's format
	globals   []string
	unknown   bool
	truncated string // why it cannot be read to its end
}

const (
	zipMagic     = "PK\x03\x04"
	oldTorchHead = "\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." // the pickled magic number of old torch.save
	oldPickles   = 5                                          // magic, protocol, system, object, keys
	tarAt        = 257
	tarMagic     = "ustar"
	mostVersion  = 64
)

// readWeights looks at a file of weights, and at the pickles in it.
func readWeights(r io.ReaderAt, size int64) (weights, error) {
	head := make([]byte, headBytes)
	n, err := r.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return weights{}, err
	}
	text := string(head[:n])
	switch {
	case strings.HasPrefix(text, zipMagic):
		return readTorchZip(r, size), nil
	case strings.HasPrefix(text, oldTorchHead):
		return readPickles(r, size, kindTorchOld, oldPickles), nil
	case len(text) > tarAt+len(tarMagic) && text[tarAt:tarAt+len(tarMagic)] == tarMagic:
		return weights{kind: kindTorchTar}, nil
	case len(text) > 1 && (text[0] == 0x80 && text[1] >= 2 && text[1] <= 5 || text[0] == '(' || text[0] == 'c'):
		return readPickles(r, size, kindPickle, 1), nil
	}
	return weights{kind: kindOther}, nil
}

// readPickles reads pickles that follow each other.
func readPickles(r io.ReaderAt, size int64, kind weightsKind, count int) weights {
	w := weights{kind: kind}
	from := bufio.NewReaderSize(io.NewSectionReader(r, 0, size), 64<<10)
	for i := range count {
		p, err := readPickle(from)
		if errors.Is(err, errPickle) && kind == kindPickle && i == 0 && !startsPickle(r) {
			return weights{kind: kindOther}
		}
		w.globals, w.unknown = append(w.globals, p.globals...), w.unknown || p.unknown
		if err != nil {
			w.truncated = err.Error()
			break
		}
	}
	return w
}

// startsPickle says whether a file begins with the opcode that only pickles of protocol 2 and later begin with.
func startsPickle(r io.ReaderAt) bool {
	var first [1]byte
	_, err := r.ReadAt(first[:], 0)
	return err == nil && first[0] == 0x80
}

func readTorchZip(r io.ReaderAt, size int64) weights {
	w := weights{kind: kindZip}
	archive, broken := zip.NewReader(r, size)
	if broken != nil {
		w.truncated = broken.Error()
		return w
	}
	hasCode, hasConstants, hasData := false, false, false
	for _, f := range archive.File {
		_, inner, _ := strings.Cut(f.Name, "/")
		switch {
		case strings.HasPrefix(inner, "code/"):
			hasCode = true
		case inner == "constants.pkl":
			hasConstants = true
		case inner == "data.pkl":
			hasData = true
		case inner == "archive_format", strings.HasPrefix(inner, "models/"), inner == "serialized_exported_program.json":
			w.kind = kindExported
		case inner == "version", inner == ".data/version":
			w.format = zipNumber(f)
		}
		if path.Ext(f.Name) == ".pkl" {
			w.addPickle(f)
		}
	}
	switch {
	case hasCode && hasConstants:
		w.kind = kindTorchScript
	case hasData && w.kind != kindExported:
		w.kind = kindTorchZip
	}
	return w
}

func zipNumber(f *zip.File) int {
	text, err := f.Open()
	if err != nil {
		return 0
	}
	defer func() { _ = text.Close() }() // it was only read from
	digits, err := io.ReadAll(io.LimitReader(text, mostVersion))
	if err != nil {
		return 0
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(digits)))
	if err != nil {
		return 0
	}
	return n
}

func (w *weights) addPickle(f *zip.File) {
	text, err := f.Open()
	if err != nil {
		w.truncated = err.Error()
		return
	}
	defer func() { _ = text.Close() }() // it was only read from
	p, err := readPickle(bufio.NewReader(text))
	w.globals, w.unknown = append(w.globals, p.globals...), w.unknown || p.unknown
	if err != nil {
		w.truncated = fmt.Sprintf("%s: %v", f.Name, err)
	}
}

// weightsFiles looks at the files that hold models and weights. It gives the contents of the serializedFile.
func (s *subject) weightsFiles() *weights {
	var serialized *weights
	for _, f := range s.files {
		if f.lfs || f.size == 0 {
			continue
		}
		switch lowerExt(f.path) {
		case ".onnx":
			s.onnxFile(f)
		case ".safetensors":
			s.safetensorsFile(f)
		case ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin", ".joblib", ".mar":
			w := s.torchFile(f)
			if f.path == s.archive.Manifest.Model.SerializedFile {
				serialized = w
			}
		}
	}
	return serialized
}

func (s *subject) safetensorsFile(f member) {
	s.reading(f, func(file *os.File) {
		err := readSafetensors(file, f.size)
		if errors.Is(err, errTooManyFields) {
			s.found.add(Warning, CheckIncomplete, f.path, 0, "", "%v", err)
			return
		}
		if err != nil {
			s.found.add(Error, WeightsCorrupt, f.path, 0, "copy or save it again", "the safetensors file cannot be read: %v", err)
		}
	})
}

func (s *subject) reading(f member, read func(*os.File)) {
	file, err := os.Open(s.abs(f.path))
	if err != nil {
		s.found.add(Warning, CheckIncomplete, f.path, 0, "", "it cannot be read: %v", err)
		return
	}
	defer func() { _ = file.Close() }() // it was only read from
	read(file)
}

func (s *subject) torchFile(f member) *weights {
	var w *weights
	s.reading(f, func(file *os.File) {
		read, err := readWeights(file, f.size)
		if err != nil {
			s.found.add(Warning, CheckIncomplete, f.path, 0, "", "it cannot be read: %v", err)
			return
		}
		w = &read
	})
	if w == nil {
		return nil
	}
	if w.truncated != "" && (w.kind == kindZip || f.path == s.archive.Manifest.Model.SerializedFile) {
		s.found.add(s.serializedLevel(f), WeightsCorrupt, f.path, 0, "copy or save it again", "the file begins as %s and cannot be read to its end: %s", w.kind, w.truncated)
	}
	if bad := unsafeGlobals(w.globals); len(bad) > 0 {
		slices.Sort(bad)
		s.found.add(Warning, PickleUnsafe, f.path, 0, "load it only if you trust who made it, or save the weights alone (state_dict, safetensors)",
			"the pickle calls %s when it is loaded", some(slices.Compact(bad)))
	}
	if w.unknown {
		s.found.add(Warning, PickleUnsafe, f.path, 0, "load it only if you trust who made it",
			"the pickle makes the names of what it calls while it is loaded, so they cannot be read")
	}
	return w
}

// serializedLevel is an error for the file that the model is loaded from.
func (s *subject) serializedLevel(f member) Severity {
	return severity(f.path == s.archive.Manifest.Model.SerializedFile)
}

func some(names []string) string {
	const shown = 8
	if len(names) > shown {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
	}
	return strings.Join(names, ", ")
}

// baseHandler looks at what BaseHandler.initialize will do with the manifest's files.
func (s *subject) baseHandler(w *weights) {
	m := &s.archive.Manifest.Model
	if s.answer == nil || !s.answer.Base.Initialize || !s.archive.HasManifest {
		return
	}
	line := keyLine(s.manifest, `"serializedFile"`)
	switch {
	case m.ModelFile != "":
		if m.SerializedFile != "" && s.answer.Base.Pickled {
			s.stateDict(m.SerializedFile, w)
		}
	case m.SerializedFile == "":
		s.found.add(Error, WeightsFormat, manifestPath, 0, "pack the model with --serialized-file or --model-file, or give the handler an initialize of its own",
			"BaseHandler loads the model, and the manifest names neither a serializedFile nor a modelFile")
	case lowerExt(m.SerializedFile) == ".pt":
		if s.answer.Base.TorchScript && w != nil && w.truncated == "" && w.kind != kindTorchScript {
			s.found.add(Error, WeightsFormat, m.SerializedFile, 0,
				"save the model with torch.jit.script(model).save(…), or add the file with its class by --model-file",
				"BaseHandler loads a .pt file without a modelFile as TorchScript, and it is %s", w.kind)
		}
	case lowerExt(m.SerializedFile) == ".onnx":
		s.needsOnnxRuntime(m.SerializedFile)
	case lowerExt(m.SerializedFile) != ".so":
		s.found.add(Error, WeightsFormat, manifestPath, line, "rename it, add the file with its class by --model-file, or give the handler an initialize of its own",
			"BaseHandler loads %s only with a modelFile: without one it takes .pt (TorchScript), .onnx and .so", m.SerializedFile)
	}
	if w != nil && w.kind == kindTorchScript && s.answer.TorchFormat > 0 && w.format > s.answer.TorchFormat {
		s.found.add(Error, WeightsVersion, m.SerializedFile, 0, "install the torch that it was saved with, or a newer one",
			"its format has version %d, and torch %s reads %d at most", w.format, s.answer.Distributions["torch"], s.answer.TorchFormat)
	}
}

// weightsOnly is the first torch whose torch.load refuses most classes by default.
const weightsOnly = "2.6"

func (s *subject) stateDict(name string, w *weights) {
	if w == nil || w.truncated != "" {
		return
	}
	if w.kind == kindTorchScript {
		s.found.add(Error, WeightsFormat, name, 0, "leave --model-file out: TorchScript needs no class, or save model.state_dict()",
			"with a modelFile BaseHandler loads a state dict, and it is %s", w.kind)
		return
	}
	if torch := s.answer.Distributions["torch"]; torch == "" || newer(weightsOnly, torch) {
		return
	}
	var refused []string
	for _, global := range w.globals {
		if !allowedByTorch(global) {
			refused = append(refused, global)
		}
	}
	if len(refused) > 0 {
		slices.Sort(refused)
		s.found.add(Warning, PickleGlobals, name, 0, "save only model.state_dict(): torch.save(model.state_dict(), path)",
			"torch.load of torch %s refuses it by default (weights_only), because of %s", s.answer.Distributions["torch"], some(slices.Compact(refused)))
	}
}

func (s *subject) needsOnnxRuntime(name string) {
	if _, installed := s.ortInstalled(); installed != "" {
		return
	}
	m := missingImport{
		Kind: "module", Module: "onnxruntime", Name: "onnxruntime", File: name, Certain: true, Via: "BaseHandler.initialize", Pip: "onnxruntime",
		PipNames: []string{"onnxruntime", "onnxruntime-gpu"},
	}
	s.missingImport(&m)
}
