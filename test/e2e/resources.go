package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// Resources is what a server and its workers hold at one moment.
type Resources struct {
	FDs       int // open files of the server
	Threads   int // of the server
	Processes int // the server and everything that it started
	Memory    int // resident bytes of the server
	TempFiles int // files and folders below TMPDIR
	TempBytes int // content of the files there
}

// Resources looks at what the server holds now.
func (s *Server) Resources(t *testing.T) Resources {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", s.PID())
	fds, err := os.ReadDir(proc + "/fd")
	if err != nil {
		t.Fatal(err)
	}
	status, err := os.ReadFile(proc + "/status")
	if err != nil {
		t.Fatal(err)
	}
	r := Resources{
		FDs: len(fds), Processes: len(s.box.Processes(t)), Threads: statusNumber(t, string(status), "Threads:"),
		Memory: 1024 * statusNumber(t, string(status), "VmRSS:"),
	}
	err = filepath.WalkDir(s.box.Tmp, func(_ string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it has gone meanwhile
		}
		r.TempFiles++
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			r.TempBytes += int(info.Size())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func statusNumber(t *testing.T, status, key string) int {
	t.Helper()
	for line := range strings.Lines(status) {
		if rest, ok := strings.CutPrefix(line, key); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s in the status of the server's process", key)
	return 0
}

// String is a line of a table.
func (r Resources) String() string {
	return fmt.Sprintf("%3d open files, %3d threads, %2d processes, %6.1f MB resident, %4d temporary files with %.1f MB",
		r.FDs, r.Threads, r.Processes, float64(r.Memory)/1e6, r.TempFiles, float64(r.TempBytes)/1e6)
}

// CommandLine is what a process was started with, for messages; "" when it is gone.
func (b *Box) CommandLine(pid int) string {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // gone meanwhile: an empty line
	return strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " "))
}

// Workers lists the processes of the box that run models.
func (b *Box) Workers(t *testing.T) []int {
	t.Helper()
	return slices.DeleteFunc(b.Processes(t), func(pid int) bool { return !strings.Contains(b.CommandLine(pid), "/flambeau/worker/") })
}
