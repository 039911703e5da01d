package rpc

import (
	"fmt"
	"math"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
)

// A builder makes batches of one kind of limits.
type builder struct {
	*record.Builder
	limits record.Limits
}

// builder returns an empty builder; give it back with builders.Put.
func (s *LogService) builder(lim record.Limits) *builder {
	if b, ok := s.builders.Get().(*builder); ok && b.limits == lim {
		b.Reset()
		return b
	}
	return &builder{Builder: record.NewBuilder(s.codec, lim), limits: lim}
}

// store appends part i of the present request. An error means that nothing of
// it was stored, but for partition.ErrCommitUncertain.
func (p *produceSession) store(pt *producePart, i int, t *metadata.Topic, buf []byte) (partition.Appended, error) {
	if p.req.HasBatch {
		batch, err := p.svc.validator.ParseBatch(buf, p.req.BatchStart, p.req.BatchEnd, limits(t))
		if err != nil {
			return partition.Appended{}, err
		}
		return p.commit(pt, t, &batch)
	}
	b := p.svc.builder(limits(t))
	defer p.svc.builders.Put(b)
	batch, err := p.build(b, i)
	if err != nil {
		return partition.Appended{}, err
	}
	return p.commit(pt, t, &batch)
}

// build makes the batch of part i from the records of the request.
func (p *produceSession) build(b *builder, i int) (record.Batch, error) {
	pl := &p.planner
	now := time.Now().UnixMilli()
	for _, n := range pl.order[pl.first[i]:pl.first[i+1]] {
		r := p.records.ReadAt(pl.refs[n].start, pl.refs[n].end)
		ms := now
		if r.HasTimestamp {
			var ok bool
			if ms, ok = r.TimestampMs(); !ok || ms < firstTimestampMs || ms > lastTimestampMs {
				return record.Batch{}, timestampError(1000*min(max(r.Seconds, math.MinInt64/1000), math.MaxInt64/1000), now, "record %d: its timestamp, %d seconds and %d nanoseconds, is no time: want nanos from 0 to 999999999, and a time in the years 0001 to 9999", n, r.Seconds, r.Nanos)
			}
		}
		if err := b.Add(r.Key, r.Value, r.Headers, ms); err != nil {
			return record.Batch{}, pl.recordIndex(err, i)
		}
	}
	batch, err := b.Finish(record.CompressionNone, 0)
	if s := &p.req.Producer; err == nil && p.req.HasProducer {
		batch.ProducerID, batch.ProducerEpoch, batch.BaseSequence = record.ProducerID(s.ID), record.ProducerEpoch(s.Epoch), record.Sequence(s.BaseSequence)
	}
	return batch, err
}

// commit checks what depends on the request, and appends.
func (p *produceSession) commit(pt *producePart, t *metadata.Topic, batch *record.Batch) (partition.Appended, error) {
	if c := pt.call; c != nil && time.Now().After(c.deadline) {
		return partition.Appended{}, fmt.Errorf("%s/%d: %w: nothing was stored in %s, try again", t.Name, pt.key.number, errNotInTime, c.timeout)
	}
	var epoch *record.Epoch
	if p.req.Routing == int32(runnelv1.Routing_ROUTING_DIRECT) && p.req.HasLeaderEpoch {
		e := record.Epoch(p.req.LeaderEpoch)
		epoch = &e
	}
	return p.svc.appendBatch(pt.part, t, batch, epoch, p.req.Acks)
}

// appendBatch checks what depends on the topic and the clock, and appends.
func (s *LogService) appendBatch(part *partition.Partition, t *metadata.Topic, batch *record.Batch, epoch *record.Epoch, acks int32) (partition.Appended, error) {
	if batch.Transactional {
		return partition.Appended{}, &refusal.Error{Kind: errUnsupported, Text: "transactional is true: this server has no transactions; send the batch without"}
	}
	if err := checkTimes(t, batch, time.Now().UnixMilli()); err != nil {
		if got, ok := part.Stored(batch); ok {
			return got, nil // its time was right when it came first
		}
		return partition.Appended{}, err
	}
	store := part.Append
	if answeredAtOnce(acks) {
		store = part.AppendAtOnce
	}
	got, err := store(batch, epoch)
	if err != nil || got.Duplicate {
		return got, err
	}
	s.metrics.producedRecords.Add(float64(batch.RecordCount))
	s.metrics.producedBytes.Add(float64(batch.FrameSize()))
	return got, nil
}

// The times a google.protobuf.Timestamp can have, in Unix milliseconds: those of
// the years 0001 to 9999. A record outside them could be stored, and then not be
// printed or turned into JSON by any client.
const (
	firstTimestampMs = -62_135_596_800_000
	lastTimestampMs  = 253_402_300_799_999
)

// checkTimes holds the records' times to what a time can be, and to the topic's
// bounds.
func checkTimes(t *metadata.Topic, b *record.Batch, nowMs int64) error {
	for _, ms := range []int64{b.MinTimestampMs, b.MaxTimestampMs} {
		if ms < firstTimestampMs || ms > lastTimestampMs {
			return timestampError(ms, nowMs, "a record's time, %d ms, is outside the years 0001 to 9999: check that it is milliseconds since 1970", ms)
		}
	}
	if stampedByLeader(t) {
		return nil
	}
	if limit := t.Config.TimestampBefore; limit >= 0 {
		if oldest := nowMs - limit.Milliseconds(); b.MinTimestampMs < oldest {
			return timestampError(b.MinTimestampMs, nowMs, "a record's time, %d ms, lies before %d, which is as far back as message.timestamp.before.max.ms (%d) allows", b.MinTimestampMs, oldest, limit.Milliseconds())
		}
	}
	limit := t.Config.TimestampAfter
	if newest := nowMs + limit.Milliseconds(); limit >= 0 && b.MaxTimestampMs > newest {
		return timestampError(b.MaxTimestampMs, nowMs, "a record's time, %d ms, lies after %d, which is as far ahead as message.timestamp.after.max.ms (%d) allows: check the clock, and that it is milliseconds", b.MaxTimestampMs, newest, limit.Milliseconds())
	}
	return nil
}
