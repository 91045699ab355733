package check

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// version is a version as PEP 440 has them, ready to be compared.
type version struct {
	epoch   int
	release []int
	phase   int // -4 dev alone, -3 a, -2 b, -1 rc, 0 final
	pre     int
	post    int // -1 for none
	dev     int // -1 for none
	local   string
}

var versionPattern = regexp.MustCompile(`(?i)^\s*v?(?:(\d{1,6})!)?(\d{1,9}(?:\.\d{1,9})*)(?:[-_.]?(a|b|c|rc|alpha|beta|pre|preview)[-_.]?(\d{0,9}))?` +
	`(?:-(\d{1,9})|[-_.]?(post|rev|r)[-_.]?(\d{0,9}))?(?:[-_.]?(dev)[-_.]?(\d{0,9}))?(?:\+([a-z0-9]+(?:[-_.][a-z0-9]+)*))?\s*$`)

func parseVersion(text string) (version, bool) {
	m := versionPattern.FindStringSubmatch(text)
	if m == nil {
		return version{}, false
	}
	v := version{epoch: number(m[1]), post: -1, dev: -1, local: strings.ToLower(m[10])}
	for part := range strings.SplitSeq(m[2], ".") {
		v.release = append(v.release, number(part))
	}
	switch strings.ToLower(m[3]) {
	case "":
	case "a", "alpha":
		v.phase = -3
	case "b", "beta":
		v.phase = -2
	default:
		v.phase = -1
	}
	v.pre = number(m[4])
	switch {
	case m[5] != "":
		v.post = number(m[5])
	case m[6] != "":
		v.post = number(m[7])
	}
	if m[8] != "" {
		v.dev = number(m[9])
		if v.phase == 0 && v.post < 0 {
			v.phase = -4
		}
	}
	return v, true
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return 0 // the pattern leaves only "" to fail
	}
	return n
}

// compare orders two versions without their local parts.
func (v version) compare(w version) int {
	if v.epoch != w.epoch {
		return v.epoch - w.epoch
	}
	for i := range max(len(v.release), len(w.release)) {
		if d := v.part(i) - w.part(i); d != 0 {
			return d
		}
	}
	for _, d := range []int{v.phase - w.phase, v.pre - w.pre, v.post - w.post} {
		if d != 0 {
			return d
		}
	}
	return v.devRank() - w.devRank()
}

const noDev = 1 << 30

// devRank puts a development version before the one that it leads to.
func (v version) devRank() int {
	if v.dev < 0 {
		return noDev
	}
	return v.dev
}

func (v version) part(i int) int {
	if i < len(v.release) {
		return v.release[i]
	}
	return 0
}

func (v version) hasPrefix(w version, parts int) bool {
	if v.epoch != w.epoch {
		return false
	}
	for i := range parts {
		if v.part(i) != w.part(i) {
			return false
		}
	}
	return true
}

// specifier is one clause such as ">=1.2" or "==2.*".
type specifier struct {
	op      string
	text    string
	version version
	prefix  bool // a trailing ".*"
}

var specifierPattern = regexp.MustCompile(`^\s*(~=|===|==|!=|<=|>=|<|>)\s*(\S+)\s*$`)

// parseSpecifiers reads a list of clauses with commas between them. An empty text is an empty list, which every version fulfils.
func parseSpecifiers(text string) ([]specifier, error) {
	var all []specifier
	for clause := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(clause) == "" {
			continue
		}
		m := specifierPattern.FindStringSubmatch(clause)
		if m == nil {
			return nil, fmt.Errorf("%q is no version clause such as >=1.2", strings.TrimSpace(clause))
		}
		s := specifier{op: m[1], text: m[2]}
		bare, ok := m[2], true
		if s.op == "==" || s.op == "!=" {
			bare, s.prefix = strings.CutSuffix(m[2], ".*")
		}
		if s.version, ok = parseVersion(bare); !ok && s.op != "===" {
			return nil, fmt.Errorf("%q is no version", m[2])
		}
		if s.op == "~=" && len(s.version.release) < 2 {
			return nil, fmt.Errorf("~=%s needs at least two numbers", m[2])
		}
		all = append(all, s)
	}
	return all, nil
}

// satisfies says whether a version fulfils all the clauses.
func satisfies(have string, all []specifier) bool {
	v, ok := parseVersion(have)
	for i := range all {
		s := &all[i]
		if s.op == "===" {
			if !strings.EqualFold(have, s.text) {
				return false
			}
			continue
		}
		if !ok {
			continue // a version that cannot be read is nobody's contradiction
		}
		if !s.matches(v) {
			return false
		}
	}
	return true
}

func (s *specifier) matches(v version) bool {
	equal := func() bool {
		if s.prefix {
			return v.hasPrefix(s.version, len(s.version.release))
		}
		return v.compare(s.version) == 0 && (s.version.local == "" || s.version.local == v.local)
	}
	switch d := v.compare(s.version); s.op {
	case "==":
		return equal()
	case "!=":
		return !equal()
	case "<=":
		return d <= 0
	case ">=":
		return d >= 0
	case "<":
		return d < 0
	case ">":
		return d > 0
	default: // ~=
		return d >= 0 && v.hasPrefix(s.version, len(s.version.release)-1)
	}
}
