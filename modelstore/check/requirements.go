package check

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
)

// requirement is one line of a requirements file that asks for a package.
type requirement struct {
	file       string
	line       int
	text       string
	name       string // as pip compares names; "" when it is only known where it comes from
	extras     bool
	specifiers []specifier
	marker     string
	direct     string // URL or path, "" for one of an index
}

// lineProblem is a line that pip would not read.
type lineProblem struct {
	line int
	text string
	why  string
}

// requirements are a requirements file and those that it includes.
type requirements struct {
	file     string
	all      []requirement
	problems []lineProblem
	includes []string // other files named by -r and -c
}

var (
	requirementPattern = regexp.MustCompile(`^([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(\[[^\]]*\])?\s*(.*)$`)
	optionPattern      = regexp.MustCompile(`\s--[a-z][a-z-]*(?:[ =].*)?$`)
	eggPattern         = regexp.MustCompile(`[#&]egg=([A-Za-z0-9._-]+)`)
	separators         = regexp.MustCompile(`[-_.]+`)
)

// canonical is a package's name as pip compares it.
func canonical(name string) string { return strings.ToLower(separators.ReplaceAllString(name, "-")) }

// parseRequirements reads a requirements file as pip does.
func parseRequirements(file, text string) requirements {
	r := requirements{file: file}
	var joined strings.Builder
	first := 0
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	for i, line := range lines {
		if joined.Len() == 0 {
			first = i + 1
		}
		if rest, ok := strings.CutSuffix(line, `\`); ok && !strings.HasPrefix(strings.TrimSpace(line), "#") && i+1 < len(lines) {
			joined.WriteString(rest)
			continue
		}
		joined.WriteString(line)
		r.read(first, joined.String())
		joined.Reset()
	}
	return r
}

func (r *requirements) read(line int, text string) {
	text = strings.TrimSpace(strings.TrimPrefix(text, "\ufeff"))
	if at := commentStart(text); at >= 0 {
		text = strings.TrimSpace(text[:at])
	}
	switch {
	case text == "":
	case strings.HasPrefix(text, "-"):
		r.option(line, text)
	default:
		text = strings.TrimSpace(optionPattern.ReplaceAllString(text, ""))
		req, err := parseRequirement(text)
		if err != nil {
			r.problems = append(r.problems, lineProblem{line, text, err.Error()})
			return
		}
		req.file, req.line = r.file, line
		r.all = append(r.all, req)
	}
}

// commentStart gives where a comment begins, -1 when there is none. A # within a word, as of a URL, begins none.
func commentStart(text string) int {
	for i := range len(text) {
		if text[i] == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t') {
			return i
		}
	}
	return -1
}

func (r *requirements) option(line int, text string) {
	name, value, _ := strings.Cut(strings.Replace(text, "=", " ", 1), " ")
	value = strings.TrimSpace(value)
	if len(name) > 2 && name[1] != '-' {
		name, value = name[:2], strings.TrimSpace(name[2:]+" "+value)
	}
	switch name {
	case "-r", "--requirement":
		r.includes = append(r.includes, path.Join(path.Dir(r.file), value))
	case "-e", "--editable":
		r.all = append(r.all, requirement{file: r.file, line: line, text: text, direct: value, name: eggName(value)})
	case "-c", "--constraint", "-i", "--index-url", "--extra-index-url", "--no-index", "-f", "--find-links", "--no-binary", "--only-binary",
		"--prefer-binary", "--require-hashes", "--pre", "--trusted-host", "--use-feature":
	default:
		r.problems = append(r.problems, lineProblem{line, text, name + " is no option of a requirements file"})
	}
}

func eggName(url string) string {
	if m := eggPattern.FindStringSubmatch(url); m != nil {
		return canonical(m[1])
	}
	return ""
}

// parseRequirement reads a requirement without options and comments.
func parseRequirement(text string) (requirement, error) {
	req := requirement{text: text}
	if direct, name := directOf(text); direct != "" {
		req.direct, req.name = direct, name
		return req, nil
	}
	m := requirementPattern.FindStringSubmatch(text)
	if m == nil {
		return req, errors.New("it does not begin with a package's name")
	}
	req.name, req.extras = canonical(m[1]), m[2] != ""
	rest := strings.TrimSpace(m[3])
	if url, ok := strings.CutPrefix(rest, "@"); ok {
		req.direct, req.marker, _ = strings.Cut(strings.TrimSpace(url), " ;")
		return req, nil
	}
	clauses, marker, hasMarker := strings.Cut(rest, ";")
	req.marker = strings.TrimSpace(marker)
	if hasMarker && req.marker == "" {
		return req, errors.New("there is nothing behind the semicolon")
	}
	clauses = strings.TrimSpace(clauses)
	if inner, ok := strings.CutPrefix(clauses, "("); ok {
		clauses = strings.TrimSuffix(inner, ")")
	}
	if clauses != "" && !strings.ContainsAny(clauses[:1], "=<>!~") {
		return req, fmt.Errorf("%q is neither a version clause such as >=1.2 nor a marker behind a semicolon", clauses)
	}
	if strings.HasPrefix(clauses, "=") && !strings.HasPrefix(clauses, "==") {
		return req, fmt.Errorf("%q: a version is asked for by two equals signs, ==", clauses)
	}
	var err error
	if req.specifiers, err = parseSpecifiers(clauses); err != nil {
		return req, err
	}
	if req.marker != "" {
		if _, err := evaluateMarker(req.marker, map[string]string{}); err != nil {
			return req, fmt.Errorf("the marker %q: %w", req.marker, err)
		}
	}
	return req, nil
}

// directOf gives the URL or path of a line that is one, and the package's name as far as it shows.
func directOf(text string) (direct, name string) {
	word, _, _ := strings.Cut(text, " ")
	lower := strings.ToLower(word)
	isFile := strings.HasSuffix(lower, ".whl") || strings.HasSuffix(lower, ".tar.gz") || strings.HasSuffix(lower, ".zip")
	switch {
	case strings.Contains(word, "://"), strings.HasPrefix(word, "file:"):
	case strings.HasPrefix(word, "./"), strings.HasPrefix(word, "../"), strings.HasPrefix(word, "/"), word == ".":
	case isFile:
	default:
		return "", ""
	}
	if w, err := parseWheelName(word); err == nil {
		return word, canonical(w.name)
	}
	return word, eggName(word)
}

// applies says whether a requirement's marker holds for a Python. One that cannot be evaluated holds.
func (r *requirement) applies(p *pythonFacts) bool {
	if r.marker == "" || p == nil {
		return true
	}
	holds, err := evaluateMarker(r.marker, p.Markers)
	return holds || err != nil
}
