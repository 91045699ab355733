package source

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/storage"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// googleServer is fake-gcs-server, which speaks Google's interface.
type googleServer struct{ *objectServer }

// newGoogleServer starts one with an empty bucket, models.
func newGoogleServer(t *testing.T) *googleServer {
	t.Helper()
	s := newObjectServer(t, "gcs", "github.com/fsouza/fake-gcs-server")
	data := t.TempDir()
	if err := os.Mkdir(filepath.Join(data, "models"), 0o755); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(s.address)
	if err != nil {
		t.Fatal(err)
	}
	s.args = []string{"-scheme", "http", "-host", host, "-port", port, "-public-host", s.address, "-filesystem-root", data, "-log-level", "warn"}
	s.start(t)
	t.Setenv("STORAGE_EMULATOR_HOST", s.address)
	return &googleServer{s}
}

// with does something with an object.
func (s *googleServer) with(t testing.TB, key string, do func(ctx context.Context, o *storage.ObjectHandle) error) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	client, err := storage.NewClient(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(do(ctx, client.Bucket("models").Object(key)), client.Close()); err != nil {
		t.Fatal(err)
	}
}

func (s *googleServer) put(t testing.TB, key, encoding string, data []byte) {
	t.Helper()
	s.with(t, key, func(ctx context.Context, o *storage.ObjectHandle) error {
		w := o.NewWriter(ctx)
		w.ContentEncoding = encoding
		_, err := w.Write(data)
		return errors.Join(err, w.Close())
	})
}

// TestGoogle fetches from a server that speaks Google's interface.
func TestGoogle(t *testing.T) {
	server := newGoogleServer(t)
	small, large := content(1000, 1), content(64<<20, 2)
	for key, data := range map[string][]byte{"small.mar": small, "empty.mar": {}, "a b/ü%20+?.mar": small, "deep/large.mar": large} {
		server.put(t, key, "", data)
	}
	server.put(t, "packed.mar", "gzip", small)
	server.put(t, "packed.tar.gz", "gzip", small)
	tests := map[string]fetchCase{
		"small":           {url: "gs://models/small.mar", want: small},
		"in capitals":     {url: "GS://models/small.mar", want: small},
		"empty":           {url: "gs://models/empty.mar", want: []byte{}},
		"large":           {url: "gs://models/deep/large.mar", want: large},
		"pinned":          {url: "gs://models/deep/large.mar" + pinOf(large), want: large},
		"anonymous":       {url: "gs://models/small.mar?anonymous=true", want: small},
		"a gzip file":     {url: "gs://models/packed.tar.gz", want: small},
		"packed":          {url: "gs://models/packed.mar", kind: fault.DownloadFailed, cause: "Content-Encoding gzip; upload the archive without compression"},
		"another pin":     {url: "gs://models/small.mar" + pinOf(large), kind: fault.DownloadFailed, cause: "and not sha256="},
		"too large":       {url: "gs://models/deep/large.mar", change: func(o *Options) { o.MaxBytes = 1 << 20 }, kind: fault.DownloadFailed, cause: "larger than 1048576 bytes"},
		"missing":         {url: "gs://models/none.mar", kind: fault.ModelNotFound, cause: "the object store answered"},
		"missing bucket":  {url: "gs://nobody/small.mar", kind: fault.ModelNotFound, cause: "the object store answered"},
		"not allowed":     {url: "gs://models/small.mar", change: func(o *Options) { o.Allowed = []string{"s3://.*"} }, kind: fault.ModelNotFound, cause: "allowed_urls"},
		"allowed":         {url: "gs://models/small.mar", change: func(o *Options) { o.Allowed = []string{"gs://models/.*"} }, want: small},
		"who is nobody":   {url: "gs://models/small.mar?anonymous=perhaps", kind: fault.DownloadFailed, cause: "anonymous can be true or false"},
		"unknown setting": {url: "gs://models/small.mar?access_id=-", kind: fault.DownloadFailed, cause: "the parameter access_id is not known"},
		"another universe": {
			url: "gs://models/small.mar?universe_domain=evil.example", kind: fault.DownloadFailed, cause: "the parameters universe_domain of a gs URL are for the operator",
			change: func(o *Options) { o.Allowed = []string{"gs://.*"} },
		},
		"one that is listed": {
			url: "gs://models/small.mar?universe_domain=ours.example", want: small,
			change: func(o *Options) { o.Allowed = []string{`gs://models/.*universe_domain=ours\.example`} },
		},
		"nobody listens": {
			url: "gs://models/small.mar", kind: fault.DownloadFailed, cause: "connection refused (it was tried 4 times)", env: [2]string{"STORAGE_EMULATOR_HOST", "127.0.0.1:1"},
		},
	}
	for name, tt := range tests {
		t.Run(name, tt.run)
	}
	crashes(t, server.objectServer, "gs://models/", func(key string, data []byte) { server.put(t, key, "", data) }, func(key string) {
		server.with(t, key, func(ctx context.Context, o *storage.ObjectHandle) error { return o.Delete(ctx) })
	})
}

// googleAccount writes a service account's key, as the console gives it, whose tokens a server of the test issues.
func googleAccount(t *testing.T, tokens string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "flambeau@test.invalid", "private_key_id": "1", "token_uri": tokens,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "account.json")
	mustWrite(t, path, text)
	return path
}

// TestGoogleCredentials: the metadata service, which gives a machine's own account, is one of the test's, and so is the one for a key's tokens.
func TestGoogleCredentials(t *testing.T) {
	var metadata atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/universe-domain"), strings.HasSuffix(r.URL.Path, "/universe_domain"):
			w.Header().Set("Metadata-Flavor", "Google")
			_, _ = w.Write([]byte("flambeau.invalid"))
		case strings.HasPrefix(r.URL.Path, "/computeMetadata/"):
			metadata.Add(1)
			w.Header().Set("Metadata-Flavor", "Google")
			_, _ = w.Write([]byte(`{"access_token":"of-the-machine","token_type":"Bearer","expires_in":3600}`))
		case r.URL.Path == "/token":
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = w.Write([]byte(`{"error":"invalid_grant","error_description":"Invalid JWT Signature."}`))
		}
	})
	t.Setenv("STORAGE_EMULATOR_HOST", "")
	t.Setenv("HOME", t.TempDir())
	t.Setenv("GCE_METADATA_HOST", strings.TrimPrefix(srv.URL, "http://"))
	const url = "gs://models/small.mar"
	t.Run("a file that is not there", func(t *testing.T) {
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none.json"))
		_, err := newBench(t, nil).get(t, url)
		refused(t, err, fault.ModelNotFound, "Model not found at: "+url, "set GOOGLE_APPLICATION_CREDENTIALS in the server's environment")
	})
	t.Run("a key that does not hold", func(t *testing.T) {
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", googleAccount(t, srv.URL+"/token"))
		_, err := newBench(t, nil).get(t, url)
		refused(t, err, fault.DownloadFailed, failedFrom(url), "Invalid JWT Signature")
		if strings.Contains(fmt.Sprint(err), "PRIVATE KEY") {
			t.Errorf("a secret is told: %v", err)
		}
	})
	if n := metadata.Load(); n != 0 {
		t.Errorf("the machine's own account was asked for %d times", n)
	}
	t.Run("the machine's own account", func(t *testing.T) {
		t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", "")
		const url = url + "?universe_domain=flambeau.invalid" // where nothing is
		b := newBench(t, func(o *Options) { o.Allowed = []string{`gs://models/.*\?universe_domain=flambeau\.invalid`} })
		_, err := b.get(t, url)
		refused(t, err, fault.DownloadFailed, failedFrom(url), "storage.flambeau.invalid")
		if metadata.Load() == 0 {
			t.Error("it was not asked for")
		}
		if strings.Contains(fmt.Sprint(err, b.log), "of-the-machine") {
			t.Errorf("a secret is told: %v", err)
		}
	})
}

// TestGoogleRefuses: a refusal is no missing object, although gcsblob takes it for one; fake-gcs-server refuses nothing.
func TestGoogleRefuses(t *testing.T) {
	var status atomic.Int64
	var asked atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(int(status.Load()))
		_, _ = w.Write([]byte("<?xml version='1.0' encoding='UTF-8'?><Error><Code>AccessDenied</Code><Message>Access denied.</Message></Error>"))
	})
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(srv.URL, "http://"))
	for code, times := range map[int]int64{http.StatusForbidden: 1, http.StatusUnauthorized: 1, http.StatusServiceUnavailable: 4} {
		status.Store(int64(code))
		asked.Store(0)
		_, err := newBench(t, nil).get(t, "gs://models/x.mar")
		refused(t, err, fault.DownloadFailed, failedFrom("gs://models/x.mar"), "the object store answered AccessDenied: Access denied.")
		if asked.Load() != times {
			t.Errorf("%d: asked %d times, not %d", code, asked.Load(), times)
		}
	}
}

// TestGoogleBreaksOff: Google's library would ask for the rest by itself, without a pause and for ever; here it is one try of many.
func TestGoogleBreaksOff(t *testing.T) {
	data := content(1<<20, 5)
	c := &cutter{data: data, head: http.Header{"X-Goog-Generation": {"7"}, "Last-Modified": {"Sun, 06 Nov 1994 08:49:37 GMT"}}, cuts: []int{0, 100_000, 0, 0, 200_000}}
	srv := serve(t, c.ServeHTTP)
	t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(srv.URL, "http://"))
	b := newBench(t, nil)
	got, err := b.get(t, "gs://models/x.mar")
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if told := strings.Count(b.log.String(), "a download was broken off and is tried again"); int64(told) != c.asked.Load()-1 {
		t.Errorf("asked %d times, and told of %d:\n%s", c.asked.Load(), told, b.log)
	}
}
