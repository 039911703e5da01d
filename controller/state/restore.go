package state

import (
	"slices"
	"time"
)

// epochBlock is how many epochs belong together. A restoration begins a new block in all of them: what the cluster did between
// the backup and its end used epochs that the backup does not know, and none of them may be given again, nor any that was given
// after an earlier restoration of the same backup. Which block is a question of the time.
//
// Brokers know by the block what is of an earlier life of the cluster: see firstEpoch.
const epochBlock = 1 << 20

// block returns the first epoch of the block that a restoration at now begins, for what the backup has at e. It is above all
// that was given since the backup, unless that were more than a block.
func block(e int64, now time.Time) int64 {
	return max((e/epochBlock+2)*epochBlock, now.Unix()*epochBlock)
}

// firstEpoch returns the leader epoch that a new partition begins with: the first of a block, and in a cluster that was restored
// not the first block. What a broker keeps of a partition of that number which was made after the backup, and is not known any
// more, has lower ones.
func (i *Image) firstEpoch() int64 { return i.Counters().ControllerEpoch/epochBlock*epochBlock + 1 }

// unused reports whether the partition has its first leader since it was made, and was in no backup: those have a partition
// epoch beyond the first block.
func (p *Partition) unused() bool {
	return p.LeaderEpoch%epochBlock <= 1 && p.PartitionEpoch < epochBlock
}

// Restored returns an object of a backup as it is to be restored at now; nil: not at all.
//
// A backup does not know what happened after it. So brokers register anew, and each partition waits until its replicas are back
// and then gets the one with the most, as after a loss of them all: who was in sync at the time of the backup may lack what was
// acknowledged since.
func Restored(o Object, now time.Time) Object {
	switch o := o.(type) {
	case *Broker, *Controller:
		return nil
	case *Counters:
		c := *o
		c.BrokerEpoch = block(c.BrokerEpoch, now)
		c.ControllerEpoch = block(c.ControllerEpoch, now)
		return &c
	case *ProducerIDs:
		c := *o
		if c.Next = now.Unix() * epochBlock; c.Next < o.Next+epochBlock {
			c.Next = o.Next + epochBlock*ProducerIDBlock
		}
		return &c
	case *Partition:
		p := o.clone()
		p.Leader, p.ISR, p.ELR, p.LastKnown = NoLeader, nil, nil, slices.Clone(p.Replicas)
		p.LeaderEpoch = block(p.LeaderEpoch, now)
		p.PartitionEpoch = block(p.PartitionEpoch, now)
		return p
	default:
		return o
	}
}
