package token

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

type file struct {
	Management, Inference struct {
		Key     string
		Expires string `json:"expiration time"`
	}
	API map[string]string
}

func read(t *testing.T, dir string) file {
	t.Helper()
	path := filepath.Join(dir, FileName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var f file
	if err := json.Unmarshal(text, &f); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode is %o", info.Mode().Perm())
	}
	return f
}

func TestKeyFile(t *testing.T) {
	dir := t.TempDir()
	k, err := New(Options{Dir: dir, Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f := read(t, dir)
	form := regexp.MustCompile(`^[A-Za-z0-9_-]{8}$`)
	for _, key := range []string{f.Management.Key, f.Inference.Key, f.API["key"]} {
		if !form.MatchString(key) {
			t.Errorf("key %q", key)
		}
	}
	for _, at := range []string{f.Management.Expires, f.Inference.Expires} {
		when, err := time.Parse(time.RFC3339Nano, at)
		if left := time.Until(when); err != nil || left < 59*time.Minute || left > time.Hour || !strings.HasSuffix(at, "Z") {
			t.Errorf("expires %q: %v", at, err)
		}
	}
	if len(f.API) != 1 {
		t.Errorf("API key has %v", f.API)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left behind: %v", entries)
	}
	if k.Path() != filepath.Join(dir, FileName) {
		t.Errorf("path %q", k.Path())
	}
	if err := k.Remove(); err != nil {
		t.Error(err)
	}
	if err := k.Remove(); err != nil {
		t.Errorf("second removal: %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("still there: %v", entries)
	}
}

func TestAllows(t *testing.T) {
	dir := t.TempDir()
	k, err := New(Options{Dir: dir, Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	key := read(t, dir).Inference.Key
	for value, want := range map[string]bool{
		"Bearer " + key: true, "Bearer  " + key: true, "Bearer\t" + key: true,
		"bearer " + key: false, "Bearer" + key: false, key: false, "": false, "Bearer": false, "Bearer ": false,
		"Bearer " + key + " x": false, "Bearer " + key + ",Bearer x": false, "Bearer " + key[:7]: false, "Bearer nope": false,
	} {
		if k.Allows(Inference, value) != want {
			t.Errorf("%q: want %v", value, want)
		}
	}
	if k.Allows(Management, "Bearer "+key) || k.Allows(API, "Bearer "+key) || k.Allows("other", "Bearer ") {
		t.Error("keys are interchangeable")
	}
}

func TestRotate(t *testing.T) {
	dir := t.TempDir()
	k, err := New(Options{Dir: dir, Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	before := read(t, dir)
	if err := k.Rotate(Inference); err != nil {
		t.Fatal(err)
	}
	after := read(t, dir)
	if after.Inference.Key == before.Inference.Key || after.Management != before.Management || after.API["key"] != before.API["key"] {
		t.Errorf("before %+v after %+v", before, after)
	}
	if k.Allows(Inference, "Bearer "+before.Inference.Key) || !k.Allows(Inference, "Bearer "+after.Inference.Key) {
		t.Error("old key still opens, or new one does not")
	}
	for _, kind := range []Kind{API, "Inference", ""} {
		if k.Rotate(kind) == nil {
			t.Errorf("%q was rotated", kind)
		}
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if err := k.Rotate(Management); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !k.Allows(Management, "Bearer "+read(t, dir).Management.Key) {
		t.Error("the file is not what holds")
	}
}

func TestRotateKeepsTheOldKeyWhenTheFileCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	k, err := New(Options{Dir: dir, Expiration: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	key := read(t, dir).Management.Key
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := k.Rotate(Management); err == nil || !strings.Contains(err.Error(), dir) {
		t.Errorf("got %v", err)
	}
	if !k.Allows(Management, "Bearer "+key) {
		t.Error("the key in the client's hands is dead")
	}
	if _, err := New(Options{Dir: dir}); err == nil {
		t.Error("no error without a folder")
	}
}

func TestExpiry(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		k, err := New(Options{Dir: dir, Expiration: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		f := read(t, dir)
		if !k.Allows(Inference, "Bearer "+f.Inference.Key) {
			t.Error("fresh key does not open")
		}
		time.Sleep(time.Minute)
		if k.Allows(Inference, "Bearer "+f.Inference.Key) {
			t.Error("expired key opens")
		}
		if !k.Allows(API, "Bearer "+f.API["key"]) {
			t.Error("the API key expired")
		}
		if err := k.Rotate(Inference); err != nil {
			t.Fatal(err)
		}
		if !k.Allows(Inference, "Bearer "+read(t, dir).Inference.Key) {
			t.Error("rotated key does not open")
		}
	})
}
