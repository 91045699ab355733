package source

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/flambeau-serve/flambeau/internal/redact"
)

const (
	schemeFile  = "file"
	schemeHTTP  = "http"
	schemeHTTPS = "https"
	schemeS3    = "s3"
	schemeGCS   = "gs"
	schemeAzure = "azblob"
)

// address is the URL of an archive, taken apart.
type address struct {
	raw    string // as it was asked for
	plain  string // without the pin: what allowed_urls is compared with
	scheme string // in small letters
	pin    string // the digest that the archive must have, 64 small hex digits; "" for none
	host   string // the host with its port, as it is written; of an object store, the bucket
	base   string // the last part of the path, neither decoded nor with the query: as Java's URL.getPath gives it

	parsed *url.URL   // of file, http and https URLs
	key    string     // of an object: literally what follows the bucket, as the tools of the object stores take it
	params url.Values // of an object
}

// parse takes a URL apart. When it fails, raw, plain and scheme are set nonetheless.
func parse(raw string) (*address, error) {
	a := &address{raw: raw, plain: raw}
	before, fragment, hasFragment := strings.Cut(raw, "#")
	scheme, rest, found := strings.Cut(before, "://")
	if found {
		a.scheme = strings.ToLower(scheme)
	}
	if hasFragment && looksLikePin(fragment) {
		a.plain = before
		pin, err := parsePin(fragment)
		if err != nil {
			return a, err
		}
		a.pin = pin
	}
	if !found {
		return a, errors.New("it is no URL")
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	a.host = authority[strings.LastIndexByte(authority, '@')+1:]
	a.base = path[strings.LastIndexAny(path, `/\`)+1:]
	switch a.scheme {
	case schemeS3, schemeGCS, schemeAzure:
		return a, a.parseObject(authority, path, query)
	case schemeFile, schemeHTTP, schemeHTTPS:
		return a, a.parseURL(before)
	default:
		return a, fmt.Errorf("the scheme %q is not known: it can be file, http, https, s3, gs or azblob", a.scheme)
	}
}

// looksLikePin is generous: whoever writes a digest in another way wants it to be looked at.
func looksLikePin(fragment string) bool {
	small := strings.ToLower(fragment)
	for _, name := range []string{"sha", "md5", "digest", "checksum"} {
		if strings.HasPrefix(small, name) {
			return true
		}
	}
	return false
}

const (
	pinPrefix = "sha256="
	pinDigits = 64
)

func parsePin(fragment string) (string, error) {
	digits, found := strings.CutPrefix(fragment, pinPrefix)
	if !found || len(digits) != pinDigits {
		return "", errors.New("what follows # is no digest of the form sha256= and 64 hex digits")
	}
	digits = strings.ToLower(digits)
	if _, err := hex.DecodeString(digits); err != nil {
		return "", errors.New("the digest that follows # has other letters than hex digits")
	}
	return digits, nil
}

func (a *address) parseURL(text string) error {
	u, err := url.Parse(text)
	if err != nil {
		// Its own words have the whole URL in them.
		if parts, ok := errors.AsType[*url.Error](err); ok {
			err = parts.Err
		}
		return fmt.Errorf("it cannot be read as a URL: %w", err)
	}
	if a.scheme != schemeFile && u.Hostname() == "" {
		return errors.New("the URL does not name a host")
	}
	if a.base == "" {
		return errors.New("the URL does not name a file")
	}
	a.parsed = u
	return nil
}

func (a *address) parseObject(authority, path, query string) error {
	params, err := url.ParseQuery(query)
	if err != nil {
		return fmt.Errorf("the parameters of the URL cannot be read: %w", err)
	}
	switch {
	case !isBucket(authority):
		return errors.New("the URL does not name a bucket, in the form " + a.scheme + "://bucket/key")
	case a.base == "":
		return errors.New("the URL does not name an object")
	}
	a.key, a.params = path, params
	return nil
}

// isBucket says whether a text can be a bucket's name. It becomes a part of a host's name or of a path, so nothing else may be in it.
func isBucket(text string) bool {
	const most = 222 // Google's limit, the largest one
	if text == "" || len(text) > most || strings.Contains(text, "..") || text[0] == '.' || text[0] == '-' {
		return false
	}
	for _, r := range text {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
		default:
			return false
		}
	}
	return true
}

// isObject says whether the URL is one of an object store.
func (a *address) isObject() bool {
	return a.scheme == schemeS3 || a.scheme == schemeGCS || a.scheme == schemeAzure
}

const hidden = "…"

// shown is the URL for logs and errors: without user name, password and query, which may be worth as much.
func (a *address) shown() string { return shorter(a.raw) }

// shorter is a URL without user name, password and query.
func shorter(raw string) string {
	text, fragment, hasFragment := strings.Cut(redact.URL(raw), "#")
	text, _, hasQuery := strings.Cut(text, "?")
	if hasQuery {
		text += "?" + hidden
	}
	if hasFragment && strings.HasPrefix(fragment, pinPrefix) {
		text += "#" + fragment
	}
	return text
}

// told is the URL for the one who asked, who reads it in TorchServe's messages as it was sent. Only what is a secret by its place or its name is
// taken out: the answer may be logged on its way.
func (a *address) told() string { return redact.URL(a.raw) }
