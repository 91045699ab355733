package pidfile

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

func TestTakeAndRelease(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), Name)
	if state, _, err := Look(path); state != Absent || err != nil {
		t.Errorf("before: %v, %v", state, err)
	}
	held, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != strconv.Itoa(os.Getpid()) {
		t.Errorf("the file holds %q (%v)", text, err)
	}
	if state, pid, err := Look(path); state != Running || pid != os.Getpid() || err != nil {
		t.Errorf("while held: %v %d, %v", state, pid, err)
	}
	var running *RunningError
	if _, err := Take(path); !errors.As(err, &running) || running.PID != os.Getpid() {
		t.Errorf("a second Take: %v", err)
	}
	if removed, err := RemoveOrphan(path); removed || err != nil {
		t.Errorf("a living server's file: %v, %v", removed, err)
	}
	if err := held.Release(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(filepath.Dir(path)); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// TestOrphans: whatever number stands in a file that nobody holds, even one of a living process, its server is gone.
func TestOrphans(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "abc", "-1", "0", "999999999", strconv.Itoa(os.Getpid()), "1", "12345678901234567890123456789012345678901234567890"} {
		path := filepath.Join(t.TempDir(), Name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if state, _, err := Look(path); state != Orphan || err != nil {
			t.Errorf("%q: %v, %v", text, state, err)
		}
		held, err := Take(path)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	}
}

// TestTorchServe: a Java server is told by its command line. It is not parallel: a child shares the locks of other tests until it has begun.
func TestTorchServe(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "read x", javaMain)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), Name)
	if err := os.WriteFile(path, []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		t.Fatal(err)
	}
	if state, pid, err := Look(path); state != Running || pid != cmd.Process.Pid || err != nil {
		t.Errorf("%v %d, %v", state, pid, err)
	}
	_ = in.Close() // ends it
	_ = cmd.Wait() // with a status that does not matter
	if state, _, err := Look(path); state != Orphan || err != nil {
		t.Errorf("after its end: %v, %v", state, err)
	}
}

// TestReleaseOfReplacedFile: a file that somebody else put there stays.
func TestReleaseOfReplacedFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), Name)
	held, err := Take(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := held.Release(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error("the other file is gone")
	}
}

func TestLinkIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, Name)
	if err := os.Symlink("/etc/passwd", path); err != nil {
		t.Fatal(err)
	}
	if _, err := Take(path); err == nil {
		t.Error("a link was followed")
	}
}

// TestRace: of many that start at once, beside an orphan, one gets the file.
func TestRace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), Name)
	if err := os.WriteFile(path, []byte("999999999"), 0o600); err != nil {
		t.Fatal(err)
	}
	const starters = 16
	var wg sync.WaitGroup
	won := make(chan *Held, starters)
	for range starters {
		wg.Go(func() {
			held, err := Take(path)
			if err == nil {
				won <- held
				return
			}
			if _, ok := errors.AsType[*RunningError](err); !ok {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	close(won)
	n := 0
	for held := range won {
		n++
		if err := held.Release(); err != nil {
			t.Error(err)
		}
	}
	if n != 1 {
		t.Errorf("%d won", n)
	}
}

// TestForeignFile: the file of another user is neither believed, nor removed, nor in the way without a word.
func TestForeignFile(t *testing.T) {
	t.Parallel()
	path := "/etc/passwd" // root's
	if os.Geteuid() == 0 {
		const nobody = 65534
		path = filepath.Join(t.TempDir(), Name)
		if err := os.WriteFile(path, []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	if state, pid, err := Look(path); err == nil || !strings.Contains(err.Error(), "another user") || pid != 0 {
		t.Errorf("Look: %v %d, %v", state, pid, err)
	}
	if removed, err := RemoveOrphan(path); err == nil || removed {
		t.Errorf("RemoveOrphan: %v, %v", removed, err)
	}
	if _, err := Take(path); err == nil || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("Take: %v", err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Errorf("the file is gone: %v", err)
	}
}

func TestFolderIsNoFile(t *testing.T) {
	t.Parallel()
	if _, err := Take(t.TempDir()); err == nil || !strings.Contains(err.Error(), "not a regular file") {
		t.Errorf("got %v", err)
	}
}
