package commitlog_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A directory that was copied while a broker used it may lack what the broker
// did afterwards, in whatever boot and flush mode; one that was copied when it
// was closed is what it was.
func TestOpenRoot_knowsACopy(t *testing.T) {
	base := t.TempDir()
	at := func(name string) string { return filepath.Join(base, name) }
	fsys := vfs.OS()
	if info, err := fsys.Stat(base); err != nil || info.ID == "" {
		t.Skip("the file system does not tell files apart")
	}
	open := func(name string) *commitlog.Root {
		r, err := commitlog.OpenRoot(fsys, at(name), rootOptions())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	part := func(r *commitlog.Root, flush commitlog.FlushMode) commitlog.Recovery {
		t.Helper()
		n := int32(0)
		if flush == commitlog.FlushSync {
			n = 1
		}
		_, rec, err := r.OpenPartition(topicA, "a", n, commitlog.Config{Flush: flush}, true)
		if err != nil {
			t.Fatal(err)
		}
		return rec
	}
	dup := func(from, to string) { rootMust(t, os.CopyFS(at(to), os.DirFS(at(from)))) }

	r := open("data")
	part(r, commitlog.FlushAsync)
	part(r, commitlog.FlushSync)
	rootMust(t, r.Opened()) // of the copies, it says nothing
	rootMust(t, r.SetBrokerEpoch(7))
	dup("data", "while used")
	closeRoot(t, r, 7)
	dup("data", "when closed")

	r = open("while used")
	if s := r.Start(); !s.Copied || s.Trusted() || r.ID().BrokerEpoch != 7 {
		t.Errorf("copied while it was used: %+v, %+v", s, r.ID())
	}
	for _, flush := range []commitlog.FlushMode{commitlog.FlushAsync, commitlog.FlushSync} {
		if err := missing(r, topicB, int32(flush)); !errors.Is(err, commitlog.ErrLost) {
			t.Errorf("a copy knows what there never was: %v", err)
		}
		if rec := part(r, flush); rec.Suspicion == commitlog.NotSuspect {
			t.Errorf("flush mode %v: nothing is suspect in a copy", flush)
		}
	}
	closeRoot(t, r, 8)
	r = open("while used")
	if err := missing(r, topicB, 5); !errors.Is(err, commitlog.ErrLost) {
		t.Errorf("once a copy, it knows what there never was: %v", err)
	}
	closeRoot(t, r, 9)
	r = open("when closed")
	if s := r.Start(); !s.Clean || s.BrokerEpoch != 7 || r.ID().BrokerEpoch != 7 {
		t.Errorf("copied when it was closed: %+v, %+v", s, r.ID())
	}
	closeRoot(t, r, 9)
	r = open("when closed")
	if s := r.Start(); !s.Clean || s.Copied {
		t.Errorf("a copy that was taken over: %+v", s)
	}
	closeRoot(t, r, 9)
}
