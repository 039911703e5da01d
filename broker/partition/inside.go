package partition

import (
	"slices"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// An Inside is what only tests look at: how far a copy has come, and by whom a
// leader lets its high watermark be held back.
type Inside struct {
	State

	Start          record.Offset       // of a leader: where its epoch began
	PartitionEpoch int64               // of the newest committed state that was applied
	Committed      []metadata.BrokerID // the ISR in it
	Maximal        []metadata.BrokerID // the ISR with all proposed ones, ascending
	Proposals      int                 // under way
	MinISR         int
	Sync           bool          // what counts is on the disk
	Durable        record.Offset // the end of what the disk has
	Readers        int           // that wait for something to read
}

// Inside returns the partition as it is now, for tests that look inside.
func (p *Partition) Inside() Inside {
	p.mu.Lock()
	defer p.mu.Unlock()

	in := Inside{
		State: p.State(), Start: p.core.leso, PartitionEpoch: p.core.partitionEpoch, Committed: slices.Clone(p.core.committed),
		Proposals: len(p.core.proposals), Readers: p.reads.list.Len(),
		MinISR: p.core.minISR, Sync: p.core.sync, Durable: p.log.Durable(),
	}
	in.Maximal = slices.Concat(p.core.maximal()...)
	slices.Sort(in.Maximal)
	in.Maximal = slices.Compact(in.Maximal)
	return in
}

// ReadInside copies whole stored batches from offset from on, whoever leads and
// whatever is committed, for tests that look inside. It returns how many bytes.
func (p *Partition) ReadInside(dst []byte, from record.Offset) (int, error) {
	return p.log.Read(dst, from, p.log.End())
}
