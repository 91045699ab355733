package check

import (
	"bytes"
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// member is one file of an archive.
type member struct {
	path   string // with slashes
	size   int64
	elf    bool
	lfs    bool // a pointer of Git LFS
	script bool // a text: a linker script
}

const (
	mostFiles  = 200_000
	headBytes  = 512
	lfsPointer = "version https://git-lfs.github.com/spec/"
	mostLFS    = 1024
)

// walk lists the archive's files.
func (s *subject) walk(ctx context.Context) error {
	return filepath.WalkDir(s.dir, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			rel, _ := filepath.Rel(s.dir, path) // it is below
			s.found.add(Warning, CheckIncomplete, filepath.ToSlash(rel), 0, "", "it cannot be read: %v", err)
			if d != nil && d.IsDir() {
				return fs.SkipDir
			}
			return nil
		}
		if d.IsDir() {
			if name := d.Name(); path != s.dir && (name == "__pycache__" || name == ".git") {
				return fs.SkipDir
			}
			return nil
		}
		if len(s.files) >= mostFiles {
			s.found.add(Warning, CheckIncomplete, "", 0, "", "only the first %d files were looked at", mostFiles)
			return fs.SkipAll
		}
		s.file(path)
		return nil
	})
}

func (s *subject) file(path string) {
	info, err := os.Stat(path) // follows links of folders that are served in place
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	rel, err := filepath.Rel(s.dir, path)
	if err != nil {
		return
	}
	f := member{path: filepath.ToSlash(rel), size: info.Size()}
	// The head of most files says nothing that their name does not.
	if f.size <= mostLFS || isSharedObject(f.path) || filepath.Ext(f.path) == "" || f.path == filepath.ToSlash(s.archive.Plugin) {
		head, err := readHead(path, headBytes)
		if err == nil {
			f.elf = isELF(head)
			f.lfs = f.size <= mostLFS && bytes.HasPrefix(head, []byte(lfsPointer))
			f.script = !f.elf && !bytes.ContainsRune(head, 0)
		}
	}
	s.files = append(s.files, f)
}

// readHead reads the first n bytes of a file, or fewer if it is shorter.
func readHead(path string, n int64) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read from
	return io.ReadAll(io.LimitReader(file, n))
}

// readText reads a small file of the archive. ok is false when it is not there, too large or no regular file.
func (s *subject) readText(name string, limit int64) (text []byte, ok bool) {
	if !filepath.IsLocal(filepath.FromSlash(name)) {
		return nil, false
	}
	path := s.abs(name)
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() > limit {
		return nil, false
	}
	text, err = readHead(path, limit)
	return text, err == nil
}

func (s *subject) abs(name string) string { return filepath.Join(s.dir, filepath.FromSlash(name)) }

// has says whether the archive holds a file.
func (s *subject) has(name string) bool {
	if name == "" || !filepath.IsLocal(filepath.FromSlash(name)) {
		return false
	}
	_, err := os.Stat(s.abs(name))
	return err == nil
}

// pointers tells of files that Git LFS has not fetched.
func (s *subject) pointers() {
	m := &s.archive.Manifest.Model
	for _, f := range s.files {
		if !f.lfs {
			continue
		}
		level := Warning
		switch filepath.Ext(f.path) {
		case ".pt", ".pth", ".bin", ".onnx", ".safetensors", ".so", ".py", ".pkl", ".json", ".yaml", ".model", ".ckpt", ".gguf", ".whl", ".data":
			level = Error
		}
		if f.path == m.SerializedFile || f.path == m.ModelFile {
			level = Error
		}
		s.found.add(level, GitLFSPointer, f.path, 1, "run `git lfs pull`, and pack the archive again", "the file is a pointer of Git LFS, %d bytes long, and not the file itself", f.size)
	}
}

// lineOf gives a finding's line: the given one, or in the manifest that of a key.
func (s *subject) lineOf(name string, line int, key string) int {
	if line > 0 || name != manifestPath {
		return line
	}
	return keyLine(s.manifest, key)
}

// keyLine is the line on which a text first stands, 0 when it does not.
func keyLine(text []byte, key string) int {
	at := bytes.Index(text, []byte(key))
	if at < 0 || key == "" {
		return 0
	}
	return 1 + bytes.Count(text[:at], []byte("\n"))
}

func lowerExt(name string) string { return strings.ToLower(filepath.Ext(name)) }
