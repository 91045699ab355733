package watch

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// spot is a name in a folder that decides where a path leads: a link on the way, the file at its end, or the first part of it that is missing.
type spot struct{ dir, name string }

// maxHops is how many links a path may lead through, as the kernel has it.
const maxHops = 40

// trail follows an absolute path link by link to the file or folder that it leads to. spots are the places where a change would make it lead
// elsewhere, also when err says that it leads nowhere.
func trail(path string) (target string, spots []spot, err error) {
	todo := strings.Split(filepath.Clean(path), "/")
	at, hops := "/", 0
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			at = filepath.Dir(at)
			continue
		}
		next := filepath.Join(at, name)
		info, err := os.Lstat(next)
		if err != nil {
			return "", append(spots, spot{at, name}), err
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			if !info.IsDir() {
				spots = append(spots, spot{at, name})
			}
			at = next
			continue
		}
		spots = append(spots, spot{at, name})
		if hops++; hops > maxHops {
			return "", spots, &fs.PathError{Op: "stat", Path: path, Err: syscall.ELOOP}
		}
		link, err := os.Readlink(next)
		if err != nil {
			return "", spots, err
		}
		if filepath.IsAbs(link) {
			at = "/"
		}
		todo = append(strings.Split(link, "/"), todo...)
	}
	return at, spots, nil
}

// because is an error of the file system without the path, which the reader of a reason knows.
func because(err error) string {
	if p, known := errors.AsType[*fs.PathError](err); known {
		err = p.Err
	}
	return err.Error()
}
