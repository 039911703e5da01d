package router

import (
	"math"
	"sync"
	"time"

	"github.com/google/uuid"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// A Source is a partition that another broker leads, as a reader sees it. It
// stays the same when the leadership moves: then it goes on after what the
// reader said it has written to its client.
type Source struct {
	feed  *Feed
	topic uuid.UUID
	name  string
	n     int32

	// mu guards the fields below
	mu sync.Mutex

	// want is how the reader asked to begin; what counts until resolved.
	want     *runnelv1.FetchPartition
	resolved bool
	// next and epoch are where the reader stands, once resolved: the offset
	// after what it wrote, and the epoch of that.
	next     record.Offset
	epoch    record.Epoch
	hasEpoch bool
	stop     record.Offset // math.MaxInt64: none

	link      *feedLink // nil: unassigned
	tag       uint64    // of the present subscription
	at        view
	chunks    []chunk
	available record.Offset // end of what the chunks cover
	state     partition.State

	err       error // final
	here      bool  // this broker leads
	ended     bool  // the leader said so, at available
	paused    bool
	suspended bool
	closed    bool

	tried   view
	hint    view
	cause   error
	backoff time.Duration
	retryAt time.Time
	since   time.Time // unassigned since

	// news is true when Poll has something to say that the reader has not heard.
	news bool
	wake func()
	from record.Offset // what wake waits for
}

// A chunk is one response with batches.
type chunk struct {
	buf      *[]byte
	pos, end int
	size     int64 // what it counts for with the leader
}

func (r *Router) release(c chunk) {
	r.ahead.Add(-c.size)
	r.opts.Pool.Put(c.buf)
}

// State returns the partition as the leader last told.
func (s *Source) State() partition.State {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.state
}

// Available returns the end of what can be read without waiting.
func (s *Source) Available() record.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.available
}

// A Poll is what is new of a source.
type Poll struct {
	// Resolved is true when Start is known: where the reading begins.
	Resolved bool
	Start    record.Offset
	// Next is at least what was asked with: up to it there is nothing to read.
	Next record.Offset
	// End is where the reading ends; math.MaxInt64: not.
	End record.Offset
	// Here is true when this broker leads the partition now.
	Here bool
	// Err is why the partition can't be read any more.
	Err error
}

// Poll returns what is new for a reader that goes on at next, and lets go of
// what lies before.
func (s *Source) Poll(next record.Offset) Poll {
	s.mu.Lock()
	s.news = false
	freed := s.skipLocked(next)
	p := Poll{Resolved: s.resolved, Start: s.next, Next: next, End: s.stop, Here: s.here}
	if s.resolved && len(s.chunks) == 0 {
		p.Next = max(next, s.available)
		p.Err = s.err
		if s.ended {
			p.End = min(p.End, s.available)
		}
	}
	if !s.resolved {
		p.Err = s.err
	}
	link := s.link
	s.mu.Unlock()
	link.giveCredit(freed)
	return p
}

// skipLocked drops what ends at next or before, and returns what it counted for.
func (s *Source) skipLocked(next record.Offset) (freed int64) {
	for len(s.chunks) > 0 {
		c := &s.chunks[0]
		for c.pos < c.end {
			frame, verdict := record.ParseFrame((*c.buf)[c.pos:c.end], int64(c.end-c.pos), record.MaxFrameSize)
			if verdict != record.OK || frame.Header.NextOffset() > next {
				return freed
			}
			c.pos += frame.Size
		}
		freed += c.size
		s.feed.r.release(*c)
		s.chunks[0] = chunk{}
		s.chunks = s.chunks[1:]
	}
	return freed
}

// Read copies batches that hold offsets of [from, end) into dst, whole ones, as
// a Partition does. It may be repeated, until Poll was called with more.
func (s *Source) Read(dst []byte, from, end record.Offset) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, c := range s.chunks {
		for pos := c.pos; pos < c.end; {
			rest := (*c.buf)[pos:c.end]
			frame, verdict := record.ParseFrame(rest, int64(len(rest)), record.MaxFrameSize)
			switch {
			case verdict != record.OK:
				return n, &partition.CorruptError{Topic: s.name, Partition: s.n, Path: "what its leader sent", Position: -1, From: from, Next: -1}
			case frame.Header.BaseOffset >= end:
				return n, nil
			case frame.Header.NextOffset() <= from:
			case n+frame.Size > len(dst):
				if n == 0 {
					return 0, &commitlog.ShortBufferError{Need: frame.Size}
				}
				return n, nil
			default:
				n += copy(dst[n:], rest[:frame.Size])
			}
			pos += frame.Size
		}
	}
	return n, nil
}

// WhenReadable calls fn once when there is something to read at from, or
// something else that Poll has to say; at once when there is.
func (s *Source) WhenReadable(from record.Offset, fn func()) (cancel func()) {
	s.mu.Lock()
	if s.news || s.available > from && s.resolved {
		s.mu.Unlock()
		fn()
		return func() {}
	}
	s.wake, s.from = fn, from
	s.mu.Unlock()
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()

		s.wake = nil
	}
}

// wakeLocked returns what to call when there is news for who waits.
func (s *Source) wakeLocked(news bool) func() {
	s.news = s.news || news
	if s.wake == nil || !s.news && s.available <= s.from {
		return func() {}
	}
	fn := s.wake
	s.wake = nil
	return fn
}

// Advance tells what the reader has written to its client: all before next,
// the last of it in epoch.
func (s *Source) Advance(next record.Offset, epoch record.Epoch) {
	s.mu.Lock()
	s.next, s.epoch, s.hasEpoch = next, epoch, true
	freed := s.skipLocked(next)
	link := s.link
	s.mu.Unlock()
	link.giveCredit(freed)
}

func (s *Source) resolveLocked(next record.Offset) {
	if s.resolved {
		return
	}
	s.resolved = true
	s.next, s.available, s.stop = next, next, math.MaxInt64
	if s.want.StopOffset != nil {
		s.stop = record.Offset(s.want.GetStopOffset())
	}
	if s.want.LastEpoch != nil {
		s.epoch, s.hasEpoch = record.Epoch(s.want.GetLastEpoch()), true
	}
}

// request is how to subscribe now.
func (s *Source) requestLocked(v view) *runnelv1.FetchPartition {
	want := &runnelv1.FetchPartition{
		Topic: s.name, TopicId: new(s.topic.String()), Partition: &s.n, Tag: s.tag, LeaderEpoch: new(int64(v.epoch)),
	}
	if !s.resolved {
		want.Start, want.StopOffset, want.LastEpoch = s.want.GetStart(), s.want.StopOffset, s.want.LastEpoch
		return want
	}
	want.Start = &runnelv1.FetchPartition_Offset{Offset: int64(s.next)}
	if s.stop != math.MaxInt64 {
		want.StopOffset = new(int64(s.stop))
	}
	if s.hasEpoch {
		want.LastEpoch = new(int64(s.epoch))
	}
	return want
}

// Retry says that this broker does not lead after all, or not yet.
func (s *Source) Retry(cause error) {
	s.mu.Lock()
	s.here = false
	s.backoff = nextBackoff(s.backoff)
	s.cause, s.retryAt, s.tried = cause, time.Now().Add(s.backoff), view{s.feed.r.self, s.at.epoch}
	if v, err := s.feed.r.leader(s.topic, s.n, s.hint); err == nil {
		s.tried = v
	}
	s.mu.Unlock()
	s.feed.kick()
}

// Pause reads no further and drops what was read ahead, until Resume.
func (s *Source) Pause() { s.hold(func() { s.paused = true }) }

// Resume goes on where the reader stands.
func (s *Source) Resume() {
	s.mu.Lock()
	s.paused = false
	s.mu.Unlock()
	s.feed.kick()
}

func (s *Source) suspend(on bool) {
	if on {
		s.hold(func() { s.suspended = true })
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()

	s.suspended = false
}

// hold stops the subscription. One whose beginning is not known yet goes on
// until it is.
func (s *Source) hold(set func()) {
	s.mu.Lock()
	set()
	if !s.resolved || s.err != nil {
		s.mu.Unlock()
		return
	}
	link := s.link
	freed := s.dropLocked()
	s.mu.Unlock()
	link.settle(freed)
}

// Close ends the source.
func (s *Source) Close() {
	s.mu.Lock()
	s.closed, s.wake = true, nil
	link := s.link
	freed := s.dropLocked()
	s.mu.Unlock()
	link.settle(freed)
	s.feed.forget(s)
}

// dropLocked ends the present subscription, with what came of it and was not
// written to the client.
func (s *Source) dropLocked() (freed int64) {
	s.link.unsubscribe(s, s.tag)
	for _, c := range s.chunks {
		freed += c.size
		s.feed.r.release(c)
	}
	s.chunks, s.link, s.ended = nil, nil, false
	s.available = s.next
	if s.since.IsZero() {
		s.since = time.Now()
	}
	return freed
}

// unassigned says whether s is to be subscribed; else where it is.
func (s *Source) unassigned() (hint view, idle bool, at view) {
	s.mu.Lock()
	defer s.mu.Unlock()

	idle = s.link == nil && s.err == nil && !s.here && !s.closed && (!s.resolved || !s.paused && !s.suspended)
	at = s.at
	if s.link == nil {
		at = view{metadata.NoBroker, math.MaxInt64}
	}
	return s.hint, idle, at
}

func (s *Source) tooEarly(now time.Time, v view, err error) (again time.Time, wait bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.retryAt, now.Before(s.retryAt) && (err != nil && routable(err) || v == s.tried)
}

func (s *Source) lonely() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.since
}

// retry notes that there is nobody to read from, and returns when to look again.
func (s *Source) retry(now time.Time, v view, cause error) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.backoff = nextBackoff(s.backoff)
	s.cause, s.tried, s.retryAt = cause, v, now.Add(s.backoff)
	return s.retryAt
}

// end makes err the last word.
func (s *Source) end(err error) {
	s.mu.Lock()
	s.err = err
	wake := s.wakeLocked(true)
	s.mu.Unlock()
	wake()
}

// arrive says that this broker leads.
func (s *Source) arrive() {
	s.mu.Lock()
	s.here = true
	wake := s.wakeLocked(true)
	s.mu.Unlock()
	wake()
}

// detach ends the subscription with that tag, or whichever there is for 0: its
// leader is to be found anew.
func (s *Source) detach(tag uint64, cause error, hint view) {
	s.mu.Lock()
	if s.link == nil || tag != 0 && tag != s.tag {
		s.mu.Unlock()
		return
	}
	link := s.link
	freed := s.dropLocked()
	s.tried, s.cause = s.at, cause
	if hint.epoch > s.at.epoch && hint.epoch > s.hint.epoch {
		s.hint = hint
	}
	s.backoff = nextBackoff(s.backoff)
	s.retryAt = time.Now().Add(s.backoff)
	s.mu.Unlock()
	link.settle(freed)
	s.feed.kick()
}

// deliver takes a response in. The buffer is the source's when it is true.
func (s *Source) deliver(r *wire.FetchedBatches, buf *[]byte, size int64) (kept bool) {
	if r.Error != nil {
		s.refused(r)
		return false
	}
	s.mu.Lock()
	if s.link == nil || r.Tag != s.tag {
		s.mu.Unlock()
		return false
	}
	first := !s.resolved
	s.resolveLocked(record.Offset(r.NextOffset))
	s.state = partition.State{
		Epoch: record.Epoch(r.LeaderEpoch), LogStart: record.Offset(r.LogStart), HighWatermark: record.Offset(r.HighWatermark),
		LastStable: record.Offset(r.LastStable), LogEnd: record.Offset(r.HighWatermark),
	}
	if first && !s.feed.opts.Follow {
		// Fixed here, for the case that another leader has to go on.
		end := s.state.LastStable
		if s.feed.opts.Uncommitted {
			end = s.state.HighWatermark
		}
		s.stop = min(s.stop, max(end, s.next))
	}
	s.backoff, s.since = 0, time.Time{}
	if start, end, ok := r.Place(); ok && r.Batches > 0 {
		s.chunks = append(s.chunks, chunk{buf: buf, pos: start, end: end, size: size})
		s.feed.r.ahead.Add(size)
		kept = true
	}
	s.available = max(s.available, record.Offset(r.NextOffset))
	s.ended = s.ended || r.End
	wake := s.wakeLocked(first || kept || r.End)
	held := first && (s.paused || s.suspended)
	s.mu.Unlock()
	wake()
	if held {
		s.hold(func() {})
	}
	return kept
}

// refused takes an error of the leader in.
func (s *Source) refused(r *wire.FetchedBatches) {
	err := s.feed.r.remote(r.Error)
	s.mu.Lock()
	current, resolved := s.link != nil && r.Tag == s.tag, s.resolved
	s.mu.Unlock()
	if !current {
		return
	}
	if passing(err, resolved) {
		hint, _ := hintOf(err)
		s.detach(r.Tag, err, hint)
		return
	}
	s.end(err)
}
