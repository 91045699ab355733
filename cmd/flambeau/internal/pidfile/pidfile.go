// Package pidfile keeps one server per folder: its process identifier stands in a file that it holds locked as long as it lives.
package pidfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Name is the file's name, as TorchServe's command has it.
const Name = ".model_server.pid"

// javaMain is in the command line of a TorchServe, which locks nothing.
const javaMain = "org.pytorch.serve.ModelServer"

// State says what a file tells.
type State int

// The states.
const (
	Absent  State = iota // there is no file
	Running              // the server of that process identifier lives
	Orphan               // its server is gone
)

// Held is the file of this process.
type Held struct {
	path string
	file *os.File
}

// RunningError means that another server has the file.
type RunningError struct {
	Path string
	PID  int
}

// Error tells which one.
func (e *RunningError) Error() string {
	return fmt.Sprintf("the server of process %d is running (%s)", e.PID, e.Path)
}

// Look tells about the file at path without changing it.
func Look(path string) (State, int, error) {
	file, state, pid, err := inspect(path)
	if file != nil {
		err = errors.Join(err, file.Close())
	}
	return state, pid, err
}

// inspect opens the file and tries its lock. An orphan's file is returned open and locked.
func inspect(path string) (*os.File, State, int, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil, Absent, 0, nil
	}
	if err != nil {
		return nil, Absent, 0, fmt.Errorf("the process identifier file: %w", err)
	}
	err = mine(file)
	pid := 0
	if err == nil {
		pid, err = read(file)
	}
	if err != nil {
		return nil, Absent, 0, errors.Join(fmt.Errorf("the process identifier file: %w", err), file.Close())
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, Running, pid, file.Close()
	}
	if isTorchServe(pid) {
		return nil, Running, pid, file.Close()
	}
	return file, Orphan, pid, nil
}

// mine makes sure that the file is one of this user's: whoever owns it could name any process there, to have it stopped, or keep it locked.
func mine(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file; remove it", file.Name())
	case !ok || int(stat.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to another user; run this command as that one, or set TMPDIR to a folder of your own", file.Name())
	}
	return nil
}

// read gives the number in the file, 0 if there is none.
func read(file *os.File) (int, error) {
	const most = 32
	text, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return 0, err
	}
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 0 {
		return pid, nil
	}
	return 0, nil
}

// isTorchServe says whether the process is the Java server.
func isTorchServe(pid int) bool {
	if pid == 0 {
		return false
	}
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && bytes.Contains(line, []byte("\x00"+javaMain+"\x00"))
}

// RemoveOrphan removes the file if its server is gone, and says whether it did.
func RemoveOrphan(path string) (bool, error) {
	file, state, _, err := inspect(path)
	if err != nil || state != Orphan {
		return false, err
	}
	// The lock keeps others from removing this very file; it may have been replaced before it was locked.
	if same(file, path) {
		err = os.Remove(path)
	}
	if err != nil {
		err = fmt.Errorf("the file of a server that is gone cannot be removed: %w; remove it, or set TMPDIR to a folder of your own", err)
	}
	return err == nil, errors.Join(err, file.Close())
}

func same(file *os.File, path string) bool {
	a, err := file.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

// Take makes the file for this process. Its error is a RunningError when another server has it.
func Take(path string) (*Held, error) {
	const tries = 10 // others may come and go meanwhile
	for range tries {
		if _, err := RemoveOrphan(path); err != nil {
			return nil, err
		}
		held, err := create(path)
		if err == nil {
			return held, nil
		}
		if !errors.Is(err, os.ErrExist) {
			return nil, fmt.Errorf("the process identifier file: %w; set TMPDIR to a folder that can be written", err)
		}
		state, pid, err := Look(path)
		if err != nil {
			return nil, err
		}
		if state == Running {
			return nil, &RunningError{Path: path, PID: pid}
		}
	}
	return nil, fmt.Errorf("the process identifier file %s changes all the time", path)
}

// create makes the file under another name, locks and fills it, and only then gives it its name: nobody ever sees it unlocked or empty.
func create(path string) (*Held, error) {
	file, err := os.CreateTemp(filepath.Dir(path), Name+".*")
	if err != nil {
		return nil, err
	}
	_, err = file.WriteString(strconv.Itoa(os.Getpid()))
	err = errors.Join(err, file.Chmod(0o644), syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB))
	if err == nil {
		err = os.Link(file.Name(), path)
	}
	if rm := os.Remove(file.Name()); rm != nil || err != nil {
		return nil, errors.Join(err, rm, file.Close())
	}
	return &Held{path: path, file: file}, nil
}

// Release removes the file, unless somebody else put another one there.
func (h *Held) Release() error {
	var err error
	if same(h.file, h.path) {
		err = os.Remove(h.path)
	}
	return errors.Join(err, h.file.Close())
}
