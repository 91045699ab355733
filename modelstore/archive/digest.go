package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// ErrChanged says that an archive changed while it was read: it is to be read again when it stands still.
var ErrChanged = errors.New("the file changed while it was read")

const (
	fileDigest = "sha256:"
	treeDigest = "tree:"
)

// How old a file's time has to be so that any later write changes it: file systems note times in steps, some of them in steps of seconds.
const (
	fineStep   = 100 * time.Millisecond
	coarseStep = 2 * time.Second
)

// packed is an archive file that is being read.
type packed struct {
	path   string
	file   *os.File
	before fs.FileInfo
	fresh  bool // it was written so shortly before that its time may not tell of another write
	digest string
}

// openPacked opens an archive file and reads it once, for its digest.
func openPacked(ctx context.Context, path string) (*packed, error) {
	// Anything but a regular file could block: it may have become one a moment ago.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	p := &packed{path: path, file: file}
	if p.before, err = file.Stat(); err == nil && !p.before.Mode().IsRegular() {
		err = errors.New("it is not a regular file")
	}
	if err == nil {
		written, step := p.before.ModTime(), fineStep
		if written.Nanosecond() == 0 {
			step = coarseStep
		}
		p.fresh = time.Since(written) < step // also one that is written in the future
		p.digest, err = p.sum(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return p, nil
}

func (p *packed) size() int64 { return p.before.Size() }

// sum reads the whole file.
func (p *packed) sum(ctx context.Context) (string, error) {
	h := sha256.New()
	n, err := io.CopyBuffer(h, &stoppable{ctx: ctx, r: io.NewSectionReader(p.file, 0, p.size())}, make([]byte, copyBuffer))
	switch {
	case err != nil:
		return "", err
	case n != p.size(): // it was shortened
		return "", ErrChanged
	}
	return fileDigest + hex.EncodeToString(h.Sum(nil)), nil
}

// unchanged gives ErrChanged if anything was written to the file since it was opened, or if another one has its name now.
func (p *packed) unchanged(ctx context.Context) error {
	after, err := p.file.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(p.path)
	if err != nil || !os.SameFile(there, p.before) || after.Size() != p.size() || !after.ModTime().Equal(p.before.ModTime()) {
		return ErrChanged
	}
	if !p.fresh {
		return nil
	}
	again, err := p.sum(ctx)
	if err == nil && again != p.digest {
		err = ErrChanged
	}
	return err
}

// close ends reading.
func (p *packed) close() { _ = p.file.Close() } // it was only read from

// stoppable ends with its context.
type stoppable struct {
	ctx context.Context //nolint:containedctx // one read from the beginning to the end
	r   io.Reader
}

func (s *stoppable) Read(b []byte) (int, error) {
	if s.ctx.Err() != nil {
		return 0, context.Cause(s.ctx)
	}
	return s.r.Read(b)
}

// maxTree is how many files and folders a folder may have whose digest is made.
const maxTree = 1_000_000

// treeSum gives the digest of a folder's files by their names, sizes and times, and the sum of their sizes. What is not part of a model is left out.
func treeSum(ctx context.Context, dir string) (digest string, bytes int64, err error) {
	t := &treeSummer{ctx: ctx, root: dir, hash: sha256.New()}
	if err := filepath.WalkDir(dir, t.visit); err != nil {
		return "", 0, err
	}
	return treeDigest + hex.EncodeToString(t.hash.Sum(nil)), t.bytes, nil
}

// treeSummer is one walk through a folder.
type treeSummer struct {
	ctx   context.Context //nolint:containedctx // one walk from the beginning to the end
	root  string
	hash  hash.Hash
	bytes int64
	seen  int
}

// visit adds one file. A link counts as what it leads to, by which Kubernetes' folders of links are told apart; a linked folder is not walked.
func (t *treeSummer) visit(path string, d fs.DirEntry, err error) error {
	switch {
	case err != nil:
		return err
	case t.ctx.Err() != nil:
		return context.Cause(t.ctx)
	case path == t.root:
		return nil
	case ignored(d.Name()):
		if d.IsDir() {
			return filepath.SkipDir
		}
		return nil
	}
	if t.seen++; t.seen > maxTree {
		return fmt.Errorf("the folder holds more than %d files and folders", maxTree)
	}
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) { // a link to nothing, or it went away
		info, err = os.Lstat(path)
		if errors.Is(err, fs.ErrNotExist) {
			return ErrChanged
		}
	}
	if err != nil {
		return err
	}
	name, err := filepath.Rel(t.root, path)
	if err != nil {
		return err
	}
	if info.IsDir() { // its time changes with what Python writes into it
		_, err = fmt.Fprintf(t.hash, "%q folder\n", name)
		return err
	}
	t.bytes += info.Size()
	kind := info.Mode().Type() | info.Mode()&0o100 // a program that gets the right to be run is another one
	_, err = fmt.Fprintf(t.hash, "%q %d %d %d\n", name, kind, info.Size(), info.ModTime().UnixNano())
	return err
}
