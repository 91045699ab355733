package deps

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// identity is what the script says about an interpreter and about pip's settings.
type identity struct {
	Python, ABI, Platform, Libc string
	Environment                 []string // where it is; only a virtual environment depends on it
	Settings                    []string // of pip, from its files and its variables: those that may change what is installed
}

// keyBytes is how much of the hash is an entry's name.
const keyBytes = 16

// key is the name of what a request asks for: equal for all that get the same.
func (i *Installer) key(ctx context.Context, r Request) (string, error) {
	var stdout bytes.Buffer
	stderr := &lastLines{log: i.opts.Logger}
	if err := i.run(ctx, r, &stdout, stderr, "identify"); err != nil {
		return "", &installError{cause: fmt.Errorf("the interpreter %s cannot be asked: %w", r.Interpreter, err), status: exitStatus(err), lines: stderr}
	}
	var id identity
	if err := json.Unmarshal(stdout.Bytes(), &id); err != nil {
		return "", fmt.Errorf("the interpreter %s says %.100q: %w", r.Interpreter, stdout.String(), err)
	}
	d := digest{hash: sha256.New(), env: i.opts.Env}
	d.texts(layout, strconv.FormatBool(r.Venv), id.Python, id.ABI, id.Platform, id.Libc)
	if r.Venv {
		d.texts(id.Environment...)
	}
	if r.Requirements != "" {
		d.texts(id.Settings...)
		dir, err := filepath.EvalSymlinks(r.Dir)
		if err != nil {
			return "", err
		}
		if !filepath.IsLocal(filepath.FromSlash(r.Requirements)) {
			return "", fmt.Errorf("the requirements file %q of the manifest is not in the archive", r.Requirements)
		}
		d.dir = dir
		switch err := d.requirements(filepath.Join(dir, filepath.FromSlash(r.Requirements))); {
		case errors.Is(err, fs.ErrNotExist):
			return "", fmt.Errorf("the requirements file %s that the manifest names is not in the archive", r.Requirements)
		case err != nil:
			return "", err
		}
		if d.linked {
			d.texts(dir)
		}
	}
	return hex.EncodeToString(d.hash.Sum(nil)[:keyBytes]), nil
}

// digest hashes a requirements file with all the local files that it speaks of.
type digest struct {
	hash   hash.Hash
	env    []string
	dir    string   // the model's
	seen   []string // requirements files
	linked bool     // something is installed as a link to the model's folder, which is of no use to others
}

// texts adds texts, each with its length, so that no two lists give the same bytes.
func (d *digest) texts(all ...string) {
	_, _ = fmt.Fprintf(d.hash, "%d\n", len(all)) // a hash takes everything
	for _, text := range all {
		_, _ = fmt.Fprintf(d.hash, "%d\n%s", len(text), text)
	}
}

// variable is what pip replaces by a variable of the environment.
var variable = regexp.MustCompile(`\$\{([A-Z0-9_]+)\}`)

// requirements adds a requirements file and what it names.
func (d *digest) requirements(path string) error {
	if slices.Contains(d.seen, path) {
		return nil
	}
	d.seen = append(d.seen, path)
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	d.texts(string(text))
	for _, m := range variable.FindAllStringSubmatch(string(text), -1) {
		for _, entry := range d.env {
			if value, ok := strings.CutPrefix(entry, m[1]+"="); ok {
				d.texts(m[1], value)
			}
		}
	}
	for _, ref := range references(string(text)) {
		d.linked = d.linked || ref.linked
		if err := d.reference(ref, filepath.Dir(path)); err != nil {
			return err
		}
	}
	return nil
}

// reference adds the file or folder that a word of a requirements file names, if it names one. A word that only looks like one does no harm: the same
// packages are then installed once more for another model.
func (d *digest) reference(ref reference, beside string) error {
	bases := []string{beside, d.dir}
	if filepath.IsAbs(ref.path) {
		bases = []string{""}
	}
	for _, base := range bases {
		path := filepath.Join(base, ref.path)
		info, err := os.Stat(path)
		switch {
		case err != nil:
			continue
		case ref.nested && info.Mode().IsRegular():
			return d.requirements(path)
		case info.Mode().IsRegular():
			return d.file(path)
		case info.IsDir() && base != "": // an absolute folder is the administrator's, as an index is
			return d.folder(path)
		}
	}
	return nil
}

func (d *digest) folder(dir string) error {
	return filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			d.texts(path[len(dir):])
		case entry.Type().IsRegular():
			d.texts(path[len(dir):])
			return d.file(path)
		}
		return nil
	})
}

func (d *digest) file(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }() // it was only read from
	info, err := file.Stat()
	if err != nil {
		return err
	}
	d.texts(filepath.Base(path), strconv.FormatInt(info.Size(), 10))
	_, err = io.Copy(d.hash, file)
	return err
}

// reference is a word of a requirements file that may be a path.
type reference struct {
	path   string
	nested bool // it is a requirements or constraints file itself
	linked bool // it is installed as a link (-e)
}

// references lists the words of a requirements file that may be paths.
func references(text string) []reference {
	var refs []reference
	for line := range strings.Lines(text) {
		var next reference // what an option says about the word after it
		for word := range strings.FieldsSeq(line) {
			if strings.HasPrefix(word, "#") {
				break
			}
			ref := next
			next = reference{}
			name, value, isOption := option(word)
			switch name {
			case "-r", "--requirement", "-c", "--constraint":
				ref.nested = true
			case "-e", "--editable":
				ref.linked = true
			}
			if isOption && value == "" {
				next = ref
				continue
			}
			ref.path = pathOf(value)
			if ref.path != "" {
				refs = append(refs, ref)
			}
		}
	}
	return refs
}

// option takes an option apart: "-r", "-rfile", "--requirement", "--requirement=file". A word that is none is a value.
func option(word string) (name, value string, ok bool) {
	switch {
	case strings.HasPrefix(word, "--"):
		name, value, _ = strings.Cut(word, "=")
		return name, value, true
	case len(word) > 1 && word[0] == '-':
		return word[:2], strings.TrimPrefix(word[2:], "="), true
	}
	return "", word, false
}

// pathOf gives the path in a word: without the scheme of a file URL, extras, fragments and quotes. "" is for a word that is none.
func pathOf(word string) string {
	word = strings.Trim(word, `"'`)
	word = strings.TrimPrefix(strings.TrimPrefix(word, "@"), "file:")
	word = strings.TrimPrefix(word, "//")
	word, _, _ = strings.Cut(word, "#")
	if strings.HasSuffix(word, "]") {
		word, _, _ = strings.Cut(word, "[")
	}
	if strings.ContainsRune(word, 0) {
		return ""
	}
	return word
}
