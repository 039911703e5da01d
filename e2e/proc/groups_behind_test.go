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
// wants the records of each partition to follow on one another from at on.
func drain(t *testing.T, c *client.Client, n int, at map[int32]int64) {
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
		at[rec.Partition]++
		if read++; read == n {
			cancel()
		}
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
}

// A group that is stopped while records pile up goes on where it stood, and drains
// them; its lag is right before, and after.
func TestGroups_dayBehind(t *testing.T) {
	pile := 200_000
	if whole() {
		pile = 10_000_000
	}
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "days", "--partitions", "4")
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	describe := func() client.GroupDescription {
		return must[client.GroupDescription](t)(c.NewAdmin().DescribeGroup(t.Context(), "late"))
	}
	at := map[int32]int64{}
	fillTopic(t, c, "days", 4000)
	drain(t, c, 4000, at)
	stopped := time.Now()
	fillTopic(t, c, "days", pile)
	eventually(t, "the lag is what was stored", func() bool { return describe().LagRecords == int64(pile) })
	d := describe()
	if age := time.Since(stopped).Seconds(); d.LagSeconds <= 0 || d.LagSeconds > age+1 {
		t.Errorf("%v s behind, %v s after the group was stopped", d.LagSeconds, age)
	}
	const week = 7 * 24 * 3600.0
	if d.TimeToDataLossSecs > week || d.TimeToDataLossSecs < week-time.Since(stopped).Seconds()-60 {
		t.Errorf("%v s to data loss, want a week less the lag", d.TimeToDataLossSecs)
	}
	begun := time.Now()
	drain(t, c, pile, at)
	took := time.Since(begun)
	t.Logf("%d records drained in %v: %.0f a second", pile, took.Round(time.Millisecond), float64(pile)/took.Seconds())
	eventually(t, "the lag is gone", func() bool {
		d = describe()
		return d.LagRecords == 0 && d.LagSeconds == 0 && math.IsInf(d.TimeToDataLossSecs, 1)
	})
}

// Records that retention deleted before the group has read them are an error that
// names both ends, for programs and at the command line; not a silent gap.
func TestGroups_retentionTooShort(t *testing.T) {
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
	n.cli(t, "group", "seek", "slow", "--topic", "short", "--to", "earliest")
	got := n.cli(t, "consume", "short", "--group", "slow", "--count", "1", "--print", "%o")
	if at := must[int64](t)(strconv.ParseInt(strings.TrimSpace(got), 10, 64)); at < start {
		t.Errorf("goes on with %d, and the log begins at %d", at, start)
	}
}
