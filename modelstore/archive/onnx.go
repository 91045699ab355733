package archive

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
)

// RuntimeONNX is the runtime of models that are one ONNX file; no manifest can name it.
const RuntimeONNX = "onnx"

// copyONNX copies a bare ONNX file to where folders have theirs.
func (u *unpacker) copyONNX(ctx context.Context, p *packed) error {
	if err := checkONNX(p.file, p.size()); err != nil {
		return err
	}
	if err := u.room(p.size()); err != nil {
		return err
	}
	u.announced = p.size()
	return u.file(ctx, onnxName, 0o644, io.NewSectionReader(p.file, 0, p.size()))
}

// checkONNXFile is checkONNX for the file at path.
func checkONNXFile(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read from
	info, err := file.Stat()
	if err != nil {
		return err
	}
	return checkONNX(file, info.Size())
}

// The fields of ONNX's ModelProto that say that it is one.
const (
	onnxVersion = 1
	onnxGraph   = 7
	onnxOpset   = 8

	wireVarint, wire64, wireBytes, wire32 = 0, 1, 2, 5

	maxONNXFields = 100_000
	opsetsSince   = 3 // the version since which a model has to say which operators it means
)

// checkONNX walks over the outermost fields of an ONNX file: a file that is cut off has one that goes on beyond its end, or lacks some.
func checkONNX(r io.ReaderAt, size int64) error {
	var version uint64
	seen := map[uint64]bool{}
	at := int64(0)
	for fields := 0; at < size; fields++ {
		if fields == maxONNXFields {
			return notONNX(size)
		}
		number, value, next, err := onnxField(r, at, size)
		if err != nil {
			return err
		}
		if number == onnxVersion {
			version = value
		}
		seen[number] = true
		at = next
	}
	switch {
	case size == 0:
		return errors.New("the file is empty")
	case !seen[onnxVersion] || version == 0:
		return notONNX(size)
	case !seen[onnxGraph], version >= opsetsSince && !seen[onnxOpset]:
		return refuse("copy it again", "it is cut off, or no ONNX file: the %d bytes that are there hold no whole model", size)
	}
	return nil
}

func notONNX(size int64) error {
	return refuse("export the model again", "its %d bytes are no ONNX file", size)
}

// onnxField reads one field at at: its number, its value when it is a number, and where the next one begins.
func onnxField(r io.ReaderAt, at, size int64) (number, value uint64, next int64, err error) {
	head := make([]byte, min(2*binary.MaxVarintLen64, size-at))
	if n, err := r.ReadAt(head, at); n < len(head) {
		if errors.Is(err, io.EOF) {
			err = ErrChanged
		}
		return 0, 0, 0, err
	}
	tag, n := binary.Uvarint(head)
	number = tag >> 3
	if n <= 0 || number == 0 {
		return 0, 0, 0, notONNX(size)
	}
	next = at + int64(n)
	length := uint64(0)
	switch tag & 7 {
	case wireVarint, wireBytes:
		v, n := binary.Uvarint(head[n:])
		switch {
		case n < 0:
			return 0, 0, 0, notONNX(size)
		case n == 0:
			return 0, 0, 0, cutONNX(size, "goes on")
		}
		next += int64(n)
		if value = v; tag&7 == wireBytes {
			length = v
		}
	case wire64:
		length = 8
	case wire32:
		length = 4
	default:
		return 0, 0, 0, notONNX(size)
	}
	if length > uint64(size-next) {
		return 0, 0, 0, cutONNX(size, "needs more")
	}
	return number, value, next + int64(length), nil
}

func cutONNX(size int64, what string) error {
	return refuse("copy it again", "it is cut off, or no ONNX file: %d bytes are there, and its last part %s", size, what)
}

// readONNX makes the manifest of a folder that has none, but has a model.onnx.
func (a *Archive) readONNX() bool {
	info, err := os.Stat(filepath.Join(a.Dir, onnxName))
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	a.Manifest.Runtime = RuntimeONNX
	a.Manifest.Model = ManifestModel{ModelName: a.layout.name, ModelVersion: a.layout.version, SerializedFile: onnxName}
	if info, err := os.Stat(filepath.Join(a.Dir, configName)); err == nil && info.Mode().IsRegular() {
		a.Manifest.Model.ConfigFile = configName
	}
	return true
}
