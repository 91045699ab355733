package archive

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

func pinned(data []byte) string {
	sum := sha256.Sum256(data)
	return "#sha256=" + hex.EncodeToString(sum[:])
}

// TestPins: a file that is in the store already is in the way, as for TorchServe, unless the URL's pin says that it is the very one.
func TestPins(t *testing.T) {
	t.Parallel()
	mar := makeZip(t, goodEntries())
	srv := fileServer(t, mar)
	good := srv.URL + "/good.mar"
	p := newPlace(t)
	s := p.open(t, nil)
	a := mustOpen(t, s, good+pinned(mar))
	if !a.Fetched || a.Digest != "sha256:"+strings.TrimPrefix(pinned(mar), "#sha256=") || a.FileBase != "good" {
		t.Errorf("fetched %v, digest %s, base %s", a.Fetched, a.Digest, a.FileBase)
	}
	b := mustOpen(t, s, good+pinned(mar))
	if b.Fetched {
		t.Error("it was fetched although it is there")
	}
	for _, end := range []func() error{b.Forget, a.Close} {
		if err := end(); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff([]string{"good.mar"}, tree(t, p.store)); diff != "" {
		t.Errorf("who did not fetch it removed it: %s", diff)
	}
	if err := os.WriteFile(filepath.Join(p.store, "good.mar"), makeZip(t, goodEntries()[:2]), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, url := range []string{good, good + pinned(mar)} {
		_, err := s.Open(t.Context(), url)
		if fault.KindOf(err) != fault.Internal || fault.Message(err) != "Model file already exists good.mar" {
			t.Errorf("%s: %v", url, err)
		}
	}
	if diff := cmp.Diff([]string{"good.mar"}, tree(t, p.store)); diff != "" {
		t.Errorf("the store changed: %s", diff)
	}
}

// TestCopies: a fetched file belongs to its archive from before it is there until it is removed, unless somebody writes over it or the archive leaves it.
func TestCopies(t *testing.T) {
	t.Parallel()
	mar := makeZip(t, goodEntries())
	srv := fileServer(t, mar)
	p := newPlace(t)
	s := p.open(t, nil)
	file := filepath.Join(p.store, "good.mar")
	a := mustOpen(t, s, srv.URL+"/good.mar")
	if !s.IsCopy("good.mar") || s.IsCopy("other.mar") {
		t.Error("it does not know its copy")
	}
	if _, err := s.Open(t.Context(), srv.URL+"/good.mar"); err == nil || !s.IsCopy("good.mar") {
		t.Errorf("a second one is in the way of the first: %v", err)
	}
	here := mustOpen(t, s, "good.mar")
	if err := errors.Join(a.Forget(), here.Close()); err != nil {
		t.Fatal(err)
	}
	if s.IsCopy("good.mar") {
		t.Error("it is a copy after it was removed")
	}
	if err := os.WriteFile(file, mar, 0o600); err != nil || s.IsCopy("good.mar") {
		t.Errorf("another one's file is a copy: %v", err)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}

	a = mustOpen(t, s, srv.URL+"/good.mar")
	if err := os.WriteFile(file, mar[:len(mar)-1], 0o600); err != nil || s.IsCopy("good.mar") {
		t.Errorf("it is a copy after somebody has written over it: %v", err)
	}
	if err := errors.Join(a.Close(), os.Remove(file)); err != nil {
		t.Fatal(err)
	}

	a = mustOpen(t, s, srv.URL+"/good.mar")
	if err := a.Close(); err != nil || s.IsCopy("good.mar") {
		t.Errorf("it is a copy after its archive has left it: %v", err)
	}
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
}

// TestSecrets: neither the log nor a message has a password or a signature in it.
func TestSecrets(t *testing.T) {
	t.Parallel()
	srv := fileServer(t, makeZip(t, goodEntries()))
	p := newPlace(t)
	s := p.open(t, nil)
	base := strings.Replace(srv.URL, "http://", "http://tom:hush@", 1)
	a := mustOpen(t, s, base+"/good.mar?sig=hush")
	if err := a.Forget(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/bad.mar?sig=hush", "/none.mar?sig=hush", "/"} {
		_, err := s.Open(t.Context(), base+path)
		if err == nil || strings.Contains(err.Error(), "hush") {
			t.Errorf("%s: %v", path, err)
		}
	}
	if strings.Contains(p.log.String(), "hush") || !strings.Contains(p.log.String(), "fetched a model archive") {
		t.Errorf("the log says %s", p.log)
	}
}

func TestNoFetcher(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	s := p.open(t, func(o *Options) { o.Fetcher = nil })
	_, err := s.Open(t.Context(), "http://127.0.0.1:1/x.mar")
	if fault.KindOf(err) != fault.ModelNotFound || fault.Message(err) != "Given URL http://127.0.0.1:1/x.mar does not match any allowed URL(s)" {
		t.Error(err)
	}
}
