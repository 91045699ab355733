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

// TestSDKAdviceNamesTheVersion: a released build names the version that go.mod asks for, since that may not have been published.
func TestSDKAdviceNamesTheVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{devVersion: "no released SDK", "1.2.3": "the SDK's version 1.2.3. Should go mod tidy not find that"} {
		if got := sdkAdvice(version); !strings.Contains(got, want) {
			t.Errorf("%s: %q lacks %q", version, got, want)
		}
	}
}
