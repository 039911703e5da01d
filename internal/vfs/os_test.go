package vfs_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/runnelmq/runnel/internal/vfs"
)

func TestOS_filesAreNotForEverybody(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no permission bits")
	}
	dir := filepath.Join(t.TempDir(), "d")
	fsys := vfs.OS()
	must(t, fsys.MkdirAll(dir))
	closeFile(t, create(t, fsys, filepath.Join(dir, "f"), "x"))
	for _, name := range []string{dir, filepath.Join(dir, "f")} {
		info, err := os.Stat(name)
		must(t, err)
		if info.Mode().Perm()&0o007 != 0 {
			t.Errorf("%s: mode %v lets everybody in", name, info.Mode())
		}
	}
}
