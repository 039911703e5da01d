package partition

import (
	"slices"
	"testing"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// after returns the time d after the beginning.
func after(d time.Duration) time.Time { return t0.Add(d) }

func proposes(c *core, judge bool, now time.Time) []metadata.BrokerID {
	p, ok := c.propose(func() uint64 { return 1 }, judge, now)
	if !ok {
		return nil
	}
	return p.isr
}

// inSync is a leader whose followers 2 and 3 have acknowledged all there was.
func inSync(t *testing.T, isr []metadata.BrokerID) *core {
	t.Helper()
	c := ready3(isr)
	for _, id := range ids(2, 3) {
		subscribed(t, c, logOf(0), id, 0, 0, t0)
		has(c, id, 0, t0)
	}
	return c
}

// has acknowledges for a follower, which was sent all of it.
func has(c *core, id metadata.BrokerID, end record.Offset, now time.Time) {
	c.sentTo(c.followers[id], end, now)
	c.ack(FollowerAck{Follower: id, BrokerEpoch: int64(id) * 10, Epoch: c.epoch, Subscription: c.followers[id].subscription, Written: end}, now)
}

// sends notes that all there is was sent to both.
func sends(c *core, now time.Time) {
	for _, f := range c.followers {
		c.sentTo(f, c.own.written, now)
	}
}

func TestLag(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(c *core)
		when time.Duration
		want []metadata.BrokerID
	}{
		"idle for an hour": {func(*core) {}, time.Hour, nil},
		"idle for an hour, then an append": {func(c *core) {
			c.appended(1, after(time.Hour))
			sends(c, after(time.Hour))
			has(c, 2, 1, after(time.Hour))
		}, time.Hour + 9*time.Second, nil},
		"a record for as long as may be": {func(c *core) {
			c.appended(1, after(time.Hour))
			sends(c, after(time.Hour))
			has(c, 2, 1, after(time.Hour))
		}, time.Hour + 10*time.Second, ids(1, 2)},
		"gone, and nothing was appended": {func(c *core) { c.gone(3, 1, t0) }, time.Hour, nil},
		"gone": {func(c *core) {
			c.gone(3, 1, t0)
			c.appended(1, t0)
			sends(c, t0)
			has(c, 2, 1, t0)
		}, 10 * time.Second, ids(1, 2)},
		"not sent what it has credit for": {func(c *core) {
			c.appended(1, t0)
			has(c, 2, 1, t0)
		}, time.Minute, nil},
		"not sent for want of credit": {func(c *core) {
			c.creditOf(c.followers[3], false, t0)
			c.appended(1, t0)
			has(c, 2, 1, t0)
		}, 10 * time.Second, ids(1, 2)},
		"sent late": {func(c *core) {
			c.appended(1, t0)
			has(c, 2, 1, t0)
			c.sentTo(c.followers[3], 1, after(5*time.Second))
		}, 14 * time.Second, nil},
		"sent late, and long ago": {func(c *core) {
			c.appended(1, t0)
			has(c, 2, 1, t0)
			c.sentTo(c.followers[3], 1, after(5*time.Second))
		}, 15 * time.Second, ids(1, 2)},
		"the leader was away": {func(c *core) {
			c.appended(1, t0)
			sends(c, t0)
			has(c, 2, 1, t0)
			c.restartClocks(after(40 * time.Second))
		}, 49 * time.Second, nil},
		"and comes no nearer": {func(c *core) {
			c.appended(1, t0)
			sends(c, t0)
			has(c, 2, 1, t0)
			c.restartClocks(after(40 * time.Second))
		}, 50 * time.Second, ids(1, 2)},
	} {
		t.Run(name, func(t *testing.T) {
			co := inSync(t, ids(1, 2, 3))
			c.do(co)
			if got := proposes(co, false, after(c.when)); got != nil {
				t.Errorf("lag is judged on an ack: %v", got)
			}
			if got := proposes(co, true, after(c.when)); !slices.Equal(got, c.want) {
				t.Errorf("proposed %v, want %v", got, c.want)
			}
		})
	}
}

// Who is always as far behind is judged by that, and by no more.
func TestLag_steady(t *testing.T) {
	for lag, want := range map[int]bool{9: false, 11: true} {
		c, left := inSync(t, ids(1, 2, 3)), false
		for s := range 90 {
			now := after(time.Duration(s) * time.Second)
			c.appended(record.Offset(s+1), now)
			sends(c, now)
			has(c, 2, record.Offset(s+1), now)
			if s >= lag {
				has(c, 3, record.Offset(s+1-lag), now)
			}
			left = left || proposes(c, true, now.Add(500*time.Millisecond)) != nil
		}
		if left != want {
			t.Errorf("%d s behind: left out %v", lag, left)
		}
	}
}

// A new leader that can't tell what is committed waits for who has not spoken
// yet, but not for ever.
func TestLag_silentInNewEpoch(t *testing.T) {
	c := &core{self: 1, lag: lagClock{max: 10 * time.Second}, hw: 3}
	c.lead(&metadata.Partition{LeaderEpoch: 2, Replicas: ids(1, 2), ISR: ids(1, 2), MinISR: 1}, 1, progress{5, 5}, t0)
	if got := proposes(c, true, after(9*time.Second)); got != nil {
		t.Errorf("proposed %v", got)
	}
	if got := proposes(c, true, after(10*time.Second)); !slices.Equal(got, ids(1)) {
		t.Errorf("proposed %v", got)
	}
	c.hw, c.proposals = 5, nil
	if got := proposes(c, true, after(time.Hour)); got != nil {
		t.Errorf("proposed %v, and nothing is unacknowledged", got)
	}
}

func TestExpand(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(c *core)
		want []metadata.BrokerID
	}{
		"has all": {func(c *core) { has(c, 3, 6, t0) }, ids(1, 2, 3)},
		"has all that is committed": {func(c *core) {
			has(c, 2, 4, t0)
			has(c, 3, 4, t0)
		}, ids(1, 2, 3)},
		"lacks what is committed": {func(c *core) {
			has(c, 2, 6, t0)
			has(c, 3, 5, t0)
		}, nil},
		"lacks what may be committed": {func(c *core) {
			c.leso = 5
			has(c, 2, 4, t0)
			has(c, 3, 4, t0)
		}, nil},
		"has not acknowledged": {func(c *core) { c.followers[3].acked = false }, nil},
		"its subscription ended": {func(c *core) {
			has(c, 3, 6, t0)
			c.gone(3, 1, t0)
		}, nil},
		"is fenced, or leaves": {func(c *core) {
			has(c, 3, 6, t0)
			c.registered = func(id metadata.BrokerID) (int64, bool) { return int64(id) * 10, id != 3 }
		}, nil},
		"is another by now": {func(c *core) {
			has(c, 3, 6, t0)
			c.registered = func(id metadata.BrokerID) (int64, bool) { return int64(id)*10 + 1, true }
		}, nil},
		"is on the disk, not yet durable": {func(c *core) {
			c.sync = true
			has(c, 3, 6, t0)
			c.hw = 1
		}, nil},
		"the leadership is being moved": {func(c *core) {
			c.moving = true
			has(c, 3, 6, t0)
		}, nil},
		"a proposal is under way": {func(c *core) {
			asks(c, ids(1))
			has(c, 3, 6, t0)
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			co := inSync(t, ids(1, 2))
			co.appended(6, t0)
			c.do(co)
			if got := proposes(co, false, t0); !slices.Equal(got, c.want) {
				t.Errorf("proposed %v, want %v", got, c.want)
			}
		})
	}
}

// What settles a proposal, and what does not.
func TestProposal_settled(t *testing.T) {
	same := metadata.Partition{LeaderEpoch: 2, PartitionEpoch: 5, Replicas: ids(1, 2, 3), ISR: ids(1, 2), MinISR: 1}
	newer := same
	newer.PartitionEpoch = 6
	older := same
	older.PartitionEpoch = 4
	for name, c := range map[string]struct {
		do   func(c *core)
		want bool
	}{
		"the same again":                    {func(c *core) { c.resolve(&same, 1) }, false},
		"an older state":                    {func(c *core) { c.resolve(&older, 1) }, false},
		"a newer state":                     {func(c *core) { c.resolve(&newer, 1) }, true},
		"a new session's snapshot":          {func(c *core) { c.resolve(&same, 2) }, true},
		"a restored, older snapshot":        {func(c *core) { c.resolve(&older, 2) }, true},
		"a no":                              {func(c *core) { c.rejected(1, t0) }, true},
		"a no to another":                   {func(c *core) { c.rejected(2, t0) }, false},
		"time":                              {func(c *core) { proposes(c, true, after(time.Hour)) }, false},
		"another leadership of this broker": {func(c *core) { c.lead(&newer, 1, c.own, t0) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			co := inSync(t, ids(1, 2))
			if got := proposes(co, false, t0); !slices.Equal(got, ids(1, 2, 3)) {
				t.Fatalf("proposed %v", got)
			}
			c.do(co)
			if got := len(co.proposals) == 0; got != c.want {
				t.Errorf("settled: %v", got)
			}
			if !c.want && co.partitionEpoch != 5 {
				t.Errorf("went back to partition epoch %d", co.partitionEpoch)
			}
		})
	}
	c := inSync(t, ids(1, 2))
	proposes(c, false, t0)
	c.rejected(1, t0)
	if got := proposes(c, true, after(rejectedPause-1)); got != nil {
		t.Errorf("proposed %v right after a no", got)
	}
	if got := proposes(c, true, after(rejectedPause)); got == nil {
		t.Error("never proposed again")
	}
	if m := c.members(c.proposals[0]); len(m) != 3 || m[2] != (metadata.ISRMember{ID: 3, Epoch: 30}) {
		t.Errorf("members %+v", m)
	}
}

// A leader that does not send must not go on for ever.
func TestFaulty(t *testing.T) {
	c := inSync(t, ids(1, 2))
	c.appended(1, t0)
	if c.faulty(after(9 * time.Second)) {
		t.Error("too early")
	}
	if !c.faulty(after(10 * time.Second)) {
		t.Error("it has not sent for ten seconds")
	}
	has(c, 2, 1, after(11*time.Second))
	if c.faulty(after(time.Hour)) {
		t.Error("it has sent since")
	}
	c.appended(2, after(time.Hour))
	c.sentTo(c.followers[2], 2, after(time.Hour))
	if c.faulty(after(2 * time.Hour)) {
		t.Error("it is the follower that does not answer")
	}
}

// The memory of append times is bounded, however many there are.
func TestLag_bounded(t *testing.T) {
	c := inSync(t, ids(1, 2))
	for n := range 100_000 {
		c.appended(record.Offset(n+1), after(time.Duration(n)*time.Millisecond))
		sends(c, after(time.Duration(n)*time.Millisecond))
	}
	if n := len(c.lag.samples); n > lagSamples {
		t.Errorf("%d samples", n)
	}
	if got := c.behind(2, after(100*time.Second)); got < c.lag.max {
		t.Errorf("behind for %v", got)
	}
}

// A follower that can take nothing more asks not to be waited for: it leaves at
// once, also when lag is not judged, and joins again by subscribing and catching
// up.
func TestWithdraw(t *testing.T) {
	c := inSync(t, ids(1, 2, 3))
	c.minISR = 2
	c.appended(1, after(time.Second))
	sends(c, after(time.Second))
	has(c, 3, 1, after(time.Second))
	c.withdraw(2, c.followers[2].subscription-1, after(time.Second))
	if got := proposes(c, true, after(time.Second)); got != nil {
		t.Fatalf("withdrew a subscription that is over: proposes %v", got)
	}
	c.withdraw(2, c.followers[2].subscription, after(time.Second))
	if got := proposes(c, false, after(time.Second)); !slices.Equal(got, ids(1, 3)) {
		t.Fatalf("proposes %v", got)
	}
	if c.hw != 0 {
		t.Error("committed without a member that may not have left")
	}
	c.resolve(&metadata.Partition{Leader: 1, LeaderEpoch: c.epoch, PartitionEpoch: c.partitionEpoch + 1, Replicas: ids(1, 2, 3), ISR: ids(1, 3), MinISR: 2}, c.session)
	if c.hw != 1 {
		t.Error("not committed with the members there are")
	}
	if got := proposes(c, true, after(2*time.Second)); got != nil {
		t.Fatalf("proposes %v", got)
	}
	if a, err := c.subscribe(FollowerSubscribe{Follower: 2, BrokerEpoch: 20, Epoch: c.epoch, Subscription: 2}, logOf(0), after(3*time.Second)); err != nil || a.Kind != Accepted {
		t.Fatalf("%+v, %v", a, err)
	}
	has(c, 2, 1, after(3*time.Second))
	if got := proposes(c, false, after(3*time.Second)); !slices.Equal(got, ids(1, 3, 2)) {
		t.Errorf("proposes %v", got)
	}
}
