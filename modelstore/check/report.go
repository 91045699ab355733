package check

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity says what a finding means for the model.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // the model will not load, or not answer
	Warning Severity = "warning" // it may fail later, or do otherwise than was meant
)

// Finding is one thing that is wrong with an archive.
type Finding struct {
	Severity Severity `json:"severity"`
	Code     Code     `json:"code"`
	File     string   `json:"file,omitempty"` // in the archive, with slashes; "" when it is about the archive as a whole
	Line     int      `json:"line,omitempty"` // 0 when there is none to name
	Message  string   `json:"message"`        // what is wrong, and why
	Hint     string   `json:"hint,omitempty"` // what to do
}

// place is "file:line".
func (f *Finding) place() string {
	if f.Line > 0 {
		return fmt.Sprintf("%s:%d", f.File, f.Line)
	}
	return f.File
}

// Python is the interpreter that the archive was compared with.
type Python struct {
	Executable string `json:"executable"`
	Version    string `json:"version"`
}

// Report is what a check has found.
type Report struct {
	Path     string // the archive, as it was asked for
	Model    string
	Version  string
	Digest   string
	Python   *Python   // nil when no Python was asked
	Findings []Finding // errors first, then by file and line
	Took     time.Duration
}

// Errors counts the findings that keep the model from working.
func (r *Report) Errors() int { return r.count(Error) }

// Warnings counts the other ones.
func (r *Report) Warnings() int { return r.count(Warning) }

func (r *Report) count(s Severity) int {
	n := 0
	for i := range r.Findings {
		if r.Findings[i].Severity == s {
			n++
		}
	}
	return n
}

// MarshalJSON gives the report's form in docs/check.md.
func (r Report) MarshalJSON() ([]byte, error) {
	findings := r.Findings
	if findings == nil {
		findings = []Finding{}
	}
	return json.Marshal(struct {
		Path     string    `json:"path"`
		Model    string    `json:"model"`
		Version  string    `json:"version"`
		Digest   string    `json:"digest,omitempty"`
		Python   *Python   `json:"python,omitempty"`
		Good     bool      `json:"good"`
		Errors   int       `json:"errors"`
		Warnings int       `json:"warnings"`
		Seconds  float64   `json:"seconds"`
		Findings []Finding `json:"findings"`
	}{
		r.Path, r.Model, r.Version, r.Digest, r.Python, r.Errors() == 0, r.Errors(), r.Warnings(),
		r.Took.Round(time.Millisecond).Seconds(), findings,
	})
}

// Text is the report for people: one line when nothing was found, else the findings grouped by file. It ends with a newline.
func (r *Report) Text() string {
	var b strings.Builder
	head := strings.TrimSpace(r.Model + " " + r.Version)
	if head != "" {
		head = " (" + head + ")"
	}
	python := ""
	if r.Python != nil {
		python = ", for Python " + r.Python.Version
	}
	if len(r.Findings) == 0 {
		fmt.Fprintf(&b, "%s%s: good%s\n", r.Path, head, python)
		return b.String()
	}
	fmt.Fprintf(&b, "%s%s: %s and %s%s\n", r.Path, head, plural(r.Errors(), "error"), plural(r.Warnings(), "warning"), python)
	for i := range r.Findings {
		f := &r.Findings[i]
		where := ""
		if f.File != "" {
			where = f.place() + ": "
		}
		fmt.Fprintf(&b, "  %s%s: %s [%s]\n", where, f.Severity, f.Message, f.Code)
		if f.Hint != "" {
			fmt.Fprintf(&b, "      %s\n", f.Hint)
		}
	}
	return b.String()
}

// Reason is the errors in one line, for a log or a model's state: the first three, and how many more there are. "" when there is none.
func (r *Report) Reason() string {
	const shown = 3
	var parts []string
	for i := range r.Findings {
		f := &r.Findings[i]
		if f.Severity != Error {
			continue
		}
		if len(parts) == shown {
			parts = append(parts, fmt.Sprintf("and %d more", r.Errors()-shown))
			break
		}
		text := f.Message
		if f.File != "" {
			text = f.place() + ": " + text
		}
		if f.Hint != "" {
			text += " (" + f.Hint + ")"
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "; ")
}

func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return fmt.Sprintf("%d %ss", n, word)
}

// findings gathers what the parts of a check find.
type findings struct{ all []Finding }

func (f *findings) add(s Severity, code Code, file string, line int, hint, format string, args ...any) {
	message := format
	if len(args) > 0 {
		message = fmt.Sprintf(format, args...)
	}
	found := Finding{Severity: s, Code: code, File: printable(file), Line: line, Message: printable(message), Hint: printable(hint)}
	if len(f.all) < mostFindings && !slices.Contains(f.all, found) {
		f.all = append(f.all, found)
	}
}

// mostFindings bounds what a hostile archive can make a report hold.
const mostFindings = 500

func (f *findings) sorted() []Finding {
	slices.SortStableFunc(f.all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Code, b.Code))
	})
	return f.all
}

// longestText bounds a message: names in it come from the archive.
const longestText = 2000

// printable makes text of an archive's author fit for a terminal.
func printable(s string) string {
	s = strings.ToValidUTF8(s, "?")
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r >= 0x202a && r <= 0x202e || r >= 0x2066 && r <= 0x2069 {
			return '?'
		}
		return r
	}, s)
	if len(s) > longestText {
		s = strings.ToValidUTF8(s[:longestText], "") + "…"
	}
	return s
}
