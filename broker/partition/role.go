package partition

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

// apply makes the partition what the controller says it is. mayLead is false
// while this broker is fenced: what it reads about itself then is old.
// session is that of the image.
func (p *Partition) apply(t *metadata.Topic, mp *metadata.Partition, mayLead bool, session uint64) error {
	p.writing <- struct{}{}
	err := p.applyToken(t, mp, mayLead, session)
	<-p.writing
	p.deliver()
	return err
}

// applyToken needs the writing token.
func (p *Partition) applyToken(t *metadata.Topic, mp *metadata.Partition, mayLead bool, session uint64) error {
	p.topic.Store(t)
	if p.isStopped() {
		return nil
	}
	var failed error
	if err := p.log.SetConfig(logConfig(t, mp)); err != nil {
		failed = p.changeFailed("change the keeping of", err)
		durably := *mp // counts what the log is kept for; it is tried again
		durably.Sync = true
		mp = &durably
	}
	return errors.Join(failed, p.actToken(mp, mayLead, session))
}

// actToken makes the partition what mp says. It needs the writing token.
func (p *Partition) actToken(mp *metadata.Partition, mayLead bool, session uint64) error {
	p.mu.Lock()
	role, epoch, stopped := p.core.role, p.core.epoch, p.stopped
	p.known = *mp
	p.mu.Unlock()
	switch {
	case stopped != nil:
		return nil
	case !mayLead || mp.Leader != p.host.self:
		p.yield(mp, session)
		return p.vouch(mp, mayLead)
	case role == leading && epoch == mp.LeaderEpoch:
		p.mu.Lock()
		p.countISRLocked(mp)
		isr := p.core.committed
		p.core.resolve(mp, session)
		if !slices.Equal(isr, p.core.committed) {
			// Whoever is in sync is served first.
			for _, s := range p.subs {
				p.noteLocked(s.note)
			}
		}
		p.publishLocked()
		p.keepFlushingLocked()
		p.mu.Unlock()
		return nil
	}
	p.yield(mp, session) // what is parked was of another epoch
	// The epoch begins in the log before it can have a record.
	err := p.log.StartEpoch(mp.LeaderEpoch)
	if err == nil && p.log.Suspicion() != commitlog.NotSuspect {
		// The controller knew, and chose this copy.
		if err = p.log.SetSuspicion(commitlog.NotSuspect); err == nil {
			p.mu.Lock()
			p.suspicion = ""
			p.mu.Unlock()
		}
	}
	if err != nil {
		if errors.Is(err, commitlog.ErrFailed) {
			p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
		}
		return fmt.Errorf("lead %s in epoch %d: %w", p, mp.LeaderEpoch, err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.core.lead(mp, session, progress{written: p.log.End(), durable: p.log.Durable()}, time.Now())
	p.publishLocked()
	p.keepFlushingLocked()
	p.log.SetHighWatermark(p.core.hw)
	return nil
}

// keepFlushingLocked asks for a flusher when only that can move the high
// watermark, here or at the leader: no further append may come to ask for one,
// and what else makes the log durable tells nobody.
func (p *Partition) keepFlushingLocked() {
	if p.core.sync && p.core.own.durable < p.core.own.written {
		p.flushLocked()
	}
}

// yield stops leading, or following another.
func (p *Partition) yield(mp *metadata.Partition, session uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()

	r := idle
	if mp.Leader != metadata.NoBroker && mp.Leader != p.host.self {
		r = following
	}
	if p.core.stand(r, mp, session) {
		p.noteLocked(p.ackNote)
		p.ackNote = nil
	}
	p.refusal = notLeader(p.host.store.Load(), p.Topic(), p.number, mp)
	p.publishLocked()
	p.keepFlushingLocked()
}

// vouch lifts a suspicion from a replica that has caught up: it is of the ISR
// again, by the word of a controller that knew of the suspicion.
func (p *Partition) vouch(mp *metadata.Partition, judged bool) error {
	if !judged || p.log.Suspicion() == commitlog.NotSuspect || p.damagedHere() || !slices.Contains(mp.ISR, p.host.self) {
		return nil
	}
	if err := p.log.SetSuspicion(commitlog.NotSuspect); err != nil {
		return p.changeFailed("vouch for", err)
	}
	p.mu.Lock()
	p.suspicion = ""
	p.mu.Unlock()
	return nil
}

// countISRLocked counts what the controller made of this leader's ISR.
func (p *Partition) countISRLocked(mp *metadata.Partition) {
	for _, id := range mp.ISR {
		if !slices.Contains(p.core.committed, id) {
			p.host.metrics.expands.Inc()
		}
	}
	for _, id := range p.core.committed {
		if !slices.Contains(mp.ISR, id) {
			p.host.metrics.shrinks.Inc()
		}
	}
}

// logConfig is what of a topic's configuration concerns its logs.
func logConfig(t *metadata.Topic, mp *metadata.Partition) commitlog.Config {
	c := commitlog.Config{
		SegmentBytes: t.Config.SegmentBytes, SegmentAge: t.Config.SegmentAge,
		IndexIntervalBytes: t.Config.IndexIntervalBytes,
		RetentionBytes:     t.Config.RetentionBytes, RetentionTime: t.Config.RetentionTime,
		FlushInterval: t.Config.FlushInterval,
		Flush:         commitlog.FlushAsync,
	}
	// The log's zero values mean its defaults; the topic's mean zero.
	if c.RetentionBytes == 0 {
		c.RetentionBytes = 1
	}
	if c.RetentionTime == 0 {
		c.RetentionTime = time.Millisecond
	}
	if !t.Config.Delete {
		c.RetentionBytes, c.RetentionTime = -1, -1
	}
	c.Compact, c.DeleteRetention = t.Config.Compact, max(t.Config.DeleteRetention, time.Millisecond)
	c.MinDirtyRatio = max(t.Config.MinCleanableRatio, math.SmallestNonzeroFloat64)
	c.MinCompactionLag, c.MaxCompactionLag = t.Config.MinCompactionLag, t.Config.MaxCompactionLag
	if mp.Sync {
		c.Flush = commitlog.FlushSync
	}
	return c
}

func timestampType(t topicconfig.TimestampType) record.TimestampType {
	if t == topicconfig.LogAppendTime {
		return record.LogAppendTime
	}
	return record.CreateTime
}

// mayCreate says whether a directory that is missing may be made: only for a
// replica that cannot have held anything. Else something was lost, and an empty
// log would hide it.
func mayCreate(self metadata.BrokerID, mp *metadata.Partition) bool {
	if unused(mp) && !slices.Contains(mp.ELR, self) {
		return true
	}
	return !slices.Contains(mp.ISR, self) && !slices.Contains(mp.ELR, self) && !slices.Contains(mp.LastKnown, self)
}

// epochBlock is how many epochs belong together. A restoration of the metadata
// begins a new block in all epochs of the partitions that were in the backup. A
// new partition begins with the first leader epoch of the cluster's block, and
// with the first partition epoch of all: see controller/state.
const epochBlock = 1 << 20

// unused says whether a partition has its first leader since it was made, and was
// in no backup.
func unused(mp *metadata.Partition) bool {
	return mp.LeaderEpoch%epochBlock <= 1 && mp.PartitionEpoch < epochBlock
}

// earlier says whether a log that ends with the leader epoch last is of a partition
// that had the same number once, and that the controllers do not know any more,
// since they were restored from a backup that is older.
func earlier(last record.Epoch, mp *metadata.Partition) bool {
	return last > 0 && mp.PartitionEpoch < epochBlock && int64(last)/epochBlock < int64(mp.LeaderEpoch)/epochBlock
}

// electedLossy says whether this broker leads in the knowledge of what its copy
// may have lost.
func electedLossy(self metadata.BrokerID, mp *metadata.Partition) bool {
	return mp.Leader == self && slices.Contains(mp.LossyEpochs, mp.LeaderEpoch)
}
