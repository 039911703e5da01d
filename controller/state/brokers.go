package state

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/google/uuid"
)

// A Registration is what a broker says of itself when it opens a session.
type Registration struct {
	// Broker is the record to be; its epoch, phase, judgement and revision are the controller's and ignored.
	Broker Broker
	// ClusterID is the cluster its data belongs to; uuid.Nil for an empty data root.
	ClusterID uuid.UUID
	// DataEpoch is the epoch of the incarnation that last had its data; 0: none.
	DataEpoch int64
	// Epoch is that under which this process was registered before; 0: never.
	Epoch int64
	// Alive is true while the process that is registered under the id may still live.
	Alive bool
}

// Register returns the changes that let a broker in; none when this incarnation is registered already. A new incarnation from
// the registered data root replaces the old one at once; one from another root must wait until the old one is dead, and so must
// one that was replaced, or two processes with copies of one root would take turns for ever.
func (i *Image) Register(r Registration) ([]Change, error) {
	if r.Broker.ID < 0 {
		return nil, refuse(ErrInvalidRequest, fmt.Sprintf("the broker's id is %d: it must be 0 or more", r.Broker.ID))
	}
	if r.ClusterID != uuid.Nil && r.ClusterID != i.ClusterID() {
		return nil, refuse(ErrClusterMismatch,
			fmt.Sprintf("the data of broker %d belongs to cluster %s, this is cluster %s: check the controllers' addresses and the data directory", r.Broker.ID, r.ClusterID, i.ClusterID()),
			"clusterId", i.ClusterID().String(), "want", r.ClusterID.String())
	}
	if level := i.Counters().FeatureLevel; level < r.Broker.MinFeatureLevel || level > r.Broker.MaxFeatureLevel {
		return nil, refuse(ErrFeatureLevel,
			fmt.Sprintf("the cluster is at feature level %d, broker %d speaks %d to %d: run a version that speaks it", level, r.Broker.ID, r.Broker.MinFeatureLevel, r.Broker.MaxFeatureLevel))
	}
	old := i.brokers[r.Broker.ID]
	if old != nil && old.Incarnation == r.Broker.Incarnation {
		return nil, nil
	}
	if old != nil && old.DirectoryID != r.Broker.DirectoryID && r.Alive {
		return nil, refuse(ErrDuplicateBroker,
			fmt.Sprintf("broker %d is registered and alive with another data directory: give this one another id, or stop the other one", old.ID),
			"broker", itoa(old.ID))
	}
	if old != nil && r.Epoch > 0 && r.Epoch < old.Epoch && r.Alive {
		return nil, refuse(ErrDuplicateBroker,
			fmt.Sprintf("broker %d was registered by another process since, from a copy of this one's data directory, and that one is alive: stop one of them, and remove its directory", old.ID),
			"broker", itoa(old.ID))
	}
	given := i.Counters().BrokerEpoch
	if old != nil {
		given = old.Epoch
	}
	if max(r.DataEpoch, r.Epoch) > given {
		return nil, refuse(ErrClusterMismatch,
			fmt.Sprintf("the data of broker %d are of a later time (broker epoch %d) than these metadata (%d): the controllers have an older copy of theirs, which may name replicas in sync that are so no more; "+
				"give them the newest data back, or restore a backup of these (runnel controller backup, restore)", r.Broker.ID, max(r.DataEpoch, r.Epoch), given),
			"broker", itoa(r.Broker.ID))
	}
	if r.Epoch > 0 && r.Epoch/epochBlock < i.Counters().BrokerEpoch/epochBlock {
		// What it reports is how it was when it started, and it acted as the cluster of then since.
		return nil, refuse(ErrClusterMismatch,
			fmt.Sprintf("the controllers were restored from a backup while broker %d ran: start it anew, so that its copies are compared with the others as they are now", r.Broker.ID),
			"broker", itoa(r.Broker.ID))
	}
	if err := i.checkAddresses(&r.Broker); err != nil {
		return nil, err
	}
	counters := *i.Counters()
	counters.BrokerEpoch++
	b := r.Broker
	b.Epoch, b.Phase, b.Judged, b.Held, b.Vouched, b.Revision = counters.BrokerEpoch, BrokerFenced, false, false, 0, 0
	base := Revision(0)
	if old != nil {
		base, b.Vouched = old.Revision, old.Vouched
		if old.Judged {
			b.Vouched = old.Epoch
		}
	}
	// One that registered and was not judged may have died before it noted its epoch: nobody counted on its data yet.
	b.Outdated = r.DataEpoch < b.Vouched
	return []Change{put(&counters, counters.Revision), put(&b, base)}, nil
}

// checkAddresses refuses an address that another broker in service has: clients would be sent to the wrong one. A fenced
// broker's address may have been given to another machine since.
func (i *Image) checkAddresses(b *Broker) error {
	for _, other := range i.Brokers() {
		if other.ID == b.ID || other.Phase == BrokerFenced {
			continue
		}
		for _, a := range []struct{ what, mine, its string }{
			{"client", b.ClientAddress, other.ClientAddress},
			{"internal", b.InternalAddress, other.InternalAddress},
		} {
			if a.mine != "" && a.mine == a.its {
				return refuse(ErrInvalidRequest, fmt.Sprintf("broker %d advertises the %s address %s, and so does broker %d: each broker needs its own", b.ID, a.what, a.mine, other.ID))
			}
		}
	}
	return nil
}

// incarnation returns the registration of a broker if it still has the epoch.
func (i *Image) incarnation(id BrokerID, epoch int64) (*Broker, error) {
	b := i.brokers[id]
	if b == nil || b.Epoch != epoch {
		return nil, refuse(ErrStaleBrokerEpoch, fmt.Sprintf("broker %d with epoch %d was replaced", id, epoch), "broker", itoa(id))
	}
	return b, nil
}

// inPhase returns the change that brings a broker to a phase, none if it is there.
func inPhase(b *Broker, phase BrokerPhase) []Change {
	if b.Phase == phase {
		return nil
	}
	c := *b
	c.Phase = phase
	return []Change{put(&c, b.Revision)}
}

// Fence returns the change after which a broker is electable nowhere and joins no ISR. The rest is Work.
func (i *Image) Fence(id BrokerID, epoch int64) ([]Change, error) {
	b, err := i.incarnation(id, epoch)
	if err != nil {
		return nil, err
	}
	return inPhase(b, BrokerFenced), nil
}

// ShutDown returns the change after which a broker's leaderships are handed over. A fenced one has none.
func (i *Image) ShutDown(id BrokerID, epoch int64) ([]Change, error) {
	b, err := i.incarnation(id, epoch)
	if err != nil || b.Phase == BrokerFenced {
		return nil, err
	}
	return inPhase(b, BrokerShuttingDown), nil
}

// Unfence returns the change that puts a broker in service; none while fence work is left that its former epochs caused, when
// it is in service, or when an operator holds it. The caller has seen to it that the broker applied its own registration.
func (i *Image) Unfence(id BrokerID, epoch int64) ([]Change, error) {
	b, err := i.incarnation(id, epoch)
	if err != nil || b.Phase != BrokerFenced || !b.Judged || b.Held || !i.Settled(id) {
		return nil, err
	}
	return inPhase(b, BrokerActive), nil
}

// A Shape is what recovery found of a replica.
type Shape uint8

// The shapes of a replica.
const (
	ShapeIntact  Shape = iota + 1 // nothing it acknowledged can be missing
	ShapeSuspect                  // it may have lost something
	ShapeLost                     // there was a directory, and it is missing, unreadable or foreign
)

// A ReplicaReport is what a broker's recovery found of one replica.
type ReplicaReport struct {
	Shape         Shape
	LastEpoch     int64 // leader epoch of the last record
	LogEndOffset  int64
	HighWatermark int64 // as checkpointed
}

// Reports holds what brokers found, by broker.
type Reports map[BrokerID]map[PartitionKey]ReplicaReport

// Judge weighs a new incarnation's recovery report and returns the next transaction, which holds the broker's own record,
// judged, when it is the last. It returns nothing for a broker that was judged, or while its partitions are unsettled.
//
// A replica that may have lost data leaves ISR and ELR and is back only by catching up. While its partition has no leader it
// is remembered as a last known member, because it may turn out that no better one is left.
func (i *Image) Judge(id BrokerID, epoch int64, found map[PartitionKey]ReplicaReport) ([]Change, error) {
	b, err := i.incarnation(id, epoch)
	if err != nil || b.Judged || b.Phase != BrokerFenced || !i.Settled(id) {
		return nil, err
	}
	var changes []Change
	for _, p := range i.PartitionsOf(id) {
		member := slices.Contains(p.ISR, id) || slices.Contains(p.ELR, id)
		if !member || (!b.Outdated && intact(p, id, found)) {
			continue
		}
		if len(changes) == MaxChanges {
			return changes, nil
		}
		next := p.clone()
		next.ISR, next.ELR = without(p.ISR, id), without(p.ELR, id)
		if next.Leader == NoLeader {
			next.LastKnown = append(next.LastKnown, id)
		}
		next.PartitionEpoch++
		changes = append(changes, put(next, p.Revision))
	}
	if len(changes) == MaxChanges {
		return changes, nil
	}
	c := *b
	c.Judged = true
	return append(changes, put(&c, b.Revision)), nil
}

// intact reports whether nothing that the replica acknowledged can be missing. A replica that was not reported is lost, but
// for one that cannot have been used yet; a member of the ELR was.
func intact(p *Partition, id BrokerID, found map[PartitionKey]ReplicaReport) bool {
	r, ok := found[p.PartitionKey()]
	return (ok && r.Shape == ShapeIntact) || (!ok && p.unused() && !slices.Contains(p.ELR, id))
}

// Recover returns the next transaction of recovery elections: a partition that has no member known to be complete gets the
// last known member with the highest (last epoch, log end offset), once all last known members are in service and reported, or
// those that are when due says that the others were waited for long enough. The new epoch is recorded as lossy.
func (i *Image) Recover(reports Reports, due func(PartitionKey) bool) []Change {
	var changes []Change
	for _, p := range i.sorted(i.bereft) {
		if len(changes) == MaxChanges {
			break
		}
		if next := i.recover(p, reports, due); next != nil {
			changes = append(changes, put(next, p.Revision))
		}
	}
	return changes
}

func (i *Image) recover(p *Partition, reports Reports, due func(PartitionKey) bool) *Partition {
	k := p.PartitionKey()
	best := NoLeader
	for _, id := range p.LastKnown {
		r, ok := reports[id][k]
		if !ok || !i.electable(id) {
			if due(k) {
				continue
			}
			return nil
		}
		b := reports[best][k]
		if best == NoLeader || cmp.Or(cmp.Compare(r.LastEpoch, b.LastEpoch), cmp.Compare(r.LogEndOffset, b.LogEndOffset)) > 0 {
			best = id
		}
	}
	if best == NoLeader {
		return nil
	}
	next := p.clone()
	next.Leader, next.ISR, next.LastKnown = best, []BrokerID{best}, nil
	next.LeaderEpoch++
	next.PartitionEpoch++
	next.markLossy()
	return next
}

// Bereft returns the partitions that wait for a recovery election, and could have one: a last known member is there.
func (i *Image) Bereft(reports Reports) []PartitionKey {
	var keys []PartitionKey
	for _, p := range i.sorted(i.bereft) {
		k := p.PartitionKey()
		there := func(id BrokerID) bool {
			_, ok := reports[id][k]
			return ok && i.electable(id)
		}
		if slices.ContainsFunc(p.LastKnown, there) {
			keys = append(keys, k)
		}
	}
	return keys
}

// An Election says how a partition got its leader.
type Election string

// The kinds of elections.
const (
	ElectionISR      Election = "isr"      // a member of the ISR
	ElectionELR      Election = "elr"      // a member of the ELR
	ElectionRecovery Election = "recovery" // a last known member: data may be lost
	ElectionUnclean  Election = "unclean"  // any replica, as the topic allows: data may be lost
)

// Elected says which election lies between two states of a partition; "" for none.
func Elected(old, now *Partition) Election {
	switch {
	case now == nil || old == nil || now.Leader == NoLeader || now.LeaderEpoch == old.LeaderEpoch:
		return ""
	case slices.Contains(old.ISR, now.Leader):
		return ElectionISR
	case slices.Contains(old.ELR, now.Leader):
		return ElectionELR
	case slices.Contains(old.LastKnown, now.Leader) && len(old.ISR)+len(old.ELR) == 0:
		return ElectionRecovery
	default:
		return ElectionUnclean
	}
}
