//go:build unix

package rpcserver

import (
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"testing"
)

// Connections do not take the last descriptors, also when the limit was lowered
// since the start (OP-06).
func TestLimit_descriptors(t *testing.T) {
	inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis := Limit(inner, 1000)
	var was syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	few := was
	few.Cur = 128
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few); err != nil {
		t.Skip(err)
	}
	defer func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was); err != nil {
			t.Error(err)
		}
	}()

	var wg sync.WaitGroup
	var accepted []net.Conn
	wg.Go(func() {
		for {
			c, err := lis.Accept()
			if err != nil {
				return
			}
			accepted = append(accepted, c)
		}
	})
	var dialed []net.Conn
	for lis.Refused() == 0 && len(dialed) < 128 {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", inner.Addr().String())
		if err != nil {
			t.Fatalf("after %d connections, none refused: %v", len(dialed), err)
		}
		dialed = append(dialed, c)
		for lis.Open()+lis.Refused() < int64(len(dialed)) {
			runtime.Gosched() // the other end comes to it
		}
	}
	var files []*os.File
	for range 16 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Errorf("with %d files: %v", len(files), err)
			break
		}
		files = append(files, f)
	}
	_ = lis.Close()
	wg.Wait()
	for _, c := range append(accepted, dialed...) {
		_ = c.Close()
	}
	for _, f := range files {
		_ = f.Close()
	}
}
