package source

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

const (
	azureAccount = "flambeautest"
	azureQuery   = "sv=2024-11-04&sr=c&sp=r&sig=not-a-secret%3D"
)

func azureKey() []byte { return []byte("not-a-secret-but-long-enough") }

// azureServer speaks as much of Azure's Blob interface as fetching needs, from its documentation: whole and partial reads, If-Match, errors, and the
// checks of shared keys and signatures.
type azureServer struct {
	mu     sync.Mutex // guards the rest
	blobs  map[string]azureBlob
	cut    int // the next answer breaks off after so many bytes
	ranges []string
	change func() // after the cut
}

type azureBlob struct {
	data   []byte
	tag    string
	public bool
}

func (s *azureServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	blob, found := s.blobs[strings.TrimPrefix(r.URL.Path, "/"+azureAccount+"/")]
	cut, change := s.cut, s.change
	s.cut, s.change = 0, nil
	s.ranges = append(s.ranges, r.Header.Get("x-ms-range"))
	s.mu.Unlock()
	w.Header().Set("x-ms-version", r.Header.Get("x-ms-version"))
	code, status := "", 0
	switch auth := r.Header.Get("Authorization"); {
	case auth != "" && auth != "SharedKey "+azureAccount+":"+azureSignature(r):
		code, status = "AuthenticationFailed", http.StatusForbidden
	case auth == "" && r.URL.Query().Get("sig") != "" && r.URL.Query().Get("sig") != "not-a-secret=":
		code, status = "AuthenticationFailed", http.StatusForbidden
	case auth == "" && r.URL.Query().Get("sig") == "" && !blob.public:
		code, status = "ResourceNotFound", http.StatusNotFound
	case !strings.HasPrefix(r.URL.Path, "/"+azureAccount+"/models/"):
		code, status = "ContainerNotFound", http.StatusNotFound
	case !found:
		code, status = "BlobNotFound", http.StatusNotFound
	case r.Header.Get("If-Match") != "" && r.Header.Get("If-Match") != blob.tag:
		code, status = "ConditionNotMet", http.StatusPreconditionFailed
	}
	if status != 0 {
		w.Header().Set("x-ms-error-code", code)
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(status)
		_, _ = fmt.Fprintf(w, "<Error><Code>%s</Code><Message>no</Message></Error>", code)
		return
	}
	r.Header.Set("Range", r.Header.Get("x-ms-range"))
	r.Header.Del("If-Match")
	w.Header().Set("ETag", blob.tag)
	w.Header().Set("x-ms-blob-type", "BlockBlob")
	out := w
	if cut > 0 {
		if change != nil {
			change()
		}
		out = &counted{ResponseWriter: w, sent: new(atomic.Int64), limit: cut, cut: true}
	}
	http.ServeContent(out, r, "x.mar", time.Unix(1e9, 0), bytes.NewReader(blob.data))
}

// azureSignature signs a request without a body as the documentation of shared keys says.
func azureSignature(r *http.Request) string {
	var names []string
	for name := range r.Header {
		if small := strings.ToLower(name); strings.HasPrefix(small, "x-ms-") {
			names = append(names, small)
		}
	}
	slices.Sort(names)
	var text strings.Builder
	text.WriteString(r.Method + "\n\n\n\n\n\n\n\n" + r.Header.Get("If-Match") + "\n\n\n\n")
	for _, name := range names {
		text.WriteString(name + ":" + r.Header.Get(name) + "\n")
	}
	text.WriteString("/" + azureAccount + r.URL.EscapedPath())
	mac := hmac.New(sha256.New, azureKey())
	_, _ = mac.Write([]byte(text.String()))
	return base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// azureEnvironment is one without credentials, and with no program of Microsoft's that could have some.
func azureEnvironment(t *testing.T, server *httptest.Server) {
	t.Helper()
	for name, value := range map[string]string{
		"AZURE_STORAGE_ACCOUNT": azureAccount, "AZURE_STORAGE_KEY": "", "AZURE_STORAGE_SAS_TOKEN": "", "AZURE_STORAGE_CONNECTION_STRING": "",
		"AZURE_STORAGEBLOB_CONNECTIONSTRING": "", "AZURE_STORAGE_DOMAIN": strings.TrimPrefix(server.URL, "http://"), "AZURE_STORAGE_PROTOCOL": "http",
		"AZURE_STORAGE_IS_LOCAL_EMULATOR": "true", "AZURE_STORAGE_IS_CDN": "", "AZURE_TOKEN_CREDENTIALS": "EnvironmentCredential",
		"AZURE_TENANT_ID": "", "AZURE_CLIENT_ID": "", "AZURE_CLIENT_SECRET": "", "HOME": t.TempDir(),
	} {
		t.Setenv(name, value)
	}
}

// TestAzure fetches from a server that speaks Azure's interface.
func TestAzure(t *testing.T) {
	small, large := content(1000, 1), content(8<<20, 2)
	server := &azureServer{blobs: map[string]azureBlob{
		"models/small.mar": {data: small, tag: `"0x1"`}, "models/empty.mar": {tag: `"0x2"`}, "models/deep/a b+ü.mar": {data: small, tag: `"0x3"`},
		"models/large.mar": {data: large, tag: `"0x4"`}, "models/public.mar": {data: small, tag: `"0x5"`, public: true},
	}}
	srv := httptest.NewServer(server)
	t.Cleanup(srv.Close)
	key := base64.StdEncoding.EncodeToString(azureKey())
	shared := map[string]string{"AZURE_STORAGE_KEY": key}
	host := strings.TrimPrefix(srv.URL, "http://")
	tests := map[string]struct {
		url    string
		env    map[string]string
		change func(*Options)
		want   []byte
		kind   fault.Kind
		cause  string // "": it works
	}{
		"small":           {url: "azblob://models/small.mar", env: shared, want: small},
		"empty":           {url: "azblob://models/empty.mar", env: shared, want: []byte{}},
		"another name":    {url: "azblob://models/deep/a b+ü.mar", env: shared, want: small},
		"pinned":          {url: "azblob://models/large.mar" + pinOf(large), env: shared, want: large},
		"another pin":     {url: "azblob://models/small.mar" + pinOf(large), env: shared, kind: fault.DownloadFailed, cause: "and not sha256="},
		"with a token":    {url: "azblob://models/small.mar", env: map[string]string{"AZURE_STORAGE_SAS_TOKEN": azureQuery}, want: small},
		"anonymous":       {url: "azblob://models/public.mar?anonymous=true", want: small},
		"not public":      {url: "azblob://models/small.mar?anonymous=true", env: shared, kind: fault.ModelNotFound, cause: "the object store answered ResourceNotFound"},
		"missing":         {url: "azblob://models/none.mar", env: shared, kind: fault.ModelNotFound, cause: "the object store answered BlobNotFound"},
		"missing bucket":  {url: "azblob://nobody/x.mar", env: shared, kind: fault.ModelNotFound, cause: "the object store answered ContainerNotFound"},
		"too large":       {url: "azblob://models/large.mar", env: shared, change: func(o *Options) { o.MaxBytes = 1 << 20 }, kind: fault.DownloadFailed, cause: "larger than 1048576 bytes"},
		"unknown setting": {url: "azblob://models/small.mar?credential=x", kind: fault.DownloadFailed, cause: "the parameter credential is not known"},
		"no credentials": { // a token would not be sent without TLS
			url: "azblob://models/small.mar", env: map[string]string{"AZURE_STORAGE_DOMAIN": "", "AZURE_STORAGE_PROTOCOL": "", "AZURE_STORAGE_IS_LOCAL_EMULATOR": ""},
			kind: fault.ModelNotFound, cause: "set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN",
		},
		"wrong key": {
			url: "azblob://models/small.mar", env: map[string]string{"AZURE_STORAGE_KEY": "Z3Vlc3NlZA=="}, kind: fault.DownloadFailed,
			cause: "the object store answered AuthenticationFailed; correct the Azure credentials",
		},
		"wrong token": {
			url: "azblob://models/small.mar", env: map[string]string{"AZURE_STORAGE_SAS_TOKEN": "sig=guessed"}, kind: fault.DownloadFailed, cause: "AuthenticationFailed",
		},
		"no account": {
			url: "azblob://models/small.mar", env: map[string]string{"AZURE_STORAGE_ACCOUNT": ""}, kind: fault.ModelNotFound, cause: "there is no Azure storage account; set",
		},
		"a connection string": {
			url: "azblob://models/small.mar", want: small,
			env: map[string]string{
				"AZURE_STORAGE_ACCOUNT":           "",
				"AZURE_STORAGE_CONNECTION_STRING": "DefaultEndpointsProtocol=http;AccountName=" + azureAccount + ";AccountKey=" + key + ";BlobEndpoint=" + srv.URL + "/" + azureAccount + ";",
			},
		},
		"an account in the URL": {
			url: "azblob://models/small.mar?storage_account=evil", env: shared, kind: fault.DownloadFailed, cause: "the parameters storage_account of an azblob URL are for the operator",
			change: func(o *Options) { o.Allowed = []string{"azblob://models/.*storage_account=[a-z0-9]+"} },
		},
		"one that is listed": {
			url: "azblob://models/small.mar?storage_account=" + azureAccount, env: map[string]string{"AZURE_STORAGE_ACCOUNT": "", "AZURE_STORAGE_SAS_TOKEN": azureQuery}, want: small,
			change: func(o *Options) { o.Allowed = []string{"azblob://models/.*storage_account=" + azureAccount} },
		},
		"not the connection string's": {
			url: "azblob://models/small.mar?storage_account=other", kind: fault.DownloadFailed, cause: "the URL chooses another server than AZURE_STORAGE_CONNECTION_STRING",
			env: map[string]string{
				"AZURE_STORAGE_ACCOUNT":           "",
				"AZURE_STORAGE_CONNECTION_STRING": "AccountName=" + azureAccount + ";AccountKey=" + key + ";BlobEndpoint=" + srv.URL + "/" + azureAccount + ";",
			},
			change: func(o *Options) { o.Allowed = []string{"azblob://models/.*storage_account=other"} },
		},
		"a domain in the URL": {
			url: "azblob://models/small.mar?domain=" + host, env: shared, kind: fault.DownloadFailed, cause: "the parameters domain",
			change: func(o *Options) { o.Allowed = []string{"azblob://.*"} },
		},
		"nobody listens": {
			url: "azblob://models/small.mar", env: map[string]string{"AZURE_STORAGE_DOMAIN": "127.0.0.1:1", "AZURE_STORAGE_KEY": key}, kind: fault.DownloadFailed,
			cause: "connection refused (it was tried 4 times)",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			azureEnvironment(t, srv)
			for name, value := range tt.env {
				t.Setenv(name, value)
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
			if name == "unknown setting" { // it is named as secrets are
				message = failedFrom("azblob://models/small.mar?credential=***")
			}
			refused(t, err, tt.kind, message, tt.cause)
			if text := fmt.Sprint(err, b.log); strings.Contains(text, key) || strings.Contains(text, "sig=") {
				t.Errorf("a secret is told: %s", text)
			}
		})
	}
	t.Run("broken off", func(t *testing.T) { brokenOff(t, srv, server, nil, large) })
	changed := content(3<<20, 3)
	t.Run("broken off, and another one", func(t *testing.T) {
		brokenOff(t, srv, server, func() { server.blobs["models/large.mar"] = azureBlob{data: changed, tag: `"0x6"`} }, changed)
	})
}

// brokenOff looks whether a fetch goes on where it was, or begins again when the blob has changed.
func brokenOff(t *testing.T, srv *httptest.Server, server *azureServer, change func(), want []byte) {
	t.Helper()
	azureEnvironment(t, srv)
	t.Setenv("AZURE_STORAGE_KEY", base64.StdEncoding.EncodeToString(azureKey()))
	server.mu.Lock()
	server.cut, server.ranges = 2<<20, nil
	if change != nil {
		server.change = func() {
			server.mu.Lock()
			defer server.mu.Unlock()
			change()
		}
	}
	server.mu.Unlock()
	b := newBench(t, nil)
	got, err := b.get(t, "azblob://models/large.mar")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	asked := []string{"", "bytes=2097152-"}
	if change != nil {
		asked = append(asked, "")
	}
	if !slices.Equal(server.ranges, asked) {
		t.Errorf("asked for %q, want %q", server.ranges, asked)
	}
	if again := strings.Contains(b.log.String(), "begins again"); again != (change != nil) {
		t.Errorf("it began again: %v\n%s", again, b.log)
	}
}
