package partition

import (
	"fmt"
	"slices"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// A follower is what the leader knows of one that subscribed in its epoch.
type follower struct {
	subscription int64
	brokerEpoch  int64
	// subscribed: the subscription was accepted and has not ended.
	subscribed bool
	// withdrew: it said that it can take nothing more for a while, and has not
	// subscribed anew.
	withdrew bool
	// acked: it acknowledged in this epoch, and so has cut its log to this
	// leader's. Without it nothing below counts.
	acked bool
	progress
	logStart record.Offset
	// purged is the log's PurgedTo as of which nothing this follower has was
	// deleted unseen. fresh: it began without any records.
	purged record.Offset
	fresh  bool

	// accepted is when its subscribe was answered, confirmed the sending of the
	// newest thing it has answered; links have newer ones.
	accepted  time.Time
	confirmed time.Time

	// What the leader is charged with: charged is the time during which it had
	// bytes to send and credit since the follower is behind, counted up to
	// chargedTo.
	sent      record.Offset
	credit    bool
	charged   time.Duration
	chargedTo time.Time
}

// A history answers what a log knows of its epochs; *commitlog.Log is one.
type history interface {
	Start() record.Offset
	End() record.Offset
	EpochAt(record.Offset) record.Epoch
	EpochEnd(record.Epoch) (record.Epoch, record.Offset)
	PurgedTo() record.Offset
}

// current says whether what a follower acknowledged is of the broker that is
// registered now: another incarnation may have another log.
func (c *core) current(id metadata.BrokerID, f *follower) bool {
	if !f.acked {
		return false
	}
	epoch, _ := c.registration(id)
	return f.brokerEpoch >= epoch
}

func (c *core) registration(id metadata.BrokerID) (epoch int64, eligible bool) {
	if c.registered == nil {
		return 0, true
	}
	return c.registered(id)
}

// subscribe judges a follower's wish against the own log. Whatever the answer,
// an earlier subscription of that follower is over: it has given it up.
func (c *core) subscribe(s FollowerSubscribe, log history, now time.Time) (SubscribeAnswer, error) {
	refused := func(format string, args ...any) (SubscribeAnswer, error) {
		return SubscribeAnswer{Kind: Refused, LeaderEpoch: c.epoch, Reason: fmt.Sprintf(format, args...)}, nil
	}
	registered, _ := c.registration(s.Follower)
	switch {
	case s.Epoch > c.epoch, s.Epoch == c.epoch && c.role == idle:
		return SubscribeAnswer{}, fmt.Errorf("%w: leader epoch %d, this broker knows %d", ErrPark, s.Epoch, c.epoch)
	case s.Epoch < c.epoch:
		return refused("the leader epoch is %d, not %d", c.epoch, s.Epoch)
	case c.role != leading:
		return refused("this broker does not lead in epoch %d", c.epoch)
	case s.BrokerEpoch > registered:
		return SubscribeAnswer{}, fmt.Errorf("%w: broker %d in epoch %d, this broker knows %d", ErrPark, s.Follower, s.BrokerEpoch, registered)
	case s.BrokerEpoch < registered:
		return refused("broker %d is registered in epoch %d, not %d", s.Follower, registered, s.BrokerEpoch)
	case !slices.Contains(c.replicas, s.Follower):
		return refused("broker %d has no replica of this partition", s.Follower)
	}
	if old := c.followers[s.Follower]; old != nil && old.brokerEpoch == s.BrokerEpoch && old.subscription >= s.Subscription {
		return refused("subscription %d is not newer than %d", s.Subscription, old.subscription)
	}
	if s.NextOffset == NoOffset && c.mayBeCounted(s.Follower) {
		// It may be elected for what it has, or is about to be.
		return refused("broker %d may not begin anew, it is counted on", s.Follower)
	}
	if s.NextOffset == NoOffset && !c.proven(now) {
		// What is damaged here may be whole there.
		return refused("broker %d may not begin anew while this leader has not found all of its own copy good", s.Follower)
	}
	a := judge(s, log)
	f := &follower{subscription: s.Subscription, brokerEpoch: s.BrokerEpoch, accepted: now, sent: s.NextOffset, credit: true, chargedTo: now}
	c.followers[s.Follower] = f
	if a.Kind == Accepted {
		f.subscribed = true
		f.purged, f.fresh = log.PurgedTo(), s.NextOffset == log.Start()
		a.HighWatermark = c.hw
	}
	return a, nil
}

// proven says whether all of this leader's log was found good of late.
func (c *core) proven(now time.Time) bool { return !c.sound.IsZero() && now.Sub(c.sound) < soundFor }

// mayBeCounted says whether a follower may be what the controller elects from.
func (c *core) mayBeCounted(id metadata.BrokerID) bool {
	counted := false
	c.others(func(other metadata.BrokerID) bool {
		counted = other == id
		return !counted
	}, append(c.maximal(), c.elr)...)
	return counted
}

// judge compares a follower's end with the leader's log.
func judge(s FollowerSubscribe, log history) SubscribeAnswer {
	start := log.Start()
	if s.NextOffset < start || (!s.HasLastEpoch && s.NextOffset != start) {
		return reset(log, start)
	}
	if !s.HasLastEpoch {
		return SubscribeAnswer{Kind: Accepted, LogStart: start}
	}
	epoch, end := log.EpochEnd(s.LastEpoch)
	if epoch < s.LastEpoch || end < s.NextOffset {
		return SubscribeAnswer{Kind: Diverging, Epoch: epoch, End: end}
	}
	if at := log.EpochAt(s.NextOffset - 1); at != commitlog.NoEpoch && at != s.LastEpoch {
		if s.NextOffset == start {
			// The ends meet at the log start only because nothing is answered
			// below it; what the follower has under it is another history.
			return reset(log, start)
		}
		epoch, end = log.EpochEnd(at)
		return SubscribeAnswer{Kind: Diverging, Epoch: epoch, End: end}
	}
	if purged := log.PurgedTo(); s.NextOffset > start && s.NextOffset < purged {
		// Keys may have been deleted, and the tombstones gone, that it has and
		// would bring back.
		a := reset(log, start)
		a.PurgedTo = purged
		return a
	}
	return SubscribeAnswer{Kind: Accepted, LogStart: start}
}

func reset(log history, start record.Offset) SubscribeAnswer {
	a := SubscribeAnswer{Kind: Reset, LogStart: start}
	if at := log.EpochAt(start - 1); at != commitlog.NoEpoch {
		a.Epoch, a.HasEpoch = at, true
	}
	return a
}

// subscription returns the follower of a subscription that stands.
func (c *core) subscription(id metadata.BrokerID, subscription int64) *follower {
	if f := c.followers[id]; c.role == leading && f != nil && f.subscribed && f.subscription == subscription {
		return f
	}
	return nil
}

// missed says whether a follower that is to go on at from may have missed
// tombstones that are gone. One that began with an empty log cannot have missed
// those that went before it could see what they delete: each stays for retention
// after that is gone. Half of it is counted, since a pass takes its time.
func (f *follower) missed(from, purged record.Offset, retention time.Duration, now time.Time) bool {
	if purged <= f.purged || from >= purged {
		return false
	}
	if f.fresh && now.Sub(f.accepted) < retention/2 {
		f.purged = purged
		return false
	}
	return true
}

// ack takes what a follower has. It reports whether the ack was of the standing
// subscription; any other is no news of this log.
func (c *core) ack(a FollowerAck, now time.Time) bool {
	f := c.subscription(a.Follower, a.Subscription)
	registered, _ := c.registration(a.Follower)
	if f == nil || a.Epoch != c.epoch || a.BrokerEpoch != f.brokerEpoch || a.BrokerEpoch < registered {
		return false
	}
	c.chargeOne(f, now)
	if !f.acked {
		f.acked, f.confirmed = true, f.accepted
	}
	written := min(a.Written, c.own.written)
	f.progress = progress{max(f.written, written), max(f.durable, min(a.Durable, written))}
	f.logStart = max(f.logStart, a.LogStart)
	f.charged = min(f.charged, now.Sub(c.behindSince(a.Follower, now)))
	c.advance()
	return true
}

// gone ends a subscription. What was acknowledged stays true.
func (c *core) gone(id metadata.BrokerID, subscription int64, now time.Time) {
	if f := c.subscription(id, subscription); f != nil {
		c.chargeOne(f, now)
		f.subscribed = false
	}
}

// withdraw ends a subscription of a follower that asks to leave the ISR.
func (c *core) withdraw(id metadata.BrokerID, subscription int64, now time.Time) {
	if f := c.subscription(id, subscription); f != nil {
		f.withdrew = true
		c.gone(id, subscription, now)
	}
}

// sentTo notes what was handed to a follower's stream.
func (c *core) sentTo(f *follower, next record.Offset, now time.Time) {
	c.chargeOne(f, now)
	f.sent = max(f.sent, next)
}

// creditOf notes whether the follower lets more be sent.
func (c *core) creditOf(f *follower, some bool, now time.Time) {
	c.chargeOne(f, now)
	f.credit = some
}

// confirmed says whether every other broker that could be elected has answered
// something this leader sent in its epoch after since. link tells of answers that
// came for all subscriptions of a stream at once.
func (c *core) confirmed(since time.Time, link func(metadata.BrokerID) time.Time) bool {
	if c.role != leading {
		return false
	}
	all := true
	c.others(func(id metadata.BrokerID) bool {
		f := c.followers[id]
		if f == nil || !f.subscribed || !c.current(id, f) {
			all = false
			return false
		}
		at := f.confirmed
		if l := link(id); l.After(at) {
			at = l
		}
		all = at.After(since)
		return all
	}, append(c.maximal(), c.elr)...)
	return all
}
