package partition

import (
	"errors"
	"fmt"
	"slices"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// Following says whom this replica is to follow, and in which leader epoch; ok
// is false when it follows nobody.
func (p *Partition) Following() (leader metadata.BrokerID, epoch record.Epoch, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.core.follow.leader, p.core.epoch, p.stopped == nil && p.core.role == following
}

// FollowerStart begins a subscription and returns what to subscribe with; an
// earlier one is dropped. ok is false when this replica has nobody to follow or
// can't at present: see Following, and try again in a second. From now on notify
// is called, without locks, whenever FollowerAck has news or the subscription
// was dropped; it must not block. BrokerEpoch is left to the caller.
//
// It and the On… methods may wait for the disk, and for each other.
func (p *Partition) FollowerStart(subscription int64, notify func()) (s FollowerSubscribe, ok bool) {
	p.writing <- struct{}{}
	s, ok = p.startToken(subscription, notify)
	<-p.writing
	p.deliver()
	return s, ok
}

// startToken needs the writing token.
func (p *Partition) startToken(subscription int64, notify func()) (FollowerSubscribe, bool) {
	p.mu.Lock()
	can := p.stopped == nil && p.core.role == following
	if can {
		p.dropLocked() // before anything happens to the log
	}
	counted := slices.Contains(p.core.committed, p.core.self)
	p.mu.Unlock()
	// Who is in sync subscribes with a full disk, too: its leader waits for its
	// word, and it can ask to be left out only in a subscription.
	if !can || (p.host.disk().Hard && !counted) {
		return FollowerSubscribe{}, false
	}
	anew, ok := p.fit()
	if !ok {
		return FollowerSubscribe{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	s, ok := p.core.ask(subscription, p.log, anew)
	if ok {
		p.ackNote = &notifier{fn: notify}
	}
	return s, ok
}

// fit prepares the log for being a follower's; ok is false when it can't be one
// now, anew is true when it should be emptied. It needs the writing token.
func (p *Partition) fit() (anew, ok bool) {
	if p.damagedHere() {
		heal, withdraw := p.damaged()
		if withdraw {
			return false, false
		}
		if heal {
			p.mu.Lock()
			again := p.core.follow.anew // the leader may take hours to say yes
			p.mu.Unlock()
			if !again {
				p.host.log.Warn().Str("topic", p.Topic().Name).Int32("partition", p.number).Msg("a damaged replica asks its leader to begin anew")
			}
			return true, true
		}
	}
	end := p.log.End()
	if p.log.LastEpoch() == p.log.EpochAt(end-1) {
		return false, true
	}
	// An epoch that began at the end, here, without a record: what comes now is
	// another's.
	err := p.log.TruncateTo(end)
	if err == nil {
		return false, true
	}
	if errors.Is(err, commitlog.ErrFailed) {
		p.stop(fmt.Errorf("%s: %w: %w", p, ErrStorageFailed, err))
	}
	p.host.log.Warn().Str("topic", p.Topic().Name).Int32("partition", p.number).Err(err).Msg("a replica can't be prepared to follow")
	return false, false
}

// damaged says what to do about a damaged log: heal it, when nobody counts on it
// and it may be emptied; withdraw, so that others are in sync without it first,
// when there are enough of them. Else it goes on as it is.
func (p *Partition) damaged() (heal, withdraw bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	in := func(set []metadata.BrokerID) bool { return slices.Contains(set, p.core.self) }
	heal = !in(p.core.committed) && !in(p.core.elr) && !in(p.known.LastKnown)
	return heal, in(p.core.committed) && len(p.core.committed) > max(p.core.minISR, 1)
}

// dropLocked drops the subscription there is.
func (p *Partition) dropLocked() {
	if p.core.unsubscribe(p.core.follow.subscription) {
		p.noteLocked(p.ackNote)
	}
}

// FollowerStop drops a subscription: the leader ended it, or the stream broke.
func (p *Partition) FollowerStop(subscription int64) {
	p.mu.Lock()
	if p.core.unsubscribe(subscription) {
		p.noteLocked(p.ackNote)
	}
	p.mu.Unlock()
	p.deliver()
}

// OnSubscribed does what the leader answered. again says that the log was cut or
// emptied and a new subscription should follow at once. After an error the
// subscription is dropped; ErrDiverged says that this leader is not followed.
func (p *Partition) OnSubscribed(subscription int64, a SubscribeAnswer) (again bool, err error) {
	p.writing <- struct{}{}
	again, err = p.answeredToken(subscription, a)
	<-p.writing
	p.deliver()
	return again, err
}

// answeredToken needs the writing token.
func (p *Partition) answeredToken(subscription int64, a SubscribeAnswer) (again bool, err error) {
	p.mu.Lock()
	if p.stopped != nil {
		p.mu.Unlock()
		return false, p.stopped
	}
	do, err := p.core.answered(subscription, a, p.log)
	if err == nil && do.kind == noChange {
		p.publishLocked() // and so it is acknowledged at once, also when nothing is to be sent
	}
	leader, epoch := p.core.follow.leader, p.core.epoch
	p.mu.Unlock()
	if errors.Is(err, ErrDiverged) {
		p.host.metrics.divergence.Inc()
		p.host.log.Error().Str("topic", p.Topic().Name).Int32("partition", p.number).Int32("leader", int32(leader)).Int64("leader_epoch", int64(epoch)).
			Err(err).Msg("this replica is offline: its leader lacks committed records")
	}
	if err != nil {
		return false, fmt.Errorf("%s: %w", p, err)
	}
	if do.kind == noChange {
		return false, p.followStart(a.LogStart)
	}
	return true, p.change(do)
}

// change cuts or empties the log. It needs the writing token; the subscription
// has been dropped.
func (p *Partition) change(do change) error {
	end, kept := p.log.End(), ""
	if do.keep {
		from := do.to
		if do.kind == empty {
			from = p.log.Start()
		}
		var err error
		if kept, err = p.log.SaveTail(from); err != nil {
			return p.changeFailed("keep the tail of", err)
		}
	}
	if do.below {
		p.host.metrics.belowHW.Inc()
	}
	var err error
	if do.kind == empty {
		err = p.reset(do.to, do.epoch)
	} else if err = p.log.TruncateTo(do.to); err == nil {
		p.mu.Lock()
		p.core.changed(p.log.Start(), progress{written: p.log.End(), durable: p.log.Durable()})
		p.publishLocked()
		p.mu.Unlock()
	}
	if err != nil {
		return p.changeFailed("cut", err)
	}
	p.host.log.Warn().Str("topic", p.Topic().Name).Int32("partition", p.number).Int64("to", int64(do.to)).Int64("end", int64(end)).
		Str("kept", kept).Bool("committed", do.below).Msg("the end of a replica was cut to match its leader")
	return nil
}

// reset empties the log. It needs the writing token.
func (p *Partition) reset(logStart record.Offset, epoch record.Epoch) error {
	if err := p.log.Reset(logStart, epoch); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.core.emptied(logStart)
	p.suspicion = ""
	p.publishLocked()
	return nil
}

// OnData appends a data frame. After an error the subscription is dropped.
func (p *Partition) OnData(d Data) error {
	p.writing <- struct{}{}
	err := p.dataToken(&d)
	<-p.writing
	p.deliver()
	return err
}

// dataToken needs the writing token.
func (p *Partition) dataToken(d *Data) error {
	p.mu.Lock()
	err := p.stopped
	if err == nil {
		err = p.core.admit(d, p.log)
	}
	p.mu.Unlock()
	if err == nil {
		err = p.store(d)
	}
	if err != nil {
		p.mu.Lock()
		if p.core.unsubscribe(d.Subscription) {
			p.noteLocked(p.ackNote)
		}
		p.mu.Unlock()
		return fmt.Errorf("%s: %w", p, err)
	}
	return p.followStart(d.LogStart)
}

// store appends the batches of an admitted frame.
func (p *Partition) store(d *Data) error {
	if disk := p.host.disk(); disk.Hard {
		return p.full(disk.Free)
	}
	end := d.Start
	for at := 0; at < len(d.Batches); {
		fr, v := record.ParseFrame(d.Batches[at:], int64(len(d.Batches)-at), record.MaxFrameSize)
		switch {
		case v != record.OK:
			return fmt.Errorf("%w: a batch at byte %d of a frame is %s", ErrNotSubscribed, at, v)
		case fr.Header.LeaderEpoch > d.Epoch:
			return fmt.Errorf("%w: a batch of epoch %d came in epoch %d", ErrNotSubscribed, fr.Header.LeaderEpoch, d.Epoch)
		}
		end = fr.Header.NextOffset()
		at += fr.Size
	}
	if end > d.Next {
		return fmt.Errorf("%w: a frame that covers offsets below %d has a batch up to %d", ErrNotSubscribed, d.Next, end)
	}
	_, err := p.log.AppendFrames(d.Batches)
	p.mu.Lock()
	p.core.taken(progress{written: p.log.End(), durable: p.log.Durable()}, d.HighWatermark)
	p.publishLocked()
	if p.core.sync {
		p.flushLocked()
	}
	p.mu.Unlock()
	if errors.Is(err, commitlog.ErrBadFrames) {
		return fmt.Errorf("%w: %w", ErrNotSubscribed, err)
	}
	if err != nil {
		return p.changeFailed("append to", err)
	}
	return nil
}

// OnProgress takes news without data. After an error the subscription is
// dropped.
func (p *Partition) OnProgress(subscription int64, highWatermark, logStart record.Offset) error {
	p.writing <- struct{}{}
	err := p.progressToken(subscription, highWatermark, logStart)
	<-p.writing
	p.deliver()
	return err
}

// progressToken needs the writing token.
func (p *Partition) progressToken(subscription int64, highWatermark, logStart record.Offset) error {
	p.mu.Lock()
	if _, ok := p.core.acknowledge(subscription); !ok || p.stopped != nil {
		p.mu.Unlock()
		return fmt.Errorf("%s: %w", p, ErrNotSubscribed)
	}
	p.core.learn(highWatermark)
	p.publishLocked()
	p.mu.Unlock()
	return p.followStart(logStart)
}

// followStart removes what the leader has removed. It needs the writing token,
// and that logStart came in the current subscription.
func (p *Partition) followStart(logStart record.Offset) error {
	p.mu.Lock()
	to, ok := p.core.start(logStart)
	p.mu.Unlock()
	if !ok {
		return nil
	}
	if err := p.log.DeleteBefore(to); err != nil {
		return p.changeFailed("remove records of", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	p.core.cut(p.log.Start())
	p.publishLocked()
	return nil
}

// FollowerAck returns what to acknowledge now; false when the subscription is
// not accepted, or dropped. Follower and BrokerEpoch are left to the caller.
func (p *Partition) FollowerAck(subscription int64) (FollowerAck, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.stopped != nil {
		return FollowerAck{}, false
	}
	return p.core.acknowledge(subscription)
}

// Diverged says why this replica refuses to follow its leader, nil when it does
// not.
func (p *Partition) Diverged() error {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.core.follow.diverged
}
