package partition

import (
	"slices"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// A modelController decides about the one partition. It is right about the
// rules, unless a mutation says otherwise, and slow about everything.
type modelController struct {
	w *world

	part       metadata.Partition
	registered map[metadata.BrokerID]int64
	fenced     map[metadata.BrokerID]bool
	todo       []fenceWork
	inbox      []modelProposal
	// lost holds brokers whose loss is not yet known to the partition.
	lost map[metadata.BrokerID]bool
}

type fenceWork struct {
	broker metadata.BrokerID
	lost   bool // it may have lost records
}

type modelProposal struct {
	from metadata.BrokerID
	metadata.Proposal
}

// A view is what a broker is told, and when: one push of a session.
type view struct {
	session    uint64
	part       metadata.Partition
	registered map[metadata.BrokerID]int64
	fenced     map[metadata.BrokerID]bool
	rejected   uint64 // a rejection instead, of this number
}

func (c *modelController) view(session uint64) view {
	v := view{session: session, part: c.part, registered: map[metadata.BrokerID]int64{}, fenced: map[metadata.BrokerID]bool{}}
	v.part.ISR, v.part.ELR, v.part.LossyEpochs = slices.Clone(c.part.ISR), slices.Clone(c.part.ELR), slices.Clone(c.part.LossyEpochs)
	for id, e := range c.registered {
		v.registered[id], v.fenced[id] = e, c.fenced[id]
	}
	return v
}

// changed tells every broker.
func (c *modelController) changed() {
	for _, b := range c.w.brokers {
		if b.alive {
			b.views = append(b.views, c.view(b.session))
		}
	}
}

// hear takes a proposal, the oldest of a broker, in some order among brokers.
func (c *modelController) hear(i int) {
	m := c.inbox[i]
	c.inbox = slices.Delete(c.inbox, i, i+1)
	if c.carryOut(m) {
		c.changed()
		return
	}
	if b := c.w.brokers[m.from-1]; b.alive && b.session == m.Session {
		b.views = append(b.views, view{session: b.session, rejected: m.Number})
	}
}

func (c *modelController) carryOut(m modelProposal) bool {
	p := &c.part
	if m.LeaderEpoch != p.LeaderEpoch || (m.PartitionEpoch != p.PartitionEpoch && !c.w.mut.anyPartitionEpoch) || m.from != p.Leader {
		return false
	}
	var isr []metadata.BrokerID
	for _, i := range m.ISR {
		in := slices.Contains(p.ISR, i.ID)
		if !in && (c.fenced[i.ID] || (i.Epoch != c.registered[i.ID] && !c.w.mut.anyMemberEpoch)) {
			return false
		}
		isr = append(isr, i.ID)
	}
	c.setISR(isr)
	p.PartitionEpoch++
	c.w.trace("controller: isr %v elr %v", p.ISR, p.ELR)
	return true
}

func (c *modelController) setISR(isr []metadata.BrokerID) {
	p := &c.part
	gone := slices.DeleteFunc(slices.Clone(p.ISR), func(id metadata.BrokerID) bool { return slices.Contains(isr, id) })
	p.ISR = isr
	if len(isr) >= p.MinISR {
		p.ELR = nil
		return
	}
	elr := append(slices.Clone(p.ELR), gone...)
	p.ELR = slices.DeleteFunc(elr, func(id metadata.BrokerID) bool { return slices.Contains(isr, id) })
}

// elect chooses a leader, or none.
func (c *modelController) elect() {
	p := &c.part
	unfenced := func(set []metadata.BrokerID) []metadata.BrokerID {
		return slices.DeleteFunc(slices.Clone(set), func(id metadata.BrokerID) bool { return c.fenced[id] })
	}
	p.LeaderEpoch++
	p.PartitionEpoch++
	from := unfenced(p.ISR)
	if len(from) == 0 {
		from = unfenced(p.ELR)
	}
	switch {
	case len(from) > 0:
		p.Leader = from[c.w.rng.IntN(len(from))]
		if !slices.Contains(p.ISR, p.Leader) {
			c.setISR(append(slices.Clone(p.ISR), p.Leader))
		}
		c.w.trace("ELECT %d in %d, isr %v elr %v", p.Leader, p.LeaderEpoch, p.ISR, p.ELR)
	case len(p.ISR)+len(p.ELR) == 0 && len(p.LastKnown) > 0 && len(unfenced(p.LastKnown)) == len(p.LastKnown):
		c.recover()
	default:
		p.Leader = metadata.NoBroker
		c.w.trace("NO LEADER in %d, isr %v elr %v", p.LeaderEpoch, p.ISR, p.ELR)
	}
}

// recover elects the best of those that may have lost records.
func (c *modelController) recover() {
	p := &c.part
	best := p.LastKnown[0]
	for _, id := range p.LastKnown[1:] {
		a, b := c.w.brokers[best-1].log, c.w.brokers[id-1].log
		ea, eb := a.EpochAt(a.End()-1), b.EpochAt(b.End()-1)
		if eb > ea || (eb == ea && b.End() > a.End()) {
			best = id
		}
	}
	p.Leader, p.ISR, p.ELR, p.LastKnown = best, []metadata.BrokerID{best}, nil, nil
	p.LossyEpochs = append(slices.Clone(p.LossyEpochs), p.LeaderEpoch)
	c.w.trace("RECOVERY ELECTS %d in %d", best, p.LeaderEpoch)
	c.w.forgive(best)
}

func (c *modelController) fence(id metadata.BrokerID) {
	if !c.fenced[id] {
		c.fenced[id] = true
		c.todo = append(c.todo, fenceWork{broker: id})
		c.w.trace("FENCE %d", id)
	}
}

// work does one step of what fences left to do.
func (c *modelController) work() {
	if len(c.todo) == 0 {
		return
	}
	t := c.todo[0]
	c.todo = c.todo[1:]
	p := &c.part
	without := func(set []metadata.BrokerID) []metadata.BrokerID {
		return slices.DeleteFunc(slices.Clone(set), func(id metadata.BrokerID) bool { return id == t.broker })
	}
	switch {
	case t.lost:
		delete(c.lost, t.broker)
		if !slices.Contains(p.ISR, t.broker) && !slices.Contains(p.ELR, t.broker) {
			break
		}
		p.PartitionEpoch++
		p.ISR, p.ELR = without(p.ISR), without(p.ELR)
		if len(p.ISR)+len(p.ELR) == 0 {
			p.LastKnown = append(slices.Clone(p.LastKnown), t.broker)
		}
	case len(p.ISR) > 1 && slices.Contains(p.ISR, t.broker):
		p.PartitionEpoch++
		c.setISR(without(p.ISR))
	}
	c.w.trace("fence work on %d (lost %v): isr %v elr %v", t.broker, t.lost, p.ISR, p.ELR)
	if p.Leader == t.broker || (p.Leader == metadata.NoBroker && t.lost) {
		c.elect()
	}
	c.changed()
}

func (c *modelController) unfence(id metadata.BrokerID) {
	b := c.w.brokers[id-1]
	busy := slices.ContainsFunc(c.todo, func(t fenceWork) bool { return t.broker == id })
	if !c.fenced[id] || !b.alive || b.epoch != c.registered[id] || (busy && !c.w.mut.unfenceEarly) {
		return
	}
	delete(c.fenced, id)
	c.w.trace("UNFENCE %d", id)
	if c.part.Leader == metadata.NoBroker {
		c.elect()
	}
	c.changed()
}

// register takes a new incarnation; lost says that its log may miss something.
func (c *modelController) register(b *modelBroker, lost bool) {
	c.fence(b.id) // a new incarnation starts fenced
	c.registered[b.id] = b.epoch
	if lost {
		c.todo = append(c.todo, fenceWork{broker: b.id, lost: true})
	}
}

// connect opens a new session: what earlier ones asked for is settled before the
// snapshot is cut.
func (c *modelController) connect(b *modelBroker) {
	b.session++
	b.views = nil
	if !c.w.mut.lateProposals {
		for i := 0; i < len(c.inbox); {
			if c.inbox[i].from != b.id {
				i++
				continue
			}
			m := c.inbox[i]
			c.inbox = slices.Delete(c.inbox, i, i+1)
			if c.w.rng.IntN(2) == 0 && c.carryOut(m) {
				c.changed()
			}
		}
	}
	b.views = []view{c.view(b.session)}
	c.w.trace("SESSION %d of %d", b.session, b.id)
}

// minISR changes the topic's minimum.
func (c *modelController) minISR(n int) {
	c.part.MinISR = n
	c.part.PartitionEpoch++
	if len(c.part.ISR) >= n && !c.w.mut.keepELR {
		c.part.ELR = nil // else the high watermark stands still as before
	}
	c.w.trace("MIN ISR %d, elr %v", n, c.part.ELR)
	c.changed()
}

// epochs of leaders are never given twice; the world checks it.
type leaderships map[record.Epoch]metadata.BrokerID
