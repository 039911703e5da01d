package commitlog_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A life is a broker's time on a data root: two starts, some records, a clean
// end between. It remembers what it was promised.
type life struct {
	directory uuid.UUID
	epoch     int64                  // highest controller epoch that was set
	wanted    int64                  // the one that is being set
	synced    map[uuid.UUID][]string // values that a Sync covered
	written   map[uuid.UUID][]string // values that were appended
	closing   bool                   // Close was called and the root not opened since
	closed    bool                   // and it returned
}

func newLife() *life {
	return &life{synced: map[uuid.UUID][]string{}, written: map[uuid.UUID][]string{}}
}

// live goes through a life until it ends, or a call fails.
func (l *life) live(fsys vfs.FS) error {
	for start := range int64(2) {
		if err := l.start(fsys, start); err != nil {
			return err
		}
	}
	return nil
}

func (l *life) start(fsys vfs.FS, start int64) (err error) {
	l.closed = false
	// One at a time, so that the nth call is the same in every run.
	r, err := commitlog.OpenRoot(fsys, rootDir, rootOptions(func(o *commitlog.RootOptions) { o.Parallel = 1 }))
	if err != nil {
		return err
	}
	l.directory, l.closing = r.ID().DirectoryID, false
	defer func() { err = errors.Join(err, l.end(r, start+1)) }()
	l.wanted = start + 5
	if err := r.SetControllerEpoch(l.wanted); err != nil {
		return err
	}
	l.epoch = l.wanted
	for _, topic := range []uuid.UUID{topicA, topicB} {
		log, _, err := r.OpenPartition(topic, "topic-"+topic.String()[:1], 0, commitlog.Config{}, start == 0)
		if err != nil {
			return err
		}
		for i := range 3 {
			value := fmt.Sprintf("%d.%d", start, i)
			l.written[topic] = append(l.written[topic], value)
			if err := appendValue(log, value); err != nil {
				if errors.Is(err, commitlog.ErrStorageFull) { // it was not
					l.written[topic] = l.written[topic][:len(l.written[topic])-1]
				}
				return err
			}
			if i == 1 {
				if err := log.Sync(); err != nil {
					return err
				}
				l.synced[topic] = slices.Clone(l.written[topic])
				if err := log.Checkpoint(); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (l *life) end(r *commitlog.Root, epoch int64) error {
	l.closing = true
	if err := r.Close(epoch); err != nil {
		return err
	}
	l.closed = true
	for topic := range l.written {
		l.synced[topic] = slices.Clone(l.written[topic])
	}
	return nil
}

// check opens what is left on a disk, in another boot, and holds it to what
// was promised.
func (l *life) check(t *testing.T, m *vfs.Mem) {
	t.Helper()
	r := openRoot(t, m, rootOptions(inBoot("boot-2")))
	s := r.Start()
	switch {
	case s.Fresh && l.directory != uuid.Nil:
		t.Fatal("the data root is gone")
	case l.directory != uuid.Nil && r.ID().DirectoryID != l.directory:
		t.Fatalf("directory id %s, want %s", r.ID().DirectoryID, l.directory)
	case r.ID().HighestControllerEpoch != l.epoch && r.ID().HighestControllerEpoch != l.wanted:
		t.Fatalf("controller epoch %d, want %d or %d", r.ID().HighestControllerEpoch, l.epoch, l.wanted)
	case s.Clean && !l.closing:
		t.Fatal("a clean start after a crash")
	case l.closed && !s.Clean:
		t.Fatalf("not a clean start after a clean end: %+v", s)
	}
	for topic, synced := range l.synced {
		log, rec, err := r.OpenPartition(topic, "topic-"+topic.String()[:1], 0, commitlog.Config{}, false)
		if err != nil {
			t.Fatal(err)
		}
		got, written := mustRead(t, log), l.written[topic]
		if len(got) < len(synced) || len(got) > len(written) || !slices.Equal(got, written[:len(got)]) {
			t.Fatalf("records %q, synced %q, written %q", got, synced, written)
		}
		if s.Clean && len(got) != len(written) {
			t.Fatalf("a clean start without the records after %q of %q", got, written)
		}
		if !s.Trusted() && rec.Suspicion == commitlog.NotSuspect {
			t.Fatalf("not suspect after a power cut: %+v", rec)
		}
	}
}

// Wherever the power is cut, the root opens and keeps its promises.
func TestRoot_powerCuts(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	l := newLife()
	cuts := 0
	check := func(vfs.Op, string) {
		cuts++
		for seed, keep := range []int{0, 30, 70, 100} {
			l.check(t, powerCut(m, uint64(cuts*10+seed), keep))
		}
	}
	fault.Before(vfs.OpChanges, check)
	rootMust(t, l.live(fault))
	check(0, "")
	if cuts < 80 {
		t.Errorf("only %d cuts", cuts)
	}
	l.closing, l.closed = true, true
	l.check(t, m)
}

// Whatever call fails with an I/O error, nothing positive is said after it,
// and the next start finds all that was promised.
func TestRoot_everyCallFails(t *testing.T) {
	for nth := 1; nth < 1000; nth++ {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		failed := vfs.Op(0)
		count := 0
		fault.Before(vfs.OpChanges, func(op vfs.Op, _ string) {
			if count++; count == nth {
				failed = op
			}
		})
		fault.Inject(vfs.Rule{Ops: vfs.OpChanges, Nth: nth, Err: syscall.EIO, Partial: nth%2 == 0})
		l := newLife()
		err := l.live(fault)
		if failed == 0 {
			if err != nil || nth < 100 {
				t.Fatalf("nothing failed but %v, after %d calls", err, nth)
			}
			return
		}
		if err == nil {
			t.Fatalf("call %d (%s) failed and nobody heard of it", nth, failed)
		}
		// Before there is a root there is nothing to fail.
		if !errors.Is(err, syscall.EIO) || (!errors.Is(err, commitlog.ErrFailed) && l.directory != uuid.Nil) {
			t.Fatalf("call %d (%s): %v, want ErrFailed and EIO", nth, failed, err)
		}
		m.Kill()
		l.check(t, powerCut(m, uint64(nth), 50))
		s := openRoot(t, m, rootOptions()).Start()
		if s.Clean && !l.closing {
			t.Fatalf("call %d (%s) failed, and the next start is clean", nth, failed)
		}
		// Word of the failure is left where there is a root to leave it on.
		if l.directory != uuid.Nil && !s.Fresh && !strings.Contains(s.Why, syscall.EIO.Error()) {
			t.Fatalf("call %d (%s) failed, and the next start knows nothing of it: %+v", nth, failed, s)
		}
	}
	t.Fatal("it never ends")
}

// Whatever call finds the disk full, the root does not fail, and goes on when
// there is room. With a ballast it does not even notice, where no records are
// written.
func TestRoot_everyCallFindsTheDiskFull(t *testing.T) {
	const ops = vfs.OpCreate | vfs.OpWrite | vfs.OpMkdir
	sweep := func(t *testing.T, ballast bool) {
		t.Helper()
		for nth := 1; nth < 1000; nth++ {
			m := vfs.NewMem()
			rootMust(t, m.MkdirAll(rootDir))
			fault := vfs.NewFault(m)
			l := newLife()
			rootMust(t, l.start(m, 0))
			if ballast {
				rootMust(t, vfs.WriteFileAtomic(m, rootDir+"/runnel.ballast", []byte("a little room")))
			}
			count, full := 0, ""
			fault.Before(ops, func(op vfs.Op, name string) {
				if count++; count == nth {
					full = op.String() + " " + name
				}
			})
			fault.Inject(vfs.Rule{Ops: ops, Nth: nth, Err: syscall.ENOSPC, Partial: nth%2 == 0})
			err := l.start(fault, 1)
			m.Kill()
			l.check(t, powerCut(m, uint64(nth), 50))
			if full == "" {
				if err != nil || nth < 15 {
					t.Fatalf("%d calls, %v", count, err)
				}
				return
			}
			records := strings.HasSuffix(full, ".log") || strings.HasSuffix(full, ".index")
			switch {
			case strings.HasSuffix(full, "/checkpoint") && !ballast:
				// A file that does not grow has no business finding the disk
				// full: for the log that is a failure like any other.
			case errors.Is(err, commitlog.ErrFailed):
				t.Fatalf("%s: a full disk fails the root: %v", full, err)
			case err != nil && ballast && !records:
				t.Fatalf("%s: the ballast does not help: %v", full, err)
			case err != nil && !errors.Is(err, syscall.ENOSPC):
				t.Fatalf("%s: %v, want ENOSPC", full, err)
			}
		}
		t.Fatal("it never ends")
	}
	t.Run("without ballast", func(t *testing.T) { sweep(t, false) })
	t.Run("with ballast", func(t *testing.T) { sweep(t, true) })
}
