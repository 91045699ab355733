package archive

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// unpack unpacks an archive file of the store. The folder appears whole or not at all.
func (s *Store) unpack(ctx context.Context, file string, a *Archive) (err error) {
	packed, err := os.Open(file)
	if err != nil {
		return err
	}
	defer func() { _ = packed.Close() }() // it was only read from
	info, err := packed.Stat()
	if err != nil {
		return err
	}
	if a.root, err = s.newRoot(); err != nil {
		return err
	}
	part := a.root + partSuffix
	if err := os.Mkdir(part, 0o700); err != nil {
		return err
	}
	dir, err := os.OpenRoot(part)
	if err != nil {
		return err
	}
	u := &unpacker{
		root: dir, made: map[string]bool{},
		budget: budget{limits: s.limits, packed: info.Size()}, buf: make([]byte, copyBuffer),
	}
	if strings.HasSuffix(file, ".mar") {
		a.Problem, err = u.zip(ctx, packed, info.Size())
	} else {
		err = u.tarGzip(ctx, packed)
	}
	if err = errors.Join(err, dir.Close()); err != nil {
		return err
	}
	if a.Problem != "" {
		s.logger.Warn("the archive is not a zip file; it is taken for an empty one, as TorchServe does",
			slog.String("file", file), slog.String("problem", a.Problem))
	}
	a.Dir = a.root
	return os.Rename(part, a.root)
}

// unpacker writes the entries of one archive below one folder.
type unpacker struct {
	root   *os.Root
	made   map[string]bool // entries so far, true for files
	budget budget
	buf    []byte
}

// zip unpacks a .mar. problem tells why the file is no zip file at all: TorchServe takes it for one without entries.
func (u *unpacker) zip(ctx context.Context, file io.ReaderAt, size int64) (problem string, err error) {
	directory := &metered{r: file, left: maxDirectoryBytes}
	r, err := zip.NewReader(directory, size)
	if errors.Is(err, zip.ErrFormat) {
		head := make([]byte, 64)
		n, readErr := file.ReadAt(head, 0)
		if readErr != nil && !errors.Is(readErr, io.EOF) {
			return "", readErr
		}
		if head = head[:n]; !bytes.HasPrefix(head, []byte("PK")) {
			return notZip(head), nil
		}
		return "", errors.New("the zip file is cut off or damaged: its directory, at the end, is missing")
	}
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // names are looked at below
		return "", err
	}
	directory.done = true
	for _, f := range r.File {
		if err := u.zipEntry(ctx, f); err != nil {
			return "", err
		}
	}
	return "", nil
}

// maxDirectoryBytes is how much of a zip file may be read to list it: room for a million entries, and little enough to keep in memory.
const maxDirectoryBytes = 128 << 20

// metered refuses to read more than left bytes until it is done.
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
		return 0, refuse("", "its list of entries is larger than %d bytes", maxDirectoryBytes)
	}
	return m.r.ReadAt(p, off)
}

// notZip describes a file that is not a zip file for somebody who thought it was one.
func notZip(head []byte) string {
	switch {
	case len(head) == 0:
		return "the file is empty"
	case bytes.HasPrefix(head, []byte("version https://git-lfs")):
		return "the file is a Git LFS pointer: run \"git lfs pull\" where it came from"
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		return "the file is compressed with gzip: name it .tar.gz if it is one"
	default:
		return fmt.Sprintf("the file begins with %.24q, a zip file with \"PK\"", head)
	}
}

func (u *unpacker) zipEntry(ctx context.Context, f *zip.File) error {
	name, err := u.name(f.Name)
	if err != nil || name == "." {
		return err
	}
	if strings.HasSuffix(f.Name, "/") {
		return u.folder(name)
	}
	if !f.Mode().IsRegular() {
		return notRegular(f.Name, f.Mode())
	}
	if f.Flags&1 != 0 {
		return refuse("make the archive without a password", "its entry %q is encrypted", f.Name)
	}
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("entry %q: %w", f.Name, err)
	}
	return errors.Join(u.file(ctx, name, f.Mode(), r), r.Close())
}

// tarGzip unpacks a tar file compressed with gzip. The first component of each name is dropped, as TorchServe does.
func (u *unpacker) tarGzip(ctx context.Context, file io.Reader) error {
	z, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("it is not compressed with gzip, as every archive but a .mar has to be: %w", err)
	}
	// The names in headers are read before any budget sees them; a tar reader keeps at most 1 MiB of them.
	r := tar.NewReader(z)
	for {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return z.Close()
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		if err := u.tarEntry(ctx, head, r); err != nil {
			return err
		}
	}
}

func (u *unpacker) tarEntry(ctx context.Context, head *tar.Header, r io.Reader) error {
	if head.Typeflag == tar.TypeXGlobalHeader { // says something about the whole archive, "git archive" writes one
		return nil
	}
	if path.IsAbs(head.Name) {
		return absolute(head.Name)
	}
	stripped := head.Name
	if _, after, found := strings.Cut(head.Name, "/"); found {
		stripped = after
	}
	name, err := u.name(stripped)
	if err != nil || name == "." {
		return err
	}
	mode := head.FileInfo().Mode()
	switch head.Typeflag {
	case tar.TypeDir:
		return u.folder(name)
	case tar.TypeReg, tar.TypeGNUSparse:
		return u.file(ctx, name, mode, r)
	case tar.TypeLink:
		return refuse(packAsFiles, "its entry %q is a hard link to %q", head.Name, head.Linkname)
	default:
		return notRegular(head.Name, mode)
	}
}

const packAsFiles = "pack the file itself; tar does so with --dereference --hard-dereference"

func notRegular(name string, mode fs.FileMode) error {
	what := "neither a file nor a folder"
	if mode&fs.ModeSymlink != 0 {
		what = "a symbolic link"
	}
	return refuse(packAsFiles, "its entry %q is %s", name, what)
}

func absolute(name string) error {
	return refuse("pack it with relative names", "its entry %q has an absolute name", name)
}

// name makes an entry's name one below the root; "." is the root itself.
func (u *unpacker) name(entry string) (string, error) {
	if err := u.budget.entry(entry); err != nil {
		return "", err
	}
	if path.IsAbs(entry) {
		return "", absolute(entry)
	}
	name := path.Clean(entry)
	if !filepath.IsLocal(name) || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("its entry %q would be written outside of the model's folder", entry)
	}
	return name, nil
}

// folder makes a folder, which a later or earlier file may have implied.
func (u *unpacker) folder(name string) error {
	if u.made[name] {
		return refuse("", "it has a file and a folder named %q", name)
	}
	u.made[name] = false
	return u.root.MkdirAll(name, 0o755)
}

// file writes a file. Of its mode only the owner's right to execute is kept.
func (u *unpacker) file(ctx context.Context, name string, mode fs.FileMode, r io.Reader) error {
	if _, seen := u.made[name]; seen {
		return refuse("pack each file once", "it has more than one entry named %q", name)
	}
	u.made[name] = true
	if dir := path.Dir(name); dir != "." {
		if err := u.root.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	perm := fs.FileMode(0o644)
	if mode&0o100 != 0 {
		perm = 0o755
	}
	// O_EXCL also finds names that a file system without case takes for the same.
	w, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if errors.Is(err, fs.ErrExist) {
		return refuse("rename one of them", "its entry %q and another one are the same file here", name)
	}
	if err != nil {
		return err
	}
	if err := u.budget.copy(ctx, w, r, u.buf); err != nil {
		return errors.Join(fmt.Errorf("entry %q: %w", name, err), w.Close())
	}
	return w.Close()
}
