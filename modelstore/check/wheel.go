package check

import (
	"archive/zip"
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"regexp"
	"slices"
	"strings"
)

// wheelName is the name of a wheel, taken apart.
type wheelName struct {
	name, version, build     string
	pythons, abis, platforms []string
}

var (
	wheelProject = regexp.MustCompile(`^[A-Za-z0-9](?:[A-Za-z0-9._]*[A-Za-z0-9])?$`)
	wheelTag     = regexp.MustCompile(`^[A-Za-z0-9_]+$`)
)

// parseWheelName reads NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl.
func parseWheelName(file string) (wheelName, error) {
	stem, ok := strings.CutSuffix(path.Base(file), ".whl")
	parts := strings.Split(stem, "-")
	if !ok || len(parts) < 5 || len(parts) > 6 {
		return wheelName{}, errors.New("a wheel's name is NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl")
	}
	w := wheelName{name: parts[0], version: parts[1]}
	if len(parts) == 6 {
		w.build = parts[2]
		if w.build == "" || w.build[0] < '0' || w.build[0] > '9' {
			return wheelName{}, fmt.Errorf("the build number %q does not begin with a digit", w.build)
		}
	}
	if !wheelProject.MatchString(w.name) {
		return wheelName{}, fmt.Errorf("%q is no package's name", w.name)
	}
	if _, ok := parseVersion(strings.ReplaceAll(w.version, "_", "-")); !ok {
		return wheelName{}, fmt.Errorf("%q is no version", w.version)
	}
	tags := parts[len(parts)-3:]
	for i, into := range []*[]string{&w.pythons, &w.abis, &w.platforms} {
		*into = strings.Split(strings.ToLower(tags[i]), ".")
		for _, tag := range *into {
			if !wheelTag.MatchString(tag) {
				return wheelName{}, fmt.Errorf("%q is no tag", tag)
			}
		}
	}
	return w, nil
}

// unfit says why a wheel cannot be installed on a Python, "" when it can.
func (w *wheelName) unfit(p *pythonFacts) string {
	minor, ok := p.minor()
	if !ok {
		return ""
	}
	interpreter := fmt.Sprintf("cp3%d", minor)
	abi := interpreter
	if p.FreeThreaded {
		abi += "t"
	}
	fits := false
	for _, python := range w.pythons {
		for _, wanted := range w.abis {
			fits = fits || pythonFits(python, wanted, interpreter, abi, minor, p)
		}
	}
	if !fits {
		return fmt.Sprintf("it is for %s with ABI %s, and this is %s %s", strings.Join(w.pythons, "/"), strings.Join(w.abis, "/"), p.Implementation, p.Version)
	}
	if !slices.ContainsFunc(w.platforms, p.platformFits) {
		return fmt.Sprintf("it is for %s, and this is %s on %s with %s %s", strings.Join(w.platforms, "/"), p.Platform, p.Machine, p.Libc, p.LibcVersion)
	}
	return ""
}

func pythonFits(python, wanted, interpreter, abi string, minor int, p *pythonFacts) bool {
	if tagged, ok := pyMinor(python, "py"); ok {
		return wanted == "none" && tagged <= minor
	}
	if p.Implementation != "cpython" {
		return strings.HasPrefix(python, "pp") && p.Implementation == "pypy"
	}
	tagged, ok := pyMinor(python, "cp")
	switch {
	case !ok:
		return false
	case wanted == "abi3":
		return tagged <= minor && !p.FreeThreaded
	case wanted == "none":
		return tagged <= minor
	}
	return python == interpreter && (wanted == abi || wanted == abi+"m" && minor <= 7)
}

// pyMinor reads the 8 of py38 or cp38. py3 stands for any.
func pyMinor(tag, prefix string) (int, bool) {
	digits, ok := strings.CutPrefix(tag, prefix+"3")
	if !ok {
		return 0, false
	}
	if digits == "" {
		return 0, true
	}
	if len(digits) > 3 || strings.Trim(digits, "0123456789") != "" {
		return 0, false
	}
	return number(digits), true
}

var (
	manylinux = regexp.MustCompile(`^manylinux_(\d{1,4})_(\d{1,4})_(\w+)$`)
	musllinux = regexp.MustCompile(`^musllinux_(\d{1,4})_(\d{1,4})_(\w+)$`)
	oldLinux  = regexp.MustCompile(`^manylinux(1|2010|2014)_(\w+)$`)
)

// platformFits says whether wheels of a platform's tag can be installed.
func (p *pythonFacts) platformFits(tag string) bool {
	if tag == "any" {
		return true
	}
	if p.Platform != "linux" {
		return true // no other system is served; say nothing wrong
	}
	if machine, ok := strings.CutPrefix(tag, "linux_"); ok {
		return machine == p.Machine
	}
	if m := oldLinux.FindStringSubmatch(tag); m != nil {
		need := map[string]string{"1": "2.5", "2010": "2.12", "2014": "2.17"}[m[1]]
		return m[2] == p.Machine && p.Libc == "glibc" && !newer(need, p.LibcVersion)
	}
	if m := manylinux.FindStringSubmatch(tag); m != nil {
		return m[3] == p.Machine && p.Libc == "glibc" && !newer(m[1]+"."+m[2], p.LibcVersion)
	}
	if m := musllinux.FindStringSubmatch(tag); m != nil {
		return m[3] == p.Machine && p.Libc == "musl"
	}
	return false
}

// newer says whether a version is above another one. One that cannot be read is not.
func newer(a, b string) bool {
	v, ok := parseVersion(a)
	w, ok2 := parseVersion(b)
	return ok && ok2 && v.compare(w) > 0
}

const (
	mostWheelEntries = 100_000
	mostMetadata     = 1 << 20
)

// wheelContents is what is read from inside of a wheel.
type wheelContents struct {
	requiresPython string
	modules        []string // top-level modules
}

func readWheel(r io.ReaderAt, size int64) (wheelContents, error) {
	var c wheelContents
	archive, err := zip.NewReader(r, size)
	if err != nil {
		return c, err
	}
	for i, file := range archive.File {
		if i == mostWheelEntries {
			break
		}
		top, rest, nested := strings.Cut(file.Name, "/")
		switch {
		case nested && strings.HasSuffix(top, ".dist-info"):
			if rest == "METADATA" {
				c.requiresPython = header(file, "Requires-Python")
			}
		case nested && strings.HasSuffix(top, ".data"):
		case nested:
			c.modules = append(c.modules, top)
		default:
			name, _, _ := strings.Cut(top, ".")
			c.modules = append(c.modules, name)
		}
	}
	slices.Sort(c.modules)
	c.modules = slices.Compact(c.modules)
	return c, nil
}

// header reads a header of a wheel's metadata.
func header(file *zip.File, name string) string {
	text, err := file.Open()
	if err != nil {
		return ""
	}
	defer func() { _ = text.Close() }() // it was only read from
	lines := bufio.NewScanner(io.LimitReader(text, mostMetadata))
	for lines.Scan() && lines.Text() != "" {
		if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.EqualFold(key, name) {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
