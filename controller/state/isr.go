package state

import (
	"errors"
	"fmt"
	"slices"
)

// ErrAhead is returned for a proposal that knows more than the picture shows: this controller is out of date, and may neither
// accept nor reject.
var ErrAhead = errors.New("the proposer knows a newer state than this controller")

// A Member is one in-sync replica as its leader proposes it.
type Member struct {
	ID    BrokerID
	Epoch int64 // of the registration under which it caught up
}

// A Proposal is a leader's wish for the in-sync replicas of its partition.
type Proposal struct {
	Key            PartitionKey
	LeaderEpoch    int64
	PartitionEpoch int64 // that it starts from
	ISR            []Member
	Number         uint64
}

// A RejectedError says that a proposal was certainly not carried out, and never will be.
type RejectedError struct {
	Key            PartitionKey
	Number         uint64
	Reason         string // for people
	PartitionEpoch int64  // that stands; 0: there is no such partition
}

func (r *RejectedError) Error() string { return r.Reason }

// Propose returns the change that a leader's proposal asks for, a RejectedError, or ErrAhead. epoch is the proposer's broker epoch.
//
// A member that is added must be in service under the registration under which it caught up. One that stays may be shutting
// down, since it leaves when it can be spared. Who leaves while fewer than MinISR stay is complete, because the high watermark
// stands still from then on: it goes to the ELR.
func (i *Image) Propose(from BrokerID, epoch int64, p Proposal) (Change, error) {
	old := i.Partition(p.Key)
	reject := func(format string, args ...any) (Change, error) {
		r := &RejectedError{Key: p.Key, Number: p.Number, Reason: fmt.Sprintf(format, args...)}
		if old != nil {
			r.PartitionEpoch = old.PartitionEpoch
		}
		return Change{}, r
	}
	switch t := i.Topic(p.Key.Topic); {
	case old == nil || t == nil || t.Phase != TopicActive:
		return reject("there is no such partition")
	case p.LeaderEpoch > old.LeaderEpoch || p.PartitionEpoch > old.PartitionEpoch:
		return Change{}, ErrAhead
	case old.Leader != from || p.LeaderEpoch < old.LeaderEpoch:
		return reject("the leader is %d in epoch %d", old.Leader, old.LeaderEpoch)
	case p.PartitionEpoch < old.PartitionEpoch:
		return reject("the partition is at epoch %d, the proposal starts from %d", old.PartitionEpoch, p.PartitionEpoch)
	}
	if b := i.brokers[from]; b == nil || b.Epoch != epoch {
		return reject("broker %d was replaced", from)
	}
	isr, why := i.proposed(old, p.ISR)
	if why != "" {
		return reject("%s", why)
	}
	next := old.clone()
	next.setISR(isr)
	if next.changedFrom(old) == nil {
		return reject("the in-sync replicas are these already")
	}
	return put(next, old.Revision), nil
}

// proposed returns the proposed members in the order of replicas, or why they can't be.
func (i *Image) proposed(p *Partition, members []Member) ([]BrokerID, string) {
	epochs := map[BrokerID]int64{}
	for _, m := range members {
		if _, twice := epochs[m.ID]; twice {
			return nil, fmt.Sprintf("broker %d is named twice", m.ID)
		}
		if !slices.Contains(p.Replicas, m.ID) {
			return nil, fmt.Sprintf("broker %d holds no replica", m.ID)
		}
		epochs[m.ID] = m.Epoch
		b := i.brokers[m.ID]
		stays := slices.Contains(p.ISR, m.ID)
		switch {
		case b == nil:
			return nil, fmt.Sprintf("broker %d is not registered", m.ID)
		case b.Epoch != m.Epoch:
			return nil, fmt.Sprintf("broker %d is registered with epoch %d, not %d", m.ID, b.Epoch, m.Epoch)
		case b.Phase == BrokerFenced:
			return nil, fmt.Sprintf("broker %d is fenced", m.ID)
		case b.Phase == BrokerShuttingDown && !stays:
			return nil, fmt.Sprintf("broker %d is shutting down", m.ID)
		}
	}
	if _, ok := epochs[p.Leader]; !ok {
		return nil, fmt.Sprintf("the leader, broker %d, is not among them", p.Leader)
	}
	var isr []BrokerID
	for _, id := range p.Replicas {
		if _, ok := epochs[id]; ok {
			isr = append(isr, id)
		}
	}
	// Those that stay keep their places, so that the same set is no change.
	if len(isr) == len(p.ISR) && !slices.ContainsFunc(p.ISR, func(id BrokerID) bool { return !slices.Contains(isr, id) }) {
		return slices.Clone(p.ISR), ""
	}
	return isr, ""
}

// setISR gives p other in-sync replicas. Who leaves while fewer than MinISR stay is complete and goes to the ELR. Without a leader
// nothing is committed, so that nobody becomes less than complete, also where another minimum would let the ISR commit alone: who
// is in it may turn out to have lost records when it comes back.
func (p *Partition) setISR(isr []BrokerID) {
	elr := p.ELR
	for _, id := range p.ISR {
		if !slices.Contains(elr, id) {
			elr = append(elr, id)
		}
	}
	p.ISR = isr
	p.ELR = slices.DeleteFunc(elr, func(id BrokerID) bool { return slices.Contains(isr, id) })
	if p.Leader != NoLeader && len(p.ISR) >= int(p.MinISR) {
		p.ELR = nil
	}
}

// Touch returns the change that writes a partition anew, as it is but for the partition epoch: after it, no transaction with an
// unknown outcome can change the partition any more.
func (i *Image) Touch(k PartitionKey) (Change, bool) {
	old := i.Partition(k)
	if old == nil {
		return Change{}, false
	}
	next := old.clone()
	next.PartitionEpoch++
	return put(next, old.Revision), true
}
