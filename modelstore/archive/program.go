package archive

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"runtime"
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
		return "", refuse("build it for Linux, or begin a script with #!", "the plugin's program %s is neither a program of this system nor a script: it begins with %.8q", name, head)
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

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
