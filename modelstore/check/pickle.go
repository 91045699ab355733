package check

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// pickled is what is read from a pickle without running it.
type pickled struct {
	globals []string // module.name of all that it refers to, each once
	unknown bool     // it refers to something whose name is made while it is loaded
}

// Bounds of one pickle that is read.
const (
	mostPickle  = 256 << 20
	mostGlobals = 10_000
	mostMemo    = 1 << 20
	longestName = 4096
)

var errPickle = errors.New("it is no pickle")

// pickleReader walks over the opcodes of a pickle. Of the stack it keeps only the last texts, which is where STACK_GLOBAL finds its names.
type pickleReader struct {
	r     *bufio.Reader
	left  int64
	out   pickled
	seen  map[string]bool
	memo  map[uint64]string
	next  uint64   // what MEMOIZE numbers next
	texts []string // the last pushed values; "\x00" for one that is no text
}

// noText stands for a value that is no text.
const noText = "\x00"

// readPickle reads one pickle up to its STOP. It never makes an object.
func readPickle(r *bufio.Reader) (pickled, error) {
	p := &pickleReader{r: r, left: mostPickle, seen: map[string]bool{}, memo: map[uint64]string{}}
	for {
		op, err := p.byte()
		if err != nil {
			return p.out, errors.Join(errPickle, err)
		}
		if op == '.' {
			return p.out, nil
		}
		if err := p.step(op); err != nil {
			return p.out, err
		}
	}
}

func (p *pickleReader) byte() (byte, error) {
	if p.left--; p.left < 0 {
		return 0, errors.New("it is too long to be read here")
	}
	return p.r.ReadByte()
}

// bytes takes n bytes; those beyond longestName are skipped.
func (p *pickleReader) bytes(n uint64) (string, error) {
	if n > uint64(max(p.left, 0)) {
		return "", fmt.Errorf("%w: a value is %d bytes long", errPickle, n)
	}
	p.left -= int64(n)
	kept := make([]byte, min(n, longestName))
	if _, err := io.ReadFull(p.r, kept); err != nil {
		return "", errors.Join(errPickle, err)
	}
	if rest := n - uint64(len(kept)); rest > 0 {
		if _, err := io.CopyN(io.Discard, p.r, int64(rest)); err != nil {
			return "", errors.Join(errPickle, err)
		}
		return noText, nil
	}
	return string(kept), nil
}

func (p *pickleReader) line() (string, error) {
	var b strings.Builder
	for {
		c, err := p.byte()
		if err != nil {
			return "", errors.Join(errPickle, err)
		}
		if c == '\n' {
			return b.String(), nil
		}
		if b.Len() < longestName {
			b.WriteByte(c)
		}
	}
}

func (p *pickleReader) uint(size int) (uint64, error) {
	var buf [8]byte
	for i := range size {
		c, err := p.byte()
		if err != nil {
			return 0, errors.Join(errPickle, err)
		}
		buf[i] = c
	}
	return binary.LittleEndian.Uint64(buf[:]), nil
}

func (p *pickleReader) push(text string) {
	const kept = 16
	if len(p.texts) >= 2*kept {
		p.texts = append(p.texts[:0], p.texts[kept:]...)
	}
	p.texts = append(p.texts, text)
}

func (p *pickleReader) global(module, name string) {
	full := module + "." + name
	if strings.Contains(full, noText) {
		p.out.unknown = true
		return
	}
	if !p.seen[full] && len(p.out.globals) < mostGlobals {
		p.seen[full] = true
		p.out.globals = append(p.out.globals, full)
	}
}

// remember notes the last pushed value under a number.
func (p *pickleReader) remember(at uint64) {
	text := noText
	if n := len(p.texts); n > 0 {
		text = p.texts[n-1]
	}
	if text == noText {
		delete(p.memo, at)
	} else if len(p.memo) < mostMemo {
		p.memo[at] = text
	}
}

func (p *pickleReader) recall(at uint64) {
	text, ok := p.memo[at]
	if !ok {
		text = noText
	}
	p.push(text)
}

// fixed is how many bytes follow opcodes whose operand says nothing here.
func fixed(op byte) (size int, ok bool) {
	switch op {
	case '(', ')', ']', '}', '0', '1', '2', 'a', 'b', 'd', 'e', 'l', 'o', 'p', 'R', 's', 't', 'u', 'N', 'Q', 0x81, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8f, 0x90,
		0x91, 0x92, 0x97, 0x98:
		return 0, true
	case 'K', 0x80, 0x82:
		return 1, true
	case 'M', 0x83:
		return 2, true
	case 'J', 0x84:
		return 4, true
	case 'G', 0x95:
		return 8, true
	}
	return 0, false
}

// counted is the size of the length in front of an operand.
func counted(op byte) (size int, isText, ok bool) {
	switch op {
	case 'U': // SHORT_BINSTRING
		return 1, true, true
	case 'T': // BINSTRING
		return 4, true, true
	case 0x8c: // SHORT_BINUNICODE
		return 1, true, true
	case 'X': // BINUNICODE
		return 4, true, true
	case 0x8d: // BINUNICODE8
		return 8, true, true
	case 'C', 0x8a: // SHORT_BINBYTES, LONG1
		return 1, false, true
	case 'B', 0x8b: // BINBYTES, LONG4
		return 4, false, true
	case 0x8e, 0x96: // BINBYTES8, BYTEARRAY8
		return 8, false, true
	}
	return 0, false, false
}

func (p *pickleReader) step(op byte) error {
	// 'p' is both PUT and, in `fixed`, must not be one without operand.
	if size, ok := fixed(op); ok && op != 'p' {
		_, err := p.uint(size)
		p.effect(op)
		return err
	}
	if size, isText, ok := counted(op); ok {
		n, err := p.uint(size)
		if err != nil {
			return err
		}
		text, err := p.bytes(n)
		if !isText {
			text = noText
		}
		p.push(text)
		return err
	}
	return p.named(op)
}

// effect keeps the texts right for opcodes that push or replace something.
func (p *pickleReader) effect(op byte) {
	switch op {
	case 0x80, 0x95, '0', '1': // PROTO, FRAME, POP, POP_MARK
		if op == '0' && len(p.texts) > 0 {
			p.texts = p.texts[:len(p.texts)-1]
		}
	case '2': // DUP
		if n := len(p.texts); n > 0 {
			p.push(p.texts[n-1])
		}
	case 0x82, 0x83, 0x84: // EXT: from a registry of the process
		p.out.unknown = true
		p.push(noText)
	default:
		p.push(noText)
	}
}

// named reads the opcodes with names, lines and memory.
func (p *pickleReader) named(op byte) error {
	switch op {
	case 'c', 'i': // GLOBAL, INST
		module, err := p.line()
		if err != nil {
			return err
		}
		name, err := p.line()
		p.global(module, name)
		p.push(noText)
		return err
	case 0x93: // STACK_GLOBAL
		module, name := noText, noText
		if n := len(p.texts); n >= 2 {
			module, name = p.texts[n-2], p.texts[n-1]
			p.texts = p.texts[:n-2]
		}
		p.global(module, name)
		p.push(noText)
	case 0x94: // MEMOIZE
		p.remember(p.next)
		p.next++
	case 'q', 'r': // BINPUT, LONG_BINPUT
		at, err := p.uint(map[byte]int{'q': 1, 'r': 4}[op])
		p.remember(at)
		p.next = max(p.next, at+1)
		return err
	case 'h', 'j': // BINGET, LONG_BINGET
		at, err := p.uint(map[byte]int{'h': 1, 'j': 4}[op])
		p.recall(at)
		return err
	default:
		return p.lined(op)
	}
	return nil
}

// lined reads the opcodes of protocol 0, whose operand is a line.
func (p *pickleReader) lined(op byte) error {
	if !strings.ContainsRune("FILSVPgp", rune(op)) || op >= 0x80 {
		return fmt.Errorf("%w: there is no opcode 0x%02x", errPickle, op)
	}
	text, err := p.line()
	if err != nil {
		return err
	}
	switch op {
	case 'p', 'g':
		at, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return fmt.Errorf("%w: %q is no number", errPickle, text)
		}
		if op == 'g' {
			p.recall(at)
			return nil
		}
		p.remember(at)
		p.next = max(p.next, at+1)
	case 'V':
		p.push(text)
	case 'S':
		p.push(strings.Trim(text, `'"`))
	default:
		p.push(noText)
	}
	return nil
}

// unsafeGlobals gives those of a pickle's globals that can run any code.
func unsafeGlobals(globals []string) []string {
	var found []string
	for _, global := range globals {
		if isUnsafe(global) {
			found = append(found, global)
		}
	}
	return found
}

func isUnsafe(global string) bool {
	module, name, _ := strings.Cut(global, ".")
	switch module {
	case "os", "posix", "nt", "subprocess", "pty", "shutil", "socket", "sys", "runpy", "importlib", "webbrowser", "commands", "popen2", "asyncio",
		"ctypes", "multiprocessing", "code", "pdb", "bdb", "timeit", "trace", "pip", "pydoc", "urllib", "requests", "httplib", "http", "ftplib",
		"smtplib", "tempfile", "pathlib", "pickle", "_pickle", "marshal", "types", "operator", "functools", "inspect", "pkgutil", "platform", "signal":
		return !harmless(global)
	case "builtins", "__builtin__":
		switch name {
		case "eval", "exec", "execfile", "compile", "open", "file", "input", "__import__", "getattr", "setattr", "delattr", "globals", "locals", "vars",
			"apply", "breakpoint", "map", "filter":
			return true
		}
	case "torch":
		return strings.HasPrefix(name, "hub.") || strings.HasPrefix(name, "utils.cpp_extension") || name == "load" || strings.HasPrefix(name, "_dynamo.") ||
			strings.HasPrefix(name, "jit.unsupported")
	case "numpy":
		return strings.HasPrefix(name, "testing.") || strings.HasPrefix(name, "f2py")
	}
	return false
}

// harmless are names of modules that have dangerous ones, too.
func harmless(global string) bool {
	switch global {
	case "pathlib.PosixPath", "pathlib.Path", "pathlib.PurePosixPath", "pathlib.WindowsPath", "pathlib.PurePath", "types.SimpleNamespace", "types.MappingProxyType",
		"functools.partial", "operator.itemgetter", "types.ModuleType":
		return true
	}
	return false
}

// allowedByTorch says whether torch.load takes a global with weights_only=True, its default since 2.6. Source: the names that
// torch/_weights_only_unpickler.py lists, by their modules.
func allowedByTorch(global string) bool {
	switch global {
	case "collections.OrderedDict", "collections.Counter", "_codecs.encode", "builtins.bytearray", "builtins.set", "builtins.complex", "__builtin__.bytearray",
		"__builtin__.set", "__builtin__.complex", "torch.nn.parameter.Parameter", "torch.serialization._get_layout", "torch.Size", "torch.Tensor",
		"torch.device", "torch.storage.TypedStorage", "torch.storage.UntypedStorage", "torch._tensor._rebuild_from_type_v2":
		return true
	}
	rest, ok := strings.CutPrefix(global, "torch.")
	if strings.HasPrefix(rest, "_utils._rebuild_") {
		return true
	}
	rest = strings.TrimPrefix(strings.TrimPrefix(rest, "cuda."), "sparse.")
	if !ok || strings.Contains(rest, ".") {
		return false
	}
	// torch.FloatStorage and its like, torch.float32 and its like.
	return strings.HasSuffix(rest, "Storage") || strings.HasSuffix(rest, "Tensor") || rest != "" && rest[0] >= 'a' && rest[0] <= 'z' && isDtype(rest)
}

func isDtype(name string) bool {
	return strings.HasPrefix(name, "float") || strings.HasPrefix(name, "int") || strings.HasPrefix(name, "uint") || strings.HasPrefix(name, "complex") ||
		strings.HasPrefix(name, "bfloat") || strings.HasPrefix(name, "q") || strings.HasPrefix(name, "per_") || name == "bool" || name == "half" || name == "double" || name == "long" || name == "short"
}
