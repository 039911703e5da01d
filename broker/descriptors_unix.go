//go:build unix

package broker

import (
	"os"
	"syscall"
)

// descriptors tells how many file descriptors the process has open and may
// have; ok is false where the system does not say.
func descriptors() (open, limit int, ok bool) {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil {
		return 0, 0, false
	}
	d, err := os.Open("/dev/fd")
	if err != nil {
		return 0, 0, false
	}
	defer func() { _ = d.Close() }()
	names, err := d.Readdirnames(-1)
	if err != nil {
		return 0, 0, false
	}
	const most = 1 << 30
	return len(names), int(min(uint64(r.Cur), most)), true //nolint:gosec,unconvert // bounded; the field's type differs between systems
}
