package archive

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
	"github.com/flambeau-serve/flambeau/modelstore/source"
)

func TestOpenForms(t *testing.T) { //nolint:tparallel // the subtests share a folder that is gone with its last user
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m.mar", makeZip(t, goodEntries()))
	var inFolder []entry
	for _, e := range goodEntries() {
		e.name = "m/" + e.name
		inFolder = append(inFolder, e)
	}
	p.write(t, "store/m.tar.gz", makeTar(t, append([]entry{{name: "pax", typ: tar.TypeXGlobalHeader}, {name: "m/"}}, inFolder...)))
	for _, base := range []string{"store/plain", "elsewhere/plain2", "store/wrapped/inner"} {
		for _, e := range goodEntries() {
			if !strings.HasSuffix(e.name, "/") {
				p.write(t, base+"/"+e.name, []byte(e.text))
			}
		}
	}
	s := p.open(t, nil)
	tests := []struct {
		name, url, base string
		inPlace         bool
		real            string
	}{
		{name: "file in the store", url: "m.mar", base: "m"},
		{name: "folders before the name do not count", url: "some/where/m.mar", base: "m"},
		{name: "absolute", url: "/abs/m.mar", base: "m"},
		{name: "an unknown scheme", url: "xyz://bucket/m.mar", base: "m"},
		{name: "ftp with a query", url: "ftp://h/m.mar?x=1", base: "m_mar?x=1"},
		{name: "tar.gz", url: "m.tar.gz", base: "m_tar_gz"},
		{name: "folder in the store", url: "plain", base: "plain", inPlace: true, real: "store/plain"},
		{name: "folder anywhere", url: p.dir + "/elsewhere/plain2", base: "plain2", inPlace: true, real: "elsewhere/plain2"},
		{name: "with a slash", url: p.dir + "/elsewhere/plain2/", base: "", inPlace: true, real: "elsewhere/plain2"},
		{name: "a folder that holds one folder", url: "wrapped", base: "wrapped", inPlace: true, real: "store/wrapped/inner"},
	}
	for _, tt := range tests { // one after the other: the same archive has one folder for all that use it
		t.Run(tt.name, func(t *testing.T) {
			a := mustOpen(t, s, tt.url)
			if a.URL != tt.url || a.InPlace != tt.inPlace || !a.HasManifest || a.Fetched {
				t.Errorf("got %+v", a)
			}
			if tt.base != "m_mar?x=1" && a.FileBase != tt.base {
				t.Errorf("FileBase = %q, want %q", a.FileBase, tt.base)
			}
			layout := regexp.MustCompile("^" + regexp.QuoteMeta(p.temp) + "/models/[0-9a-f]{32}$")
			dir := a.Dir
			if tt.inPlace {
				realDir, err := filepath.EvalSymlinks(a.Dir)
				if err != nil || realDir != filepath.Join(p.dir, tt.real) {
					t.Errorf("the link leads to %q (%v), want %q", realDir, err, tt.real)
				}
				dir = filepath.Dir(a.Dir)
			}
			if !layout.MatchString(dir) {
				t.Errorf("Dir = %q is not where TorchServe would have it", a.Dir)
			}
			if got := a.Manifest.Model.ModelName; got != "m" {
				t.Errorf("model name %q", got)
			}
			if lo, hi, ok := a.Settings.Workers(); lo != 1 || hi != 2 || !ok {
				t.Errorf("workers %d to %d (%v)", lo, hi, ok)
			}
			text, err := os.ReadFile(filepath.Join(a.Dir, "sub/run.sh"))
			if err != nil || string(text) != "#!/bin/sh\n" {
				t.Errorf("sub/run.sh: %q, %v", text, err)
			}
			if err := a.Close(); err != nil {
				t.Fatal(err)
			}
			if err := a.Close(); err != nil {
				t.Errorf("a second Close: %v", err)
			}
			if _, err := os.Lstat(dir); !os.IsNotExist(err) {
				t.Errorf("%s is still there (%v)", dir, err)
			}
			if tt.inPlace {
				if _, err := os.Stat(filepath.Join(p.dir, tt.real, "handler.py")); err != nil {
					t.Errorf("the user's folder lost a file: %v", err)
				}
			}
		})
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	p.write(t, "store/m.mar", makeZip(t, []entry{
		{name: "plain", text: "x", mode: 0o777 &^ 0o111},
		{name: "run", text: "x", mode: 0o4755},
		{name: "dir/", mode: os.ModeDir},
		{name: "dir/locked", text: "x", mode: 0o000 | 0o001},
	}))
	a := mustOpen(t, p.open(t, nil), "m.mar")
	for name, want := range map[string]os.FileMode{"plain": 0o644, "run": 0o755, "dir": 0o755 | os.ModeDir, "dir/locked": 0o644} {
		info, err := os.Stat(filepath.Join(a.Dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode(); got != want {
			t.Errorf("%s has mode %v, want %v", name, got, want)
		}
	}
	if info, err := os.Stat(a.Dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the model's folder can be seen by others: %v, %v", info.Mode(), err)
	}
}

// TestObjectStore: URLs of object stores go to the fetcher. Nobody is asked whether this machine has an account: the file that has it is not there.
func TestObjectStore(t *testing.T) {
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none.json"))
	s := newPlace(t).open(t, nil)
	_, err := s.Open(t.Context(), "gs://b/x.mar")
	if fault.KindOf(err) != fault.ModelNotFound || fault.Message(err) != "Model not found at: gs://b/x.mar" || !strings.Contains(err.Error(), "none.json") {
		t.Error(err)
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	zeros := strings.Repeat("\x00", 4<<20)
	good := makeZip(t, goodEntries())
	tests := []struct {
		name, file string
		data       []byte
		url        string
		kind       fault.Kind
		says       string // the whole message, or its beginning when it ends with …
	}{
		{name: "empty url", url: "", kind: fault.ModelNotFound, says: "empty url"},
		{name: "dots", url: "../store/m.mar", kind: fault.ModelNotFound, says: "Relative path is not allowed in url: ../store/m.mar"},
		{name: "dots inside", url: "a..b.mar", kind: fault.ModelNotFound, says: "Relative path is not allowed in url: a..b.mar"},
		{name: "absent", url: "nope.mar", kind: fault.ModelNotFound, says: "Model not found at: nope.mar"},
		{name: "absent by a scheme", url: "xyz://b/x.mar", kind: fault.ModelNotFound, says: "Model not found at: xyz://b/x.mar"},
		{name: "a slash does not mean the store", url: "nope/", kind: fault.ModelNotFound, says: "Model not found at: nope/"},
		{name: "nul byte", url: "a\x00.mar", kind: fault.ModelNotFound, says: "Model not found at: a\x00.mar"},
		{name: "cut off", file: "t.mar", data: good[:len(good)-30], url: "t.mar", kind: fault.Internal, says: "Failed to save model: t.mar"},
		{
			name: "damaged", file: "t.mar", data: damage(good), url: "t.mar", kind: fault.Internal, says: "Failed to save model: t.mar",
		},
		{
			name: "slip", file: "t.mar", data: makeZip(t, []entry{{name: "../../slip", text: "x"}}), url: "t.mar",
			kind: fault.Internal, says: "Failed to save model: t.mar",
		},
		{
			name: "slip to a neighbour of the same prefix", file: "t.mar", data: makeZip(t, []entry{{name: "a/../../x", text: "x"}}), url: "t.mar",
			kind: fault.Internal, says: "Failed to save model: t.mar",
		},
		{
			name: "file as a folder", file: "t.mar", data: makeZip(t, []entry{{name: "a", text: "x"}, {name: "a/b", text: "x"}}), url: "t.mar",
			kind: fault.Internal, says: "Failed to save model: t.mar",
		},
		{
			name: "absolute entry", file: "t.mar", data: makeZip(t, []entry{{name: "/etc/x", text: "x"}}), url: "t.mar",
			kind: fault.InvalidModel, says: `Model archive t.mar is refused: its entry "/etc/x" has an absolute name`,
		},
		{
			name: "link", file: "t.mar", data: makeZip(t, []entry{{name: "l", text: "/etc/passwd", mode: os.ModeSymlink | 0o777}}), url: "t.mar",
			kind: fault.InvalidModel, says: `Model archive t.mar is refused: its entry "l" is a symbolic link`,
		},
		{
			name: "twice", file: "t.mar", data: makeZip(t, []entry{{name: "a", text: "x"}, {name: "./a", text: "y"}}), url: "t.mar",
			kind: fault.InvalidModel, says: `Model archive t.mar is refused: it has more than one entry named "a"`,
		},
		{
			name: "a file and a folder", file: "t.mar", data: makeZip(t, []entry{{name: "a", text: "x"}, {name: "a/"}}), url: "t.mar",
			kind: fault.InvalidModel, says: `Model archive t.mar is refused: it has a file and a folder named "a"`,
		},
		{
			name: "bomb", file: "t.mar", data: makeZip(t, []entry{{name: "z", text: zeros}}), url: "t.mar",
			kind: fault.InvalidModel, says: "Model archive t.mar is refused: it unpacks to more than 100 times its size…",
		},
		{
			name: "too many entries", file: "t.mar", data: makeZip(t, make10("e")), url: "t.mar",
			kind: fault.InvalidModel, says: "Model archive t.mar is refused: it has more than 8 entries",
		},
		{
			name: "long name", file: "t.mar", data: makeZip(t, []entry{{name: strings.Repeat("x/", 500), text: ""}}), url: "t.mar",
			kind: fault.InvalidModel, says: "Model archive t.mar is refused: the name of an entry is longer than 300 bytes…",
		},
		{
			name: "no gzip", file: "t.tar.gz", data: []byte("hello"), url: "t.tar.gz", kind: fault.Internal, says: "Failed to save model: t.tar.gz",
		},
		{
			name: "tar slip", file: "t.tar.gz", data: makeTar(t, []entry{{name: "m/../../x", text: "x"}}), url: "t.tar.gz",
			kind: fault.Internal, says: "Failed to save model: t.tar.gz",
		},
		{
			name: "tar absolute", file: "t.tar.gz", data: makeTar(t, []entry{{name: "/x", text: "x"}}), url: "t.tar.gz",
			kind: fault.InvalidModel, says: `Model archive t.tar.gz is refused: its entry "/x" has an absolute name`,
		},
		{
			name: "tar link", file: "t.tar.gz", data: makeTar(t, []entry{{name: "m/l", link: "/etc", typ: tar.TypeSymlink}, {name: "m/l/x", text: "x"}}),
			url: "t.tar.gz", kind: fault.InvalidModel, says: `Model archive t.tar.gz is refused: its entry "m/l" is a symbolic link`,
		},
		{
			name: "tar hard link", file: "t.tar.gz", data: makeTar(t, []entry{{name: "m/l", link: "/etc/passwd", typ: tar.TypeLink}}),
			url: "t.tar.gz", kind: fault.InvalidModel, says: `Model archive t.tar.gz is refused: its entry "m/l" is a hard link to "/etc/passwd"`,
		},
		{
			name: "tar device", file: "t.tar.gz", data: makeTar(t, []entry{{name: "m/null", typ: tar.TypeChar}}),
			url: "t.tar.gz", kind: fault.InvalidModel, says: `Model archive t.tar.gz is refused: its entry "m/null" is neither a file nor a folder`,
		},
		{
			name: "bad manifest", file: "t.mar", data: makeZip(t, []entry{{name: "MAR-INF/MANIFEST.json", text: "{oops"}}), url: "t.mar",
			kind: fault.InvalidModel, says: "Failed to parse signature.json.",
		},
		{
			name: "large manifest", file: "t.mar",
			data: makeZip(t, []entry{{name: "MAR-INF/MANIFEST.json", text: strings.Repeat(" ", 70_000) + "{}"}}), url: "t.mar",
			kind: fault.InvalidModel, says: "Failed to parse signature.json.",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			if tt.file != "" {
				p.write(t, "store/"+tt.file, tt.data)
			}
			s := p.open(t, func(o *Options) {
				o.Limits = Limits{Entries: 8, PathBytes: 300, RatioFloor: 1 << 20, MetadataBytes: 64 << 10}
			})
			_, err := s.Open(t.Context(), tt.url)
			if err == nil {
				t.Fatal("it was opened")
			}
			if got := fault.KindOf(err); got != tt.kind {
				t.Errorf("kind %v, want %v (%v)", got, tt.kind, err)
			}
			got := fault.Message(err)
			if begin, cut := strings.CutSuffix(tt.says, "…"); cut && !strings.HasPrefix(got, begin) || !cut && got != tt.says {
				t.Errorf("message %q, want %q", got, tt.says)
			}
			if left := tree(t, filepath.Join(p.temp, "models")); len(left) > 0 {
				t.Errorf("left in the temp folder: %v", left)
			}
			outside := map[string]bool{"store": true, "tmp": true}
			for _, name := range tree(t, p.dir) {
				if top, _, _ := strings.Cut(name, "/"); !outside[top] {
					t.Errorf("written outside: %s", name)
				}
			}
		})
	}
}

// damage flips a byte of the first file's data.
func damage(data []byte) []byte {
	bad := append([]byte(nil), data...)
	bad[80] ^= 0xff
	return bad
}

func make10(prefix string) []entry {
	var all []entry
	for i := range 10 {
		all = append(all, entry{name: fmt.Sprint(prefix, i), text: "x"})
	}
	return all
}

// TestTakenForEmpty: TorchServe reads a .mar that is no zip file as one without entries.
func TestTakenForEmpty(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"Git LFS": "version https://git-lfs.github.com/spec/v1\n", "begins with": "<html>", "empty": "", "gzip": "\x1f\x8b\x08",
	} {
		p := newPlace(t)
		p.write(t, "store/x.mar", []byte(text))
		a := mustOpen(t, p.open(t, nil), "x.mar")
		if !strings.Contains(a.Problem, name) || a.HasManifest || a.Manifest.Runtime != RuntimePython {
			t.Errorf("%q: got %+v", text, a)
		}
		err := a.Validate("", "")
		if !fault.Is(err, fault.InvalidModel) || fault.Message(err) != "Model name is not defined." {
			t.Errorf("Validate: %v", err)
		}
		if err := a.Validate("n", ""); err != nil {
			t.Errorf("with a name: %v", err)
		}
	}
}

func TestNoStore(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.open(t, func(o *Options) { o.Store = "" })
	if _, err := s.Open(t.Context(), "m.mar"); fault.Message(err) != "Model store has not been configured." {
		t.Error(err)
	}
	if _, err := s.Names(); fault.KindOf(err) != fault.ModelNotFound {
		t.Error(err)
	}
}

func TestNames(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	for _, name := range []string{"b.mar", "a.model", "c.tar.gz", "readme.txt", ".hidden.mar", "dir/x", ".git/x"} {
		p.write(t, "store/"+name, nil)
	}
	for link, target := range map[string]string{"link.mar": "b.mar", "dangling.mar": "nope", "linkdir": "dir"} {
		if err := os.Symlink(target, filepath.Join(p.store, link)); err != nil {
			t.Fatal(err)
		}
	}
	got, err := p.open(t, nil).Names()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"a.model", "b.mar", "c.tar.gz", "dir", "link.mar", "linkdir"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestFileBase(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"x.mar": "x", "some/dir/my-model.v1.mar": "my_model_v1", "_x.mar": "_x", "models/é.mar": "_", "a.tar.gz": "a_tar_gz", "dir/plain-1": "plain_1",
		"http://h/x.mar?v=1.2": "x_mar_v_1", "a.mar/dir": "dir", "": "",
	} {
		if got := fileBase(url); got != want {
			t.Errorf("fileBase(%q) = %q, want %q", url, got, want)
		}
	}
}

// fileServer serves archives and misbehaves on request.
func fileServer(t *testing.T, mar []byte) *httptest.Server {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/good.mar", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(mar) })
	mux.HandleFunc("/bad.mar", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("PK\x03\x04 cut off")) })
	mux.HandleFunc("/cut.mar", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100000")
		_, _ = w.Write(mar)
	})
	mux.HandleFunc("/hang.mar", func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write(mar[:10])
		w.(http.Flusher).Flush() //nolint:errcheck,forcetypeassert // a test
		<-r.Context().Done()
	})
	mux.HandleFunc("/endless.mar", func(w http.ResponseWriter, _ *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1<<20)); err != nil {
				return
			}
		}
	})
	mux.Handle("/redirect.mar", http.RedirectHandler("/good.mar", http.StatusFound))
	mux.Handle("/evil.mar", http.RedirectHandler("/forbidden/good.mar", http.StatusFound))
	mux.Handle("/tofile.mar", http.RedirectHandler("file:///etc/passwd", http.StatusFound))
	mux.Handle("/loop.mar", http.RedirectHandler("/loop.mar", http.StatusFound))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

func TestFetch(t *testing.T) {
	t.Parallel()
	mar := makeZip(t, goodEntries())
	srv := fileServer(t, mar)
	host := strings.TrimPrefix(srv.URL, "http://")
	tests := []struct {
		name, url string
		kind      fault.Kind
		says      string // "": it works
		cause     string
	}{
		{name: "works", url: srv.URL + "/good.mar"},
		{name: "scheme in capitals", url: "HTTP://" + host + "/good.mar"},
		{name: "with a query", url: srv.URL + "/good.mar?x=1/y.mar#z/w.mar"},
		{name: "redirected", url: srv.URL + "/redirect.mar"},
		{name: "from a file", url: "file://DIR/src/good.mar"},
		{name: "from a file on localhost", url: "file://localhostDIR/src/good.mar"},
		{name: "is there", url: srv.URL + "/there.mar", kind: fault.Internal, says: "Model file already exists there.mar"},
		{name: "not there", url: srv.URL + "/nope.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "404"},
		{name: "refused", url: "http://127.0.0.1:1/x.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "refused"},
		{name: "cut off", url: srv.URL + "/cut.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "EOF"},
		{name: "hangs", url: srv.URL + "/hang.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "nothing arrived"},
		{name: "endless", url: srv.URL + "/endless.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "larger than"},
		{name: "to a forbidden place", url: srv.URL + "/evil.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "does not match any allowed"},
		{name: "to a file", url: srv.URL + "/tofile.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "scheme"},
		{name: "in circles", url: srv.URL + "/loop.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "more than 10 times"},
		{name: "no name", url: srv.URL + "/", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "name a file"},
		{name: "not an URL", url: "http://[bad/x.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL"},
		{name: "not allowed", url: srv.URL + "/forbidden/x.mar", kind: fault.ModelNotFound, says: "Given URL URL does not match any allowed URL(s)"},
		{name: "a device", url: "file:///dev/zero", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "not a regular file"},
		{name: "a host's file", url: "file://otherhost/x.mar", kind: fault.DownloadFailed, says: "Failed to download archive from: URL", cause: "host"},
		{name: "fetched but of no use", url: srv.URL + "/bad.mar", kind: fault.Internal, says: "Failed to save model: URL"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write(t, "store/there.mar", nil)
			p.write(t, "src/good.mar", mar)
			url := strings.Replace(tt.url, "DIR", p.dir, 1)
			s := p.open(t, func(o *Options) {
				o.Fetcher = newFetcher(t, func(o *source.Options) {
					o.Allowed = []string{`file://.*`, `http://[^/]*/[^/]*(\?.*)?`}
					o.MaxBytes, o.Stall = 1<<20, time.Minute
					if tt.name == "hangs" {
						o.Stall = 200 * time.Millisecond
					}
				})
			})
			a, err := s.Open(t.Context(), url)
			if tt.says == "" {
				if err != nil {
					t.Fatal(err)
				}
				checkFetched(t, p, a)
				return
			}
			if err == nil {
				t.Fatal("it was opened")
			}
			if want := fixURL(tt.says, url); fault.KindOf(err) != tt.kind || fault.Message(err) != want {
				t.Errorf("%v: %q, want %v: %q", fault.KindOf(err), fault.Message(err), tt.kind, want)
			}
			if !strings.Contains(err.Error(), tt.cause) {
				t.Errorf("%q does not tell the cause %q", err, tt.cause)
			}
			if diff := cmp.Diff([]string{"there.mar"}, tree(t, p.store)); diff != "" {
				t.Errorf("the store changed: %s", diff)
			}
		})
	}
}

// fixURL puts the URL where a message has the word URL by itself, which is at its end or after the first "URL ".
func fixURL(says, url string) string {
	if rest, ok := strings.CutPrefix(says, "Given URL URL"); ok {
		return "Given URL " + url + rest
	}
	return strings.Replace(says, "URL", url, 1)
}

func checkFetched(t *testing.T, p *place, a *Archive) {
	t.Helper()
	file := "good.mar"
	if strings.Contains(a.URL, "redirect") {
		file = "redirect.mar" // the name is that of the URL that was asked for
	}
	info, err := os.Stat(filepath.Join(p.store, file))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the copy in the store: %v, %v", info, err)
	}
	if !a.Fetched || a.Manifest.Model.ModelName != "m" {
		t.Errorf("got %+v", a)
	}
	if err := a.Forget(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"there.mar"}, tree(t, p.store)); diff != "" {
		t.Errorf("after Forget: %s", diff)
	}
}

// TestCancel: a client that goes away ends a download, and the server's end does, too.
func TestCancel(t *testing.T) {
	t.Parallel()
	srv := fileServer(t, makeZip(t, goodEntries()))
	for _, byServer := range []bool{false, true} {
		p := newPlace(t)
		s := p.open(t, nil)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := s.Open(ctx, srv.URL+"/hang.mar")
			done <- err
		}()
		waitFor(t, func() bool { return len(tree(t, p.store)) == 1 })
		want := fault.Cancelled
		if byServer {
			want = fault.Draining
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		} else {
			cancel()
		}
		if err := <-done; fault.KindOf(err) != want {
			t.Errorf("got %v: %v, want %v", fault.KindOf(err), err, want)
		}
		if left := tree(t, p.store); len(left) > 0 {
			t.Errorf("left in the store: %v", left)
		}
		cancel()
		if byServer {
			if _, err := s.Open(t.Context(), "x.mar"); !errors.Is(err, errClosed) {
				t.Errorf("after Close: %v", err)
			}
		}
	}
}

func waitFor(t *testing.T, what func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for !what() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("it did not happen within 10 seconds")
		}
	}
}

// TestSameURLAtOnce: of several fetches of one URL one wins, and the copy is whole.
func TestSameURLAtOnce(t *testing.T) {
	t.Parallel()
	srv := fileServer(t, makeZip(t, goodEntries()))
	p := newPlace(t)
	s := p.open(t, nil)
	const clients = 8
	errs := make(chan error, clients)
	for range clients {
		go func() {
			_, err := s.Open(context.WithoutCancel(t.Context()), srv.URL+"/good.mar")
			errs <- err
		}()
	}
	won := 0
	for range clients {
		if err := <-errs; err == nil {
			won++
		} else if fault.Message(err) != "Model file already exists good.mar" {
			t.Error(err)
		}
	}
	if won != 1 {
		t.Errorf("%d won", won)
	}
	if diff := cmp.Diff([]string{"good.mar"}, tree(t, p.store)); diff != "" {
		t.Error(diff)
	}
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	if _, err := New(Options{Temp: p.temp}); err == nil {
		t.Error("no logger was accepted")
	}
	if _, err := New(Options{Temp: p.temp, Logger: discard(), Limits: Limits{Entries: -1}}); err == nil {
		t.Error("a negative limit was accepted")
	}
	file := p.write(t, "file", nil)
	if _, err := New(Options{Temp: file, Logger: discard()}); err == nil || !strings.Contains(err.Error(), "TEMP") {
		t.Errorf("a file for a temp folder: %v", err)
	}
}
