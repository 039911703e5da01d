package partition

import (
	"slices"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// A core decides what is committed, whom to count on for it, and what a follower
// may do to its log. It is pure: events and times go in, the high watermark and
// things to do come out; no goroutine, no clock, no I/O. Its caller serializes
// the events.
type core struct {
	self  metadata.BrokerID
	role  role
	epoch record.Epoch
	// leso is the log end when this epoch began: until the high watermark is
	// there, it may be below what an earlier leader has committed.
	leso record.Offset

	// Invariant: logStart <= hw <= own.written. While leading hw never falls;
	// while following it falls only by a cut.
	logStart record.Offset
	hw       record.Offset
	// own is how far this broker's log goes. Invariant: own.durable may be ahead
	// of a cut for a moment; what counts is never above own.written.
	own progress

	// committed is the ISR the controller remembers, elr who else it may elect;
	// proposals are changes whose outcome is unknown. The high watermark is held
	// back by every member of any of them, because each may be what the
	// controller elects from; but only committed members count towards minISR,
	// because a proposed one may never become electable.
	committed []metadata.BrokerID
	elr       []metadata.BrokerID
	replicas  []metadata.BrokerID
	minISR    int
	sync      bool

	// Invariant: each proposal's base is partitionEpoch and its session is
	// session; a change of either settles it. At most one is made at a time, but
	// no outcome is ever assumed.
	proposals      []proposal
	partitionEpoch int64
	session        uint64
	retryAt        time.Time // no proposal before: the last one was rejected

	// followers are those that subscribed in this epoch: what a replica said in
	// another one may have been cut since.
	followers map[metadata.BrokerID]*follower
	lag       lagClock
	moving    bool // being handed over: nothing is appended
	// sound is when this leader had read its own log through in this epoch, and all
	// of it was good; zero: it has not, or has met damage since. Invariant: zero
	// while it does not lead.
	sound time.Time

	// Who is registered as the broker id: its epoch, and whether it may join an
	// ISR. Nil: nobody is known.
	registered func(id metadata.BrokerID) (epoch int64, eligible bool)

	follow follow
}

// A proposal is an ISR the controller was asked for.
type proposal struct {
	isr     []metadata.BrokerID
	base    int64 // the partition epoch it starts from: the controller compares it
	session uint64
	number  uint64
}

// progress is how far a replica has come: ends, exclusive.
type progress struct {
	written record.Offset // the operating system has it
	durable record.Offset // the disk has it
}

// A role is what this broker is to the partition.
type role uint8

const (
	idle    role = iota // neither: no leader is known, or this broker is fenced
	leading             // appends and answers
	following
)

// lead begins an epoch.
func (c *core) lead(p *metadata.Partition, session uint64, own progress, now time.Time) {
	c.role, c.epoch = leading, p.LeaderEpoch
	c.leso, c.own = own.written, own
	c.followers = map[metadata.BrokerID]*follower{}
	c.proposals, c.retryAt, c.moving, c.sound = nil, time.Time{}, false, time.Time{}
	c.follow = follow{}
	c.hw = min(max(c.hw, c.logStart), own.written)
	c.lag.begin(c.hw, own.written, now)
	c.take(p, session)
	c.advance()
}

// take copies the committed state of the partition.
func (c *core) take(p *metadata.Partition, session uint64) {
	c.committed, c.elr, c.replicas, c.minISR, c.sync = p.ISR, p.ELR, p.Replicas, p.MinISR, p.Sync
	c.partitionEpoch, c.session = p.PartitionEpoch, session
}

// resolve takes a newer committed state. It settles the proposals that started
// from an older partition epoch, for the controller compares it; and all, when
// it comes with a new session's snapshot, before which the controller carried
// out or dropped what earlier sessions asked for. Nothing else settles any.
func (c *core) resolve(p *metadata.Partition, session uint64) {
	if p.PartitionEpoch < c.partitionEpoch && session == c.session {
		return
	}
	if p.PartitionEpoch > c.partitionEpoch || session > c.session {
		c.proposals, c.retryAt = nil, time.Time{}
	}
	c.take(p, session)
	c.advance()
}

// stand takes the committed state of a partition this broker does not lead. When
// that is another leadership than before, whatever was under way is dropped, and
// stand returns true.
func (c *core) stand(r role, p *metadata.Partition, session uint64) bool {
	if c.role == r && c.epoch == p.LeaderEpoch && c.follow.leader == p.Leader {
		c.follow.lossy = p.LossyEpochs
		c.take(p, session)
		return false
	}
	c.role, c.epoch = r, p.LeaderEpoch
	c.proposals, c.followers, c.moving, c.sound = nil, nil, false, time.Time{}
	c.lag = lagClock{max: c.lag.max}
	c.follow = follow{leader: p.Leader, lossy: p.LossyEpochs}
	c.take(p, session)
	return true
}

// appended notes the end of the own log.
func (c *core) appended(end record.Offset, now time.Time) {
	if end > c.own.written {
		c.charge(now)
		c.own.written = end
		c.lag.appended(c.hw, end, now)
	}
	c.advance()
}

// synced notes how much of the own log the disk has. It reports whether the high
// watermark moved.
func (c *core) synced(durable record.Offset) bool {
	c.own.durable = max(c.own.durable, durable)
	return c.advance()
}

// cut notes that the log begins later now.
func (c *core) cut(logStart record.Offset) {
	c.logStart = max(c.logStart, logStart)
	c.hw = max(c.hw, c.logStart)
}

// enough says whether the committed ISR is as large as it must be.
func (c *core) enough() bool { return len(c.committed) >= c.minISR }

// settled says whether the high watermark covers all that earlier leaders may
// have committed.
func (c *core) settled() bool { return c.role == leading && c.hw >= c.leso }

// drained says whether all that was appended is committed.
func (c *core) drained() bool { return c.role == leading && c.hw == c.own.written }

// others yields each other broker of the sets once.
func (c *core) others(yield func(metadata.BrokerID) bool, sets ...[]metadata.BrokerID) {
	for i, set := range sets {
		for _, id := range set {
			if id == c.self || slices.ContainsFunc(sets[:i], func(s []metadata.BrokerID) bool { return slices.Contains(s, id) }) {
				continue
			}
			if !yield(id) {
				return
			}
		}
	}
}

// maximal returns the committed ISR and all proposed ones.
func (c *core) maximal() [][]metadata.BrokerID {
	sets := [][]metadata.BrokerID{c.committed}
	for _, p := range c.proposals {
		sets = append(sets, p.isr)
	}
	return sets
}

// advance moves the high watermark to the least that any member of the maximal
// ISR has, while enough of the committed ISR are in.
func (c *core) advance() bool {
	if c.role != leading || !c.enough() || !slices.Contains(c.committed, c.self) {
		return false
	}
	hw := c.counted(c.own)
	c.others(func(id metadata.BrokerID) bool {
		hw = min(hw, c.held(id))
		return hw > c.hw
	}, c.maximal()...)
	if hw <= c.hw {
		return false
	}
	c.hw = hw
	return true
}

// held is what of a follower's log counts: nothing without an ack in this epoch.
func (c *core) held(id metadata.BrokerID) record.Offset {
	if f := c.followers[id]; f != nil && c.current(id, f) {
		return c.counted(f.progress)
	}
	return 0
}

// counted is what of a replica's progress counts under the flush mode.
func (c *core) counted(p progress) record.Offset {
	if c.sync {
		return min(p.durable, p.written)
	}
	return p.written
}

// deletedBelow says whether every replica that may be elected begins at start or
// later: the members of the ISR, of one that was proposed, and of the ELR. From
// another leader records would come back that were said to be deleted.
func (c *core) deletedBelow(start record.Offset) bool {
	if c.role != leading || c.logStart < start {
		return false
	}
	all := true
	c.others(func(id metadata.BrokerID) bool {
		f := c.followers[id]
		all = f != nil && c.current(id, f) && f.logStart >= start
		return all
	}, append(c.maximal(), c.elr)...)
	return all
}
