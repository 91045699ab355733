package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path"
)

// openFile unpacks an archive file, unless that is done already. strict: a .mar that is no zip file is an error.
func (s *Store) openFile(ctx context.Context, file string, a *Archive, strict bool) error {
	p, err := openPacked(ctx, file)
	if err != nil {
		return err
	}
	defer p.close()
	k := kindOf(file)
	a.folder, err = s.share(ctx, s.owner.unpackedName(k, p.digest), func(part string) (string, error) {
		problem, err := s.unpack(ctx, k, p, part)
		if ctx.Err() != nil {
			return problem, err
		}
		if moved := p.unchanged(ctx); moved != nil { // what was wrong with it, if anything, says nothing about what it will be
			return "", errors.Join(moved, err)
		}
		return problem, err
	})
	if err != nil {
		return err
	}
	a.Dir, a.Digest, a.Bytes, a.Problem = a.folder.root, p.digest, p.size(), a.folder.problem
	if a.Problem == "" {
		return nil
	}
	if strict {
		return refuse("copy it again", "%s", a.Problem)
	}
	s.logger.Warn("the archive is not a zip file; it is taken for an empty one, as TorchServe does",
		slog.String("file", file), slog.String("problem", a.Problem))
	return nil
}

// unpack writes an archive's files to part.
func (s *Store) unpack(ctx context.Context, k kind, p *packed, part string) (problem string, err error) {
	dir, err := os.OpenRoot(part)
	if err != nil {
		return "", err
	}
	u := &unpacker{
		root: dir, written: written{}, budget: budget{limits: s.limits, packed: p.size()}, buf: make([]byte, copyBuffer),
		room: func(need int64) error { return s.roomFor(part, need) },
	}
	switch k {
	case zipKind:
		problem, err = u.unzip(ctx, p)
	case onnxKind:
		err = u.copyONNX(ctx, p)
	case tarKind:
		err = u.untar(ctx, p)
	}
	err = s.asSpace(part, u.announced-u.budget.bytes, err)
	return problem, errors.Join(err, dir.Close())
}

// unpacker writes the entries of one archive below one folder.
type unpacker struct {
	root      *os.Root // nil: entries are only looked at
	written   written
	budget    budget
	announced int64 // how many bytes it says it will unpack to, 0 when it does not say
	buf       []byte
	room      func(need int64) error // says whether so much can be written
}

// rehearsal is an unpacker that writes nothing, for a first look at the same archive.
func (u *unpacker) rehearsal() *unpacker {
	return &unpacker{written: written{}, budget: u.budget, buf: u.buf}
}

func notRegular(name string, mode fs.FileMode) error {
	what := "neither a file nor a folder"
	if mode&fs.ModeSymlink != 0 {
		what = "a symbolic link"
	}
	return refuse(packAsFiles, "its entry %.200q is %s", name, what)
}

// note adds a file or a folder to those that were written, and gives how many folders it implies that are not there yet.
func (u *unpacker) note(name string, dir bool) (implied int, err error) {
	if implied, err = u.written.add(name, dir); err != nil {
		return 0, err
	}
	return implied, u.budget.count(implied)
}

// folder makes a folder, which a later or earlier file may have implied.
func (u *unpacker) folder(name string) error {
	if _, err := u.note(name, true); err != nil || u.root == nil {
		return err
	}
	return u.root.MkdirAll(name, 0o755)
}

// file writes a file. Of its mode only the owner's right to execute is kept.
func (u *unpacker) file(ctx context.Context, name string, mode fs.FileMode, r io.Reader) error {
	implied, err := u.note(name, false)
	if err != nil {
		return err
	}
	if u.root == nil {
		return u.budget.copy(ctx, io.Discard, r, u.buf)
	}
	if implied > 0 {
		if err := u.root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
	}
	perm := fs.FileMode(0o644)
	if mode&0o100 != 0 {
		perm = 0o755
	}
	// O_EXCL also finds names that this file system alone takes for the same.
	w, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm)
	if errors.Is(err, fs.ErrExist) {
		return refuse("rename one of them", "its entry %.200q and another one are the same file here", name)
	}
	if err != nil {
		return err
	}
	if err := u.budget.copy(ctx, w, r, u.buf); err != nil {
		return errors.Join(fmt.Errorf("entry %.200q: %w", name, err), w.Close())
	}
	return w.Close()
}
