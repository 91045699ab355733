package source

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync/atomic"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"google.golang.org/api/option"
)

// gcsObject is an object of Google Cloud Storage.
type gcsObject struct {
	bucket  string
	key     string
	gzip    bool // the archive itself is a gzip file
	options []option.ClientOption
}

// newGCSObject finds out before anything else whether there are credentials.
func newGCSObject(ctx context.Context, a *address) (*gcsObject, error) {
	o := &gcsObject{bucket: a.host, key: a.key, gzip: isGzipName(a.base)}
	anonymous, err := isAnonymous(a)
	if err != nil {
		return nil, err
	}
	if anonymous {
		o.options = append(o.options, option.WithoutAuthentication())
	} else {
		o.options = append(o.options, option.WithScopes(storage.ScopeReadOnly))
	}
	if domain := a.params.Get(paramUniverse); domain != "" {
		o.options = append(o.options, option.WithUniverseDomain(domain))
	}
	client, err := o.client(ctx)
	if err != nil {
		return nil, &missingError{&advisedError{
			fmt.Errorf("there are no Google credentials: %w", err),
			"set GOOGLE_APPLICATION_CREDENTIALS in the server's environment to a file with a service account's key, or run it where the machine has an account; for a " +
				"public bucket add ?anonymous=true",
		}}
	}
	return o, client.Close()
}

// isAnonymous says whether the object is to be asked for without credentials.
func isAnonymous(a *address) (bool, error) {
	text := a.params.Get(paramAnonymous)
	if text == "" {
		return false, nil
	}
	anonymous, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.New("the parameter anonymous can be true or false")
	}
	return anonymous, nil
}

// client makes a client that gives up at once: transfer tries again.
func (o *gcsObject) client(ctx context.Context) (*storage.Client, error) {
	client, err := storage.NewClient(ctx, o.options...)
	if err != nil {
		return nil, err
	}
	client.SetRetry(storage.WithPolicy(storage.RetryNever))
	return client, nil
}

// read names the version by its generation, which no two versions share.
func (o *gcsObject) read(ctx context.Context, from int64, tag string) (*stream, error) {
	client, err := o.client(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	var opened atomic.Bool
	s, err := o.open(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GetConn: func(string) {
		if opened.Load() {
			cancel(errAgain)
		}
	}}), client, from, tag)
	if err != nil {
		cancel(nil)
		return nil, errors.Join(err, client.Close())
	}
	opened.Store(true)
	s.body = &unresumed{ReadCloser: s.body, cause: func() error { return context.Cause(ctx) }, close: func() error {
		cancel(nil)
		return client.Close()
	}}
	return s, nil
}

func (o *gcsObject) open(ctx context.Context, client *storage.Client, from int64, tag string) (*stream, error) {
	generation, err := int64(0), error(nil)
	if from > 0 {
		if generation, err = strconv.ParseInt(tag, 10, 64); err != nil {
			return nil, errChanged
		}
	}
	bucket, err := gcsblob.OpenBucket(ctx, nil, o.bucket, &gcsblob.Options{Client: client})
	if err != nil {
		return nil, err
	}
	reader, err := bucket.NewRangeReader(ctx, o.key, from, -1, &blob.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		var handle **storage.ObjectHandle
		if !as(&handle) {
			return errors.New("gcsblob does not tell what it reads")
		}
		*handle = (*handle).ReadCompressed(true) // it is to arrive as it is
		if from > 0 {
			*handle = (*handle).If(storage.Conditions{GenerationMatch: generation})
		}
		return nil
	}})
	if err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	s := &stream{body: &objectBody{Reader: reader, close: bucket.Close}, from: from, size: reader.Size()}
	if err := o.check(reader, s, generation); err != nil {
		return nil, errors.Join(err, s.body.Close())
	}
	return s, nil
}

// check looks at what is about to come, and names its version. A store that only resembles Google's may take no notice of the condition.
func (o *gcsObject) check(reader *blob.Reader, s *stream, generation int64) error {
	var raw *storage.Reader
	if !reader.As(&raw) {
		return errors.New("gcsblob does not tell what it reads")
	}
	if s.from > 0 && (raw.Attrs.Generation != generation || raw.Attrs.StartOffset != s.from) {
		return errChanged
	}
	if raw.Attrs.Generation > 0 {
		s.tag = strconv.FormatInt(raw.Attrs.Generation, 10)
	}
	if strings.EqualFold(raw.Attrs.ContentEncoding, "gzip") && !o.gzip {
		return &advisedError{errors.New("it is stored with the Content-Encoding gzip"), "upload the archive without compression (not with gcloud storage cp -Z)"}
	}
	return nil
}

func (o *gcsObject) advice() string {
	return "correct the Google credentials in the server's environment, or give the account the role Storage Object Viewer for the bucket"
}

// errAgain is what ends a read when Google's library wants to go on by itself: it would do so without a pause and as often as it likes.
var errAgain = errors.New("the connection was lost")

// unresumed is the body of an answer, and nothing of another one.
type unresumed struct {
	io.ReadCloser
	cause func() error
	close func() error
}

func (u *unresumed) Read(p []byte) (int, error) {
	n, err := u.ReadCloser.Read(p)
	if err != nil && errors.Is(u.cause(), errAgain) {
		return n, errAgain
	}
	return n, err
}

func (u *unresumed) Close() error { return errors.Join(u.ReadCloser.Close(), u.close()) }
