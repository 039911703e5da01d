package partition

import (
	"fmt"
	"slices"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
)

// A follow is where a follower stands with its leader.
type follow struct {
	leader metadata.BrokerID
	// subscription is the current one, while phase is not unsubscribed. It is
	// dropped before the log is cut or emptied and before the leader changes, so
	// that what belongs to it can't be taken for what the log is then.
	subscription int64
	phase        followPhase
	lossy        []record.Epoch // began with elections that may have lost records
	// diverged is why this leader is not followed, nil while it can be.
	diverged error
	// anew: the current subscription asks to be told to begin anew.
	anew bool
}

type followPhase uint8

const (
	unsubscribed followPhase = iota
	asked                    // the answer is awaited
	accepted                 // frames are taken, acks are given
)

// ask begins a subscription. With anew, this log is damaged, and nobody is known
// to count on it: only the leader knows of all who do.
func (c *core) ask(subscription int64, log history, anew bool) (FollowerSubscribe, bool) {
	if c.role != following || c.follow.diverged != nil {
		return FollowerSubscribe{}, false
	}
	c.follow.subscription, c.follow.phase, c.follow.anew = subscription, asked, anew
	s := FollowerSubscribe{
		Follower: c.self, Leader: c.follow.leader, Epoch: c.epoch, Subscription: subscription,
		NextOffset: c.own.written, LogStart: c.logStart,
	}
	if anew {
		s.NextOffset = NoOffset
		return s, true
	}
	if e := log.EpochAt(c.own.written - 1); e != commitlog.NoEpoch {
		s.LastEpoch, s.HasLastEpoch = e, true
	}
	return s, true
}

// unsubscribe drops a subscription, if it is the current one.
func (c *core) unsubscribe(subscription int64) bool {
	if c.role != following || c.follow.phase == unsubscribed || c.follow.subscription != subscription {
		return false
	}
	c.follow.phase = unsubscribed
	return true
}

// A change is what an answer asks a follower to do to its log.
type change struct {
	kind  changeKind
	to    record.Offset // the log's end afterwards, or, after emptying, its start
	epoch record.Epoch  // emptying: that of the record before to, or 0
	keep  bool          // an election that may have lost records explains it: keep a copy
	below bool          // committed records go
}

type changeKind uint8

const (
	noChange changeKind = iota
	truncate
	empty
)

// answered takes the answer to a subscribe and says what to do to the log, for
// which the subscription has been dropped.
func (c *core) answered(subscription int64, a SubscribeAnswer, log history) (change, error) {
	if c.role != following || c.follow.phase != asked || c.follow.subscription != subscription {
		return change{}, ErrNotSubscribed
	}
	c.follow.phase = unsubscribed
	var do change
	switch a.Kind {
	case Accepted:
		c.follow.phase = accepted
		c.learn(a.HighWatermark)
		return change{}, nil
	case Diverging:
		_, end := log.EpochEnd(a.Epoch)
		do = change{kind: truncate, to: min(end, a.End)}
		if do.to < log.Start() {
			do = change{kind: empty, to: do.to}
		}
	case Reset:
		do = change{kind: empty, to: a.LogStart, epoch: a.Epoch}
	case Refused:
		return change{}, fmt.Errorf("%w: broker %d, in leader epoch %d: %s", ErrNotSubscribed, c.follow.leader, a.LeaderEpoch, a.Reason)
	default:
		return change{}, fmt.Errorf("%w: unknown answer %d", ErrNotSubscribed, a.Kind)
	}
	do.keep = !c.follow.anew && c.explained(log.EpochAt(c.own.written-1))
	// What compaction explains goes to come again: that leader's high watermark
	// is beyond this log.
	if max(do.to, c.logStart) < c.hw && c.own.written >= a.PurgedTo && !c.follow.anew {
		if !do.keep {
			c.follow.diverged = fmt.Errorf("%w: broker %d in leader epoch %d asks to cut to offset %d, and all below %d is committed",
				ErrDiverged, c.follow.leader, c.epoch, do.to, c.hw)
			return change{}, c.follow.diverged
		}
		do.below = true
	}
	return do, nil
}

// explained says whether an election that may have lost records came after the
// last record of this log and not after the present epoch.
func (c *core) explained(last record.Epoch) bool {
	return slices.ContainsFunc(c.follow.lossy, func(e record.Epoch) bool { return last < e && e <= c.epoch })
}

// changed notes what the log is after a change.
func (c *core) changed(logStart record.Offset, own progress) {
	c.own, c.logStart = own, logStart
	c.hw = min(max(c.hw, logStart), own.written)
}

// emptied notes that nothing is left of the log.
func (c *core) emptied(logStart record.Offset) {
	c.own, c.logStart, c.hw = progress{logStart, logStart}, logStart, logStart
}

// admit says why a data frame can't go to the log. Then the subscription is
// dropped: either it is not the current one, or one of the two ends is wrong
// about the other, and a new one begins with a comparison.
func (c *core) admit(d *Data, log history) error {
	if c.role != following || c.follow.phase != accepted || c.follow.subscription != d.Subscription || d.Epoch != c.epoch {
		return ErrNotSubscribed
	}
	prev := log.EpochAt(c.own.written - 1)
	var why string
	switch {
	case d.Start != c.own.written:
		why = fmt.Sprintf("it begins at %d, the log ends at %d", d.Start, c.own.written)
	case d.Next <= d.Start:
		why = fmt.Sprintf("it covers [%d, %d)", d.Start, d.Next)
	case prev == commitlog.NoEpoch: // a log just emptied knows nothing before it
	case !d.HasPrevEpoch && d.Start <= d.LogStart: // the leader knows nothing before its start
	case !d.HasPrevEpoch || d.PrevEpoch != prev:
		why = fmt.Sprintf("the record before %d is of epoch %d here, and of %d there", d.Start, prev, d.PrevEpoch)
	}
	if why == "" {
		return nil
	}
	c.follow.phase = unsubscribed
	return fmt.Errorf("%w: a frame does not fit: %s", ErrNotSubscribed, why)
}

// learn takes the leader's high watermark, as far as this log goes. What was
// once committed stays so: it never falls.
func (c *core) learn(hw record.Offset) { c.hw = max(c.hw, min(hw, c.own.written)) }

// taken notes the log after frames were appended.
func (c *core) taken(own progress, hw record.Offset) {
	c.own = own
	c.learn(hw)
}

// start returns the log start to move to, as the leader wants it: never above
// the high watermark, and never back.
func (c *core) start(logStart record.Offset) (record.Offset, bool) {
	logStart = min(logStart, c.hw)
	return logStart, logStart > c.logStart
}

// acknowledge returns what to say of the current subscription. Where the disk
// counts, what is only written does not exist for the leader, which may have heard
// earlier that it does not count any more: this log still promises to have all
// that it says after a power cut.
func (c *core) acknowledge(subscription int64) (FollowerAck, bool) {
	if c.role != following || c.follow.phase != accepted || c.follow.subscription != subscription {
		return FollowerAck{}, false
	}
	return FollowerAck{
		Epoch: c.epoch, Subscription: subscription, Written: c.counted(c.own), Durable: min(c.own.durable, c.own.written), LogStart: c.logStart,
	}, true
}
