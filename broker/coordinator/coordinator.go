package coordinator

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/partitioner"
)

// Deps are what a Coordinator stands on.
type Deps struct {
	Store *metadata.Store
	// Local returns a local replica; partition.Set.Get.
	Local func(topic uuid.UUID, n int32) (*partition.Partition, error)
	// CatchUp is that of metadata.Session; nil: there is no controller to ask.
	CatchUp func(context.Context) error
	// Measure asks leaders, wherever they are; nil: there is no lag.
	Measure Measurer
	Metrics prometheus.Registerer // may be nil
	Log     zerolog.Logger
}

// A Coordinator keeps the groups whose partition of Topic this broker leads.
type Coordinator struct {
	cfg     Config
	deps    Deps
	metrics *metrics
	view    atomic.Pointer[view]
	streams atomic.Uint64
	watcher *watcher

	// mu guards the fields below
	mu sync.Mutex

	shards map[int32]*running
}

// A running shard and how to end it.
type running struct {
	shard  *shard
	topic  uuid.UUID
	cancel context.CancelFunc
	done   chan struct{}
}

// New returns a coordinator that keeps nothing before Run.
func New(cfg Config, deps Deps) *Coordinator {
	c := &Coordinator{cfg: cfg.withDefaults(), deps: deps, shards: map[int32]*running{}}
	c.view.Store(&view{})
	c.watcher = newWatcher(c)
	c.metrics = newMetrics(c, deps.Metrics)
	return c
}

// Config returns the configuration in force.
func (c *Coordinator) Config() Config { return c.cfg }

func (c *Coordinator) limits() group.Limits {
	return group.Limits{MaxMembers: c.cfg.MaxMembers, Retention: c.cfg.OffsetsRetention}
}

// Run keeps the groups of the partitions that this broker leads, as leadership
// comes and goes, until ctx is done.
func (c *Coordinator) Run(ctx context.Context) error {
	var shards sync.WaitGroup
	defer shards.Wait()
	if c.cfg.LagEvery > 0 {
		shards.Go(func() { c.watcher.run(ctx) })
	}
	for {
		changed := c.deps.Store.Changed()
		c.follow(ctx, &shards)
		select {
		case <-changed:
		case <-ctx.Done():
			c.mu.Lock()
			clear(c.shards)
			c.mu.Unlock()
			return nil
		}
	}
}

// follow starts and ends shards as the newest image says.
func (c *Coordinator) follow(ctx context.Context, shards *sync.WaitGroup) {
	img := c.deps.Store.Load()
	if img.Revision == 0 {
		return
	}
	old := c.view.Load()
	now := viewOf(img, old)
	c.view.Store(now)
	led := map[int32]*metadata.Partition{}
	t, ok := img.Topic(Topic)
	if ok {
		for n := range t.Partitions {
			if p := &t.Partitions[n]; p.Leader == img.Self {
				led[int32(n)] = p //nolint:gosec // bounded by the image
			}
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()

	for n, r := range c.shards {
		if p := led[n]; p == nil || p.LeaderEpoch != r.shard.epoch || t.ID != r.topic {
			r.cancel()
			if p == nil {
				delete(c.shards, n)
			}
		} else if now != old {
			r.shard.poke()
		}
	}
	for n, p := range led {
		before := c.shards[n]
		if before != nil && before.shard.epoch == p.LeaderEpoch && before.topic == t.ID {
			continue
		}
		sctx, cancel := context.WithCancel(ctx)
		r := &running{shard: newShard(c, n, p.LeaderEpoch), topic: t.ID, cancel: cancel, done: make(chan struct{})}
		c.shards[n] = r
		shards.Go(func() {
			defer close(r.done)
			defer cancel()
			if before != nil {
				<-before.done
			}
			r.shard.run(sctx)
		})
	}
}

// local returns the local replica of partition n of Topic.
func (c *Coordinator) local(n int32) (*partition.Partition, error) {
	t, ok := c.deps.Store.Load().Topic(Topic)
	if !ok {
		return nil, loading()
	}
	return c.deps.Local(t.ID, n)
}

// Number returns the partition of Topic that keeps a group, of count.
func Number(id string, count int) int32 { return partitioner.ForKey([]byte(id), count) }

// at returns the shard of partition n. Its errors: ErrLoading, and who leads
// instead.
func (c *Coordinator) at(n int32) (*shard, error) {
	c.mu.Lock()
	r := c.shards[n]
	c.mu.Unlock()
	if r != nil {
		return r.shard, nil
	}
	p, err := c.local(n)
	if err != nil {
		return nil, err
	}
	if st := p.State(); st.Err != nil {
		return nil, st.Err
	}
	return nil, loading()
}

// all returns the shards by partition.
func (c *Coordinator) all() []*shard {
	c.mu.Lock()
	defer c.mu.Unlock()

	var out []*shard
	for _, n := range slices.Sorted(maps.Keys(c.shards)) {
		out = append(out, c.shards[n].shard)
	}
	return out
}

// Open begins a Join stream for a group of partition n.
func (c *Coordinator) Open(n int32, id string) (*Membership, error) {
	s, err := c.at(n)
	if err != nil {
		return nil, err
	}
	if err := s.serving(); err != nil {
		return nil, err
	}
	m := &Membership{shard: s, group: id, id: group.Stream(c.streams.Add(1)), wake: make(chan struct{}, 1), slots: make(chan struct{}, maxSlots)}
	s.submit(task{fail: m.end, do: func(s *shard) { s.streams[m.id] = m }})
	return m, nil
}

func decimal(n int32) string { return strconv.Itoa(int(n)) }

// orTimeout says what a write is that was begun and not answered in time.
func orTimeout(ctx context.Context) error {
	return fmt.Errorf("%w: it was not durable in time; committing the same again is safe (%w)", partition.ErrCommitUncertain, context.Cause(ctx))
}
