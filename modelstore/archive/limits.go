package archive

import (
	"context"
	"errors"
	"fmt"
	"io"
)

// What Limits' zero values stand for.
const (
	DefaultUnpackedBytes = int64(512) << 30
	DefaultRatio         = int64(100)
	DefaultRatioFloor    = int64(256) << 20
	DefaultEntries       = 200_000
	DefaultPathBytes     = 4096
	DefaultMetadataBytes = int64(4) << 20
)

func (l Limits) withDefaults() Limits {
	set := func(v *int64, def int64) {
		if *v == 0 {
			*v = def
		}
	}
	set(&l.UnpackedBytes, DefaultUnpackedBytes)
	set(&l.Ratio, DefaultRatio)
	set(&l.RatioFloor, DefaultRatioFloor)
	set(&l.MetadataBytes, DefaultMetadataBytes)
	if l.Entries == 0 {
		l.Entries = DefaultEntries
	}
	if l.PathBytes == 0 {
		l.PathBytes = DefaultPathBytes
	}
	return l
}

// check refuses limits that nothing could satisfy.
func (l Limits) check() error {
	if l.UnpackedBytes < 0 || l.Ratio < 0 || l.RatioFloor < 0 || l.MetadataBytes < 0 ||
		l.Entries < 0 || l.PathBytes < 0 {
		return errors.New("archive: a limit is negative")
	}
	return nil
}

// refusal is an archive that was understood, and that is refused on purpose: not a read error.
type refusal struct{ text, hint string }

func (r *refusal) Error() string { return r.text }

func refuse(hint, format string, args ...any) error {
	return &refusal{text: fmt.Sprintf(format, args...), hint: hint}
}

// budget counts what one archive has cost so far.
type budget struct {
	limits  Limits
	packed  int64 // size of the archive file
	bytes   int64
	entries int
}

func (b *budget) entry(name string) error {
	if len(name) > b.limits.PathBytes {
		return refuse("", "the name of an entry is longer than %d bytes: %.60q…", b.limits.PathBytes, name)
	}
	return b.count(1)
}

// count adds files and folders.
func (b *budget) count(n int) error {
	b.entries += n
	if b.entries > b.limits.Entries {
		return tooMany(b.limits)
	}
	return nil
}

func tooMany(limits Limits) error {
	return refuse("", "it has more than %d entries", limits.Entries)
}

// grow adds bytes.
func (b *budget) grow(n int64) error {
	if n > b.limits.UnpackedBytes-b.bytes {
		return refuse("raise archive_max_unpacked_size if it is meant to be so large", "it unpacks to more than %d bytes",
			b.limits.UnpackedBytes)
	}
	b.bytes += n
	if b.bytes > b.limits.RatioFloor && b.bytes/b.limits.Ratio > b.packed {
		return refuse("pack the model without compression, or serve it from a folder, if it is meant to be so",
			"it unpacks to more than %d times its size, as archives that are made to fill disks do", b.limits.Ratio)
	}
	return nil
}

// copyBuffer is how much is copied between two looks at the context and the budget.
const copyBuffer = 256 << 10

// copy is io.Copy that stops when ctx ends or the budget is spent.
func (b *budget) copy(ctx context.Context, w io.Writer, r io.Reader, buf []byte) error {
	for {
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
		n, err := r.Read(buf)
		if n > 0 {
			if err := b.grow(int64(n)); err != nil {
				return err
			}
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
