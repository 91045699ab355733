package source

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Statuses that decide what comes next.
const (
	statusPartial   = 206
	statusBadRange  = 416
	statusForbidden = 403
	statusTimeout   = 408
	statusTooEarly  = 425
	statusTooMany   = 429
	statusServer    = 500
	statusNotDone   = 501
	statusVersion   = 505
)

// website is an archive that is fetched over HTTP.
type website struct {
	client *http.Client
	url    *url.URL
	gzip   bool // the archive itself is a gzip file
}

// open asks for the rest of the archive only when the server has named its version by something that is good for that.
func (w *website) open(ctx context.Context, from int64, tag string) (*stream, error) {
	if tag == "" {
		from = 0
	}
	resp, err := w.ask(ctx, from, tag)
	if err != nil {
		return nil, err
	}
	s, again, err := w.read(resp, from, tag)
	if err == nil && !again {
		return s, nil
	}
	_ = resp.Body.Close() // nothing more is wanted of it
	if err != nil {
		return nil, err
	}
	return w.open(ctx, 0, "")
}

func (w *website) ask(ctx context.Context, from int64, tag string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(owning(ctx), http.MethodGet, w.url.String(), nil)
	if err != nil {
		return nil, plainError(err)
	}
	req.Header.Set("Accept-Encoding", "identity")
	req.Header.Set("User-Agent", "flambeau")
	if from > 0 {
		req.Header.Set("Range", "bytes="+strconv.FormatInt(from, 10)+"-")
		req.Header.Set("If-Range", tag)
	}
	resp, err := w.client.Do(req)
	if err != nil {
		if resp != nil {
			_ = resp.Body.Close() // of a redirect that was not followed
		}
		err = plainError(err)
		if isTemporary(err) {
			return nil, &temporaryError{cause: err}
		}
		return nil, err
	}
	return resp, nil
}

// read makes a stream of an answer. again says that the answer is of no use, and that the archive is to be asked for from its beginning.
func (w *website) read(resp *http.Response, from int64, tag string) (s *stream, again bool, err error) {
	switch {
	case resp.StatusCode == statusPartial && from > 0:
		begins, size, ok := parseContentRange(resp.Header.Get("Content-Range"))
		if now := tagOf(resp.Header); !ok || begins != from || now != "" && isETag(now) == isETag(tag) && now != tag {
			return nil, true, nil
		}
		return &stream{body: resp.Body, from: from, size: size, tag: tag}, false, nil
	case resp.StatusCode == statusBadRange && from > 0:
		return nil, true, nil
	case resp.StatusCode == statusPartial || resp.StatusCode/100 != 2:
		return nil, false, statusError(resp)
	}
	s = &stream{body: resp.Body, size: resp.ContentLength, tag: tagOf(resp.Header)}
	return s, false, w.checkEncoding(resp, s)
}

func statusError(resp *http.Response) error {
	err := fmt.Errorf("the server answered %s", strings.TrimSpace(resp.Status))
	code := resp.StatusCode
	switch {
	case code == statusTimeout, code == statusTooEarly, code == statusTooMany, code >= statusServer && code != statusNotDone && code != statusVersion:
		return &temporaryError{cause: err, after: retryAfter(resp.Header)}
	case (code == statusForbidden || code == 401) && isAmazon(resp.Request.URL):
		return &advisedError{err, "write the URL as s3://bucket/key, which is signed with the AWS credentials in the server's environment and also reads objects " +
			"that a KMS key encrypts (s3_sse_kms)"}
	}
	return err
}

func isAmazon(u *url.URL) bool {
	host := u.Hostname()
	return strings.HasSuffix(host, ".amazonaws.com") || strings.HasSuffix(host, ".amazonaws.com.cn")
}

// retryAfter is how long the server wants to be left alone, within reason.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	var d time.Duration
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		d = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(text); err == nil {
		d = time.Until(at)
	}
	return min(max(d, 0), longestDelay)
}

// tagOf gives what names a version of a file well enough to go on with it: a strong ETag, or else a time of change that is not so young that another change
// could have the same.
func tagOf(h http.Header) string {
	if tag := h.Get("ETag"); isETag(tag) {
		return tag
	}
	modified := h.Get("Last-Modified")
	changed, err := http.ParseTime(modified)
	if err != nil {
		return ""
	}
	now, err := http.ParseTime(h.Get("Date"))
	if err != nil || now.Sub(changed) < time.Second {
		return ""
	}
	return modified
}

func isETag(tag string) bool { return len(tag) >= 2 && tag[0] == '"' && tag[len(tag)-1] == '"' }

// parseContentRange reads a header such as "bytes 200-999/1000". size is -1 when it is "*".
func parseContentRange(text string) (from, size int64, ok bool) {
	rest, found := strings.CutPrefix(text, "bytes ")
	span, total, hasTotal := strings.Cut(rest, "/")
	first, last, hasLast := strings.Cut(span, "-")
	if !found || !hasTotal || !hasLast {
		return 0, 0, false
	}
	from, err := strconv.ParseInt(first, 10, 64)
	end, err2 := strconv.ParseInt(last, 10, 64)
	if err != nil || err2 != nil || from < 0 || end < from {
		return 0, 0, false
	}
	if total == "*" {
		return from, -1, true
	}
	size, err = strconv.ParseInt(total, 10, 64)
	return from, size, err == nil && end < size
}

// checkEncoding refuses an archive that the server has compressed although it was asked not to. Some only say so of a file that is a gzip file itself, or
// of one that is none at all: then it is taken as it is, as TorchServe does.
func (w *website) checkEncoding(resp *http.Response, s *stream) error {
	encoding := strings.ToLower(strings.TrimSpace(resp.Header.Get("Content-Encoding")))
	switch encoding {
	case "", "identity", "aws-chunked", "none":
		return nil
	case "gzip", "x-gzip":
		if w.gzip {
			return nil
		}
		const magic = "\x1f\x8b"
		head := make([]byte, len(magic))
		n, err := io.ReadFull(s.body, head)
		if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
			return &temporaryError{cause: err}
		}
		s.body = &prefixed{head: head[:n], ReadCloser: s.body}
		if string(head[:n]) != magic {
			return nil
		}
	}
	return &advisedError{
		fmt.Errorf("the server sends it with the Content-Encoding %q although it was asked for it as it is", encoding),
		"let the server store and send the archive without compression",
	}
}

// prefixed gives back what was read ahead.
type prefixed struct {
	head []byte
	io.ReadCloser
}

func (p *prefixed) Read(b []byte) (int, error) {
	if len(p.head) > 0 {
		n := copy(b, p.head)
		p.head = p.head[n:]
		return n, nil
	}
	return p.ReadCloser.Read(b)
}

func isGzipName(base string) bool {
	return strings.HasSuffix(base, ".gz") || strings.HasSuffix(base, ".tgz") || strings.HasSuffix(base, ".model")
}

// isTemporary says whether a request that got no answer may get one a moment later.
func isTemporary(err error) bool {
	var refused *refusedError
	var redirect *redirectError
	var unknown *net.DNSError
	var certificate *tls.CertificateVerificationError
	var authority x509.UnknownAuthorityError
	var record tls.RecordHeaderError
	switch {
	case errors.As(err, &refused), errors.As(err, &redirect), errors.As(err, &certificate), errors.As(err, &authority), errors.As(err, &record):
		return false
	case errors.As(err, &unknown):
		return unknown.IsTemporary || unknown.IsTimeout
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return true
	}
	for _, errno := range []syscall.Errno{
		syscall.ECONNRESET, syscall.ECONNREFUSED, syscall.ECONNABORTED, syscall.EPIPE, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.ETIMEDOUT,
	} {
		if errors.Is(err, errno) {
			return true
		}
	}
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}
