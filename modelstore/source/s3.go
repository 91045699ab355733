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
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	gocloudaws "gocloud.dev/aws"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
)

const (
	// credentialsTimeout is for the whole chain: the environment, the files of the AWS tools, the platform's own service.
	credentialsTimeout = 15 * time.Second
	// defaultRegion is where S3 tells in which region a bucket is.
	defaultRegion = "us-east-1"

	regionHeader = "X-Amz-Bucket-Region"
)

// s3Object is an object in a store that speaks S3.
type s3Object struct {
	bucket string
	key    string
	config aws.Config
	adjust []func(*s3.Options)
}

func newS3Object(ctx context.Context, a *address) (*s3Object, error) {
	o := &s3Object{bucket: a.host, key: a.key}
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

// checkCredentials finds out before anything else whether there are credentials: without them every answer would only be a refusal.
func (o *s3Object) checkCredentials(ctx context.Context) error {
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

// read asks once more where the bucket is said to be.
func (o *s3Object) read(ctx context.Context, from int64, tag string) (*stream, error) {
	s, err := o.readHere(ctx, from, tag)
	if region := regionOf(err); region != "" && region != o.config.Region {
		o.config.Region = region
		return o.readHere(ctx, from, tag)
	}
	return s, err
}

func (o *s3Object) readHere(ctx context.Context, from int64, tag string) (*stream, error) {
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
	s := &stream{body: &objectBody{Reader: reader, close: bucket.Close}, from: from, size: reader.Size()}
	var output s3.GetObjectOutput
	if reader.As(&output) {
		s.tag = aws.ToString(output.ETag)
		if output.ContentLength == nil && output.ContentRange == nil { // then Size is 0
			s.size = -1
		}
	}
	return s, nil
}

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

func (o *s3Object) advice() string {
	return "correct the AWS credentials in the server's environment, or what they are allowed to read"
}
