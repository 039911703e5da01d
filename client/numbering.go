package client

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/runnelmq/runnel/internal/record"
)

// notNumbered is the sequence of a batch that has none.
const notNumbered = -1

// A numbering says which sequences the batches of a partition get. A batch gets
// its number when it is first sent and keeps it as long as it may be stored
// under it: that is what makes a retry harmless. The partition's mu guards it.
type numbering struct {
	// epoch is what is added to the epoch that the producer was given. With the
	// next one numbers begin anew, and what was sent under an older one and may
	// still be on its way is refused by the leader.
	epoch int64
	next  int64
	// gap is true when a batch that had a number is gone. Nothing with a higher
	// number can be stored then. gapAt is the lowest such number, and doubt is
	// true when the batch may be stored all the same.
	gap   bool
	gapAt int64
	doubt bool
	// lost is true when the leader does not know the producer, or expects
	// another number than the next one.
	lost bool
}

// assign gives b its number.
func (n *numbering) assign(b *batch) {
	if b.seq != notNumbered {
		return
	}
	b.seq, b.epoch = n.next, n.epoch
	n.next += int64(len(b.entries))
}

// gone takes note that b will not be sent any more without having been
// acknowledged.
func (n *numbering) gone(b *batch, doubt bool) {
	if b.seq == notNumbered || b.epoch != n.epoch {
		return
	}
	if !n.gap || b.seq < n.gapAt {
		n.gapAt = b.seq
	}
	n.gap, n.doubt = true, n.doubt || doubt
}

// anew begins numbers again after a gap. doubt says whether anything with a
// number of the present epoch may be stored.
func (n *numbering) anew(doubt bool) {
	if n.lost || n.doubt || doubt {
		n.epoch++
		n.next = 0
	} else {
		n.next = n.gapAt
	}
	n.gap, n.doubt, n.lost = false, false, false
}

// judgeNumbered gives a batch with a number, which was in flight, its verdict.
// One whose outcome is in doubt is sent again with the same number: if it is
// stored, the leader says so, and stores nothing.
func (pt *partition) judgeNumbered(b *batch, v verdict, out []settled) []settled {
	doubt := b.inDoubt || v.doubt()
	switch {
	case b.stage == stageSettled: // its time was up before
		if v.err != nil {
			pt.num.gone(b, doubt)
		}
		b.drop(&pt.p.builders)
	case v.err == nil:
		out = pt.settleLocked(b, v, out)
	case v.again || v.lost || v.uncertain || v.outOfOrder:
		// Out of order means most often that an earlier one has to be sent first.
		// If there is none, renumberLocked sees to it.
		b.inDoubt = doubt
		pt.refuseLocked(b, v)
	case v.split && b.mayBeCut(v.err) && !b.inDoubt:
		pt.refuseLocked(b, v)
	default:
		if b.inDoubt {
			v.err = unknown(v.err)
		}
		pt.num.gone(b, b.inDoubt)
		out = pt.settleLocked(b, v, out)
	}
	return out
}

// renumberLocked mends a gap in the numbers. Nothing is in flight. What may be
// stored is never sent with another number: its outcome is unknown.
func (pt *partition) renumberLocked(out []settled) []settled {
	slices.SortStableFunc(pt.refused, func(a, b *batch) int { return cmp.Compare(a.seq, b.seq) })
	if len(pt.refused) > 0 && !pt.num.gap && pt.refused[0].misplaced {
		pt.num.lost = true
	}
	if !pt.num.gap && !pt.num.lost {
		return out
	}
	var doubt bool
	renumber := func(list []*batch) (kept []*batch) {
		for _, b := range list {
			if b.inDoubt && b.stage != stageSettled {
				doubt = true
				why := fmt.Errorf("it cannot be found out any more, for an earlier record is lost: %w", b.lastErr)
				out = pt.settleLocked(b, verdict{err: unknown(why), base: -1}, out)
				continue
			}
			b.seq = notNumbered
			kept = append(kept, b)
		}
		return kept
	}
	pt.refused, pt.queue = renumber(pt.refused), renumber(pt.queue)
	pt.num.anew(doubt)
	return out
}

// misplaced reports whether a leader refused a batch for its number: it is not
// the next one of this producer there, or the leader knows no such producer.
func misplaced(err error) bool {
	return errors.Is(err, ErrOutOfOrderSequence) || errors.Is(err, ErrProducerStateLost) || errors.Is(err, ErrFencedProducer)
}

// stamp makes the bytes of b, which was encoded before, say its number.
// Nothing is written where a stream that is gone may still read.
func (b *batch) stamp(id *identity) {
	if b.seq == notNumbered || b.encoded == nil || b.header.BaseSequence == record.Sequence(b.seq) &&
		b.header.ProducerEpoch == record.ProducerEpoch(id.epoch+b.epoch) && b.header.ProducerID == record.ProducerID(id.id) {
		return
	}
	old := b.encoded
	data := old.ReadOnlyData()
	payload := data[len(data)-b.payload:]
	id.number(&b.header, b)
	b.encoded = newBuffer(record.AppendMessage(make([]byte, 0, len(data)+numberSize), b.header, payload))
	old.Free()
}

// numberSize is what a number may take of a batch's bytes.
const numberSize = 30
