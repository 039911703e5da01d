//go:build unix

package rpcserver

import (
	"net"
	"syscall"
)

// inReserve reports whether a connection has taken one of the last descriptors.
// They are given lowest first, so the number of one tells; and the limit may be
// changed while the process runs.
func inReserve(c net.Conn, keep uint64) bool {
	conn, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return false
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return false
	}
	cur := uint64(limit.Cur) //nolint:unconvert // signed on some systems
	in := false
	err = raw.Control(func(fd uintptr) { in = uint64(fd) >= cur-min(keep, cur*keep/reserveOf) })
	return err == nil && in
}
