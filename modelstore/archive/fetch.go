package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

const maxRedirects = 10

// client gives the HTTP client that fetches archives. Each redirect must be allowed, too: else allowed_urls would be worth as much as the
// least careful redirector behind it.
func (s *Store) client(base *http.Client) *http.Client {
	if base == nil {
		transport := &http.Transport{
			Proxy:                 http.ProxyFromEnvironment,
			ResponseHeaderTimeout: s.limits.Stall,
			TLSHandshakeTimeout:   s.limits.Stall,
			DisableCompression:    true, // a .tar.gz is to arrive as it is
			DisableKeepAlives:     true, // archives are fetched once in a while
		}
		base = &http.Client{Transport: transport}
	}
	c := *base
	c.CheckRedirect = func(req *http.Request, via []*http.Request) error {
		if len(via) >= maxRedirects {
			return fmt.Errorf("it redirects more than %d times", maxRedirects)
		}
		if scheme := req.URL.Scheme; scheme != "http" && scheme != "https" {
			return fmt.Errorf("it redirects to the scheme %q", scheme)
		}
		if !s.isAllowed(req.URL.String()) {
			return fmt.Errorf("it redirects to %s, which does not match any allowed URL(s)", req.URL.Redacted())
		}
		return nil
	}
	return &c
}

// fetch downloads the archive into the store under its own name, and gives the file. The file appears whole or not at all.
func (s *Store) fetch(ctx context.Context, loc location) (string, error) {
	if !loc.usable() || loc.parsed == nil {
		return "", downloadFailed(loc, errors.New("the URL does not name a file"))
	}
	target := filepath.Join(s.store, loc.base)
	if _, err := os.Lstat(target); err == nil {
		return "", alreadyExists(loc)
	}
	part, err := os.CreateTemp(s.store, "."+shorten(loc.base)+".*"+partSuffix)
	if err != nil {
		return "", downloadFailed(loc, err)
	}
	begun := time.Now()
	n, err := s.download(ctx, loc, part)
	if err == nil {
		err = part.Chmod(0o644) // CreateTemp's 0600 would hide the file from others who share the store
	}
	err = errors.Join(err, part.Close())
	if err == nil {
		err = moveNew(part.Name(), target)
	}
	if err != nil {
		return "", fetchFault(ctx, loc, errors.Join(err, removeIfThere(part.Name())))
	}
	s.logger.Info("fetched a model archive", slog.String("url", loc.shown()), slog.String("file", target), slog.Int64("bytes", n),
		slog.Duration("took", time.Since(begun).Round(time.Millisecond)))
	return target, nil
}

func fetchFault(ctx context.Context, loc location, err error) error {
	switch {
	case errors.Is(err, os.ErrExist):
		return alreadyExists(loc)
	case errors.Is(err, errClosed):
		return fault.New(fault.Draining, "Failed to download archive from: "+loc.raw, err)
	case ctx.Err() != nil:
		return fault.New(fault.Cancelled, "Failed to download archive from: "+loc.raw, err)
	default:
		return downloadFailed(loc, err)
	}
}

// shorten keeps the name of a partial file below what file systems allow.
func shorten(base string) string {
	const most = 100
	if len(base) > most {
		return base[:most]
	}
	return base
}

func downloadFailed(loc location, cause error) error {
	return fault.New(fault.DownloadFailed, "Failed to download archive from: "+loc.raw, cause)
}

func alreadyExists(loc location) error {
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

// download writes the archive to w and gives its size.
func (s *Store) download(ctx context.Context, loc location, w io.Writer) (int64, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	body, size, err := s.source(ctx, loc)
	if err != nil {
		return 0, err
	}
	defer func() { _ = body.Close() }() // it was only read from
	if size > s.limits.DownloadBytes {
		return 0, s.tooLarge()
	}
	stall := fmt.Errorf("nothing arrived for %s", s.limits.Stall)
	watchdog := time.AfterFunc(s.limits.Stall, func() { cancel(stall) })
	defer watchdog.Stop()
	n, err := io.Copy(w, io.LimitReader(&watched{r: body, moved: func() { watchdog.Reset(s.limits.Stall) }}, s.limits.DownloadBytes+1))
	switch {
	case context.Cause(ctx) != nil:
		return n, context.Cause(ctx)
	case err != nil:
		return n, err
	case n > s.limits.DownloadBytes:
		return n, s.tooLarge()
	case size >= 0 && n != size:
		return n, fmt.Errorf("%d bytes were announced and %d came", size, n)
	}
	return n, nil
}

func (s *Store) tooLarge() error {
	return fmt.Errorf("it is larger than %d bytes; raise archive_max_download_size if it is meant to be so large", s.limits.DownloadBytes)
}

// source opens the source of one download. size is -1 when it is not known.
func (s *Store) source(ctx context.Context, loc location) (body io.ReadCloser, size int64, err error) {
	if strings.EqualFold(loc.parsed.Scheme, "file") {
		return openLocal(loc)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, loc.parsed.String(), nil)
	if err != nil {
		return nil, 0, err
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, 0, errors.Join(fmt.Errorf("the server answered %s", resp.Status), resp.Body.Close())
	}
	return resp.Body, resp.ContentLength, nil
}

// openLocal opens a file URL. Anything but a regular file could block or never end.
func openLocal(loc location) (io.ReadCloser, int64, error) {
	if host := loc.parsed.Host; host != "" && !strings.EqualFold(host, "localhost") {
		return nil, 0, fmt.Errorf("a file URL names the host %q; write file:///path", host)
	}
	info, err := os.Stat(loc.parsed.Path)
	if err != nil {
		return nil, 0, err
	}
	if !info.Mode().IsRegular() {
		return nil, 0, fmt.Errorf("%s is not a regular file", loc.parsed.Path)
	}
	file, err := os.Open(loc.parsed.Path)
	if err != nil {
		return nil, 0, err
	}
	return file, info.Size(), nil
}

// watched tells about each piece that arrives.
type watched struct {
	r     io.Reader
	moved func()
}

func (w *watched) Read(p []byte) (int, error) {
	n, err := w.r.Read(p)
	if n > 0 {
		w.moved()
	}
	return n, err
}
