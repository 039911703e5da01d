package proc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// fillTopic stores n records, over all partitions.
func fillTopic(t *testing.T, c *client.Client, topic string, n int) {
	t.Helper()
	p := must[*client.Producer](t)(c.NewProducer(client.Linger(5 * time.Millisecond)))
	value := make([]byte, 100)
	for i := range n {
		p.Produce(t.Context(), client.Record{Topic: topic, Key: fmt.Append(nil, i), Value: value}, func(r client.Result) {
			if r.Err != nil {
				t.Error(r.Err)
			}
		})
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// drain reads until as many records as are wanted were processed, and leaves. It
// wants the records of each partition to follow on one another from at on, and
// calls look, which may be nil, with a record in hand and how many were read before
// it.
func drain(t *testing.T, c *client.Client, n int, at map[int32]int64, look func(rec client.Record, before int)) {
	t.Helper()
	g := must[*client.Group](t)(c.NewGroup("late", client.Topics("days"), client.CommitInterval(100*time.Millisecond)))
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	read := 0
	for rec, err := range g.Records(ctx) {
		if errors.Is(err, context.Canceled) && read >= n {
			break
		}
		if err != nil {
			t.Fatalf("after %d of %d records: %v", read, n, err)
		}
		if rec.Offset != at[rec.Partition] {
			t.Fatalf("partition %d: record %d, want %d", rec.Partition, rec.Offset, at[rec.Partition])
		}
		if look != nil {
			look(rec, read)
		}
		at[rec.Partition]++
		if read++; read == n {
			cancel()
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// A behindLook compares what is said of a group's lag with what it is, while the
// group stands at a record.
type behindLook struct {
	t        *testing.T
	describe func() client.GroupDescription
	// first and caught are when the group had begun, and when it was seen to have
	// caught up: its pace counts from a time between them.
	first, caught time.Time
	pile          int
	last          int64 // lag in records that was seen before
	looks, paces  int   // how many there were, and those of a known pace
}

// Of the node of dayBehind.
const (
	behindLagEvery = 100 * time.Millisecond
	behindKept     = 7 * 24 * time.Hour // by default
	// behindSlack is for what passes between a measure and its description.
	behindSlack = 500 * time.Millisecond
)

// at is called with a record in hand, of which the append time is known, and how
// many of the pile were read before.
func (b *behindLook) at(rec *client.Record, before int) {
	t := b.t
	t.Helper()
	var d client.GroupDescription
	var p client.GroupPartition
	var asked time.Time
	still := 0
	eventually(t, "the record in hand is what is read next, and its lag was measured", func() bool {
		asked = time.Now()
		d = b.describe()
		p = d.Partitions[rec.Partition]
		if p.Committed == rec.Offset {
			still++
		}
		return still > 2 // 400 ms after the commit: the pace has it
	})
	now := time.Now()
	if want := int64(b.pile - before); d.LagRecords != want || want >= b.last {
		t.Errorf("%d records behind, want %d, less than %d", d.LagRecords, want, b.last)
	}
	b.last = d.LagRecords
	lo, hi := asked.Sub(rec.Timestamp).Seconds()-0.002, now.Sub(rec.Timestamp).Seconds()
	if p.LagSeconds < lo || p.LagSeconds > hi {
		t.Errorf("%v s behind, and the record at %d was stored %v to %v s ago", p.LagSeconds, rec.Offset, lo, hi)
	}
	records, worst, loss := int64(0), 0.0, math.Inf(1)
	for _, q := range d.Partitions {
		records, worst, loss = records+q.LagRecords, max(worst, q.LagSeconds), min(loss, q.TimeToDataLossSecs)
	}
	if d.LagRecords != records || d.LagSeconds != worst || d.TimeToDataLossSecs != loss {
		t.Errorf("in all %d records, %v s, loss in %v s; by partition %d, %v, %v", d.LagRecords, d.LagSeconds, d.TimeToDataLossSecs, records, worst, loss)
	}
	b.pace(rec, &p, now)
}

// pace wants the time to data loss to be m/(1-v): m until the record in hand is
// deleted, v the seconds of the log that the group read in a second since it had
// caught up; v is 0 as long as that is less than two seconds ago.
func (b *behindLook) pace(rec *client.Record, p *client.GroupPartition, now time.Time) {
	t := b.t
	t.Helper()
	left := behindKept.Seconds() - p.LagSeconds
	v := 1 - left/p.TimeToDataLossSecs
	most := rec.Timestamp.Sub(b.first).Seconds() / (now.Sub(b.caught) - behindSlack).Seconds()
	least := (rec.Timestamp.Sub(b.caught) - behindSlack).Seconds() / now.Sub(b.first).Seconds()
	t.Logf("%d records, %.3f s behind; loss in %.0f s: read %.4f s a second, between %.4f and %.4f", b.last, p.LagSeconds, p.TimeToDataLossSecs, v, least, most)
	b.looks++
	const eps = 1e-4
	switch {
	case now.Sub(b.caught)-behindSlack > 2*time.Second:
		b.paces++
		if v < least-eps || v > most+eps {
			t.Errorf("loss in %v s is a pace of %v, want %v to %v", p.TimeToDataLossSecs, v, least, most)
		}
	case now.Sub(b.first) < 2*time.Second:
		if v < -eps || v > eps {
			t.Errorf("loss in %v s before the pace is known, want %v", p.TimeToDataLossSecs, left)
		}
	}
}

// A group that is stopped while records pile up goes on where it stood, and drains
// them; its lag in records and seconds, and the time to data loss, are right before,
// on the way, and after.
func TestGroups_dayBehind(t *testing.T) {
	if !whole() {
		t.Skip("it takes long: make e2e")
	}
	pile := 200_000
	if whole() {
		pile = 10_000_000
	}
	n := dev(t, Dev{Args: []string{"--set", "broker.group.lag_interval=" + behindLagEvery.String()}})
	n.cli(t, "topic", "create", "days", "--partitions", "4", "--config", "message.timestamp.type=LogAppendTime")
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	describe := func() client.GroupDescription {
		return must[client.GroupDescription](t)(c.NewAdmin().DescribeGroup(t.Context(), "late"))
	}
	at := map[int32]int64{}
	fillTopic(t, c, "days", 4000)
	b := &behindLook{t: t, describe: describe, pile: pile, first: time.Now(), last: int64(pile) + 1}
	drain(t, c, 4000, at, nil)
	caught := 0
	eventually(t, "it is seen to have caught up", func() bool {
		if describe().LagRecords == 0 {
			caught++
		}
		return caught > 2
	})
	b.caught = time.Now()
	fillTopic(t, c, "days", pile)
	eventually(t, "the lag is what was stored", func() bool { return describe().LagRecords == int64(pile) })
	d := describe()
	if age := time.Since(b.caught).Seconds(); d.LagSeconds <= 0 || d.LagSeconds > age+1 {
		t.Errorf("%v s behind, %v s after the group was stopped", d.LagSeconds, age)
	}
	const looks = 6
	var looked time.Duration
	begun := time.Now()
	drain(t, c, pile, at, func(rec client.Record, before int) {
		if before%(pile/looks) == pile/looks/2 {
			from := time.Now()
			b.at(&rec, before)
			looked += time.Since(from)
		}
	})
	took := time.Since(begun)
	t.Logf("%d records drained in %v, of which it stood still for %v: %.0f a second, %.0f while it read", pile,
		took.Round(time.Millisecond), looked.Round(time.Millisecond), float64(pile)/took.Seconds(), float64(pile)/(took-looked).Seconds())
	if b.looks < looks || b.paces == 0 {
		t.Errorf("looked at it %d times on the way, at a pace that is known %d times", b.looks, b.paces)
	}
	eventually(t, "the lag is gone", func() bool {
		d = describe()
		return d.LagRecords == 0 && d.LagSeconds == 0 && math.IsInf(d.TimeToDataLossSecs, 1)
	})
}

// Records that retention deleted before the group has read them are an error that
// names both ends, for programs and at the command line; not a silent gap.
func TestGroups_retentionTooShort(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{Args: []string{"--set", "broker.storage.maintenance_interval=100ms"}})
	n.cli(t, "topic", "create", "short", "--config", "segment.bytes=65536", "--config", "max.message.bytes=1000", "--config", "retention.bytes=131072")
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	fillTopic(t, c, "short", 100)
	n.cli(t, "consume", "short", "--group", "slow", "--count", "50")
	fillTopic(t, c, "short", 10_000)
	var d client.GroupDescription
	eventually(t, "records are deleted that the group has not read", func() bool {
		d = must[client.GroupDescription](t)(c.NewAdmin().DescribeGroup(t.Context(), "slow"))
		return d.Partitions[0].LogStart > d.Partitions[0].Committed && d.TimeToDataLossSecs == 0
	})
	g := must[*client.Group](t)(c.NewGroup("slow", client.Topics("short")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err := g.Poll(ctx)
	e, ok := errors.AsType[*client.Error](err)
	if !ok || !errors.Is(err, client.ErrOffsetOutOfRange) {
		t.Fatalf("poll: %v, want OFFSET_OUT_OF_RANGE", err)
	}
	start, _ := e.Int("logStartOffset")
	end, _ := e.Int("highWatermark")
	if start < 51 || end != 10_100 {
		t.Errorf("the log is from %d to %d: %v", start, end, e.Metadata)
	}
	if err := g.Close(); err != nil {
		t.Error(err)
	}
	r := n.try(t, n.command(t, "consume", "short", "--group", "slow", "--count", "1"))
	if r.Code != 1 || !strings.Contains(r.Stderr, "group seek slow --topic short --to earliest") {
		t.Errorf("consume: exit code %d, %s", r.Code, r.Stderr)
	}
	got := ""
	eventually(t, "the group goes on with what is left, although retention goes on, too", func() bool {
		n.cli(t, "group", "seek", "slow", "--topic", "short", "--to", "earliest")
		r := n.try(t, n.command(t, "consume", "short", "--group", "slow", "--count", "1", "--print", "%o"))
		got = r.Stdout
		return r.Code == 0
	})
	if at := must[int64](t)(strconv.ParseInt(strings.TrimSpace(got), 10, 64)); at < start {
		t.Errorf("goes on with %d, and the log begins at %d", at, start)
	}
}
