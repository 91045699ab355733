package logfiles

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

func TestConsoleLevel(t *testing.T) {
	var console bytes.Buffer
	l, err := Open(Options{Dir: t.TempDir(), Console: &console, ConsoleLevel: slog.LevelWarn})
	if err != nil {
		t.Fatal(err)
	}
	l.Server().Info("quiet")
	l.Model(at, "INFO", "W", "stdout", nil, "quiet")
	l.Server().Warn("loud")
	l.Model(at, "ERROR", "W", "stdout", nil, "loud")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if text := console.String(); strings.Count(text, "loud") != 2 || strings.Contains(text, "quiet") {
		t.Errorf("console: %q", text)
	}
}

func open(t *testing.T) (l *Logs, dir string, console *bytes.Buffer) {
	t.Helper()
	dir, console = filepath.Join(t.TempDir(), "logs"), &bytes.Buffer{}
	l, err := Open(Options{Dir: dir, Console: console})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l, dir, console
}

func read(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var at = time.Date(2026, 3, 4, 5, 6, 7, 89_000_000, time.UTC)

func TestAccessLine(t *testing.T) {
	l, dir, console := open(t)
	l.Access(at, "/127.0.0.1:5000 \"POST /predictions/a\r\nforged HTTP/1.1\" 200 1")
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	want := "2026-03-04T05:06:07,089 - /127.0.0.1:5000 \"POST /predictions/a..forged HTTP/1.1\" 200 1\n"
	if got := read(t, dir, AccessFile); got != want {
		t.Errorf("%q\nwant %q", got, want)
	}
	if console.Len() > 0 {
		t.Error("requests must not fill the console")
	}
}

func TestModelLine(t *testing.T) {
	l, dir, console := open(t)
	l.Model(at, "INFO", "W-9000-m_1.0", "stdout", nil, "loading")
	l.Model(at, "WARN", "W-9000-m_1.0", "stderr", []string{"a", "b"}, "odd - input")
	want := "2026-03-04T05:06:07,089 [INFO ] W-9000-m_1.0-stdout MODEL_LOG - loading\n" +
		"2026-03-04T05:06:07,089 [WARN ] W-9000-m_1.0-stderr MODEL_LOG [a,b] - odd - input\n"
	if got := read(t, dir, ModelFile); got != want || console.String() != want {
		t.Errorf("%q\nwant %q", got, want)
	}
}

func TestServerLines(t *testing.T) {
	l, dir, _ := open(t)
	log := l.Server().With("model", "m").WithGroup("g")
	log.Info("loaded", "n", 3, "text", "two words", "err", errors.New("x"), slog.Group("in", "k", "v"))
	log.Debug("too fine")
	log.Error("failed", "detail", "Traceback:\n  line 1\nValueError")
	got := regexp.MustCompile(`(?m)^\S+ `).ReplaceAllString(read(t, dir, ServerFile), "")
	want := `[INFO ] main flambeau - loaded model=m g.n=3 g.text="two words" g.err=x g.in.k=v
[ERROR] main flambeau - failed model=m
g.detail:
    Traceback:
      line 1
    ValueError
`
	if normal(got) != normal(want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func normal(s string) string {
	var lines []string
	for l := range strings.Lines(s) {
		lines = append(lines, strings.TrimSpace(l))
	}
	return strings.Join(lines, "\n")
}

func TestFolderThatCannotBeMade(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Dir: filepath.Join(file, "logs")})
	if err == nil || !strings.Contains(err.Error(), "LOG_LOCATION") {
		t.Errorf("%v: it should say what to set", err)
	}
}

// TestShow changes what is written while the logs are open.
func TestShow(t *testing.T) {
	dir := t.TempDir()
	logs, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	log := logs.Server().With("model", "m") // made before the change
	if got := logs.Shown(); got != (Shown{Info: true, Warn: true, Error: true}) {
		t.Errorf("%+v", got)
	}
	log.Debug("one")
	log.Info("two")
	logs.Show(Shown{Debug: true, Warn: true, ISO8601: true})
	log.Debug("three")
	log.Info("four")
	log.Warn("five")
	log.Error("six")
	if err := logs.Close(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, ServerFile))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], "two model=m") || !strings.HasSuffix(lines[1], "three model=m") || !strings.HasSuffix(lines[2], "five model=m") {
		t.Errorf("%q", lines)
	}
	if !strings.Contains(lines[0], ",") || !regexp.MustCompile(`^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z `).MatchString(lines[2]) {
		t.Errorf("%q", lines)
	}
}
