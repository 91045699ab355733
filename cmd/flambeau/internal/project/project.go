// Package project writes the files of a new handler in Go.
package project

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"text/template"
)

//go:embed handler
var files embed.FS //nolint:gochecknoglobals // the compiler fills it

// Options say which project is written. Name and Version are required.
type Options struct {
	Name    string // of the model and of its program
	Module  string // Go module; "": the name
	Version string // of the SDK
	SDK     string // a checkout that it is built against; "": the released module
}

// A model's name is part of URLs, and here of a Go module's path and of a file's name, too.
var name = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// Write writes a project into dir, which is made and must not hold anything. It gives the files' names.
func Write(dir string, opts Options) ([]string, error) {
	if !name.MatchString(opts.Name) || strings.HasSuffix(opts.Name, ".") {
		return nil, fmt.Errorf("%q cannot be a model's name: use letters, digits and _-. and begin with a letter or a digit", opts.Name)
	}
	if opts.Module == "" {
		opts.Module = opts.Name
	}
	if opts.SDK != "" {
		abs, err := filepath.Abs(opts.SDK)
		if err == nil {
			_, err = os.Stat(filepath.Join(abs, "handlersdk", "handlersdk.go"))
		}
		if err != nil {
			return nil, fmt.Errorf("%s is no checkout of Flambeau: %w", opts.SDK, err)
		}
		opts.SDK = abs
	}
	switch there, err := os.ReadDir(dir); {
	case err == nil && len(there) > 0:
		return nil, fmt.Errorf("the folder %s is not empty: name another one", dir)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // sources
		return nil, err
	}
	list, err := fs.Glob(files, "handler/*.tmpl")
	if err != nil {
		return nil, err
	}
	var written []string
	for _, from := range list {
		to := strings.TrimSuffix(path.Base(from), ".tmpl")
		if to == "gitignore" {
			to = ".gitignore"
		}
		text, err := fill(from, opts)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, to), text, 0o644) //nolint:gosec // sources
		}
		if err != nil {
			return written, err
		}
		written = append(written, to)
	}
	return written, nil
}

func fill(from string, opts Options) ([]byte, error) {
	t, err := template.ParseFS(files, from)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, opts)
	return out.Bytes(), err
}
