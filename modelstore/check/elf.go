package check

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// sharedObject is what is read of an ELF file.
type sharedObject struct {
	machine elf.Machine
	class   elf.Class
	soname  string
	needed  []string
	runpath []string // DT_RUNPATH, else DT_RPATH, as they stand there
	wants   []libraryWant
}

// libraryWant is the versions that an object asks of a library.
type libraryWant struct {
	library  string
	versions []string
}

var errNotDynamic = errors.New("it is no shared object")

// mostSection bounds the parts of an ELF file that are read as a whole.
const mostSection = 256 << 20

// openELF reads the headers of an ELF file, and refuses one with parts that would fill the memory.
func openELF(r io.ReaderAt) (*elf.File, error) {
	file, err := elf.NewFile(r)
	if err != nil {
		return nil, err
	}
	read := []elf.SectionType{elf.SHT_DYNAMIC, elf.SHT_DYNSYM, elf.SHT_STRTAB, elf.SHT_GNU_VERNEED, elf.SHT_GNU_VERDEF, elf.SHT_GNU_VERSYM}
	for _, section := range file.Sections {
		if slices.Contains(read, section.Type) && max(section.Size, section.FileSize) > mostSection {
			return nil, fmt.Errorf("its section %s is %d bytes long", section.Name, section.Size)
		}
	}
	return file, nil
}

// readObject reads the dynamic part of an ELF file. debug/elf is not safe from panics on hostile files; they become errors.
func readObject(r io.ReaderAt) (o sharedObject, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it is damaged: %v", p)
		}
	}()
	file, err := openELF(r)
	if err != nil {
		return o, err
	}
	if file.Type != elf.ET_DYN && file.Type != elf.ET_EXEC {
		return o, errNotDynamic
	}
	o.machine, o.class = file.Machine, file.Class
	if o.needed, err = file.DynString(elf.DT_NEEDED); err != nil {
		return o, err
	}
	paths, err := file.DynString(elf.DT_RUNPATH)
	if err == nil && len(paths) == 0 {
		paths, err = file.DynString(elf.DT_RPATH)
	}
	if err != nil {
		return o, err
	}
	for _, list := range paths {
		o.runpath = append(o.runpath, strings.Split(list, ":")...)
	}
	if names, err := file.DynString(elf.DT_SONAME); err == nil && len(names) > 0 {
		o.soname = names[0]
	}
	needs, err := file.DynamicVersionNeeds()
	if err != nil {
		return o, nil // an object without versions
	}
	for _, need := range needs {
		want := libraryWant{library: need.Name}
		for _, dep := range need.Needs {
			if dep.Flags&elf.VER_FLG_WEAK == 0 {
				want.versions = append(want.versions, dep.Dep)
			}
		}
		o.wants = append(o.wants, want)
	}
	return o, nil
}

// definedVersions gives the versions that a library has.
func definedVersions(r io.ReaderAt) (versions []string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("it is damaged: %v", p)
		}
	}()
	file, err := openELF(r)
	if err != nil {
		return nil, err
	}
	all, err := file.DynamicVersions()
	if err != nil {
		return nil, err
	}
	for _, v := range all {
		versions = append(versions, v.Name)
	}
	return versions, nil
}

// isELF says whether a file begins as ELF files do.
func isELF(head []byte) bool { return strings.HasPrefix(string(head), elf.ELFMAG) }

// loader finds libraries as the system's loader does.
type loader struct {
	machine elf.Machine
	class   elf.Class
	search  []string // LD_LIBRARY_PATH
	cache   map[string][]string
	system  []string
	brought []string // folders of Python packages, whose libraries are in the process already or found by their names
	fits    map[string]bool
	defined map[string][]string
}

// systemFolders are what loaders search without being told, on Debian and elsewhere.
func systemFolders() []string {
	folders := []string{"/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"}
	for _, pattern := range []string{"/lib/*-linux-gnu*", "/usr/lib/*-linux-gnu*"} {
		more, _ := filepath.Glob(pattern) // the pattern is a good one
		folders = append(folders, more...)
	}
	return folders
}

const mostCacheBytes = 16 << 20

func newLoader(machine elf.Machine, env, brought []string) *loader {
	l := &loader{
		machine: machine, class: elf.ELFCLASS64, system: systemFolders(), brought: brought, fits: map[string]bool{}, defined: map[string][]string{},
	}
	for folder := range strings.FieldsFuncSeq(lookup(env, "LD_LIBRARY_PATH"), func(r rune) bool { return r == ':' || r == ';' }) {
		l.search = append(l.search, folder)
	}
	if info, err := os.Stat("/etc/ld.so.cache"); err == nil && info.Size() <= mostCacheBytes {
		if data, err := os.ReadFile("/etc/ld.so.cache"); err == nil {
			l.cache, _ = parseCache(data) // without a cache the folders are searched
		}
	}
	return l
}

// find gives the file of a library that an object in the folder origin needs, "" when the loader will not find it.
func (l *loader) find(name, origin string, runpath []string) string {
	if strings.Contains(name, "/") {
		if l.fit(name) {
			return name
		}
		return ""
	}
	for _, folder := range runpath {
		folder = strings.NewReplacer("${ORIGIN}", origin, "$ORIGIN", origin, "${LIB}", "lib", "$LIB", "lib").Replace(folder)
		if path := filepath.Join(folder, name); folder != "" && l.fit(path) {
			return path
		}
	}
	for _, folder := range l.search {
		if path := filepath.Join(folder, name); l.fit(path) {
			return path
		}
	}
	for _, path := range l.cache[name] {
		if l.fit(path) {
			return path
		}
	}
	for _, folder := range slices.Concat(l.system, l.brought) {
		if path := filepath.Join(folder, name); l.fit(path) {
			return path
		}
	}
	return ""
}

// fit says whether a file is a shared object for this machine.
func (l *loader) fit(path string) bool {
	fits, known := l.fits[path]
	if !known {
		fits = l.look(path)
		l.fits[path] = fits
	}
	return fits
}

func (l *loader) look(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return false
	}
	head, err := readHead(path, elfIdent)
	if err != nil || len(head) < elfIdent || !isELF(head) {
		return false
	}
	machine := elf.Machine(uint16(head[18]) | uint16(head[19])<<8)
	if head[elf.EI_DATA] == byte(elf.ELFDATA2MSB) {
		machine = elf.Machine(uint16(head[19]) | uint16(head[18])<<8)
	}
	return machine == l.machine && elf.Class(head[elf.EI_CLASS]) == l.class
}

const elfIdent = 20 // up to the machine's field

// versions gives the versions that a library defines, nil when it has none.
func (l *loader) versions(path string) []string {
	all, known := l.defined[path]
	if !known {
		if file, err := os.Open(path); err == nil {
			all, _ = definedVersions(file) // then nothing can be said
			_ = file.Close()               // it was only read from
		}
		l.defined[path] = all
	}
	return all
}

// debianPackages are the packages that bring what containers often lack. Source: packages.debian.org, contents of bookworm.
func debianPackage(library string) string {
	packages := []struct{ prefix, name string }{
		{"libGL.so", "libgl1"},
		{"libGLX.so", "libglx0"},
		{"libEGL.so", "libegl1"},
		{"libOpenGL.so", "libopengl0"},
		{"libGLU.so", "libglu1-mesa"},
		{"libglib-2.0.so", "libglib2.0-0"},
		{"libgthread-2.0.so", "libglib2.0-0"},
		{"libgobject-2.0.so", "libglib2.0-0"},
		{"libgomp.so", "libgomp1"},
		{"libgfortran.so.5", "libgfortran5"},
		{"libquadmath.so", "libquadmath0"},
		{"libstdc++.so", "libstdc++6"},
		{"libgcc_s.so", "libgcc-s1"},
		{"libatomic.so", "libatomic1"},
		{"libnuma.so", "libnuma1"},
		{"libtbb.so.12", "libtbb12"},
		{"libsndfile.so", "libsndfile1"},
		{"libsox.so.3", "libsox3"},
		{"libportaudio.so", "libportaudio2"},
		{"libasound.so", "libasound2"},
		{"libmp3lame.so", "libmp3lame0"},
		{"libopus.so", "libopus0"},
		{"libvorbis.so", "libvorbis0a"},
		{"libavcodec.so.59", "libavcodec59"},
		{"libavformat.so.59", "libavformat59"},
		{"libavutil.so.57", "libavutil57"},
		{"libswscale.so.6", "libswscale6"},
		{"libSM.so", "libsm6"},
		{"libICE.so", "libice6"},
		{"libX11.so", "libx11-6"},
		{"libXext.so", "libxext6"},
		{"libXrender.so", "libxrender1"},
		{"libxcb.so", "libxcb1"},
		{"libfontconfig.so", "libfontconfig1"},
		{"libfreetype.so", "libfreetype6"},
		{"libjpeg.so.62", "libjpeg62-turbo"},
		{"libpng16.so", "libpng16-16"},
		{"libtiff.so.6", "libtiff6"},
		{"libwebp.so", "libwebp7"},
		{"libopenjp2.so", "libopenjp2-7"},
		{"libopenblas.so", "libopenblas0"},
		{"libblas.so", "libblas3"},
		{"liblapack.so", "liblapack3"},
		{"libhdf5.so.103", "libhdf5-103-1"},
		{"libprotobuf.so.32", "libprotobuf32"},
		{"libsqlite3.so", "libsqlite3-0"},
		{"libpq.so", "libpq5"},
		{"libssl.so.3", "libssl3"},
		{"libcrypto.so.3", "libssl3"},
		{"libffi.so.8", "libffi8"},
		{"libzmq.so", "libzmq5"},
		{"libcurl.so", "libcurl4"},
		{"libxml2.so", "libxml2"},
		{"libxslt.so", "libxslt1.1"},
		{"libtesseract.so.5", "libtesseract5"},
		{"libmagic.so", "libmagic1"},
		{"libz.so", "zlib1g"},
		{"libbz2.so", "libbz2-1.0"},
		{"liblzma.so", "liblzma5"},
		{"libespeak-ng.so", "libespeak-ng1"},
		{"libgdal.so.32", "libgdal32"},
	}
	for _, p := range packages {
		if strings.HasPrefix(library, p.prefix) {
			return p.name
		}
	}
	return ""
}

// pipPackage names the package that brings a library into Python processes.
func pipPackage(library string) string {
	packages := []struct{ prefix, name string }{
		{"libtorch", "torch"},
		{"libc10", "torch"},
		{"libonnxruntime.so", "onnxruntime"},
		{"libtensorflow", "tensorflow"},
		{"libcudart.so", "torch with CUDA, or the nvidia-cuda-runtime packages"},
		{"libcublas", "torch with CUDA, or the nvidia-cublas packages"},
		{"libcudnn", "torch with CUDA, or the nvidia-cudnn packages"},
		{"libnvinfer", "tensorrt"},
		{"libnccl.so", "torch with CUDA, or the nvidia-nccl packages"},
	}
	for _, p := range packages {
		if strings.HasPrefix(library, p.prefix) {
			return p.name
		}
	}
	return ""
}

var (
	extensionABI = regexp.MustCompile(`\.(cpython-(\d)(\d+)([a-z]*)|pypy(\d)(\d+)-pp\d+|cp(\d)(\d+))(?:-([\w-]+))?\.(so|pyd)$`)
	soName       = regexp.MustCompile(`\.so(\.[0-9][0-9.]*)?$`)
)

// isSharedObject says by its name whether a file is to be a shared object.
func isSharedObject(name string) bool { return soName.MatchString(name) }

// sharedObjects looks at the archive's shared objects.
func (s *subject) sharedObjects(l *loader) {
	inArchive := map[string][]string{} // by base name and by soname
	objects := map[string]sharedObject{}
	for _, f := range s.files {
		if !f.elf && !isSharedObject(f.path) {
			continue
		}
		var o sharedObject
		err := errNotDynamic
		s.reading(f, func(file *os.File) { o, err = readObject(file) })
		switch {
		case errors.Is(err, errNotDynamic):
			continue
		case err != nil && f.lfs:
			continue
		case err != nil:
			if isSharedObject(f.path) && f.size > 0 && !f.script {
				s.found.add(Error, LibraryCorrupt, f.path, 0, "pack it again from a file that works", "the shared object cannot be read: %v", err)
			}
			continue
		}
		objects[f.path] = o
		base := filepath.Base(f.path)
		inArchive[base] = append(inArchive[base], f.path)
		if o.soname != "" && o.soname != base {
			inArchive[o.soname] = append(inArchive[o.soname], f.path)
		}
	}
	for _, f := range s.files {
		if o, ok := objects[f.path]; ok {
			s.sharedObject(l, f.path, &o, objects, inArchive)
		}
	}
}

func (s *subject) sharedObject(l *loader, path string, o *sharedObject, objects map[string]sharedObject, inArchive map[string][]string) {
	if o.machine != l.machine || o.class != l.class {
		for _, other := range inArchive[filepath.Base(path)] {
			if objects[other].machine == l.machine && objects[other].class == l.class {
				return // one for each kind of CPU
			}
		}
		s.found.add(Error, LibraryArchitecture, path, 0, "build it for this machine's CPU", "the shared object is for %s, and this machine is %s",
			machineName(o.machine, o.class), machineName(l.machine, l.class))
		return
	}
	s.extensionABI(path)
	s.neededLibraries(l, path, o, inArchive)
}

// extensionABI compares the tag in the name of an extension module.
func (s *subject) extensionABI(path string) {
	m := extensionABI.FindStringSubmatch(path)
	if m == nil || s.answer == nil {
		return
	}
	base := filepath.Base(path)
	stem, _, _ := strings.Cut(base, ".")
	for _, suffix := range s.answer.Python.ExtensionSuffixes {
		if strings.TrimPrefix(base, stem) == suffix {
			return
		}
	}
	for _, f := range s.files { // another one that this Python loads
		other := filepath.Base(f.path)
		if rest, ok := strings.CutPrefix(other, stem); ok && filepath.Dir(f.path) == filepath.Dir(path) && slices.Contains(s.answer.Python.ExtensionSuffixes, rest) {
			return
		}
	}
	for i := range s.answer.Missing {
		if slices.Contains(s.answer.Missing[i].OtherABI, path) {
			return // the import tells
		}
	}
	s.found.add(Warning, LibraryPython, path, 0, "build it for this Python",
		"the extension module is for %s, and Python %s loads only names that end in %s", m[1], s.answer.Python.Version, strings.Join(s.answer.Python.ExtensionSuffixes, ", "))
}

func (s *subject) neededLibraries(l *loader, path string, o *sharedObject, inArchive map[string][]string) {
	origin := filepath.Dir(s.abs(path))
	located := map[string]string{}
	for _, name := range o.needed {
		if located[name] = l.find(name, origin, o.runpath); located[name] != "" {
			continue
		}
		if own := inArchive[filepath.Base(name)]; len(own) > 0 {
			s.found.add(Warning, LibraryNotSearched, path, 0,
				"link with -Wl,-rpath,'$ORIGIN', or load it first with ctypes.CDLL(path, ctypes.RTLD_GLOBAL)",
				"it needs %s, which the archive has as %s; the loader does not look there by itself", name, strings.Join(own, ", "))
			continue
		}
		s.found.add(Error, LibraryMissing, path, 0, libraryHint(name), "it needs %s, which is not on this machine", name)
	}
	for _, want := range o.wants {
		file := located[want.library]
		if file == "" {
			continue
		}
		s.wantedVersions(l, path, want, file)
	}
}

func libraryHint(name string) string {
	if pkg := pipPackage(name); pkg != "" {
		return "it comes with the pip package " + pkg + ", in the model's Python"
	}
	if pkg := debianPackage(name); pkg != "" {
		return "on Debian and Ubuntu: apt-get install " + pkg
	}
	if strings.HasPrefix(name, "libc.musl-") || strings.HasPrefix(name, "ld-musl-") {
		return "it was built for Alpine Linux (musl); build it for glibc"
	}
	if strings.HasPrefix(name, "libpython") {
		return "it was linked to another Python; extension modules are linked to none"
	}
	return "install the library, put it into the archive and link with -Wl,-rpath,'$ORIGIN', or set LD_LIBRARY_PATH for the server"
}

// wantedVersions compares the versions of symbols that an object asks a library for.
func (s *subject) wantedVersions(l *loader, path string, want libraryWant, file string) {
	have := l.versions(file)
	if len(have) == 0 {
		return
	}
	missing := slices.DeleteFunc(slices.Clone(want.versions), func(v string) bool { return slices.Contains(have, v) })
	there := highest(have)
	for family, needed := range highest(missing) {
		if best := there[family]; best != "" && newer(needed, best) {
			s.found.add(Error, LibraryVersion, path, 0, "build it on a system as old as this one, or run it on a newer one",
				"it needs %s_%s of %s, and %s has %s_%s at most", family, needed, want.library, file, family, best)
		}
	}
}

// highest gives the highest number of each family of versions: GLIBC -> 2.38.
func highest(versions []string) map[string]string {
	found := map[string]string{}
	for _, v := range versions {
		family, number, ok := cutVersion(v)
		if ok && (found[family] == "" || newer(number, found[family])) {
			found[family] = number
		}
	}
	return found
}

// cutVersion splits GLIBC_2.38.
func cutVersion(v string) (family, version string, ok bool) {
	at := strings.LastIndexByte(v, '_')
	if at <= 0 || at+1 == len(v) || v[at+1] < '0' || v[at+1] > '9' {
		return "", "", false
	}
	return v[:at], v[at+1:], true
}

func machineName(m elf.Machine, c elf.Class) string {
	names := map[elf.Machine]string{
		elf.EM_X86_64: "x86_64", elf.EM_386: "i386", elf.EM_AARCH64: "aarch64", elf.EM_ARM: "32-bit ARM", elf.EM_PPC64: "ppc64", elf.EM_S390: "s390x",
		elf.EM_RISCV: "riscv64",
	}
	name := names[m]
	if name == "" {
		name = m.String()
	}
	if m == elf.EM_X86_64 && c == elf.ELFCLASS32 {
		name = "x32"
	}
	return name
}

// thisMachine is the ELF name of a GOARCH.
func thisMachine(goarch string) elf.Machine {
	switch goarch {
	case "arm64":
		return elf.EM_AARCH64
	case "ppc64le", "ppc64":
		return elf.EM_PPC64
	case "s390x":
		return elf.EM_S390
	case "riscv64":
		return elf.EM_RISCV
	}
	return elf.EM_X86_64
}
