// Package javaregex compiles the regular expressions of TorchServe's configuration, which are Java's, to Go's, and refuses those that Go
// cannot express or would understand differently.
package javaregex

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Pattern is a compiled expression that is matched against whole strings. It is safe for concurrent use.
type Pattern struct {
	source string
	re     *regexp.Regexp
	fold   bool
}

// CompileFold compiles a Java expression that matches in any case, as java.util.regex.Pattern.CASE_INSENSITIVE does (ASCII letters only).
func CompileFold(java string) (*Pattern, error) { return compile(java, true) }

// Compile compiles a Java expression.
func Compile(java string) (*Pattern, error) { return compile(java, false) }

// Match says whether the whole of s matches, as Java's Matcher.matches does.
func (p *Pattern) Match(s string) bool {
	// Go folds the Kelvin sign to k and the long s to s; Java, without UNICODE_CASE, does not.
	if p.fold && strings.ContainsAny(s, "\u212A\u017F") {
		return false
	}
	return p.re.MatchString(s)
}

// String gives the expression as it was written.
func (p *Pattern) String() string { return p.source }

func compile(java string, fold bool) (*Pattern, error) {
	translated, err := translate(java)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", java, err)
	}
	// On its own first: "a)|(b" would become valid inside the parentheses of the full match.
	if _, err := regexp.Compile(translated); err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", java, err)
	}
	flags := ""
	if fold {
		flags = "(?i)"
	}
	re, err := regexp.Compile(flags + `\A(?:` + translated + `)\z`)
	if err != nil {
		return nil, fmt.Errorf("regular expression %q: %w", java, err)
	}
	return &Pattern{source: java, re: re, fold: fold}, nil
}

// unsupported are openings of groups that Go's linear-time engine does not have.
func unsupported() []struct{ opening, what string } {
	return []struct{ opening, what string }{
		{"(?=", "a lookahead"},
		{"(?!", "a negative lookahead"},
		{"(?<=", "a lookbehind"},
		{"(?<!", "a negative lookbehind"},
		{"(?>", "an atomic group"},
	}
}

// translator walks over one Java expression.
type translator struct {
	in    string
	out   strings.Builder
	class bool // inside [ ]
}

func translate(java string) (string, error) {
	t := &translator{in: java}
	for i := 0; i < len(t.in); {
		n, err := t.step(i)
		if err != nil {
			return "", err
		}
		i += n
	}
	return t.out.String(), nil
}

// step handles what is at i and says how many bytes it was.
func (t *translator) step(i int) (int, error) {
	rest := t.in[i:]
	switch {
	case rest[0] == '\\':
		return t.escape(i)
	case t.class:
		return t.inClass(i)
	case rest[0] == '[':
		return t.openClass(rest)
	case rest[0] == '(':
		for _, u := range unsupported() {
			if strings.HasPrefix(rest, u.opening) {
				return 0, fmt.Errorf("%s (%q at offset %d) is not supported; write the expression without it", u.what, u.opening, i)
			}
		}
	case isPossessive(t.in, i):
		return 0, fmt.Errorf("a possessive quantifier (at offset %d) is not supported; leave out the second \"+\"", i)
	}
	t.out.WriteByte(rest[0])
	return 1, nil
}

// isPossessive says whether the + at i makes the quantifier before it possessive.
func isPossessive(s string, i int) bool {
	return s[i] == '+' && i > 0 && strings.IndexByte("*+?}", s[i-1]) >= 0 && (i < 2 || s[i-2] != '\\')
}

// openClass handles "[", with a "]" that stands for itself right after it.
func (t *translator) openClass(rest string) (int, error) {
	t.class = true
	head := "["
	if strings.HasPrefix(rest, "[^") {
		head = "[^"
	}
	t.out.WriteString(head)
	if strings.HasPrefix(rest[len(head):], "]") {
		t.out.WriteString(`\]`)
		return len(head) + 1, nil
	}
	return len(head), nil
}

// inClass handles one character inside [ ].
func (t *translator) inClass(i int) (int, error) {
	switch {
	case t.in[i] == '[':
		return 0, fmt.Errorf("a class inside a class (at offset %d) is not supported; write \"\\[\" for the bracket itself", i)
	case strings.HasPrefix(t.in[i:], "&&"):
		return 0, fmt.Errorf("an intersection of classes (\"&&\" at offset %d) is not supported", i)
	case t.in[i] == ']':
		t.class = false
	}
	t.out.WriteByte(t.in[i])
	return 1, nil
}

const horizontalSpace = ` \t\x{A0}\x{1680}\x{180e}\x{2000}-\x{200a}\x{202f}\x{205f}\x{3000}`

// escape handles a backslash and what it escapes. What is left to Go is either the same there or an error there.
func (t *translator) escape(i int) (int, error) {
	rest := t.in[i:]
	if len(rest) == 1 {
		return 0, errors.New("it ends with a single backslash")
	}
	switch c := rest[1]; {
	case c == 'Q':
		return t.quote(rest)
	case c == 'u' && len(rest) >= 6:
		t.out.WriteString(`\x{` + rest[2:6] + `}`)
		return 6, nil
	case c == 'h' && t.class:
		t.out.WriteString(horizontalSpace)
	case c == 'h':
		t.out.WriteString("[" + horizontalSpace + "]")
	case c == 'v':
		return 0, fmt.Errorf("\\v (at offset %d) is not supported; write [\\n\\x0B\\f\\r]", i)
	case c >= '1' && c <= '9', c == 'k':
		return 0, fmt.Errorf("a back reference (%q at offset %d) is not supported; write the expression without it", rest[:2], i)
	case c == '0', c == 'e', c == 'c', c == 'G', c == 'Z', c == 'R', c == 'X', c == 'N', c == 'H', c == 'V':
		return 0, fmt.Errorf("%q (at offset %d) is not supported", rest[:2], i)
	default:
		t.out.WriteString(rest[:2])
	}
	return 2, nil
}

// quote handles \Q to \E (or to the end), also inside a class.
func (t *translator) quote(rest string) (int, error) {
	text, _, closed := strings.Cut(rest[2:], `\E`)
	t.out.WriteString(strings.ReplaceAll(regexp.QuoteMeta(text), "-", `\-`))
	n := len(text) + 2
	if closed {
		n += 2
	}
	return n, nil
}
