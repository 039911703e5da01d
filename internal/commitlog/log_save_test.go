package commitlog

import (
	"bytes"
	"errors"
	"syscall"
	"testing"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// A tail that is about to be cut is kept as it is, and outlives the cut, a
// reset, and a start.
func TestSaveTail(t *testing.T) {
	h := openWith(t, Config{SegmentBytes: 1000}, 20) // 40 records in several segments
	all := stored(t, h.log, 0, 40)
	tail := stored(t, h.log, 13, 40) // from the batch [12, 14)
	path, err := h.log.SaveTail(13)
	must(t, err)
	if got, err := vfs.ReadFile(h.mem, path); err != nil || !bytes.Equal(got, tail) {
		t.Errorf("kept %d bytes, want %d: %v", len(got), len(tail), err)
	}
	if got := stored(t, h.log, 0, 40); !bytes.Equal(got, all) {
		t.Error("the log changed")
	}
	must(t, h.log.TruncateTo(12))
	if path, err := h.log.SaveTail(12); path != "" || err != nil {
		t.Errorf("kept %q of nothing: %v", path, err)
	}
	second, err := h.log.SaveTail(-5)
	must(t, err)
	if got, err := vfs.ReadFile(h.mem, second); err != nil || !bytes.Equal(got, all[:len(all)-len(tail)]) {
		t.Errorf("kept %d bytes from below the start: %v", len(got), err)
	}
	must(t, h.log.Reset(50, 3))
	must(t, h.log.Close())
	h.mustOpen(t, true)
	if n := len(h.names(t, divergedSuffix)); n != 2 || h.log.End() != 50 {
		t.Errorf("%d files, the log ends at %d", n, h.log.End())
	}
	must(t, h.log.Close())
}

// Nothing is left of a copy that there is no room for, and the log goes on.
func TestSaveTail_noRoom(t *testing.T) {
	h := openWith(t, Config{}, 5)
	h.fault.Inject(vfs.Rule{Ops: vfs.OpWrite, Path: "*" + divergedSuffix, Err: syscall.ENOSPC})
	if _, err := h.log.SaveTail(0); !errors.Is(err, ErrStorageFull) {
		t.Errorf("%v", err)
	}
	if n := len(h.names(t, divergedSuffix)); n != 0 {
		t.Errorf("%d files are left", n)
	}
	h.append(t, 100, record.CreateTime, h.nowMs)
	must(t, h.log.Close())
}

func stored(t *testing.T, l *Log, from, end record.Offset) []byte {
	t.Helper()
	b, err := readAll(l, from, end)
	must(t, err)
	return b
}
