package partition

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/record"
)

// A Control is whom leaders ask for what only the controller may decide; it is
// a part of metadata.Session. Nothing of it blocks.
type Control interface {
	// Handle makes h hear what the controller wants.
	Handle(h metadata.Handler)
	Propose(ps ...metadata.Proposal)
	AskLeader(r metadata.LeadershipRequest)
	Release(r metadata.Released)
	// Timeout is for how long one answer vouches for this broker.
	Timeout() time.Duration
}

// An inbox keeps what the controller wants until the set gets to it: the
// session's receiver must not wait for a partition.
type inbox struct {
	wake chan struct{} // capacity 1

	// mu guards the fields below
	mu sync.Mutex

	rejections []metadata.Rejection
	handOvers  []metadata.HandOver
}

// Rejected implements metadata.Handler.
func (b *inbox) Rejected(r metadata.Rejection) {
	b.mu.Lock()
	b.rejections = append(b.rejections, r)
	b.mu.Unlock()
	b.poke()
}

// HandOver implements metadata.Handler.
func (b *inbox) HandOver(h metadata.HandOver) {
	b.mu.Lock()
	b.handOvers = append(b.handOvers, h)
	b.mu.Unlock()
	b.poke()
}

func (b *inbox) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) take() ([]metadata.Rejection, []metadata.HandOver) {
	b.mu.Lock()
	defer b.mu.Unlock()

	r, h := b.rejections, b.handOvers
	b.rejections, b.handOvers = nil, nil
	return r, h
}

// A mover is a partition whose leadership is being handed over.
type mover struct {
	part     *Partition
	epoch    record.Epoch
	since    time.Time
	released bool
}

// moveEvery is how often a hand-over is looked at.
const moveEvery = 5 * time.Millisecond

// serveControl does what the controller wants until ctx is done.
func (s *Set) serveControl(ctx context.Context) error {
	var movers []mover
	ticking := false
	tick := time.NewTicker(moveEvery)
	tick.Stop()
	defer tick.Stop()
	for {
		select {
		case <-s.inbox.wake:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		rejections, handOvers := s.inbox.take()
		for _, r := range rejections {
			if p := s.local(r.Topic, r.Partition); p != nil {
				s.deps.Log.Debug().Stringer("topic_id", r.Topic).Int32("partition", r.Partition).Str("reason", r.Reason).Msg("the controller refused an ISR")
				p.rejected(r)
			}
		}
		for _, h := range handOvers {
			p := s.local(h.Topic, h.Partition)
			if p == nil || !p.handOver(h.LeaderEpoch) {
				s.release(h.Topic, h.Partition, h.LeaderEpoch, false)
				continue
			}
			movers = append(movers, mover{part: p, epoch: h.LeaderEpoch, since: time.Now()})
		}
		movers = slices.DeleteFunc(movers, func(m mover) bool { return s.moved(&m) })
		for i := range movers {
			movers[i].released = movers[i].released || s.mayRelease(movers[i])
		}
		switch {
		case len(movers) == 0:
			ticking = false
			tick.Stop()
		case !ticking:
			ticking = true
			tick.Reset(moveEvery)
		}
	}
}

// mayRelease releases a leadership once all that was appended is committed.
func (s *Set) mayRelease(m mover) bool {
	drained, _ := m.part.drained(m.epoch)
	if drained {
		s.release(m.part.id, m.part.number, m.epoch, true)
	}
	return drained
}

// moved says whether a hand-over has come to its end, and ends it: the
// leadership is gone, or what was parked was not committed in time, or the
// controller has chosen nobody.
func (s *Set) moved(m *mover) bool {
	took := time.Since(m.since)
	_, ended := m.part.drained(m.epoch)
	switch {
	case ended:
		return true
	case !m.released && took > drainTime:
		m.part.goOn(m.epoch)
		s.release(m.part.id, m.part.number, m.epoch, false)
		return true
	case m.released && took > releaseTime:
		m.part.goOn(m.epoch)
		return true
	}
	return false
}

func (s *Set) release(topic uuid.UUID, n int32, epoch record.Epoch, released bool) {
	s.deps.Session.Release(metadata.Released{Topic: topic, Partition: n, LeaderEpoch: epoch, Released: released})
}

// local returns the replica of this broker, nil when it has none.
func (s *Set) local(topic uuid.UUID, n int32) *Partition {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.parts[key{topic, n}]
}

// How often lag is looked at, as a part of how long a follower may lag; and from
// how late a look on this broker was away itself.
const (
	ticksPerLag = 20
	tickLate    = time.Second
)

// watchLag ticks all partitions until ctx is done.
func (s *Set) watchLag(ctx context.Context) error {
	every := s.cfg.ReplicaLagMax / ticksPerLag
	last := time.Now()
	lifecycle.Every(ctx, every, func(time.Time) {
		// The time of the look, not of the tick: a broker that was away finds a
		// tick from before.
		now := time.Now()
		late := now.Sub(last) > every+tickLate
		last = now
		for _, p := range s.All() {
			p.tick(now, late)
		}
	})
	return nil
}

// followWatch tells others which partitions changed their leader.
type followWatch struct {
	fn atomic.Pointer[func(*Partition)]
}

func (w *followWatch) tell(p *Partition) {
	if fn := w.fn.Load(); fn != nil {
		(*fn)(p)
	}
}

// OnFollow makes fn be called, without locks, for each partition whose leader or
// leader epoch changed, or that this set let go, so that whom it follows is
// looked at again. Call it before Run. fn must not block.
func (s *Set) OnFollow(fn func(*Partition)) { s.watch.fn.Store(&fn) }

// Changed returns a channel that is closed when the set has applied the next
// image. Who takes it first and asks then misses nothing.
func (s *Set) Changed() <-chan struct{} {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.changed
}
