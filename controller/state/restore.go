package state

import "slices"

// restoreJump is how far a restored picture is ahead of the backup in all epochs. What the cluster did between the backup and
// its end used epochs that the backup does not know: none of them may be given again.
const restoreJump = 1 << 20

// Restored returns an object of a backup as it is to be restored; nil: not at all.
//
// A backup does not know what happened after it. So brokers register anew, and each partition waits until its replicas are back
// and then gets the one with the most, as after a loss of them all: who was in sync at the time of the backup may lack what was
// acknowledged since.
func Restored(o Object) Object {
	switch o := o.(type) {
	case *Broker, *Controller:
		return nil
	case *Counters:
		c := *o
		c.BrokerEpoch += restoreJump
		c.ControllerEpoch += restoreJump
		return &c
	case *ProducerIDs:
		c := *o
		c.Next += restoreJump * ProducerIDBlock
		return &c
	case *Partition:
		p := o.clone()
		p.Leader, p.ISR, p.ELR, p.LastKnown = NoLeader, nil, nil, slices.Clone(p.Replicas)
		p.LeaderEpoch += restoreJump
		p.PartitionEpoch += restoreJump
		return p
	default:
		return o
	}
}
