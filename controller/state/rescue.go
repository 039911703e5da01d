package state

import (
	"cmp"
	"fmt"
	"slices"
)

// A Copy is what is known of one replica of a partition when an operator asks.
type Copy struct {
	Broker BrokerID
	Phase  BrokerPhase
	Role   CopyRole
	// Silent is whether the broker is in service as far as is known, and did not answer just now: it may be dead.
	Silent bool
	// Report is nil when the broker has not reported the replica.
	Report *ReplicaReport
	// MissingCommitted and MissingRecords are how many offsets it lacks below the highest high watermark, and below the end of the
	// longest copy, as far as the reports tell.
	MissingCommitted, MissingRecords int64
}

// A CopyRole is what a partition's record says of a replica.
type CopyRole uint8

// The roles of replicas.
const (
	CopyInSync    CopyRole = iota + 1
	CopyEligible           // not in sync, yet complete
	CopyLastKnown          // it was in sync and may have lost records
	CopyBehind
)

func (p *Partition) role(id BrokerID) CopyRole {
	switch {
	case slices.Contains(p.ISR, id):
		return CopyInSync
	case slices.Contains(p.ELR, id):
		return CopyEligible
	case slices.Contains(p.LastKnown, id):
		return CopyLastKnown
	default:
		return CopyBehind
	}
}

// A Rescue is a recovery election that an operator asks for.
type Rescue struct {
	Copies []Copy   // in order of preference
	Leader BrokerID // that would be elected
	Change Change
}

// Rescue decides on the election of a copy of a partition that has no leader: from's, or, when that is NoLeader, the one with
// the highest (last epoch, log end offset) of those that are in service, answer and reported. The new epoch is recorded as lossy.
//
// Of brokers that are silent it is not known yet that they are dead. To elect one would end what is recorded of the complete copies,
// for a leader that is gone in a moment; to elect another one that has less would give up what it may bring in a moment. So either is
// done only when it is asked for.
//
// The copies are returned also with a refusal that leaves an operator the choice.
func (i *Image) Rescue(ref Ref, partition int32, from BrokerID, reports Reports, silent map[BrokerID]bool) (Rescue, error) {
	t := i.TopicNamed(ref.Name)
	switch {
	case t == nil:
		return Rescue{}, refuse(ErrTopicNotFound, fmt.Sprintf("there is no topic %.300q", ref.Name), "topic", ref.Name)
	case ref.ID != t.ID && ref.ID != (Ref{}).ID:
		return Rescue{}, refuse(ErrTopicIDMismatch,
			fmt.Sprintf("topic %q now has the id %s: it was deleted and created again", ref.Name, t.ID), "topic", ref.Name, "topicId", t.ID.String())
	}
	k := PartitionKey{t.ID, partition}
	p := i.Partition(k)
	if p == nil || !i.serves(p) {
		return Rescue{}, refuse(ErrPartitionNotFound, fmt.Sprintf("topic %q has no partition %d", ref.Name, partition), "topic", ref.Name)
	}
	r := Rescue{Copies: i.copies(p, reports, silent), Leader: NoLeader}
	if p.Leader != NoLeader {
		return r, refuse(ErrInvalidRequest, fmt.Sprintf("%s/%d is led by broker %d: there is nothing to recover", ref.Name, partition, p.Leader))
	}
	for _, c := range r.Copies {
		switch {
		case from != NoLeader && c.Broker == from && c.Phase != BrokerActive:
			return r, refuse(ErrInvalidRequest, fmt.Sprintf("broker %d is not in service: start it, or choose another copy of %s/%d", from, ref.Name, partition))
		case c.Phase != BrokerActive, from != NoLeader && c.Broker != from, from == NoLeader && (c.Report == nil || c.Silent):
		case r.Leader == NoLeader || later(c.Report, reports[r.Leader][k]):
			r.Leader = c.Broker
		}
	}
	if r.Leader == NoLeader {
		if from != NoLeader {
			return r, refuse(ErrInvalidRequest, fmt.Sprintf("broker %d holds no copy of %s/%d: its copies are on %v", from, ref.Name, partition, p.Replicas))
		}
		return r, refuse(ErrInvalidRequest, fmt.Sprintf("no broker that holds a copy of %s/%d is in service and answers: start one of %v", ref.Name, partition, p.Replicas))
	}
	if better := r.better(reports[r.Leader][k]); from == NoLeader && better != NoLeader {
		r.Leader = NoLeader
		return r, refuse(ErrInvalidRequest, fmt.Sprintf("broker %d holds more of %s/%d than any other and does not answer just now: try again in a few seconds, when it does or is known to be dead, or choose a copy",
			better, ref.Name, partition))
	}
	next := p.clone()
	next.Leader, next.ISR, next.ELR, next.LastKnown = r.Leader, []BrokerID{r.Leader}, nil, nil
	next.LeaderEpoch++
	next.PartitionEpoch++
	next.markLossy()
	r.Change = put(next, p.Revision)
	return r, nil
}

// better returns a broker that is silent and reported more than a copy has.
func (r *Rescue) better(than ReplicaReport) BrokerID {
	for _, c := range r.Copies {
		if c.Silent && later(c.Report, than) {
			return c.Broker
		}
	}
	return NoLeader
}

func later(a *ReplicaReport, b ReplicaReport) bool {
	return a != nil && cmp.Or(cmp.Compare(a.LastEpoch, b.LastEpoch), cmp.Compare(a.LogEndOffset, b.LogEndOffset)) > 0
}

// copies returns what is known of a partition's replicas.
func (i *Image) copies(p *Partition, reports Reports, silent map[BrokerID]bool) []Copy {
	k := p.PartitionKey()
	var all []Copy
	committed, end := int64(0), int64(0)
	for _, id := range p.Replicas {
		c := Copy{Broker: id, Phase: i.phase(id), Role: p.role(id)}
		c.Silent = silent[id] && c.Phase == BrokerActive
		if r, ok := reports[id][k]; ok {
			c.Report = &r
			committed, end = max(committed, r.HighWatermark), max(end, r.LogEndOffset)
		}
		all = append(all, c)
	}
	for n := range all {
		if r := all[n].Report; r != nil {
			all[n].MissingCommitted, all[n].MissingRecords = max(0, committed-r.LogEndOffset), end-r.LogEndOffset
		}
	}
	return all
}

// Hold returns the change that takes a broker out of service until its process is started anew.
func (i *Image) Hold(id BrokerID) ([]Change, *Broker, error) {
	b := i.brokers[id]
	if b == nil {
		return nil, nil, refuse(ErrInvalidRequest, fmt.Sprintf("broker %d is not registered", id), "broker", itoa(id))
	}
	if b.Held {
		return nil, b, nil
	}
	c := *b
	c.Phase, c.Held = BrokerFenced, true
	return []Change{put(&c, b.Revision)}, &c, nil
}
