package state

import "slices"

// Move returns the change that gives a partition another leader after the old one released it, or because it must not lead any
// longer. A leader that released takes no more records in its epoch, so the change is made even if to can't lead by now: for
// another member of the ISR, or, with none, for the old leader again in a new epoch. With drop, the old leader leaves the ISR
// and is not eligible: its copy may lack something.
//
// It returns false when the partition is not led by from in that epoch any more, or nobody can take over and must be false.
func (i *Image) Move(k PartitionKey, from BrokerID, epoch int64, to BrokerID, drop, released bool) (Change, bool) {
	old := i.Partition(k)
	if old == nil || old.Leader != from || old.LeaderEpoch != epoch {
		return Change{}, false
	}
	next := old.clone()
	if target := i.Successor(old, to); target != NoLeader {
		next.Leader = target
	} else if !released {
		return Change{}, false
	}
	if drop && next.Leader != from {
		next.ISR, next.ELR = without(next.ISR, from), without(next.ELR, from)
	}
	i.shrink(next)
	next.PartitionEpoch++
	next.LeaderEpoch++
	return put(next, old.Revision), true
}

// Successor returns who may take the leadership of a partition over: to if it can, else the first member of the ISR that can,
// else NoLeader.
func (i *Image) Successor(p *Partition, to BrokerID) BrokerID {
	can := func(id BrokerID) bool { return id != p.Leader && i.electable(id) && slices.Contains(p.ISR, id) }
	if can(to) {
		return to
	}
	if n := slices.IndexFunc(p.Replicas, can); n >= 0 {
		return p.Replicas[n]
	}
	return NoLeader
}

// Leads returns the partitions that a broker leads and another could lead in its place, in order.
func (i *Image) Leads(id BrokerID) []*Partition {
	var led []*Partition
	for _, p := range i.PartitionsOf(id) {
		if p.Leader == id && i.serves(p) && i.Successor(p, NoLeader) != NoLeader {
			led = append(led, p)
		}
	}
	return led
}

// serves reports whether a partition belongs to a topic in service.
func (i *Image) serves(p *Partition) bool {
	t := i.Topic(p.Topic)
	return t != nil && t.Phase == TopicActive
}

// Misled returns the partitions that are not led by their preferred leader, and could be: all replicas are in sync, and the
// preferred one is in service.
func (i *Image) Misled() []*Partition { return i.sorted(i.misled) }

// isMisled is Misled's condition.
func (i *Image) isMisled(p *Partition) bool {
	return p.Leader != NoLeader && p.Leader != p.Replicas[0] && len(p.ISR) == len(p.Replicas) &&
		i.electable(p.Replicas[0]) && i.electable(p.Leader) && i.serves(p)
}
