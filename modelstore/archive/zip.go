package archive

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"strings"
)

// unzip unpacks a .mar. problem tells why the file is no zip file at all: TorchServe takes it for one without entries.
func (u *unpacker) unzip(ctx context.Context, p *packed) (problem string, err error) {
	head := make([]byte, 64)
	n, err := p.file.ReadAt(head, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	if head = head[:n]; !bytes.HasPrefix(head, []byte("PK")) {
		return notZip(head, p.size()), nil
	}
	scan, err := scanZip(ctx, p.file, p.size(), u.budget.limits)
	if errors.Is(err, errNoDirectory) {
		return "", fmt.Errorf("the file is cut off or damaged: %d bytes are there, and %w", p.size(), err)
	}
	if err != nil {
		return "", err
	}
	if err := u.room(scan.budget.bytes); err != nil {
		return "", err
	}
	r, err := zip.NewReader(p.file, p.size())
	if err != nil && !errors.Is(err, zip.ErrInsecurePath) { // names are looked at below
		return "", err
	}
	if !scan.agrees(r.File) {
		return "", lies("its directory can be read in two ways")
	}
	u.announced = scan.budget.bytes
	for _, unpacker := range []*unpacker{u.rehearsal(), u} { // nothing is written before all names are known to be good
		for _, f := range r.File {
			if err := unpacker.zipEntry(ctx, f); err != nil {
				return "", err
			}
		}
	}
	return "", nil
}

// agrees says whether another reader has found the same entries.
func (z *zipScan) agrees(files []*zip.File) bool {
	names := sha256.New()
	for _, f := range files {
		_, _ = io.WriteString(names, f.Name+"\x00") // a hash takes everything
	}
	return len(files) == z.entries && bytes.Equal(names.Sum(nil), z.names.Sum(nil))
}

// notZip describes a file that is not a zip file for somebody who thought it was one.
func notZip(head []byte, size int64) string {
	switch {
	case len(head) == 0:
		return "the file is empty"
	case bytes.HasPrefix(head, []byte("version https://git-lfs")):
		return "the file is a Git LFS pointer: run \"git lfs pull\" where it came from"
	case bytes.HasPrefix(head, []byte("\x1f\x8b")):
		return "the file is compressed with gzip: name it .tar.gz if it is one"
	case bytes.Count(head, []byte{0}) == len(head):
		return fmt.Sprintf("the file begins with zeros, a zip file with \"PK\"; %d bytes are there, not yet written, or lost", size)
	default:
		return fmt.Sprintf("the file begins with %.24q, a zip file with \"PK\"; %d bytes are there", head, size)
	}
}

func (u *unpacker) zipEntry(ctx context.Context, f *zip.File) error {
	if err := u.budget.entry(f.Name); err != nil {
		return err
	}
	name, err := entryName(f.Name)
	if err != nil || name == "." {
		return err
	}
	if strings.HasSuffix(f.Name, "/") {
		return u.folder(name)
	}
	if !f.Mode().IsRegular() {
		return notRegular(f.Name, f.Mode())
	}
	if u.root == nil {
		_, err := u.note(name, false)
		return err
	}
	r, err := f.Open()
	if err != nil {
		return fmt.Errorf("entry %.200q: %w", f.Name, err)
	}
	return errors.Join(u.file(ctx, name, f.Mode(), r), r.Close())
}
