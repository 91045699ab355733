package source

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

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

// storeServer is a real server that speaks S3.
type storeServer struct{ *objectServer }

// newStoreServer starts one with an empty bucket, models.
func newStoreServer(t *testing.T) *storeServer {
	t.Helper()
	s := newObjectServer(t, "s3", "github.com/versity/versitygw/cmd/versitygw")
	dir := t.TempDir()
	data, meta := filepath.Join(dir, "data"), filepath.Join(dir, "meta")
	if err := errors.Join(os.MkdirAll(filepath.Join(data, "models"), 0o755), os.Mkdir(meta, 0o755)); err != nil {
		t.Fatal(err)
	}
	s.args = []string{"--port", s.address, "--access", accessKey, "--secret", secretKey, "--quiet", "posix", "--sidecar", meta, data}
	s.start(t)
	for name, value := range map[string]string{
		"AWS_ACCESS_KEY_ID": accessKey, "AWS_SECRET_ACCESS_KEY": secretKey, "AWS_ENDPOINT_URL_S3": "http://" + s.address, "AWS_REGION": "", "AWS_DEFAULT_REGION": "",
		"AWS_PROFILE": "", "AWS_SESSION_TOKEN": "", "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": dir + "/none", "AWS_SHARED_CREDENTIALS_FILE": dir + "/none",
	} {
		t.Setenv(name, value)
	}
	return &storeServer{s}
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
	tests := map[string]fetchCase{
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
		t.Run(name, tt.run)
	}
	crashes(t, server.objectServer, "s3://models/", func(key string, data []byte) { server.put(t, key, data) }, func(key string) {
		b := server.bucket(t)
		if err := errors.Join(b.Delete(t.Context(), key), b.Close()); err != nil {
			t.Error(err)
		}
	})
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
