package archive

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
)

// folder is one folder below Temp/models. All the archives of the same content share it; the last one that is closed removes it.
type folder struct {
	root    string
	users   int           // guarded by Store.mu; 0 while it is being made or removed
	settled chan struct{} // guarded by Store.mu; closed when it is made, could not be made, or is gone
	problem string        // see Archive.Problem; set before settled is closed
	refused error         // why its content is refused, for those who wait for it; set before settled is closed
}

// unpackedName is the name of the folder for a content: 32 hex digits, as TorchServe's folders have, that no other server uses.
func (o *owner) unpackedName(k kind, digest string) string {
	sum := sha256.Sum256([]byte(o.id + "\x00" + string(k) + "\x00" + digest))
	return hex.EncodeToString(sum[:dirNameLen/2])
}

// share gives the folder of that name. If there is none, fill makes its contents in a folder that gets the name only when it is complete.
//
// Nothing is flushed to the disk: the name belongs to this server alone, so after a crash of the machine nobody takes what is there for whole.
func (s *Store) share(ctx context.Context, name string, fill func(part string) (problem string, err error)) (*folder, error) {
	root := filepath.Join(s.owner.models, name)
	for {
		f, settled := s.enter(root)
		if settled == nil {
			return f, s.make(f, fill)
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
		if s.join(f) {
			return f, nil
		}
		if f.refused != nil {
			return nil, f.refused
		}
	}
}

// enter gives the folder at root and what to wait for before it can be joined, or a new one, without that, which the caller has to make.
func (s *Store) enter(root string) (f *folder, settled <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.open[root]; f != nil {
		return f, f.settled
	}
	f = &folder{root: root, settled: make(chan struct{})}
	s.open[root] = f
	return f, nil
}

// join makes the caller a user of a folder, if it is still there.
func (s *Store) join(f *folder) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[f.root] != f || f.users == 0 {
		return false
	}
	f.users++
	return true
}

// make fills a folder that enter gave; on failure nothing is left of it.
func (s *Store) make(f *folder, fill func(part string) (problem string, err error)) error {
	part := f.root + partSuffix
	err := s.owner.record(filepath.Base(f.root))
	if err == nil {
		err = errors.Join(removeRoot(f.root), os.Mkdir(part, 0o700)) // there is something only if it could not be removed earlier
	}
	if err == nil {
		f.problem, err = fill(part)
	}
	if err == nil {
		err = os.Rename(part, f.root)
	}
	if err != nil {
		if _, refused := errors.AsType[*refusal](err); refused && !errors.Is(err, ErrChanged) {
			f.refused = err
		}
		err = errors.Join(err, removeRoot(f.root))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		delete(s.open, f.root)
	} else {
		f.users = 1
	}
	close(f.settled)
	return err
}

// leave takes an archive from the users of its folder. last says that it was the only one: then nobody else can come to the folder until the
// caller calls gone or back.
func (s *Store) leave(a *Archive) (f *folder, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f = a.folder
	if f == nil || a.closed || s.open[f.root] != f {
		return nil, false
	}
	a.closed = true
	f.users--
	if f.users == 0 {
		f.settled = make(chan struct{})
	}
	return f, f.users == 0
}

// gone says that a folder is not there any more.
func (s *Store) gone(f *folder) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open[f.root] == f {
		delete(s.open, f.root)
	}
	close(f.settled)
}

// back undoes leave.
func (s *Store) back(a *Archive) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := a.folder
	a.closed = false
	f.users++
	if f.users == 1 {
		close(f.settled)
	}
}

// Close gives up the unpacked folder, which is removed with its last user, or removes the link to the folder that is used in place. It may be called more
// than once.
func (a *Archive) Close() error {
	if a.saved != nil {
		defer a.store.disown(a.saved)
	}
	return a.close()
}

func (a *Archive) close() error {
	if a.store == nil {
		return nil
	}
	f, last := a.store.leave(a)
	if !last {
		return nil
	}
	defer a.store.gone(f)
	return removeRoot(f.root)
}
