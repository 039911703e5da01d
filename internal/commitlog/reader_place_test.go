package commitlog

import (
	"testing"

	"github.com/runnelmq/runnel/internal/record"
)

// A place is told for every offset, over many segments, as reading would find it.
func TestPlace(t *testing.T) {
	h := openWith(t, Config{SegmentBytes: 1000, IndexIntervalBytes: 200}, 0)
	var times []int64
	for range 40 {
		h.nowMs += 10
		h.append(t, 100, record.CreateTime, h.nowMs, h.nowMs+1)
		times = append(times, h.nowMs)
	}
	before := h.log.Size() + 1
	for off := range record.Offset(80) {
		p, err := h.log.Place(off, 80)
		must(t, err)
		if !p.Found || p.AppendTimeMs != times[off/2] {
			t.Errorf("offset %d: %+v, want time %d", off, p, times[off/2])
		}
		if off%2 == 0 && p.BytesAfter >= before || off%2 == 1 && p.BytesAfter != before || off == 0 && p.BytesAfter != h.log.Size() {
			t.Errorf("offset %d: %d bytes after it, %d after the one before, %d in all", off, p.BytesAfter, before, h.log.Size())
		}
		before = p.BytesAfter
	}
	for _, c := range []struct{ from, end record.Offset }{{80, 80}, {90, 90}} {
		if p, err := h.log.Place(c.from, c.end); err != nil || p != (Place{}) {
			t.Errorf("from %d: %+v %v", c.from, p, err)
		}
	}
	if p, err := h.log.Place(40, 40); err != nil || p.Found || p.BytesAfter == 0 {
		t.Errorf("what is not below the end: %+v %v", p, err)
	}
}
