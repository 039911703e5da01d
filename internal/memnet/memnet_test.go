package memnet_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/memnet"
)

// pair returns the dialer's end of a connection, and the other.
func pair(tb testing.TB, size int) (dialer, server net.Conn) {
	tb.Helper()
	lis := memnet.Listen("here", size)
	tb.Cleanup(func() { _ = lis.Close() })
	var wg sync.WaitGroup
	wg.Go(func() {
		var err error
		if server, err = lis.Accept(); err != nil {
			tb.Errorf("Accept: %v", err)
		}
	})
	dialer, err := lis.Dial()
	if err != nil {
		tb.Fatalf("Dial: %v", err)
	}
	wg.Wait()
	return dialer, server
}

func TestConn_carriesEverythingInOrder(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		from, to := pair(t, rapid.IntRange(1, 64).Draw(rt, "size"))
		want := rapid.SliceOfN(rapid.Byte(), 0, 500).Draw(rt, "bytes")
		chunk := rapid.IntRange(1, 100).Draw(rt, "chunk")
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			for rest := want; len(rest) > 0; rest = rest[min(chunk, len(rest)):] {
				if n, err := from.Write(rest[:min(chunk, len(rest))]); err != nil {
					t.Errorf("Write: %d, %v", n, err)
				}
			}
			_ = from.Close()
		})
		var got bytes.Buffer
		if _, err := io.CopyBuffer(&got, struct{ io.Reader }{to}, make([]byte, rapid.IntRange(1, 100).Draw(rt, "buffer"))); err != nil {
			rt.Fatalf("Read: %v", err)
		}
		if !bytes.Equal(got.Bytes(), want) {
			rt.Fatalf("read %x, want %x", got.Bytes(), want)
		}
	})
}

func TestConn_deadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, 4)
		start := time.Now()
		_ = a.SetDeadline(start.Add(time.Second))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Read says %v after %v", err, time.Since(start))
		}
		synctest.Wait() // the other deadline is at the same instant
		if n, err := a.Write([]byte("12345")); !errors.Is(err, os.ErrDeadlineExceeded) || n != 0 {
			t.Errorf("Write after the deadline: %d, %v", n, err)
		}
		_ = a.SetDeadline(time.Now().Add(-time.Second))
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read with a deadline gone by: %v", err)
		}
		_ = a.SetReadDeadline(time.Now().Add(time.Second))
		_ = a.SetDeadline(time.Time{})
		time.Sleep(2 * time.Second)
		if _, err := a.Write([]byte("1234")); err != nil {
			t.Errorf("Write without a deadline: %v", err)
		}
		_ = a.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := a.Write([]byte("5")); !errors.Is(err, os.ErrDeadlineExceeded) || n != 0 {
			t.Errorf("Write into a full pipe: %d, %v", n, err)
		}
		if n, err := b.Read(make([]byte, 8)); n != 4 || err != nil {
			t.Errorf("Read of what was written: %d, %v", n, err)
		}
	})
}

func TestConn_close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, 8)
		_, _ = a.Write([]byte("last"))
		_ = a.Close()
		if _, err := a.Read(make([]byte, 1)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Read of a closed end: %v", err)
		}
		if _, err := b.Write([]byte("x")); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("Write to a closed end: %v", err)
		}
		if got, err := io.ReadAll(b); string(got) != "last" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
	})
}

func TestListener_close(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := memnet.Listen("here", 8)
		var wg sync.WaitGroup
		defer wg.Wait()
		wg.Go(func() {
			time.Sleep(time.Second)
			_ = lis.Close()
			_ = lis.Close()
		})
		if _, err := lis.Dial(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Dial: %v", err)
		}
		if _, err := lis.Accept(); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Accept: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := memnet.Listen("there", 8).DialContext(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("DialContext: %v", err)
		}
	})
}

// Connections that begin at one time in a bubble do not end the process under
// the race detector.
func TestListener_manyAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lis := memnet.Listen("here", 8)
		var server, dialers sync.WaitGroup
		server.Go(func() {
			for {
				if _, err := lis.Accept(); err != nil {
					return
				}
			}
		})
		for range 8 {
			dialers.Go(func() {
				for range 2000 {
					c, err := lis.Dial()
					if err != nil {
						t.Errorf("Dial: %v", err)
						return
					}
					_ = c.SetDeadline(time.Now())
					_ = c.Close()
				}
			})
		}
		dialers.Wait()
		_ = lis.Close()
		server.Wait()
	})
}
