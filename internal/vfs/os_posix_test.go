//go:build linux || darwin

package vfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/runnelmq/runnel/internal/vfs"
)

// When a directory is synced something was changed in it already, so a lack of
// descriptors must not be why that cannot be made durable.
func TestOS_syncDirWithoutDescriptors(t *testing.T) {
	dir := t.TempDir()
	fsys := vfs.OS()
	must(t, fsys.SyncDir(dir))
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = min(low.Cur, 256)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) })
	for {
		f, err := os.Open(os.DevNull)
		if errors.Is(err, syscall.EMFILE) {
			break
		}
		must(t, err)
		t.Cleanup(func() { closeFile(t, f) })
	}
	for range 3 {
		if err := fsys.SyncDir(dir); err != nil {
			t.Fatalf("without a free descriptor: %v", err)
		}
	}
	if err := fsys.SyncDir(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is not there: %v", err)
	}
}
