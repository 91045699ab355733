package source

import (
	"cmp"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"cloud.google.com/go/storage"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
	"google.golang.org/api/googleapi"
)

// object is an archive in an object store.
type object struct{ store objectStore }

// objectStore is one object, as its maker's library reads it.
type objectStore interface {
	// read gives the object from the byte from on. With from > 0 it fails if the object is not the one of that tag any more.
	read(ctx context.Context, from int64, tag string) (*stream, error)
	// advice says what can be done when the store refuses.
	advice() string
}

// newObject makes an origin of an object store's URL.
func (f *Fetcher) newObject(ctx context.Context, a *address) (origin, error) {
	if err := f.checkParams(a); err != nil {
		return nil, err
	}
	var s objectStore
	var err error
	switch a.scheme {
	case schemeGCS:
		s, err = newGCSObject(ctx, a)
	case schemeAzure:
		s, err = newAzureObject(a)
	default:
		s, err = newS3Object(ctx, a)
	}
	if err != nil {
		return nil, err
	}
	return &object{s}, nil
}

// dialect is what a store's URLs know of parameters.
type dialect struct {
	free    []string // say how, and may be in any URL
	closed  []string // choose servers, roles or files; nil: all others
	servers []string // those of closed whose values stand for a server, or for a part of its name
	instead string   // what an operator can set in the server's environment
}

func (a *address) dialect() dialect {
	switch a.scheme {
	case schemeGCS:
		return dialect{
			free: []string{paramAnonymous}, closed: []string{paramUniverse}, servers: []string{paramUniverse}, instead: "GOOGLE_CLOUD_UNIVERSE_DOMAIN",
		}
	case schemeAzure:
		return dialect{
			free: []string{paramAnonymous}, closed: []string{paramAccount, paramDomain, paramProtocol, paramCDN, paramEmulator},
			servers: []string{paramAccount, paramDomain}, instead: "AZURE_STORAGE_ACCOUNT and the like",
		}
	default:
		return dialect{
			free: []string{"region", paramAnonymous, "use_path_style", "s3ForcePathStyle", "dualstack", "fips"}, servers: []string{paramEndpoint},
			instead: "AWS_ENDPOINT_URL_S3 and the like",
		}
	}
}

const (
	paramAnonymous = "anonymous"
	paramEndpoint  = "endpoint"
	paramUniverse  = "universe_domain"
	paramAccount   = "storage_account"
	paramDomain    = "domain"
	paramProtocol  = "protocol"
	paramCDN       = "cdn"
	paramEmulator  = "localemu"
)

// checkParams lets those parameters pass that only say how a bucket is addressed. The others choose servers, roles and files on this machine: they are the
// operator's, whose own list must match the URL with them in it, and name the server.
func (f *Fetcher) checkParams(a *address) error {
	known := a.dialect()
	var chosen []string
	for name, values := range a.params {
		switch {
		case name == "region" && a.scheme == schemeS3 && (len(values) != 1 || !regionName.MatchString(values[0])):
			return errors.New("the parameter region does not name a region")
		case slices.Contains(known.free, name):
		case known.closed != nil && !slices.Contains(known.closed, name):
			return fmt.Errorf("the parameter %s is not known: it can be %s", name, strings.Join(slices.Concat(known.free, known.closed), ", "))
		default:
			chosen = append(chosen, name)
		}
	}
	if len(chosen) == 0 {
		return nil
	}
	slices.Sort(chosen)
	if f.opts.Default || !f.matches(a.plain) || !f.namesServers(a, known.servers) {
		article := "a " + a.scheme
		if a.scheme != schemeGCS {
			article = "an " + a.scheme
		}
		return &advisedError{
			fmt.Errorf("the parameters %s of %s URL are for the operator to allow", strings.Join(chosen, ", "), article),
			"add an expression to allowed_urls that matches the whole URL and has the endpoint's host in it, or set " + known.instead + " in the server's environment",
		}
	}
	return nil
}

// namesServers says whether the operator's own list names each server that the URL chooses.
func (f *Fetcher) namesServers(a *address, params []string) bool {
	for _, name := range params {
		values := a.params[name]
		switch {
		case len(values) == 0 || len(values) == 1 && values[0] == "":
			continue
		case len(values) > 1:
			return false
		}
		value := values[0]
		at := strings.LastIndex(a.plain, name+"="+value) // one that is written in another way is not found, and nobody lists it so
		if at < 0 {
			return false
		}
		at += len(name + "=")
		host := value
		if name == paramEndpoint {
			u, err := url.Parse(value)
			if err != nil || u.Hostname() == "" {
				return false
			}
			if host = u.Hostname(); strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			at += strings.LastIndex(value, host)
		}
		if !f.names(a.plain, at, host) {
			return false
		}
	}
	return true
}

// open reads the object from a byte on, if it is still the one of that tag.
func (o *object) open(ctx context.Context, from int64, tag string) (*stream, error) {
	if tag == "" {
		from = 0
	}
	s, err := o.store.read(ctx, from, tag)
	if from > 0 && isChanged(err) {
		s, err = o.store.read(ctx, 0, "")
	}
	if err != nil {
		return nil, o.explain(err)
	}
	return s, nil
}

// objectBody closes what was opened for the reader with it.
type objectBody struct {
	*blob.Reader
	close func() error
}

func (b *objectBody) Close() error { return errors.Join(b.Reader.Close(), b.close()) }

// errChanged is for stores that give another version than the one that was asked for.
var errChanged = errors.New("the object is another one now")

// isChanged says that the object is not the one it was.
func isChanged(err error) bool {
	status := statusOf(err)
	return errors.Is(err, errChanged) || gcerrors.Code(err) == gcerrors.FailedPrecondition || status == statusUnmatched || status == statusBadRange
}

const (
	statusMissing   = 404
	statusUnmatched = 412
	statusUnknown   = 0
)

func statusOf(err error) int {
	if amazon, ok := errors.AsType[*smithyhttp.ResponseError](err); ok {
		return amazon.HTTPStatusCode()
	}
	if google, ok := errors.AsType[*googleapi.Error](err); ok {
		return google.Code
	}
	if microsoft, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return microsoft.StatusCode
	}
	return statusUnknown
}

// explain says what is wrong in few words, and whether it may be over soon.
func (o *object) explain(err error) error {
	if _, ok := errors.AsType[*missingError](err); ok {
		return err
	}
	status, short := statusOf(err), answerOf(err)
	switch {
	case isMissing(err, status):
		return &missingError{short}
	case status == statusUnknown && isTemporary(err):
		return &temporaryError{cause: plainError(err)}
	case status == statusUnknown:
		return plainError(err)
	case status == statusTimeout, status == statusTooMany, status >= statusServer && status != statusNotDone:
		return &temporaryError{cause: short}
	case status == 401, status == statusForbidden:
		return &advisedError{short, o.store.advice()}
	}
	return short
}

// isMissing says that there is no such object or bucket. gcsblob takes a refusal for that, too, and some stores that speak S3 answer an unknown key of the account in
// this way.
func isMissing(err error, status int) bool {
	if gcerrors.Code(err) == gcerrors.NotFound {
		return status != statusForbidden
	}
	_, amazon := errors.AsType[smithy.APIError](err)
	return status == statusMissing && !amazon
}

// answerOf is what the store said, without the headers, addresses and identifiers that its library adds.
func answerOf(err error) error {
	if amazon, ok := errors.AsType[smithy.APIError](err); ok {
		return fmt.Errorf("the object store answered %s: %s", amazon.ErrorCode(), strings.TrimSpace(amazon.ErrorMessage()))
	}
	if microsoft, ok := errors.AsType[*azcore.ResponseError](err); ok {
		return fmt.Errorf("the object store answered %s", cmp.Or(microsoft.ErrorCode, fmt.Sprintf("with the status %d", microsoft.StatusCode)))
	}
	if errors.Is(err, storage.ErrObjectNotExist) || errors.Is(err, storage.ErrBucketNotExist) {
		return errors.New("the object store answered that there is no such object, or no such bucket")
	}
	google, ok := errors.AsType[*googleapi.Error](err)
	if !ok {
		return err
	}
	var said struct{ Code, Message string }
	switch {
	case xml.Unmarshal([]byte(google.Body), &said) == nil && said.Code != "":
		return fmt.Errorf("the object store answered %s: %s", said.Code, strings.TrimSpace(said.Message))
	case google.Message != "":
		return fmt.Errorf("the object store answered with the status %d: %s", google.Code, google.Message)
	}
	return fmt.Errorf("the object store answered with the status %d", google.Code)
}
