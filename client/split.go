package client

import (
	"errors"
	"time"

	"github.com/runnelmq/runnel/internal/record"
)

// split cuts a batch that was refused as too large into parts that are smaller
// in any case: at most as large as the broker said it takes, and at most half.
// A record that is alone in its part is refused for good when it comes back.
// The caller holds the partition's mu.
func (p *Producer) split(b *batch) (parts []*batch, failed *settled) {
	limit := b.sized / 2
	if e, ok := errors.AsType[*Error](b.lastErr); ok {
		if n, ok := e.Int("maxBytes"); ok && n > 0 && n < int64(limit) {
			limit = int(n)
		}
	}
	if old := b.part.topic.largest.Load(); old == 0 || int64(limit) < old {
		b.part.topic.largest.Store(int64(max(limit, minBatchBytes)))
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
			if part.builder.Count() > 0 && part.builder.Size()+roomFor(storedSize(&r)) > limit {
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
		part: b.part, stage: stageQueued, builder: p.builders.get(), entries: p.entries.get(),
		gen: p.join(b.gen), opened: b.opened, due: b.due, lastErr: b.lastErr, seq: notNumbered, retries: b.retries,
	}
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
