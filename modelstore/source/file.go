package source

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"strings"
)

// localFile is an archive on this machine.
type localFile struct{ url *url.URL }

// open refuses anything but a regular file: others could block or never end.
func (l localFile) open(context.Context, int64, string) (*stream, error) {
	if host := l.url.Host; host != "" && !strings.EqualFold(host, "localhost") {
		return nil, fmt.Errorf("a file URL names the host %q; write file:///path", host)
	}
	info, err := os.Stat(l.url.Path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", l.url.Path)
	}
	file, err := os.Open(l.url.Path)
	if err != nil {
		return nil, err
	}
	return &stream{body: file, size: info.Size()}, nil
}

// stream is an archive as it arrives.
type stream struct {
	body io.ReadCloser
	from int64  // where it begins
	size int64  // of the whole archive, -1 when it is not known
	tag  string // names this version of the archive; "" when nothing does that can be relied on
}
