package check

import (
	"errors"
	"fmt"
	"strings"
)

// evaluateMarker evaluates an environment marker (PEP 508). Variables that are not given are "".
func evaluateMarker(text string, variables map[string]string) (bool, error) {
	m := &markerReader{rest: text, variables: variables}
	holds, err := m.either(0)
	if err != nil {
		return false, err
	}
	if m.skip(); m.rest != "" {
		return false, fmt.Errorf("%q is left over", m.rest)
	}
	return holds, nil
}

// deepestMarker bounds the brackets of a marker.
const deepestMarker = 20

type markerReader struct {
	rest      string
	variables map[string]string
}

func (m *markerReader) skip() { m.rest = strings.TrimLeft(m.rest, " \t") }

// word takes a word that is spelt out.
func (m *markerReader) word(word string) bool {
	m.skip()
	rest, ok := strings.CutPrefix(m.rest, word)
	if ok && (rest == "" || !isWordByte(rest[0]) || !isWordByte(word[0])) {
		m.rest = rest
		return true
	}
	return false
}

func isWordByte(c byte) bool {
	return c == '_' || c == '.' || c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func (m *markerReader) either(depth int) (bool, error) {
	holds, err := m.both(depth)
	for err == nil && m.word("or") {
		var right bool
		right, err = m.both(depth)
		holds = holds || right
	}
	return holds, err
}

func (m *markerReader) both(depth int) (bool, error) {
	holds, err := m.term(depth)
	for err == nil && m.word("and") {
		var right bool
		right, err = m.term(depth)
		holds = holds && right
	}
	return holds, err
}

func (m *markerReader) term(depth int) (bool, error) {
	if depth > deepestMarker {
		return false, errors.New("too many brackets")
	}
	if m.word("(") {
		holds, err := m.either(depth + 1)
		if err == nil && !m.word(")") {
			err = errors.New("a bracket is not closed")
		}
		return holds, err
	}
	left, leftName, err := m.value()
	if err != nil {
		return false, err
	}
	op, err := m.operator()
	if err != nil {
		return false, err
	}
	right, rightName, err := m.value()
	if err != nil {
		return false, err
	}
	return compareMarker(left, op, right, leftName+rightName), nil
}

// value takes a quoted text or a variable. name is the variable's.
func (m *markerReader) value() (text, name string, err error) {
	m.skip()
	if m.rest == "" {
		return "", "", errors.New("something is missing at the end")
	}
	if quote := m.rest[0]; quote == '"' || quote == '\'' {
		end := strings.IndexByte(m.rest[1:], quote)
		if end < 0 {
			return "", "", errors.New("a quotation mark is missing")
		}
		text, m.rest = m.rest[1:end+1], m.rest[end+2:]
		return text, "", nil
	}
	end := 0
	for end < len(m.rest) && isWordByte(m.rest[end]) {
		end++
	}
	name, m.rest = m.rest[:end], m.rest[end:]
	if !isMarkerVariable(name) {
		return "", "", fmt.Errorf("%q is no variable of markers", name)
	}
	return m.variables[name], name, nil
}

func isMarkerVariable(name string) bool {
	switch name {
	case "os_name", "sys_platform", "platform_machine", "platform_python_implementation", "platform_release", "platform_system", "platform_version",
		"python_version", "python_full_version", "implementation_name", "implementation_version", "extra", "os.name", "sys.platform",
		"platform.version", "platform.machine", "platform.python_implementation", "python_implementation":
		return true
	}
	return false
}

func (m *markerReader) operator() (string, error) {
	m.skip()
	if m.word("not") {
		if m.word("in") {
			return "not in", nil
		}
		return "", errors.New("`not` has to be followed by `in`")
	}
	for _, op := range []string{"===", "~=", "==", "!=", "<=", ">=", "<", ">"} {
		if rest, ok := strings.CutPrefix(m.rest, op); ok {
			m.rest = rest
			return op, nil
		}
	}
	if m.word("in") {
		return "in", nil
	}
	return "", fmt.Errorf("an operator is expected at %q", m.rest)
}

func compareMarker(left, op, right, name string) bool {
	switch op {
	case "in":
		return strings.Contains(right, left)
	case "not in":
		return !strings.Contains(right, left)
	}
	if strings.Contains(name, "version") {
		if clauses, err := parseSpecifiers(op + right); err == nil {
			if _, ok := parseVersion(left); ok {
				return satisfies(left, clauses)
			}
		}
	}
	switch op {
	case "==", "===":
		return left == right
	case "!=":
		return left != right
	case "<":
		return left < right
	case "<=":
		return left <= right
	case ">":
		return left > right
	case ">=":
		return left >= right
	}
	return false
}
