package partition

import (
	"errors"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
)

// Append appends a batch, when this broker leads the partition, in the given
// leader epoch if one is given. It returns when the log has the batch, which
// is before it is committed: see WhenCommitted. All errors but
// ErrCommitUncertain, and producer.ErrStateLost of a batch that was sent before,
// mean that nothing was stored.
func (p *Partition) Append(b *record.Batch, epoch *record.Epoch) (Appended, error) {
	return p.append(b, epoch, false)
}

// AppendAtOnce is Append for a write that is answered without waiting for its
// commit. It needs no minimum of replicas in sync, since nothing is promised
// that they would have to keep; and only a confirmed leader takes it, since one
// that was replaced unnoticed would answer for what nobody else ever sees.
func (p *Partition) AppendAtOnce(b *record.Batch, epoch *record.Epoch) (Appended, error) {
	return p.append(b, epoch, true)
}

func (p *Partition) append(b *record.Batch, epoch *record.Epoch, atOnce bool) (Appended, error) {
	p.writing <- struct{}{}
	a, err := p.appendToken(b, epoch, atOnce)
	<-p.writing
	p.deliver()
	return a, err
}

// Stored tells where a batch of an idempotent producer is when this broker leads
// the partition and the batch is stored; ok is false when it is to be appended,
// or can't be judged.
func (p *Partition) Stored(b *record.Batch) (a Appended, ok bool) {
	if b.ProducerID == 0 {
		return Appended{}, false
	}
	p.writing <- struct{}{}
	defer func() { <-p.writing }()

	st := p.state.Load()
	if p.admit(st, nil) != nil {
		return Appended{}, false
	}
	a, ok, err := p.checkProducer(b, st, time.Now().UnixMilli())
	return a, ok && err == nil
}

// appendToken needs the writing token.
func (p *Partition) appendToken(b *record.Batch, epoch *record.Epoch, atOnce bool) (Appended, error) {
	st := p.state.Load()
	if err := p.admit(st, epoch); err != nil {
		return Appended{}, err
	}
	if b.ProducerID != 0 {
		// Before all that is said about new batches: of one that is stored
		// nobody may say that nothing was.
		a, found, err := p.checkProducer(b, st, time.Now().UnixMilli())
		if found && atOnce && !p.Confirmed() {
			return Appended{}, fmt.Errorf("%s: %w: it is stored here, and may not stay; try again, or with acks ALL", p, ErrUnconfirmed)
		}
		if found || err != nil {
			return a, err
		}
	}
	if err := p.admitNew(st, atOnce); err != nil {
		return Appended{}, err
	}
	t := p.Topic()
	p.writingSince.begin()
	got, err := p.log.Append(b, st.Epoch, timestampType(t.Config.TimestampType))
	p.writingSince.end()
	if err != nil {
		return Appended{}, p.appendFailed(b, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.core.appended(got.Last+1, time.Now())
	p.fed += int64(b.FrameSize())
	p.publishLocked()
	if p.core.sync {
		p.flushLocked()
	}
	return Appended{Base: got.Base, Last: got.Last, AppendTimeMs: got.AppendTimeMs, LogStart: st.LogStart, Epoch: st.Epoch}, nil
}

// admit says why this broker can't take the batch.
func (p *Partition) admit(st *State, epoch *record.Epoch) error {
	if st.Err != nil {
		return st.Err
	}
	if epoch != nil && *epoch != st.Epoch {
		if *epoch > st.Epoch {
			return fmt.Errorf("%s: %w: try again", p, ErrUnknownEpoch)
		}
		return refusal.New(ErrFencedEpoch, map[string]string{"leaderEpoch": format(st.Epoch)},
			"%s: the leader epoch is %d, not %d: refresh the metadata", p, st.Epoch, *epoch)
	}
	if st.Moving {
		return fmt.Errorf("%s: %w: nothing was stored, try again", p, ErrMoving)
	}
	return nil
}

// admitNew says why a batch that is not stored yet must be refused.
func (p *Partition) admitNew(st *State, atOnce bool) error {
	if atOnce && !p.Confirmed() {
		return fmt.Errorf("%s: %w: nothing was stored, try again, or with acks ALL", p, ErrUnconfirmed)
	}
	if !atOnce && !st.MinISRMet {
		p.mu.Lock()
		isr, need := len(p.core.committed), p.core.minISR
		p.mu.Unlock()
		return refusal.New(ErrNotEnoughReplicas, map[string]string{"isr": format(isr), "minIsr": format(need)},
			"%s: %d replicas are in sync, min.insync.replicas is %d: nothing was stored, try again", p, isr, need)
	}
	if d := p.host.disk(); d.Hard || (d.Soft && !p.Topic().Internal) {
		return p.full(d.Free)
	}
	return nil
}

func (p *Partition) full(free int64) error {
	return refusal.New(ErrStorageFull, map[string]string{"freeBytes": format(free)},
		"%s: the disk has only %d bytes free: writes are refused until there is room; reads and deletes go on", p, free)
}

// appendFailed turns an error of the log into one of ours.
func (p *Partition) appendFailed(b *record.Batch, err error) error {
	switch {
	case errors.Is(err, commitlog.ErrStorageFull):
		return p.full(p.host.disk().Free)
	case errors.Is(err, commitlog.ErrTooManyFiles):
		return fmt.Errorf("%s: %w: nothing was stored, try again", p, ErrNoDescriptors)
	case errors.Is(err, commitlog.ErrTooLarge):
		limit := format(p.Topic().Config.MaxMessageBytes)
		return refusal.New(ErrTooLarge, map[string]string{"size": format(b.FrameSize()), "maxBytes": limit},
			"%s: a batch of %d bytes is over the limit: split it, or raise max.message.bytes (%s)", p, b.FrameSize(), limit)
	case errors.Is(err, commitlog.ErrFailed):
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
		// The write failed half way: the next start may find the batch whole.
		return fmt.Errorf("%s: %w: %w", p, ErrCommitUncertain, err)
	case errors.Is(err, commitlog.ErrClosed):
		return fmt.Errorf("%s: %w", p, ErrDeleted)
	}
	return fmt.Errorf("append to %s: %w", p, err)
}
