package partition

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"golang.org/x/sync/errgroup"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/producer"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// Config tunes a Set. Zero fields have defaults.
type Config struct {
	// Incarnation is this process's in its registration.
	Incarnation string
	// MaintainEvery is the period of rolling and retention by age. Default 10 s.
	MaintainEvery time.Duration
	// Flushers is how many partitions are made durable at a time. Default 16.
	Flushers int
	// Openers is how many logs are opened at a time. Default 8.
	Openers int
	// Producers bounds what each partition remembers of idempotent producers.
	Producers producer.Config
	// ReplicaLagMax is for how long a member of the ISR may lack a record.
	// Default 10 s.
	ReplicaLagMax time.Duration
	// Cleaner tunes compaction.
	Cleaner CleanerConfig
}

// A Session is whom the Set tells how far it has come; metadata.Session.
type Session interface {
	Report(reports []metadata.ReplicaReport)
	Removed(topic uuid.UUID)
	Applied(revision int64)
	Confirmed() bool
	Control
}

// Deps are what a Set stands on.
type Deps struct {
	Root    *commitlog.Root
	Store   *metadata.Store
	Session Session
	Metrics prometheus.Registerer // may be nil
	Log     zerolog.Logger
}

// A Set holds the partitions of which this broker has a replica, as the newest
// image says.
type Set struct {
	cfg   Config
	deps  Deps
	host  host
	queue *workQueue // to be made durable
	proof *workQueue // to be read through
	clean *cleaner
	inbox inbox
	watch followWatch
	// proposals counts those that were ever made: their numbers.
	proposals atomic.Uint64

	// mu guards the fields below
	mu sync.RWMutex

	parts     map[key]*Partition
	lost      map[key]string // replicas that can't be opened, and why
	pending   map[key]bool   // replicas to be opened when there is room for them, or leave to
	waiting   error          // why the last one of them is not open
	told      int            // how many of them the log has told of
	undone    undone         // what of the newest image could not be carried out
	changed   chan struct{}  // closed when the next image is applied
	recovered bool
	found     []metadata.ReplicaReport // by recovery, until it is complete
}

type key struct {
	topic uuid.UUID
	n     int32
}

// NewSet returns a set without partitions; Run fills it.
func NewSet(cfg Config, deps Deps) *Set {
	if cfg.MaintainEvery <= 0 {
		cfg.MaintainEvery = 10 * time.Second
	}
	if cfg.Flushers <= 0 {
		cfg.Flushers = 16
	}
	if cfg.Openers <= 0 {
		cfg.Openers = 8
	}
	if cfg.ReplicaLagMax <= 0 {
		cfg.ReplicaLagMax = 10 * time.Second
	}
	s := &Set{
		cfg: cfg, deps: deps, inbox: inbox{wake: make(chan struct{}, 1)},
		parts: map[key]*Partition{}, lost: map[key]string{}, pending: map[key]bool{}, undone: undone{topics: map[uuid.UUID]int{}}, changed: make(chan struct{}),
	}
	// While one sync runs the partition takes further appends; they share the
	// next one.
	s.queue = newWorkQueue(cfg.Flushers, func(_ context.Context, p *Partition) { p.flushOnce() })
	s.proof = newWorkQueue(1, func(ctx context.Context, p *Partition) { p.prove(ctx) })
	s.host = host{
		self: deps.Store.Load().Self, store: deps.Store, disk: deps.Root.Disk, confirmed: deps.Session.Confirmed,
		flush: s.queue.push, prove: s.proof.push, control: deps.Session, number: func() uint64 { return s.proposals.Add(1) },
		lagMax: cfg.ReplicaLagMax, metrics: newCounters(deps.Metrics), log: deps.Log,
	}
	s.clean = newCleaner(cfg.Cleaner, s)
	deps.Session.Handle(&s.inbox)
	newMetrics(s, deps.Metrics)
	return s
}

// Get returns the local replica of a partition. It fails with ErrNotLeader
// when other brokers have the replicas, with ErrNoLeader when this one is about
// to have one, and with the errors of metadata look-ups.
func (s *Set) Get(topic uuid.UUID, n int32) (*Partition, error) {
	s.mu.RLock()
	p := s.parts[key{topic, n}]
	why, lost := s.lost[key{topic, n}]
	s.mu.RUnlock()
	if p != nil {
		return p, nil
	}
	img := s.deps.Store.Load()
	t, ok := img.TopicByID(topic)
	if !ok || t.Phase == metadata.TopicDeleting {
		return nil, fmt.Errorf("topic %s: %w", topic, ErrDeleted)
	}
	mp, err := t.Find(n)
	if err != nil {
		return nil, err
	}
	if mp.Leader == img.Self {
		if lost {
			return nil, &CorruptError{Topic: t.Name, Partition: n, Path: why, Position: -1, Next: -1}
		}
		return nil, fmt.Errorf("%s/%d: %w: this broker is about to lead it, try again", t.Name, n, ErrNoLeader)
	}
	return nil, notLeader(img, t, n, mp)
}

// All returns the local replicas, in no order.
func (s *Set) All() []*Partition {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return slices.Collect(maps.Values(s.parts))
}

// Lost returns the replicas that could not be opened, as topic/partition, and
// why.
func (s *Set) Lost() map[string]string {
	s.mu.RLock()
	defer s.mu.RUnlock()

	out := map[string]string{}
	for k, why := range s.lost {
		name := k.topic.String()
		if t, ok := s.deps.Store.Load().TopicByID(k.topic); ok {
			name = t.Name
		}
		out[fmt.Sprintf("%s/%d", name, k.n)] = why
	}
	return out
}

// Recovered says whether the replicas this broker had at its start are open.
func (s *Set) Recovered() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.recovered
}

// Run follows the metadata, flushes and maintains until ctx is done. The logs
// stay open: they are the root's to close, when nobody can append any more.
func (s *Set) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for range s.cfg.Flushers {
		g.Go(func() error {
			s.queue.work(ctx)
			return nil
		})
	}
	g.Go(func() error {
		s.proof.work(ctx)
		return nil
	})
	for range s.clean.cfg.Threads {
		g.Go(func() error {
			s.clean.work(ctx)
			return nil
		})
	}
	g.Go(func() error {
		lifecycle.Every(ctx, s.cfg.MaintainEvery, s.maintain)
		return nil
	})
	g.Go(func() error { return s.follow(ctx) })
	g.Go(func() error { return s.serveControl(ctx) })
	g.Go(func() error { return s.watchLag(ctx) })
	return g.Wait()
}

// Stop takes all partitions out of service: writes that are parked are
// answered as uncertain, readers wake.
func (s *Set) Stop(why error) {
	for _, p := range s.All() {
		p.stop(fmt.Errorf("%s: %w", p, why))
		p.deliver()
	}
}

func (s *Set) maintain(now time.Time) {
	for _, p := range s.All() {
		removed, err := p.maintain(now)
		switch {
		case errors.Is(err, commitlog.ErrClockJumped):
			s.deps.Log.Warn().Str("topic", p.Topic().Name).Int32("partition", p.number).Err(err).Msg("retention skipped a pass")
		case errors.Is(err, commitlog.ErrClosed):
		case err != nil:
			s.deps.Log.Error().Str("topic", p.Topic().Name).Int32("partition", p.number).Err(err).Msg("retention failed")
		case removed > 0:
			s.deps.Log.Debug().Str("topic", p.Topic().Name).Int32("partition", p.number).Int("segments", removed).Msg("retention removed segments")
		}
	}
}

// follow applies each image the store gets.
func (s *Set) follow(ctx context.Context) error {
	old := &metadata.Image{Self: s.host.self}
	retry := time.NewTicker(retryEvery)
	defer retry.Stop()
	for {
		changed := s.deps.Store.Changed()
		img := s.deps.Store.Load()
		if img.Revision > 0 && (img != old || s.incomplete()) {
			if err := s.apply(ctx, old, img); err != nil {
				return err
			}
			old = img
		}
		select {
		case <-changed:
		case <-retry.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// apply makes the set what img says. Its errors are those of a data root that
// failed; what concerns one partition only takes that one out of service.
func (s *Set) apply(ctx context.Context, old, img *metadata.Image) error {
	d := img.Since(old)
	topics, before := d.Changed, old
	switch left := s.left(); {
	case s.mayLead(old) != s.mayLead(img) || old.Session != img.Session:
		topics, before = slices.Collect(img.Everything()), nil
	case len(left) > 0:
		topics, before = with(img, topics, left), nil
	}
	s.begin()
	if err := s.makeAll(topics); err != nil {
		return err
	}
	if err := s.placeAll(ctx, before, img, topics); err != nil || ctx.Err() != nil {
		return err
	}
	s.done()
	for _, t := range d.Gone {
		s.abandon(t)
	}
	if !s.Recovered() || len(d.Gone) > 0 {
		s.quarantine(img)
	}
	s.tellPending()
	s.complete()
	s.deps.Session.Applied(img.Revision)
	s.mu.Lock()
	close(s.changed)
	s.changed = make(chan struct{})
	s.mu.Unlock()
	return nil
}

// makeAll makes the directories of replicas that are about to be opened, together:
// it needs few syncs for all of them. Whatever goes wrong is seen again when they
// are opened.
func (s *Set) makeAll(topics []*metadata.Topic) error {
	var specs []commitlog.PartitionSpec
	s.mu.RLock()
	for _, t := range topics {
		if t.Phase == metadata.TopicDeleting {
			continue
		}
		for i := range t.Partitions {
			n, mp := int32(i), &t.Partitions[i] //nolint:gosec // bounded by the image
			if slices.Contains(mp.Replicas, s.host.self) && s.parts[key{t.ID, n}] == nil && mayCreate(s.host.self, mp) {
				specs = append(specs, commitlog.PartitionSpec{ID: commitlog.PartitionID{Topic: t.ID, Number: n}, Topic: t.Name, Config: logConfig(t, mp), Create: true})
			}
		}
	}
	s.mu.RUnlock()
	if err := s.deps.Root.MakePartitions(specs); errors.Is(err, commitlog.ErrFailed) {
		return err
	}
	return nil
}

// placeAll places the replicas of topics, several at a time, and removes those
// of deleted ones. What is as in old was placed before: of a topic with many
// partitions one may change often, and its writers are not to wait for the others.
func (s *Set) placeAll(ctx context.Context, old, img *metadata.Image, topics []*metadata.Topic) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(s.cfg.Openers)
	for _, t := range topics {
		if t.Phase == metadata.TopicDeleting {
			g.Go(func() error { return s.remove(t) })
			continue
		}
		var was *metadata.Topic
		if old != nil {
			was, _ = old.TopicByID(t.ID)
		}
		for i := range t.Partitions {
			n := int32(i) //nolint:gosec // bounded by the image
			if was != nil && t.SameAs(was, n) || !s.concerned(t, n) {
				continue
			}
			g.Go(func() error {
				if gctx.Err() == nil {
					return s.place(img, t, n)
				}
				return nil
			})
		}
	}
	return g.Wait()
}

// concerned says whether this broker has, or is to have, a replica.
func (s *Set) concerned(t *metadata.Topic, n int32) bool {
	if slices.Contains(t.Partitions[n].Replicas, s.host.self) {
		return true
	}
	s.mu.RLock()
	defer s.mu.RUnlock()

	return s.parts[key{t.ID, n}] != nil
}

// complete ends recovery when every replica this broker had has been looked
// at, and reports what was found.
func (s *Set) complete() {
	s.mu.Lock()
	done := !s.recovered && len(s.pending) == 0
	found := s.found
	if done {
		s.recovered, s.found = true, nil
	}
	s.mu.Unlock()
	if !done {
		return
	}
	if err := s.deps.Root.Opened(); err != nil {
		s.deps.Log.Warn().Err(err).Msg("what was found of the replicas could not be written down yet: the next start may not trust them")
	}
	s.deps.Session.Report(found)
}

// report notes what recovery found of one replica.
func (s *Set) report(r metadata.ReplicaReport) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if !s.recovered {
		s.found = append(s.found, r)
	}
}

// quarantine looks for directories of topics and partitions that nobody knows.
func (s *Set) quarantine(img *metadata.Image) {
	for _, q := range s.deps.Root.Quarantine(func(id commitlog.PartitionID) bool {
		t, ok := img.TopicByID(id.Topic)
		return ok && (id.Number == 0 || int(id.Number) < len(t.Partitions) || t.Phase == metadata.TopicDeleting)
	}) {
		s.deps.Log.Warn().Str("path", q.Path).Str("topic", q.Name).Int64("bytes", q.Bytes).Msg("nothing of the cluster uses this: it is kept")
	}
}

// mayLead says whether img shows this very process in service.
func (s *Set) mayLead(img *metadata.Image) bool {
	b, ok := img.Broker(s.host.self)
	return ok && b.Phase != metadata.BrokerFenced && b.Incarnation == s.cfg.Incarnation
}

// place opens, changes or lets go of one local replica.
func (s *Set) place(img *metadata.Image, t *metadata.Topic, n int32) error {
	mp := &t.Partitions[n]
	k := key{t.ID, n}
	s.mu.RLock()
	p := s.parts[k]
	s.mu.RUnlock()
	if !slices.Contains(mp.Replicas, s.host.self) {
		if p != nil {
			s.drop(k, fmt.Errorf("%s: %w: this broker holds no copy any more", p, ErrDeleted))
		}
		return nil
	}
	if p == nil {
		var err error
		if p, err = s.open(t, n); err != nil || p == nil {
			return err
		}
	}
	leader, epoch, was := p.Following()
	err := p.apply(t, mp, s.mayLead(img), img.Session)
	if l, e, is := p.Following(); l != leader || e != epoch || is != was {
		s.watch.tell(p)
	}
	if err != nil {
		if errors.Is(err, commitlog.ErrFailed) {
			return err
		}
		s.failed(t, fmt.Errorf("partition %d does not follow the metadata: %w", n, err))
	}
	return nil
}

// drop takes a replica out of service. Its files stay.
func (s *Set) drop(k key, why error) {
	s.mu.Lock()
	p := s.parts[k]
	delete(s.parts, k)
	delete(s.lost, k)
	delete(s.pending, k)
	s.mu.Unlock()
	if p == nil {
		return
	}
	p.stop(why)
	p.deliver()
	s.watch.tell(p)
	p.writing <- struct{}{} // whoever is still writing ends first
	err := s.deps.Root.ClosePartition(commitlog.PartitionID{Topic: k.topic, Number: k.n})
	<-p.writing
	if err != nil {
		s.deps.Log.Warn().Str("topic", p.Topic().Name).Int32("partition", p.number).Err(err).Msg("closing the log")
	}
}

// dropTopic takes all replicas of a topic out of service.
func (s *Set) dropTopic(t *metadata.Topic) {
	s.mu.RLock()
	var keys []key
	for k := range s.parts {
		if k.topic == t.ID {
			keys = append(keys, k)
		}
	}
	for k := range s.lost {
		if k.topic == t.ID {
			keys = append(keys, k)
		}
	}
	for k := range s.pending {
		if k.topic == t.ID {
			keys = append(keys, k)
		}
	}
	s.mu.RUnlock()
	for _, k := range keys {
		s.drop(k, fmt.Errorf("topic %s: %w: it was deleted", t.Name, ErrDeleted))
	}
}

// remove deletes a topic's directories: the controller said so, by its id.
func (s *Set) remove(t *metadata.Topic) error {
	s.dropTopic(t)
	if err := s.deps.Root.RemoveTopic(t.ID); err != nil {
		if errors.Is(err, commitlog.ErrFailed) {
			return fmt.Errorf("remove topic %s: %w", t.Name, err)
		}
		s.failed(t, fmt.Errorf("it is deleted, and its directory can't be removed: %w", err)) // it stays unconfirmed
		return nil
	}
	if slices.Contains(t.AwaitingRemoval, s.host.self) {
		s.deps.Session.Removed(t.ID)
	}
	return nil
}

// abandon lets go of a topic nobody knows any more. Only a deletion removes
// files: an absence may be a mistake.
func (s *Set) abandon(t *metadata.Topic) { s.dropTopic(t) }
