package archive

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"unicode/utf8"
)

// What a program is by its first bytes.
const (
	kindELF    = "elf"
	kindScript = "script"
)

const (
	elfHead   = 64   // bytes of the head of a 64-bit ELF file
	programAt = 4096 // how much of a program's beginning is read: behind the head is the table of its parts
)

// programHead reads a program's first bytes and says what it is; "" is for what is neither a program of this system nor a script.
func programHead(path string) (kind string, head []byte, size int64, err error) {
	file, err := os.Open(path)
	if err != nil {
		return "", nil, 0, err
	}
	defer func() { _ = file.Close() }() // it was only read from
	info, err := file.Stat()
	if err != nil {
		return "", nil, 0, err
	}
	head = make([]byte, programAt)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", nil, 0, err
	}
	switch head = head[:n]; {
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		return kindELF, head, info.Size(), nil
	case bytes.HasPrefix(head, []byte("#!")):
		return kindScript, head, info.Size(), nil
	default:
		return "", head, info.Size(), nil
	}
}

// checkProgram refuses a program that cannot run here. It gives the kind of one that can.
func checkProgram(path, name string) (kind string, err error) {
	kind, head, size, err := programHead(path)
	switch {
	case err != nil:
		return "", err
	case kind == "":
		what, hint := notProgram(head, size)
		return "", refuse(hint, "the plugin's program %s is no program that this machine can run: %s", name, what)
	case kind == kindScript:
		return kind, nil
	case len(head) < elfHead:
		return "", refuse("copy it again", "the plugin's program %s is cut off: %d bytes are there", name, size)
	}
	order := binary.ByteOrder(binary.LittleEndian)
	if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
		order = binary.BigEndian
	}
	const machineAt = 18
	machine, want := elf.Machine(order.Uint16(head[machineAt:])), machineOf(runtime.GOARCH)
	if want != elf.EM_NONE && machine != want {
		return "", refuse("build it for this machine, for instance by GOARCH="+runtime.GOARCH, "the plugin's program %s is for another kind of CPU, %s, and this machine is %s", name,
			machineText(machine), machineText(want))
	}
	if elf.Class(head[elf.EI_CLASS]) == elf.ELFCLASS64 && programEnd(head, order) > uint64(size) {
		return "", refuse("copy it again", "the plugin's program %s is cut off: %d bytes are there", name, size)
	}
	return kind, nil
}

// notProgram says what a file is that is neither a program of this system nor a script, and what to do about it.
func notProgram(head []byte, size int64) (what, hint string) {
	build := "build it for this machine: GOOS=linux GOARCH=" + runtime.GOARCH + " for one in Go"
	const again, unpack = "copy it again", "unpack it, and put the program in there in its place"
	for _, k := range []struct{ begin, what, hint string }{
		{"MZ", "a program for Windows (PE)", build},
		{"\xcf\xfa\xed\xfe", "a program for macOS (Mach-O)", build},
		{"\xce\xfa\xed\xfe", "a program for macOS (Mach-O)", build},
		{"\xfe\xed\xfa\xcf", "a program for macOS (Mach-O)", build},
		{"\xfe\xed\xfa\xce", "a program for macOS (Mach-O)", build},
		{"\x00asm", "a program in WebAssembly", build},
		{"!<arch>\n", "a library for a linker, as `go build -o` makes it of a package that is not main", "build a package main"},
		{"\x1f\x8b", "a file compressed with gzip", unpack},
		{"PK\x03\x04", "a zip file", unpack},
		{"version https://git-lfs", "a pointer of Git LFS", "run `git lfs pull` where it came from"},
	} {
		if bytes.HasPrefix(head, []byte(k.begin)) {
			return "it is " + k.what, k.hint
		}
	}
	switch {
	case size == 0:
		return "it is empty", again
	case len(bytes.Trim(head, "\x00")) == 0:
		return fmt.Sprintf("its first %d bytes are zeros, so it is not written yet, or damaged", len(head)), again
	case bytes.HasPrefix(head, []byte("\xca\xfe\xba\xbe")):
		const mostKinds = 40 // of CPUs; a class has its version there, which is larger
		if len(head) >= 8 && binary.BigEndian.Uint32(head[4:]) < mostKinds {
			return "it is a program for macOS (Mach-O, for several kinds of CPU)", build
		}
		return "it is a class of Java", "write a script that begins with #! and runs it"
	case isText(head):
		return fmt.Sprintf("it is a text that begins with %.24q", head), "begin a script with #! and the path of what runs it; or copy the program again"
	}
	return fmt.Sprintf("it begins with %.8q, as no program does", head), again
}

// isText says whether the beginning of a file reads as one of a text. It may end within a letter.
func isText(head []byte) bool {
	valid := utf8.Valid(head)
	for cut := 1; !valid && cut < utf8.UTFMax && len(head) == programAt; cut++ {
		valid = utf8.Valid(head[:len(head)-cut])
	}
	return valid && !bytes.ContainsFunc(head, func(r rune) bool { return r < ' ' && r != '\n' && r != '\r' && r != '\t' })
}

// programEnd is where a program of 64 bits ends at least: behind its table of sections, which most linkers write last, and behind each of its segments.
func programEnd(head []byte, order binary.ByteOrder) uint64 {
	const (
		segmentsAt, sectionsAt               = 32, 40 // in the head: where the tables are
		segmentSizeAt, segmentCountAt        = 54, 56
		sectionSizeAt, sectionCountAt        = 58, 60
		offsetInSegment, bytesInSegment, all = 8, 32, 56
	)
	number := func(at int) uint64 { return uint64(order.Uint16(head[at:])) }
	end := after(order.Uint64(head[sectionsAt:]), number(sectionSizeAt)*number(sectionCountAt))
	table, size := order.Uint64(head[segmentsAt:]), number(segmentSizeAt)
	for i := range number(segmentCountAt) {
		at := after(table, size*i)
		if size < all || after(at, all) > uint64(len(head)) {
			break
		}
		segment := head[at:]
		end = max(end, after(order.Uint64(segment[offsetInSegment:]), order.Uint64(segment[bytesInSegment:])))
	}
	return end
}

// after adds; what cannot be a place in a file becomes the largest number.
func after(at, length uint64) uint64 {
	if length > math.MaxUint64-at {
		return math.MaxUint64
	}
	return at + length
}

// machineOf is the ELF name of a GOARCH, none for one that is not known.
func machineOf(goarch string) elf.Machine {
	return map[string]elf.Machine{
		"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64, "386": elf.EM_386, "arm": elf.EM_ARM, "ppc64le": elf.EM_PPC64, "s390x": elf.EM_S390, "riscv64": elf.EM_RISCV,
	}[goarch]
}

// machineText is what people call a machine.
func machineText(m elf.Machine) string {
	switch m { //nolint:exhaustive // the others have the names of debug/elf
	case elf.EM_X86_64:
		return "x86_64 (amd64)"
	case elf.EM_AARCH64:
		return "aarch64 (arm64)"
	}
	return m.String()
}

// looksExecutable says whether a file is a program, though it may lack the right to be run: a copy that lost it is told of, and not taken for something else.
func looksExecutable(path string) bool {
	if !isFile(path) {
		return false
	}
	kind, _, _, err := programHead(path)
	return err == nil && kind != ""
}

// mayBeRun says whether a file may be executed, whatever is in it.
func mayBeRun(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
