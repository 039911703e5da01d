package router

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
)

// leaderlessFor is how long a session that reads to an end waits for a partition
// without a leader. One that follows waits for ever.
const leaderlessFor = 30 * time.Second

// FeedOptions are those of a reading session that its leaders have to know.
type FeedOptions struct {
	Follow bool
	// Uncommitted is READ_UNCOMMITTED.
	Uncommitted bool
	// Progress is how often idle partitions say where they stand.
	Progress time.Duration
	// Ahead is how many bytes each leader may send ahead of the reader.
	Ahead int64
	// Principal is who reads, "" for somebody nothing is known of.
	Principal string
}

// A Feed reads for one client stream from partitions that other brokers lead,
// over one internal stream for each leader. What is read ahead is bounded in
// bytes, so a reader that stops stops its leaders. It is opened by OpenFeed and
// ended by Close.
type Feed struct {
	r        *Router
	opts     FeedOptions
	kicked   chan struct{}
	routines sync.WaitGroup
	cancel   context.CancelFunc

	// mu guards the fields below
	mu sync.Mutex

	sources map[*Source]struct{}
	links   map[metadata.BrokerID]*feedLink
	tags    uint64
	ended   bool
}

// OpenFeed begins a feed; Close must be called.
func (r *Router) OpenFeed(o FeedOptions) *Feed {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Feed{
		r: r, opts: o, kicked: make(chan struct{}, 1), cancel: cancel,
		sources: map[*Source]struct{}{}, links: map[metadata.BrokerID]*feedLink{},
	}
	f.routines.Go(func() { f.run(ctx) })
	return f
}

// Close ends the feed and everything of it.
func (f *Feed) Close() {
	f.mu.Lock()
	f.ended = true
	links := f.links
	f.links = map[metadata.BrokerID]*feedLink{}
	f.mu.Unlock()
	f.cancel()
	for _, l := range links {
		l.fail(errClosed)
	}
	f.routines.Wait()
	for s := range f.sources {
		s.Close()
	}
}

// A Place is where a reader stands that has read elsewhere before.
type Place struct {
	Next record.Offset
	// Epoch is that of the last record before Next, when HasEpoch.
	Epoch    record.Epoch
	HasEpoch bool
	// Stop is where the reading ends; math.MaxInt64: not.
	Stop record.Offset
}

// Open begins to read a partition as want says, which is not changed any more,
// or goes on at a place, when one is given.
func (f *Feed) Open(t *metadata.Topic, n int32, want *runnelv1.FetchPartition, at *Place) *Source {
	s := &Source{feed: f, topic: t.ID, name: t.Name, n: n, want: want, since: time.Now()}
	if at != nil {
		s.resolveLocked(at.Next) // nobody else has it yet
		s.epoch, s.hasEpoch, s.stop = at.Epoch, at.HasEpoch, at.Stop
	}
	f.mu.Lock()
	f.sources[s] = struct{}{}
	f.mu.Unlock()
	f.kick()
	return s
}

func (f *Feed) kick() {
	select {
	case f.kicked <- struct{}{}:
	default:
	}
}

// Suspend drops what was read ahead, and reads no further until Resume.
func (f *Feed) Suspend() {
	for _, s := range f.all() {
		s.suspend(true)
	}
}

// Resume goes on where the reader stands.
func (f *Feed) Resume() {
	for _, s := range f.all() {
		s.suspend(false)
	}
	f.kick()
}

func (f *Feed) all() []*Source {
	f.mu.Lock()
	defer f.mu.Unlock()

	out := make([]*Source, 0, len(f.sources))
	for s := range f.sources {
		out = append(out, s)
	}
	return out
}

func (f *Feed) forget(s *Source) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if !f.ended {
		delete(f.sources, s)
	}
}

// run finds leaders for what has none, until ctx is done.
func (f *Feed) run(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		changed := f.r.opts.Store.Changed()
		now := time.Now()
		wait := time.Hour
		for _, s := range f.all() {
			if at := f.assign(s, now); !at.IsZero() {
				wait = min(wait, max(at.Sub(now), 0))
			}
		}
		timer.Reset(wait)
		select {
		case <-changed:
		case <-f.kicked:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}

// assign sees to it that s is read from its leader, and returns when to look
// again; zero: when something changes.
func (f *Feed) assign(s *Source, now time.Time) time.Time {
	hint, idle, at := s.unassigned()
	v, err := f.r.leader(s.topic, s.n, hint)
	if !idle {
		if err == nil && v.epoch > at.epoch && v.leader != at.leader {
			s.detach(0, errUnreachable, view{}) // who had it may not know, or be gone
			return now
		}
		return time.Time{}
	}
	if again, wait := s.tooEarly(now, v, err); wait {
		return again
	}
	switch {
	case err != nil && !routable(err), err != nil && !f.opts.Follow && now.Sub(s.lonely()) >= leaderlessFor:
		s.end(err)
		return time.Time{}
	case err != nil:
		return s.retry(now, v, err)
	case v.leader == f.r.self:
		s.arrive()
		return time.Time{}
	}
	l, err := f.link(v.leader)
	if err != nil {
		return s.retry(now, v, err)
	}
	l.subscribe(s, v)
	return time.Time{}
}

// link returns the stream to a leader.
func (f *Feed) link(id metadata.BrokerID) (*feedLink, error) {
	p, err := f.r.peer(id)
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.ended {
		return nil, errClosed
	}
	if l := f.links[id]; l != nil && !l.broken() {
		return l, nil
	}
	l := newFeedLink(f, p)
	f.links[id] = l
	f.routines.Go(l.run)
	return l, nil
}

// options are those of an internal stream.
func (f *Feed) options() *runnelv1.FetchOptions {
	o := &runnelv1.FetchOptions{
		Format: runnelv1.FetchFormat_FETCH_FORMAT_BATCHES, Follow: f.opts.Follow, Routing: runnelv1.Routing_ROUTING_DIRECT,
		Isolation:          runnelv1.Isolation_ISOLATION_READ_COMMITTED,
		InitialCreditBytes: &f.opts.Ahead, ProgressInterval: durationpb.New(f.opts.Progress),
	}
	if f.opts.Uncommitted {
		o.Isolation = runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED
	}
	return o
}

// passing says whether a leader's refusal to read passes by itself. What only a
// leader that has just begun answers is an answer for a reader that has just
// begun, and a moment's wait for one that was reading.
func passing(err error, resumed bool) bool {
	switch {
	case Routable(err):
		return true
	case errors.Is(err, partition.ErrOffsetNotAvailable), errors.Is(err, partition.ErrUnconfirmed):
		return resumed
	}
	return false
}
