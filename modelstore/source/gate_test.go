package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/internal/redact"
)

func TestFilter(t *testing.T) {
	t.Parallel()
	f := newFilter([]netip.Prefix{
		netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("fd00:1::/32"), netip.MustParsePrefix("::ffff:192.168.7.0/120"),
	})
	for text, open := range map[string]bool{
		"93.184.216.34": true, "2606:2800:220:1::1": true, "8.8.8.8": true, "172.32.0.1": true, "100.128.0.1": true, "::ffff:8.8.8.8": true,
		"64:ff9b::808:808": true, "2002:808:808::1": true,

		"10.1.2.3": true, "::ffff:10.1.2.3": true, "64:ff9b::a01:203": true, "fd00:1::5": true, "192.168.7.9": true, // listed

		"0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false, "10.255.255.255": false, "100.64.0.1": false, "100.100.100.200": false, "127.0.0.1": false,
		"127.255.0.1": false, "168.63.129.16": false, "169.254.169.254": false, "169.254.170.2": false, "172.16.0.1": false, "172.31.255.255": false, "192.0.0.192": false,
		"192.168.0.1": false, "198.18.0.1": false, "224.0.0.1": false, "239.1.1.1": false, "255.255.255.255": false, "203.0.113.5": false,

		"::": false, "::1": false, "::ffff:127.0.0.1": false, "::ffff:169.254.169.254": false, "::ffff:10.0.0.1": false, "::127.0.0.1": false, "::10.0.0.1": false,
		"64:ff9b::7f00:1": false, "64:ff9b::a9fe:a9fe": false, "64:ff9b:1::808:808": false, "2002:7f00:1::": false, "2002:a00:1::1": false, "2001:0:1::1": false,
		"fe80::1": false, "fe80::1%eth0": false, "fc00::1": false, "fd00:ec2::254": false, "fd20:ce::254": false, "fec0::1": false, "ff02::1": false, "2001:db8::1": false,
	} {
		if err := f.check(netip.MustParseAddr(text)); (err == nil) != open {
			t.Errorf("%s: %v", text, err)
		}
	}
	if f.check(netip.Addr{}) == nil {
		t.Error("no address at all may be reached")
	}
}

// TestNames: an expression that lets any host pass does not name one.
func TestNames(t *testing.T) {
	t.Parallel()
	tests := []struct {
		list, url string
		want      bool
	}{
		{`http://10\.0\.0\.5/.*`, "http://10.0.0.5/x.mar", true},
		{`http://10\.0\.0\.5:8080/.*`, "http://10.0.0.5:8080/x.mar", true},
		{`http://10\.0\.0\.5/.*`, "http://10.0.0.5/x.mar?a=b#c", true},
		{`https?://models\.corp\.example(:[0-9]+)?/.*`, "HTTPS://Models.Corp.Example:1/x.mar", true},
		{`http://[a-z]+\.corp\.example/.*`, "http://a.corp.example/x.mar", true},
		{`http://10\..*`, "http://10.0.0.5/x.mar", true},
		{`http://\[::1\]/.*`, "http://[::1]/x.mar", true},
		{`http://u:p@10\.0\.0\.5/.*`, "http://u:p@10.0.0.5/x.mar", true},

		{`.*`, "http://10.0.0.5/x.mar", false},
		{`https?://.*`, "http://10.0.0.5/x.mar", false},
		{`https?://[^/]+/models/.*`, "http://10.0.0.5/models/x.mar", false},
		{`http://[0-9.]+/.*`, "http://10.0.0.5/x.mar", false},
		{`http://\[[0-9a-f:]+\]/.*`, "http://[::1]/x.mar", false},
		{`.*10\.0\.0\.5.*`, "http://10.0.0.5/10.0.0.5.mar", false},
		{`http://10\.0\.0\.5/.*`, "http://10.0.0.6/x.mar", false},
		{`http://public\.example.*`, "http://public.example@10.0.0.5/x.mar", false},
		{`http://public\.example.*`, "http://10.0.0.5/x.mar?http://public.example", false},
		{`http://10\.0\.0\.5/.*`, "file://10.0.0.5/x.mar", false},
	}
	for _, tt := range tests {
		b := newBench(t, func(o *Options) { o.Allowed = []string{tt.list} })
		if got := b.namesHost(tt.url); got != tt.want {
			t.Errorf("%s names the host of %s: %v", tt.list, tt.url, got)
		}
		b = newBench(t, func(o *Options) { o.Allowed, o.Default = []string{tt.list}, true })
		if b.namesHost(tt.url) {
			t.Errorf("%s, as the default, names the host of %s", tt.list, tt.url)
		}
	}
}

// private counts who gets through to a server that only this machine can reach.
type private struct {
	hits atomic.Int64
	port string
	url  string
}

func newPrivate(t testing.TB, address string) *private {
	t.Helper()
	p := &private{}
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("this machine has no such address: %v", err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		p.hits.Add(1)
		_, _ = w.Write([]byte("secret"))
	})}}
	srv.Start()
	t.Cleanup(srv.Close)
	_, p.port, _ = net.SplitHostPort(l.Addr().String())
	p.url = srv.URL
	return p
}

const refusedText = "address, which is not to be fetched from; add its network to archive_private_networks"

func TestPrivateAddresses(t *testing.T) {
	t.Parallel()
	secret := newPrivate(t, "127.0.0.1:0")
	at := func(host string) string { return "http://" + host + ":" + secret.port + "/x.mar" }
	tests := map[string]struct {
		url    string
		change func(*Options)
		works  bool
		cause  string // unless it works; "": the usual one
	}{
		"by default":              {url: at("127.0.0.1")},
		"localhost":               {url: at("localhost")},
		"another loopback":        {url: at("127.9.9.9")},
		"mapped into IPv6":        {url: at("[::ffff:127.0.0.1]")},
		"mapped, in hex":          {url: at("[::ffff:7f00:1]")},
		"unspecified":             {url: at("0.0.0.0")},
		"unspecified by IPv6":     {url: at("[::]")},
		"in a short form":         {url: at("127.1"), cause: " "},
		"as a number":             {url: at("2130706433"), cause: " "},
		"in hex":                  {url: at("0x7f000001"), cause: " "},
		"in octal":                {url: at("0177.0.0.1"), cause: " "},
		"with a user":             {url: "http://example.com@127.0.0.1:" + secret.port + "/x.mar"},
		"metadata":                {url: "http://169.254.169.254/latest/x.mar"},
		"everything is allowed":   {url: at("127.0.0.1"), change: func(o *Options) { o.Allowed = []string{".*"} }},
		"the list does not count": {url: at("127.0.0.1"), change: func(o *Options) { o.Allowed, o.Default = []string{`http://127\.0\.0\.1.*`}, true }},
		"another network is listed": {url: at("127.0.0.1"), change: func(o *Options) {
			o.PrivateNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
		}},
		"the host is listed":      {url: at("127.0.0.1"), change: func(o *Options) { o.Allowed = []string{`http://127\.0\.0\.1:[0-9]+/.*`} }, works: true},
		"a name is listed":        {url: at("localhost"), change: func(o *Options) { o.Allowed = []string{`http://localhost:[0-9]+/.*`} }, works: true},
		"the network is listed":   {url: at("127.0.0.1"), change: everywhere, works: true},
		"listed, mapped":          {url: at("[::ffff:127.0.0.1]"), change: everywhere, works: true},
		"asked on this machine":   {url: at("127.0.0.1"), change: func(o *Options) { o.Local = true }, works: true},
		"localhost, asked here":   {url: at("LOCALHOST"), change: func(o *Options) { o.Local = true }, works: true},
		"private, asked here":     {url: "http://10.255.255.1/x.mar", change: func(o *Options) { o.Local = true }},
		"metadata, asked here":    {url: "http://169.254.169.254/x.mar", change: func(o *Options) { o.Local = true }},
		"unspecified, asked here": {url: at("0.0.0.0"), change: func(o *Options) { o.Local = true }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, tt.change)
			got, err := b.get(t, tt.url)
			if tt.works {
				if err != nil || string(got) != "secret" {
					t.Errorf("%q, %v", got, err)
				}
				return
			}
			cause := tt.cause
			if cause == "" {
				cause = refusedText
			}
			message := failedFrom(tt.url)
			if strings.Contains(tt.url, "@") {
				message = failedFrom(redact.URL(tt.url))
			}
			refused(t, err, fault.DownloadFailed, message, cause)
			if strings.Contains(b.log.String(), "tried again") {
				t.Error("it was tried again")
			}
		})
	}
}

// TestRedirects: each step is looked at as if it had been asked for, and less is allowed to it.
func TestRedirects(t *testing.T) {
	t.Parallel()
	secret := newPrivate(t, "127.0.0.1:0")
	inside := "http://127.0.0.1:" + secret.port + "/x.mar"
	// A name that means 127.0.0.2 stands for a server in the internet.
	outside := strings.Replace(newRedirector(t, inside), "127.0.0.2", "public.example", 1)
	resolver := nameServer(t, "127.0.0.2")
	listed := func(o *Options) { o.PrivateNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")} }
	tests := map[string]struct {
		change func(*Options)
		cause  string
	}{
		"to a private address": {change: listed, cause: refusedText},
		"although everything is allowed": {cause: refusedText, change: func(o *Options) {
			listed(o)
			o.Allowed = []string{".*"}
		}},
		"although it was asked here": {cause: refusedText, change: func(o *Options) {
			listed(o)
			o.Local = true
		}},
		"to what is not in the list": {cause: "which does not match any allowed URL(s)", change: func(o *Options) {
			o.Allowed = []string{`http://public\.example.*`}
		}},
		"to what is in the list": {change: func(o *Options) { o.Allowed = []string{`http://public\.example.*`, `http://127\.0\.0\.1.*`} }},
		"to a listed network":    {change: everywhere},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t, func(o *Options) {
				o.Resolver = resolver
				tt.change(o)
			})
			_, err := b.get(t, outside+"/x.mar")
			if tt.cause == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			refused(t, err, fault.DownloadFailed, failedFrom(outside+"/x.mar"), tt.cause)
		})
	}
	t.Run("from this machine to this machine", func(t *testing.T) {
		t.Parallel()
		srv := serve(t, http.RedirectHandler(inside, http.StatusFound).ServeHTTP)
		if _, err := newBench(t, func(o *Options) { o.Local = true }).get(t, srv.URL+"/x.mar"); err != nil {
			t.Error(err)
		}
	})
}

func newRedirector(t testing.TB, target string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.2:0")
	if err != nil {
		t.Skipf("this machine has no address 127.0.0.2: %v", err)
	}
	srv := &httptest.Server{Listener: l, Config: &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.RedirectHandler(target, http.StatusFound)}}
	srv.Start()
	t.Cleanup(srv.Close)
	return srv.URL
}

// TestDowngrade: https to http only where the operator's list says so.
func TestDowngrade(t *testing.T) {
	t.Parallel()
	plain := serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x")) })
	srv := httptest.NewTLSServer(http.RedirectHandler(plain.URL+"/x.mar", http.StatusFound))
	t.Cleanup(srv.Close)
	trusting := func(b *bench) *bench {
		way := b.client.Transport.(*gate) //nolint:errcheck,forcetypeassert // it is made so
		for _, tr := range []*http.Transport{way.open, way.closed} {
			tr.TLSClientConfig = srv.Client().Transport.(*http.Transport).TLSClientConfig //nolint:errcheck,forcetypeassert // a test
		}
		return b
	}
	_, err := trusting(newBench(t, everywhere)).get(t, srv.URL+"/x.mar")
	refused(t, err, fault.DownloadFailed, failedFrom(srv.URL+"/x.mar"), "it redirects from https to http://127.0.0.1")
	if _, err := trusting(newBench(t, func(o *Options) { o.Allowed = []string{`https?://127\.0\.0\.1.*`} })).get(t, srv.URL+"/x.mar"); err != nil {
		t.Error(err)
	}
	_, err = newBench(t, everywhere).get(t, srv.URL+"/y.mar")
	refused(t, err, fault.DownloadFailed, failedFrom(srv.URL+"/y.mar"), "certificate")
}

// nameServer answers each question about an IPv4 address with the next of some addresses, as names do that are made to pass a check and then to mean
// something else.
func nameServer(t testing.TB, answers ...string) *net.Resolver {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		buffer := make([]byte, 1500)
		for asked := 0; ; {
			n, from, err := c.ReadFrom(buffer)
			if err != nil {
				return
			}
			q := buffer[:n]
			end := 12
			for q[end] != 0 {
				end += int(q[end]) + 1
			}
			kind := binary.BigEndian.Uint16(q[end+1:])
			reply := append([]byte(nil), q[:end+5]...)
			binary.BigEndian.PutUint16(reply[2:], 0x8180)
			binary.BigEndian.PutUint16(reply[4:], 1)
			binary.BigEndian.PutUint16(reply[6:], 0)
			binary.BigEndian.PutUint32(reply[8:], 0)
			if kind == 1 {
				binary.BigEndian.PutUint16(reply[6:], 1)
				reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
				ip := netip.MustParseAddr(answers[asked%len(answers)]).As4()
				reply = append(reply, ip[:]...)
				asked++
			}
			_, _ = c.WriteTo(reply, from)
		}
	}()
	t.Cleanup(func() {
		_ = c.Close()
		<-done
	})
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", c.LocalAddr().String())
	}}
}

// TestRebinding: what counts is the address that is dialed, whatever the name meant a moment before.
func TestRebinding(t *testing.T) {
	t.Parallel()
	open := newPrivate(t, "127.0.0.2:0")
	secret := newPrivate(t, "127.0.0.1:"+open.port)
	b := newBench(t, func(o *Options) {
		o.PrivateNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}
		o.Resolver = nameServer(t, "127.0.0.2", "127.0.0.1")
		o.Local = true
	})
	for range 20 {
		_, err := b.get(t, "http://rebind.example:"+open.port+"/x.mar")
		if err != nil {
			if _, ok := errors.AsType[*refusedError](err); !ok {
				t.Error(err)
			}
		}
	}
	if open.hits.Load() == 0 || secret.hits.Load() != 0 {
		t.Errorf("the open server was asked %d times, the secret one %d times", open.hits.Load(), secret.hits.Load())
	}
	// A name that says localhost and means something else.
	b = newBench(t, func(o *Options) { o.Local, o.Resolver = true, nameServer(t, "127.0.0.1") })
	_, err := b.get(t, "http://intranet.example:"+open.port+"/x.mar")
	refused(t, err, fault.DownloadFailed, failedFrom("http://intranet.example:"+open.port+"/x.mar"), refusedText)
	if strings.Contains(err.(*fault.Error).Hint, "127.") { //nolint:errorlint,errcheck,forcetypeassert // what Fetch gives is a fault itself
		t.Errorf("the hint tells what a name means inside: %v", err)
	}
}

// TestProxy: the proxy makes the connection, and what can be known without it is checked nonetheless.
func TestProxy(t *testing.T) {
	t.Parallel()
	var seen atomic.Value
	proxy := serve(t, func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.RequestURI)
		if strings.Contains(r.RequestURI, "redirect") {
			http.Redirect(w, r, "http://10.0.0.5/x.mar", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("by proxy"))
	})
	through := func(o *Options) {
		u, err := url.Parse(proxy.URL)
		if err != nil {
			t.Fatal(err)
		}
		o.Proxy = http.ProxyURL(u)
		o.Resolver = nameServer(t, "10.0.0.5")
	}
	const known = "http://intranet.example/x.mar"
	for name, tt := range map[string]struct {
		url    string
		change func(*Options)
		cause  string
	}{
		"a public address":      {url: "http://93.184.216.34/x.mar"},
		"a private address":     {url: "http://10.0.0.5/x.mar", cause: refusedText},
		"metadata":              {url: "http://169.254.169.254/x.mar", cause: refusedText},
		"a name that means one": {url: known, cause: refusedText},
		"a redirect to one":     {url: "http://93.184.216.34/redirect.mar", cause: refusedText},
		"a name that is listed": {url: known, change: func(o *Options) { o.Allowed = []string{`http://intranet\.example/.*`} }},
		"a name that is not known": {url: known, change: func(o *Options) {
			o.Resolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no name server") }}
		}},
		"a broken proxy": {url: known, cause: "the proxy's URL is wrong", change: func(o *Options) {
			o.Proxy = func(*http.Request) (*url.URL, error) { return nil, errors.New("bad") }
		}},
	} {
		b := newBench(t, func(o *Options) {
			through(o)
			if tt.change != nil {
				tt.change(o)
			}
		})
		seen.Store("")
		got, err := b.get(t, tt.url)
		if tt.cause != "" {
			refused(t, err, fault.DownloadFailed, failedFrom(tt.url), tt.cause)
			continue
		}
		if err != nil || string(got) != "by proxy" || seen.Load() != tt.url {
			t.Errorf("%s: %q, %v; the proxy was asked for %v", name, got, err, seen.Load())
		}
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	pin := "#sha256=" + strings.Repeat("0", 64)
	for _, tt := range []struct {
		list  []string
		other bool // not the default
		url   string
		want  bool
	}{
		{nil, false, "http://h/x.mar", true},
		{nil, false, "HTTPS://h/x.mar", true},
		{nil, false, "file:///x.mar", true},
		{nil, false, "s3://b/x.mar", true},
		{nil, false, "gs://b/x.mar", true},
		{nil, false, "ftp://h/x.mar", false},
		{[]string{`https://a/.*\.mar`}, true, "https://a/x.mar", true},
		{[]string{`https://a/.*\.mar`}, true, "https://a/x.mar" + pin, true},
		{[]string{`https://a/.*\.mar`}, true, "https://a/x.mar#other", false},
		{[]string{`https://a/.*\.mar`}, true, "https://A/X.MAR", true},
		{[]string{`https://a/.*\.mar`}, true, "https://b/?https://a/x.mar", false},
		{[]string{`https://a/.*\.mar`}, true, "s3://b/x.mar", false},
		{[]string{`https://a/.*`, `s3://b/.*`}, true, "s3://b/x.mar", true},
		{[]string{`s3://b/.*`}, true, "s3://c/x.mar", false},
		{[]string{`file://.*|http(s)?://.*`}, false, "s3://c/x.mar", true},
		{nil, false, "s3://b/x.mar#sha256=", true}, // Fetch says what is wrong with it
		{nil, false, "s3:///", true},
		{nil, false, "s3:x.mar", false},
		{nil, false, "s3", false},
	} {
		b := newBench(t, func(o *Options) { o.Allowed, o.Default = tt.list, !tt.other })
		err := b.Allowed(tt.url)
		if (err == nil) != tt.want {
			t.Errorf("%v, %s: %v", tt.list, tt.url, err)
		}
		if err != nil {
			refused(t, err, fault.ModelNotFound, "Given URL "+tt.url+" does not match any allowed URL(s)", "allowed_urls")
			if _, _, _, fetched := b.Fetch(t.Context(), tt.url, b.dir, nil); fetched == nil || fault.Message(fetched) != fault.Message(err) {
				t.Errorf("Fetch says %v", fetched)
			}
		}
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string]Options{
		"no logger":        {},
		"a negative limit": {Logger: slog.New(slog.DiscardHandler), MaxBytes: -1},
		"a lookahead":      {Logger: slog.New(slog.DiscardHandler), Allowed: []string{"(?=x)"}},
	} {
		if _, err := New(opts); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

// TestLeftovers: what a killed server has left is removed, what another one writes is not.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	dir := t.TempDir()
	mustWrite(t, dir+"/x.mar", []byte("x"))
	for name, age := range map[string]time.Duration{
		".x.mar.123.part": 2 * time.Hour, ".x.mar.456.part": time.Minute, ".x.part": 2 * time.Hour, "x.mar.789.part": 2 * time.Hour, ".y.mar": 2 * time.Hour,
	} {
		mustWrite(t, b.dir+"/"+name, []byte("x"))
		at := time.Now().Add(-age)
		if err := os.Chtimes(b.dir+"/"+name, at, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.get(t, "file://"+dir+"/x.mar"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".x.mar.456.part", ".x.part", ".y.mar", "x.mar.789.part"}, b.files(t)); diff != "" {
		t.Error(diff)
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	b := newBench(t, nil)
	dir := t.TempDir()
	data := content(700_000, 9)
	mustWrite(t, dir+"/x.mar", data)
	for _, raw := range []string{"file://" + dir + "/x.mar", "FILE://localhost" + dir + "/x.mar", "file://" + dir + "/x.mar" + pinOf(data)} {
		if got, err := b.get(t, raw); err != nil || string(got) != string(data) {
			t.Errorf("%s: %d bytes, %v", raw, len(got), err)
		}
	}
	for raw, cause := range map[string]string{
		"file://" + dir + "/y.mar": "no such file",
		"file:///dev/zero":         "not a regular file",
		"file://" + dir:            "not a regular file",
		"file://" + dir + "/":      "does not name a file",
		"file://elsewhere/x.mar":   `names the host "elsewhere"`,
		"file://" + dir + "/x.mar#sha256=" + fmt.Sprintf("%064d", 1): "and not sha256=000",
	} {
		_, err := b.get(t, raw)
		refused(t, err, fault.DownloadFailed, failedFrom(raw), cause)
	}
	_, _, _, err := b.Fetch(t.Context(), "file://"+dir+"/x.mar", dir+"/none", nil)
	refused(t, err, fault.DownloadFailed, failedFrom("file://"+dir+"/x.mar"), "no such file")
}

// TestDialsEnd: nothing goes on being looked up or dialed for a fetch that is gone.
func TestDialsEnd(t *testing.T) {
	t.Parallel()
	ends := make(chan error, 10)
	ctx, cancel := context.WithCancel(t.Context())
	b := newBench(t, func(o *Options) {
		o.Resolver = &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			cancel() // the fetch, which is here by now
			<-ctx.Done()
			ends <- context.Cause(ctx)
			return nil, ctx.Err()
		}}
	})
	if _, _, _, err := b.Fetch(ctx, "http://far.example/x.mar", b.dir, nil); fault.KindOf(err) != fault.Cancelled {
		t.Error(err)
	}
	if err := <-ends; !errors.Is(err, context.Canceled) {
		t.Errorf("the lookup ended by itself: %v", err)
	}
}

// TestConnectionsEnd: a connection that was made for a request that is gone is closed, whoever has it.
func TestConnectionsEnd(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		owner, cancel := context.WithCancel(t.Context())
		here, there := net.Pipe()
		dial := owned(func(ctx context.Context, _, _ string) (net.Conn, error) {
			if late {
				cancel() // it is connected all the same
				<-ctx.Done()
			}
			return here, nil
		})
		c, err := dial(context.WithoutCancel(owning(owner)), "tcp", "192.0.2.1:80")
		if err != nil || c != here {
			t.Fatal(c, err)
		}
		cancel()
		if _, err := there.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Error(err)
		}
	}
	if _, err := owned(func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrNoProgress })(owning(t.Context()), "tcp", "192.0.2.1:80"); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
}
