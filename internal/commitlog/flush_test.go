package commitlog

import (
	"errors"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Many callers that want their batch durable share few syncs, and appends go
// on while one runs.
func TestSync_isShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(Config{})
		h.mustOpen(t, false)
		syncs := 0
		h.fault.Before(vfs.OpSync, func(vfs.Op, string) {
			syncs++
			time.Sleep(10 * time.Millisecond) // a disk
		})
		const callers = 64
		start := time.Now()
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				b := newHarness(Config{}).batch(t, 10, 1)
				got, err := h.log.Append(&b, 1, record.CreateTime)
				if err != nil {
					t.Error(err)
				}
				if err := h.log.Sync(); err != nil {
					t.Error(err)
				}
				if d := h.log.Durable(); d <= got.Last {
					t.Errorf("durable up to %d after the sync of %d", d, got.Last)
				}
			})
		}
		wg.Wait()
		// One for the first, and one for all that came meanwhile; a third is
		// for whom the second did not wait.
		if syncs > 3 {
			t.Errorf("%d syncs for %d callers", syncs, callers)
		}
		if took := time.Since(start); took > 40*time.Millisecond {
			t.Errorf("took %s: appends waited for syncs", took)
		}
		if err := h.log.Close(); err != nil {
			t.Error(err)
		}
	})
}

// All who share a failed sync hear of it, and who comes later does too.
func TestSync_failureIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(Config{})
		h.mustOpen(t, false)
		h.startEpoch(t)
		h.append(t, 10, record.CreateTime, 1)
		h.fault.Before(vfs.OpSync, func(vfs.Op, string) { time.Sleep(time.Millisecond) })
		h.fault.Inject(vfs.Rule{Ops: vfs.OpSync, Err: syscall.EIO})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				if err := h.log.Sync(); !errors.Is(err, ErrFailed) {
					t.Errorf("sync: %v", err)
				}
			})
		}
		wg.Wait()
		if d := h.log.Durable(); d != 0 {
			t.Errorf("durable up to %d after a failed sync", d)
		}
		if err := h.log.Sync(); !errors.Is(err, ErrFailed) {
			t.Errorf("a later sync: %v", err)
		}
	})
}

// A sync that was running while the log was cut does not vouch for what was
// appended after the cut.
func TestSync_doesNotVouchAfterATruncation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(Config{})
		h.mustOpen(t, false)
		h.startEpoch(t)
		for range 10 {
			h.append(t, 10, record.CreateTime, 1)
		}
		took := time.Minute
		h.fault.Before(vfs.OpSync, func(vfs.Op, string) {
			nap := took
			took = time.Millisecond // only the first one is slow
			time.Sleep(nap)
		})
		var wg sync.WaitGroup
		wg.Go(func() { _ = h.log.Sync() })
		synctest.Wait()
		h.truncate(t, 3)
		h.append(t, 10, record.CreateTime, 1)
		wg.Wait()
		if d := h.log.Durable(); d != 3 {
			t.Errorf("durable up to %d, want 3", d)
		}
		h.sync(t)
		h.check(t)
	})
}

// A failure of one log of a root is the end of all positive answers.
func TestSync_ofAnotherLogOfAFailedRoot(t *testing.T) {
	h := newHarness(Config{})
	failed := NewFailure()
	l, _, err := OpenLog(h.fault, testDir, h.cfg, OpenOptions{Now: h.now, Failed: failed})
	must(t, err)
	h.log = l
	h.startEpoch(t)
	h.append(t, 10, record.CreateTime, 1)
	h.fault.Before(vfs.OpSync, func(vfs.Op, string) { _ = failed.Set(syscall.EIO) })
	if err := l.Sync(); !errors.Is(err, ErrFailed) || l.Durable() != 0 {
		t.Errorf("sync: %v, durable up to %d", err, l.Durable())
	}
}
