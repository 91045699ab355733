package main

import (
	"os"
	"path/filepath"
	"testing"
)

// TestPrivateFolder: a folder of that name may have been put into /tmp by anybody.
func TestPrivateFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fresh := filepath.Join(dir, "fresh")
	for range 2 { // made, and found
		if err := privateFolder(fresh); err != nil {
			t.Error(err)
		}
	}
	if info, err := os.Stat(fresh); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("it has mode %v (%v)", info.Mode(), err)
	}
	open, link, file, foreign := filepath.Join(dir, "open"), filepath.Join(dir, "link"), filepath.Join(dir, "file"), filepath.Join(dir, "foreign")
	if err := os.Mkdir(open, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(fresh, link); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() == 0 {
		const nobody = 65534
		if err := os.Mkdir(foreign, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(foreign, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	} else {
		foreign = "/root" // root's
	}
	for _, bad := range []string{open, link, file, foreign, filepath.Join(dir, "no", "parent")} {
		if err := privateFolder(bad); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
