package client

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/google/uuid"
)

// A Group reads topics as a member of a consumer group: the group's members
// divide the partitions among themselves, each goes on where the group stood, and
// every record is processed at least once.
//
// A record counts as processed when the loop's body after it has ended: with the
// next step of Records, or the next call of Poll or Run. What is processed is
// committed now and then, when a partition is given up, and by Close; see
// [ManualCommit]. A loop that is left with break, or return, has not processed the
// record it was left with, unless it, or another, goes on afterwards.
//
// The Group joins with the first call of Poll, Records or Run, and stays a member
// until Close, however long records take, and over broken connections. One that
// has heard nothing for the session timeout takes itself for expelled: it drops
// what it has, and joins again.
//
// One goroutine at a time may call Poll, walk over Records, or Run; everything
// else is safe for concurrent use.
type Group struct {
	c    *Client
	name string
	id   string // of the member
	o    groupOptions
	r    *Reader

	// Pokes: toKeep, that there is a new target; toTell, that the brokers are to be
	// told what is owned; toCommit, that something is to be committed; toRejoin, that
	// the stream is to be given up.
	toKeep, toTell, toCommit, toRejoin, toWatch chan struct{}
	leave                                       chan struct{} // closed to leave for good
	left                                        chan struct{} // closed when it has, or can't
	stopKeeping, stop                           context.CancelFunc
	keepers, workers                            sync.WaitGroup
	begin                                       func()

	// mu guards the fields below
	mu sync.Mutex

	begun, closed bool
	ended         bool // nothing is committed any more
	parts         map[partitionKey]*groupPart
	lost          []*groupPart // of which OnLost is still to be told
	lostWhy       error
	// given are partitions that were given up in good order, for when they come back
	// before they were anybody else's.
	given     map[partitionKey]*groupPart
	epoch     int64 // of the member; 0: not one
	target    *groupTarget
	carried   groupRevision // what is owned was brought in line with
	lease     time.Time     // until when records may be handed out
	session   time.Duration
	rebalance time.Duration
	hand      *groupHand
	rest      *Batch        // was left in the middle
	settled   chan struct{} // closed and replaced when hand changes
	queue     commitQueue
	errs      []error // for Poll
	err       error   // ends everything
}

// NewGroup returns a member of the named group, which reads the topics that the
// options name. It has not joined yet.
func (c *Client) NewGroup(name string, opts ...GroupOption) (*Group, error) {
	o, err := newGroupOptions(name, opts)
	if err != nil {
		return nil, fmt.Errorf("group %q: %w", name, err)
	}
	r, err := c.NewReader(o.reader...)
	if err != nil {
		return nil, fmt.Errorf("group %q: %w", name, err)
	}
	r.news = make(chan struct{}, 1)
	g := &Group{
		c: c, name: name, id: uuid.NewString(), o: o, r: r,
		toKeep: make(chan struct{}, 1), toTell: make(chan struct{}, 1), toCommit: make(chan struct{}, 1),
		toRejoin: make(chan struct{}, 1), toWatch: make(chan struct{}, 1),
		leave: make(chan struct{}), left: make(chan struct{}), settled: make(chan struct{}),
		parts: map[partitionKey]*groupPart{}, given: map[partitionKey]*groupPart{}, session: o.session, rebalance: o.rebalance,
	}
	if g.session == 0 {
		g.session = defaultSessionTimeout
	}
	ctx, stop := context.WithCancel(context.Background())
	keeping, stopKeeping := context.WithCancel(ctx)
	g.stop, g.stopKeeping = stop, stopKeeping
	g.begin = func() {
		for _, t := range o.topics {
			c.cluster.want(t)
		}
		g.keepers.Go(func() { g.keep(keeping) })
		g.workers.Go(func() { g.join(ctx) })
		g.workers.Go(func() { g.commitLoop(ctx) })
		g.workers.Go(func() { g.watch(ctx) })
	}
	return g, nil
}

// errNews makes Poll look at the group again.
var errNews = errors.New("news")

// MemberID returns the id that the group knows this member by.
func (g *Group) MemberID() string { return g.id }

// Owned returns the partitions that are assigned to this member now.
func (g *Group) Owned() []PartitionID {
	g.mu.Lock()
	defer g.mu.Unlock()
	return partIDs(sortedParts(g.parts))
}

// Poll returns the next records, all of one partition, and waits for them until
// ctx ends. They are good until the next call of Poll, or step of Records, or
// Close: see [Record.Clone]. With the next call they count as processed. When the
// batch's partition is lost meanwhile, Next is false and Err is [ErrPartitionLost].
//
// A [*PartitionError] is about one partition, which is not read on until [Group.Seek];
// the others go on with the next call. Other errors, but for that of ctx, are for good.
func (g *Group) Poll(ctx context.Context) (*Batch, error) {
	return g.take(ctx, true)
}

// take returns the next batch, as a whole or to be walked through. All that was
// handed out before counts as processed.
func (g *Group) take(ctx context.Context, whole bool) (*Batch, error) {
	rest, err := g.resume(whole)
	if rest != nil || err != nil {
		return rest, err
	}
	for {
		if err := g.trouble(); err != nil {
			return nil, err
		}
		b, err := g.r.Poll(ctx)
		g.pass()
		switch {
		case errors.Is(err, errNews):
			continue
		case err != nil:
			if g.passing(err) {
				continue
			}
			return nil, err
		}
		if g.accept(b, whole) {
			return b, nil
		}
	}
}

// Records walks over the records of all partitions of this member as they come,
// those of a partition in order. Each record is good until the next step, and
// counts as processed then. The walk ends with an error that is not a
// [*PartitionError], such as that of ctx, or when the loop is left; the next walk
// goes on with the record after.
func (g *Group) Records(ctx context.Context) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for {
			b, err := g.take(ctx, false)
			if err != nil {
				_, one := errors.AsType[*PartitionError](err)
				if !yield(Record{}, err) || !one {
					return
				}
				continue
			}
			if !g.walk(ctx, b, yield) {
				return
			}
		}
	}
}

// walk yields the records of b that were not yet; false when the loop was left.
func (g *Group) walk(ctx context.Context, b *Batch, yield func(Record, error) bool) bool {
	for {
		if isDone(ctx) {
			g.layDown(b)
			yield(Record{}, context.Cause(ctx))
			return false
		}
		if !b.Next() {
			break
		}
		if !g.hold(b) {
			return true // it is not this member's any more, and nothing of it in hand
		}
		if !yield(b.rec, nil) {
			g.leaveAt(b)
			return false
		}
	}
	g.finish(b)
	if err := b.Err(); err != nil && !errors.Is(err, ErrPartitionLost) {
		return yield(Record{}, err)
	}
	return true
}

// Seek makes a partition of this member go on at another place, which is also
// what is committed next.
func (g *Group) Seek(ctx context.Context, topic string, partition int32, to Start) error {
	p := g.part(partitionKey{topic, partition})
	if p == nil {
		return notOwned(topic, partition)
	}
	if err := to.check(); err != nil {
		return err
	}
	l := &lookup{topic: topic, id: p.id, partition: partition, start: to}
	if err := g.c.resolveAll(ctx, []*lookup{l}, g.r.o.isolation); err != nil {
		return fmt.Errorf("seek: %w", err)
	}
	g.mu.Lock()
	p.moving = true
	if g.hand != nil && g.hand.part == p {
		g.emptyLocked()
	}
	g.mu.Unlock()
	g.r.placeAt(l, noOffset)
	g.mu.Lock()
	p.moving = false
	p.placed = true
	p.beginLocked(l.from)
	owned := g.parts[p.partitionKey] == p && !p.giving
	g.mu.Unlock()
	if !owned {
		g.r.lose(p.partitionKey)
		return notOwned(topic, partition)
	}
	return nil
}

func notOwned(topic string, partition int32) error {
	return fmt.Errorf("%s/%d is not assigned to this member: %w", topic, partition, ErrStaleAssignment)
}

// Close commits what is processed and leaves the group; a static member (see
// [InstanceID]) keeps its place for the session timeout. It does not wait for a
// record in hand, which is not committed. A Poll that waits returns [ErrClosed].
// The error is that of the last commit.
func (g *Group) Close() error { return g.close(g.o.instance == "") }

// Leave is Close, and a static member leaves, too: its partitions go to others at
// once.
func (g *Group) Leave() error { return g.close(true) }

func (g *Group) close(leave bool) error {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return nil
	}
	g.closed = true
	begun := g.begun
	g.mu.Unlock()
	poke(g.r.news)
	g.stopKeeping()
	g.keepers.Wait()
	var err error
	if begun {
		err = g.finishAll()
		if leave {
			g.goodbye()
		}
	}
	g.stop()
	g.workers.Wait()
	g.mu.Lock()
	// What is in hand is the caller's alone from here on.
	g.rest = nil
	g.emptyLocked()
	g.mu.Unlock()
	return errors.Join(err, g.r.Close())
}

// finishAll gives everything up in good order.
func (g *Group) finishAll() error {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	g.mu.Lock()
	ps := sortedParts(g.parts)
	g.mu.Unlock()
	g.stopReading(ps)
	return g.giveUp(ctx, ps)
}

// goodbye leaves, as far as that can be said.
func (g *Group) goodbye() {
	timer := time.NewTimer(verifyTimeout)
	defer timer.Stop()
	close(g.leave)
	select {
	case <-g.left:
	case <-timer.C: // the session timeout says it for us
	}
}
