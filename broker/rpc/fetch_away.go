package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// leastAhead is how many bytes each leader may send ahead of a reader, at least.
const leastAhead = 512 << 10

// A feedHold says why nothing is read ahead at present.
type feedHold struct {
	// brokeSince is since when the client has had no credit for what is there;
	// zero: it has.
	brokeSince time.Time
	broke      bool // and for so long that nothing is read ahead
	suspended  bool
}

// holdFeed stops reading ahead for a client that takes nothing, and goes on when
// it does.
func (f *fetcher) holdFeed(now time.Time) {
	h := &f.feedHold
	if f.board.broke.front == nil || f.credit.ok() {
		h.brokeSince, h.broke = time.Time{}, false
	} else if h.brokeSince.IsZero() {
		h.brokeSince = now
	}
	h.broke = h.broke || !h.brokeSince.IsZero() && now.Sub(h.brokeSince) >= stuckAfter
	switch held := h.broke || f.stuck; {
	case held && !h.suspended:
		f.feed.Suspend()
	case !held && h.suspended:
		f.feed.Resume()
	}
	h.suspended = h.broke || f.stuck
}

// next returns when time changes something; zero: never.
func (h *feedHold) next() time.Time {
	if h.brokeSince.IsZero() || h.broke {
		return time.Time{}
	}
	return h.brokeSince.Add(stuckAfter)
}

// goesAway reports whether a failure to read here means that the router is to
// find who can.
func (f *fetcher) goesAway(err error) bool {
	return f.svc.opts.Router != nil && !f.opts.direct && !f.forwarded && router.Routable(err)
}

// topic finds the topic that want names.
func (f *fetcher) topic(ctx context.Context, want *runnelv1.FetchPartition) (*metadata.Topic, error) {
	if !f.forwarded {
		return f.svc.topic(ctx, want.GetTopic(), want.GetTopicId())
	}
	id, err := metadata.ParseTopicID(want.GetTopicId())
	if err != nil {
		return nil, err
	}
	t, ok := f.svc.opts.Store.Load().TopicByID(id)
	if !ok {
		return nil, fmt.Errorf("topic %s: %w: try again", id, partition.ErrUnknownEpoch)
	}
	return t, nil
}

// localPart returns a partition that this broker leads.
func (f *fetcher) localPart(t *metadata.Topic, n int32, want *runnelv1.FetchPartition) (*partition.Partition, error) {
	if f.forwarded {
		return f.svc.forwardedTo(t.ID, n, record.Epoch(want.GetLeaderEpoch()))
	}
	part, err := f.svc.opts.Partitions.Get(t.ID, n)
	if err != nil {
		return nil, err
	}
	return part, part.State().Err
}

// openAway reads s from the broker that leads it, from its beginning or from a
// place.
func (f *fetcher) openAway(s *fetchSub, t *metadata.Topic, at *router.Place) error {
	mp, err := t.Find(s.key.partition)
	if err != nil {
		return err
	}
	if known := record.Epoch(s.want.GetLeaderEpoch()); at == nil && s.want.LeaderEpoch != nil && known < mp.LeaderEpoch {
		return fencedEpoch(fmt.Sprintf("%s/%d", t.Name, s.key.partition), mp.LeaderEpoch, known)
	}
	if f.feed == nil {
		f.feed = f.svc.opts.Router.OpenFeed(router.FeedOptions{
			Follow: f.opts.follow, Uncommitted: !f.opts.committed, Progress: f.opts.progress, Principal: rpcserver.Principal(f.ss.Context()),
			Ahead: max(leastAhead, int64(f.opts.minResponse)+firstResponse),
		})
	}
	s.away = f.feed.Open(t, s.key.partition, s.want, at)
	s.part = s.away
	return nil
}

func (f *fetcher) closeFeed() {
	if f.feed != nil {
		f.feed.Close()
	}
}

// sendAway goes on reading s, which this broker led until now, from the new
// leader.
func (f *fetcher) sendAway(s *fetchSub) {
	f.dropCursor(s)
	t, ok := f.svc.opts.Store.Load().TopicByID(s.key.topic)
	if !ok {
		f.fail(s, fmt.Errorf("topic %s: %w", s.topic, partition.ErrDeleted))
		return
	}
	s.next = s.written.next
	at := &router.Place{Next: s.next, Epoch: s.written.epoch, HasEpoch: s.written.hasEpoch, Stop: s.stop}
	if err := f.openAway(s, t, at); err != nil {
		f.fail(s, err)
		return
	}
	f.board.idle(s, s.next)
}

// absorb takes in what is new of a partition that another broker leads. It is
// false when there is nothing to go on with; s is then where it belongs.
func (f *fetcher) absorb(s *fetchSub) bool {
	p := s.away.Poll(s.next)
	if p.Resolved && !s.placed {
		s.next, s.placed = p.Start, true
		s.written = written{next: p.Start, epoch: record.Epoch(s.want.GetLastEpoch()), hasEpoch: s.want.LastEpoch != nil}
		p = s.away.Poll(s.next)
	}
	switch {
	case p.Here:
		f.bringHome(s)
		return s.away == nil && s.state == subReady && f.board.ready.front == s
	case p.Err != nil && !s.placed:
		t, _ := f.svc.opts.Store.Load().TopicByID(s.key.topic)
		f.refuse(f.one(s), t, p.Err)
		f.leave(s)
		return false
	case p.Err != nil:
		f.fail(s, p.Err)
		return false
	case !s.placed:
		f.board.idle(s, math.MaxInt64)
		return false
	}
	s.next = max(s.next, p.Next)
	s.stop = min(s.stop, p.End)
	return true
}

// one is the wish for s alone.
func (f *fetcher) one(s *fetchSub) *runnelv1.FetchPartition {
	return &runnelv1.FetchPartition{Topic: s.topic, Partition: new(s.key.partition), Start: s.want.GetStart(), Tag: s.tag}
}

// bringHome goes on reading s here: this broker leads it now.
func (f *fetcher) bringHome(s *fetchSub) {
	t, ok := f.svc.opts.Store.Load().TopicByID(s.key.topic)
	if !ok {
		f.fail(s, fmt.Errorf("topic %s: %w", s.topic, partition.ErrDeleted))
		return
	}
	want := f.one(s)
	want.StopOffset, want.LastEpoch = s.want.StopOffset, s.want.LastEpoch
	if s.placed {
		want.Start = &runnelv1.FetchPartition_Offset{Offset: int64(s.written.next)}
		want.LastEpoch = nil
		if s.written.hasEpoch {
			want.LastEpoch = new(int64(s.written.epoch))
		}
	}
	home := &fetchSub{stop: noStop, want: want}
	err := f.locate(home, t, s.key.partition, want)
	switch {
	case err == nil:
	case f.goesAway(err), s.placed && (errors.Is(err, partition.ErrOffsetNotAvailable) || errors.Is(err, partition.ErrUnconfirmed)):
		s.away.Retry(err)
		f.board.idle(s, math.MaxInt64)
		return
	case s.placed:
		f.fail(s, err)
		return
	default:
		f.refuse(f.one(s), t, err)
		f.leave(s)
		return
	}
	f.dropCursor(s)
	s.away.Close()
	f.board.queue(s) // cancels the wake-up that the source had
	s.away, s.part = nil, home.part
	s.stop = min(s.stop, home.stop)
	if !s.placed {
		s.next, s.earliest, s.placed, s.written = home.next, home.earliest, true, home.written
		return
	}
	s.next = s.written.next
}

// pause and resume, wherever s is read.
func (f *fetcher) pause(s *fetchSub) {
	f.dropCursor(s)
	f.board.pause(s)
	if s.away != nil {
		s.away.Pause()
	}
}

func (f *fetcher) resume(s *fetchSub) {
	if s.away != nil {
		s.away.Resume()
	}
	f.board.resume(s)
}

// wrote notes what the client has of s.
func (f *fetcher) wrote(s *fetchSub, got fetched) {
	s.written = written{next: got.wrote, epoch: got.epoch, hasEpoch: true}
	if s.away != nil {
		s.away.Advance(got.wrote, got.epoch)
	}
}

// readable is the end of what can be sent of s now.
func (f *fetcher) readable(s *fetchSub, st partition.State) record.Offset {
	if s.away != nil {
		return s.away.Available()
	}
	return f.visible(st)
}

// beyond is what has to become readable before s has more to send.
func (f *fetcher) beyond(s *fetchSub, st partition.State) record.Offset {
	if s.away != nil {
		return max(s.next, s.away.Available())
	}
	return max(s.next, st.HighWatermark)
}
