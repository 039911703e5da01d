package commitlog_test

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// withMarks are those of a small disk: soft 64 KiB, hard 16 KiB, ballast
// 8 KiB.
func withMarks(o *commitlog.RootOptions) { o.ReserveBytes, o.BallastBytes = 64*kib, mib }

// running opens a root and runs it until stop is called, in the bubble.
func running(t *testing.T, fsys vfs.FS, opts commitlog.RootOptions) (r *commitlog.Root, stop func() error) {
	t.Helper()
	r = openRoot(t, fsys, opts)
	return r, runRoot(t, r)
}

// A bulk file takes up room, or gives it back.
type bulk struct {
	t *testing.T
	m *vfs.Mem
	f vfs.File
}

func newBulk(t *testing.T, m *vfs.Mem) *bulk {
	t.Helper()
	f, err := m.OpenOrCreate("/bulk")
	rootMust(t, err)
	return &bulk{t, m, f}
}

// leave fills the disk, or empties it, until free bytes are left.
func (b *bulk) leave(free int64) {
	b.t.Helper()
	now, _, err := b.m.Free("/")
	rootMust(b.t, err)
	size, err := b.f.Size()
	rootMust(b.t, err, b.f.Truncate(size+now-free))
}

// pass lets time pass, and what is due by then happen.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func TestRoot_diskMarks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		m.SetCapacity(mib)
		r, stop := running(t, m, rootOptions(withMarks))
		pass(time.Second)
		b := newBulk(t, m)
		steps := []struct {
			free       int64
			soft, hard bool
		}{
			{500 * kib, false, false},
			{64 * kib, false, false},
			{64*kib - 1, true, false},
			{64*kib + 1, true, false}, // a little is not enough to go back
			{68 * kib, false, false},
			{16 * kib, true, false},
			{16*kib - 1, true, true},
			{16*kib + 1, true, true},
			{17 * kib, true, false},
			{0, true, true},
			{500 * kib, false, false},
		}
		for _, s := range steps {
			b.leave(s.free)
			pass(time.Second)
			got := r.Disk()
			if got.Soft != s.soft || got.Hard != s.hard || got.Free != s.free || got.Total != mib || got.ReserveBytes != 64*kib {
				t.Errorf("%d bytes free: %+v, want soft %v and hard %v", s.free, got, s.soft, s.hard)
			}
			if !got.Ballast || got.Err != nil {
				t.Errorf("%d bytes free: ballast %v, %v", s.free, got.Ballast, got.Err)
			}
		}
		rootMust(t, stop())
	})
}

func TestRoot_diskMarksFromTheStart(t *testing.T) {
	m := vfs.NewMem()
	m.SetCapacity(mib)
	b := newBulk(t, m)
	b.leave(20 * kib)
	if d := openRoot(t, m, rootOptions(withMarks)).Disk(); !d.Soft || d.Hard {
		t.Errorf("before Run: %+v, want soft", d)
	}
}

func TestRoot_diskMarksByDefault(t *testing.T) {
	for capacity, reserve := range map[int64]int64{0: 1 << 30, 100 * mib: 5 * mib} {
		m := vfs.NewMem()
		m.SetCapacity(capacity)
		r := openRoot(t, m, rootOptions(func(o *commitlog.RootOptions) { o.ReserveBytes, o.BallastBytes = 0, 0 }))
		if got := r.Disk().ReserveBytes; got != reserve {
			t.Errorf("of a disk of %d bytes %d are kept, want %d", capacity, got, reserve)
		}
	}
	m := vfs.NewMem()
	m.SetCapacity(10 * kib)
	newBulk(t, m).leave(kib)
	if d := openRoot(t, m, rootOptions(func(o *commitlog.RootOptions) { o.ReserveBytes = -1 })).Disk(); d.Soft || d.Hard {
		t.Errorf("without marks: %+v", d)
	}
}

func TestRoot_diskThatCannotBeMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		m.SetCapacity(mib)
		fault := vfs.NewFault(m)
		r, stop := running(t, fault, rootOptions(withMarks))
		newBulk(t, m).leave(20 * kib)
		pass(time.Second)
		fault.Inject(vfs.Rule{Ops: vfs.OpFree, Err: errDisk, Times: -1})
		pass(time.Second)
		if d := r.Disk(); !d.Soft || d.Hard || !errors.Is(d.Err, errDisk) {
			t.Errorf("%+v, want the last known and the error", d)
		}
		fault.Clear()
		pass(time.Second)
		if d := r.Disk(); d.Err != nil {
			t.Errorf("still %v", d.Err)
		}
		rootMust(t, stop())
	})
}

// ST-05, and more: on a disk that is full to the last byte, checkpoints,
// truncation, retention and the root's own files go on, reads too; and when
// there is room again, so do appends, without a restart.
func TestRoot_fullDiskAndBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		m.SetCapacity(mib)
		var warnings []error
		r, stop := running(t, m, rootOptions(withMarks, func(o *commitlog.RootOptions) {
			o.OnWarning = func(err error) { warnings = append(warnings, err) }
		}))
		log, _ := openPartition(t, r, topicA, 0, true)
		var want []string
		for i := range 20 {
			v := strings.Repeat(string(rune('a'+i)), 500)
			mustAppend(t, log, v)
			want = append(want, v)
		}
		pass(time.Second)
		if !r.Disk().Ballast {
			t.Fatal("no ballast")
		}
		b := newBulk(t, m)
		b.leave(100)
		mustFailFull(t, log)
		b.leave(0)
		mustFailFull(t, log)

		rootMust(t, r.SetControllerEpoch(5), log.StartEpoch(2))
		log.SetHighWatermark(20)
		rootMust(t, log.Sync(), log.Checkpoint())
		if d := r.Disk(); !d.Hard || !d.Soft || d.Ballast {
			t.Errorf("with the ballast spent: %+v, want hard", d)
		}
		rootMust(t, log.TruncateTo(18), log.DeleteBefore(2))
		want = want[2:18]
		if got := mustRead(t, log); !slices.Equal(got, want) {
			t.Errorf("records %.3q, want %.3q", got, want)
		}
		if _, _, err := r.OpenPartition(topicB, "topic-b", 0, commitlog.Config{}, true); !errors.Is(err, commitlog.ErrStorageFull) {
			t.Errorf("a new partition below the hard mark: %v, want ErrStorageFull", err)
		}
		pass(time.Minute)
		b.leave(0)
		pass(time.Second)
		if d := r.Disk(); !d.Hard || d.Ballast {
			t.Errorf("a minute later: %+v, want hard", d)
		}
		b.leave(40 * kib)
		pass(time.Second)
		if d := r.Disk(); !d.Hard || d.Ballast {
			t.Errorf("with room, but not enough for a ballast: %+v, want hard", d)
		}

		b.leave(500 * kib)
		pass(time.Second)
		if d := r.Disk(); d.Soft || d.Hard || !d.Ballast {
			t.Errorf("with room again: %+v", d)
		}
		batch, err := rootBatch("again")
		rootMust(t, err)
		_, err = log.Append(batch, 2, 1)
		rootMust(t, err)
		want = append(want, "again")
		if got := mustRead(t, log); !slices.Equal(got, want) {
			t.Errorf("records %.3q, want %.3q", got, want)
		}
		rootMust(t, stop())
		closeRoot(t, r, 1)
		if len(warnings) > 0 {
			t.Errorf("warnings: %v", warnings)
		}

		r = openRoot(t, powerCut(m, 1, 0), rootOptions(withMarks))
		log, rec := openPartition(t, r, topicA, 0, false)
		if got := mustRead(t, log); !slices.Equal(got, want) || !rec.Clean || r.ID().HighestControllerEpoch != 5 {
			t.Errorf("after a restart: %.3q, %+v, %+v", got, rec, r.ID())
		}
	})
}

// On a file system that copies on write even a truncation takes room.
func TestRoot_ballastServesTruncation(t *testing.T) {
	m := vfs.NewMem()
	fault := vfs.NewFault(m)
	r := openRoot(t, fault, rootOptions())
	log, _ := openPartition(t, r, topicA, 0, true)
	mustAppend(t, log, "a", "b")
	rootMust(t, vfs.WriteFileAtomic(m, rootDir+"/runnel.ballast", []byte("a little room")))
	fault.Inject(vfs.Rule{Ops: vfs.OpTruncate, Path: "*.log", Err: syscall.ENOSPC})
	rootMust(t, log.TruncateTo(1))
	if got := mustRead(t, log); !slices.Equal(got, []string{"a"}) || exists(t, m, rootDir+"/runnel.ballast") {
		t.Errorf("records %q; the ballast is spent: %v", got, !exists(t, m, rootDir+"/runnel.ballast"))
	}
}

func TestRoot_ballastOutlivesARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		m.SetCapacity(mib)
		r, stop := running(t, m, rootOptions(withMarks))
		pass(time.Second)
		rootMust(t, stop())
		closeRoot(t, r, 1)
		b := newBulk(t, m)
		b.leave(0)
		// Not even the file of the lock could be made; the ballast serves the
		// start itself.
		r, stop = running(t, m, rootOptions(withMarks, inBoot("boot-2")))
		if r.ID().BootID != "boot-2" {
			t.Errorf("boot id %s", r.ID().BootID)
		}
		if d := r.Disk(); !d.Hard {
			t.Errorf("%+v, want hard", d)
		}
		rootMust(t, stop())
	})
}

func TestRoot_ballastIsNeverMadeAtACost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		m.SetCapacity(mib)
		b := newBulk(t, m)
		b.leave(66 * kib)
		fault := vfs.NewFault(m)
		r, stop := running(t, fault, rootOptions(withMarks))
		pass(time.Second)
		if d := r.Disk(); d.Ballast || d.Soft {
			t.Errorf("%+v, want no ballast: it would take the disk below its mark", d)
		}
		// A quota may say no where the disk says yes.
		fault.Inject(vfs.Rule{Ops: vfs.OpWrite, Path: "runnel.ballast", Err: syscall.ENOSPC, Partial: true, Times: -1})
		b.leave(500 * kib)
		pass(time.Second)
		if d := r.Disk(); d.Ballast || d.Free < 500*kib || r.Failure().Err() != nil {
			t.Errorf("%+v, failed of %v; want no ballast and nothing left of it", d, r.Failure().Err())
		}
		fault.Clear()
		pass(time.Second)
		if d := r.Disk(); !d.Ballast {
			t.Errorf("%+v, want a ballast", d)
		}
		rootMust(t, stop())
	})
}

func TestRoot_ballastThatCannotBeWrittenFailsTheRoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := vfs.NewMem()
		m.SetCapacity(mib)
		fault := vfs.NewFault(m)
		fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "runnel.ballast", Err: errDisk})
		_, stop := running(t, fault, rootOptions(withMarks))
		pass(time.Second)
		if err := stop(); !errors.Is(err, errDisk) || !errors.Is(err, commitlog.ErrFailed) {
			t.Errorf("Run: %v, want ErrFailed", err)
		}
	})
}
