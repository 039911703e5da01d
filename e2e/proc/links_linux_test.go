package proc

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/runnelmq/runnel/internal/freeport"
)

// echo answers a connection with what it is sent.
func echo(t *testing.T) string {
	t.Helper()
	lis := must[net.Listener](t)((&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0"))
	var g errgroup.Group
	g.Go(func() error {
		conn, err := lis.Accept()
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = io.Copy(conn, conn)
		return err
	})
	t.Cleanup(func() {
		_ = lis.Close()
		_ = g.Wait() // the other end is gone by now, in whichever way
	})
	return lis.Addr().String()
}

// What comes is waited for as long as it takes, what must not come for a moment.
const (
	surely = time.Minute
	moment = 200 * time.Millisecond
)

// answered reports whether a byte comes back.
func answered(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	if _, err := conn.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	return arrived(t, conn, within)
}

func arrived(t *testing.T, conn net.Conn, within time.Duration) bool {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		t.Fatal(err)
	}
	_, err := conn.Read(make([]byte, 1))
	return err == nil
}

func TestLinks(t *testing.T) {
	t.Parallel()
	l := NewLinks()
	defer l.Close()
	l.Name(os.Getpid(), "me")
	ports := must[[]string](t)(freeport.Take(t.Context(), 1))
	at := "127.0.0.1:" + ports[0]
	if err := l.Serve(t.Context(), "other", at, echo(t)); err != nil {
		t.Fatal(err)
	}
	conn := must[net.Conn](t)((&net.Dialer{}).DialContext(t.Context(), "tcp", at))
	defer conn.Close()
	if !answered(t, conn, surely) {
		t.Fatal("no answer over a link that is whole")
	}
	for _, cut := range []link{{"me", "other"}, {"other", "me"}} {
		l.Cut(cut.from, cut.to)
		if answered(t, conn, moment) {
			t.Errorf("an answer although %v is cut", cut)
		}
		l.Heal()
		if !arrived(t, conn, surely) {
			t.Errorf("what waited for %v was not delivered", cut)
		}
	}
	l.Cut("somebody", "other")
	l.Cut("other", "somebody")
	if !answered(t, conn, surely) {
		t.Error("no answer although only another's link is cut")
	}
}
