package rpc

import (
	"errors"
	"math"
	"time"

	"google.golang.org/grpc/mem"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/wire"
)

// A fetchGrant is memory for the next response.
type fetchGrant struct {
	claim *budgetClaim // waiting; nil: not
	bytes int64        // granted; 0: none
}

// ready returns the channel that receives when the claim is granted.
func (g *fetchGrant) ready() <-chan struct{} {
	if g.claim == nil {
		return nil
	}
	return g.claim.ready
}

// granted notes that the claim was granted.
func (g *fetchGrant) granted(flow *fetchFlow) {
	g.bytes = g.claim.bytes
	g.claim = nil
	flow.took(g.bytes)
}

// dropGrant gives the memory, or the claim to it, back.
func (f *fetcher) dropGrant() {
	if f.grant.claim != nil {
		f.grant.claim.abandon()
		f.grant.claim = nil
	}
	if f.grant.bytes > 0 {
		f.flow.gave(f.grant.bytes)
		f.grant.bytes = 0
	}
}

// allot reports whether memory for a response of s is granted, and asks for it
// when it is not. Large buffers are taken only where they are free; a stream
// waits for a small one, or for what the next record or batch takes.
func (f *fetcher) allot(s *fetchSub) bool {
	need := int64(firstResponse)
	if s.need > 0 {
		need = max(need, int64(wire.SizeFor(s.need)))
	}
	g := &f.grant
	if g.claim != nil && g.claim.bytes >= need {
		select {
		case <-g.claim.ready:
			g.granted(f.flow)
		default:
			return false
		}
	}
	if g.bytes >= need {
		return true
	}
	f.dropGrant()
	if want := int64(wire.SizeFor(f.size.current)); want > need && f.svc.budget.try(want) {
		need = want
	} else if g.claim = f.svc.budget.claim(need); g.claim != nil {
		return false
	}
	g.bytes = need
	f.flow.took(need)
	return true
}

// A fetched is what a turn found to send.
type fetched struct {
	payload mem.BufferSlice
	bytes   int
	records int64
	next    record.Offset // where to go on
	// wrote is the offset after the last record, and epoch that one's.
	wrote record.Offset
	epoch record.Epoch
}

// prepare goes through the ready partitions until the front one has records to
// send, and credit for them, and reports whether there is such a one. What the
// others have to say is free: it is queued at once.
func (f *fetcher) prepare() bool {
	for s := f.board.ready.front; s != nil; s = f.board.ready.front {
		if s.away != nil && !f.absorb(s) {
			continue
		}
		st := s.part.State()
		if s.earliest && s.next < st.LogStart {
			s.next = st.LogStart // retention went on before anything was sent
		}
		switch {
		case st.Err != nil && f.goesAway(st.Err):
			f.sendAway(s)
		case st.Err != nil:
			f.fail(s, st.Err)
		case s.away == nil && (s.next < st.LogStart || s.next > st.LogEnd):
			f.fail(s, s.checkOffset())
		case s.next >= s.stop:
			f.end(s, st)
		case s.next >= f.readable(s, st):
			if !s.told {
				f.note(s) // tells a new reader where it stands
			}
			f.board.idle(s, f.beyond(s, st))
		case !f.credit.ok():
			f.board.owe(s)
		default:
			return true
		}
	}
	return false
}

// movingPause is the time between looks at a leader that is about to be
// replaced because of damage in its log.
const movingPause = 50 * time.Millisecond

// serve lets s, the front of the queue, send one response. Its errors are those
// of the stream; a partition that fails says so and leaves.
func (f *fetcher) serve(s *fetchSub, now time.Time) error {
	st := s.part.State()
	limit := min(f.readable(s, st), s.stop)
	got, err := f.fill(s, limit)
	if short, ok := errors.AsType[*commitlog.ShortBufferError](err); ok {
		s.need = short.Need // and again, with as much
		return nil
	}
	if err != nil {
		switch {
		case !f.goesAway(err):
			f.fail(s, err)
		case errors.Is(err, partition.ErrMoving):
			// It still leads, and will not for long.
			f.board.hold(s, now.Add(movingPause), math.MaxInt64)
		} // else the next look at its state tells
		return nil
	}
	if got.bytes == 0 && got.next > s.next && got.next < limit {
		// A hole, and more behind it: nothing to tell, nor to wait for.
		s.next, s.need, s.earliest = got.next, 0, false
		f.board.queue(s)
		return nil
	}
	if s.readySince.IsZero() {
		s.readySince = now
	}
	until := s.readySince.Add(f.opts.maxWait)
	if got.bytes < f.opts.minResponse && got.next < s.stop && now.Before(until) {
		got.payload.Free()
		f.board.hold(s, until, max(limit, f.beyond(s, st)))
		return nil
	}
	moved := got.next > s.next
	s.next, s.need, s.earliest, s.readySince = max(s.next, got.next), 0, false, time.Time{}
	if !moved {
		// The log has nothing there after all: wait for news.
		f.board.idle(s, f.beyond(s, st))
		return nil
	}
	if got.bytes > 0 {
		f.wrote(s, got)
	}
	if s.away == nil && s.next >= f.visible(s.part.State()) {
		f.board.idle(s, f.beyond(s, st))
	} else {
		f.board.queue(s)
	}
	r := f.about(s, st)
	r.Payload = got.payload
	if s.next >= s.stop {
		r.End = true
		f.leave(s)
	}
	return f.deliver(s, &r, got, now)
}

// deliver sends a response with records, and keeps the books.
func (f *fetcher) deliver(s *fetchSub, r *wire.FetchResponse, got fetched, now time.Time) error {
	size, err := f.send(r, now)
	if err != nil {
		return err
	}
	s.lastSent, s.lastSize = now, size
	if got.bytes == 0 {
		return nil // progress: it is free
	}
	f.credit.spend(size)
	f.size.sent(size)
	if !f.forwarded {
		f.svc.metrics.fetchedRecords.Add(float64(got.records))
	}
	if f.opts.maxRecords > 0 {
		if f.left -= got.records; f.left <= 0 {
			f.full = true
		}
	}
	return nil
}

// about is a response that tells where s is.
func (f *fetcher) about(s *fetchSub, st partition.State) wire.FetchResponse {
	s.told = true
	s.reported = reported{next: s.next, highWatermark: st.HighWatermark, logStart: st.LogStart}
	return wire.FetchResponse{
		Tag: s.tag, Topic: s.topic, TopicID: s.topicID, Partition: s.key.partition, NextOffset: int64(s.next),
		HighWatermark: int64(st.HighWatermark), LogStart: int64(st.LogStart), LastStable: int64(st.LastStable),
		LeaderEpoch: int64(st.Epoch),
	}
}

// end tells that s is through, which frees it.
func (f *fetcher) end(s *fetchSub, st partition.State) {
	r := f.about(s, st)
	r.End = true
	f.notes = append(f.notes, r)
	f.leave(s)
}

// fail tells that s cannot go on; the other partitions do.
func (f *fetcher) fail(s *fetchSub, err error) {
	r := f.about(s, s.part.State())
	r.Error = f.svc.item(err)
	f.notes = append(f.notes, r)
	f.leave(s)
}

// fill reads what comes next of s into the granted memory.
func (f *fetcher) fill(s *fetchSub, limit record.Offset) (fetched, error) {
	if f.opts.format == runnelv1.FetchFormat_FETCH_FORMAT_BATCHES && s.cursor == nil {
		got, ok, err := f.splice(s, limit)
		if ok || err != nil {
			return got, err
		}
	}
	return f.decode(s, limit)
}

// buffer takes the granted memory.
func (f *fetcher) buffer() *[]byte {
	b := f.svc.opts.Pool.Get(int(f.grant.bytes))
	f.grant.bytes = 0
	return b
}

// unused gives back a buffer that holds nothing to send.
func (f *fetcher) unused(b *[]byte) {
	f.flow.gave(int64(cap(*b)))
	f.svc.opts.Pool.Put(b)
}

// regrant takes a buffer back as memory that is granted.
func (f *fetcher) regrant(b *[]byte) {
	f.grant.bytes = int64(cap(*b))
	f.svc.opts.Pool.Put(b)
}

// fit moves the first n bytes of b to a smaller buffer when they waste most of
// it: what waits for a slow client is as large as its content.
func (f *fetcher) fit(b *[]byte, n int) *[]byte {
	small := wire.SizeFor(n)
	if small > cap(*b)/4 || !f.svc.budget.try(int64(small)) {
		*b = (*b)[:n]
		return b
	}
	f.flow.took(int64(small))
	out := f.svc.opts.Pool.Get(n)
	copy(*out, (*b)[:n])
	f.unused(b)
	return out
}

// outgoing makes a paid buffer one for the transport.
func (f *fetcher) outgoing(b *[]byte) mem.Buffer {
	p := payloads{f.flow}
	p.sending(b)
	return mem.NewBuffer(b, p)
}

// splice takes stored batches as they are. It is not ok when the first batch is
// one that the client does not take as it is.
func (f *fetcher) splice(s *fetchSub, limit record.Offset) (got fetched, ok bool, err error) {
	buf := f.buffer()
	size := max(f.size.current, s.need)
	n, err := s.part.Read((*buf)[:min(size, cap(*buf))], s.next, limit)
	if err != nil {
		f.unused(buf)
		return fetched{}, false, err
	}
	parts, got, err := f.walk(s, (*buf)[:n])
	switch {
	case err != nil && got.next == s.next:
		f.unused(buf)
		return fetched{}, false, err // nothing before the damage
	case len(parts) == 0 && n > 0 && got.next == s.next:
		f.regrant(buf)
		return fetched{}, false, nil
	case len(parts) == 0:
		f.unused(buf)
		return got, true, nil
	}
	buf = f.fit(buf, n)
	whole := f.outgoing(buf)
	for _, p := range parts {
		got.payload = append(got.payload, whole.Slice(p.from, p.to))
		got.bytes += p.to - p.from
	}
	whole.Free()
	return got, true, nil
}

// A span is a piece of a buffer.
type span struct {
	from, to int
}

// walk finds the pieces of b, which holds frames, that s is to get: all but
// transaction markers and what compaction has emptied, up to a batch that the
// client does not take as it is.
func (f *fetcher) walk(s *fetchSub, b []byte) (parts []span, got fetched, err error) {
	got.next = s.next
	for pos := 0; pos < len(b); {
		frame, verdict := record.ParseFrame(b[pos:], int64(len(b)-pos), record.MaxFrameSize)
		if verdict != record.OK {
			return parts, got, corruptLog(s, got.next, got.next, verdict.String())
		}
		h := &frame.Header
		from := pos
		pos += frame.Size
		switch {
		case h.NextOffset() <= got.next:
			continue
		case h.Control, h.RecordCount == 0:
			got.next = h.NextOffset()
			continue
		case !f.opts.accepts(h.Compression), f.opts.maxRecords > 0 && !countable(h, got.next, s.stop):
			return parts, got, nil
		case s.lastSent.IsZero() && len(parts) == 0:
			// A reader verifies what it gets, and may have come back to where it
			// found damage: it is to hear whether that is in the log.
			if err := record.VerifyPayload(*h, frame.Payload(b[from:])); err != nil {
				return parts, got, corruptLog(s, max(h.BaseOffset, got.next), h.NextOffset(), err.Error())
			}
		}
		got.records += countFrom(h, got.next, s.stop)
		got.next = h.NextOffset()
		got.wrote, got.epoch = got.next, h.LeaderEpoch
		if last := len(parts) - 1; last >= 0 && parts[last].to == from {
			parts[last].to = pos
		} else {
			parts = append(parts, span{from, pos})
		}
		if f.opts.maxRecords > 0 && got.records >= f.left {
			return parts, got, nil
		}
	}
	return parts, got, nil
}

// countable says whether countFrom is exact: not for a part of a batch with
// holes.
func countable(h *record.Header, next, stop record.Offset) bool {
	return uint64(h.RecordCount) == uint64(h.LastOffsetDelta)+1 || (next <= h.BaseOffset && h.NextOffset() <= stop)
}

// countFrom is how many records of a batch a reader takes that begins at next
// and stops at stop, or more: see countable.
func countFrom(h *record.Header, next, stop record.Offset) int64 {
	wanted := min(h.NextOffset(), stop) - max(h.BaseOffset, next)
	return max(min(int64(h.RecordCount), int64(wanted)), 0)
}

// corruptLog says that damage was found after the log was read: in the offsets
// from from up to next.
func corruptLog(s *fetchSub, from, next record.Offset, what string) error {
	damage := &refusal.Error{
		Kind: partition.ErrLogCorrupt,
		Text: s.topic + "/" + decimal(s.key.partition) + ": damaged data in the log at offset " + decimal(s.next) + ": " + what,
		Facts: map[string]string{
			"topic": s.topic, "partition": decimal(s.key.partition), "nextOffset": decimal(next),
		},
	}
	if p, ok := s.part.(*partition.Partition); ok { // what another broker leads is not in this log
		return p.Damaged(from, next, what, damage)
	}
	return damage
}
