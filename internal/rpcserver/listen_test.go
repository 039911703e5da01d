package rpcserver

import (
	"context"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/runnelmq/runnel/internal/memnet"
)

// Addresses to listen on and to be told to others (OP-09, OP-10).
func TestAddresses(t *testing.T) {
	for _, c := range []struct {
		in       string
		host     string
		port     uint16
		ok       bool // to listen on
		routable bool // to be told to others
	}{
		{"[::1]:9092", "::1", 9092, true, true},
		{"[fe80::1%eth0]:9092", "fe80::1%eth0", 9092, true, true},
		{"10.0.0.5:7420", "10.0.0.5", 7420, true, true},
		{"broker-1.example:7420", "broker-1.example", 7420, true, true},
		{":9092", "", 9092, true, false},
		{"0.0.0.0:9092", "0.0.0.0", 9092, true, false},
		{"[::]:9092", "::", 9092, true, false},
		{"[::ffff:0.0.0.0]:9092", "::ffff:0.0.0.0", 9092, true, false},
		{"host:0", "host", 0, true, false},
		{"host:65535", "host", 65535, true, true},
		{"::1", "", 0, false, false},
		{"localhost", "", 0, false, false},
		{"host:70000", "", 0, false, false},
		{"host:-1", "", 0, false, false},
		{"host:http", "", 0, false, false},
		{"a,b", "", 0, false, false},
		{"a:1,b:2", "", 0, false, false},
		{"a b:1", "", 0, false, false},
		{" host:1", "", 0, false, false},
		{"host:1 ", "", 0, false, false},
		{"http://host:1", "", 0, false, false},
		{"[host:x]:1", "", 0, false, false},
		{"", "", 0, false, false},
	} {
		host, port, err := ParseAddress(c.in)
		if (err == nil) != c.ok || host != c.host || port != c.port {
			t.Errorf("ParseAddress(%q) = %q, %d, %v", c.in, host, port, err)
		}
		if err := CheckRoutable(c.in); (err == nil) != c.routable {
			t.Errorf("CheckRoutable(%q) = %v", c.in, err)
		}
	}
	for host, want := range map[string]bool{"127.0.0.1": true, "127.9.9.9": true, "::1": true, "localhost": true, "10.0.0.1": false, "": false, "0.0.0.0": false, "example": false} {
		if IsLoopback(host) != want {
			t.Errorf("IsLoopback(%q) = %v", host, !want)
		}
	}
}

// One connection too many is closed at once; when one ends there is room.
func TestLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inner := memnet.Listen("broker:7420", 1<<10)
		lis := Limit(inner, 2)
		var wg sync.WaitGroup
		accepted := make(chan net.Conn, 10)
		wg.Go(func() {
			for {
				c, err := lis.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		})
		dial := func() net.Conn {
			c, err := inner.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		first, second, third := dial(), dial(), dial()
		if _, err := third.Read(make([]byte, 1)); err != io.EOF { //nolint:errorlint // the contract of io.Reader
			t.Errorf("the third connection: %v, want EOF", err)
		}
		if lis.Open() != 2 || lis.Refused() != 1 {
			t.Errorf("open %d, refused %d", lis.Open(), lis.Refused())
		}
		c := <-accepted
		for range 2 { // a second Close gives nothing more back
			_ = c.Close()
		}
		fourth := dial()
		synctest.Wait()
		if lis.Open() != 2 || len(accepted) != 2 {
			t.Errorf("open %d, waiting %d", lis.Open(), len(accepted))
		}
		_ = lis.Close()
		wg.Wait()
		for _, c := range []net.Conn{first, second, third, fourth} {
			_ = c.Close()
		}
		if _, err := inner.DialContext(context.WithoutCancel(t.Context())); err == nil {
			t.Error("still listening")
		}
	})
}
