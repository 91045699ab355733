package check

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
	"github.com/flambeau-serve/flambeau/plugins/onnx/settings"
)

// onnxModel is what is read of an ONNX file.
type onnxModel struct {
	irVersion int64
	producer  string
	opsets    map[string]int64 // by domain; "" is ai.onnx
	nodes     map[string]string
	functions map[string]bool // domains of which the model itself brings functions
	external  map[string]int64
	hasGraph  bool
}

// Field numbers of onnx.proto3.
const (
	modelIR, modelProducer, modelProducerVersion, modelGraph, modelOpset, modelFunctions = 1, 2, 3, 7, 8, 25

	graphNode, graphInitializer, graphSparse = 1, 5, 15
	nodeOp, nodeAttribute, nodeDomain        = 4, 5, 7
	attributeTensor, attributeGraph          = 5, 6
	attributeTensors, attributeGraphs        = 10, 11
	functionNode, functionDomain             = 7, 10
	tensorExternal, tensorLocation           = 13, 14
	entryKey, entryValue                     = 1, 2
	opsetDomain, opsetVersion                = 1, 2
)

// mostOnnxFields bounds what is looked at: a hostile file may hold many empty parts.
const mostOnnxFields = 5_000_000

var errTooManyFields = errors.New("it has too many parts to look at all of them")

type onnxReader struct {
	m    onnxModel
	left int
}

// readONNX reads a model's file, without its weights.
func readONNX(r io.ReaderAt, size int64) (onnxModel, error) {
	o := &onnxReader{left: mostOnnxFields, m: onnxModel{
		opsets: map[string]int64{}, nodes: map[string]string{}, functions: map[string]bool{}, external: map[string]int64{},
	}}
	err := message{r: &window{r: r}, end: size}.each(o.modelField)
	if err == nil && (o.m.irVersion == 0 || !o.m.hasGraph) {
		err = errors.New("it is no ONNX model: it has no version, or no graph")
	}
	return o.m, err
}

func (o *onnxReader) count() error {
	if o.left--; o.left < 0 {
		return errTooManyFields
	}
	return nil
}

func (o *onnxReader) modelField(f *field) error {
	if err := o.count(); err != nil {
		return err
	}
	switch f.number {
	case modelIR:
		o.m.irVersion = int64(f.value)
	case modelProducer, modelProducerVersion:
		o.m.producer = strings.TrimSpace(o.m.producer + " " + f.text())
	case modelGraph:
		o.m.hasGraph = true
		return f.body.each(o.graphField)
	case modelOpset:
		return o.opset(f)
	case modelFunctions:
		return f.body.each(func(f *field) error {
			switch f.number {
			case functionDomain:
				o.m.functions[f.text()] = true
			case functionNode:
				return f.body.each(o.nodeField(&node{}))
			}
			return o.count()
		})
	}
	return nil
}

func (o *onnxReader) opset(f *field) error {
	domain, version := "", int64(0)
	err := f.body.each(func(f *field) error {
		switch f.number {
		case opsetDomain:
			domain = f.text()
		case opsetVersion:
			version = int64(f.value)
		}
		return o.count()
	})
	if domain == "ai.onnx" {
		domain = ""
	}
	if len(o.m.opsets) < mostGlobals {
		o.m.opsets[domain] = max(o.m.opsets[domain], version)
	}
	return err
}

func (o *onnxReader) graphField(f *field) error {
	if err := o.count(); err != nil {
		return err
	}
	switch f.number {
	case graphNode:
		n := &node{}
		if err := f.body.each(o.nodeField(n)); err != nil {
			return err
		}
		if n.domain != "" && len(o.m.nodes) < mostGlobals {
			o.m.nodes[n.domain] = n.op
		}
	case graphInitializer:
		return o.tensor(f)
	case graphSparse:
		return f.body.each(o.sparseField)
	}
	return nil
}

func (o *onnxReader) sparseField(f *field) error {
	if f.number == 1 || f.number == 2 { // values, indices
		return o.tensor(f)
	}
	return o.count()
}

type node struct{ op, domain string }

func (o *onnxReader) nodeField(n *node) func(*field) error {
	return func(f *field) error {
		switch f.number {
		case nodeOp:
			n.op = f.text()
		case nodeDomain:
			n.domain = f.text()
		case nodeAttribute:
			return f.body.each(o.attributeField)
		}
		return o.count()
	}
}

func (o *onnxReader) attributeField(f *field) error {
	switch {
	case f.length < 0:
	case f.number == attributeTensor, f.number == attributeTensors:
		return o.tensor(f)
	case f.number == attributeGraph, f.number == attributeGraphs:
		return f.body.each(o.graphField)
	}
	return o.count()
}

// tensor notes the file that a tensor's data lies in, and how long that has to be.
func (o *onnxReader) tensor(f *field) error {
	isExternal := false
	entries := map[string]string{}
	err := f.body.each(func(f *field) error {
		switch f.number {
		case tensorLocation:
			isExternal = f.value == 1
		case tensorExternal:
			key, value := "", ""
			err := f.body.each(func(f *field) error {
				switch f.number {
				case entryKey:
					key = f.text()
				case entryValue:
					value = f.text()
				}
				return o.count()
			})
			if err != nil {
				return err
			}
			entries[key] = value
		}
		return o.count()
	})
	if err != nil || !isExternal {
		return err
	}
	offset, _ := strconv.ParseInt(entries["offset"], 10, 62) // absent: 0
	length, _ := strconv.ParseInt(entries["length"], 10, 62) // absent: the rest of the file
	if location := entries["location"]; len(o.m.external) < mostGlobals {
		o.m.external[location] = max(o.m.external[location], offset+length)
	}
	return nil
}

// ortSupport is what a release of ONNX Runtime loads.
type ortSupport struct {
	release   string
	ir, opset int64
}

// ortReleases were measured: the highest versions with which each release made a session of a small model.
func ortReleases() []ortSupport {
	return []ortSupport{
		{"1.15", 9, 19},
		{"1.16", 9, 19},
		{"1.17", 9, 20},
		{"1.18", 10, 21},
		{"1.19", 10, 21},
		{"1.20", 10, 21},
		{"1.21", 10, 22},
		{"1.22", 10, 22},
		{"1.23", 11, 23},
		{"1.24", 13, 25},
		{"1.25", 13, 26},
		{"1.26", 13, 26},
	}
}

// supportOf gives what an installed ONNX Runtime loads, nil when that is not known. A release newer than all that are known is not.
func supportOf(installed string) *ortSupport {
	v, ok := parseVersion(installed)
	if !ok {
		return nil
	}
	for _, s := range ortReleases() {
		if w, _ := parseVersion(s.release); v.part(0) == w.part(0) && v.part(1) == w.part(1) {
			return &s
		}
	}
	return nil
}

// knownDomain says whether ONNX Runtime brings the operators of a domain.
func knownDomain(domain string) bool {
	switch domain {
	case "", "ai.onnx", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview", "ai.onnx.preview.training", "com.microsoft", "com.microsoft.nchwc",
		"com.microsoft.experimental", "com.microsoft.dml", "com.ms.internal.nhwc", "org.pytorch.aten":
		return true
	}
	return false
}

// onnxFile looks at one ONNX model.
func (s *subject) onnxFile(f member) {
	file, err := os.Open(s.abs(f.path))
	if err != nil {
		s.found.add(Warning, CheckIncomplete, f.path, 0, "", "it cannot be read: %v", err)
		return
	}
	defer func() { _ = file.Close() }() // it was only read from
	m, err := readONNX(file, f.size)
	switch {
	case errors.Is(err, errTooManyFields):
		s.found.add(Warning, CheckIncomplete, f.path, 0, "", "%v", err)
		return
	case err != nil:
		s.found.add(Error, WeightsCorrupt, f.path, 0, "export or copy it again", "the ONNX model cannot be read: %v", err)
		return
	}
	s.onnxVersions(f.path, &m)
	s.onnxDomains(f.path, &m)
	s.onnxExternal(f.path, &m)
}

// onnxTask looks at what an ONNX model that the server itself runs is to be served as.
func (s *subject) onnxTask() {
	if s.archive.Manifest.Runtime != archive.RuntimeONNX {
		return
	}
	const name = "model-config.yaml"
	text, ok := s.readText(name, mostText)
	if from := s.archive.BackendConfig; from != "" { // the server's own one; what it adds to the model's stands at its end
		var err error
		text, err = readHead(from, mostText)
		ok = err == nil
	}
	if !ok {
		return
	}
	_, entries, _, err := archive.ReadConfig(text)
	if err != nil {
		return // configFindings tells, or it was not opened
	}
	if _, err := settings.Parse(text); err != nil {
		wrong, _ := errors.AsType[*settings.Error](err)
		s.found.add(Error, ConfigRefused, name, valueLine(text, wrong.Key), "correct the key below onnx; docs/onnx.md has all of them", "%s", wrong.Text)
		return
	}
	for _, e := range entries {
		if e.Key == "handler" && !settings.Known(e.Text) {
			s.found.add(Error, HandlerMissing, name, e.Line, "write one of these, or leave the key out: tensors go in and out then",
				"the handler %q is none of %s, which ONNX models can have", e.Text, settings.Listed())
		}
	}
}

// valueLine is the line of a YAML file on which a key stands, handler or one below onnx; 0 when it is not found.
func valueLine(text []byte, key string) int {
	below := 0
	if key != "handler" {
		below = max(bytes.Index(text, []byte("onnx")), 0)
	}
	at := regexp.MustCompile(`(?:^|[\s{,])["']?(` + regexp.QuoteMeta(key) + `)["']?\s*:`).FindSubmatchIndex(text[below:])
	if key == "" || at == nil {
		return 0
	}
	return 1 + bytes.Count(text[:below+at[2]], []byte("\n"))
}

// ortInstalled gives the version of ONNX Runtime in the model's Python, or in the server for its own ONNX models; "" for none.
func (s *subject) ortInstalled() (name, version string) {
	if s.runtime == "" && s.onnxRuntime != "" {
		return "the server's ONNX Runtime", s.onnxRuntime
	}
	if s.answer == nil {
		return "", ""
	}
	for _, name := range []string{"onnxruntime", "onnxruntime-gpu", "onnxruntime-openvino", "onnxruntime-training", "ort-nightly"} {
		if version := s.answer.Distributions[name]; version != "" {
			return name, version
		}
	}
	return "", ""
}

func (s *subject) onnxVersions(name string, m *onnxModel) {
	pkg, installed := s.ortInstalled()
	if installed == "" {
		return // the handler's import tells, if it uses it
	}
	support := supportOf(installed)
	if support == nil {
		return
	}
	hint := "install a newer onnxruntime, or export the model for an older one (target_opset, ir_version)"
	if m.irVersion > support.ir {
		s.found.add(Error, OnnxVersion, name, 0, hint, "the model has IR version %d, and %s %s loads %d at most", m.irVersion, pkg, installed, support.ir)
	}
	if v := m.opsets[""]; v > support.opset {
		s.found.add(Error, OnnxVersion, name, 0, hint, "the model has opset %d, and %s %s loads %d at most", v, pkg, installed, support.opset)
	}
}

func (s *subject) onnxDomains(name string, m *onnxModel) {
	for _, domain := range slices.Sorted(maps.Keys(m.nodes)) {
		if knownDomain(domain) || m.functions[domain] {
			continue
		}
		if domain == "ai.onnx.contrib" {
			if s.answer != nil && s.answer.Distributions["onnxruntime-extensions"] == "" {
				s.found.add(Warning, OnnxDomain, name, 0, "install onnxruntime-extensions for the model's Python, and register its library in the session's options",
					"operator %s is of the domain %s, which onnxruntime-extensions brings, and that is not installed", m.nodes[domain], domain)
			}
			continue
		}
		s.found.add(Warning, OnnxDomain, name, 0, "the handler has to register the library that has them (SessionOptions.register_custom_ops_library)",
			"operator %s is of the domain %q, which ONNX Runtime does not bring", m.nodes[domain], domain)
	}
}

func (s *subject) onnxExternal(name string, m *onnxModel) {
	for _, location := range slices.Sorted(maps.Keys(m.external)) {
		at := path.Join(path.Dir(name), location)
		if location == "" || !filepath.IsLocal(filepath.FromSlash(at)) {
			s.found.add(Error, OnnxExternalData, name, 0, "save the model again with its data beside it", "its weights are to lie in %q, which is outside of the archive", location)
			continue
		}
		info, err := os.Stat(s.abs(at))
		switch {
		case err != nil:
			s.found.add(Error, OnnxExternalData, name, 0, fmt.Sprintf("add %s to the archive by --extra-files", location), "its weights lie in %s, which the archive does not have", at)
		case info.Size() < m.external[location]:
			s.found.add(Error, OnnxExternalData, name, 0, "copy or export it again", "its weights need %d bytes of %s, which has %d", m.external[location], at, info.Size())
		}
	}
}
