package source

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// syncBuffer is a log that several goroutines write.
type syncBuffer struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// bench is a fetcher, the folder it writes to and its log.
type bench struct {
	*Fetcher
	dir string
	log *syncBuffer
}

// newBench makes a fetcher that is quick to give up, and that goes through no proxy.
func newBench(t testing.TB, change func(*Options)) *bench {
	t.Helper()
	b := &bench{dir: t.TempDir(), log: &syncBuffer{}}
	opts := Options{
		Pause: time.Millisecond, Stall: 5 * time.Second, Proxy: func(*http.Request) (*url.URL, error) { return nil, nil },
		Logger: slog.New(slog.NewTextHandler(b.log, nil)),
	}
	if change != nil {
		change(&opts)
	}
	f, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	b.Fetcher = f
	return b
}

// everywhere is the list of an operator who lets this machine's servers be fetched from.
func everywhere(o *Options) {
	o.PrivateNetworks = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
}

// get fetches, and gives what came. After a failure nothing may be left.
func (b *bench) get(t testing.TB, raw string) ([]byte, error) {
	t.Helper()
	var last, total int64
	path, n, digest, err := b.Fetch(t.Context(), raw, b.dir, func(done, of int64) { last, total = done, of })
	if err != nil {
		if left := b.files(t); len(left) > 0 {
			t.Errorf("left after a failure: %v", left)
		}
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(data); digest != "sha256:"+hex.EncodeToString(sum[:]) || n != int64(len(data)) {
		t.Errorf("it is said to have %d bytes and the digest %s; there are %d with %x", n, digest, len(data), sum)
	}
	if len(data) > 0 && (last != n || total != n && total != -1) {
		t.Errorf("progress ended with %d of %d, and %d bytes came", last, total, n)
	}
	if filepath.Dir(path) != b.dir || !strings.HasPrefix(filepath.Base(path), ".") {
		t.Errorf("it was written to %s, which is no hidden file of %s", path, b.dir)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := os.Remove(path); err != nil {
		t.Error(err)
	}
	return data, nil
}

func (b *bench) files(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
	}
	return names
}

// refused checks that an error has TorchServe's words for the client, and says what was wrong to whoever reads the hint or the log.
func refused(t testing.TB, err error, kind fault.Kind, message, cause string) {
	t.Helper()
	if err == nil {
		t.Fatalf("it was fetched; %s was expected", cause)
	}
	if fault.KindOf(err) != kind || fault.Message(err) != message {
		t.Errorf("%v: %q, want %v: %q", fault.KindOf(err), fault.Message(err), kind, message)
	}
	f, ok := err.(*fault.Error) //nolint:errorlint // what Fetch gives is a fault itself
	if !ok {
		t.Fatalf("%T is no fault", err)
	}
	if !strings.Contains(f.Hint, cause) {
		t.Errorf("the hint %q does not say %q", f.Hint, cause)
	}
}

func failedFrom(raw string) string { return "Failed to download archive from: " + raw }

func serve(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// content gives bytes that differ from place to place.
func content(n int, seed byte) []byte {
	data := make([]byte, n)
	for i := range data {
		data[i] = byte(i*7>>3) ^ byte(i) ^ seed
	}
	return data
}

func pinOf(data []byte) string {
	sum := sha256.Sum256(data)
	return "#sha256=" + hex.EncodeToString(sum[:])
}

// cutter serves a file as a web server does, but breaks off the first answers after so many bytes of the body.
type cutter struct {
	data  []byte
	head  http.Header
	cuts  []int // for the first answer, the second one …; then none
	plain bool  // knows no ranges

	asked  atomic.Int64
	ranges sync.Map // answer number → its Range header
	sent   atomic.Int64
}

func (c *cutter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := int(c.asked.Add(1)) - 1
	c.ranges.Store(n, r.Header.Get("Range"))
	maps.Copy(w.Header(), c.head)
	var out http.ResponseWriter = &counted{ResponseWriter: w, sent: &c.sent}
	if n < len(c.cuts) {
		out = &counted{ResponseWriter: w, sent: &c.sent, limit: c.cuts[n], cut: true}
	}
	if c.plain {
		w.Header().Set("Content-Length", strconv.Itoa(len(c.data)))
		_, _ = out.Write(c.data)
		return
	}
	modified := time.Time{}
	if text := w.Header().Get("Last-Modified"); text != "" {
		modified, _ = http.ParseTime(text)
	}
	http.ServeContent(out, r, "x.mar", modified, bytes.NewReader(c.data))
}

// counted breaks the connection when its limit is reached.
type counted struct {
	http.ResponseWriter
	sent  *atomic.Int64
	limit int
	cut   bool
}

func (c *counted) Write(p []byte) (int, error) {
	if !c.cut || len(p) <= c.limit {
		n, err := c.ResponseWriter.Write(p)
		c.limit -= n
		c.sent.Add(int64(n))
		return n, err
	}
	n, _ := c.ResponseWriter.Write(p[:c.limit])
	c.sent.Add(int64(n))
	c.ResponseWriter.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // a test
	panic(http.ErrAbortHandler)
}

// rawServer answers each connection by itself.
func rawServer(t testing.TB, answer func(n int, c net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	all.Go(func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				defer func() { _ = c.Close() }()
				buffer := make([]byte, 4096)
				for text := ""; !strings.Contains(text, "\r\n\r\n"); {
					k, err := c.Read(buffer)
					if err != nil {
						return
					}
					text += string(buffer[:k])
				}
				answer(n, c)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return "http://" + l.Addr().String()
}

func mustWrite(t testing.TB, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

var _ io.Writer = (*syncBuffer)(nil)
