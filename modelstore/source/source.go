package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/javaregex"
)

// What the zero values of Options stand for.
const (
	DefaultAllowed  = `file://.*|http(s)?://.*` // TorchServe's default of allowed_urls
	DefaultMaxBytes = int64(256) << 30
	DefaultStall    = 2 * time.Minute
	DefaultPause    = 250 * time.Millisecond
	DefaultReport   = 10 * time.Second
)

// Options say where archives may come from.
type Options struct {
	// Allowed are the regular expressions, in Java's syntax, one of which a URL must match as a whole and in any case, as TorchServe's
	// allowed_urls has it. Empty: DefaultAllowed.
	Allowed []string
	// Default says that Allowed is not the operator's own list. It then says nothing about private addresses and endpoints, and object stores may
	// be fetched from, which it does not know of.
	Default bool
	// PrivateNetworks may be fetched from although they are private, loopback, link-local or the like.
	PrivateNetworks []netip.Prefix
	// Local says that only this machine can ask for archives, so that a URL with a loopback address in it reaches nothing that whoever asks could not reach
	// without it.
	Local bool
	// MaxBytes is the size of the largest archive.
	MaxBytes int64
	// Stall is how long a download may stand still.
	Stall time.Duration
	// Pause is how long it waits before it tries again after the first failure; after each further one twice as long.
	Pause time.Duration
	// Report is how often a line in the log says how far a download is.
	Report time.Duration
	// Proxy says which proxy a request goes through. Nil: what HTTP_PROXY, HTTPS_PROXY and NO_PROXY say.
	Proxy func(*http.Request) (*url.URL, error)
	// Resolver finds the addresses of hosts over HTTP. Nil: the system's.
	Resolver *net.Resolver
	// Logger is required.
	Logger *slog.Logger
}

// Fetcher fetches archives. Its methods are safe for concurrent use.
type Fetcher struct {
	opts    Options
	allowed []*javaregex.Pattern
	filter  *filter
	client  *http.Client
}

// New checks the options.
func New(opts Options) (*Fetcher, error) {
	switch {
	case opts.Logger == nil:
		return nil, errors.New("source: Options.Logger is required")
	case opts.MaxBytes < 0 || opts.Stall < 0 || opts.Pause < 0 || opts.Report < 0:
		return nil, errors.New("source: a limit is negative")
	}
	if len(opts.Allowed) == 0 {
		opts.Allowed, opts.Default = []string{DefaultAllowed}, true
	}
	opts.MaxBytes = cmp.Or(opts.MaxBytes, DefaultMaxBytes)
	opts.Stall = cmp.Or(opts.Stall, DefaultStall)
	opts.Pause = cmp.Or(opts.Pause, DefaultPause)
	opts.Report = cmp.Or(opts.Report, DefaultReport)
	opts.Resolver = cmp.Or(opts.Resolver, net.DefaultResolver)
	if opts.Proxy == nil {
		opts.Proxy = http.ProxyFromEnvironment
	}
	f := &Fetcher{opts: opts, filter: newFilter(opts.PrivateNetworks)}
	for _, expr := range opts.Allowed {
		p, err := javaregex.CompileFold(expr)
		if err != nil {
			return nil, fmt.Errorf("allowed_urls: %w", err)
		}
		f.allowed = append(f.allowed, p)
	}
	f.client = f.newClient()
	return f, nil
}

// Allowed says whether a URL may be fetched, with TorchServe's words when it may not.
func (f *Fetcher) Allowed(raw string) error {
	a, _ := parse(raw) // what is wrong with it is told by Fetch, as TorchServe does
	if f.permits(a) {
		return nil
	}
	return &fault.Error{
		Kind: fault.ModelNotFound, Message: "Given URL " + a.told() + " does not match any allowed URL(s)",
		Hint: "add an expression that matches it to allowed_urls",
	}
}

// Told is a URL as messages and logs may tell it: without passwords and signatures.
func (f *Fetcher) Told(raw string) string {
	a, _ := parse(raw) // it may be anything
	return a.told()
}

func (f *Fetcher) permits(a *address) bool {
	return f.matches(a.plain) || f.opts.Default && a.isObject()
}

func (f *Fetcher) matches(text string) bool {
	return slices.ContainsFunc(f.allowed, func(p *javaregex.Pattern) bool { return p.Match(text) })
}

// strangers are hosts that nobody lists: an expression that matches a URL with one of them in place of its host does not say which host is meant.
func strangers() []string {
	return []string{"flambeau-nobody-9f2c.invalid", "flambeaunobody9f2c", "203.0.113.77", "[2001:db8::77]"}
}

// names says whether the operator's own list names the text host where it stands in a URL, and does not only let anything pass there.
func (f *Fetcher) names(raw string, at int, host string) bool {
	if f.opts.Default || host == "" || at < 0 || !strings.HasPrefix(raw[at:], host) {
		return false
	}
	return slices.ContainsFunc(f.allowed, func(p *javaregex.Pattern) bool {
		return p.Match(raw) && !slices.ContainsFunc(strangers(), func(s string) bool { return p.Match(raw[:at] + s + raw[at+len(host):]) })
	})
}

// namesHost is names for the host of a URL, without its port.
func (f *Fetcher) namesHost(raw string) bool {
	a, err := parse(raw)
	if err != nil || a.parsed == nil || a.host != a.parsed.Host {
		return false
	}
	host := strings.TrimSuffix(a.host, ":"+a.parsed.Port())
	scheme, rest, _ := strings.Cut(a.plain, "://")
	rest, _, _ = strings.Cut(rest, "/")
	rest, _, _ = strings.Cut(rest, "?")
	return f.names(a.plain, len(scheme)+len("://")+strings.LastIndex(rest, a.host), host)
}

// Fetch copies the archive at a URL into a hidden file of dir, and gives the file's path, size and digest, as "sha256:" and hex digits. The caller moves or
// removes it; when Fetch fails, there is none. progress may be nil; it is told how many bytes have come, and how many are meant to, -1 when that is
// not known. A URL may end with a pin, #sha256= and 64 hex digits, which the archive must match.
func (f *Fetcher) Fetch(ctx context.Context, raw, dir string, progress func(done, total int64)) (path string, bytes int64, digest string, err error) {
	if err := f.Allowed(raw); err != nil {
		return "", 0, "", err
	}
	a, err := parse(raw)
	if err != nil {
		return "", 0, "", f.failed(ctx, a, err)
	}
	from, err := f.origin(ctx, a)
	if err != nil {
		return "", 0, "", f.failed(ctx, a, err)
	}
	t := &transfer{opts: &f.opts, address: a, origin: from, progress: progress}
	path, bytes, digest, err = t.run(ctx, dir)
	if err != nil {
		return "", 0, "", f.failed(ctx, a, err)
	}
	return path, bytes, digest, nil
}

// origin is where one archive lies.
type origin interface {
	// open gives the archive from the byte from on, if it is still the version that tag names; otherwise from its beginning. ctx holds for the reading, too.
	open(ctx context.Context, from int64, tag string) (*stream, error)
}

func (f *Fetcher) origin(ctx context.Context, a *address) (origin, error) {
	switch a.scheme {
	case schemeFile:
		return localFile{a.parsed}, nil
	case schemeHTTP, schemeHTTPS:
		return &website{client: f.client, url: a.parsed, gzip: isGzipName(a.base)}, nil
	default:
		return f.newObject(ctx, a)
	}
}

// failed makes an error of a fetch one that a client can be told, in TorchServe's words. It does not know object stores, so there is no model at such a
// URL for it; Flambeau says the same when it finds none.
func (f *Fetcher) failed(ctx context.Context, a *address, err error) error {
	if ctx.Err() != nil {
		return fault.New(fault.Cancelled, "Failed to download archive from: "+a.told(), errors.Join(context.Cause(ctx), err))
	}
	e := &fault.Error{Kind: fault.DownloadFailed, Message: "Failed to download archive from: " + a.told(), Hint: hintOf(err), Cause: err}
	if missing := (*missingError)(nil); errors.As(err, &missing) {
		e.Kind, e.Message = fault.ModelNotFound, "Model not found at: "+a.told()
	}
	return e
}

// hintOf says what was wrong and, where it is known, what to do.
func hintOf(err error) string {
	hint := err.Error()
	var refused *refusedError
	var advised *advisedError
	switch {
	case errors.As(err, &refused):
		hint = refused.Error() + "; add its network to archive_private_networks, or an expression with its host to allowed_urls, if it is meant"
	case errors.As(err, &advised):
		hint += "; " + advised.advice
	}
	return hint
}

// missingError is an object that there is none of.
type missingError struct{ cause error }

func (e *missingError) Error() string { return e.cause.Error() }
func (e *missingError) Unwrap() error { return e.cause }

// advisedError is an error that somebody can do something about.
type advisedError struct {
	cause  error
	advice string
}

func (e *advisedError) Error() string { return e.cause.Error() }
func (e *advisedError) Unwrap() error { return e.cause }
