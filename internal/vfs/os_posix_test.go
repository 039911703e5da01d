//go:build linux || darwin

package vfs_test

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
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

// Files are refused before descriptors run out, so that a directory can be
// synced whoever opens files meanwhile, and a refused one is not made.
func TestOS_filesLeaveDescriptors(t *testing.T) {
	dir := t.TempDir()
	fsys := vfs.OS()
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	low := limit
	low.Cur = min(low.Cur, 256)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &low))
	t.Cleanup(func() { must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)) })
	var opened []vfs.File
	refused := ""
	for n := 0; refused == ""; n++ {
		name := filepath.Join(dir, strconv.Itoa(n))
		f, err := fsys.Create(name)
		switch {
		case vfs.IsTooManyFiles(err):
			refused = name
		case err != nil:
			t.Fatal(err)
		default:
			opened = append(opened, f)
		}
	}
	for range 24 { // of the 32 that are left
		d, err := os.Open(dir)
		if err != nil {
			t.Fatalf("files left too few descriptors: %v", err)
		}
		defer closeFile(t, d)
	}
	if _, err := os.Stat(refused); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file that was refused is there: %v", err)
	}
	must(t, fsys.SyncDir(dir))
	for _, f := range opened {
		must(t, f.Close())
	}
	f, err := fsys.Create(refused)
	must(t, err)
	must(t, f.Close())
}
