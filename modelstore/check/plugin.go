package check

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"path"
	"path/filepath"
	"strconv"

	"github.com/flambeau-serve/flambeau/modelstore/archive"
)

// protocolMark begins the text in a plugin's program that says which version of the border's protocol it speaks; a semicolon ends it. handlersdk puts it
// there.
const protocolMark = "flambeau-backend-protocol="

// plugin looks at the program of a model that is one. What keeps the archive from being opened at all was found by then.
func (s *subject) plugin(o *Options) {
	if s.archive.Manifest.Runtime != archive.RuntimePlugin || o.Protocol == 0 {
		return
	}
	name := filepath.ToSlash(s.archive.Plugin)
	at := -1
	for i := range s.files {
		if s.files[i].path == path.Clean(name) {
			at = i
		}
	}
	if at < 0 || !s.files[at].elf {
		return // a script
	}
	s.reading(s.files[at], func(file *os.File) {
		version, err := protocolOf(file, o.Protocol)
		switch {
		case err != nil:
			s.found.add(Warning, CheckIncomplete, name, 0, "", "it cannot be read: %v", err)
		case version == 0:
			s.found.add(Warning, PluginProtocol, name, 0, "build it with this server's handlersdk; a program that speaks the protocol without it may have the text "+protocolMark+
				strconv.Itoa(o.Protocol)+"; in it", "the program does not say which version of the server's protocol it speaks: it may be no plugin at all")
		case version != o.Protocol:
			s.found.add(Error, PluginProtocol, name, 0, "build it again with the handlersdk of this server's version",
				"the program speaks version %d of the protocol between server and plugin, and this server version %d", version, o.Protocol)
		}
	})
}

// protocolOf reads the version that a program names, 0 when it names none. One that speaks several names each: wanted goes before the others, then the first.
func protocolOf(r io.Reader, wanted int) (int, error) {
	first := 0
	in := bufio.NewReaderSize(r, 1<<20)
	for {
		text, err := in.Peek(in.Size())
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		for _, n := range versionsIn(text) {
			if n == wanted {
				return n, nil
			}
			first = cmp.Or(first, n)
		}
		if err != nil {
			return first, nil //nolint:nilerr // the end of the file
		}
		if _, err := in.Discard(len(text) - len(protocolMark) - longestVersion); err != nil {
			return 0, err
		}
	}
}

const longestVersion = 10 // digits and the semicolon

// versionsIn are the versions that a piece of a program names.
func versionsIn(text []byte) []int {
	var all []int
	for {
		_, rest, found := bytes.Cut(text, []byte(protocolMark))
		if !found {
			return all
		}
		digits, _, ended := bytes.Cut(rest[:min(longestVersion, len(rest))], []byte(";"))
		if n, err := strconv.Atoi(string(digits)); ended && err == nil && n > 0 {
			all = append(all, n)
		}
		text = rest
	}
}
