package archive

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/google/uuid"

	"github.com/flambeau-serve/flambeau/internal/infer"
)

// The values of Settings.Swap.
const (
	SwapDual    = "dual"
	SwapInPlace = "in_place"
)

// What the samples of one model may be at most.
const (
	maxSamples     = 16
	maxSampleBytes = 16 << 20
	maxSampleCount = 100
)

// warmUpFolder holds the samples of a model whose configuration file does not name any.
const warmUpFolder = "warmup"

// warmUp reads the key warmup: a list of files, each by its name or as a map. "false" and an empty list are no samples, not even those of the folder.
func (r *settingsReader) warmUp(e yamlEntry) {
	if on, ok := e.boolean(); ok && !on {
		r.s.WarmUp = []WarmUpSample{}
		return
	}
	var nodes []ast.Node
	switch value := e.value.(type) {
	case *ast.SequenceNode:
		nodes = value.Values
	case *ast.StringNode, *ast.MappingNode:
		nodes = []ast.Node{value}
	default:
		r.warn(e, "a list of files, or of maps with file, contentType, name and count")
		return
	}
	samples := make([]WarmUpSample, 0, len(nodes))
	for _, node := range nodes {
		sample, ok := r.warmUpSample(e.with(node))
		if !ok {
			r.warn(e.with(node), "a file of the archive, or a map with file, contentType, name and count")
			return
		}
		samples = append(samples, sample)
	}
	r.s.WarmUp = samples
}

// warmUpSample reads one sample.
func (r *settingsReader) warmUpSample(e yamlEntry) (WarmUpSample, bool) {
	sample := WarmUpSample{Count: 1}
	mapping, ok := e.value.(*ast.MappingNode)
	if !ok {
		sample.File, ok = e.text()
		return sample, ok && sample.File != ""
	}
	texts := map[string]*string{"file": &sample.File, "contentType": &sample.ContentType, "name": &sample.Name}
	for _, sub := range e.entries(mapping) {
		dst, known := texts[sub.key]
		switch {
		case known:
			if *dst, ok = sub.text(); !ok {
				r.warn(sub, "a text")
				return sample, false
			}
		case sub.key == "count":
			r.count(sub, 1, func(n int) { sample.Count = n })
			if sample.Count > maxSampleCount {
				r.warn(sub, "at most "+strconv.Itoa(maxSampleCount))
				sample.Count = maxSampleCount
			}
		default:
			r.logger.Warn("key of a warm-up sample is not known", slog.String("key", sub.key), slog.Int("line", sub.line))
		}
	}
	return sample, sample.File != ""
}

// Sample is one warm-up request.
type Sample struct {
	File string // in the archive
	Item infer.Item
}

// Samples gives the requests that a new worker is to answer before it takes any other: those that the key warmup of the model's configuration file
// names, or else one for each file of the archive's folder warmup/, by their names. There are none if there is neither. It reads the files anew at each call.
func (a *Archive) Samples() ([]Sample, error) {
	if a.Triton != nil && len(a.Triton.WarmUp) > 0 && a.Settings.WarmUp == nil {
		return a.tritonSamples()
	}
	root, err := os.OpenRoot(a.Dir)
	if err != nil {
		return nil, fmt.Errorf("the model's folder: %w", err)
	}
	items, err := a.samples(root)
	return items, errors.Join(err, root.Close())
}

func (a *Archive) samples(root *os.Root) ([]Sample, error) {
	samples := a.Settings.WarmUp
	if samples == nil {
		var err error
		if samples, err = folderSamples(root); err != nil {
			return nil, err
		}
	}
	if len(samples) > maxSamples {
		return nil, fmt.Errorf("there are %d warm-up samples, and at most %d are used: remove some", len(samples), maxSamples)
	}
	var items []Sample
	for _, s := range samples {
		data, err := readSample(root, s.File)
		if err != nil {
			return nil, fmt.Errorf("the warm-up sample %s cannot be used: %w", s.File, err)
		}
		for range max(1, s.Count) {
			items = append(items, Sample{s.File, s.item(data)})
		}
	}
	return items, nil
}

// folderSamples lists the files of the folder warmup/.
func folderSamples(root *os.Root) ([]WarmUpSample, error) {
	entries, err := fs.ReadDir(root.FS(), warmUpFolder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		info, statErr := root.Stat(warmUpFolder)
		if statErr == nil && !info.IsDir() { // a file that is called so is the handler's business
			return nil, nil
		}
		return nil, fmt.Errorf("the folder with warm-up samples: %w", err)
	}
	var samples []WarmUpSample
	for _, e := range entries {
		if !e.IsDir() && !ignored(e.Name()) {
			samples = append(samples, WarmUpSample{File: path.Join(warmUpFolder, e.Name()), Count: 1})
		}
	}
	return samples, nil
}

// readSample reads a file of the model; os.Root keeps it from being one from elsewhere.
func readSample(root *os.Root, name string) ([]byte, error) {
	info, err := root.Stat(filepath.FromSlash(name))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("the archive holds no such file; add it with torch-model-archiver's --extra-files, or correct warmup in the model's configuration file")
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, errors.New("it is not a regular file")
	case info.Size() > maxSampleBytes:
		return nil, fmt.Errorf("it has %d bytes, and at most %d can be used", info.Size(), maxSampleBytes)
	}
	return root.ReadFile(filepath.FromSlash(name))
}

// item makes a request as a client would send it. Requests of one sample share its bytes.
func (s *WarmUpSample) item(data []byte) infer.Item {
	contentType := s.ContentType
	if contentType == "" {
		contentType = typeOf(s.File)
	}
	name := s.Name
	if name == "" {
		name = "body"
	}
	media, _, _ := strings.Cut(contentType, ";")
	return infer.Item{
		ID:     uuid.NewString(),
		Header: []infer.Field{{Name: "content-type", Value: contentType}, {Name: "content-length", Value: strconv.Itoa(len(data))}},
		Parts:  []infer.Part{{Name: name, ContentType: strings.TrimSpace(media), Data: slices.Clip(data)}},
	}
}

// typeOf is the content type of a sample's file by its name. It does not ask the system, so that it is the same everywhere.
func typeOf(name string) string {
	switch strings.ToLower(path.Ext(name)) {
	case ".json":
		return "application/json"
	case ".txt":
		return "text/plain"
	case ".csv":
		return "text/csv"
	case ".html", ".htm":
		return "text/html"
	case ".xml":
		return "application/xml"
	case ".jpg", ".jpeg":
		return "image/jpeg"
	case ".png":
		return "image/png"
	case ".gif":
		return "image/gif"
	case ".bmp":
		return "image/bmp"
	case ".webp":
		return "image/webp"
	case ".tif", ".tiff":
		return "image/tiff"
	case ".wav":
		return "audio/wav"
	case ".mp3":
		return "audio/mpeg"
	case ".flac":
		return "audio/flac"
	case ".mp4":
		return "video/mp4"
	case ".pdf":
		return "application/pdf"
	default:
		return "application/octet-stream"
	}
}
