package partition

import (
	"slices"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// A lagClock knows when the offsets that are not committed yet were appended,
// to a 64th of max, so that a follower's lag is the age of the first record it
// lacks, not the time since it last had all.
type lagClock struct {
	max time.Duration // how old that record may be for an ISR member
	// start is when the clocks were last set to nothing.
	start time.Time
	// Invariant: both end and at strictly increase; the first entry's end is
	// above the high watermark when it was last looked at.
	samples []lagSample
}

type lagSample struct {
	end record.Offset // up to here, exclusive, was appended
	at  time.Time     // from here on
}

// lagSamples bounds the memory; at a 64th each they reach back twice max.
const lagSamples = 128

func (l *lagClock) begin(hw, end record.Offset, now time.Time) {
	l.start, l.samples = now, nil
	if end > hw {
		l.samples = append(l.samples, lagSample{end, now})
	}
}

func (l *lagClock) appended(hw, end record.Offset, now time.Time) {
	for len(l.samples) > 0 && l.samples[0].end <= hw {
		l.samples = l.samples[1:]
	}
	if n := len(l.samples); n > 0 && now.Sub(l.samples[n-1].at) < l.max/64 {
		l.samples[n-1].end = end
		return
	}
	if len(l.samples) == lagSamples {
		l.samples = l.samples[1:]
	}
	l.samples = append(l.samples, lagSample{end, now})
}

// since returns when the record at offset was appended; now for one that was
// not.
func (l *lagClock) since(offset record.Offset, now time.Time) time.Time {
	for _, s := range l.samples {
		if s.end > offset {
			if s.at.Before(l.start) {
				return l.start
			}
			return s.at
		}
	}
	return now
}

// behindSince is when the first record was appended that a follower has not
// acknowledged; now when there is none. Who has not acknowledged in this epoch
// lacks what is not committed.
func (c *core) behindSince(id metadata.BrokerID, now time.Time) time.Time {
	acked := c.hw
	if f := c.followers[id]; f != nil && c.current(id, f) {
		acked = c.counted(f.progress)
	}
	if acked >= c.own.written {
		return now
	}
	return c.lag.since(acked, now)
}

// behind is for how long a follower, by its own fault, has lacked a record.
func (c *core) behind(id metadata.BrokerID, now time.Time) time.Duration {
	d := now.Sub(c.behindSince(id, now))
	if f := c.followers[id]; f != nil {
		d = max(d-f.charged, 0)
	}
	return d
}

// charge brings what the leader is charged with up to now.
func (c *core) charge(now time.Time) {
	for _, f := range c.followers {
		c.chargeOne(f, now)
	}
}

func (c *core) chargeOne(f *follower, now time.Time) {
	if f.subscribed && f.credit && f.sent < c.own.written {
		f.charged += max(now.Sub(f.chargedTo), 0)
	}
	f.chargedTo = now
}

// restartClocks forgets how long anybody has been behind: this broker itself
// was away, and has not heard what they had to say.
func (c *core) restartClocks(now time.Time) {
	c.lag.start = now
	for _, f := range c.followers {
		f.charged, f.chargedTo = 0, now
	}
}

// rejectedPause is how long no proposal is made after one was rejected.
const rejectedPause = time.Second

// rejected takes a definite no.
func (c *core) rejected(number uint64, now time.Time) {
	n := len(c.proposals)
	c.proposals = slices.DeleteFunc(c.proposals, func(p proposal) bool { return p.number == number })
	if len(c.proposals) < n {
		c.retryAt = now.Add(rejectedPause)
		c.advance()
	}
}

// ready says whether a replica may join the ISR: it has all that is or may be
// committed, and nothing that was deleted, it said so in this epoch, and it is
// registered as who said so.
func (c *core) ready(id metadata.BrokerID) bool {
	f := c.followers[id]
	if f == nil || !f.subscribed || !c.current(id, f) {
		return false
	}
	epoch, eligible := c.registration(id)
	has := c.counted(f.progress)
	return eligible && f.brokerEpoch >= epoch && has >= c.hw && has >= c.leso && f.logStart >= c.logStart
}

// wanted returns the ISR this leader would have: with replicas that have caught
// up, without members that withdrew and, if lag is judged, without those that
// lag.
func (c *core) wanted(judge bool, now time.Time) []metadata.BrokerID {
	want := slices.DeleteFunc(slices.Clone(c.committed), func(id metadata.BrokerID) bool {
		f := c.followers[id]
		return f != nil && f.withdrew
	})
	if judge {
		c.charge(now)
		want = slices.DeleteFunc(want, func(id metadata.BrokerID) bool {
			return id != c.self && c.behind(id, now) >= c.lag.max
		})
	}
	for _, id := range c.replicas {
		if id != c.self && !slices.Contains(c.committed, id) && c.ready(id) {
			want = append(want, id)
		}
	}
	return want
}

// propose returns the proposal to be sent now, if there is one. It counts from
// here on: its members hold the high watermark back before the controller hears
// of it, and who is left out goes on doing so until the controller has spoken.
//
// Lag is judged only by the clock, which knows whether this broker was away, and
// never on a follower's word: the others' may be waiting behind it.
func (c *core) propose(number func() uint64, judge bool, now time.Time) (proposal, bool) {
	if c.role != leading || c.moving || len(c.proposals) > 0 || now.Before(c.retryAt) || !slices.Contains(c.committed, c.self) {
		return proposal{}, false
	}
	isr := c.wanted(judge, now)
	if len(isr) == len(c.committed) && !slices.ContainsFunc(isr, func(id metadata.BrokerID) bool { return !slices.Contains(c.committed, id) }) {
		return proposal{}, false
	}
	p := proposal{isr: isr, base: c.partitionEpoch, session: c.session, number: number()}
	c.proposals = append(c.proposals, p)
	return p, true
}

// members returns a proposal's members with the registrations they caught up in.
func (c *core) members(p proposal) []metadata.ISRMember {
	out := make([]metadata.ISRMember, len(p.isr))
	for i, id := range p.isr {
		epoch, _ := c.registration(id)
		if f := c.followers[id]; f != nil && f.acked {
			epoch = f.brokerEpoch
		}
		out[i] = metadata.ISRMember{ID: id, Epoch: epoch}
	}
	return out
}

// faulty says whether this leader has, for as long as a follower may lag, left
// bytes unsent that a member of the ISR waits for and has credit for.
func (c *core) faulty(now time.Time) bool {
	if c.role != leading {
		return false
	}
	c.charge(now)
	bad := false
	c.others(func(id metadata.BrokerID) bool {
		f := c.followers[id]
		bad = f != nil && f.charged >= c.lag.max && now.Sub(c.behindSince(id, now)) >= c.lag.max
		return !bad
	}, c.committed)
	return bad
}
