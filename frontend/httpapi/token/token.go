// Package token keeps the keys that clients show when token authorization is on, as TorchServe does: three random keys in a
// file, two of which expire and can be made anew.
package token

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Kind says what a key opens.
type Kind string

// The kinds, by their names in the key file.
const (
	Inference  Kind = "inference"
	Management Kind = "management"
	API        Kind = "API" // makes the other two anew; it never expires
)

// FileName is the key file's name, as TorchServe's clients know it.
const FileName = "key_file.json"

const (
	keyBytes = 6 // eight characters
	fileMode = 0o600
)

// Options say where the keys are written and how long they hold.
type Options struct {
	Dir        string        // where the key file goes; "" for the working folder
	Expiration time.Duration // of the inference and the management key; 0 lets them expire at once, as TorchServe does
}

// Keys are the three keys. Their methods are safe for concurrent use.
type Keys struct {
	path    string
	expires time.Duration
	writing chan struct{} // holds one token: who has it may write the file

	mu   sync.Mutex // guards keys
	keys map[Kind]key
}

type key struct {
	Key     string     `json:"key"`
	Expires *time.Time `json:"expiration time,omitempty"`
}

// New makes the keys and writes the key file, which only its owner can read.
func New(opts Options) (*Keys, error) {
	k := &Keys{path: filepath.Join(opts.Dir, FileName), expires: opts.Expiration, writing: make(chan struct{}, 1), keys: map[Kind]key{}}
	for _, kind := range []Kind{Inference, Management, API} {
		fresh, err := k.fresh(kind)
		if err != nil {
			return nil, err
		}
		k.keys[kind] = fresh
	}
	if err := k.write(k.keys); err != nil {
		return nil, err
	}
	return k, nil
}

// Path is the key file's path.
func (k *Keys) Path() string { return k.path }

// Allows says whether the value of an Authorization header opens what kind opens: "Bearer", a blank, the key.
func (k *Keys) Allows(kind Kind, authorization string) bool {
	given, ok := bearer(authorization)
	if !ok {
		return false
	}
	k.mu.Lock()
	want := k.keys[kind]
	k.mu.Unlock()
	same := subtle.ConstantTimeCompare([]byte(given), []byte(want.Key)) == 1
	return same && (want.Expires == nil || time.Now().Before(*want.Expires))
}

// Rotate makes the inference or the management key anew and writes the key file. The old key ends when the file is written.
func (k *Keys) Rotate(kind Kind) error {
	if kind != Inference && kind != Management {
		return fmt.Errorf("a key of type %q cannot be made anew: only %q and %q can", kind, Inference, Management)
	}
	k.writing <- struct{}{}
	defer func() { <-k.writing }()
	fresh, err := k.fresh(kind)
	if err != nil {
		return err
	}
	k.mu.Lock()
	next := maps.Clone(k.keys)
	k.mu.Unlock()
	next[kind] = fresh
	if err := k.write(next); err != nil {
		return err
	}
	k.mu.Lock()
	k.keys = next
	k.mu.Unlock()
	return nil
}

// Remove deletes the key file.
func (k *Keys) Remove() error {
	if err := os.Remove(k.path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("the key file cannot be removed: %w", err)
	}
	return nil
}

func (k *Keys) fresh(kind Kind) (key, error) {
	var b [keyBytes]byte
	if _, err := rand.Read(b[:]); err != nil {
		return key{}, fmt.Errorf("no random bytes for a key: %w", err)
	}
	fresh := key{Key: base64.URLEncoding.EncodeToString(b[:])}
	if kind != API {
		at := time.Now().Add(k.expires).UTC()
		fresh.Expires = &at
	}
	return fresh, nil
}

// write puts the keys into a new file and moves that into place, so that a reader never sees half a file.
func (k *Keys) write(keys map[Kind]key) error {
	text, err := json.MarshalIndent(struct {
		Management key `json:"management"`
		Inference  key `json:"inference"`
		API        key `json:"API"`
	}{keys[Management], keys[Inference], keys[API]}, "", "  ")
	if err != nil {
		return fmt.Errorf("key file: %w", err)
	}
	failed := func(err error) error {
		return fmt.Errorf("the key file %s cannot be written: %w (the folder must be writable, or token authorization off)", k.path, err)
	}
	f, err := os.CreateTemp(filepath.Dir(k.path), FileName+".*")
	if err != nil {
		return failed(err)
	}
	_, err = f.Write(append(text, '\n'))
	if err = errors.Join(err, f.Chmod(fileMode), f.Close()); err == nil {
		err = os.Rename(f.Name(), k.path)
	}
	if err != nil {
		return failed(errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}

// bearer takes the key out of an Authorization header's value. The scheme's case counts, as in TorchServe.
func bearer(authorization string) (string, bool) {
	const blanks = " \t\n\v\f\r"
	rest, ok := strings.CutPrefix(authorization, "Bearer")
	given := strings.TrimLeft(rest, blanks)
	if !ok || given == "" || len(given) == len(rest) || strings.ContainsAny(given, blanks) {
		return "", false
	}
	return given, true
}
