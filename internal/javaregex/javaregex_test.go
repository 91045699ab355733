package javaregex

import (
	"strings"
	"testing"
)

func TestMatch(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, pattern, in string
		fold, want        bool
	}{
		{"whole string", `http://a/.*`, "http://a/x.mar", true, true},
		{"a part does not match", `http://a/`, "http://a/x.mar", true, false},
		{"any case", `http://HOST/.*`, "HTTP://host/X", true, true},
		{"case counts", `TS_.*`, "ts_x", false, false},
		{"the default of allowed_urls", `file://.*|http(s)?://.*`, "https://h/x", true, true},
		{"an alternative is not a prefix", `file://.*|http(s)?://.*`, "s3://h/http://", true, false},
		{"newline is no character", `.*`, "a\nb", false, false},
		{"kelvin sign is no k", `http://k/.*`, "http://\u212A/x", true, false},
		{"named group", `(?<host>[a-z]+)/.*`, "ab/c", false, true},
		{"bracket first in a class", `[]a]+`, "]a]", false, true},
		{"negated class with a bracket", `[^]]+`, "ab", false, true},
		{"quoted", `\Qa.b\E.*`, "a.bc", false, true},
		{"quoted does not match any character", `\Qa.b\E.*`, "axbc", false, false},
		{"quoted to the end", `\Qa.b`, "a.b", false, true},
		{"quoted in a class", `[\Q-]\E]+`, "-]", false, true},
		{"unicode escape", `\u0041+`, "AA", false, true},
		{"horizontal space", `a\hb[\h]`, "a\tb ", false, true},
		{"an escaped plus after a star", `a*\+`, "aa+", false, true},
		{"an escaped star and a plus", `a\*+`, "a***", false, true},
		{"reluctant", `a+?b`, "aab", false, true},
		{"empty matches only the empty string", ``, "x", false, false},
		{"empty", ``, "", false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			compileIt := Compile
			if tt.fold {
				compileIt = CompileFold
			}
			p, err := compileIt(tt.pattern)
			if err != nil {
				t.Fatal(err)
			}
			if got := p.Match(tt.in); got != tt.want {
				t.Errorf("%q matches %q: %v, want %v", tt.pattern, tt.in, got, tt.want)
			}
			if p.String() != tt.pattern {
				t.Errorf("String() = %q, want the source", p.String())
			}
		})
	}
}

func TestRefused(t *testing.T) {
	t.Parallel()
	tests := []struct{ pattern, says string }{
		{`(?!file).*`, "negative lookahead"},
		{`(?=a)a`, "lookahead"},
		{`(?<=a)b`, "lookbehind"},
		{`(?<!a)b`, "negative lookbehind"},
		{`(?>a)b`, "atomic group"},
		{`a*+`, "possessive"},
		{`a++`, "possessive"},
		{`a{2}+`, "possessive"},
		{`(a)\1`, "back reference"},
		{`(?<n>a)\k<n>`, "back reference"},
		{`[a-z&&[^b]]`, "intersection"},
		{`[a[b]]`, "class inside a class"},
		{`\v`, "not supported"},
		{`\R`, "not supported"},
		{`\p{javaLowerCase}`, "invalid character class"},
		{`a)|(b`, "unexpected )"},
		{`(a`, "missing closing )"},
		{`a\`, "single backslash"},
		{`a{2000}`, "repeat count"},
	}
	for _, tt := range tests {
		t.Run(tt.pattern, func(t *testing.T) {
			t.Parallel()
			_, err := Compile(tt.pattern)
			if err == nil {
				t.Fatalf("%q was accepted", tt.pattern)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("the error %q does not say %q", err, tt.says)
			}
		})
	}
}

// FuzzCompile looks for panics, and for an expression that matches a part only.
func FuzzCompile(f *testing.F) {
	for _, s := range []string{`file://.*|http(s)?://.*`, `[a-z&&[^b]]`, `\Q\E`, `[^]\Q`, `\u00`, `(?i)a)`, `a{1,`, `[\h-a]`} {
		f.Add(s, "http://a/b")
	}
	f.Fuzz(func(t *testing.T, pattern, in string) {
		p, err := CompileFold(pattern)
		if err != nil {
			return
		}
		if p.Match(in) && p.Match(in+"\nx") && !strings.Contains(pattern, "\n") && !strings.Contains(in, "\n") {
			// Only a class or (?s) can match a newline.
			if !strings.ContainsAny(pattern, `[(\`) {
				t.Errorf("%q matches %q and a longer one", pattern, in)
			}
		}
	})
}
