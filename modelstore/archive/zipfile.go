package archive

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"slices"
)

// The parts of a zip file, as its specification names and numbers them.
const (
	sigLocal      = 0x04034b50
	sigDirectory  = 0x02014b50
	sigEnd        = 0x06054b50
	sigEnd64      = 0x06064b50
	sigLocator64  = 0x07064b50
	sigDescriptor = 0x08074b50

	localLen     = 30
	directoryLen = 46
	endLen       = 22
	end64Len     = 56
	locator64Len = 20

	zip64Extra = 1

	flagEncrypted  = 1<<0 | 1<<6 | 1<<13 // also strong encryption, and a hidden directory
	flagDescriptor = 1 << 3

	methodStored   = 0
	methodDeflated = 8

	full16, full32 = math.MaxUint16, math.MaxUint32 // the value is elsewhere, in 64 bits
)

// maxDirectoryBytes is how large a zip file's list of entries may be. It is kept in memory.
const maxDirectoryBytes = 64 << 20

// errNoDirectory says that a file has no zip file's end.
var errNoDirectory = errors.New("the zip file's directory, at the end, is missing")

// zipScan reads the structure of a zip file, before anything of it is unpacked: a file may say one thing in its directory and another one in front of
// its entries, and programs that read the one or the other would see different models.
type zipScan struct {
	r      io.ReaderAt
	size   int64
	budget budget // of what the directory announces

	dirBegin, dirEnd int64
	entries          int
	spans            []span
	names            hash.Hash // of all names, in order
}

// span is where an entry lies.
type span struct{ begin, end int64 }

// zipHead is one entry as the directory or the local header has it.
type zipHead struct {
	flags, method uint16
	crc           uint32
	packed, size  uint64
	name          []byte
	offset        uint64 // of the local header
	wide          bool   // its sizes are in 64 bits
}

// scanZip checks the structure of a zip file, and gives what it announces.
func scanZip(ctx context.Context, r io.ReaderAt, size int64, limits Limits) (*zipScan, error) {
	z := &zipScan{r: r, size: size, budget: budget{limits: limits, packed: size}, names: sha256.New()}
	if err := z.findDirectory(); err != nil {
		return nil, err
	}
	if err := z.readDirectory(ctx); err != nil {
		return nil, err
	}
	return z, z.checkSpans()
}

func lies(format string, args ...any) error {
	return refuse("make the archive again; if that does not help, it was made to deceive", "its zip structure contradicts itself: "+format, args...)
}

// findDirectory finds the end record, which has to be the last thing of the file, and by it the directory.
func (z *zipScan) findDirectory() error {
	tail := make([]byte, min(z.size, endLen+full16))
	if err := z.read(tail, z.size-int64(len(tail))); err != nil {
		return err
	}
	at := bytes.LastIndex(tail, binary.LittleEndian.AppendUint32(nil, sigEnd))
	if at < 0 || len(tail)-at < endLen {
		return errNoDirectory
	}
	end := tail[at:]
	comment := int(binary.LittleEndian.Uint16(end[20:]))
	switch rest := len(end) - endLen; {
	case comment > rest:
		return errNoDirectory
	case comment < rest:
		return fmt.Errorf("the zip file is cut off (%d bytes are there), or something was put behind its end: %d bytes follow what looks like it", z.size, rest-comment)
	}
	endAt := z.size - int64(len(end))
	disk := binary.LittleEndian.Uint32(end[4:]) // two numbers of 16 bits
	here, all := uint64(binary.LittleEndian.Uint16(end[8:])), uint64(binary.LittleEndian.Uint16(end[10:]))
	length, begin := uint64(binary.LittleEndian.Uint32(end[12:])), uint64(binary.LittleEndian.Uint32(end[16:]))
	stop := endAt
	wide, err := z.readEnd64(endAt)
	switch {
	case err != nil:
		return err
	case wide != nil:
		for _, pair := range [][3]uint64{{all, wide.all, full16}, {here, wide.all, full16}, {length, wide.length, full32}, {begin, wide.begin, full32}} {
			if pair[0] != pair[1] && pair[0] != pair[2] {
				return lies("its two end records do not say the same")
			}
		}
		here, all, length, begin, stop = wide.all, wide.all, wide.length, wide.begin, wide.at
	}
	if disk != 0 || here != all {
		return refuse("pack it into one file", "it is one of several parts of a zip file")
	}
	return z.setDirectory(begin, length, stop, all)
}

// setDirectory takes the directory's place, which ends where the end records begin.
func (z *zipScan) setDirectory(begin, length uint64, stop int64, entries uint64) error {
	switch {
	case begin > uint64(z.size) || length > uint64(z.size) || int64(begin+length) != stop:
		return fmt.Errorf("the zip file is cut off (%d bytes are there), or something was put in front of it: its directory of %d bytes at %d does not end at %d, "+
			"where its end record is", z.size, length, begin, stop)
	case entries > uint64(z.budget.limits.Entries):
		return tooMany(z.budget.limits)
	case length > maxDirectoryBytes:
		return refuse("", "its list of entries is larger than %d bytes", maxDirectoryBytes)
	case length/directoryLen < entries:
		return lies("its directory of %d bytes cannot hold %d entries", length, entries)
	}
	z.dirBegin, z.dirEnd, z.entries = int64(begin), stop, int(entries)
	return nil
}

// end64 is what a zip64 file's second end record says.
type end64 struct {
	all, length, begin uint64
	at                 int64
}

// readEnd64 reads the record that large zip files have, nil if there is none.
func (z *zipScan) readEnd64(endAt int64) (*end64, error) {
	locatorAt := endAt - locator64Len
	if locatorAt < 0 {
		return nil, nil //nolint:nilnil // there is none
	}
	locator := make([]byte, locator64Len)
	if err := z.read(locator, locatorAt); err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint32(locator) != sigLocator64 {
		return nil, nil //nolint:nilnil // there is none
	}
	at := binary.LittleEndian.Uint64(locator[8:])
	if at > uint64(locatorAt) || locatorAt-int64(at) < end64Len {
		return nil, lies("its zip64 end record is said to be at %d, where none can be", at)
	}
	record := make([]byte, end64Len)
	if err := z.read(record, int64(at)); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint64(record[4:])
	here, all := binary.LittleEndian.Uint64(record[24:]), binary.LittleEndian.Uint64(record[32:])
	if binary.LittleEndian.Uint32(record) != sigEnd64 || size != uint64(locatorAt)-at-12 || here != all ||
		binary.LittleEndian.Uint64(record[16:]) != 0 {
		return nil, lies("its zip64 end record is damaged")
	}
	return &end64{
		all: all, length: binary.LittleEndian.Uint64(record[40:]), begin: binary.LittleEndian.Uint64(record[48:]), at: int64(at),
	}, nil
}

// readDirectory reads all entries, and compares each with its local header.
func (z *zipScan) readDirectory(ctx context.Context) error {
	r := bufio.NewReaderSize(io.NewSectionReader(z.r, z.dirBegin, z.dirEnd-z.dirBegin), copyBuffer)
	z.spans = make([]span, 0, z.entries)
	for range z.entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		h, err := z.next(r)
		if err != nil {
			return err
		}
		z.names.Write(h.name)
		z.names.Write([]byte{0})
		if err := z.checkHead(h); err != nil {
			return err
		}
		end, err := z.checkLocal(h)
		if err != nil {
			return err
		}
		z.spans = append(z.spans, span{int64(h.offset), end})
	}
	if _, err := r.Peek(1); err == nil {
		return lies("its directory is longer than its %d entries", z.entries)
	}
	return nil
}

// next reads one entry of the directory.
func (z *zipScan) next(r io.Reader) (*zipHead, error) {
	fixed := make([]byte, directoryLen)
	if _, err := io.ReadFull(r, fixed); err != nil {
		return nil, damagedDirectory(err)
	}
	le := binary.LittleEndian
	if le.Uint32(fixed) != sigDirectory {
		return nil, lies("its directory holds something that is no entry")
	}
	nameLen, extraLen, commentLen := int(le.Uint16(fixed[28:])), int(le.Uint16(fixed[30:])), int(le.Uint16(fixed[32:]))
	rest := make([]byte, nameLen+extraLen+commentLen)
	if _, err := io.ReadFull(r, rest); err != nil {
		return nil, damagedDirectory(err)
	}
	h := &zipHead{
		flags: le.Uint16(fixed[8:]), method: le.Uint16(fixed[10:]), crc: le.Uint32(fixed[16:]),
		packed: uint64(le.Uint32(fixed[20:])), size: uint64(le.Uint32(fixed[24:])), offset: uint64(le.Uint32(fixed[42:])),
		name: rest[:nameLen],
	}
	return h, h.widen(rest[nameLen:nameLen+extraLen], &h.size, &h.packed, &h.offset)
}

func damagedDirectory(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return lies("its directory ends within an entry")
	}
	return err
}

// widen reads the values that did not fit into 32 bits from the entry's extra field, in the order in which they stand there.
func (h *zipHead) widen(extra []byte, values ...*uint64) error {
	for len(extra) >= 4 {
		tag, n := binary.LittleEndian.Uint16(extra), int(binary.LittleEndian.Uint16(extra[2:]))
		if extra = extra[4:]; n > len(extra) {
			break
		}
		field := extra[:n]
		if extra = extra[n:]; tag != zip64Extra {
			continue
		}
		h.wide = true
		for _, v := range values {
			if *v != full32 {
				continue
			}
			if len(field) < 8 {
				return lies("the zip64 field of its entry %.200q is too short", h.name)
			}
			*v = binary.LittleEndian.Uint64(field)
			field = field[8:]
		}
		return nil
	}
	return nil
}

// checkHead looks at what the directory says of an entry, and counts its size.
func (z *zipScan) checkHead(h *zipHead) error {
	isFolder := bytes.HasSuffix(h.name, []byte("/"))
	switch {
	case h.flags&flagEncrypted != 0:
		return refuse("make the archive without a password", "its entry %.200q is encrypted", h.name)
	case h.method != methodStored && h.method != methodDeflated:
		return refuse("pack it with deflate, or without compression", "its entry %.200q is compressed in a way (number %d) that cannot be read", h.name, h.method)
	case h.method == methodStored && h.packed != h.size:
		return lies("its entry %.200q is not compressed, and is said to have %d bytes of %d", h.name, h.packed, h.size)
	case isFolder && h.size != 0:
		return lies("its folder %.200q is said to have %d bytes", h.name, h.size)
	case string(h.name) == manifestPath && h.size > uint64(z.budget.limits.MetadataBytes):
		return manifestFault(fmt.Errorf("it is larger than %d bytes", z.budget.limits.MetadataBytes))
	case h.size > math.MaxInt64:
		return z.budget.grow(math.MaxInt64)
	}
	return z.budget.grow(int64(h.size))
}

// checkLocal compares an entry with what stands in front of it and behind it in the file, and gives where it ends.
func (z *zipScan) checkLocal(h *zipHead) (end int64, err error) {
	room := uint64(z.dirBegin)
	if h.offset > room || room-h.offset < localLen+uint64(len(h.name)) || h.packed > room {
		return 0, lies("its entry %.200q is said to be at %d, outside of what comes before the directory", h.name, h.offset)
	}
	at := int64(h.offset)
	fixed := make([]byte, localLen+len(h.name))
	if err := z.read(fixed, at); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	nameLen, extraLen := int64(le.Uint16(fixed[26:])), int64(le.Uint16(fixed[28:]))
	l := &zipHead{
		flags: le.Uint16(fixed[6:]), method: le.Uint16(fixed[8:]), crc: le.Uint32(fixed[14:]),
		packed: uint64(le.Uint32(fixed[18:])), size: uint64(le.Uint32(fixed[22:])), name: fixed[localLen:],
	}
	if le.Uint32(fixed) != sigLocal || nameLen != int64(len(h.name)) || !bytes.Equal(l.name, h.name) {
		return 0, lies("what is at %d is not its entry %.200q", at, h.name)
	}
	if data := at + localLen + nameLen + extraLen; data > z.dirBegin || h.packed > uint64(z.dirBegin-data) {
		return 0, lies("its entry %.200q of %d bytes goes on into the directory", h.name, h.packed)
	}
	extra := make([]byte, extraLen)
	if err := z.read(extra, at+localLen+nameLen); err != nil {
		return 0, err
	}
	if err := l.widen(extra, &l.size, &l.packed); err != nil {
		return 0, err
	}
	end = at + localLen + nameLen + extraLen + int64(h.packed)
	if err := h.same(l); err != nil || l.flags&flagDescriptor == 0 || bytes.HasSuffix(h.name, []byte("/")) {
		return end, err
	}
	return z.checkDescriptor(h, end)
}

// same says in what the local header contradicts the directory. One that is followed by a descriptor may leave its values at zero.
func (h *zipHead) same(l *zipHead) error {
	later := l.flags&flagDescriptor != 0
	agrees := func(local, directory uint64) bool {
		return local == directory || later && (local == 0 || local == full32)
	}
	switch {
	case l.method != h.method || (l.flags^h.flags)&(flagEncrypted|flagDescriptor) != 0:
		return lies("its entry %.200q is packed in two different ways", h.name)
	case !agrees(l.size, h.size) || !agrees(l.packed, h.packed):
		return lies("its entry %.200q is said to have %d and %d bytes", h.name, l.size, h.size)
	case !agrees(uint64(l.crc), uint64(h.crc)):
		return lies("its entry %.200q has two different checksums", h.name)
	}
	return nil
}

// checkDescriptor reads the sizes that stand behind an entry, with or without a signature, in 32 or in 64 bits.
func (z *zipScan) checkDescriptor(h *zipHead, at int64) (end int64, err error) {
	const longest = 24
	found := make([]byte, min(longest, z.dirBegin-at))
	if err := z.read(found, at); err != nil {
		return 0, err
	}
	le := binary.LittleEndian
	for _, signed := range []bool{true, false} {
		for _, wide := range []bool{false, true} {
			var want []byte
			if signed {
				want = le.AppendUint32(want, sigDescriptor)
			}
			want = le.AppendUint32(want, h.crc)
			if wide {
				want = le.AppendUint64(le.AppendUint64(want, h.packed), h.size)
			} else {
				want = le.AppendUint32(le.AppendUint32(want, uint32(h.packed)), uint32(h.size))
			}
			if bytes.HasPrefix(found, want) {
				return at + int64(len(want)), nil
			}
		}
	}
	return 0, lies("what stands behind its entry %.200q is not its size and its checksum", h.name)
}

// checkSpans refuses entries that share bytes: a small file could unpack to a very large one that way, whatever each entry's own ratio is.
func (z *zipScan) checkSpans() error {
	slices.SortFunc(z.spans, func(a, b span) int { return cmp.Compare(a.begin, b.begin) })
	last := int64(0)
	for i, s := range z.spans {
		if i == 0 && s.begin != 0 {
			return lies("%d bytes come before its first entry", s.begin)
		}
		if s.begin < last {
			return lies("entries lie over each other, as in files that are made to fill disks")
		}
		last = s.end
	}
	return nil
}

// read reads all of b.
func (z *zipScan) read(b []byte, at int64) error {
	n, err := z.r.ReadAt(b, at)
	if n == len(b) {
		return nil
	}
	if errors.Is(err, io.EOF) {
		return ErrChanged // the size was looked at before
	}
	return err
}
