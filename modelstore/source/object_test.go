package source

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

const (
	accessKey = "FLAMBEAUTEST"
	secretKey = "not-a-secret-but-long-enough"
)

// storeServer is a real server that speaks S3, as a process of its own.
type storeServer struct {
	binary, data, meta, address string

	mu      sync.Mutex // guards the rest
	command *exec.Cmd
}

// newStoreServer builds the server that tools/s3 pins, and starts it.
func newStoreServer(t *testing.T) *storeServer {
	t.Helper()
	if testing.Short() {
		t.Skip("it builds and starts an S3 server")
	}
	dir := t.TempDir()
	s := &storeServer{binary: filepath.Join(dir, "versitygw"), data: filepath.Join(dir, "data"), meta: filepath.Join(dir, "meta")}
	//nolint:gosec // the arguments are the test's own
	build := exec.CommandContext(t.Context(), "go", "build", "-modfile=tools/s3/go.mod", "-o", s.binary, "github.com/versity/versitygw/cmd/versitygw")
	build.Dir = filepath.Join("..", "..")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("the S3 server of tools/s3 cannot be built: %v\n%s", err, out)
	}
	if err := errors.Join(os.MkdirAll(filepath.Join(s.data, "models"), 0o755), os.Mkdir(s.meta, 0o755)); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.address = l.Addr().String()
	_ = l.Close()
	s.start(t)
	t.Cleanup(s.kill)
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_ENDPOINT_URL_S3": "http://" + s.address, "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
		"AWS_PROFILE": "", "AWS_SESSION_TOKEN": "", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": dir + "/none", "AWS_SHARED_CREDENTIALS_FILE": dir + "/none",
	} {
		t.Setenv(name, value)
	}
	return s
}

func (s *storeServer) start(t testing.TB) {
	t.Helper()
	//nolint:noctx,gosec // it lives until kill
	command := exec.Command(s.binary, "--port", s.address, "--access", accessKey, "--secret", secretKey, "--quiet", "posix", "--sidecar", s.meta, s.data)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	s.command = command
	s.mu.Unlock()
	defer func() {
		if t.Failed() {
			s.kill()
			t.Logf("the S3 server says: %s", out.String())
		}
	}()
	await(t, func() bool {
		c, err := net.DialTimeout("tcp", s.address, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
}

// kill ends the server as a crash does.
func (s *storeServer) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.command == nil {
		return
	}
	_ = s.command.Process.Kill()
	_ = s.command.Wait()
	s.command = nil
}

func (s *storeServer) bucket(t testing.TB) *blob.Bucket {
	t.Helper()
	client := s3.New(s3.Options{
		BaseEndpoint: aws.String("http://" + s.address), Region: "us-east-1", UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(accessKey, secretKey, ""),
	})
	b, err := s3blob.OpenBucket(t.Context(), client, "models", nil)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// put uploads an object in parts of 5 MiB, the smallest that S3 knows.
func (s *storeServer) put(t testing.TB, key string, data []byte) {
	t.Helper()
	b := s.bucket(t)
	defer func() { _ = b.Close() }()
	w, err := b.NewWriter(context.WithoutCancel(t.Context()), key, &blob.WriterOptions{BufferSize: 5 << 20})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestS3 fetches from a real server.
func TestS3(t *testing.T) {
	server := newStoreServer(t)
	small, large := content(1000, 1), content(64<<20, 2)
	for key, data := range map[string][]byte{"small.mar": small, "empty.mar": {}, "a b/ü%20+?.mar": small, "deep/large.mar": large} {
		server.put(t, key, data)
	}
	endpoint := "endpoint=http://" + server.address
	tests := map[string]struct {
		url    string
		env    [2]string // a variable and its value
		change func(*Options)
		want   []byte
		kind   fault.Kind
		cause  string // "": it works
	}{
		"small":              {url: "s3://models/small.mar", want: small},
		"in capitals":        {url: "S3://models/small.mar", want: small},
		"empty":              {url: "s3://models/empty.mar", want: []byte{}},
		"in parts":           {url: "s3://models/deep/large.mar", want: large},
		"pinned":             {url: "s3://models/deep/large.mar" + pinOf(large), want: large},
		"with a region":      {url: "s3://models/small.mar?region=us-east-1" + pinOf(small), want: small},
		"with path style":    {url: "s3://models/small.mar?use_path_style=true", want: small},
		"another pin":        {url: "s3://models/small.mar" + pinOf(large), kind: fault.DownloadFailed, cause: "and not sha256="},
		"too large":          {url: "s3://models/deep/large.mar", change: func(o *Options) { o.MaxBytes = 1 << 20 }, kind: fault.DownloadFailed, cause: "larger than 1048576 bytes"},
		"missing":            {url: "s3://models/none.mar", kind: fault.ModelNotFound, cause: "the object store answered NoSuchKey"},
		"missing bucket":     {url: "s3://nobody/small.mar", kind: fault.ModelNotFound, cause: "the object store answered NoSuchBucket"},
		"another region":     {url: "s3://models/small.mar?region=eu-west-9", kind: fault.DownloadFailed, cause: `expecting "us-east-1"`},
		"a bad region":       {url: "s3://models/small.mar?region=a.evil.example/", kind: fault.DownloadFailed, cause: "does not name a region"},
		"an unknown setting": {url: "s3://models/small.mar?rate_limiter_capacity=5", kind: fault.DownloadFailed, cause: "the parameters rate_limiter_capacity of an s3 URL are for the operator to allow"},
		"wrong key": {
			url: "s3://models/small.mar", kind: fault.DownloadFailed, cause: "No user exists with the provided access key ID",
			env: [2]string{"AWS_ACCESS_KEY_ID", "SOMEBODY"},
		},
		"wrong secret": {
			url: "s3://models/small.mar", kind: fault.DownloadFailed, cause: "SignatureDoesNotMatch",
			env: [2]string{"AWS_SECRET_ACCESS_KEY", "guessed"},
		},
		"no credentials": {
			url: "s3://models/small.mar", kind: fault.ModelNotFound, cause: "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the server's environment",
			env: [2]string{"AWS_ACCESS_KEY_ID", ""},
		},
		"nobody in particular": {
			url: "s3://models/small.mar?anonymous=true", kind: fault.DownloadFailed, cause: "AccessDenied",
			env: [2]string{"AWS_ACCESS_KEY_ID", ""},
		},
		"nobody listens": {
			url: "s3://models/small.mar", kind: fault.DownloadFailed, cause: "connection refused",
			env: [2]string{"AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1"},
		},
		"an endpoint in the URL": {url: "s3://models/small.mar?" + endpoint, kind: fault.DownloadFailed, cause: "the parameters endpoint of an s3 URL are for the operator to allow; add"},
		"one that everything is allowed for": {
			url: "s3://models/small.mar?" + endpoint, kind: fault.DownloadFailed, cause: "the parameters endpoint",
			change: func(o *Options) { o.Allowed = []string{".*"} },
		},
		"one that is listed": {url: "s3://models/small.mar?region=us-east-1&" + endpoint, want: small, env: [2]string{"AWS_ENDPOINT_URL_S3", ""}, change: func(o *Options) {
			o.Allowed = []string{`s3://models/.*endpoint=http://127\.0\.0\.1:[0-9]+`}
		}},
		"one that is listed, as the default": {
			url: "s3://models/small.mar?" + endpoint, kind: fault.DownloadFailed, cause: "the parameters endpoint",
			change: func(o *Options) {
				o.Allowed, o.Default = []string{`s3://models/.*endpoint=http://127\.0\.0\.1:[0-9]+`}, true
			},
		},
		"a profile that is listed": {
			url: "s3://models/small.mar?profile=other", kind: fault.DownloadFailed, cause: "the settings for S3 cannot be read",
			change: func(o *Options) { o.Allowed = []string{`s3://models/.*`} },
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if tt.env[0] != "" {
				t.Setenv(tt.env[0], tt.env[1])
			}
			b := newBench(t, tt.change)
			got, err := b.get(t, tt.url)
			if tt.cause == "" {
				if err != nil || !bytes.Equal(got, tt.want) {
					t.Errorf("%d bytes, %v", len(got), err)
				}
				return
			}
			message := failedFrom(tt.url)
			if tt.kind == fault.ModelNotFound {
				message = "Model not found at: " + tt.url
			}
			refused(t, err, tt.kind, message, tt.cause)
			if text := fmt.Sprint(err, b.log); strings.Contains(text, secretKey) || strings.Contains(text, "Signature=") {
				t.Errorf("a secret is told: %s", text)
			}
		})
	}
	t.Run("a crash in the middle", func(t *testing.T) { crash(t, server, "s3://models/deep/large.mar", large, nil) })
	changed := content(48<<20, 3)
	t.Run("a crash and another object", func(t *testing.T) {
		crash(t, server, "s3://models/deep/large.mar", changed, func() { server.put(t, "deep/large.mar", changed) })
	})
	server.put(t, "gone.mar", large)
	t.Run("a crash and no object", func(t *testing.T) {
		crash(t, server, "s3://models/gone.mar", nil, func() {
			b := server.bucket(t)
			if err := errors.Join(b.Delete(t.Context(), "gone.mar"), b.Close()); err != nil {
				t.Error(err)
			}
		})
	})
}

// crashing is a server that can be killed and started again.
type crashing interface {
	kill()
	start(t testing.TB)
}

// crash kills the server in the middle of a fetch, starts it again, and looks at what came. between is called when it is there again, before the fetch goes on.
func crash(t *testing.T, server crashing, url string, want []byte, between func()) {
	t.Helper()
	b := newBench(t, func(o *Options) { o.Pause = 50 * time.Millisecond })
	var once sync.Once
	var at, least atomic.Int64
	path, n, _, err := b.Fetch(t.Context(), url, b.dir, func(done, _ int64) {
		if done < 20<<20 {
			if at.Load() > 0 {
				least.Store(1)
			}
			return
		}
		once.Do(func() {
			server.kill()
			at.Store(done)
			server.start(t)
			if between != nil {
				between()
			}
		})
	})
	if want == nil {
		refused(t, err, fault.ModelNotFound, "Model not found at: "+url, "the object store answered")
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	if err != nil || int(n) != len(want) || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if again := strings.Contains(b.log.String(), "begins again"); again != (between != nil) || (least.Load() > 0) != again {
		t.Errorf("it began again: %v\n%s", again, b.log)
	}
	if !strings.Contains(b.log.String(), "a download was broken off and is tried again") {
		t.Errorf("it was not broken off:\n%s", b.log)
	}
}

// TestBucketElsewhere: S3 tells in which region a bucket is to who asks in another one; the store of the other tests does not.
func TestBucketElsewhere(t *testing.T) {
	data := content(3000, 4)
	var asked atomic.Int64
	srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if !strings.Contains(r.Header.Get("Authorization"), "/eu-west-3/s3/") {
			w.Header().Set("X-Amz-Bucket-Region", "eu-west-3")
			w.WriteHeader(http.StatusMovedPermanently)
			_, _ = w.Write([]byte("<Error><Code>PermanentRedirect</Code><Message>elsewhere</Message></Error>"))
			return
		}
		w.Header().Set("ETag", `"one"`)
		_, _ = w.Write(data)
	})
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_ENDPOINT_URL": srv.URL, "AWS_ENDPOINT_URL_S3": "", "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
		"AWS_PROFILE": "", "AWS_CONFIG_FILE": t.TempDir() + "/none", "AWS_SHARED_CREDENTIALS_FILE": t.TempDir() + "/none",
	} {
		t.Setenv(name, value)
	}
	got, err := newBench(t, nil).get(t, "s3://models/x.mar")
	if err != nil || !bytes.Equal(got, data) || asked.Load() != 2 {
		t.Errorf("%d bytes, %v, after %d requests", len(got), err, asked.Load())
	}
	srv.Close()
	_, err = newBench(t, nil).get(t, "s3://models/x.mar")
	refused(t, err, fault.DownloadFailed, failedFrom("s3://models/x.mar"), "connection refused (it was tried 4 times)")
	if hint := err.(*fault.Error).Hint; strings.Contains(hint, "operation error") { //nolint:errorlint,errcheck,forcetypeassert // what Fetch gives is a fault itself
		t.Errorf("the hint is long-winded: %s", hint)
	}
}
