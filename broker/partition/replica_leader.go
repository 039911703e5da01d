package partition

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// Subscribe judges a follower's wish. When it is accepted, notify is called
// from then on, without locks, whenever there may be something for the follower:
// bytes, a progress, or the subscription's end. It must not block. Errors:
// ErrPark, and why the partition can't be served here at all.
func (p *Partition) Subscribe(s FollowerSubscribe, link *Link, notify func()) (SubscribeAnswer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.stopped != nil {
		return SubscribeAnswer{}, p.stopped
	}
	if s.NextOffset == NoOffset && p.damagedHere() {
		p.core.sound = time.Time{} // met since
	}
	a, err := p.core.subscribe(s, p.log, time.Now())
	if err != nil {
		return SubscribeAnswer{}, fmt.Errorf("%s: %w", p, err)
	}
	if a.Kind == Refused && s.NextOffset == NoOffset {
		p.proveLocked()
	}
	if a.Kind != Refused {
		delete(p.subs, s.Follower)
	}
	if a.Kind == Accepted {
		p.subs[s.Follower] = &subscription{link: link, note: &notifier{fn: notify}}
	}
	return a, nil
}

// A subscription is what the shell keeps of a follower beside the core.
type subscription struct {
	link *Link
	note *notifier
}

// ReadReplica copies stored batches from offset from on, up to the log's end,
// for a subscription. Errors: ErrNotSubscribed, ErrShortBuffer, and those of
// Read.
func (p *Partition) ReadReplica(dst []byte, follower metadata.BrokerID, subscription int64, from record.Offset) (ReplicaRead, error) {
	p.mu.Lock()
	f := p.core.subscription(follower, subscription)
	end := p.core.own.written
	p.mu.Unlock()
	if f == nil {
		return ReplicaRead{}, fmt.Errorf("%s: %w", p, ErrNotSubscribed)
	}
	n, err := p.log.Read(dst, from, end)
	if errors.Is(err, commitlog.ErrOutOfRange) {
		// The log start overtook it. Its next subscribe is answered with a reset.
		p.FollowerGone(follower, subscription)
		return ReplicaRead{}, fmt.Errorf("%s: %w: offset %d is no longer there", p, ErrNotSubscribed, from)
	}
	if err != nil {
		return ReplicaRead{}, p.readFailed(from, err)
	}
	r := ReplicaRead{N: n, Next: from}
	for at := 0; at < n; {
		fr, v := record.ParseFrame(dst[at:n], int64(n-at), record.MaxFrameSize)
		if v != record.OK {
			return ReplicaRead{}, fmt.Errorf("read %s at %d: a batch at byte %d of %d is %s", p, from, at, n, v)
		}
		r.Next = max(r.Next, fr.Header.NextOffset())
		at += fr.Size
	}
	if e := p.log.EpochAt(from - 1); e != commitlog.NoEpoch {
		r.PrevEpoch, r.HasPrevEpoch = e, true
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	// Looked at again: had the leadership ended meanwhile, the log may have been
	// cut, and have the next leader's records at these offsets.
	if f = p.core.subscription(follower, subscription); f == nil {
		return ReplicaRead{}, fmt.Errorf("%s: %w", p, ErrNotSubscribed)
	}
	// After the read: what compaction removes it says before.
	if f.missed(from, p.log.PurgedTo(), p.log.Config().DeleteRetention, time.Now()) {
		p.core.gone(follower, subscription, time.Now())
		delete(p.subs, follower)
		return ReplicaRead{}, fmt.Errorf("%s: %w: keys may have been deleted since offset %d", p, ErrNotSubscribed, from)
	}
	p.core.sentTo(f, r.Next, time.Now())
	r.HighWatermark, r.LogStart = p.core.hw, p.core.logStart
	return r, nil
}

// ReplicaProgress returns what a subscription's follower should know;
// false when it has ended.
func (p *Partition) ReplicaProgress(follower metadata.BrokerID, subscription int64) (ReplicaProgress, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.core.subscription(follower, subscription) == nil {
		return ReplicaProgress{}, false
	}
	r := ReplicaProgress{HighWatermark: p.core.hw, LogStart: p.core.logStart, LogEnd: p.core.own.written, Fed: p.fed}
	p.core.others(func(id metadata.BrokerID) bool {
		r.InSync = id == follower
		return !r.InSync
	}, p.core.maximal()...)
	return r, true
}

// Credit says whether the follower gave credit for more bytes of this
// subscription. Time in which there was some, and bytes to send, is the
// leader's own. A new subscription has credit.
func (p *Partition) Credit(follower metadata.BrokerID, subscription int64, some bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if f := p.core.subscription(follower, subscription); f != nil {
		p.core.creditOf(f, some, time.Now())
	}
}

// Ack takes a follower's ack. One of another subscription or epoch is dropped.
func (p *Partition) Ack(a FollowerAck) {
	p.mu.Lock()
	if p.stopped != nil || !p.core.ack(a, time.Now()) {
		p.mu.Unlock()
		return
	}
	p.publishLocked()
	send := p.proposeLocked(false, time.Now())
	p.mu.Unlock()
	send()
	p.deliver()
}

// FollowerGone ends a subscription: the follower gave it up, or its stream broke.
func (p *Partition) FollowerGone(follower metadata.BrokerID, subscription int64) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.core.subscription(follower, subscription) != nil {
		p.core.gone(follower, subscription, time.Now())
		delete(p.subs, follower)
	}
}

// FollowerWithdrew ends a subscription whose follower asks to leave the ISR,
// because it can take nothing more for a while.
func (p *Partition) FollowerWithdrew(follower metadata.BrokerID, subscription int64) {
	p.mu.Lock()
	send := func() {}
	if p.core.subscription(follower, subscription) != nil {
		now := time.Now()
		p.core.withdraw(follower, subscription, now)
		delete(p.subs, follower)
		send = p.proposeLocked(false, now)
	}
	p.mu.Unlock()
	send()
}

// linkAtLocked is when the newest heartbeat was sent that a follower answered.
func (p *Partition) linkAtLocked(id metadata.BrokerID) time.Time {
	if s := p.subs[id]; s != nil {
		return s.link.at()
	}
	return time.Time{}
}

// proposeLocked makes a proposal if one is due; judge says whether lag is
// judged. What it returns sends it, and is to be called without locks.
func (p *Partition) proposeLocked(judge bool, now time.Time) (send func()) {
	pr, ok := p.core.propose(p.host.number, judge, now)
	if !ok {
		return func() {}
	}
	m := metadata.Proposal{
		Topic: p.id, Partition: p.number, LeaderEpoch: p.core.epoch, PartitionEpoch: pr.base,
		ISR: p.core.members(pr), Number: pr.number, Session: pr.session,
	}
	return func() { p.host.control.Propose(m) }
}

// tick looks after the ISR. late says that this broker itself was away for so
// long that nobody's lag can be judged.
func (p *Partition) tick(now time.Time, late bool) {
	if !p.State().Leader {
		return
	}
	p.mu.Lock()
	if late {
		p.core.restartClocks(now)
		p.writingSince.restart(now)
		p.syncingSince.restart(now)
	}
	send := p.proposeLocked(true, now)
	reason, suspect := p.unfitLocked(now)
	epoch := p.core.epoch
	ask := reason != "" && now.Sub(p.askedAt) >= askAgain
	if ask {
		p.askedAt = now
	}
	p.mu.Unlock()
	send()
	if ask {
		p.host.log.Warn().Str("topic", p.Topic().Name).Int32("partition", p.number).Str("reason", reason).Msg("asking the controller for another leader")
		p.host.control.AskLeader(metadata.LeadershipRequest{Topic: p.id, Partition: p.number, LeaderEpoch: epoch, Reason: reason, Suspect: suspect})
	}
}

// A stall knows since when the present call to the disk is under way.
type stall struct {
	// zero is before any call. Times are counted from it, so that they are those
	// of the monotonic clock.
	zero  time.Time
	since atomic.Int64 // nanoseconds after zero, 0 while there is no call
}

func (s *stall) at(now time.Time) int64 { return max(int64(now.Sub(s.zero)), 1) }

func (s *stall) begin() { s.since.Store(s.at(time.Now())) }
func (s *stall) end()   { s.since.Store(0) }

// restart has a call that is under way count from now on only.
func (s *stall) restart(now time.Time) {
	if since := s.since.Load(); since != 0 {
		s.since.CompareAndSwap(since, s.at(now)) // else it has ended
	}
}

func (s *stall) longer(now time.Time, than time.Duration) bool {
	since := s.since.Load()
	return since != 0 && now.Sub(s.zero)-time.Duration(since) >= than
}

// askAgain is how often the controller is asked for another leader.
const askAgain = 5 * time.Second

// unfitLocked says why another broker of the ISR should lead, "" when none
// should, and whether what is stored here may lack something.
func (p *Partition) unfitLocked(now time.Time) (reason string, suspect bool) {
	if p.core.role != leading || len(p.core.committed) < 2 {
		return "", false
	}
	switch damaged := p.damagedHere(); {
	case p.writingSince.longer(now, p.core.lag.max), p.syncingSince.longer(now, p.core.lag.max):
		return "stalled: the disk has not answered for " + p.core.lag.max.String(), damaged
	case p.core.faulty(now):
		return "stalled: followers were not sent what they have credit for", damaged
	case damaged:
		return "corrupt: stored records are damaged", true
	}
	return "", false
}

// rejected takes the controller's no to a proposal.
func (p *Partition) rejected(r metadata.Rejection) {
	p.mu.Lock()
	p.core.rejected(r.Number, time.Now())
	p.publishLocked()
	p.mu.Unlock()
	p.deliver()
}

// How long the leadership may take to be handed over: drainTime for what is
// parked to be answered, releaseTime for the controller to choose.
const (
	drainTime   = 100 * time.Millisecond
	releaseTime = 2 * time.Second
)

// handOver refuses appends from now on, in the given leader epoch. It returns
// false when this broker does not lead in it.
func (p *Partition) handOver(epoch record.Epoch) bool {
	p.mu.Lock()
	ok := p.stopped == nil && p.core.role == leading && p.core.epoch == epoch
	if ok {
		p.core.moving = true
		p.publishLocked()
	}
	p.mu.Unlock()
	p.deliver()
	return ok
}

// drained says whether all that was appended in the epoch that is being handed
// over is committed; ended, whether it has nothing to hand over any more.
func (p *Partition) drained(epoch record.Epoch) (drained, ended bool) {
	idle := false
	select {
	case p.writing <- struct{}{}: // no append that was admitted before is under way
		<-p.writing
		idle = true
	default: // its disk may hang: not to be waited for
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.stopped != nil || !p.core.moving || p.core.epoch != epoch {
		return false, true
	}
	return idle && p.core.drained(), false
}

// goOn takes appends again, if the leadership is still this broker's.
func (p *Partition) goOn(epoch record.Epoch) {
	p.mu.Lock()
	if p.core.moving && p.core.epoch == epoch {
		p.core.moving = false
		p.publishLocked()
	}
	p.mu.Unlock()
	p.deliver()
}
