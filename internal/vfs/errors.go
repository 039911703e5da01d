package vfs

import (
	"errors"
	"syscall"
)

// IsTooManyFiles reports whether err says that the process or the system has
// no file descriptor left: nothing was done, and it may be tried again later.
func IsTooManyFiles(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// IsTransient reports whether err says nothing against the disk itself: it is
// full, or file descriptors ran out. Every other error of a write, a sync, a
// truncation or a rename means that the disk cannot be trusted any more.
func IsTransient(err error) bool { return IsNoSpace(err) || IsTooManyFiles(err) }
