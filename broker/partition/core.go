package partition

import (
	"slices"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// A core decides what is committed. It is pure: events go in, the high
// watermark comes out; no goroutine, no clock, no I/O. Its caller serializes
// the events.
type core struct {
	self  metadata.BrokerID
	role  role
	epoch record.Epoch
	// leso is the log end when this epoch began: until the high watermark is
	// there, it may be below what an earlier leader has committed.
	leso record.Offset

	// Invariant: logStart <= hw <= written, and while leading hw never falls.
	logStart record.Offset
	hw       record.Offset
	// own is how far this broker's log goes.
	own progress

	// committed is the ISR the controller remembers; proposals are changes to
	// it whose outcome is unknown. The high watermark is held back by every
	// member of any of them, because each may be what the controller elects
	// from; but only committed members count towards minISR, because a proposed
	// one may never become electable-only.
	committed []metadata.BrokerID
	proposals [][]metadata.BrokerID
	minISR    int
	sync      bool

	// acks are those of this epoch: what a member said in another one may have
	// been truncated since.
	acks map[metadata.BrokerID]progress
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
func (c *core) lead(p *metadata.Partition, own progress) {
	c.role, c.epoch = leading, p.LeaderEpoch
	c.leso, c.own = own.written, own
	c.acks = map[metadata.BrokerID]progress{}
	c.proposals = nil
	c.hw = min(max(c.hw, c.logStart), own.written)
	c.resolve(p)
}

// resolve takes the committed state of the partition; it settles every
// proposal.
func (c *core) resolve(p *metadata.Partition) {
	c.committed, c.minISR, c.sync = p.ISR, p.MinISR, p.Sync
	c.proposals = nil
	c.advance()
}

// propose notes that the controller was asked for another ISR.
func (c *core) propose(isr []metadata.BrokerID) { c.proposals = append(c.proposals, isr) }

// step down from leading, or from nothing.
func (c *core) stop(r role, epoch record.Epoch) {
	c.role, c.epoch = r, epoch
	c.proposals, c.acks = nil, nil
}

// appended notes the end of the own log.
func (c *core) appended(end record.Offset) {
	c.own.written = max(c.own.written, end)
	c.advance()
}

// synced notes how much of the own log the disk has. It reports whether the
// high watermark moved, as acked does.
func (c *core) synced(durable record.Offset) bool {
	c.own.durable = max(c.own.durable, durable)
	return c.advance()
}

// acked notes what a follower has, in this epoch.
func (c *core) acked(id metadata.BrokerID, epoch record.Epoch, p progress) bool {
	if c.role != leading || epoch != c.epoch {
		return false
	}
	old := c.acks[id]
	c.acks[id] = progress{max(old.written, p.written), max(old.durable, p.durable)}
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

// alone says whether no other broker could be elected, so that none need
// confirm this leadership.
func (c *core) alone(elr []metadata.BrokerID) bool {
	for _, set := range append([][]metadata.BrokerID{c.committed, elr}, c.proposals...) {
		if slices.ContainsFunc(set, func(id metadata.BrokerID) bool { return id != c.self }) {
			return false
		}
	}
	return true
}

// advance moves the high watermark to the least that any member of the maximal
// ISR has, while enough of the committed ISR are in.
func (c *core) advance() bool {
	if c.role != leading || !c.enough() || !slices.Contains(c.committed, c.self) {
		return false
	}
	hw := c.counted(c.own)
	for _, set := range append([][]metadata.BrokerID{c.committed}, c.proposals...) {
		for _, id := range set {
			if id != c.self {
				hw = min(hw, c.counted(c.acks[id])) // no ack in this epoch: 0
			}
		}
	}
	if hw <= c.hw {
		return false
	}
	c.hw = hw
	return true
}

// counted is what of a replica's progress counts under the flush mode.
func (c *core) counted(p progress) record.Offset {
	if c.sync {
		return min(p.durable, p.written)
	}
	return p.written
}
