package state

import (
	"cmp"
	"maps"
	"slices"

	"github.com/google/uuid"
)

// settle returns what the rules make of a partition's record, or nil when it is so already.
//
// It is the work that follows a fence, an unfence, a shutdown and a changed configuration, all computed from the picture as it
// is, so it needs no memory of what happened:
//
//   - the ISR loses its fenced members, and those shutting down, as long as a better one is left; with none left it is kept,
//     because all of its members are complete and nobody can lead without them; a leader that shuts down stays until it has
//     handed over, which is Move's;
//   - who leaves while fewer than MinISR stay is complete as well, since the high watermark stands still: it goes to the ELR,
//     which is emptied once the ISR has MinISR members;
//   - a leader that may not lead is followed by the first replica, in order of preference, that may: a member of the ISR, else
//     of the ELR; where the topic allows an unclean election, any replica; or by none;
//   - MinISR and Sync follow the topic's configuration. Where there is a leader and the ISR is large enough for another MinISR,
//     the ELR is emptied in the same change: from then on the high watermark moves without its members. Where it is too small
//     under both, or nobody leads, they stay: the high watermark stands still as before, and they may be all that is left when
//     the ISR's disks are lost. A lower MinISR that relies on disks comes after them: see Lower.
func (i *Image) settle(p *Partition) *Partition {
	t := i.topics[p.Topic]
	if t == nil || t.record == nil || t.record.Phase == TopicDeleting {
		return nil
	}
	next := p.clone()
	next.MinISR, next.Sync = t.demand(p)
	if i.awaitsDisks(p) {
		next.MinISR = p.MinISR
	}
	i.elect(next, t.unclean)
	i.shrink(next)
	if next.Leader != NoLeader {
		next.LastKnown = nil
	}
	return next.changedFrom(p)
}

// awaitsDisks reports whether a partition is to have a lower MinISR under which what is acknowledged is on disks. Fewer copies
// are enough only once the disks have what was acknowledged when more were: until then, who leaves the ISR is as good as those
// that stay, whose power may be cut.
func (i *Image) awaitsDisks(p *Partition) bool {
	t := i.topics[p.Topic]
	if t == nil || t.record == nil || t.record.Phase == TopicDeleting {
		return false
	}
	minISR, sync := t.demand(p)
	return sync && minISR < p.MinISR
}

// Lower returns the next transaction of lower MinISRs: of partitions that are led, where the leader and all others of the ISR
// have applied that disks count. applied returns the revision that a broker has applied; a broker that has applied Sync has
// brought to its disk what it had before.
func (i *Image) Lower(applied func(BrokerID) Revision) []Change {
	var changes []Change
	for _, p := range i.sorted(i.awaiting) {
		late := func(id BrokerID) bool { return applied(id) < p.Revision }
		if !p.Sync || p.Leader == NoLeader || i.unsettled[p.PartitionKey()] || slices.ContainsFunc(p.ISR, late) {
			continue
		}
		if len(changes) == MaxChanges {
			break
		}
		next := p.clone()
		next.MinISR, _ = i.topics[p.Topic].demand(p)
		next.setISR(next.ISR)
		changes = append(changes, put(next.changedFrom(p), p.Revision))
	}
	return changes
}

// Lowering reports whether partitions of a topic are to have a lower MinISR, and have not.
func (i *Image) Lowering(id uuid.UUID) bool {
	for k := range i.awaiting {
		if k.Topic == id {
			return true
		}
	}
	return false
}

// changedFrom raises the epochs as far as p differs from old, and returns nil when it does not.
func (p *Partition) changedFrom(old *Partition) *Partition {
	same := p.Leader == old.Leader && p.MinISR == old.MinISR && p.Sync == old.Sync &&
		slices.Equal(p.ISR, old.ISR) && slices.Equal(p.ELR, old.ELR) && slices.Equal(p.LastKnown, old.LastKnown)
	if same {
		return nil
	}
	p.PartitionEpoch = old.PartitionEpoch + 1
	if p.Leader != old.Leader {
		p.LeaderEpoch = old.LeaderEpoch + 1
	}
	if p.Leader != NoLeader && !slices.Contains(old.ISR, p.Leader) && !slices.Contains(old.ELR, p.Leader) {
		p.markLossy()
	}
	return p
}

// maxLossyEpochs bounds what a partition remembers; older epochs are below any follower's log by then.
const maxLossyEpochs = 64

// markLossy records that p's leader epoch began with an election that may have lost data.
func (p *Partition) markLossy() {
	p.LossyEpochs = append(p.LossyEpochs, p.LeaderEpoch)
	if n := len(p.LossyEpochs) - maxLossyEpochs; n > 0 {
		p.LossyEpochs = p.LossyEpochs[n:]
	}
}

func (i *Image) phase(id BrokerID) BrokerPhase {
	if b := i.brokers[id]; b != nil {
		return b.Phase
	}
	return BrokerFenced // one that was never registered, or is gone
}

// electable reports whether a broker may be chosen as leader.
func (i *Image) electable(id BrokerID) bool { return i.phase(id) == BrokerActive }

// elect gives p a leader that may lead, or none.
func (i *Image) elect(p *Partition, unclean bool) {
	if p.Leader != NoLeader && i.phase(p.Leader) != BrokerFenced {
		return // one that shuts down serves until it has handed over, or is gone
	}
	inISR := func(id BrokerID) bool { return i.electable(id) && slices.Contains(p.ISR, id) }
	inELR := func(id BrokerID) bool { return i.electable(id) && slices.Contains(p.ELR, id) }
	if n := slices.IndexFunc(p.Replicas, inISR); n >= 0 {
		p.Leader = p.Replicas[n]
		return
	}
	if n := slices.IndexFunc(p.Replicas, inELR); n >= 0 {
		p.Leader = p.Replicas[n]
		p.ISR = append(p.ISR, p.Leader)
		p.ELR = without(p.ELR, p.Leader)
		return
	}
	if n := slices.IndexFunc(p.Replicas, i.electable); unclean && n >= 0 {
		p.Leader = p.Replicas[n]
		p.ISR, p.ELR = []BrokerID{p.Leader}, nil
		return
	}
	p.Leader = NoLeader
}

// shrink takes out of the ISR whoever may not stay in it.
func (i *Image) shrink(p *Partition) {
	stay := i.best(p.ISR)
	p.setISR(slices.DeleteFunc(slices.Clone(p.ISR), func(id BrokerID) bool {
		return !slices.Contains(stay, id) && id != p.Leader
	}))
}

// best returns the active ones of ids; if there is none, those that are not fenced; if there is none, all.
func (i *Image) best(ids []BrokerID) []BrokerID {
	for _, least := range []BrokerPhase{BrokerActive, BrokerShuttingDown} {
		var found []BrokerID
		for _, id := range ids {
			if ph := i.phase(id); ph == BrokerActive || ph == least {
				found = append(found, id)
			}
		}
		if len(found) > 0 {
			return found
		}
	}
	return slices.Clone(ids)
}

func without(ids []BrokerID, id BrokerID) []BrokerID {
	return slices.DeleteFunc(slices.Clone(ids), func(x BrokerID) bool { return x == id })
}

// Settled reports whether every partition that names a broker is as the rules want it.
func (i *Image) Settled(id BrokerID) bool {
	if len(i.unsettled) == 0 {
		return true
	}
	for k := range i.unsettled {
		if i.byBroker[id][k] {
			return false
		}
	}
	return true
}

// settleWork returns the next transaction of partitions to be settled: those that have no leader, or one that may not lead,
// first.
func (i *Image) settleWork() []Change {
	if len(i.unsettled) == 0 {
		return nil
	}
	urgency := func(p *Partition) int {
		if p.Leader == NoLeader || i.phase(p.Leader) == BrokerFenced {
			return 0
		}
		return 1
	}
	todo := i.sorted(i.unsettled)
	slices.SortStableFunc(todo, func(a, b *Partition) int { return cmp.Compare(urgency(a), urgency(b)) })
	var changes []Change
	for _, p := range todo[:min(len(todo), MaxChanges)] {
		if next := i.settle(p); next != nil {
			changes = append(changes, put(next, p.Revision))
		}
	}
	return changes
}

// Leaderless returns how many partitions of active topics have no leader.
func (i *Image) Leaderless() int {
	n := 0
	for _, t := range i.topics {
		if t.record == nil || t.record.Phase != TopicActive {
			continue
		}
		for p := range maps.Values(t.partitions) {
			if p.Leader == NoLeader {
				n++
			}
		}
	}
	return n
}

// SettleTopic returns the next transaction of a topic's partitions to be settled.
func (i *Image) SettleTopic(id uuid.UUID) []Change {
	var changes []Change
	for k := range i.unsettled {
		if k.Topic != id || len(changes) == MaxChanges {
			continue
		}
		if p := i.Partition(k); p != nil {
			if next := i.settle(p); next != nil {
				changes = append(changes, put(next, p.Revision))
			}
		}
	}
	return changes
}
