package partition

import (
	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// A Copy is how much of a partition is on this broker.
type Copy struct {
	LastEpoch     record.Epoch // of the last record
	LogEnd        record.Offset
	HighWatermark record.Offset // as far as is known here
	Intact        bool          // nothing that it acknowledged can be missing
}

// Describe returns the copy of a partition, whoever leads it; false when there is
// none that can be opened.
func (s *Set) Describe(topic uuid.UUID, n int32) (Copy, bool) {
	p := s.local(topic, n)
	if p == nil {
		return Copy{}, false
	}
	intact := p.log.Suspicion() == commitlog.NotSuspect && !p.damagedHere() // without the mutex: it waits for a checkpoint
	p.mu.Lock()
	defer p.mu.Unlock()

	return Copy{LastEpoch: p.log.LastEpoch(), LogEnd: p.log.End(), HighWatermark: p.core.hw, Intact: intact}, p.stopped == nil
}
