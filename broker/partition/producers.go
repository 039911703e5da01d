package partition

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/runnelmq/runnel/broker/producer"
	"github.com/runnelmq/runnel/internal/record"
)

// producers is what a replica remembers of idempotent producers. The log keeps
// it in step with its batches, see commitlog.Producers: so every replica has it,
// and whoever comes to lead knows what was stored.
type producers struct {
	// count is how many are remembered.
	count atomic.Int64

	// mu guards the table. That no append comes between a check and its own is
	// for the partition's writing token to see to.
	mu    sync.Mutex
	table *producer.Table
}

func newProducers(cfg producer.Config) *producers { return &producers{table: producer.New(cfg)} }

// check judges a batch that is about to be appended; see producer.Table.
func (p *producers) check(h *record.Header, nowMs int64) (stored *producer.Batch, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.table.Check(h, nowMs)
}

// expire forgets who has not written for too long.
func (p *producers) expire(nowMs int64) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.table.Expire(nowMs)
	p.count.Store(int64(p.table.Len()))
}

// Apply implements commitlog.Producers.
func (p *producers) Apply(h *record.Header) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.table.Apply(h)
	p.count.Store(int64(p.table.Len()))
}

// Reset implements commitlog.Producers.
func (p *producers) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.table.Reset()
	p.count.Store(0)
}

// AppendState implements commitlog.Producers.
func (p *producers) AppendState(dst []byte) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.table.AppendState(dst)
}

// SetState implements commitlog.Producers.
func (p *producers) SetState(state []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()

	err := p.table.SetState(state)
	p.count.Store(int64(p.table.Len()))
	return err
}

// Live implements commitlog.Producers.
func (p *producers) Live(id record.ProducerID) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.table.Live(id)
}

// checkProducer judges a batch of an idempotent producer. One that is stored
// already has found true, and is not to be appended. It needs the writing token.
func (p *Partition) checkProducer(b *record.Batch, st *State, nowMs int64) (a Appended, found bool, err error) {
	stored, err := p.producers.check(&b.Header, nowMs)
	switch {
	case errors.Is(err, producer.ErrOutOfOrder):
		p.host.metrics.outOfOrder.Inc()
	case errors.Is(err, producer.ErrStateLost):
		p.host.metrics.stateLost.Inc()
	}
	if err != nil {
		if !p.Confirmed() {
			// What comes before it may have gone to a newer leader: only one that
			// is sure to be none may say that it is missing.
			return Appended{}, false, fmt.Errorf("%s: %w: nothing was stored, and earlier batches of this producer may be elsewhere; try again", p, ErrUnconfirmed)
		}
		return Appended{}, false, &producerError{p.String(), err}
	}
	if stored == nil {
		return Appended{}, false, nil
	}
	p.host.metrics.duplicates.Inc()
	return Appended{
		Base: stored.Base, Last: stored.Last(), AppendTimeMs: stored.AppendTimeMs, LogStart: st.LogStart, Epoch: p.log.EpochAt(stored.Last()), Duplicate: true,
	}, true, nil
}

// A producerError says in which partition a batch was refused.
type producerError struct {
	partition string
	err       error
}

// Error implements error.
func (e *producerError) Error() string { return e.partition + ": " + e.err.Error() }

// Unwrap returns why.
func (e *producerError) Unwrap() error { return e.err }
