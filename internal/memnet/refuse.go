package memnet

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
)

// A Refuser is a server that takes one connection, goes away on it as Refuse
// does, and can't be reached again.
type Refuser struct {
	lis     *Listener
	taken   atomic.Bool
	serving sync.WaitGroup
	err     error // of the one connection, once serving is done
}

// NewRefuser returns a server at addr.
func NewRefuser(addr string) *Refuser { return &Refuser{lis: Listen(addr, 1<<16)} }

// Dial returns the one connection there is. To whoever comes later nobody
// answers until ctx is done.
func (r *Refuser) Dial(ctx context.Context, _ string) (net.Conn, error) {
	if r.taken.Swap(true) {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	r.serving.Go(func() {
		conn, err := r.lis.Accept()
		if err == nil {
			err = Refuse(conn)
		}
		r.err = err
	})
	conn, err := r.lis.DialContext(ctx)
	if err != nil {
		_ = r.lis.Close() // it never fails
	}
	return conn, err
}

// Wait returns when the one connection has ended, with an error if the other
// end had not said what it should. It follows the first Dial.
func (r *Refuser) Wait() error {
	r.serving.Wait()
	return r.err
}

// What Refuse has to know of HTTP/2 (RFC 9113).
const (
	prefaceSize  = 24
	headerSize   = 9 // length in 3 bytes, type, flags, stream in 4
	typeHeaders  = 1
	typeSettings = 4
	typeGoaway   = 7
	goawaySize   = 8 // last stream, code
)

// Refuse is a server of HTTP/2 on c that goes away before it has looked at any
// stream: it answers the first one with a GOAWAY that leaves it out. It returns
// when the other end has gone, with an error if that had not said what it should.
func Refuse(c net.Conn) error {
	defer func() { _ = c.Close() }() // it only fails when it was closed before
	if _, err := c.Write(frame(typeSettings, 0)); err != nil {
		return fmt.Errorf("write the settings: %w", err)
	}
	if _, err := io.CopyN(io.Discard, c, prefaceSize); err != nil {
		return fmt.Errorf("read the preface: %w", err)
	}
	var header [headerSize]byte
	for gone := false; ; {
		if _, err := io.ReadFull(c, header[:]); err != nil {
			return nil // that is how a client goes
		}
		length := int64(binary.BigEndian.Uint32(header[:4]) >> 8)
		if _, err := io.CopyN(io.Discard, c, length); err != nil {
			return fmt.Errorf("read a frame of %d bytes: %w", length, err)
		}
		if header[3] != typeHeaders || gone {
			continue
		}
		gone = true
		if _, err := c.Write(frame(typeGoaway, goawaySize)); err != nil {
			return fmt.Errorf("write GOAWAY: %w", err)
		}
	}
}

// frame returns one of the whole connection, all zeroes.
func frame(kind, size byte) []byte {
	f := make([]byte, headerSize+int(size))
	f[2], f[3] = size, kind
	return f
}
