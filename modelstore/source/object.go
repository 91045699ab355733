package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	"github.com/aws/smithy-go/logging"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	gocloudaws "gocloud.dev/aws"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"
)

const (
	// credentialsTimeout is for the whole chain: the environment, the files of the AWS tools, the platform's own service.
	credentialsTimeout = 15 * time.Second
	// defaultRegion is where S3 tells in which region a bucket is.
	defaultRegion = "us-east-1"

	regionHeader = "X-Amz-Bucket-Region"
)

// object is an archive in an object store that speaks S3.
type object struct {
	bucket string
	key    string
	config aws.Config
	adjust []func(*s3.Options)
}

// newObject makes an origin of an object store's URL.
func (f *Fetcher) newObject(ctx context.Context, a *address) (origin, error) {
	switch a.scheme {
	case schemeGCS:
		return nil, &missingError{&advisedError{errors.New("gs:// is not built in"), "Google Cloud Storage speaks S3, too: with an HMAC key as AWS_ACCESS_KEY_ID and " +
			"AWS_SECRET_ACCESS_KEY, write s3://bucket/key and set AWS_ENDPOINT_URL_S3=https://storage.googleapis.com; or give a signed https URL"}}
	case schemeAzure:
		return nil, &missingError{&advisedError{errors.New("azblob:// is not built in"), "give the https URL of the blob, with a shared access signature if it is not public"}}
	}
	if err := f.checkParams(a); err != nil {
		return nil, err
	}
	o := &object{bucket: a.host, key: a.key}
	params := maps.Clone(a.params)
	if endpoint := params.Get("endpoint"); endpoint != "" {
		o.adjust = append(o.adjust, func(so *s3.Options) { so.BaseEndpoint = &endpoint })
	}
	o.adjust = append(o.adjust, addressing(params))
	for _, name := range []string{"endpoint", "use_path_style", "s3ForcePathStyle"} {
		params.Del(name)
	}
	var err error
	if o.config, err = gocloudaws.V2ConfigFromURLParams(ctx, params); err != nil {
		return nil, fmt.Errorf("the settings for S3 cannot be read: %w", err)
	}
	if o.config.Region == "" {
		o.config.Region = defaultRegion
	}
	o.config.Logger = logging.Nop{} // it would write to the standard error
	return o, o.checkCredentials(ctx)
}

// addressing says whether the bucket is a part of the host's name or of the path: the latter, which all but a few stores know, with an endpoint of one's own.
func addressing(params url.Values) func(*s3.Options) {
	wish := cmp.Or(params.Get("use_path_style"), params.Get("s3ForcePathStyle"))
	return func(so *s3.Options) { so.UsePathStyle = wish == "true" || wish != "false" && so.BaseEndpoint != nil }
}

var regionName = regexp.MustCompile(`^[a-z0-9-]{1,40}$`)

// checkParams lets those parameters pass that only say how a bucket is addressed. The others choose servers, roles and files on this machine: they are the
// operator's, whose own list must match the URL with them in it, and name the server.
func (f *Fetcher) checkParams(a *address) error {
	var chosen []string
	for name, values := range a.params {
		switch name {
		case "region":
			if len(values) != 1 || !regionName.MatchString(values[0]) {
				return errors.New("the parameter region does not name a region")
			}
		case "anonymous", "use_path_style", "s3ForcePathStyle", "dualstack", "fips":
		default:
			chosen = append(chosen, name)
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	slices.Sort(chosen)
	if f.opts.Default || !f.matches(a.plain) || !f.namesEndpoint(a) {
		return &advisedError{
			fmt.Errorf("the parameters %s of an s3 URL are for the operator to allow", strings.Join(chosen, ", ")),
			"add an expression to allowed_urls that matches the whole URL and has the endpoint's host in it, or set AWS_ENDPOINT_URL_S3 and the like in the server's environment",
		}
	}
	return nil
}

// namesEndpoint says whether the operator's own list names the server that the URL chooses, if it chooses one.
func (f *Fetcher) namesEndpoint(a *address) bool {
	endpoint := a.params.Get("endpoint")
	if endpoint == "" {
		return true
	}
	u, err := url.Parse(endpoint)
	if err != nil || u.Hostname() == "" {
		return false
	}
	host := u.Hostname()
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return f.names(a.plain, strings.LastIndex(a.plain, host), host)
}

// checkCredentials finds out before anything else whether there are credentials: without them every answer would only be a refusal.
func (o *object) checkCredentials(ctx context.Context) error {
	if o.config.Credentials == nil || aws.IsCredentialsProvider(o.config.Credentials, aws.AnonymousCredentials{}) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, credentialsTimeout)
	defer cancel()
	if _, err := o.config.Credentials.Retrieve(ctx); err != nil {
		return &missingError{&advisedError{
			fmt.Errorf("there are no AWS credentials: %w", err),
			"set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the server's environment, or give it a profile or a role; for a public bucket add ?anonymous=true",
		}}
	}
	return nil
}

// open reads the object from a byte on, if it is still the one of that tag.
func (o *object) open(ctx context.Context, from int64, tag string) (*stream, error) {
	if tag == "" {
		from = 0
	}
	s, err := o.read(ctx, from, tag)
	if region := regionOf(err); region != "" && region != o.config.Region {
		o.config.Region = region
		s, err = o.read(ctx, from, tag)
	}
	if from > 0 && isChanged(err) {
		s, err = o.read(ctx, 0, "")
	}
	if err != nil {
		return nil, objectError(err)
	}
	return s, nil
}

func (o *object) read(ctx context.Context, from int64, tag string) (*stream, error) {
	client := s3.NewFromConfig(o.config, append(slices.Clip(o.adjust), func(so *s3.Options) {
		so.Retryer = aws.NopRetryer{} // transfer tries again
		so.DisableLogOutputChecksumValidationSkipped = true
	})...)
	bucket, err := s3blob.OpenBucket(ctx, client, o.bucket, nil)
	if err != nil {
		return nil, err
	}
	options := &blob.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		var input *s3.GetObjectInput
		if from > 0 && as(&input) {
			input.IfMatch = aws.String(tag)
		}
		return nil
	}}
	reader, err := bucket.NewRangeReader(ctx, o.key, from, -1, options)
	if err != nil {
		return nil, errors.Join(err, bucket.Close())
	}
	s := &stream{body: &objectBody{reader, bucket}, from: from, size: reader.Size()}
	var output s3.GetObjectOutput
	if reader.As(&output) {
		s.tag = aws.ToString(output.ETag)
		if output.ContentLength == nil && output.ContentRange == nil { // then Size is 0
			s.size = -1
		}
	}
	return s, nil
}

// objectBody closes the bucket with the reader.
type objectBody struct {
	*blob.Reader
	bucket *blob.Bucket
}

func (b *objectBody) Close() error { return errors.Join(b.Reader.Close(), b.bucket.Close()) }

// regionOf is the region that a bucket is in, when the answer was that it is elsewhere.
func regionOf(err error) string {
	var response *smithyhttp.ResponseError
	if !errors.As(err, &response) || response.Response == nil {
		return ""
	}
	region := response.Response.Header.Get(regionHeader)
	if !regionName.MatchString(region) {
		return ""
	}
	return region
}

// isChanged says that the object is not the one it was.
func isChanged(err error) bool {
	status := statusOf(err)
	return gcerrors.Code(err) == gcerrors.FailedPrecondition || status == statusUnmatched || status == statusBadRange
}

const (
	statusUnmatched = 412
	statusUnknown   = 0
)

func statusOf(err error) int {
	if response, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return response.HTTPStatusCode()
	}
	return statusUnknown
}

// objectError says what is wrong in few words, and whether it may be over soon.
func objectError(err error) error {
	status := statusOf(err)
	short := err
	if api, ok := errors.AsType[smithy.APIError](err); ok {
		short = fmt.Errorf("the object store answered %s: %s", api.ErrorCode(), strings.TrimSpace(api.ErrorMessage()))
	}
	switch {
	case gcerrors.Code(err) == gcerrors.NotFound:
		return &missingError{short}
	case status == statusUnknown && isTemporary(err):
		return &temporaryError{cause: plainError(err)}
	case status == statusUnknown:
		return plainError(err)
	case status == statusTimeout, status == statusTooMany, status >= statusServer && status != statusNotDone:
		return &temporaryError{cause: short}
	case status == 401, status == statusForbidden:
		return &advisedError{short, "correct the AWS credentials in the server's environment, or what they are allowed to read"}
	}
	return short
}
