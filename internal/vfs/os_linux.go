package vfs

import (
	"errors"
	"fmt"
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

// writeBack starts the writing of dirty pages and waits for none. Without one of
// the flags that wait, the call takes no error away from the next fdatasync.
func writeBack(f *os.File) {
	conn, err := f.SyscallConn()
	if err != nil {
		return
	}
	_ = conn.Control(func(fd uintptr) {
		_ = unix.SyncFileRange(int(fd), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	})
}

// fileID is made of the inode's number, which may be given again, and of when it
// was made. The device is not a part of it: its number may change when the file
// system is mounted again.
func fileID(name string) string {
	var st unix.Statx_t
	const want = unix.STATX_INO | unix.STATX_BTIME
	if err := unix.Statx(unix.AT_FDCWD, name, 0, want, &st); err != nil || st.Mask&want != want {
		return ""
	}
	return fmt.Sprintf("%d-%d.%09d", st.Ino, st.Btime.Sec, st.Btime.Nsec)
}
