package source

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	azblob "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
)

// azureObject is a blob of Azure.
type azureObject struct {
	container *container.Client
	key       string
}

const azureSettings = "set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN in the server's environment, or AZURE_STORAGE_CONNECTION_STRING, " +
	"or give the machine an identity; for a public container add ?anonymous=true to the URL"

func newAzureObject(a *address) (*azureObject, error) {
	anonymous, err := isAnonymous(a)
	if err != nil {
		return nil, err
	}
	options, err := azureService(a)
	if err != nil {
		return nil, err
	}
	if options.AccountName == "" {
		return nil, &missingError{&advisedError{errors.New("there is no Azure storage account"), azureSettings}}
	}
	if anonymous {
		options.SASToken = ""
	}
	service, err := azureblob.NewServiceURL(options)
	if err != nil {
		return nil, fmt.Errorf("the settings for Azure cannot be read: %w", err)
	}
	o := &azureObject{key: a.key}
	if anonymous {
		o.container, err = container.NewClientWithNoCredential(string(service)+"/"+a.host, nil)
	} else {
		o.container, err = azureblob.NewDefaultClient(service, azureblob.ContainerName(a.host))
	}
	if err != nil {
		return nil, &missingError{&advisedError{fmt.Errorf("there are no Azure credentials: %w", err), azureSettings}}
	}
	// A connection string has a server of its own in it, whatever the URL chooses.
	plain, _, _ := strings.Cut(string(service), "?")
	if chosen := a.params.Get(paramAccount) + a.params.Get(paramDomain); chosen != "" && !strings.HasPrefix(o.container.URL(), plain+"/") {
		return nil, errors.New("the URL chooses another server than AZURE_STORAGE_CONNECTION_STRING in the server's environment")
	}
	return o, nil
}

// azureService is what the environment says of the server, and then the URL.
func azureService(a *address) (*azureblob.ServiceURLOptions, error) {
	options := azureblob.NewDefaultServiceURLOptions()
	for name, values := range a.params {
		if len(values) > 1 {
			return nil, fmt.Errorf("the parameter %s is there more than once", name)
		}
		var err error
		switch value := values[0]; name {
		case paramAccount:
			options.AccountName = value
		case paramDomain:
			options.StorageDomain = value
		case paramProtocol:
			options.Protocol = value
		case paramCDN:
			options.IsCDN, err = strconv.ParseBool(value)
		case paramEmulator:
			options.IsLocalEmulator, err = strconv.ParseBool(value)
		}
		if err != nil {
			return nil, fmt.Errorf("the parameter %s can be true or false", name)
		}
	}
	return options, nil
}

// read leaves it to transfer to try again.
func (o *azureObject) read(ctx context.Context, from int64, tag string) (*stream, error) {
	ctx = policy.WithRetryOptions(ctx, policy.RetryOptions{MaxRetries: -1})
	bucket, err := azureblob.OpenBucket(ctx, o.container, nil)
	if err != nil {
		return nil, err
	}
	reader, err := bucket.NewRangeReader(ctx, o.key, from, -1, &blob.ReaderOptions{BeforeRead: func(as func(any) bool) error {
		var options *azblob.DownloadStreamOptions
		switch {
		case from == 0:
		case !as(&options):
			return errors.New("azureblob does not tell what it reads")
		default:
			match := azcore.ETag(tag)
			options.AccessConditions = &azblob.AccessConditions{ModifiedAccessConditions: &azblob.ModifiedAccessConditions{IfMatch: &match}}
		}
		return nil
	}})
	if err != nil {
		return nil, errors.Join(azureCredentials(err), bucket.Close())
	}
	s := &stream{body: &objectBody{Reader: reader, close: bucket.Close}, from: from, size: reader.Size()}
	var response azblob.DownloadStreamResponse
	if reader.As(&response) && response.ETag != nil {
		s.tag = string(*response.ETag)
	}
	if from > 0 && s.tag != tag {
		return nil, errors.Join(errChanged, s.body.Close())
	}
	return s, nil
}

// azureCredentials recognizes that none of the places where credentials can be has any: it turns out with the first request. All but the first line is a list of
// the places.
func azureCredentials(err error) error {
	type unavailable interface {
		error
		NonRetriable()
	}
	failed, isFailure := errors.AsType[*azidentity.AuthenticationFailedError](err)
	none, isNone := errors.AsType[unavailable](err)
	var text string
	switch {
	case isFailure:
		text = failed.Error()
	case isNone && strings.Contains(none.Error(), "Credential"):
		text = none.Error()
	default:
		return err
	}
	first, _, _ := strings.Cut(text, "\n")
	return &missingError{&advisedError{fmt.Errorf("there are no Azure credentials: %s", first), azureSettings}}
}

func (o *azureObject) advice() string {
	return "correct the Azure credentials in the server's environment, or give the identity the role Storage Blob Data Reader for the container"
}
