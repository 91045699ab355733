package archive

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// Fetcher fetches archives from elsewhere.
type Fetcher interface {
	// Allowed says why the URL is not to be fetched, in TorchServe's words; nil: it is.
	Allowed(url string) error
	// Fetch fetches what is at url into a hidden file of dir, which belongs to the caller, and tells its size and its digest ("sha256:" and hex
	// digits). progress, which may be nil, is called now and then; total is -1 when it is not known.
	Fetch(ctx context.Context, url, dir string, progress func(done, total int64)) (path string, bytes int64, digest string, err error)
	// Told is the URL as logs and messages may tell it: without passwords and signatures.
	Told(url string) string
}

// fetch has the archive fetched into the store under its own name, and gives the file. The file appears whole or not at all. nil when a file is there already that
// may be the one that the URL's pin demands.
func (s *Store) fetch(ctx context.Context, loc location) (*copied, error) {
	told := s.fetcher.Told(loc.raw)
	if !loc.usable() {
		cause := errors.New("the URL does not name a file")
		return nil, &fault.Error{Kind: fault.DownloadFailed, Message: "Failed to download archive from: " + told, Hint: cause.Error(), Cause: cause}
	}
	target := filepath.Join(s.store, loc.base)
	if info, err := os.Lstat(target); err == nil {
		if loc.pin != "" && info.Mode().IsRegular() {
			return nil, nil
		}
		return nil, alreadyExists(loc)
	}
	begun := time.Now()
	path, bytes, digest, err := s.fetcher.Fetch(ctx, loc.raw, s.store, nil)
	if err != nil {
		if errors.Is(err, errClosed) {
			return nil, fault.New(fault.Draining, "Failed to download archive from: "+told, err)
		}
		return nil, fmt.Errorf("fetching the archive: %w", err)
	}
	c, err := s.publish(path, target)
	if err != nil {
		err = errors.Join(err, removeIfThere(path))
		if errors.Is(err, os.ErrExist) {
			return nil, alreadyExists(loc)
		}
		return nil, fault.New(fault.DownloadFailed, "Failed to download archive from: "+told, err)
	}
	s.logger.Info("fetched a model archive", slog.String("url", told), slog.String("file", target), slog.Int64("bytes", bytes), slog.String("digest", digest),
		slog.Duration("took", time.Since(begun).Round(time.Millisecond)))
	return c, nil
}

// checkPin says whether the archive of the store is the one that the URL demands, which it need not be when it was there before.
func checkPin(loc location, a *Archive) error {
	if loc.pin == "" || a.Digest == fileDigest+loc.pin {
		return nil
	}
	err := alreadyExists(loc)
	err.Hint += "; its digest is " + a.Digest + " and not " + fileDigest + loc.pin + ", as the URL demands"
	return err
}

func alreadyExists(loc location) *fault.Error {
	return &fault.Error{
		Kind: fault.Internal, Message: "Model file already exists " + loc.base,
		Hint: "register it by its file name, or remove the file from the model store first",
	}
}

// moveNew gives a file its name without replacing another one.
func moveNew(from, to string) error {
	err := os.Link(from, to)
	switch {
	case err == nil:
		return os.Remove(from)
	case errors.Is(err, os.ErrExist):
		return err
	}
	// A file system without hard links: the moment between the look and the move is the price.
	if _, err := os.Lstat(to); err == nil {
		return os.ErrExist
	}
	return os.Rename(from, to)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
