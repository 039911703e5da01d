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
	of := map[string]int64{}
	for name, limit := range map[string]func(net.Listener) *LimitedListener{
		"clients": func(l net.Listener) *LimitedListener { return Limit(l, 1000) },
		"members": Guard,
	} {
		t.Run(name, func(t *testing.T) { of[name] = fill(t, limit) })
	}
	if of["members"] < of["clients"]+4 {
		t.Errorf("there are %d connections of members and %d of clients: want more", of["members"], of["clients"])
	}
}

// fill opens connections until one is refused, returns how many there are, and sees
// to it that files can be opened.
func fill(t *testing.T, limit func(net.Listener) *LimitedListener) (open int64) {
	t.Helper()
	inner, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lis := limit(inner)
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
	open = lis.Open()
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
	return open
}
