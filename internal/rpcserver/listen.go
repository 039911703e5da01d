package rpcserver

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// Errors of addresses.
var (
	ErrAddress = errors.New("bad address")
	// ErrUnroutable is returned for an address to be told to others that only
	// means something on this machine's own list of interfaces.
	ErrUnroutable = errors.New("bind-all address")
)

// ParseAddress splits host:port, with an IPv6 host in brackets. Port 0 and an
// empty host stand for "any" and are right for listening only.
func ParseAddress(s string) (host string, port uint16, err error) {
	if s != strings.TrimSpace(s) {
		return "", 0, fmt.Errorf("%w %q: remove the spaces around it", ErrAddress, s)
	}
	host, p, err := net.SplitHostPort(s)
	if err != nil {
		return "", 0, fmt.Errorf("%w %q: want host:port, with an IPv6 host in brackets, such as 10.0.0.5:7420 or [::1]:7420", ErrAddress, s)
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%w %q: the port must be a number from 0 to 65535", ErrAddress, s)
	}
	if strings.ContainsAny(host, " ,;/\t\n\"'") {
		return "", 0, fmt.Errorf("%w %q: want one host", ErrAddress, s)
	}
	if strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil {
			return "", 0, fmt.Errorf("%w %q: %q is no IPv6 address", ErrAddress, s, host)
		}
	}
	return host, uint16(n), nil
}

// CheckRoutable refuses an address that others could not connect to: without a
// host, with a bind-all host, or with port 0.
func CheckRoutable(s string) error {
	host, port, err := ParseAddress(s)
	if err != nil {
		return err
	}
	if BindsAll(host) {
		return fmt.Errorf("%w %q can't be reached by others: set an address or a name of this machine", ErrUnroutable, s)
	}
	if port == 0 {
		return fmt.Errorf("%w %q: port 0 can't be reached by others", ErrAddress, s)
	}
	return nil
}

// BindsAll says whether host stands for all interfaces.
func BindsAll(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "" || (err == nil && ip.Unmap().IsUnspecified())
}

// IsLoopback says whether host is reached from this machine only.
func IsLoopback(host string) bool {
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || (err == nil && ip.Unmap().IsLoopback())
}

// Limit returns lis with at most limit open connections, and none that takes one of
// the last descriptors of the process. One more is accepted and closed at once, so
// that the caller learns it: left in the backlog it would hang. Descriptors stay
// free that way: for the log files, and for etcd, which ends the process without.
func Limit(lis net.Listener, limit int) *LimitedListener {
	return &LimitedListener{Listener: lis, limit: int64(limit), keep: clientReserve}
}

// Guard is [Limit] for the ports at which the processes of a cluster meet. They may
// be any number, and may take more of the last descriptors than others, so that
// clients do not keep them out.
func Guard(lis net.Listener) *LimitedListener {
	return &LimitedListener{Listener: lis, limit: math.MaxInt64, keep: memberReserve}
}

// How many of the last descriptors connections leave alone, of so few descriptors or
// more; less of fewer. Files leave 64 of them: there must be some for the logs when
// clients, or other processes, take what they can.
const (
	clientReserve = 128
	memberReserve = 96
	reserveOf     = 512
)

// A LimitedListener bounds the connections that are open.
type LimitedListener struct {
	net.Listener

	limit   int64
	keep    uint64 // descriptors
	open    atomic.Int64
	refused atomic.Int64
}

// Open returns how many connections are open.
func (l *LimitedListener) Open() int64 { return l.open.Load() }

// Refused returns how many connections were closed at once.
func (l *LimitedListener) Refused() int64 { return l.refused.Load() }

// Accept implements net.Listener.
func (l *LimitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.limit && !inReserve(c, l.keep) {
			return &limitedConn{Conn: c, release: func() { l.open.Add(-1) }}, nil
		}
		l.open.Add(-1)
		l.refused.Add(1)
		_ = c.Close()
	}
}

// A limitedConn gives its place back when it is closed.
type limitedConn struct {
	net.Conn

	once    sync.Once
	release func()
}

// Close implements net.Conn.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(c.release)
	return err
}
