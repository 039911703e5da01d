package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncData uses fdatasync, which spares the journal a commit when only the
// file's times changed. The size is synced with it.
func syncData(f *os.File) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if conn.Control(func(fd uintptr) {
		for {
			serr = unix.Fdatasync(int(fd))
			if !errors.Is(serr, unix.EINTR) {
				return
			}
		}
	}) != nil {
		return os.ErrClosed // Control fails for nothing else
	}
	return serr
}
