package check

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
	backendv1 "github.com/flambeau-serve/flambeau/proto/backend/v1"
)

// Both sides have their own words for the marker, since a check is to know nothing of the border.
func TestProtocolMark(t *testing.T) {
	t.Parallel()
	if want := fmt.Sprintf("%s%d;", protocolMark, backendv1.ProtocolVersion); backendv1.ProtocolMarker != want {
		t.Errorf("the marker is %q, and a check looks for %q", backendv1.ProtocolMarker, want)
	}
}

func TestProtocolOf(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int{
		"": 0, "x": 0, protocolMark: 0, protocolMark + "1": 0, protocolMark + "1;": 1, protocolMark + "x;" + protocolMark + "12;34": 12, protocolMark + "-1;": 0,
		protocolMark + "123456789012345;": 0, protocolMark + "3;" + protocolMark + "2;": 3, protocolMark + "3;" + strings.Repeat(".", 1<<20) + protocolMark + "1;": 1,
	} {
		for _, before := range []int{0, 100, 1<<20 - 30, 1<<20 - 27, 1<<20 - 10, 1<<20 - 1, 1 << 20, 3<<20 - 50, 3<<20 - 40} {
			got, err := protocolOf(strings.NewReader(strings.Repeat(".", before)+text+strings.Repeat(".", before)), 1)
			if err != nil || got != want {
				t.Errorf("%q behind %d bytes: %d, %v, want %d", text, before, got, err, want)
			}
		}
	}
}

// The program of these tests is a program of this machine, and needs what all of them need.
func TestPlugin(t *testing.T) {
	t.Parallel()
	self, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	// The markers in this test and in what it imports are not to be found.
	self = bytes.ReplaceAll(self, []byte(protocolMark), bytes.Repeat([]byte("."), len(protocolMark)))
	store, temp := t.TempDir(), t.TempDir()
	for name, tail := range map[string]string{"good": protocolMark + "1;", "newer": protocolMark + "2;", "both": protocolMark + "2;" + protocolMark + "1;", "other": ""} {
		writePlugin(t, filepath.Join(store, name, name), append(bytes.Clone(self), tail...))
	}
	writePlugin(t, filepath.Join(store, "script", "script"), []byte("#!/bin/sh\n"))
	archives, err := archive.New(archive.Options{Store: store, Temp: temp, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := archives.Close(); err != nil {
			t.Error(err)
		}
	}()
	checker, err := New(Options{Inspector: someFacts(nil), Protocol: 1})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"good": "", "both": "", "script": "", "newer": "error plugin_protocol newer", "other": "warning plugin_protocol other"} {
		a, err := archives.OpenEntry(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		report, err := checker.Check(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range report.Findings {
			got = append(got, fmt.Sprintf("%s %s %s", f.Severity, f.Code, f.File))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%s: %+v, want %q", name, report.Findings, want)
		}
	}
}

func writePlugin(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, content, 0o755); err != nil {
		t.Fatal(err)
	}
}

// A folder of Python code with a file that might have been meant to be a program is told of both.
func TestNoProgramBesideCode(t *testing.T) {
	t.Parallel()
	store := storeOf(t, map[string]string{"m/code.py": goodHandler, "m/m": "damaged\n"})
	if report := check(t, Options{Inspector: someFacts(nil)}, openEntry(t, store, "m")); len(report.Findings) != 1 {
		t.Errorf("%s", report.Text())
	}
	a := openEntry(t, store, "m")
	if err := os.Chmod(filepath.Join(a.Dir, "m"), 0o755); err != nil {
		t.Fatal(err)
	}
	for handler, n := range map[string]int{"": 2, "code.py": 0} {
		report := check(t, Options{Inspector: someFacts(nil), Handler: handler}, openEntry(t, store, "m"))
		told := strings.Contains(report.Text(), `m/m is no program that this machine can run: it is a text that begins with "damaged\n"`)
		if len(report.Findings) != n || report.Errors() > 0 || told != (n > 0) {
			t.Errorf("%q: %s", handler, report.Text())
		}
	}
}
