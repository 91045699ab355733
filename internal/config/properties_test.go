package config

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseProperties(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, in string
		want     []property
	}{
		{"separators", "a=1\nb:2\nc 3\nd = 4\ne\t:\t5\nf  =  = 6\n", []property{
			{"a", "1", 1}, {"b", "2", 2}, {"c", "3", 3}, {"d", "4", 4}, {"e", "5", 5}, {"f", "= 6", 6},
		}},
		{"comments", "# x\n  ! y\n\na=1 # no comment\n", []property{{"a", "1 # no comment", 4}}},
		{"line ends", "a=1\r\nb=2\rc=3", []property{{"a", "1", 1}, {"b", "2", 2}, {"c", "3", 3}}},
		{"continued", "a=1,\\\n   2,\\\n\t3\nb=4", []property{{"a", "1,2,3", 1}, {"b", "4", 4}}},
		{"continued over a comment sign", "a=1\\\n#2\n", []property{{"a", "1#2", 1}}},
		{"continued over an empty line", "a=1\\\n\nb=2", []property{{"a", "1", 1}, {"b", "2", 3}}},
		{"continued at the end", `a=1\`, []property{{"a", "1", 1}}},
		{"two backslashes do not continue", "a=1\\\\\nb=2", []property{{"a", `1\`, 1}, {"b", "2", 2}}},
		{"a comment is not continued", "# x\\\na=1", []property{{"a", "1", 2}}},
		{"escapes", `a\ b\=c\:d=\t\n\r\f\q\"\\`, []property{{"a b=c:d", "\t\n\r\fq\"\\", 1}}},
		{"unicode", `a=\u00e9\u20AC\ud83d\ude00x`, []property{{"a", "é€😀x", 1}}},
		{"half a pair", `a=\ud83dx`, []property{{"a", "\ufffdx", 1}}},
		{"no value", "a\nb=\nc:\n", []property{{"a", "", 1}, {"b", "", 2}, {"c", "", 3}}},
		{"no key", "=1\n", []property{{"", "1", 1}}},
		{"blanks at the end stay", "a=1  \n", []property{{"a", "1  ", 1}}},
		{"json over lines", "models={\\\n  \"m\": {\\\n    \"1.0\": {\"batchSize\": 4}\\\n  }\\\n}\n", []property{{"models", `{"m": {"1.0": {"batchSize": 4}}}`, 1}}},
		{"utf-8", "a=é", []property{{"a", "é", 1}}},
		{"latin-1", "a=\xe9", []property{{"a", "é", 1}}},
		{"byte order mark", "\ufeffa=1", []property{{"a", "1", 1}}},
		{"empty", "", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := parseProperties([]byte(tt.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmp.AllowUnexported(property{})); diff != "" {
				t.Error(diff)
			}
		})
	}
	for _, in := range []string{`a=\u12`, `a=\u12xy`, "x=1\n" + `b\uzzzz=1`} {
		if _, err := parseProperties([]byte(in)); err == nil || !strings.Contains(err.Error(), "line ") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

func FuzzProperties(f *testing.F) {
	f.Add([]byte("a=1\\\n 2\nb\\ c:\\u00e9\n# x\n"))
	f.Add([]byte("\xff\\\r\\u"))
	f.Add([]byte(`model_snapshot={"name":"startup.cfg","models":{"m":{"1.0":{"marName":"m.mar"}}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		props, err := parseProperties(data)
		if err != nil {
			return
		}
		last := 0
		for _, p := range props {
			if p.line <= last {
				t.Errorf("line %d comes after line %d", p.line, last)
			}
			last = p.line
		}
	})
}
