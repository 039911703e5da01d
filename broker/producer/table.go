// Package producer decides which batches of idempotent producers are new, without goroutine, clock or I/O.
//
// A [Table] is what one partition remembers. It is a function of the headers of the partition's batches in their order, so
// that whoever has the log has it; only what is too old, or too much, is forgotten.
package producer

import (
	"fmt"

	"github.com/runnelmq/runnel/internal/record"
)

// Window is how many batches of a producer are remembered, and so how many a producer may have unanswered in a partition.
const Window = 5

// Defaults of [Config].
const (
	DefaultExpiryMs = 7 * 24 * 60 * 60 * 1000
	DefaultMax      = 10_000
	// maxIdleMs is the longest that a producer is safe from being forgotten for the sake of a new one.
	maxIdleMs = 60 * 60 * 1000
)

// Config bounds a table. A zero field stands for its default.
type Config struct {
	// ExpiryMs is how long after its last batch a producer is remembered, in milliseconds of append time. Default 7 days.
	ExpiryMs int64
	// Max is how many producers are remembered. When there are as many, the one that has not written for the longest makes
	// room for a new one, if that is more than an hour, or the expiry where it is less; else the new one is refused. Default
	// 10,000: about 3 MiB.
	Max int
}

// A Batch is a batch that is stored.
type Batch struct {
	Sequence record.Sequence // of its first record
	Base     record.Offset   // offset of its first record
	Delta    uint32          // from its first record to its last one, in sequences and offsets alike
	// AppendTimeMs is its append time, in Unix milliseconds.
	AppendTimeMs int64
}

// Last returns the offset of the last record.
func (b Batch) Last() record.Offset { return b.Base + record.Offset(b.Delta) }

// next returns the sequence that follows.
func (b Batch) next() record.Sequence { return b.Sequence + record.Sequence(b.Delta) + 1 }

// A Table is what a partition remembers of its producers. It is not safe for concurrent use.
type Table struct {
	cfg  Config
	byID map[record.ProducerID]*entry
	// oldest and newest end a list in the order of the last batches. Both nil: the table is empty.
	oldest, newest *entry
}

// An entry is one producer.
type entry struct {
	id           record.ProducerID
	epoch        record.ProducerEpoch
	older, newer *entry
	// n of the batches are used, oldest first. Invariant: n >= 1, each begins at the sequence after the one before.
	n       int
	batches [Window]Batch
}

func (e *entry) last() *Batch { return &e.batches[e.n-1] }

// New returns an empty table.
func New(cfg Config) *Table {
	if cfg.ExpiryMs <= 0 {
		cfg.ExpiryMs = DefaultExpiryMs
	}
	if cfg.Max <= 0 {
		cfg.Max = DefaultMax
	}
	return &Table{cfg: cfg, byID: map[record.ProducerID]*entry{}}
}

// Len returns how many producers are remembered.
func (t *Table) Len() int { return len(t.byID) }

// Live reports whether a producer is remembered.
func (t *Table) Live(id record.ProducerID) bool { return t.byID[id] != nil }

// Reset forgets everything.
func (t *Table) Reset() {
	clear(t.byID)
	t.oldest, t.newest = nil, nil
}

// Check judges a batch that is about to be appended at nowMs, in Unix milliseconds of the clock that append times are from. A
// batch that is new has neither stored nor an error. One that is stored already is not to be appended: stored tells where it
// is. The error is a [RefusedError].
func (t *Table) Check(h *record.Header, nowMs int64) (stored *Batch, err error) {
	e := t.byID[h.ProducerID]
	if e == nil || t.expired(e, nowMs) {
		return nil, t.checkUnknown(h, nowMs)
	}
	refuse := func(kind error, expected record.Sequence, format string, args ...any) error {
		return &RefusedError{
			Kind: kind, ID: h.ProducerID, Epoch: h.ProducerEpoch, Sequence: h.BaseSequence,
			Known: true, Expected: expected, Current: e.epoch, text: fmt.Sprintf(format, args...),
		}
	}
	switch {
	case h.ProducerEpoch < e.epoch:
		return nil, refuse(ErrFenced, 0, "epoch %d of this producer has written: this older instance may not any more; stop it, or take a new producer id", e.epoch)
	case h.ProducerEpoch > e.epoch && h.BaseSequence != 0:
		return nil, refuse(ErrOutOfOrder, 0, "nothing of this epoch is stored here, so its first batch has sequence 0: send that one first")
	case h.ProducerEpoch > e.epoch:
		return nil, nil //nolint:nilnil // new
	}
	first, end := h.BaseSequence, h.BaseSequence+record.Sequence(h.LastOffsetDelta)+1
	expected := e.last().next()
	switch {
	case first == expected:
		return nil, nil //nolint:nilnil // new
	case first > expected:
		return nil, refuse(ErrOutOfOrder, expected, "the next batch here has sequence %d: what comes before this one was not stored; send that first", expected)
	case end <= e.batches[0].Sequence:
		return nil, refuse(ErrStateLost, expected, "it is older than the %d batches that are remembered, from sequence %d on: whether it was stored is not known; "+
			"report it so, and take a new producer id for what comes next, but never for this one", e.n, e.batches[0].Sequence)
	}
	for i := range e.batches[:e.n] {
		if b := &e.batches[i]; b.Sequence == first && b.next() == end {
			return b, nil
		}
	}
	return nil, refuse(ErrOverlap, expected, "the %d sequences from it on are stored in part, in batches with other bounds: a batch is sent again as it was, with the same records", end-first)
}

// checkUnknown judges a batch of a producer that the table does not know.
func (t *Table) checkUnknown(h *record.Header, nowMs int64) error {
	refuse := func(kind error, text string) error {
		return &RefusedError{Kind: kind, ID: h.ProducerID, Epoch: h.ProducerEpoch, Sequence: h.BaseSequence, Limit: t.cfg.Max, text: text}
	}
	if h.BaseSequence != 0 {
		return refuse(ErrStateLost, "this partition remembers nothing of this producer, so whether the batch was stored is not known: "+
			"report it so, and take a new producer id for what comes next, but never for this one")
	}
	if len(t.byID) >= t.cfg.Max && nowMs-t.oldest.last().AppendTimeMs <= min(maxIdleMs, t.cfg.ExpiryMs) {
		return refuse(ErrTooMany, fmt.Sprintf("this partition remembers %d idempotent producers, as many as it may, and all of them wrote lately: "+
			"nothing was stored; use fewer producers for longer, or raise producers.max_per_partition", len(t.byID)))
	}
	return nil
}

func (t *Table) expired(e *entry, nowMs int64) bool {
	return nowMs-e.last().AppendTimeMs > t.cfg.ExpiryMs
}

// Expire forgets the producers that have not written for too long. It is of no consequence but for memory: [Table.Check] does
// not count on them either.
func (t *Table) Expire(nowMs int64) {
	for t.oldest != nil && t.expired(t.oldest, nowMs) {
		t.remove(t.oldest)
	}
}

// Apply takes over a batch that is stored, whatever Check says of it: the log is what counts. Batches without a producer id,
// and markers, are nothing to it.
func (t *Table) Apply(h *record.Header) {
	if h.ProducerID == 0 || h.BaseSequence < 0 {
		return
	}
	b := Batch{Sequence: h.BaseSequence, Base: h.BaseOffset, Delta: h.LastOffsetDelta, AppendTimeMs: h.AppendTimeMs}
	e := t.byID[h.ProducerID]
	if e != nil && t.expired(e, h.AppendTimeMs) {
		t.remove(e) // whether Expire has come by or not
		e = nil
	}
	switch {
	case e == nil:
		e = &entry{id: h.ProducerID, epoch: h.ProducerEpoch}
		t.byID[e.id] = e
	case h.ProducerEpoch < e.epoch:
		return
	default:
		t.unlink(e)
		if h.ProducerEpoch > e.epoch || b.Sequence != e.last().next() {
			e.epoch, e.n = h.ProducerEpoch, 0
		}
	}
	if e.n == Window {
		copy(e.batches[:], e.batches[1:])
		e.n--
	}
	e.batches[e.n] = b
	e.n++
	t.append(e)
	for len(t.byID) > t.cfg.Max {
		t.remove(t.oldest)
	}
}

// append makes e the newest.
func (t *Table) append(e *entry) {
	e.older, e.newer = t.newest, nil
	if t.newest != nil {
		t.newest.newer = e
	} else {
		t.oldest = e
	}
	t.newest = e
}

// unlink takes e out of the list.
func (t *Table) unlink(e *entry) {
	if e.older != nil {
		e.older.newer = e.newer
	} else {
		t.oldest = e.newer
	}
	if e.newer != nil {
		e.newer.older = e.older
	} else {
		t.newest = e.older
	}
}

func (t *Table) remove(e *entry) {
	t.unlink(e)
	delete(t.byID, e.id)
}
