// Package client asks a running server over its management API.
package client

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/flambeau-serve/flambeau/internal/malformed"
)

// Options say which server is asked, and how.
type Options struct {
	URL      string // http://host:port, https://host:port, unix:/path, or host:port
	Origin   string // where the URL comes from, for messages; "" when the user named it
	Token    string // of the management API, "" for none
	RootFile string // PEM file with a certificate that is trusted besides the system's, "" for none
	Insecure bool   // any certificate is trusted
	Agent    string // what the client calls itself, "" for nothing of its own
	Timeout  time.Duration
}

// Client asks one server. Its methods are safe for concurrent use.
type Client struct {
	base   *url.URL
	shown  string
	origin string
	token  string
	agent  string
	http   *http.Client
}

// UnreachableError means that no server answered.
type UnreachableError struct {
	URL, Origin string
	Cause       error
}

// Error says where it looked.
func (e *UnreachableError) Error() string {
	where := e.URL
	if e.Origin != "" {
		where += " (" + e.Origin + ")"
	}
	if _, untrusted := errors.AsType[*tls.CertificateVerificationError](e.Cause); untrusted {
		return fmt.Sprintf("the certificate of the server at %s is not trusted: %s; --insecure trusts any", where, reason(e.Cause))
	}
	return fmt.Sprintf("no server answers at %s: %s; start one, or name its management address by --url or FLAMBEAU_URL", where, reason(e.Cause))
}

// Unwrap gives the cause.
func (e *UnreachableError) Unwrap() error { return e.Cause }

// reason leaves out the method and the URL, which net/http puts before.
func reason(err error) string {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Err != nil {
		err = op.Err
	}
	return err.Error()
}

// RefusedError is an answer that is no success.
type RefusedError struct {
	Status        int
	Kind, Message string // as TorchServe's error JSON has them
	Hint          string // what to do about it, "" when the server does not say
}

// Absent says that the server does not have what was asked for at all, or nothing below /admin: it may be a TorchServe.
func (e *RefusedError) Absent() bool {
	return e.Kind == "ResourceNotFoundException" || e.Kind == "MethodNotAllowedException"
}

// Error gives the server's message, and what to do about a missing key.
func (e *RefusedError) Error() string {
	if e.Kind == "InvalidKeyException" {
		return e.Message + "\ngive the management key by --token or FLAMBEAU_TOKEN, or run this where the server has written key_file.json"
	}
	if e.Hint != "" {
		return e.Message + "\n" + e.Hint
	}
	return e.Message
}

// New checks the URL.
func New(opts Options) (*Client, error) {
	c := &Client{shown: opts.URL, origin: opts.Origin, token: opts.Token, agent: opts.Agent}
	transport := &http.Transport{DisableKeepAlives: true} // TorchServe closes connections after errors; a command asks little
	text := opts.URL
	if socket, ok := strings.CutPrefix(text, "unix:"); ok {
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", socket)
		}
		text = "http://localhost"
	}
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	base, err := url.Parse(text)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, fmt.Errorf("%q is no management address: it has to be http://host:port, https://host:port or unix:/path", opts.URL)
	}
	base.Host = reachable(base.Host)
	base.Path = strings.TrimRight(base.Path, "/")
	c.base = base
	if transport.TLSClientConfig, err = trust(opts); err != nil {
		return nil, err
	}
	c.http = &http.Client{Transport: transport, Timeout: opts.Timeout}
	return c, nil
}

// reachable replaces the address of all interfaces, on which a server listens, by one that can be connected to.
func reachable(hostPort string) string {
	host, port, err := net.SplitHostPort(hostPort)
	if err != nil {
		return hostPort
	}
	switch host {
	case "0.0.0.0":
		host = "127.0.0.1"
	case "::":
		host = "::1"
	}
	return net.JoinHostPort(host, port)
}

func trust(opts Options) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: opts.Insecure} //nolint:gosec // only when the user asks for it
	if opts.RootFile == "" {
		return config, nil
	}
	pem, err := os.ReadFile(opts.RootFile)
	if err != nil {
		return config, nil //nolint:nilerr // the server's file; on another machine than the server's there is none
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		pool = x509.NewCertPool()
	}
	pool.AppendCertsFromPEM(pem)
	config.RootCAs = pool
	return config, nil
}

// maxAnswer bounds what is read of an answer.
const maxAnswer = 64 << 20

func (c *Client) get(ctx context.Context, query url.Values, segments ...string) (json.RawMessage, error) {
	return c.Ask(ctx, http.MethodGet, query, nil, segments...)
}

// Ask gives the JSON that answers a request. Segments of the path are escaped; a body, nil for none, is sent as JSON.
func (c *Client) Ask(ctx context.Context, method string, query url.Values, body any, segments ...string) (json.RawMessage, error) {
	target := *c.base
	for _, s := range segments {
		target.RawPath = target.EscapedPath() + "/" + url.PathEscape(s)
		target.Path += "/" + s
	}
	target.RawQuery = query.Encode()
	text, err := bodyOf(body)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, target.String(), text)
	if err != nil {
		return nil, err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.agent != "" {
		req.Header.Set("User-Agent", c.agent)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, &UnreachableError{URL: c.shown, Origin: c.origin, Cause: err}
	}
	defer func() { _ = resp.Body.Close() }() // it was only read from
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, &UnreachableError{URL: c.shown, Origin: c.origin, Cause: err}
	}
	if resp.StatusCode/100 != 2 {
		return nil, refused(resp, answer)
	}
	if !json.Valid(answer) {
		return nil, fmt.Errorf("what answers at %s is no model server's management API: %.60q", c.shown, answer)
	}
	return answer, nil
}

// bodyOf writes a body as JSON.
func bodyOf(body any) (io.Reader, error) {
	if body == nil {
		return http.NoBody, nil
	}
	text, err := json.Marshal(body)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be written: %w", err)
	}
	return bytes.NewReader(text), nil
}

func refused(resp *http.Response, body []byte) error {
	var said struct {
		Code    int    `json:"code"`
		Type    string `json:"type"`
		Message string `json:"message"`
	}
	if err := json.Unmarshal(body, &said); err != nil || said.Message == "" {
		said.Message = fmt.Sprintf("the server answered %s: %s", resp.Status, bytes.TrimSpace(body[:min(len(body), 200)]))
	}
	return &RefusedError{Status: resp.StatusCode, Kind: said.Type, Message: said.Message, Hint: resp.Header.Get("X-Flambeau-Hint")}
}

// Names lists the models' names, over as many pages as there are.
func (c *Client) Names(ctx context.Context) ([]string, error) {
	var names []string
	query := url.Values{"limit": {"100"}}
	for {
		raw, err := c.get(ctx, query, "models")
		if err != nil {
			return nil, err
		}
		var page struct {
			Next   string `json:"nextPageToken"`
			Models []struct {
				Name string `json:"modelName"`
			} `json:"models"`
		}
		if err := json.Unmarshal(raw, &page); err != nil {
			return nil, fmt.Errorf("what answers at %s is no model server's management API: %s", c.shown, malformed.JSON(err))
		}
		for _, m := range page.Models {
			names = append(names, m.Name)
		}
		if page.Next == "" || len(page.Models) == 0 {
			return names, nil
		}
		query.Set("next_page_token", page.Next)
	}
}

// Describe gives the descriptions of a model: of one version, of the default one for "", or of all for "all".
func (c *Client) Describe(ctx context.Context, name, version string) ([]json.RawMessage, error) {
	// A server that knows the parameter adds keys that TorchServe does not have; others ignore it.
	details := url.Values{"details": {"true"}}
	segments := []string{"models", name}
	if version != "" {
		segments = append(segments, version)
	}
	raw, err := c.get(ctx, details, segments...)
	var no *RefusedError
	if version == "all" && errors.As(err, &no) && no.Kind != "ModelNotFoundException" {
		// Where inference and management share an address, TorchServe only describes default versions.
		raw, err = c.get(ctx, details, "models", name)
	}
	if err != nil {
		return nil, err
	}
	var all []json.RawMessage
	if err := json.Unmarshal(raw, &all); err != nil {
		return nil, fmt.Errorf("what answers at %s is no model server's management API: %s", c.shown, malformed.JSON(err))
	}
	return all, nil
}
