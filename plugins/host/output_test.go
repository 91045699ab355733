package host

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/flambeau-serve/flambeau/plugins/backend"
)

// parse gives the lines of what is written, in pieces of size bytes.
func parse(written string, size, limit int) (out []backend.OutputLine, kept []string) {
	keep := &lastLines{}
	p := &lineParser{stream: backend.Stderr, keep: keep, out: func(l backend.OutputLine) { out = append(out, l) }}
	s := &splitter{limit: limit, emit: p.line}
	for b := []byte(written); len(b) > 0; {
		n := min(size, len(b))
		_, _ = s.Write(b[:n])
		b = b[n:]
	}
	s.flush()
	return out, keep.get()
}

func TestLines(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", maxLine) // twice the limit, and no character is cut in half
	for name, tc := range map[string]struct {
		written string
		want    []backend.OutputLine
	}{
		"nothing":    {"", nil},
		"lines":      {"a\n\nb\r\nc", []backend.OutputLine{{Text: "a"}, {Text: ""}, {Text: "b"}, {Text: "c"}}},
		"no UTF-8":   {"a\xffb\n", []backend.OutputLine{{Text: "a\uFFFDb"}}},
		"long":       {long + "\nx\n", []backend.OutputLine{{Text: long[:maxLine]}, {Text: long[maxLine:]}, {Text: "x"}}},
		"long, odd":  {"x" + long + "\n", []backend.OutputLine{{Text: "x" + long[:maxLine-2]}, {Text: long[maxLine-2 : 2*maxLine-2]}, {Text: "é"}}},
		"just fits":  {long[:maxLine] + "\nx\n", []backend.OutputLine{{Text: long[:maxLine]}, {Text: "x"}}},
		"marker":     {"\x1e{\"ids\":[\"1\",\"2\"],\"level\":\"INFO\"}\na\nb\n\x1e{}\nc\n", []backend.OutputLine{{Text: "a", Level: "INFO", RequestIDs: []string{"1", "2"}}, {Text: "b", Level: "INFO", RequestIDs: []string{"1", "2"}}, {Text: "c"}}},
		"bad marker": {"\x1e{\nno\x1emarker\n", []backend.OutputLine{{Text: "no\x1emarker"}}},
		"long marker": {
			"\x1e{\"level\":\"" + long + "\"}\n\x1e{\"level\":\"DEBUG\"}\na\n",
			[]backend.OutputLine{{Text: "a", Level: "DEBUG"}},
		},
		"marker at the very end": {"a\n\x1e{}", []backend.OutputLine{{Text: "a"}}},
	} {
		for i := range tc.want {
			tc.want[i].Stream = backend.Stderr
		}
		for _, size := range []int{1, 7, 4096, 1 << 20} {
			got, _ := parse(tc.written, size, maxLine)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s in pieces of %d: -want +got:\n%.2000s", name, size, diff)
			}
		}
	}
}

func TestLastLinesAreKept(t *testing.T) {
	t.Parallel()
	var written strings.Builder
	for i := range 200 {
		fmt.Fprintf(&written, "line %d\n", i)
	}
	written.WriteString(strings.Repeat("x", 2*maxKeptBytes) + "\n")
	_, kept := parse(written.String(), 100, maxLine)
	if len(kept) != keptLines || kept[0] != "line 151" || !strings.HasSuffix(kept[49], "x…") || len(kept[49]) > maxKeptBytes+4 {
		t.Errorf("%d lines, first %q, last of %d bytes", len(kept), kept[0], len(kept[len(kept)-1]))
	}
}

func TestReportsBegin(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"SIGSEGV: segmentation violation": true, "SIGABRT: abort": true, "panic: boo": true, "fatal error: concurrent map writes": true,
		"Fatal Python error: Segmentation fault": true, "terminate called after throwing an instance of 'std::bad_alloc'": true,
		"SIGSEGV": false, "Signal: 11": false, "goroutine 1 [running]:": false, "a panic: boo": false, "SIG a: b": false, "": false,
	} {
		if beginsReport(line) != want {
			t.Errorf("%q: %t", line, !want)
		}
	}
}

func FuzzLines(f *testing.F) {
	f.Add([]byte("a\nb\x1e\n\x1e{}\n\xc3"), 1)
	f.Add(bytes.Repeat([]byte("\xf0\x9f\x98\x80"), 9), 3)
	f.Add([]byte("\x1e{\"ids\":[\"1\"]}\n\x1e{\"a\":1}\r\n0123456789\n"), 3)
	f.Fuzz(func(t *testing.T, written []byte, size int) {
		if size <= 0 || size > 1<<20 {
			return
		}
		const limit = 10
		whole, _ := parse(string(written), 1<<20, limit)
		pieces, _ := parse(string(written), size, limit)
		if diff := cmp.Diff(whole, pieces); diff != "" {
			t.Errorf("it matters how it is written: %.2000s", diff)
		}
		for _, l := range whole {
			if len(l.Text) > 3*limit || !utf8.ValidString(l.Text) {
				t.Errorf("line of %d bytes, valid %t", len(l.Text), utf8.ValidString(l.Text))
			}
		}
	})
}
