//go:build linux || darwin

package vfs

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Files leave some descriptors free: for directories that must be synced, for
// connections, and for what else the process does, etcd among it. A broker that
// opens more logs than fit would else take each one that is given up for a sync.
const (
	reserveMax   = 64
	reserveShare = 8 // of the limit, at most
)

// leaveReserve refuses to open a file, as the system would, when only the reserve
// is left. Descriptors are given lowest first, so the number of one tells.
func leaveReserve(name string) error {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return &os.PathError{Op: "getrlimit", Path: name, Err: err}
	}
	fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err == nil {
		_ = unix.Close(fd) // nothing was written to it
		if uint64(fd) >= limit.Cur-min(reserveMax, limit.Cur/reserveShare) {
			err = unix.EMFILE
		}
	}
	if IsTooManyFiles(err) {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	return nil // whatever else it is, opening the file will tell
}

// A directory must be opened to be synced, and by then what is to be made
// durable was done: that no descriptor is free must not be what fails it. So
// one is kept for that.
var spare struct { //nolint:gochecknoglobals // descriptors are the process's
	once sync.Once
	// turn is held by who uses the spare, and guards file.
	turn chan struct{}
	file *os.File // nil when it could not be had back
}

// Others may take a descriptor at the moment in which the spare one is given
// up for it.
const (
	spareTries = 500
	sparePause = 2 * time.Millisecond
)

func syncDir(name string) error {
	spare.once.Do(func() {
		spare.turn = make(chan struct{}, 1)
		spare.file, _ = os.Open(os.DevNull)
	})
	d, err := os.Open(name)
	if !IsTooManyFiles(err) {
		if err != nil {
			return err
		}
		return errors.Join(d.Sync(), d.Close())
	}
	spare.turn <- struct{}{}
	defer func() { <-spare.turn }()

	for try := 0; IsTooManyFiles(err) && try < spareTries; try++ {
		if spare.file != nil {
			_ = spare.file.Close() // nothing was written to it
			spare.file = nil
		} else {
			<-time.NewTimer(sparePause).C // nobody tells when one is free
		}
		d, err = os.Open(name)
	}
	if err != nil {
		return err
	}
	err = errors.Join(d.Sync(), d.Close())
	spare.file, _ = os.Open(os.DevNull)
	return err
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
