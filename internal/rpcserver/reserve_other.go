//go:build !unix

package rpcserver

import "net"

// inReserve is never true: handles are as many as memory allows.
func inReserve(net.Conn, uint64) bool { return false }
