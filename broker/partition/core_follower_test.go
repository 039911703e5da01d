package partition

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/record"
)

// follows is a follower, in epoch 5 of leader 1, of a log with this high
// watermark, whose subscription 3 is in phase.
func follows(log *modelLog, hw record.Offset, phase followPhase, lossy ...record.Epoch) *core {
	c := &core{self: 2}
	c.stand(following, &metadata.Partition{Leader: 1, LeaderEpoch: 5, LossyEpochs: lossy}, 1)
	c.own, c.logStart, c.hw = log.progress(), log.Start(), hw
	c.follow.subscription, c.follow.phase = 3, phase
	return c
}

func TestAnswered(t *testing.T) {
	log := func() *modelLog { return logOf(2, 1, 1, 2, 2, 4, 4) } // [2,8): 1: [2,4), 2: [4,6), 4: [6,8)
	for name, c := range map[string]struct {
		hw       record.Offset
		lossy    []record.Epoch
		answer   SubscribeAnswer
		want     change
		err      error
		accepted bool
	}{
		"accepted":                        {hw: 4, answer: SubscribeAnswer{Kind: Accepted, HighWatermark: 6}, accepted: true},
		"cut to the leader's end":         {hw: 4, answer: SubscribeAnswer{Kind: Diverging, Epoch: 4, End: 7}, want: change{kind: truncate, to: 7}},
		"cut to the own end of the epoch": {hw: 4, answer: SubscribeAnswer{Kind: Diverging, Epoch: 3, End: 9}, want: change{kind: truncate, to: 6}},
		"cut to the high watermark":       {hw: 6, answer: SubscribeAnswer{Kind: Diverging, Epoch: 2, End: 6}, want: change{kind: truncate, to: 6}},
		"cut below it":                    {hw: 7, answer: SubscribeAnswer{Kind: Diverging, Epoch: 2, End: 6}, err: ErrDiverged},
		"cut below it after a loss": {
			hw: 7, lossy: []record.Epoch{5}, answer: SubscribeAnswer{Kind: Diverging, Epoch: 2, End: 6},
			want: change{kind: truncate, to: 6, keep: true, below: true},
		},
		"cut above it after a loss": {
			hw: 6, lossy: []record.Epoch{5}, answer: SubscribeAnswer{Kind: Diverging, Epoch: 2, End: 6}, want: change{kind: truncate, to: 6, keep: true},
		},
		"a loss before its last record explains nothing":   {hw: 7, lossy: []record.Epoch{4}, answer: SubscribeAnswer{Kind: Diverging, Epoch: 2, End: 6}, err: ErrDiverged},
		"a loss after the present epoch explains nothing":  {hw: 7, lossy: []record.Epoch{6}, answer: SubscribeAnswer{Kind: Diverging, Epoch: 2, End: 6}, err: ErrDiverged},
		"below the own start":                              {hw: 2, answer: SubscribeAnswer{Kind: Diverging, Epoch: 1, End: 1}, want: change{kind: empty, to: 1}},
		"below the own start and the high watermark":       {hw: 3, answer: SubscribeAnswer{Kind: Diverging, Epoch: 1, End: 1}, err: ErrDiverged},
		"overtaken by the log start":                       {hw: 7, answer: SubscribeAnswer{Kind: Reset, LogStart: 20, Epoch: 4, HasEpoch: true}, want: change{kind: empty, to: 20, epoch: 4}},
		"emptied though committed records are not removed": {hw: 7, answer: SubscribeAnswer{Kind: Reset, LogStart: 0}, err: ErrDiverged},
		"refused":                      {hw: 4, answer: SubscribeAnswer{Kind: Refused, LeaderEpoch: 6, Reason: "moved"}, err: ErrNotSubscribed},
		"what a later version may say": {hw: 4, answer: SubscribeAnswer{Kind: 99}, err: ErrNotSubscribed},
	} {
		t.Run(name, func(t *testing.T) {
			l := log()
			co := follows(l, c.hw, asked, c.lossy...)
			got, err := co.answered(3, c.answer, l)
			if d := cmp.Diff(c.want, got, cmp.AllowUnexported(change{})); d != "" || !errors.Is(err, c.err) {
				t.Errorf("%s%v", d, err)
			}
			if (co.follow.phase == accepted) != c.accepted || (!c.accepted && co.follow.phase != unsubscribed) {
				t.Errorf("phase %d: the log may be changed only without a subscription", co.follow.phase)
			}
			if _, ok := co.ask(4, l, false); ok == errors.Is(c.err, ErrDiverged) {
				t.Errorf("asks again: %v", ok)
			}
		})
	}
	l := log()
	if _, err := follows(l, 4, asked).answered(2, SubscribeAnswer{Kind: Diverging, Epoch: 1, End: 2}, l); !errors.Is(err, ErrNotSubscribed) {
		t.Errorf("the answer to another subscription: %v", err)
	}
	// Another leader epoch is another chance.
	c := follows(l, 7, asked)
	_, _ = c.answered(3, SubscribeAnswer{Kind: Diverging, Epoch: 2, End: 6}, l)
	c.stand(following, &metadata.Partition{Leader: 3, LeaderEpoch: 6}, 1)
	if _, ok := c.ask(4, l, false); !ok {
		t.Error("offline for another leader too")
	}
	// An empty log has nothing to lose, wherever the leader begins.
	e := logOf(5)
	if do, err := follows(e, 5, asked).answered(3, SubscribeAnswer{Kind: Reset, LogStart: 3}, e); err != nil || do != (change{kind: empty, to: 3}) {
		t.Errorf("%+v, %v", do, err)
	}
}

func TestAdmit(t *testing.T) {
	good := Data{Epoch: 5, Subscription: 3, Start: 4, Next: 6, PrevEpoch: 2, HasPrevEpoch: true, LogStart: 1}
	for name, c := range map[string]struct {
		change func(*Data)
		phase  followPhase
		ok     bool
		keeps  bool // the subscription: the frame is none of its
	}{
		"all right":            {func(*Data) {}, accepted, true, true},
		"a gap before it":      {func(d *Data) { d.Start = 5 }, accepted, false, false},
		"an overlap":           {func(d *Data) { d.Start = 3 }, accepted, false, false},
		"it covers nothing":    {func(d *Data) { d.Next = 4 }, accepted, false, false},
		"another epoch before": {func(d *Data) { d.PrevEpoch = 1 }, accepted, false, false},
		"an unknown one":       {func(d *Data) { d.HasPrevEpoch = false }, accepted, false, false},
		"an unknown one, at the leader's start": {func(d *Data) {
			d.HasPrevEpoch, d.LogStart = false, 4
		}, accepted, true, true},
		"another leader epoch": {func(d *Data) { d.Epoch = 4 }, accepted, false, true},
		"another subscription": {func(d *Data) { d.Subscription = 2 }, accepted, false, true},
		"not accepted yet":     {func(*Data) {}, asked, false, true},
		"dropped":              {func(*Data) {}, unsubscribed, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := logOf(0, 1, 1, 2, 2)
			co, d := follows(l, 2, c.phase), good
			c.change(&d)
			err := co.admit(&d, l)
			if (err == nil) != c.ok || (err != nil && !errors.Is(err, ErrNotSubscribed)) {
				t.Errorf("admitted: %v", err)
			}
			if (co.follow.phase == c.phase) != c.keeps {
				t.Errorf("phase %d", co.follow.phase)
			}
		})
	}
	l := logOf(4)
	c := follows(l, 4, accepted)
	if err := c.admit(&good, l); err != nil {
		t.Errorf("the first frame after a reset: %v", err)
	}
}

// A follower's high watermark and log start move forward, as far as they can.
func TestLearn(t *testing.T) {
	l := logOf(0, 1, 1, 2, 2)
	c := follows(l, 2, accepted)
	c.learn(9)
	wantHW(t, c, 4, "news beyond the log")
	c.learn(1)
	wantHW(t, c, 4, "older news")
	if to, ok := c.start(9); !ok || to != 4 {
		t.Errorf("log start %d, %v: never above the high watermark", to, ok)
	}
	c.cut(3)
	if _, ok := c.start(2); ok {
		t.Error("the log start fell")
	}
	c.stand(following, &metadata.Partition{Leader: 1, LeaderEpoch: 5, PartitionEpoch: 9, LossyEpochs: []record.Epoch{5}}, 1)
	if c.follow.phase != accepted || len(c.follow.lossy) != 1 {
		t.Error("a change of the ISR ended the subscription")
	}
	if a, ok := c.acknowledge(3); !ok || a.Written != 4 || a.LogStart != 3 || a.Epoch != 5 {
		t.Errorf("ack %+v, %v", a, ok)
	}
	if _, ok := c.acknowledge(2); ok {
		t.Error("an ack of another subscription")
	}
	c.stand(following, &metadata.Partition{Leader: 1, LeaderEpoch: 6}, 1)
	if _, ok := c.acknowledge(3); ok {
		t.Error("a new epoch of the same leader did not end the subscription")
	}
}
