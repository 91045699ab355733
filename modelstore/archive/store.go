package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/redact"
)

var errClosed = errors.New("the server is stopping")

// Store opens the models of a model store. Its methods are safe for concurrent use.
type Store struct {
	store   string // absolute, "" for none
	limits  Limits
	fetcher Fetcher                         // nil: no URL is allowed
	free    func(dir string) (int64, error) // bytes that can still be written there
	logger  *slog.Logger
	owner   *owner

	running sync.WaitGroup // Opens that have not returned

	mu      sync.Mutex                         // guards the rest
	open    map[string]*folder                 // the folders below Temp/models, by their paths
	cancels map[uint64]context.CancelCauseFunc // of the running Opens
	opens   uint64                             // how many Opens there were
	copies  map[*copied]bool                   // what was fetched into the store for archives that are not closed yet
	closed  bool
}

// New checks the options, makes Temp/models, and removes what a killed server has left there. The store must be closed.
func New(opts Options) (*Store, error) {
	if opts.Logger == nil {
		return nil, errors.New("archive: Options.Logger is required")
	}
	if err := opts.Limits.check(); err != nil {
		return nil, err
	}
	s := &Store{
		limits: opts.Limits.withDefaults(), fetcher: opts.Fetcher, free: freeBytes, logger: opts.Logger, open: map[string]*folder{},
		cancels: map[uint64]context.CancelCauseFunc{}, copies: map[*copied]bool{},
	}
	var err error
	if opts.Store != "" {
		if s.store, err = filepath.Abs(opts.Store); err != nil {
			return nil, fmt.Errorf("the model store %s: %w", opts.Store, err)
		}
	}
	temp, err := filepath.Abs(opts.Temp)
	if err != nil {
		return nil, fmt.Errorf("the temp folder %s: %w", opts.Temp, err)
	}
	if s.owner, err = claim(filepath.Join(temp, "models"), s.logger); err != nil {
		return nil, err
	}
	s.owner.sweep(s.logger)
	return s, nil
}

// Names lists the models that "all" stands for, sorted: the store's .mar, .model and .tar.gz files and its folders, but no hidden ones.
func (s *Store) Names() ([]string, error) {
	if s.store == "" {
		return nil, fault.New(fault.ModelNotFound, "Model store has not been configured.", nil)
	}
	entries, err := os.ReadDir(s.store)
	if err != nil {
		return nil, fmt.Errorf("the model store cannot be read: %w", err)
	}
	var names []string
	for _, entry := range entries {
		name := entry.Name()
		if strings.HasPrefix(name, ".") {
			continue
		}
		info, err := os.Stat(filepath.Join(s.store, name)) // follows links, as the original does
		if err != nil {
			s.logger.Warn("entry of the model store cannot be read", slog.String("entry", name), slog.Any("error", err))
			continue
		}
		isModel := strings.HasSuffix(name, ".mar") || strings.HasSuffix(name, ".model") || strings.HasSuffix(name, ".tar.gz")
		if info.IsDir() || info.Mode().IsRegular() && isModel {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Open gives the model at url: it fetches it if it is a URL, finds it in the store or in a folder, and unpacks it. When it fails nothing is left
// on disk. The errors' kinds and messages are those that TorchServe's clients see.
func (s *Store) Open(ctx context.Context, url string) (*Archive, error) {
	loc, err := s.locate(url)
	if err != nil {
		return nil, err
	}
	a := &Archive{URL: url, FileBase: fileBase(url), store: s, layout: layoutOf(loc.base)}
	if loc.remote {
		a.URL = s.fetcher.Told(url)
	}
	return s.opened(ctx, a, a.URL, func(ctx context.Context) error {
		if loc.remote {
			if a.saved, err = s.fetch(ctx, loc); err != nil {
				return err
			}
			a.Fetched = a.saved != nil
		}
		if err := s.place(ctx, loc, a); err != nil {
			return err
		}
		return checkPin(loc, a)
	})
}

// opened does what all ways to open a model have in common; shown is what messages call it.
func (s *Store) opened(ctx context.Context, a *Archive, shown string, open func(context.Context) error) (*Archive, error) {
	ctx, end, err := s.begin(ctx)
	if err != nil {
		return nil, s.asFault(ctx, shown, err)
	}
	defer end()
	tried := false
	defer func() {
		if !tried { // a bug ends this, which is for whoever has asked to tell
			_ = a.Forget()
		}
	}()
	if err = open(ctx); err == nil {
		err = a.readMetadata(s.limits, s.logger)
	}
	tried = true
	if err != nil {
		return nil, errors.Join(s.asFault(ctx, shown, err), a.Forget())
	}
	return a, nil
}

// begin makes Close wait for an Open, and end it early.
func (s *Store) begin(ctx context.Context) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ctx, nil, errClosed
	}
	ctx, cancel := context.WithCancelCause(ctx)
	id := s.opens
	s.opens++
	s.cancels[id] = cancel
	s.running.Add(1)
	return ctx, func() {
		s.mu.Lock()
		delete(s.cancels, id)
		s.mu.Unlock()
		cancel(nil)
		s.running.Done()
	}, nil
}

// locate checks the URL, in TorchServe's order.
func (s *Store) locate(url string) (location, error) {
	switch {
	case s.store == "":
		return location{}, fault.New(fault.ModelNotFound, "Model store has not been configured.", nil)
	case url == "":
		return location{}, fault.New(fault.ModelNotFound, "empty url", nil)
	case strings.Contains(url, ".."):
		return location{}, fault.New(fault.ModelNotFound, "Relative path is not allowed in url: "+redact.URL(url), nil)
	}
	loc := parseLocation(url, s.fetcher != nil)
	switch {
	case !loc.remote:
		return loc, nil
	case s.fetcher == nil:
		return location{}, fault.Newf(fault.ModelNotFound, "Given URL %s does not match any allowed URL(s)", redact.URL(url))
	default:
		return loc, s.fetcher.Allowed(url)
	}
}

// place makes a's folder below Temp/models.
func (s *Store) place(ctx context.Context, loc location, a *Archive) error {
	if loc.usable() {
		file := filepath.Join(s.store, loc.base)
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			a.Source = loc.base
			return s.openFile(ctx, file, a, false)
		}
	}
	for _, dir := range s.folders(loc) {
		if info, err := os.Stat(dir); err == nil && info.IsDir() {
			a.Source = s.sourceOf(dir)
			return s.link(ctx, dir, a, false)
		}
	}
	return fault.New(fault.ModelNotFound, "Model not found at: "+redact.URL(loc.raw), nil)
}

// folders lists where a model of that URL may lie unpacked.
func (s *Store) folders(loc location) []string {
	if strings.ContainsRune(loc.raw, 0) {
		return nil
	}
	dirs := []string{loc.raw}
	if loc.usable() {
		dirs = append(dirs, filepath.Join(s.store, loc.base))
	}
	return dirs
}

// sourceOf is a folder's place in the store, "" for one that lies elsewhere.
func (s *Store) sourceOf(dir string) string {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return ""
	}
	rel, err := filepath.Rel(s.store, abs)
	if err != nil || rel == "." || !filepath.IsLocal(rel) {
		return ""
	}
	return filepath.ToSlash(rel)
}

// link makes a link to a folder that is used in place. A folder that holds nothing but one folder stands for that. strict: its digest has to be known.
func (s *Store) link(ctx context.Context, dir string, a *Archive, strict bool) error {
	target, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(target)
	if err != nil {
		return err
	}
	if len(entries) == 1 && entries[0].Name() != path.Dir(manifestPath) {
		only := filepath.Join(target, entries[0].Name())
		if info, err := os.Stat(only); err == nil && info.IsDir() {
			target = only
		}
	}
	resolved, err := filepath.EvalSymlinks(target)
	if err != nil {
		return err
	}
	if a.Digest, a.Bytes, err = treeSum(ctx, resolved); err != nil {
		if strict || ctx.Err() != nil {
			return err
		}
		a.Digest, a.Bytes = "", 0 // TorchServe takes it, whatever is in it
		s.logger.Warn("a change of the model's folder will not be noticed", slog.String("folder", target), slog.Any("error", err))
	}
	base := filepath.Base(target)
	a.folder, err = s.share(ctx, hexID(), func(part string) (string, error) { return "", os.Symlink(target, filepath.Join(part, base)) })
	if err != nil {
		return err
	}
	a.Dir, a.InPlace = filepath.Join(a.folder.root, base), true
	return nil
}

// asFault makes an error of place one that a client can be told. Read errors and escapes have TorchServe's text; what Flambeau refuses on
// its own says why.
func (s *Store) asFault(ctx context.Context, shown string, err error) error {
	var known *fault.Error
	var refused *refusal
	var full *spaceError
	failed := "Failed to save model: " + shown
	switch {
	case errors.As(err, &known):
		return err
	case errors.Is(err, errClosed):
		return fault.New(fault.Draining, failed, err)
	case ctx.Err() != nil:
		return fault.New(fault.Cancelled, failed, err)
	case errors.Is(err, ErrChanged):
		return &fault.Error{
			Kind: fault.Internal, Message: failed, Cause: err, Hint: "wait until it is written; copy to another name first, and rename it then",
		}
	case errors.As(err, &refused):
		f := &fault.Error{Kind: fault.InvalidModel, Message: "Model archive " + shown + " is refused: " + refused.text, Hint: refused.hint}
		if err.Error() != refused.text {
			f.Cause = err
		}
		return f
	case errors.As(err, &full):
		return &fault.Error{Kind: fault.Internal, Message: failed, Cause: err, Hint: full.Error() + "; make room, or set TEMP to a folder on another disk"}
	default:
		return fault.New(fault.Internal, failed, err)
	}
}

// Close ends the Opens that run, and removes all that the store has unpacked and not yet removed. Archives are of no use afterwards, and Open
// fails.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	for _, cancel := range s.cancels {
		cancel(errClosed)
	}
	s.mu.Unlock()
	s.running.Wait()
	s.mu.Lock()
	roots := make([]string, 0, len(s.open))
	for root := range s.open {
		roots = append(roots, root)
	}
	clear(s.open)
	s.mu.Unlock()
	var errs []error
	for _, root := range roots {
		errs = append(errs, removeRoot(root))
	}
	return errors.Join(append(errs, s.owner.release())...)
}

// Forget is Close, and it deletes the copy in the store if the archive was fetched from a URL, as TorchServe does when a model is unregistered. It is
// also right for an archive that could not be registered: otherwise the copy would be in the way of the next try.
func (a *Archive) Forget() error {
	err := a.close()
	if a.saved == nil {
		return err
	}
	defer a.store.disown(a.saved) // not before the file is gone, which would be anybody's otherwise
	if rm := os.Remove(a.saved.path); rm != nil && !os.IsNotExist(rm) {
		return errors.Join(err, fmt.Errorf("the copy of %s in the model store: %w", a.URL, rm))
	}
	return err
}

// removeRoot removes a folder below Temp/models, finished or not. A link in it is removed, not what it leads to.
func removeRoot(root string) error {
	return errors.Join(removeTree(root), removeTree(root+partSuffix))
}

// removeTree is os.RemoveAll that also succeeds on folders that a handler has made read-only.
func removeTree(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, os.ErrPermission) {
		return err
	}
	walk := filepath.WalkDir(dir, func(path string, d os.DirEntry, _ error) error {
		if d != nil && d.IsDir() {
			return os.Chmod(path, 0o700) //nolint:gosec // a folder needs its x bit to be emptied
		}
		return nil
	})
	return errors.Join(walk, os.RemoveAll(dir))
}
