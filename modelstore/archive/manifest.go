package archive

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/malformed"
)

const (
	manifestPath = "MAR-INF/MANIFEST.json"
	configName   = "model-config.yaml" // what torch-model-archiver calls it in its examples, and the settings of a folder with a bare ONNX model
)

// The runtimes that TorchServe knows.
const (
	RuntimePython  = "python"
	RuntimePython3 = "python3"
	RuntimeLSP     = "LSP"
)

// readMetadata reads the manifest and the settings of an unpacked archive.
func (a *Archive) readMetadata(limits Limits, logger *slog.Logger) error {
	a.Manifest = Manifest{Runtime: RuntimePython}
	text, err := readSmall(filepath.Join(a.Dir, manifestPath), limits.MetadataBytes)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if is, err := a.readTriton(limits, logger); is || err != nil {
			return err
		}
		if is, err := a.readPlugin(limits, logger); is || err != nil {
			return err
		}
		if is, err := a.readEnsemble(limits, logger); is || err != nil {
			return err
		}
		if err := a.readBroken(); err != nil {
			return err
		}
		if !a.readONNX() {
			return nil
		}
		a.Settings, err = a.readSettings(limits, logger)
		return err
	case err != nil:
		return manifestFault(err)
	}
	a.HasManifest = true
	if a.Manifest, err = parseManifest(text); err != nil {
		return manifestFault(err)
	}
	warnOfManifest(&a.Manifest, a.URL, logger)
	if is, err := a.readPlugin(limits, logger); is || err != nil {
		return err
	}
	a.Settings, err = a.readSettings(limits, logger)
	return err
}

// manifestFault has the text of TorchServe, which names a file that does not exist any more; the cause tells the rest.
func manifestFault(cause error) error {
	return &fault.Error{
		Kind: fault.InvalidModel, Message: "Failed to parse signature.json.", Detail: cause.Error(),
		Hint: "it is " + manifestPath + " that could not be read", Cause: fmt.Errorf("%s: %w", manifestPath, cause),
	}
}

func warnOfManifest(m *Manifest, url string, logger *slog.Logger) {
	if m.ArchiverVersion == "" {
		logger.Warn("Model archive version is not defined. Please upgrade to torch-model-archiver 0.2.0 or higher", slog.String("url", url))
	}
	if m.CreatedOn == "" {
		logger.Warn("Model archive createdOn is not defined. Please upgrade to torch-model-archiver 0.2.0 or higher", slog.String("url", url))
	}
}

// readSmall reads a regular file of at most limit bytes.
func readSmall(path string, limit int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("it is not a regular file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read from
	text, err := io.ReadAll(io.LimitReader(file, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(text)) > limit {
		return nil, fmt.Errorf("it is larger than %d bytes", limit)
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), nil
}

// object is a JSON object whose keys are told apart by case, unlike those of a Go struct.
type object map[string]json.RawMessage

func parseManifest(text []byte) (Manifest, error) {
	var top object
	if err := json.Unmarshal(text, &top); err != nil {
		return Manifest{}, describeJSON(text, err)
	}
	if top == nil {
		return Manifest{}, errors.New("it is not a JSON object")
	}
	m := Manifest{Runtime: RuntimePython}
	var model object
	if raw, ok := top["model"]; ok {
		if err := json.Unmarshal(raw, &model); err != nil {
			return Manifest{}, errors.New("model: " + malformed.JSON(err))
		}
	}
	err := errors.Join(
		top.texts(map[string]*string{
			"createdOn": &m.CreatedOn, "description": &m.Description, "archiverVersion": &m.ArchiverVersion, "runtime": &m.Runtime,
		}),
		model.texts(map[string]*string{
			"modelName": &m.Model.ModelName, "modelVersion": &m.Model.ModelVersion, "description": &m.Model.Description,
			"handler": &m.Model.Handler, "envelope": &m.Model.Envelope, "serializedFile": &m.Model.SerializedFile,
			"modelFile": &m.Model.ModelFile, "requirementsFile": &m.Model.RequirementsFile, "configFile": &m.Model.ConfigFile,
		}),
	)
	if err != nil {
		return Manifest{}, err
	}
	if m.Runtime != RuntimePython && m.Runtime != RuntimePython3 && m.Runtime != RuntimeLSP && m.Runtime != RuntimePlugin {
		m.Runtime = ""
	}
	return m, nil
}

// texts reads the keys that are texts. Numbers and booleans are taken for their own text, as TorchServe does: "modelVersion": 1.0.
func (o object) texts(into map[string]*string) error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(into)) {
		raw, ok := o[key]
		if !ok {
			continue
		}
		text, err := scalar(raw)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", key, err))
			continue
		}
		*into[key] = text
	}
	return errors.Join(errs...)
}

func scalar(raw json.RawMessage) (string, error) {
	switch raw[0] {
	case '"':
		var text string
		err := json.Unmarshal(raw, &text)
		return text, err
	case '{', '[':
		return "", errors.New("it has to be a text")
	case 'n': // null
		return "", nil
	default:
		return string(raw), nil
	}
}

// describeJSON adds the line to a syntax error.
func describeJSON(text []byte, err error) error {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return errors.New(malformed.JSON(err))
	}
	line := 1 + bytes.Count(text[:min(int(syntax.Offset), len(text))], []byte("\n"))
	return fmt.Errorf("line %d: %w", line, err)
}
