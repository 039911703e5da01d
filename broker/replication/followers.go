package replication

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
)

// Followers is the followers' end: it follows the leaders of all partitions
// that this broker has a copy of and does not lead.
type Followers struct {
	cfg     Config
	deps    Deps
	numbers atomic.Int64 // of subscriptions; none is used twice
	wake    chan struct{}

	// workers are the goroutines of replicas that have something to do.
	workers sync.WaitGroup

	// mu guards the fields below
	mu sync.Mutex

	changed map[*partition.Partition]bool // to be looked at
}

// NewFollowers returns what follows nobody until it runs. It makes itself known
// to the set, which must not run yet.
func NewFollowers(cfg Config, deps Deps) *Followers {
	if cfg.Streams <= 0 {
		cfg.Streams = 1
	}
	f := &Followers{cfg: cfg, deps: deps, wake: make(chan struct{}, 1), changed: map[*partition.Partition]bool{}}
	deps.Set.OnFollow(f.look)
	return f
}

// look notes that a partition may have another leader to follow.
func (f *Followers) look(p *partition.Partition) {
	f.mu.Lock()
	f.changed[p] = true
	f.mu.Unlock()
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Followers) takeChanged() map[*partition.Partition]bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	c := f.changed
	f.changed = map[*partition.Partition]bool{}
	return c
}

// Run follows until ctx is done. Then no log is written to any more on behalf
// of a leader.
func (f *Followers) Run(ctx context.Context) error {
	c := course{owner: f, peers: map[target]*steered{}, follows: map[place]*replica{}}
	old := &metadata.Image{}
	for ctx.Err() == nil {
		changed := f.deps.Store.Changed()
		img := f.deps.Store.Load()
		parts := f.takeChanged()
		if img.Since(old).Brokers {
			for _, p := range f.deps.Set.All() {
				parts[p] = true
			}
		}
		for p := range parts {
			c.steer(ctx, img, p)
		}
		c.prune()
		old = img
		select {
		case <-changed:
		case <-f.wake:
		case <-ctx.Done():
		}
	}
	c.end()
	f.workers.Wait()
	return nil
}

// A course is who follows whom. It belongs to Run.
type course struct {
	owner   *Followers
	peers   map[target]*steered
	follows map[place]*replica
	running sync.WaitGroup
}

// A steered peer runs until it is canceled.
type steered struct {
	*peer

	cancel context.CancelFunc
}

// steer makes a partition follow whom it should. Each leader epoch is a new
// beginning, also with the same leader.
func (c *course) steer(ctx context.Context, img *metadata.Image, p *partition.Partition) {
	at := place{p.Topic().ID, p.Number()}
	to, epoch, ok := c.owner.whom(img, p, at)
	r := c.follows[at]
	if r != nil {
		if !ok && r.part != p {
			return // it has taken the place of p
		}
		if ok && r.part == p && r.peer.to == to && r.epoch == epoch {
			return
		}
		r.peer.remove(r)
		delete(c.follows, at)
	}
	if !ok {
		return
	}
	s := c.peers[to]
	if s == nil {
		pctx, cancel := context.WithCancel(ctx)
		s = &steered{newPeer(c.owner, to), cancel}
		c.peers[to] = s
		c.running.Go(func() { s.run(pctx) })
	}
	r = &replica{peer: s.peer, part: p, at: at, topicID: at.topic.String(), epoch: epoch}
	c.follows[at] = r
	s.add(r)
}

// prune ends the streams that nobody follows any more.
func (c *course) prune() {
	for to, s := range c.peers {
		if s.empty() {
			s.cancel()
			delete(c.peers, to)
		}
	}
}

// end ends everything, and returns when no stream runs.
func (c *course) end() {
	for _, r := range c.follows {
		r.peer.remove(r)
	}
	for _, s := range c.peers {
		s.cancel()
	}
	c.running.Wait()
}

// whom says whom a partition is to follow, over which stream.
func (f *Followers) whom(img *metadata.Image, p *partition.Partition, at place) (to target, epoch record.Epoch, ok bool) {
	leader, epoch, ok := p.Following()
	if !ok {
		return to, 0, false
	}
	b, known := img.Broker(leader)
	self, registered := img.Broker(img.Self)
	if !known || !registered || self.Incarnation != f.deps.Incarnation {
		return to, 0, false
	}
	return target{
		cluster: img.ClusterID, leader: leader, incarnation: b.Incarnation, epoch: b.Epoch, addr: b.InternalAddress,
		self: self.Epoch, lane: f.lane(at),
	}, epoch, true
}

// lane spreads partitions over the streams to one leader.
func (f *Followers) lane(at place) int {
	n := uint32(at.number) //nolint:gosec // any spreading will do
	for _, b := range at.topic {
		n = n*31 + uint32(b)
	}
	return int(n % uint32(f.cfg.Streams)) //nolint:gosec // a small positive number
}
