//go:build !linux

package watch

import (
	"io/fs"
	"time"
)

// identity tells a file from another of the same name.
type identity struct{ device, inode uint64 }

// details knows no more than the portable FileInfo says.
func details(info fs.FileInfo) (id identity, changed time.Time, sparse bool) {
	return identity{}, info.ModTime(), false
}
