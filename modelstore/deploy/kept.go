package deploy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/flambeau-serve/flambeau/modelstore/ledger"
	"github.com/flambeau-serve/flambeau/modelstore/rollout"
)

// Replaced keeps the archive of a generation that has ended, for a rollback. rollout calls it before the archive is closed.
func (d *Deployer) Replaced(_ context.Context, old rollout.Replaced) {
	defer d.left(old)
	var mine *unit
	d.locked(func() { mine = d.replacedBy(old) })
	if mine == nil || d.opts.Keep < 1 || d.opts.KeepDir == "" {
		return
	}
	k := ledger.Kept{
		Model: old.Ref.Name, Version: old.Ref.Version, Digest: old.Digest, Source: old.Source, At: time.Now(),
		Dir: filepath.Join(d.opts.KeepDir, hexOf(old.Digest)),
	}
	var err error
	if !old.Archive.Kept && !isDir(k.Dir) {
		err = d.try("an archive was kept", func() error { return d.keep(old.Archive, k.Dir) })
	}
	var serving map[string]bool
	d.locked(func() {
		mine.unkept = ""
		if err != nil {
			mine.unkept = err.Error()
		}
		serving = d.pinnedDirs()
	})
	if err != nil {
		d.opts.Logger.Info("the archive before is not kept for a rollback", "model", k.Model, "version", k.Version, "reason", err.Error())
		return
	}
	var gone []string
	d.remember(func(s *ledger.State) {
		s.Kept = slices.DeleteFunc(s.Kept, func(o ledger.Kept) bool {
			return o.Model == k.Model && o.Version == k.Version && o.Source == k.Source && o.Digest == k.Digest
		})
		s.Kept = append(s.Kept, k)
		gone = prune(s, k.Model, k.Source, d.opts.Keep, serving)
	})
	d.removeKept(gone)
}

// left notes that a generation has ended for good, and that its archive was kept if it is to be.
func (d *Deployer) left(old rollout.Replaced) {
	d.lock()
	defer d.unlock()
	for _, u := range d.units {
		if u.path == old.Source {
			delete(u.leaving, old.Digest)
		}
	}
}

// awaitLeft waits until what was replaced before has ended, and is kept.
func (d *Deployer) awaitLeft(ctx context.Context, u *unit) error {
	return d.await(ctx, func() bool { return len(u.leaving) == 0 })
}

// replacedBy gives the unit whose archive was replaced, nil if it was not replaced by another one of the store; mu is held.
func (d *Deployer) replacedBy(old rollout.Replaced) *unit {
	if old.Source == "" || old.Digest == "" || old.Digest == old.Next || old.Next == "" && !d.retiring[old.Ref] {
		return nil
	}
	for _, u := range d.sorted() {
		if u.path == old.Source && (u.owns.Name == old.Ref.Name || d.retiring[old.Ref]) {
			return u
		}
	}
	return nil
}

// pinnedDirs gives the kept archives that serve, or are about to; mu is held.
func (d *Deployer) pinnedDirs() map[string]bool {
	dirs := map[string]bool{}
	for _, u := range d.units {
		if u.pinned != nil {
			dirs[u.pinned.Dir] = true
		}
	}
	return dirs
}

// prune leaves the newest archives of an entry, and gives the folders of the others. One that serves is none of the number.
func prune(s *ledger.State, model, source string, most int, serving map[string]bool) (gone []string) {
	n := 0
	for i, k := range slices.Backward(s.Kept) {
		if k.Model != model || k.Source != source || serving[k.Dir] {
			continue
		}
		if n++; n > most {
			gone = append(gone, k.Dir)
			s.Kept = slices.Delete(s.Kept, i, i+1)
		}
	}
	return gone
}

// removeKept removes folders that the ledger does not know any more.
func (d *Deployer) removeKept(dirs []string) {
	if len(dirs) == 0 {
		return
	}
	used := map[string]bool{}
	for _, k := range d.opts.Ledger.State().Kept {
		used[k.Dir] = true
	}
	for _, dir := range dirs {
		if used[dir] || filepath.Dir(dir) != filepath.Clean(d.opts.KeepDir) {
			continue // it is another version's, too; or nothing that was put there by us
		}
		if err := removeTree(dir); err != nil {
			d.opts.Logger.Warn("an archive that is not kept any more was not removed", "dir", dir, "reason", err.Error())
		}
	}
}

// removeTree is os.RemoveAll that also succeeds on folders that a handler has made read-only.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	walk := filepath.WalkDir(dir, func(path string, e fs.DirEntry, _ error) error {
		if e != nil && e.IsDir() {
			return os.Chmod(path, 0o700) //nolint:gosec // a folder needs its x bit to be emptied
		}
		return nil
	})
	return errors.Join(walk, os.RemoveAll(dir))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// sweep makes the folder of kept archives and the ledger agree: what one of them does not know is forgotten by the other.
func (d *Deployer) sweep() error {
	if d.opts.KeepDir == "" {
		return nil
	}
	if err := os.MkdirAll(d.opts.KeepDir, 0o700); err != nil {
		return fmt.Errorf("the folder for earlier archives: %w", err)
	}
	entries, err := os.ReadDir(d.opts.KeepDir)
	if err != nil {
		return fmt.Errorf("the folder for earlier archives: %w", err)
	}
	there := map[string]bool{}
	for _, e := range entries {
		there[filepath.Join(d.opts.KeepDir, e.Name())] = true
	}
	state := d.opts.Ledger.State()
	if slices.ContainsFunc(state.Kept, func(k ledger.Kept) bool { return !there[k.Dir] }) {
		d.remember(func(s *ledger.State) {
			s.Kept = slices.DeleteFunc(s.Kept, func(k ledger.Kept) bool { return !there[k.Dir] })
		})
	}
	d.removeKept(slices.Collect(maps.Keys(there)))
	return nil
}

// cloneState gives a copy of a state that can be edited.
func cloneState(s ledger.State) ledger.State {
	c := ledger.State{
		Ignored: maps.Clone(s.Ignored), Defaults: maps.Clone(s.Defaults), Earlier: maps.Clone(s.Earlier), Traffic: maps.Clone(s.Traffic),
		Kept: slices.Clone(s.Kept), Pinned: maps.Clone(s.Pinned), Scaled: maps.Clone(s.Scaled),
	}
	orMake(&c.Ignored)
	orMake(&c.Defaults)
	orMake(&c.Earlier)
	orMake(&c.Traffic)
	orMake(&c.Pinned)
	orMake(&c.Scaled)
	return c
}

func orMake[K comparable, V any](m *map[K]V) {
	if *m == nil {
		*m = map[K]V{}
	}
}
