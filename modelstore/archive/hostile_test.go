package archive

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

// rawEntry is one entry of a zip file that a test makes byte by byte. Zero values are filled with what is right.
type rawEntry struct {
	name, local   string // in the directory, and in front of the data
	data          string
	method, flags uint16
	crc           uint32
	size, packed  uint64 // in the directory
	localSize     uint64
	extra         []byte // in the directory
	localExtra    []byte
	descriptor    []byte
	mode          uint32 // of Unix
	at            int64  // where the directory says that it is, if that is not where it is
	noLocal       bool   // it has no data of its own
}

// rawEnd are the end records of such a file.
type rawEnd struct {
	entries  int // more than there are
	shift    int // where the directory is said to be
	wide     bool
	wideLies bool
	comment  string
	after    string
	before   string
}

func rawZip(entries []rawEntry, end rawEnd) []byte {
	le := binary.LittleEndian
	file := []byte(end.before)
	var directory []byte
	for _, e := range entries {
		local := e.local
		if local == "" {
			local = e.name
		}
		size := uint64(len(e.data))
		set := func(v, def uint64) uint64 {
			if v == 0 {
				return def
			}
			return v
		}
		crc := uint32(set(uint64(e.crc), uint64(crc32.ChecksumIEEE([]byte(e.data)))))
		at := int64(len(file))
		if e.noLocal {
			at = 0
		} else {
			file = le.AppendUint32(file, sigLocal)
			file = le.AppendUint16(file, 20)
			file = le.AppendUint16(file, e.flags)
			file = le.AppendUint16(file, e.method)
			file = le.AppendUint32(file, 0)
			file = le.AppendUint32(file, crc)
			file = le.AppendUint32(file, uint32(set(e.packed, size)))
			file = le.AppendUint32(file, uint32(set(e.localSize, set(e.size, size))))
			file = le.AppendUint16(file, uint16(len(local)))
			file = le.AppendUint16(file, uint16(len(e.localExtra)))
			file = append(append(append(append(file, local...), e.localExtra...), e.data...), e.descriptor...)
		}
		if e.at != 0 {
			at = e.at
		}
		directory = le.AppendUint32(directory, sigDirectory)
		directory = le.AppendUint16(directory, 3<<8|20)
		directory = le.AppendUint16(directory, 20)
		directory = le.AppendUint16(directory, e.flags)
		directory = le.AppendUint16(directory, e.method)
		directory = le.AppendUint32(directory, 0)
		directory = le.AppendUint32(directory, crc)
		directory = le.AppendUint32(directory, uint32(set(e.packed, size)))
		directory = le.AppendUint32(directory, uint32(set(e.size, size)))
		directory = le.AppendUint16(directory, uint16(len(e.name)))
		directory = le.AppendUint16(directory, uint16(len(e.extra)))
		directory = append(directory, make([]byte, 6)...)
		directory = le.AppendUint32(directory, e.mode<<16)
		directory = le.AppendUint32(directory, uint32(at))
		directory = append(append(directory, e.name...), e.extra...)
	}
	begin := len(file)
	file = append(file, directory...)
	if end.wide {
		wideAt := len(file)
		all := uint64(len(entries))
		if end.wideLies {
			all++
		}
		file = le.AppendUint32(file, sigEnd64)
		file = le.AppendUint64(file, end64Len-12)
		file = append(file, make([]byte, 12)...)
		file = le.AppendUint64(le.AppendUint64(file, all), all)
		file = le.AppendUint64(le.AppendUint64(file, uint64(len(directory))), uint64(begin))
		file = le.AppendUint32(file, sigLocator64)
		file = le.AppendUint32(file, 0)
		file = le.AppendUint64(file, uint64(wideAt))
		file = le.AppendUint32(file, 1)
	}
	count := uint16(len(entries) + end.entries)
	file = le.AppendUint32(file, sigEnd)
	file = le.AppendUint32(file, 0)
	file = le.AppendUint16(le.AppendUint16(file, count), count)
	file = le.AppendUint32(le.AppendUint32(file, uint32(len(directory))), uint32(begin+end.shift))
	file = le.AppendUint16(file, uint16(len(end.comment)))
	return append(append(file, end.comment...), end.after...)
}

// descriptor is what stands behind the data of an entry with flagDescriptor.
func descriptor(data string, size uint32) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, sigDescriptor)
	b = le.AppendUint32(b, crc32.ChecksumIEEE([]byte(data)))
	return le.AppendUint32(le.AppendUint32(b, size), size)
}

func zip64Field(values ...uint64) []byte {
	b := binary.LittleEndian.AppendUint16(nil, zip64Extra)
	b = binary.LittleEndian.AppendUint16(b, uint16(8*len(values)))
	for _, v := range values {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

// overlapping is a file as in "a better zip bomb": the data of its first entry holds the second one.
func overlapping() []byte {
	inner := rawZip([]rawEntry{{name: "b", data: "bomb"}}, rawEnd{})
	inner = inner[:bytes.Index(inner, binary.LittleEndian.AppendUint32(nil, sigDirectory))]
	return rawZip([]rawEntry{{name: "a", data: string(inner)}, {name: "b", data: "bomb", noLocal: true, at: localLen + 1}}, rawEnd{})
}

func TestRawZipIsGood(t *testing.T) {
	t.Parallel()
	for name, data := range map[string][]byte{
		"plain":      rawZip([]rawEntry{{name: "a", data: "x"}, {name: "d/"}, {name: "d/b", data: "y"}}, rawEnd{comment: "a comment"}),
		"zip64":      rawZip([]rawEntry{{name: "a", data: "x"}}, rawEnd{wide: true}),
		"wide sizes": rawZip([]rawEntry{{name: "a", data: "x", size: full32, packed: full32, extra: zip64Field(1, 1), localExtra: zip64Field(1, 1)}}, rawEnd{}),
		"descriptor": rawZip([]rawEntry{{name: "a", data: "xyz", flags: flagDescriptor, descriptor: descriptor("xyz", 3)}}, rawEnd{}),
		"unsigned":   rawZip([]rawEntry{{name: "a", data: "xyz", flags: flagDescriptor, descriptor: descriptor("xyz", 3)[4:]}}, rawEnd{}),
		"empty":      rawZip(nil, rawEnd{}),
	} {
		p := newPlace(t)
		p.write(t, "store/x.mar", data)
		a, err := p.open(t, nil).OpenEntry(t.Context(), "x.mar")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if text, err := os.ReadFile(filepath.Join(a.Dir, "a")); name != "empty" && (err != nil || text[0] != 'x') {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
}

// hostile are archives that have to be refused, each with a part of what the error says.
func hostile(t testing.TB) map[string]struct {
	file string
	data []byte
	says string
} {
	t.Helper()
	type archive = struct {
		file string
		data []byte
		says string
	}
	mar := func(data []byte, says string) archive { return archive{"x.mar", data, says} }
	named := func(name, says string) archive {
		return mar(rawZip([]rawEntry{{name: name, data: "x"}}, rawEnd{}), says)
	}
	tgz := func(entries []entry, says string) archive { return archive{"x.tgz", makeTar(t, entries), says} }
	raw := func(says string, end rawEnd, entries ...rawEntry) archive { return mar(rawZip(entries, end), says) }
	config := func(text, says string) archive {
		return mar(makeZip(t, []entry{{name: manifestPath, text: goodManifest}, {name: "c.yaml", text: text}}), says)
	}
	file := rawEntry{name: "a", data: "xyz"}
	good := makeTar(t, []entry{{name: "m/a", text: "x"}})
	deep := strings.Repeat("d/", 200) + "f"
	return map[string]archive{
		"slip":                 named("../../escaped", "outside"),
		"slip inside":          named("a/../../escaped", "outside"),
		"slip by backslashes":  named(`..\..\escaped`, "backslash"),
		"slip by both":         named(`a\..\../..\escaped`, "backslash"),
		"absolute":             named("/tmp/escaped", "absolute"),
		"drive":                named("C:/escaped", "drive"),
		"drive without slash":  named("c:escaped", "drive"),
		"network path":         named("//host/escaped", "absolute"),
		"two-dot leader":       named("‥/‥/escaped", "stand for those of a path"),
		"full-width dots":      named("．．/escaped", "stand for those of a path"),
		"full-width slash":     named("a／..／..／escaped", "stand for those of a path"),
		"full-width backslash": named("a＼escaped", "stand for those of a path"),
		"overlong dot":         named("\xc0\xae\xc0\xae/escaped", "not UTF-8"),
		"not UTF-8":            named("a\xff", "not UTF-8"),
		"NUL":                  named("a\x00.py", "control character"),
		"newline":              named("a\nb", "control character"),
		"escape":               named("a\x1b[2J", "control character"),
		"right to left":        named("a\u202eyp.exe", "how the text around it is shown"),
		"long name":            named(strings.Repeat("n", 300), "longer than 255 bytes"),
		"long path":            named(strings.Repeat("n/", 3000)+"f", "longer than 4096 bytes"),
		"deep":                 named(deep, "folders within each other"),
		"link":                 raw("symbolic link", rawEnd{}, rawEntry{name: "l", data: "/etc", mode: 0o120777}, rawEntry{name: "l/escaped", data: "x"}),
		"zip device":           raw("neither a file", rawEnd{}, rawEntry{name: "d", mode: 0o060666}),
		"zip pipe":             raw("neither a file", rawEnd{}, rawEntry{name: "d", mode: 0o010666}),
		"twice":                raw("more than one entry", rawEnd{}, file, file),
		"twice by a dot":       raw("more than one entry", rawEnd{}, file, rawEntry{name: "./a", data: "y"}),
		"case":                 raw("differ only in the case", rawEnd{}, file, rawEntry{name: "A", data: "y"}),
		"case of folders":      raw("differ only in the case", rawEnd{}, rawEntry{name: "d/a", data: "x"}, rawEntry{name: "D/b", data: "y"}),
		"case beyond ASCII":    raw("differ only in the case", rawEnd{}, rawEntry{name: "É", data: "x"}, rawEntry{name: "é", data: "y"}),
		"kelvin sign":          raw("differ only in the case", rawEnd{}, rawEntry{name: "k", data: "x"}, rawEntry{name: "\u212a", data: "y"}),
		"normal form":          raw("differ only in the case", rawEnd{}, rawEntry{name: "\u00e9", data: "x"}, rawEntry{name: "e\u0301", data: "y"}),
		"file then folder":     raw("is a file", rawEnd{}, file, rawEntry{name: "a/b", data: "y"}),
		"folder then file":     raw("a file and a folder", rawEnd{}, rawEntry{name: "a/b", data: "y"}, file),
		"folder entry, file":   raw("a file and a folder", rawEnd{}, rawEntry{name: "a/"}, file),
		"encrypted":            raw("encrypted", rawEnd{}, rawEntry{name: "a", data: "x", flags: 1}),
		"strongly encrypted":   raw("encrypted", rawEnd{}, rawEntry{name: "a", data: "x", flags: 1 << 6}),
		"hidden directory":     raw("encrypted", rawEnd{}, rawEntry{name: "a", data: "x", flags: 1 << 13}),
		"unknown method":       raw("cannot be read", rawEnd{}, rawEntry{name: "a", data: "x", method: 14}),
		"checksum":             raw("checksum", rawEnd{}, rawEntry{name: "a", data: "xyz", crc: 1}),
		"bomb by size":         mar(makeZip(t, []entry{{name: "z", text: strings.Repeat("\x00", 3<<20)}}), "unpacks to more than"),
		"overlapping entries":  mar(overlapping(), "lie over each other"),
		"one entry for all":    raw("is not its entry", rawEnd{}, file, rawEntry{name: "b", data: "xyz", noLocal: true}),
		"two names":            raw("is not its entry", rawEnd{}, rawEntry{name: "a", local: "b", data: "x"}),
		"two sizes":            raw("bytes", rawEnd{}, rawEntry{name: "a", data: "xyz", localSize: 2}),
		"more than is there":   raw("goes on into the directory", rawEnd{}, rawEntry{name: "a", data: "xyz", size: 20, packed: 20}),
		"stored, two sizes":    raw("is not compressed", rawEnd{}, rawEntry{name: "a", data: "xyz", size: 1000, packed: 3}),
		"folder with data":     raw("its folder", rawEnd{}, rawEntry{name: "a/", data: "x"}),
		"descriptor lies": raw("is not its size", rawEnd{}, rawEntry{
			name: "a", data: "xyz", flags: flagDescriptor, descriptor: descriptor("xyz", 4),
		}),
		"no descriptor":   raw("is not its size", rawEnd{}, rawEntry{name: "a", data: "xyz", flags: flagDescriptor}),
		"zip64 too large": raw("", rawEnd{}, rawEntry{name: "a", data: "x", size: full32, packed: full32, extra: zip64Field(1<<63, 1<<63)}),
		"zip64 too short": raw("too short", rawEnd{}, rawEntry{name: "a", data: "x", size: full32, packed: full32, extra: zip64Field(1)}),
		"zip64 in front only": raw("bytes", rawEnd{}, rawEntry{
			name: "a", data: "x", size: 1, localSize: full32, localExtra: zip64Field(1 << 40),
		}),
		"zip64 end lies":     raw("do not say the same", rawEnd{wide: true, wideLies: true}, file),
		"trailing garbage":   raw("7 bytes follow what looks like it", rawEnd{after: "garbage"}, file),
		"something in front": raw("8 bytes come before", rawEnd{before: "PK\x03\x04junk"}, file),
		"more entries":       raw("cannot hold 2 entries", rawEnd{entries: 1}, file),
		"fewer entries":      raw("longer than its 1 entries", rawEnd{entries: -1}, file, rawEntry{name: "b", data: "x"}),
		"directory shifted":  raw("cut off", rawEnd{shift: -1}, file),

		"tar slip":            tgz([]entry{{name: "m/../../escaped", text: "x"}}, "outside"),
		"tar slip in front":   tgz([]entry{{name: "../escaped", text: "x"}}, "outside"),
		"tar absolute":        tgz([]entry{{name: "/tmp/escaped", text: "x"}}, "absolute"),
		"tar backslash":       tgz([]entry{{name: `m/..\escaped`, text: "x"}}, "backslash"),
		"tar drive":           tgz([]entry{{name: "C:/escaped", text: "x"}}, "drive"),
		"tar link":            tgz([]entry{{name: "m/l", link: "../..", typ: tar.TypeSymlink}, {name: "m/l/escaped", text: "x"}}, "symbolic link"),
		"tar hard link":       tgz([]entry{{name: "m/l", link: "/etc/passwd", typ: tar.TypeLink}, {name: "m/l", text: "x"}}, "hard link"),
		"tar link to itself":  tgz([]entry{{name: "m/l", link: "l", typ: tar.TypeLink}}, "hard link"),
		"tar device":          tgz([]entry{{name: "m/d", typ: tar.TypeChar}}, "neither a file"),
		"tar block device":    tgz([]entry{{name: "m/d", typ: tar.TypeBlock}}, "neither a file"),
		"tar pipe":            tgz([]entry{{name: "m/d", typ: tar.TypeFifo}}, "neither a file"),
		"tar twice":           tgz([]entry{{name: "m/a", text: "x"}, {name: "n/a", text: "y"}}, "more than one entry"),
		"tar case":            tgz([]entry{{name: "m/a", text: "x"}, {name: "m/A", text: "y"}}, "differ only in the case"),
		"tar normal form":     tgz([]entry{{name: "m/\u00e9", text: "x"}, {name: "m/e\u0301", text: "y"}}, "differ only in the case"),
		"tar file and folder": tgz([]entry{{name: "m/a", text: "x"}, {name: "m/a/b", text: "y"}}, "is a file"),
		"tar bomb":            tgz([]entry{{name: "m/z", text: strings.Repeat("\x00", 3<<20)}}, "unpacks to more than"),
		"tar bomb of nothing": tgz(make10s("m/d", 5000), "unpacks to more than"),
		"tar control":         tgz([]entry{{name: "m/a\tb", text: "x"}}, "control character"),
		"tar deep":            tgz([]entry{{name: "m/" + deep, text: "x"}}, "folders within each other"),
		"two members":         {"x.tgz", append(append([]byte(nil), good...), good...), "several files of gzip"},
		"tar garbage":         {"x.tgz", append(append([]byte(nil), good...), "garbage"...), "follows its end"},
		"hidden after tar":    {"x.tgz", hiddenTail(t), "follows the end of its tar file"},
		"gzip checksum":       {"x.tgz", flip(good, len(good)-8), "checksum"},
		"gzip size":           {"x.tgz", flip(good, len(good)-1), "checksum"},

		"huge manifest":   mar(makeZip(t, []entry{{name: manifestPath, text: "{}" + strings.Repeat(" ", 200_000)}}), manifestPath),
		"deep manifest":   mar(makeZip(t, []entry{{name: manifestPath, text: strings.Repeat(`{"a":`, 12_000)}}), manifestPath),
		"deep in a key":   mar(makeZip(t, []entry{{name: manifestPath, text: `{"x":` + strings.Repeat("[", 12_000)}}), manifestPath),
		"manifest folder": mar(makeZip(t, []entry{{name: manifestPath + "/x", text: "{}"}}), manifestPath),

		"YAML object":           config("minWorkers: 1\nx: !!python/object/apply:os.system ['touch /tmp/escaped']\n", "tag"),
		"YAML object, verbatim": config("x: !<tag:yaml.org,2002:python/name:os.system> 1\n", "tag"),
		"YAML object as a key":  config("!!python/name:os.system a: 1\n", "tag"),
		"YAML object as root":   config("!!python/object:x.Y {minWorkers: 1}\n", "tag"),
		"YAML Java object":      config("x: !!javax.script.ScriptEngineManager [!!java.net.URL [\"http://h\"]]\n", "tag"),
		"YAML renamed tag":      config("%TAG ! tag:yaml.org,2002:\n---\nx: !python/name:os.system 1\n", "tag"),
		"YAML in a large file":  config(strings.Repeat("a: b\n", 15_000)+"handler:\n  x: !!python/name:os.system\n", "tag"),
		"YAML billion laughs":   config(laughs(), "multiply"),
		"YAML circle":           config("a: &a [1, *a]\n", "part of what it stands for"),
		"YAML circle of two":    config("a: &a {x: *b}\nb: &b {y: *a}\n", "part of what it stands for"),
	}
}

// make10s makes many empty folders, which cost nothing but their headers.
func make10s(prefix string, n int) []entry {
	all := make([]entry, 0, n)
	for i := range n {
		all = append(all, entry{name: fmt.Sprintf("%s%d/", prefix, i)})
	}
	return all
}

func flip(data []byte, at int) []byte {
	bad := append([]byte(nil), data...)
	bad[at] ^= 0xff
	return bad
}

// hiddenTail is a tar file with an entry behind its end.
func hiddenTail(t testing.TB) []byte {
	t.Helper()
	one := gunzip(t, makeTar(t, []entry{{name: "m/a", text: "x"}}))
	return gzipped(t, append(one, one...))
}

// gunzip gives the first part of a file of gzip that can be read.
func gunzip(t testing.TB, data []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	z.Multistream(false)
	text, _ := io.ReadAll(z)
	return text
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	if _, err := z.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func laughs() string {
	var text strings.Builder
	text.WriteString("a0: &a0 [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n")
	for i := 1; i < 10; i++ {
		fmt.Fprintf(&text, "a%d: &a%d [%s]\n", i, i, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i-1), 10), ", "))
	}
	return text.String()
}

// TestHostile: each is refused with a reason by both ways to open it, soon, with nothing written outside and nothing left behind.
func TestHostile(t *testing.T) {
	t.Parallel()
	for name, h := range hostile(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			p.write(t, "store/"+h.file, h.data)
			p.write(t, "tmp/models/canary", []byte("c"))
			s, err := New(Options{Store: p.store, Temp: p.temp, Logger: discard(), Limits: Limits{UnpackedBytes: 2 << 20, RatioFloor: 1 << 20, MetadataBytes: 100 << 10}})
			if err != nil {
				t.Fatal(err)
			}
			before := all(t, p.dir)
			for way, open := range map[string]func() (*Archive, error){
				"Open":      func() (*Archive, error) { return s.Open(t.Context(), h.file) },
				"OpenEntry": func() (*Archive, error) { return s.OpenEntry(t.Context(), h.file) },
				"OpenFile":  func() (*Archive, error) { return s.OpenFile(t.Context(), filepath.Join(p.store, h.file)) },
			} {
				begun := time.Now()
				_, err := open()
				if err == nil || !strings.Contains(err.Error(), h.says) {
					t.Errorf("%s: %.300v, want one that says %q", way, fmt.Sprint(err), h.says)
				}
				if !fault.Is(err, fault.InvalidModel, fault.Internal) {
					t.Errorf("%s: kind %v", way, fault.KindOf(err))
				}
				if took := time.Since(begun); took > time.Minute {
					t.Errorf("%s took %v", way, took)
				}
				if after := all(t, p.dir); strings.Join(after, "\n") != strings.Join(before, "\n") {
					t.Errorf("%s wrote %d files", way, len(after)-len(before))
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := os.Lstat("/tmp/escaped"); err == nil {
		t.Error("/tmp/escaped was written")
	}
}

// all lists everything below dir, lock files included.
func all(t testing.TB, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		names = append(names, path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestMillionEntries: a million entries are refused before much time and memory is spent.
func TestMillionEntries(t *testing.T) { //nolint:paralleltest // it measures what is allocated
	const many = 1_000_000
	p := newPlace(t)
	const nameLen = 6
	one := rawZip([]rawEntry{{name: strings.Repeat("x", nameLen)}}, rawEnd{})
	front, back := one[:localLen+nameLen], one[localLen+nameLen:localLen+directoryLen+2*nameLen]
	local, directory := make([]byte, 0, many*len(front)), make([]byte, 0, many*len(back))
	for i := range many {
		for digit := range nameLen {
			letter := byte('a' + i>>(4*digit)&15)
			front[localLen+digit], back[directoryLen+digit] = letter, letter
		}
		binary.LittleEndian.PutUint32(back[42:], uint32(len(local)))
		local, directory = append(local, front...), append(directory, back...)
	}
	le := binary.LittleEndian
	begin, wideAt := len(local), len(local)+len(directory)
	file := append(local, directory...)
	file = le.AppendUint64(le.AppendUint32(file, sigEnd64), end64Len-12)
	file = append(file, make([]byte, 12)...)
	file = le.AppendUint64(le.AppendUint64(file, many), many)
	file = le.AppendUint64(le.AppendUint64(file, uint64(len(directory))), uint64(begin))
	file = le.AppendUint64(le.AppendUint32(le.AppendUint32(file, sigLocator64), 0), uint64(wideAt))
	file = le.AppendUint32(le.AppendUint32(file, 1), sigEnd)
	file = le.AppendUint32(le.AppendUint32(file, 0), full32)                          // disks, and entries
	file = le.AppendUint16(le.AppendUint32(le.AppendUint32(file, full32), full32), 0) // the directory is where the other record says
	p.write(t, "store/x.mar", file)
	p.write(t, "store/x.tgz", manyInTar(t, DefaultEntries/10+1000))
	s := p.open(t, nil)
	for name, limit := range map[string]int{"x.mar": DefaultEntries, "x.tgz": DefaultEntries / 10} {
		s.limits.Entries = limit
		debug.FreeOSMemory()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		begun := time.Now()
		_, err := s.OpenEntry(t.Context(), name)
		took := time.Since(begun)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("more than %d entries", limit)) {
			t.Errorf("%s: %v", name, err)
		}
		const megabytes = 256
		if used := int64(after.HeapSys-after.HeapReleased-before.HeapSys+before.HeapReleased) >> 20; took > time.Minute || used > megabytes {
			t.Errorf("%s: %v and %d MB to refuse it", name, took, used)
		} else {
			t.Logf("%s: %v, %d MB", name, took, used)
		}
	}
}

// manyInTar makes a tar file of many empty files.
func manyInTar(t testing.TB, n int) []byte {
	t.Helper()
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err != nil {
		t.Fatal(err)
	}
	w := tar.NewWriter(z)
	for i := range n {
		if err := w.WriteHeader(&tar.Header{Name: fmt.Sprintf("m/%06x", i), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}
