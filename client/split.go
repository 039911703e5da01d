package client

import (
	"errors"
	"time"

	"github.com/runnelmq/runnel/internal/record"
)

// maxCuts bounds how often a batch is sent in smaller and smaller parts to find
// its bad records. It is enough for several among many; where all are bad, the
// rest fails together.
const maxCuts = 64

// mayBeCut reports whether what is wrong with b may be wrong with a part of it.
func (b *batch) mayBeCut(err error) bool {
	return len(b.entries) > 1 && (errors.Is(err, ErrRecordTooLarge) || b.cuts == nil || *b.cuts > 0)
}

// split cuts a batch that was refused into parts that are smaller in any case.
// One that was too large: at most as large as the broker said it takes, and at
// most half. One with a bad record in it: into halves. A record that is alone in
// its part is refused for good when it comes back. The caller holds the
// partition's mu.
func (p *Producer) split(b *batch) (parts []*batch, failed *settled) {
	limit, most := b.sized/2, len(b.entries)
	if errors.Is(b.lastErr, ErrRecordTooLarge) {
		limit = b.learn(limit)
	} else {
		limit, most = b.sized, (most+1)/2
		if b.cuts == nil {
			b.cuts = new(maxCuts)
		}
		*b.cuts--
	}
	it := p.reopen(b)
	costLeft := b.cost
	var part *batch
	for i := 0; it.Next(); i++ {
		r := it.Record()
		for {
			if part == nil {
				part = b.sibling(p)
				if b.seq != notNumbered {
					part.seq, part.epoch = b.seq+int64(i), b.epoch
				}
				parts = append(parts, part)
			}
			if n := part.builder.Count(); n == most || n > 0 && part.builder.Size()+roomFor(storedSize(&r)) > limit {
				part = nil
				continue
			}
			if err := part.builder.Add(r.Key, r.Value, headersOf(&r), r.TimestampMs); err != nil {
				return nil, p.failWhole(b, err)
			}
			break
		}
		cost := b.cost / int64(len(b.entries))
		part.entries = append(part.entries, b.entries[i])
		part.cost += cost
		costLeft -= cost
	}
	if it.Err() != nil {
		return nil, p.failWhole(b, it.Err())
	}
	part.cost += costLeft
	// The parts stand for b from here on.
	s, _ := b.settle(nil)
	s.entries, s.cost = nil, 0
	b.drop(&p.builders)
	return parts, &s
}

// learn returns how large the parts of a batch may be that was too large, at most
// limit, and remembers it for later ones.
func (b *batch) learn(limit int) int {
	if e, ok := errors.AsType[*Error](b.lastErr); ok {
		if n, ok := e.Int("maxBytes"); ok && n > 0 && n < int64(limit) {
			limit = int(n)
		}
	}
	if old := b.part.topic.largest.Load(); old == 0 || int64(limit) < old {
		b.part.topic.largest.Store(int64(max(limit, minBatchBytes)))
	}
	return limit
}

// reopen walks over the records of a batch that was encoded.
func (p *Producer) reopen(b *batch) *record.Iterator {
	data := b.encoded.ReadOnlyData()
	it := record.NewIterator(p.builders.codec)
	it.Reset(b.header, data[len(data)-b.payload:])
	return it
}

func (p *Producer) failWhole(b *batch, err error) *settled {
	b.part.num.gone(b, false)
	s, _ := b.settle(recordError(err))
	b.drop(&p.builders)
	return &s
}

// sibling returns an empty batch in the place and with the deadline of b.
func (b *batch) sibling(p *Producer) *batch {
	s := &batch{
		part: b.part, stage: stageQueued, entries: p.entries.get(),
		gen: p.join(b.gen), opened: b.opened, due: b.due, lastErr: b.lastErr, seq: notNumbered, retries: b.retries, cuts: b.cuts,
	}
	s.builder, s.reserved = p.builders.get(0)
	s.complete(&p.builders) // it is filled at once
	s.expiry = time.AfterFunc(time.Until(b.due), func() { b.part.expire(s) })
	return s
}

func headersOf(r *record.Record) []record.HeaderKV {
	if !r.HasHeaders() {
		return nil
	}
	var hs []record.HeaderKV
	for h := r.Headers(); h.Next(); {
		hs = append(hs, record.HeaderKV{Key: string(h.Key()), Value: h.Value()})
	}
	return hs
}
