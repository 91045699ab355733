package source

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

const (
	partSuffix  = ".part"
	bufferBytes = 256 << 10
	// trickleBytes have to come within the stall limit, or all the rest: a byte now and then would go on for ever.
	trickleBytes = 1024
	// progressBytes further than ever before are worth a new set of tries.
	progressBytes = 1 << 20

	longestPause = 10 * time.Second
	longestDelay = 30 * time.Second // that a server can ask for

	// triesAtFirst and triesLater are how often it is tried before and after anything has come: who waits for an answer about a wrong URL is not to wait
	// long, and a server that was there needs time to come back. A try that stood still costs as much as stallCost others.
	triesAtFirst = 4
	triesLater   = 8
	stallCost    = 4
)

// transfer is one fetch.
type transfer struct {
	opts     *Options
	address  *address
	origin   origin
	progress func(done, total int64)

	file *os.File
	hash hash.Hash
	done int64 // bytes that are in the file
	most int64 // the most that were ever in it
	size int64 // of the whole archive, -1 when it is not known
	tag  string

	begun    time.Time
	reported time.Time // when the log was told last
	reportAt int64     // bytes that had come then
}

func (t *transfer) run(ctx context.Context, dir string) (path string, bytes int64, digest string, err error) {
	t.sweep(dir)
	t.file, err = os.CreateTemp(dir, "."+shorten(t.address.base)+".*"+partSuffix)
	if err != nil {
		return "", 0, "", err
	}
	whole := false
	defer func() {
		if !whole && err == nil { // a bug ends this, which is for whoever has asked to tell
			_ = errors.Join(t.file.Close(), os.Remove(t.file.Name()))
		}
	}()
	t.hash, t.size, t.begun = sha256.New(), -1, time.Now()
	t.reported = t.begun
	err = t.persist(ctx)
	if err == nil {
		digest, err = t.finish()
	}
	err = errors.Join(err, t.file.Close())
	if err != nil {
		return "", 0, "", errors.Join(err, os.Remove(t.file.Name()))
	}
	whole = true
	return t.file.Name(), t.done, digest, nil
}

// abandoned is how old a partial file is that nobody writes any more: what is fetched is written to, tried again or given up long before.
const abandoned = time.Hour

var partName = regexp.MustCompile(`^\..+\.[0-9]+\.part$`)

// sweep removes the partial files that killed servers have left.
func (t *transfer) sweep(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return // what comes next says so
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !partName.MatchString(e.Name()) {
			continue
		}
		if info, err := e.Info(); err != nil || time.Since(info.ModTime()) < max(abandoned, 2*t.opts.Stall*triesLater) {
			continue
		}
		err := os.Remove(filepath.Join(dir, e.Name()))
		t.opts.Logger.Info("removed what a download that was broken off has left", slog.String("file", e.Name()), slog.Any("error", err))
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

// finish checks the pin and makes the file one that others who share the folder can read, and that is still there after a power cut.
func (t *transfer) finish() (string, error) {
	digest := hex.EncodeToString(t.hash.Sum(nil))
	if pin := t.address.pin; pin != "" && pin != digest {
		return "", &advisedError{
			fmt.Errorf("its digest is sha256=%s and not sha256=%s, as the URL demands; it was removed", digest, pin),
			"correct the digest in the URL if the archive was meant to change; otherwise do not trust the server it came from",
		}
	}
	if err := errors.Join(t.file.Chmod(0o644), t.file.Sync()); err != nil {
		return "", err
	}
	return "sha256:" + digest, nil
}

// persist tries until the archive is whole or there is no use in trying.
func (t *transfer) persist(ctx context.Context) error {
	cost, tries, reached := 0, 0, int64(0)
	for {
		err := t.try(ctx)
		tries++
		var temporary *temporaryError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.As(err, &temporary):
			return err
		}
		if t.most-reached >= progressBytes {
			cost, reached = 0, t.most
		}
		cost += temporary.cost()
		if cost >= t.patience() {
			if tries > 1 {
				err = fmt.Errorf("%w (it was tried %d times)", err, tries)
			}
			return err
		}
		pause := max(temporary.after, min(t.opts.Pause<<(cost-1), longestPause))
		t.opts.Logger.Warn("a download was broken off and is tried again", slog.String("url", t.address.shown()), slog.Any("error", err),
			slog.Int64("bytes", t.done), slog.Duration("pause", pause))
		if err := wait(ctx, pause); err != nil {
			return err
		}
	}
}

func (t *transfer) patience() int {
	if t.most == 0 {
		return triesAtFirst
	}
	return triesLater
}

func wait(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

var errStalled = errors.New("it stands still")

// try fetches what is missing.
func (t *transfer) try(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watchdog := time.AfterFunc(t.opts.Stall, func() { cancel(errStalled) })
	defer watchdog.Stop()
	err := t.copy(ctx, func() { watchdog.Reset(t.opts.Stall) })
	if err != nil && errors.Is(context.Cause(ctx), errStalled) {
		return &temporaryError{cause: fmt.Errorf("nothing arrived for %s, or next to nothing", t.opts.Stall), stalled: true}
	}
	return err
}

func (t *transfer) copy(ctx context.Context, alive func()) error {
	if t.size >= 0 && t.done >= t.size {
		t.tag = "" // all was there, and something was wrong with it
	}
	s, err := t.origin.open(ctx, t.done, t.tag)
	if err != nil {
		return err
	}
	defer func() { _ = s.body.Close() }() // it was only read from
	if err := t.begin(s); err != nil {
		return err
	}
	buffer := make([]byte, bufferBytes)
	fresh := int64(0)
	for {
		n, err := s.body.Read(buffer)
		if n > 0 {
			if err := t.write(buffer[:n]); err != nil {
				return err
			}
			if fresh += int64(n); fresh >= trickleBytes {
				fresh = 0
				alive()
			}
		}
		switch {
		case errors.Is(err, io.EOF) && t.size >= 0 && t.done != t.size:
			return &temporaryError{cause: fmt.Errorf("%d bytes were announced and %d came", t.size, t.done)}
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return &temporaryError{cause: fmt.Errorf("it broke off after %d bytes: %w", t.done, err)}
		}
	}
}

// begin makes the file ready for a stream: what is there stays if the stream goes on with it.
func (t *transfer) begin(s *stream) error {
	if s.size > t.opts.MaxBytes {
		return t.tooLarge()
	}
	switch s.from {
	case t.done:
	case 0:
		if err := t.restart(); err != nil {
			return err
		}
	default:
		return fmt.Errorf("it came from byte %d on, and not from %d", s.from, t.done)
	}
	if s.from > 0 && t.size >= 0 && s.size >= 0 && s.size != t.size {
		t.tag = ""
		return &temporaryError{cause: fmt.Errorf("it has %d bytes now, and had %d before", s.size, t.size)}
	}
	if s.from == 0 || s.size >= 0 {
		t.size = s.size
	}
	t.tag = s.tag
	return nil
}

// restart forgets what has come.
func (t *transfer) restart() error {
	t.opts.Logger.Info("a download begins again", slog.String("url", t.address.shown()), slog.Int64("bytes", t.done))
	if _, err := t.file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	t.hash.Reset()
	t.done, t.reportAt = 0, 0
	return t.file.Truncate(0)
}

func (t *transfer) write(p []byte) error {
	if t.done+int64(len(p)) > t.opts.MaxBytes {
		return t.tooLarge()
	}
	if _, err := t.file.Write(p); err != nil {
		return fmt.Errorf("it cannot be written: %w", err)
	}
	_, _ = t.hash.Write(p) // never fails
	t.done += int64(len(p))
	t.most = max(t.most, t.done)
	if t.progress != nil {
		t.progress(t.done, t.size)
	}
	if now := time.Now(); now.Sub(t.reported) >= t.opts.Report {
		t.report(now)
	}
	return nil
}

// report says in the log how far it is.
func (t *transfer) report(now time.Time) {
	rate := float64(t.done-t.reportAt) / now.Sub(t.reported).Seconds()
	attrs := []any{
		slog.String("url", t.address.shown()), slog.Int64("bytes", t.done), slog.String("rate", strconv.FormatFloat(rate/1e6, 'f', 1, 64)+" MB/s"),
	}
	if t.size > 0 {
		left := time.Duration(float64(t.size-t.done) / max(rate, 1) * float64(time.Second))
		attrs = append(attrs, slog.Int64("total", t.size), slog.Int64("percent", t.done*100/t.size), slog.Duration("left", left.Round(time.Second)))
	}
	t.opts.Logger.Info("fetching a model archive", attrs...)
	t.reported, t.reportAt = now, t.done
}

func (t *transfer) tooLarge() error {
	return &advisedError{
		fmt.Errorf("it is larger than %d bytes", t.opts.MaxBytes), "raise archive_max_download_size if it is meant to be so large",
	}
}

// temporaryError is a failure that may be over when it is tried again.
type temporaryError struct {
	cause   error
	after   time.Duration // the server asked for so much time
	stalled bool
}

func (e *temporaryError) Error() string { return e.cause.Error() }
func (e *temporaryError) Unwrap() error { return e.cause }

func (e *temporaryError) cost() int {
	if e.stalled {
		return stallCost
	}
	return 1
}
