package main

import (
	"path/filepath"
	"strings"
	"testing"
)

// TestNewSaysWhereTheSDKIs: no released SDK belongs to a development build.
func TestNewSaysWhereTheSDKIs(t *testing.T) {
	t.Parallel()
	const advice = "go mod edit -replace"
	for name, more := range map[string][]string{"without": nil, "with": {"--sdk", "../.."}} {
		dir := filepath.Join(t.TempDir(), name)
		got := cli(nil, append([]string{"new", "handler", "shout", "--dir", dir}, more...)...)
		if got.status != exitOK || strings.Contains(got.stdout, advice) != (more == nil) || !strings.Contains(got.stdout, "Next: cd "+dir) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
