package vfs

import (
	"errors"
	"math"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

// syncDir only looks whether there is such a directory: Windows has no sync
// for one, NTFS journals its entries.
func syncDir(name string) error {
	info, err := os.Stat(name)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return &os.PathError{Op: "sync", Path: name, Err: syscall.ENOTDIR}
	}
	return nil
}

// leaveReserve has nothing to refuse: handles are as many as memory allows.
func leaveReserve(string) error { return nil }

func lockFile(f *os.File) error {
	const flags = windows.LOCKFILE_EXCLUSIVE_LOCK | windows.LOCKFILE_FAIL_IMMEDIATELY
	err := windows.LockFileEx(windows.Handle(f.Fd()), flags, 0, math.MaxUint32, math.MaxUint32, new(windows.Overlapped))
	if errors.Is(err, windows.ERROR_LOCK_VIOLATION) {
		return ErrLocked
	}
	return err
}

func freeSpace(name string) (free, total int64, err error) {
	path, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return 0, 0, err
	}
	var avail, size uint64
	if err := windows.GetDiskFreeSpaceEx(path, &avail, &size, nil); err != nil {
		return 0, 0, err
	}
	return int64(min(avail, math.MaxInt64)), int64(min(size, math.MaxInt64)), nil
}

// IsNoSpace reports whether err says that the disk or the quota is full: the
// call did not do its work, or not all of it, and may be tried again later.
func IsNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, windows.ERROR_DISK_FULL) ||
		errors.Is(err, windows.ERROR_HANDLE_DISK_FULL) || errors.Is(err, windows.ERROR_DISK_QUOTA_EXCEEDED)
}
