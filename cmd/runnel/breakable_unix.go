//go:build unix

package main

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// readable reports whether a read of f returns at once, for which it waits a
// while. What can't be waited for is taken to be readable.
func readable(f *os.File, within time.Duration) bool {
	fds := []unix.PollFd{{Fd: int32(f.Fd()), Events: unix.POLLIN}} //nolint:gosec // a descriptor is small
	n, err := unix.Poll(fds, int(within.Milliseconds()))
	if errors.Is(err, unix.EINTR) {
		return false
	}
	return n > 0 || err != nil
}
