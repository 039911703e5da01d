package freeport

import (
	"context"
	"net"
	"runtime"
	"strconv"
	"testing"
)

// What one has taken nobody else gets, although nobody listens, until the first
// one's context has ended.
func TestTakeRange(t *testing.T) {
	const n = 3
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first, err := TakeRange(ctx, n)
	if err != nil {
		t.Fatal(err)
	}
	for from := first - n + 1; from < first+n; from++ {
		if release, err := hold(t.Context(), from, n); err == nil {
			release()
			t.Errorf("the %d ports from %d on were taken twice, also by who has those from %d on", n, first, from)
		}
	}
	occupy(t, first+1)() // what was taken can be used
	cancel()
	for {
		if release, err := hold(t.Context(), first, n); err == nil {
			release()
			return
		}
		runtime.Gosched() // they are given back soon, or this does not end
	}
}

// A range with an occupied port is given to nobody, and nothing of it is kept.
func TestHold_occupied(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	at, err := TakeRange(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	free := occupy(t, at)
	cancel()
	for range 3 { // it may be held for a moment still
		if release, err := hold(t.Context(), at-1, 2); err == nil {
			release()
			t.Fatalf("port %d was given away while somebody listens there", at)
		}
	}
	free()
	for {
		if release, err := hold(t.Context(), at, 1); err == nil {
			release()
			return
		}
		runtime.Gosched()
	}
}

// occupy listens at a port until free is called.
func occupy(t *testing.T, port int) (free func()) {
	t.Helper()
	lis, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:"+strconv.Itoa(port))
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := lis.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTake(t *testing.T) {
	ports, err := Take(t.Context(), 50)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, p := range ports {
		if seen[p] {
			t.Errorf("port %s twice", p)
		}
		seen[p] = true
	}
	if _, err := Take(context.Background(), 1); err == nil {
		t.Error("ports were given away for ever")
	}
}
