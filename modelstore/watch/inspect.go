package watch

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

// Bounds of a look into an archive. What goes beyond them is for the one who opens it to refuse, with a better reason.
const (
	maxDirectoryBytes = 128 << 20 // read of a zip file to list it
	maxZipEntries     = 200_000
	maxTarEntries     = 1_000_000
	maxFields         = 1_000_000 // of an ONNX file's outermost message
	ratioFloor        = 256 << 20 // unpacked bytes below which the ratio is not looked at
	maxRatio          = 100       // unpacked bytes for each packed one
)

// errEnough ends a look that has reached a bound.
var errEnough = errors.New("enough was read")

// partial is why a file is no complete archive.
type partial string

func (p partial) Error() string { return string(p) }

// inspect says whether a file is a complete archive.
func inspect(ctx context.Context, l look) verdict {
	// Not blocking, should it have become a pipe.
	file, err := os.OpenFile(l.file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return judgeError(err)
	}
	defer func() { _ = file.Close() }() // it was only read from
	if info, err := file.Stat(); err != nil || !same(info, l.stat) {
		return verdict{changed: true}
	}
	size := l.stat.Size()
	switch l.kind {
	case Mar:
		err = zipProblem(ctx, file, size, l.deep)
	case Tarball:
		err = tarballProblem(ctx, file, size)
	case ONNX:
		err = onnxProblem(ctx, file, size)
	case Folder, Plugin: // nothing but silence tells
	}
	if info, statErr := os.Stat(l.file); statErr != nil || !same(info, l.stat) || ctx.Err() != nil {
		return verdict{changed: true}
	}
	return judgeError(err)
}

func judgeError(err error) verdict {
	p, known := errors.AsType[partial](err)
	switch {
	case err == nil, errors.Is(err, errEnough):
		return verdict{}
	case known:
		return verdict{problem: string(p)}
	case errors.Is(err, fs.ErrNotExist):
		return verdict{changed: true}
	default:
		return verdict{problem: unreadable(err), passing: true}
	}
}

// same says whether a file is still the one that it was, and has not been written to.
func same(a, b fs.FileInfo) bool { return bytes.Equal(line(nil, "", a), line(nil, "", b)) }

// damage makes a partial of what a reader of a format says, but for errors of the file system.
func damage(err error, format string, args ...any) error {
	_, system := errors.AsType[*fs.PathError](err)
	if err == nil || system || errors.Is(err, errEnough) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return partial(fmt.Sprintf(format, args...))
}

// zipProblem looks for what a zip file lacks: its directory, at its end, must be there, and the entries that it names must begin and end within the
// file. When that says too little, each entry is read and compared with its checksum.
func zipProblem(ctx context.Context, file io.ReaderAt, size int64, deep bool) error {
	directory := &metered{r: file, left: maxDirectoryBytes}
	r, err := zip.NewReader(directory, size)
	directory.done = true
	if errors.Is(err, zip.ErrFormat) {
		return noDirectory(file, size)
	}
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // names are looked at when it is unpacked
		return damage(err, "the zip file's directory is cut off or damaged (%v): %d bytes are there", err, size)
	}
	for i, f := range r.File {
		if i == maxZipEntries {
			return errEnough
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		start, err := f.DataOffset()
		if err != nil {
			return damage(err, "the zip file's entry %q is not where its directory says: %d bytes are there", f.Name, size)
		}
		if f.CompressedSize64 > uint64(size) || start > size-int64(f.CompressedSize64) {
			return partial(fmt.Sprintf("the zip file's entry %q goes beyond its end: %d bytes are there", f.Name, size))
		}
	}
	if !deep {
		return nil
	}
	left := &unpacked{packed: size, floor: ratioFloor}
	for _, f := range r.File {
		if err := zipEntry(ctx, f, left); err != nil {
			return damage(err, "the zip file's entry %q is damaged or not yet written (%v): %d bytes are there", f.Name, err, size)
		}
	}
	return nil
}

// zipEntry reads an entry to its end, where its checksum is compared.
func zipEntry(ctx context.Context, f *zip.File, left *unpacked) error {
	const encrypted = 1
	if strings.HasSuffix(f.Name, "/") || f.Flags&encrypted != 0 {
		return nil
	}
	r, err := f.Open()
	if errors.Is(err, zip.ErrAlgorithm) {
		return nil // for the one who opens it to refuse
	}
	if err != nil {
		return err
	}
	return errors.Join(left.discard(&stoppable{stop: ctx.Err, r: r}), r.Close())
}

// noDirectory says why a file is no zip file, or which part is missing.
func noDirectory(file io.ReaderAt, size int64) error {
	head := make([]byte, 32) //nolint:mnd // enough to show
	n, err := file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	head = head[:n]
	switch {
	case size == 0:
		return partial("the file is empty")
	case len(bytes.Trim(head, "\x00")) == 0:
		return partial(fmt.Sprintf("the file's beginning is not written yet: its size is %d bytes", size))
	case bytes.HasPrefix(head, []byte("PK")):
		return partial(fmt.Sprintf("the zip file's directory, which is at its end, is missing: %d bytes are there", size))
	case bytes.HasPrefix(head, []byte("version https://git-lfs")):
		return partial("the file is a Git LFS pointer: run \"git lfs pull\" where it came from")
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		return partial("the file is compressed with gzip, and a .mar is a zip file: name it .tar.gz if it is one")
	default:
		return partial(fmt.Sprintf("the file is no zip file: it begins with %.24q, and %d bytes are there", head, size))
	}
}

// tarballProblem looks for what a compressed tar file lacks: it is unpacked to its end, where checksum and length are.
func tarballProblem(ctx context.Context, file io.Reader, size int64) error {
	const buffer = 256 << 10
	if size == 0 {
		return partial("the file is empty")
	}
	z, err := gzip.NewReader(bufio.NewReaderSize(&stoppable{stop: ctx.Err, r: file}, buffer))
	if errors.Is(err, gzip.ErrHeader) {
		return partial(fmt.Sprintf("the file is not compressed with gzip, as all but a .mar has to be: %d bytes are there", size))
	}
	if err == nil {
		left := &unpacked{packed: size, floor: ratioFloor}
		if err = tarProblem(left.count(z)); err == nil {
			// What follows the end of the tar file, and is not compressed, is padding.
			if err = left.discard(z); err == nil || errors.Is(err, gzip.ErrHeader) {
				return nil
			}
		}
	}
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		return damage(err, "the file ends too early: %d bytes are there", size)
	}
	return damage(err, "the file is damaged (%v): %d bytes are there", err, size)
}

// tarProblem reads a tar file to its end.
func tarProblem(r io.Reader) error {
	t := tar.NewReader(r)
	for entries := 0; ; entries++ {
		_, err := t.Next()
		switch {
		case errors.Is(err, io.EOF) && entries == 0:
			return errors.New("there is nothing in it")
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && !errors.Is(err, tar.ErrInsecurePath):
			return err
		case entries == maxTarEntries:
			return errEnough
		}
	}
}

// onnxProblem looks for what an ONNX file lacks: it is a protobuf message, whose parts have their lengths before them, and one is the graph.
func onnxProblem(ctx context.Context, file io.ReaderAt, size int64) error {
	if size == 0 {
		return partial("the file is empty")
	}
	const graph, delimited = 7, 2
	at, found := int64(0), false
	for fields := 0; at < size; fields++ {
		if fields == maxFields {
			return errEnough
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		head := make([]byte, 2*binary.MaxVarintLen64)
		n, err := file.ReadAt(head, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		number, wire, length, ok := field(head[:n])
		if !ok {
			return partial(fmt.Sprintf("the file is no ONNX model, or damaged at byte %d of %d", at, size))
		}
		if length < 0 || length > size-at {
			return partial(fmt.Sprintf("the ONNX file ends too early: %d bytes are there", size))
		}
		found = found || number == graph && wire == delimited
		at += length
	}
	if !found {
		return partial(fmt.Sprintf("the ONNX file has no graph: %d bytes are there", size))
	}
	return nil
}

// field reads the beginning of a protobuf field. length is that of the whole field, -1 when its beginning is cut off; ok is false for what is no field.
func field(head []byte) (number, wire uint64, length int64, ok bool) {
	const wireBits, wireMask = 3, 7
	tag, n := binary.Uvarint(head)
	if n == 0 {
		return 0, 0, -1, true
	}
	number, wire = tag>>wireBits, tag&wireMask
	if n < 0 || number == 0 {
		return 0, 0, 0, false
	}
	length, ok = fieldLength(head[n:], wire)
	if length >= 0 {
		length += int64(n)
	}
	return number, wire, length, ok
}

// fieldLength gives how many bytes a protobuf field has after its tag: -1 when they are not all there. ok is false for what is no field.
func fieldLength(rest []byte, wire uint64) (length int64, ok bool) {
	const varint, fixed64, delimited, fixed32 = 0, 1, 2, 5
	switch wire {
	case fixed64:
		return 8, true //nolint:mnd // bytes
	case fixed32:
		return 4, true //nolint:mnd // bytes
	case varint, delimited:
		value, n := binary.Uvarint(rest)
		switch {
		case n < 0 || value > 1<<62:
			return 0, false
		case n == 0:
			return -1, true
		case wire == varint:
			return int64(n), true
		}
		return int64(n) + int64(value), true
	default:
		return 0, false
	}
}

// metered reads not more than so many bytes until it is done.
type metered struct {
	r    io.ReaderAt
	left int64
	done bool
}

func (m *metered) ReadAt(p []byte, off int64) (int, error) {
	if m.done {
		return m.r.ReadAt(p, off)
	}
	if m.left -= int64(len(p)); m.left < 0 {
		return 0, errEnough
	}
	return m.r.ReadAt(p, off)
}

// unpacked counts what comes out of an archive, and has enough of one that is made to fill disks.
type unpacked struct{ packed, bytes, floor int64 }

func (u *unpacked) grow(n int) error {
	u.bytes += int64(n)
	if u.bytes > u.floor && u.bytes/maxRatio > u.packed {
		return errEnough
	}
	return nil
}

func (u *unpacked) discard(r io.Reader) error {
	_, err := io.Copy(io.Discard, u.count(r))
	return err
}

func (u *unpacked) count(r io.Reader) io.Reader { return &counted{u, r} }

type counted struct {
	*unpacked
	r io.Reader
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	if full := c.grow(n); full != nil {
		return n, full
	}
	return n, err
}

// stoppable stops reading when it is no longer wanted.
type stoppable struct {
	stop func() error
	r    io.Reader
}

func (s *stoppable) Read(b []byte) (int, error) {
	if err := s.stop(); err != nil {
		return 0, err
	}
	return s.r.Read(b)
}
