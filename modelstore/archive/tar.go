package archive

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

// maxRehearsal is up to which size a tar file is read twice: first only to see that it is whole and good, and how much it will need. That takes
// as long as unpacking it without writing does. A larger one is refused as soon as something is found in it.
const maxRehearsal = 256 << 20

// untar unpacks a tar file compressed with gzip. The first component of each name is dropped, as TorchServe does.
func (u *unpacker) untar(ctx context.Context, p *packed) error {
	runs := []*unpacker{u}
	if p.size() <= maxRehearsal {
		runs = []*unpacker{u.rehearsal(), u}
	}
	for i, run := range runs {
		err := run.untarAll(ctx, bufio.NewReaderSize(io.NewSectionReader(p.file, 0, p.size()), copyBuffer), p.size())
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return fmt.Errorf("the file is cut off: %d bytes are there, and its end is missing: %w", p.size(), err)
		}
		if err == nil && i < len(runs)-1 {
			u.announced = run.budget.bytes
			err = u.room(u.announced)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacker) untarAll(ctx context.Context, file *bufio.Reader, size int64) error {
	head, err := file.Peek(2)
	switch {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return errors.New("the file is empty")
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case string(head) != "\x1f\x8b":
		more, _ := file.Peek(24)
		return fmt.Errorf("the file begins with %q, and is not compressed with gzip, as every archive but a .mar has to be; %d bytes are there", more, size)
	}
	z, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	z.Multistream(false) // TorchServe reads the first one only
	stream := &unzipped{r: z, budget: budget{limits: u.budget.limits, packed: u.budget.packed}}
	r := tar.NewReader(stream) // it keeps at most 1 MiB of what is in headers
	for {
		head, err := r.Next()
		if errors.Is(err, io.EOF) {
			return tarEnd(stream, file)
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) {
			return err
		}
		if err := u.tarEntry(ctx, head, r); err != nil {
			return err
		}
	}
}

// unzipped bounds all that comes out of a compressed file: also what is not written anywhere costs time.
type unzipped struct {
	r      io.Reader
	budget budget
}

func (z *unzipped) Read(b []byte) (int, error) {
	n, err := z.r.Read(b)
	if grown := z.budget.grow(int64(n)); grown != nil {
		return 0, grown
	}
	return n, err
}

// tarEnd reads what is behind the last entry: zeros, up to a whole tape block, and then nothing.
func tarEnd(stream io.Reader, file *bufio.Reader) error {
	buf := make([]byte, copyBuffer)
	for {
		n, err := stream.Read(buf)
		if len(bytes.TrimLeft(buf[:n], "\x00")) > 0 {
			return refuse("make the archive again", "something follows the end of its tar file")
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	head, err := file.Peek(2)
	switch {
	case len(head) == 0 && errors.Is(err, io.EOF):
		return nil
	case err != nil && !errors.Is(err, io.EOF):
		return err
	case string(head) == "\x1f\x8b":
		return refuse("compress it again, in one piece", "it holds several files of gzip, one behind the other, of which TorchServe reads the first")
	default:
		return refuse("make the archive again", "something follows its end")
	}
}

func (u *unpacker) tarEntry(ctx context.Context, head *tar.Header, r io.Reader) error {
	if err := u.budget.entry(head.Name); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if head.Typeflag == tar.TypeXGlobalHeader { // says something about the whole archive, "git archive" writes one
		return nil
	}
	if _, err := entryName(head.Name); err != nil {
		return err
	}
	stripped := head.Name
	if _, after, found := strings.Cut(head.Name, "/"); found {
		stripped = after
	}
	name, err := entryName(stripped)
	if err != nil || name == "." {
		return err
	}
	mode := head.FileInfo().Mode()
	switch head.Typeflag {
	case tar.TypeDir:
		return u.folder(name)
	case tar.TypeReg, tar.TypeGNUSparse:
		u.announced = max(u.announced, u.budget.bytes+head.Size)
		return u.file(ctx, name, mode, r)
	case tar.TypeLink:
		return refuse(packAsFiles, "its entry %.200q is a hard link to %.200q", head.Name, head.Linkname)
	default:
		return notRegular(head.Name, mode)
	}
}

const packAsFiles = "pack the file itself; tar does so with --dereference --hard-dereference"
