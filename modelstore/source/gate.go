package source

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"
)

const (
	maxRedirects   = 10
	maxHeaderBytes = 256 << 10
	dialTimeout    = 30 * time.Second
	lookupTimeout  = 5 * time.Second
)

// gate is the way out of an HTTP client. It looks at each request, redirected ones too, and refuses addresses when they are dialed, after the name was
// resolved: what the name means to somebody else, or meant a moment ago, does not count.
type gate struct {
	fetcher  *Fetcher
	open     *http.Transport // any address; through a proxy if there is one
	closed   *http.Transport // what the filter lets pass
	loopback *http.Transport // this machine only
}

// newClient makes the client that fetches archives. It has no overall limit, since nobody knows how large an archive is.
func (f *Fetcher) newClient() *http.Client {
	transport := func(control func(network, address string, c syscall.RawConn) error) *http.Transport {
		return &http.Transport{
			DialContext:            owned((&net.Dialer{Timeout: dialTimeout, Resolver: f.opts.Resolver, Control: control}).DialContext),
			ResponseHeaderTimeout:  f.opts.Stall,
			TLSHandshakeTimeout:    min(f.opts.Stall, dialTimeout),
			MaxResponseHeaderBytes: maxHeaderBytes,
			DisableCompression:     true, // a .tar.gz is to arrive as it is
			DisableKeepAlives:      true, // archives are fetched once in a while, and a connection belongs to the check that let it through
		}
	}
	g := &gate{fetcher: f, open: transport(nil), closed: transport(f.filter.control), loopback: transport(controlLoopback)}
	g.open.Proxy = f.opts.Proxy
	return &http.Client{Transport: g, CheckRedirect: f.checkRedirect}
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// ownerKey is where a context has the end of whoever owns the connections that are dialed with it.
type ownerKey struct{}

// afterOwner has f called once the owner has ended; stop says that this is not wanted any more.
type afterOwner = func(f func()) (stop func() bool)

// owning makes ctx the owner of all connections that are dialed with what it gives.
func owning(ctx context.Context) context.Context {
	return context.WithValue(ctx, ownerKey{}, func(f func()) (stop func() bool) { return context.AfterFunc(ctx, f) })
}

// owned ends dials and connections together with their owner. A transport hands on what a request's context has, but not its end: it would go on dialing for
// a request that is gone, in the hope of another one.
func owned(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		after, ok := ctx.Value(ownerKey{}).(afterOwner)
		if !ok {
			return dial(ctx, network, address)
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer after(cancel)()
		c, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		after(func() { _ = c.Close() }) // it may be closed already
		return c, nil
	}
}

// control refuses a connection to an address that the filter does not let pass.
func (f *filter) control(_, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("the address %q cannot be read: %w", address, err)
	}
	return f.check(a.Addr())
}

func controlLoopback(_, address string, _ syscall.RawConn) error {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("the address %q cannot be read: %w", address, err)
	}
	if !a.Addr().Unmap().IsLoopback() {
		return errors.New("localhost is not this machine")
	}
	return nil
}

// RoundTrip sends one request on the way that is right for its URL.
func (g *gate) RoundTrip(req *http.Request) (*http.Response, error) {
	way := g.closed
	proxy, err := g.fetcher.opts.Proxy(req)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the proxy's URL is wrong: %w", err)
	case g.fetcher.namesHost(req.URL.String()):
		way = g.open
	case proxy != nil:
		// The proxy resolves the name and makes the connection, so the proxy has the last word. What is known here is checked here.
		if err := g.fetcher.checkHost(req.Context(), req.URL.Hostname()); err != nil {
			return nil, err
		}
		way = g.open
	case g.fetcher.opts.Local && onlyLoopback(req):
		way = g.loopback
	}
	return way.RoundTrip(req) //nolint:wrapcheck // the client adds what was asked
}

// checkHost refuses hosts with a closed address, as far as this machine knows. One that it cannot resolve may be known to the proxy.
func (f *Fetcher) checkHost(ctx context.Context, host string) error {
	if a, err := netip.ParseAddr(host); err == nil {
		return f.filter.check(a)
	}
	ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
	defer cancel()
	addresses, err := f.opts.Resolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		if err := f.filter.check(a); err != nil {
			return err
		}
	}
	return nil
}

// onlyLoopback says whether a request goes to this machine because whoever asked wrote so: not because a name means it or somewhere else redirects to it.
func onlyLoopback(req *http.Request) bool {
	for req != nil {
		host := req.URL.Hostname()
		a, err := netip.ParseAddr(host)
		if !strings.EqualFold(host, "localhost") && (err != nil || !a.Unmap().IsLoopback()) {
			return false
		}
		if req.Response == nil {
			return true
		}
		req = req.Response.Request
	}
	return false
}

// checkRedirect lets a redirect pass if its target is allowed: else allowed_urls would be worth as much as the least careful redirector behind it.
func (f *Fetcher) checkRedirect(req *http.Request, via []*http.Request) error {
	req.Header.Del("Referer") // a signature in the URL is for its own server only
	target, scheme := req.URL.String(), req.URL.Scheme
	switch {
	case len(via) >= maxRedirects:
		return &redirectError{fmt.Errorf("it redirects more than %d times", maxRedirects)}
	case scheme != schemeHTTP && scheme != schemeHTTPS:
		return &redirectError{fmt.Errorf("it redirects to the scheme %q", scheme)}
	case !f.matches(target):
		return &redirectError{&advisedError{
			fmt.Errorf("it redirects to %s, which does not match any allowed URL(s)", shorter(target)), "add an expression that matches it to allowed_urls",
		}}
	case scheme == schemeHTTP && via[len(via)-1].URL.Scheme == schemeHTTPS && !f.namesHost(target):
		return &redirectError{&advisedError{
			fmt.Errorf("it redirects from https to %s", shorter(target)), "add an expression with this host to allowed_urls if it is meant",
		}}
	}
	return nil
}

// redirectError is a redirect that is not followed.
type redirectError struct{ cause error }

func (e *redirectError) Error() string { return e.cause.Error() }
func (e *redirectError) Unwrap() error { return e.cause }

// plainError takes away what net/http puts around an error: its text has the URL in it, with all that is secret there but the password.
func plainError(err error) error {
	if whole, ok := errors.AsType[*url.Error](err); ok {
		return whole.Err
	}
	return err
}
