package producer

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/record"
)

const hour = 60 * 60 * 1000

// A world is a table and the log it is of, which the naive model reads from its beginning for each question.
type world struct {
	t     *Table
	cfg   Config
	log   []record.Header
	nowMs int64
}

func header(id record.ProducerID, epoch record.ProducerEpoch, seq record.Sequence, delta uint32) *record.Header {
	return &record.Header{ProducerID: id, ProducerEpoch: epoch, BaseSequence: seq, LastOffsetDelta: delta, RecordCount: delta + 1}
}

// append is what a leader does with a batch that is new.
func (w *world) append(h *record.Header) {
	if n := len(w.log); n > 0 {
		h.BaseOffset = w.log[n-1].NextOffset()
		w.nowMs = max(w.nowMs, w.log[n-1].AppendTimeMs)
	}
	h.AppendTimeMs = w.nowMs
	w.log = append(w.log, *h)
	w.t.Apply(h)
}

// A verdict is what the model says of a batch.
type verdict struct {
	kind   error         // nil: new, or stored
	stored record.Offset // -1: it is not
}

// judge reads the whole log.
func (w *world) judge(h *record.Header) verdict {
	var all []record.Header // of this producer, in the newest epoch
	epoch := record.ProducerEpoch(-1)
	for _, b := range w.log {
		if b.ProducerID != h.ProducerID || b.BaseSequence < 0 {
			continue
		}
		if n := len(all); n > 0 && b.AppendTimeMs-all[n-1].AppendTimeMs > w.cfg.ExpiryMs {
			all, epoch = nil, -1
		}
		if b.ProducerEpoch < epoch {
			continue
		}
		next := record.Sequence(-1)
		if n := len(all); n > 0 && b.ProducerEpoch == epoch {
			next = all[n-1].BaseSequence + record.Sequence(all[n-1].LastOffsetDelta) + 1
		}
		if b.BaseSequence != next {
			all = nil
		}
		epoch = b.ProducerEpoch
		all = append(all, b)
	}
	if len(all) == 0 || w.nowMs-all[len(all)-1].AppendTimeMs > w.cfg.ExpiryMs {
		if h.BaseSequence != 0 {
			return verdict{ErrStateLost, -1}
		}
		return verdict{nil, -1}
	}
	end := func(h *record.Header) record.Sequence { return h.BaseSequence + record.Sequence(h.LastOffsetDelta) }
	switch {
	case h.ProducerEpoch < epoch:
		return verdict{ErrFenced, -1}
	case h.ProducerEpoch > epoch && h.BaseSequence > 0:
		return verdict{ErrOutOfOrder, -1}
	case h.ProducerEpoch > epoch:
		return verdict{nil, -1}
	}
	recent := all[max(0, len(all)-5):]
	for i := range recent {
		if recent[i].BaseSequence == h.BaseSequence && recent[i].LastOffsetDelta == h.LastOffsetDelta {
			return verdict{nil, recent[i].BaseOffset}
		}
	}
	last := end(&all[len(all)-1])
	switch {
	case h.BaseSequence == last+1:
		return verdict{nil, -1}
	case h.BaseSequence > last+1:
		return verdict{ErrOutOfOrder, -1}
	case end(h) < recent[0].BaseSequence:
		return verdict{ErrStateLost, -1}
	default:
		return verdict{ErrOverlap, -1}
	}
}

// check compares the table's word with the model's.
func (w *world) check(t *rapid.T, h *record.Header) (isNew bool) {
	want := w.judge(h)
	stored, err := w.t.Check(h, w.nowMs)
	if !errors.Is(err, want.kind) || (want.kind == nil) != (err == nil) || (stored != nil) != (want.stored >= 0) || stored != nil && stored.Base != want.stored {
		t.Fatalf("%+v at %d ms: stored %+v, error %v; want %+v", h, w.nowMs, stored, err, want)
	}
	return err == nil && stored == nil
}

// rebuilt returns the table of the same log, read from its beginning.
func (w *world) rebuilt() *Table {
	t := New(w.cfg)
	for i := range w.log {
		t.Apply(&w.log[i])
	}
	t.Expire(w.nowMs)
	return t
}

// Whatever producers send, the table says of it what who reads the whole log would say; and it is the table that the log makes.
func TestTable_agreesWithAReaderOfTheLog(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{cfg: Config{ExpiryMs: 10 * hour, Max: 1000}, nowMs: 1}
		w.t = New(w.cfg)
		draw := func(t *rapid.T) *record.Header {
			h := header(record.ProducerID(rapid.IntRange(1, 3).Draw(t, "id")), record.ProducerEpoch(rapid.IntRange(0, 2).Draw(t, "epoch")), 0, uint32(rapid.IntRange(0, 3).Draw(t, "delta")))
			h.BaseSequence = record.Sequence(rapid.IntRange(0, 40).Draw(t, "sequence"))
			if e := w.t.byID[h.ProducerID]; e != nil && rapid.IntRange(0, 9).Draw(t, "near") > 2 {
				h.ProducerEpoch = e.epoch
				h.BaseSequence = max(0, e.last().next()+record.Sequence(rapid.IntRange(-12, 1).Draw(t, "off")))
				if i := rapid.IntRange(0, 2*Window).Draw(t, "again"); i < e.n {
					h.BaseSequence, h.LastOffsetDelta = e.batches[i].Sequence, e.batches[i].Delta
				}
			}
			return h
		}
		t.Repeat(map[string]func(*rapid.T){
			"send": func(t *rapid.T) {
				if h := draw(t); w.check(t, h) {
					w.append(h)
				}
			},
			"send the next": func(t *rapid.T) {
				h := draw(t)
				if e := w.t.byID[h.ProducerID]; e != nil {
					h.ProducerEpoch, h.BaseSequence = e.epoch, e.last().next()
				}
				if w.check(t, h) {
					w.append(h)
				}
			},
			// What is in the log counts, whatever may have been wrong with it.
			"copy from a leader": func(t *rapid.T) { w.append(draw(t)) },
			"without an id":      func(*rapid.T) { w.append(header(0, 0, record.NoSequence, 2)) },
			"a marker": func(*rapid.T) {
				h := header(1, 0, -1, 0)
				h.Control = true
				w.append(h)
			},
			"time":   func(t *rapid.T) { w.nowMs += rapid.Int64Range(0, 6*hour).Draw(t, "ms") },
			"expire": func(*rapid.T) { w.t.Expire(w.nowMs) },
			"restart": func(t *rapid.T) {
				state := w.t.AppendState([]byte("before"))
				w.t = New(w.cfg)
				if err := w.t.SetState(state[len("before"):]); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) {
				w.t.Expire(w.nowMs)
				if got, want := w.t.AppendState(nil), w.rebuilt().AppendState(nil); !bytes.Equal(got, want) {
					t.Fatalf("the state is\n%x, made from the log it is\n%x", got, want)
				}
				checkList(t, w.t)
			},
		})
	})
}

// checkList checks that the list has what the map has, in the order of last batches.
func checkList(t *rapid.T, table *Table) {
	n, last := 0, record.Offset(-1)
	for e := table.oldest; e != nil; e = e.newer {
		if table.byID[e.id] != e || e.last().Base <= last || e.newer == nil && table.newest != e {
			t.Fatalf("the list is broken at %+v", e)
		}
		last = e.last().Base
		n++
	}
	if n != table.Len() {
		t.Fatalf("%d in the list, %d in the map", n, table.Len())
	}
}

func TestTable_makesRoom(t *testing.T) {
	w := &world{t: New(Config{Max: 3}), nowMs: 5}
	for id := range record.ProducerID(3) {
		w.append(header(id+1, 0, 0, 0))
		w.nowMs += 10
	}
	w.append(header(1, 0, 1, 0)) // 2 is the oldest now
	refused := header(4, 0, 0, 0)
	w.nowMs = 15 + hour
	_, err := w.t.Check(refused, w.nowMs)
	var why *RefusedError
	if !errors.Is(err, ErrTooMany) || !errors.As(err, &why) || why.Metadata()["limit"] != "3" {
		t.Fatalf("a fourth producer after an hour: %v", err)
	}
	// A retry of who is known is answered, and so is who goes on.
	if stored, err := w.t.Check(header(2, 0, 0, 0), w.nowMs); err != nil || stored == nil {
		t.Errorf("a retry: %v, %v", stored, err)
	}
	w.nowMs++
	if _, err := w.t.Check(refused, w.nowMs); err != nil {
		t.Fatalf("a fourth producer after more than an hour: %v", err)
	}
	w.append(refused)
	if w.t.Len() != 3 || w.t.Live(2) || !w.t.Live(1) || !w.t.Live(3) || !w.t.Live(4) {
		t.Errorf("%d remembered: %v %v %v %v", w.t.Len(), w.t.Live(1), w.t.Live(2), w.t.Live(3), w.t.Live(4))
	}
	// A replica that may remember fewer takes the newest.
	small := New(Config{Max: 2})
	if err := small.SetState(w.t.AppendState(nil)); err != nil || small.Len() != 2 || small.Live(3) {
		t.Errorf("%v: %d remembered", err, small.Len())
	}
}

func TestTable_saysWhatItExpects(t *testing.T) {
	w := &world{t: New(Config{}), nowMs: 5}
	for seq := range record.Sequence(7) {
		w.append(header(9, 3, seq*2, 1))
	}
	for _, c := range []struct {
		what  string
		h     *record.Header
		kind  error
		facts map[string]string
	}{
		{"a gap", header(9, 3, 15, 0), ErrOutOfOrder, map[string]string{"producerId": "9", "producerEpoch": "3", "baseSequence": "15", "expectedSequence": "14"}},
		{"a gap of the widest", header(9, 3, math.MaxInt64-1, 0), ErrOutOfOrder, map[string]string{"producerId": "9", "producerEpoch": "3", "baseSequence": fmt.Sprint(math.MaxInt64 - 1), "expectedSequence": "14"}},
		{"older than the window", header(9, 3, 2, 1), ErrStateLost, map[string]string{"producerId": "9", "producerEpoch": "3", "baseSequence": "2", "expectedSequence": "14"}},
		{"half in the window", header(9, 3, 3, 1), ErrOverlap, map[string]string{"producerId": "9", "producerEpoch": "3", "baseSequence": "3", "expectedSequence": "14"}},
		{"two stored ones as one", header(9, 3, 10, 3), ErrOverlap, map[string]string{"producerId": "9", "producerEpoch": "3", "baseSequence": "10", "expectedSequence": "14"}},
		{"half new", header(9, 3, 13, 1), ErrOverlap, map[string]string{"producerId": "9", "producerEpoch": "3", "baseSequence": "13", "expectedSequence": "14"}},
		{"an older instance", header(9, 2, 14, 1), ErrFenced, map[string]string{"producerId": "9", "producerEpoch": "2", "baseSequence": "14", "currentEpoch": "3"}},
		{"a new epoch in the middle", header(9, 4, 14, 1), ErrOutOfOrder, map[string]string{"producerId": "9", "producerEpoch": "4", "baseSequence": "14", "expectedSequence": "0"}},
		{"unknown", header(8, 0, 14, 1), ErrStateLost, map[string]string{"producerId": "8", "producerEpoch": "0", "baseSequence": "14"}},
	} {
		stored, err := w.t.Check(c.h, w.nowMs)
		var why *RefusedError
		if stored != nil || !errors.Is(err, c.kind) || !errors.As(err, &why) {
			t.Errorf("%s: %v, %v", c.what, stored, err)
			continue
		}
		if diff := cmp.Diff(c.facts, why.Metadata()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.what, diff)
		}
	}
	stored, err := w.t.Check(header(9, 3, 4, 1), w.nowMs)
	if want := (&Batch{Sequence: 4, Base: 4, Delta: 1, AppendTimeMs: 5}); err != nil || !cmp.Equal(stored, want) || stored.Last() != 5 {
		t.Errorf("the oldest of the window: %+v, %v", stored, err)
	}
}

// A known producer costs nothing but a look.
func TestTable_allocatesForNewProducersOnly(t *testing.T) {
	w := &world{t: New(Config{}), nowMs: 5}
	w.append(header(9, 0, 0, 0))
	h := header(9, 0, 1, 0)
	if n := testing.AllocsPerRun(100, func() {
		if _, err := w.t.Check(h, 5); err != nil {
			t.Fatal(err)
		}
		w.t.Apply(h)
		h.BaseSequence++
		h.BaseOffset++
	}); n > 0 {
		t.Errorf("%v allocations a batch", n)
	}
}

// The bytes of a state are part of a format: other versions read them.
func TestState_golden(t *testing.T) {
	w := &world{t: New(Config{}), nowMs: 0x0102}
	w.append(header(9, 3, 0, 1))
	w.append(header(5, 0, 0, 0))
	w.append(header(9, 3, 2, 0))
	want := slices.Concat(
		[]byte{2, 0, 0, 0},
		[]byte{5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1},
		[]byte{0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0},
		[]byte{9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2},
		[]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0},
		[]byte{2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0},
	)
	if got := w.t.AppendState(nil); !bytes.Equal(got, want) {
		t.Errorf("the state is\n%x, want\n%x", got, want)
	}
}

// No bytes make a table that could not be, or more memory than they are.
func FuzzState(f *testing.F) {
	w := &world{t: New(Config{}), nowMs: 7}
	for i := range record.Sequence(20) {
		w.append(header(record.ProducerID(i%3+1), 0, i/3*2, 1))
	}
	good := w.t.AppendState(nil)
	f.Add(good)
	f.Add(good[:len(good)-1])
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{255, 255, 255, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		table := New(Config{Max: 1 << 20})
		if err := table.SetState(b); err != nil {
			if !errors.Is(err, ErrBadState) || table.Len() != 0 || table.oldest != nil {
				t.Fatalf("%v, and %d producers", err, table.Len())
			}
			return
		}
		if again := table.AppendState(nil); !bytes.Equal(again, b) {
			t.Fatalf("%x was read as %x", b, again)
		}
		for _, e := range table.byID {
			h := header(e.id, e.epoch, e.last().Sequence, e.last().Delta)
			if stored, err := table.Check(h, e.last().AppendTimeMs); err != nil || stored.Base != e.last().Base {
				t.Fatalf("the last batch of producer %d: %+v, %v", e.id, stored, err)
			}
		}
	})
}
