package archive

import (
	"os"
	"path/filepath"
)

// copied is a file that was fetched into the store.
type copied struct {
	path string
	info os.FileInfo // when it was put there
}

// IsCopy says whether the file at a place of the store is a copy that Open has fetched for an Archive that is not closed yet, and that nobody has
// written to or replaced since. Such a file goes with its Archive.
func (s *Store) IsCopy(place string) bool {
	path := filepath.Join(s.store, filepath.FromSlash(place))
	var mine []os.FileInfo
	s.mu.Lock()
	for c := range s.copies {
		if c.path == path {
			mine = append(mine, c.info)
		}
	}
	s.mu.Unlock()
	if len(mine) == 0 {
		return false
	}
	now, err := os.Lstat(path)
	if err != nil {
		return false
	}
	for _, then := range mine {
		if os.SameFile(then, now) && then.Size() == now.Size() && then.ModTime().Equal(now.ModTime()) {
			return true
		}
	}
	return false
}

// publish gives a fetched file its name in the store. It counts as a copy before anybody can see it there.
func (s *Store) publish(path, target string) (*copied, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	c := &copied{path: target, info: info}
	s.mu.Lock()
	s.copies[c] = true
	s.mu.Unlock()
	if err := moveNew(path, target); err != nil {
		s.disown(c)
		return nil, err
	}
	return c, nil
}

// disown notes that a file of the store, if it is still there, goes with no archive.
func (s *Store) disown(c *copied) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.copies, c)
}
