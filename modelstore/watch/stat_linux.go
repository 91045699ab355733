package watch

import (
	"io/fs"
	"syscall"
	"time"
)

// identity tells a file from another of the same name.
type identity struct{ device, inode uint64 }

// details gives what the portable FileInfo leaves out: which file it is, when it last changed in any way, and whether parts of it have never been
// written.
func details(info fs.FileInfo) (id identity, changed time.Time, sparse bool) {
	const blockSize = 512 // the unit of Blocks
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, info.ModTime(), false
	}
	return identity{device: uint64(st.Dev), inode: st.Ino}, time.Unix(st.Ctim.Unix()), st.Blocks*blockSize < st.Size //nolint:unconvert // Dev has another type elsewhere
}
