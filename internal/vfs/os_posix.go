//go:build linux || darwin

package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

func syncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// lockFile locks the open file, not the process: a second open of the same
// file in this process is refused too.
func lockFile(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lerr error
	err = conn.Control(func(fd uintptr) {
		for {
			lerr = unix.Flock(int(fd), unix.LOCK_EX|unix.LOCK_NB)
			if !errors.Is(lerr, unix.EINTR) {
				return
			}
		}
	})
	if errors.Is(lerr, unix.EWOULDBLOCK) {
		return ErrLocked
	}
	return errors.Join(err, lerr)
}

func freeSpace(name string) (free, total int64, err error) {
	var st unix.Statfs_t
	for {
		err = unix.Statfs(name, &st)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return 0, 0, err
	}
	block := int64(st.Bsize) //nolint:unconvert // uint32 on darwin
	return int64(st.Bavail) * block, int64(st.Blocks) * block, nil
}

// IsNoSpace reports whether err says that the disk or the quota is full: the
// call did not do its work, or not all of it, and may be tried again later.
func IsNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
