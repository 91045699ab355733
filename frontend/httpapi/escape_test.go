package httpapi

import (
	"net/url"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/internal/fault"
)

func TestPathOf(t *testing.T) {
	for target, want := range map[string]string{
		"/a": "/a", "/a?b": "/a", "/a#b?c": "/a", "/a%2Fb": "/a/b", "/a+b%2B": "/a+b+", "/%C3%A9": "/é", "/%e4%b8%ad%20": "/中 ", "/;x=y": "/;x=y", "?x": "",
		"/%ff": "/\ufffd", "/%c0%80": "/\ufffd\ufffd", "/%e2%82": "/\ufffd", "/%e2%28%a1": "/\ufffd(\ufffd", "/%ed%a0%80": "/\ufffd", "/%f0%9f%98%80%f0%9f": "/😀\ufffd",
		"/%f0%80%80": "/\ufffd\ufffd\ufffd", "/%f4%90": "/\ufffd\ufffd", "/%e0%80x": "/\ufffd\ufffdx", "/%f1%80%80x": "/\ufffdx", "/%c3x": "/\ufffdx", "/%f8": "/\ufffd",
	} {
		if got, err := pathOf(target); got != want || err != nil {
			t.Errorf("%q: got %q %v, want %q", target, got, err, want)
		}
	}
	for target, want := range map[string]string{
		"/predictions/ec%zzho":  "invalid hex byte 'zz' at index 16 of '/predictions/ec%zzho'",
		"/é%zz?%":               "invalid hex byte 'zz' at index 3 of '/é%zz?%'",
		"/a%":                   "unterminated escape sequence at index 2 of: /a%",
		"/a%4?xx":               "unterminated escape sequence at index 2 of: /a%4?xx",
		"/a%41%4":               "unterminated escape sequence at index 5 of: /a%41%4",
		"/predictions/a%zzb?%y": "invalid hex byte 'zz' at index 15 of '/predictions/a%zzb?%y'",
	} {
		if _, err := pathOf(target); !fault.Is(err, fault.BadEscape) || fault.Message(err) != want {
			t.Errorf("%q: got %v, want %s", target, err, want)
		}
	}
}

func TestSegmentsOf(t *testing.T) {
	for path, want := range map[string][]string{
		"/": {}, "//": {}, "": {}, "/a": {"", "a"}, "/a/": {"", "a"}, "/a//": {"", "a"}, "//a": {"", "", "a"}, "/a//b": {"", "a", "", "b"}, "a": {"a"}, "http://h/a": {"http:", "", "h", "a"},
	} {
		if diff := cmp.Diff(want, segmentsOf(path)); diff != "" {
			t.Errorf("%q: %s", path, diff)
		}
	}
}

func TestQueryOf(t *testing.T) {
	for target, want := range map[string][]pair{
		"/a": nil, "/a?": nil, "/a#b=c": nil, "/a?&&": nil,
		"/a?b=1;c=2&d&=e&f=": {{"b", "1"}, {"c", "2"}, {"d", ""}, {"e", ""}, {"f", ""}},
		"/a?b=c=d&b=2#&e=1":  {{"b", "c=d"}, {"b", "2"}},
		"/a?a+b=c+%2B":       {{"a b", "c +"}},
		"/a?name%5B%5D=x?y":  {{"name[]", "x?y"}},
		"/a?%ff=%C3%A9":      {{"\ufffd", "é"}},
	} {
		got, err := queryOf(target)
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(pair{})); diff != "" || err != nil {
			t.Errorf("%q: %v %s", target, err, diff)
		}
	}
	if _, err := queryOf("/models?limit=%zz"); fault.Message(err) != "invalid hex byte 'zz' at index 15 of '/models?limit=%zz'" {
		t.Errorf("got %v", err)
	}
	if _, err := queryOf("/models?%z=1"); !fault.Is(err, fault.BadEscape) {
		t.Errorf("got %v", err)
	}
	if got, err := queryOf("/?" + strings.Repeat("a&", 2*maxParams)); len(got) != maxParams || err != nil {
		t.Errorf("%d parameters, %v", len(got), err)
	}
}

// FuzzTarget compares with the standard library where both accept.
func FuzzTarget(f *testing.F) {
	for _, seed := range []string{"/a?b=c&d=%20", "/%ff%e2%82?;=&", "/a%2Fb#c", "?%", "/a?b=%zz"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, target string) {
		path, err := pathOf(target)
		if err == nil && utf8.ValidString(target) && !utf8.ValidString(path) {
			t.Fatalf("path %q", path)
		}
		segmentsOf(path)
		params, queryErr := queryOf(target)
		raw := target[:pathEnd(target)]
		if want, stdErr := url.PathUnescape(raw); (stdErr == nil) != (err == nil) {
			t.Fatalf("%q: %v, the standard library says %v", raw, err, stdErr)
		} else if err == nil && utf8.ValidString(target) && utf8.ValidString(want) && want != path {
			t.Fatalf("%q: %q, the standard library reads %q", raw, path, want)
		}
		_, query, _ := strings.Cut(target, "?")
		if strings.ContainsAny(target, "#;") || len(params) >= maxParams || queryErr != nil {
			return
		}
		values, stdErr := url.ParseQuery(query)
		if stdErr != nil {
			return
		}
		for _, p := range params {
			if !strings.Contains(p.name, "\ufffd") && !strings.Contains(query, "&=") && !strings.HasPrefix(query, "=") && utf8.ValidString(query) && !values.Has(p.name) {
				t.Fatalf("%q has no parameter %q for the standard library", query, p.name)
			}
		}
	})
}
