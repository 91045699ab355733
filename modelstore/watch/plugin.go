package watch

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"
)

// maxConfigBytes is how much of a configuration file is looked at.
const maxConfigBytes = 1 << 20

// isProgram says whether a file is a program or a script by its first bytes. Whether it may be run is for the one who opens it: a copy that lost that
// right is told of.
func isProgram(path string) bool {
	head := make([]byte, 4) //nolint:mnd // the longer of both marks
	n := 0
	reading(path, func(r io.Reader) { n, _ = io.ReadFull(r, head) })
	return bytes.HasPrefix(head[:n], []byte("\x7fELF")) || bytes.HasPrefix(head[:n], []byte("#!"))
}

// isExecutable says whether a file may be executed, whatever is in it.
func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// namesPlugin says whether a configuration file has the key that names a plugin's program.
func namesPlugin(path string) bool {
	found := false
	reading(path, func(r io.Reader) {
		for lines := bufio.NewScanner(io.LimitReader(r, maxConfigBytes)); !found && lines.Scan(); {
			key, _, colon := strings.Cut(lines.Text(), ":")
			found = colon && strings.TrimRight(key, " ") == "plugin"
		}
	})
	return found
}

// reading hands a regular file to read; one that cannot be read is left out.
func reading(path string, read func(io.Reader)) {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() {
		return
	}
	file, err := os.Open(path)
	if err != nil {
		return
	}
	defer func() { _ = file.Close() }() // it was only read from
	read(file)
}
