package commitlog

import (
	"bytes"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Readers that read while the log is appended to, rolled, compacted, deleted
// from and cut get whole sound frames of what was there, and never a complaint about
// the log.
func TestRead_whileTheLogChanges(t *testing.T) {
	h := newHarness(testConfig())
	h.keys = 50
	h.mustOpen(t, false)
	h.startEpoch(t)
	var stop atomic.Bool
	var reads atomic.Int64
	var readers sync.WaitGroup
	for reader := range 3 {
		readers.Go(func() {
			buf := make([]byte, 3000)
			from := record.Offset(0)
			for !stop.Load() {
				from = readOn(t, h.log, buf, from, reader)
				reads.Add(1)
			}
		})
	}
	readers.Go(func() {
		for !stop.Load() {
			if _, _, _, err := h.log.OffsetForTime(h.log.now().UnixMilli(), h.log.End()); err != nil {
				t.Errorf("offset for time: %v", err)
				return
			}
		}
	})
	for i := 0; i < 400 || reads.Load() < 400; i++ {
		h.append(t, 50+i%100, record.CreateTime, h.now().UnixMilli())
		switch i % 40 {
		case 7, 23:
			h.sync(t)
		case 15:
			h.truncate(t, max(h.m.start, h.m.end-record.Offset(i%9)))
		case 20, 35:
			h.clean(t, 0)
		case 30:
			h.deleteBefore(t, h.m.start+(h.m.end-h.m.start)/2)
		case 39:
			must(t, h.log.Roll())
			must(t, h.log.Checkpoint())
		}
	}
	stop.Store(true)
	readers.Wait()
	h.check(t)
	must(t, h.log.Close())
}

// readOn reads once at from, and returns where to go on.
func readOn(t *testing.T, l *Log, buf []byte, from record.Offset, reader int) record.Offset {
	t.Helper()
	n, err := l.Read(buf, from, l.End())
	if e, ok := errors.AsType[*RangeError](err); ok {
		if reader == 0 {
			return e.LogStart
		}
		return max(e.LogStart, e.End-2)
	}
	if err != nil {
		t.Errorf("read at %d: %v", from, err)
		return l.Start()
	}
	for b := buf[:n]; len(b) > 0; {
		f, v := record.CheckFrame(b, record.MaxFrameSize)
		if v != record.OK || f.Header.NextOffset() <= from {
			t.Errorf("read at %d: frame of %d is %s", from, f.Header.BaseOffset, v)
			return l.Start()
		}
		from = f.Header.NextOffset()
		b = b[f.Size:]
	}
	if n == 0 && reader == 2 {
		return l.Start()
	}
	return from
}

func TestRead_afterClose(t *testing.T) {
	h := openWith(t, testConfig(), 20)
	must(t, h.log.Close())
	if _, err := h.log.Read(make([]byte, 4096), 0, 5); !errors.Is(err, ErrClosed) {
		t.Errorf("read: %v", err)
	}
	if err := h.appendErr(); !errors.Is(err, ErrClosed) {
		t.Errorf("append: %v", err)
	}
}

// A log that is cut and written anew between any two steps of a read shows
// the reader one of its histories, whole.
func TestRead_acrossATruncation(t *testing.T) {
	for step := 1; step <= 6; step++ {
		cfg := testConfig()
		cfg.SegmentBytes = 1 << 20
		h := openWith(t, cfg, 10)
		reads := 0
		h.fault.Before(vfs.OpRead, func(vfs.Op, string) {
			if reads++; reads != step {
				return
			}
			h.truncate(t, 9)
			for range 8 {
				h.append(t, 37, record.CreateTime, h.nowMs, h.nowMs, h.nowMs)
			}
		})
		buf := make([]byte, 1000)
		n, err := h.log.Read(buf, 12, 20)
		if want := h.m.from(12, 20); err != nil || n == 0 || !bytes.HasPrefix(want, buf[:n]) {
			t.Errorf("step %d: %d bytes that are none of the log's, %v", step, n, err)
		}
		if step <= 2 && reads < step {
			t.Errorf("the read has only %d steps", reads)
		}
	}
}
