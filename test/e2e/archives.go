package e2e

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// Archive is a model archive as the tests write it: without the archiver, which takes a process, and with any content.
type Archive struct {
	Name    string            // "" and Version "": no manifest
	Version string            // "": 1.0
	Handler string            // text of handler.py
	Config  string            // text of model-config.yaml, "" for none
	Files   map[string]string // more files, by their names
	Padding int               // bytes of a further file, which do not compress
}

// numbered is a handler that needs nothing but Python. A request's body may ask for more than its number.
const numbered = `import time


class Handler:
    def initialize(self, context):
        %s

    def handle(self, data, context):
        answers = []
        for row in data:
            body = bytes(row.get("body") or b"").decode()
            if body.startswith("sleep:"):
                time.sleep(float(body[6:]))
            answers.append("%d")
        return answers
`

// Numbered is an archive whose model answers with a number. Begin is a line of Python that is run when it loads, "" for none.
func Numbered(model string, number int, begin string) Archive {
	if begin == "" {
		begin = "pass"
	}
	return Archive{Name: model, Handler: fmt.Sprintf(numbered, begin, number)}
}

// Entries are the archive's files by their names, the manifest among them.
func (a Archive) Entries(t *testing.T) map[string][]byte {
	t.Helper()
	files := map[string][]byte{"handler.py": []byte(a.Handler)}
	if a.Name != "" {
		model := map[string]string{"modelName": a.Name, "modelVersion": a.Version, "handler": "handler.py"}
		if a.Version == "" {
			model["modelVersion"] = "1.0"
		}
		if a.Config != "" {
			model["configFile"] = "model-config.yaml"
		}
		manifest, err := json.Marshal(map[string]any{"model": model, "archiverVersion": "0.12.0", "runtime": "python", "createdOn": "01/01/2026 00:00:00"})
		if err != nil {
			t.Fatal(err)
		}
		files["MAR-INF/MANIFEST.json"] = manifest
	}
	if a.Config != "" {
		files["model-config.yaml"] = []byte(a.Config)
	}
	for name, text := range a.Files {
		files[name] = []byte(text)
	}
	if a.Padding > 0 {
		files["padding.bin"] = noise(a.Padding)
	}
	return files
}

// noise is data that does not compress, the same for the same size.
func noise(size int) []byte {
	data := make([]byte, size)
	var seed [32]byte
	seed[0] = byte(size)
	_, _ = rand.NewChaCha8(seed).Read(data) // it never fails
	return data
}

// Bytes is the archive as a .mar file.
func (a Archive) Bytes(t *testing.T) []byte {
	t.Helper()
	files := a.Entries(t)
	var text bytes.Buffer
	z := zip.NewWriter(&text)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		// Raw, with the sizes in front: Java does not read stored files that have them behind.
		size := uint64(len(files[name]))
		w, err := z.CreateRaw(&zip.FileHeader{
			Name: name, Method: zip.Store, CRC32: crc32.ChecksumIEEE(files[name]), CompressedSize64: size, UncompressedSize64: size,
		})
		if err == nil {
			_, err = w.Write(files[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return text.Bytes()
}

// WriteFolder writes the archive as a folder, which must not be there yet.
func (a Archive) WriteFolder(t *testing.T, dir string) {
	t.Helper()
	for name, content := range a.Entries(t) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Digest is what the server calls the content of an archive file.
func Digest(content []byte) string {
	sum := sha256.Sum256(content)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// Flipped is an archive file with one changed byte in the content of its handler: its directory reads well, the content's checksum does not.
func Flipped(t *testing.T, content []byte) []byte {
	t.Helper()
	at := bytes.Index(content, []byte("class Handler"))
	if at < 0 {
		t.Fatal("the archive does not have the handler's text as it is")
	}
	changed := bytes.Clone(content)
	changed[at] ^= 0x20
	z, err := zip.NewReader(bytes.NewReader(changed), int64(len(changed)))
	if err != nil {
		t.Fatalf("the directory does not read: %v", err)
	}
	f, err := z.Open("handler.py")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	if _, err := io.Copy(io.Discard, f); err == nil {
		t.Fatal("the changed archive reads without an error")
	}
	return changed
}
