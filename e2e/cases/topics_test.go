package cases

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// A feed writes records, one every while, to all partitions in turn, until it is
// stopped, and keeps account of them.
type feed struct {
	stop func()
	wg   sync.WaitGroup

	// mu guards the fields below
	mu     sync.Mutex
	prefix string
	acked  []string // values, as acknowledged
	failed []error
}

func (w *town) feed(c *client.Client, topic, prefix string, every time.Duration) *feed {
	w.t.Helper()
	p, err := c.NewProducer(client.DeliveryTimeout(30 * time.Second))
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	f := &feed{prefix: prefix}
	f.wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			f.mu.Lock()
			value := f.prefix + number(i)
			f.mu.Unlock()
			p.Produce(w.t.Context(), client.Record{Topic: topic, Key: []byte(number(i)), Value: []byte(value)}, func(r client.Result) {
				f.mu.Lock()
				defer f.mu.Unlock()
				if r.Err != nil {
					f.failed = append(f.failed, r.Err)
					return
				}
				f.acked = append(f.acked, value)
			})
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		if err := p.Close(w.t.Context()); err != nil {
			w.t.Errorf("close: %v", err)
		}
	})
	f.stop = sync.OnceFunc(func() { cancel(); f.wg.Wait() })
	return f
}

// call changes what values begin with.
func (f *feed) call(prefix string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.prefix = prefix
}

func (f *feed) account() (acked []string, failed []error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.acked), slices.Clone(f.failed)
}

// member reads as a member of a group until it is stopped, and returns what it
// processed and what went wrong.
func (w *town) member(c *client.Client, group string, opts ...client.GroupOption) (stop func() (values []string, errs []error)) {
	w.t.Helper()
	g, err := c.NewGroup(group, opts...)
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	var values []string
	var errs []error
	var wg sync.WaitGroup
	wg.Go(func() {
		for rec, err := range g.Records(ctx) {
			if err == nil {
				values = append(values, string(rec.Value))
			} else if ctx.Err() == nil {
				errs = append(errs, err)
			}
		}
		if err := g.Close(); err != nil {
			errs = append(errs, err)
		}
	})
	var once sync.Once
	return func() ([]string, []error) {
		once.Do(func() { cancel(); wg.Wait() })
		return values, errs
	}
}

func (w *town) deleteTopic(c *client.Client, name string) {
	w.t.Helper()
	if rs, err := c.NewAdmin().DeleteTopics(w.t.Context(), []string{name}); err != nil || rs[0].Err != nil {
		w.t.Fatalf("%+v, %v", rs, err)
	}
}

func sorted(values []string) []string {
	values = slices.Clone(values)
	slices.Sort(values)
	return values
}

// A topic that is deleted and made anew under running clients is another topic:
// the producer goes on with it, the group reads all of it from its first record,
// also one that had stopped at a place beyond its end, nobody is shown a record of
// the old one, and a commit for the old one is refused (AD-03, CG-10).
func TestAD03_CG10_deletedAndMadeAgain(t *testing.T) {
	for _, partitions := range []int32{1, 2, 6} {
		t.Run(fmt.Sprint(partitions), func(t *testing.T) {
			inWhole(t, nil, func(w *town) {
				t := w.t
				c := w.client(brokerAddr)
				defer c.Close()
				w.topic(c, "t", 3, nil)
				for range 3 { // the old one's leader epochs are higher
					w.stop()
					w.start()
				}
				f := w.feed(c, "t", "old-", 10*time.Millisecond)
				defer f.stop()
				running := w.member(c, "running", client.Topics("t"))
				defer running()
				stopped := w.member(c, "stopped", client.Topics("t"))
				time.Sleep(20 * time.Second)
				if got, errs := stopped(); len(got) < 1900 || len(errs) > 0 {
					t.Fatalf("%d, %v", len(got), errs)
				}
				old, err := c.NewAdmin().DescribeTopics(t.Context(), []string{"t"})
				if err != nil {
					t.Fatal(err)
				}
				f.call("gone-")
				time.Sleep(10 * time.Second)
				w.deleteTopic(c, "t")
				f.call("new-") // what is written from here on may only be in the new one
				time.Sleep(5 * time.Second)
				w.topic(c, "t", partitions, nil)
				made := time.Now()
				time.Sleep(20 * time.Second)
				f.stop()
				time.Sleep(10 * time.Second)
				acked, failed := f.account()
				var want []string
				for _, v := range acked {
					if v[:4] == "new-" {
						want = append(want, v)
					}
				}
				slices.Sort(want)
				if len(want) < 1500 {
					t.Errorf("only %d records were stored in the new topic in %s; %d failed, the last: %v", len(want), time.Since(made), len(failed), failed[len(failed)-1])
				}
				for _, err := range failed {
					if !errors.Is(err, client.ErrTopicNotFound) && !errors.Is(err, client.ErrTopicIDMismatch) && !errors.Is(err, client.ErrOutcomeUnknown) && !errors.Is(err, client.ErrPartitionNotFound) {
						t.Errorf("a write failed with %v", err)
						break
					}
				}
				r := w.reader(c, "t")
				if diff := cmp.Diff(want, sorted(w.next(r, len(want), time.Minute))); diff != "" {
					t.Errorf("in the new topic: %s", diff)
				}
				_ = r.Close()
				got, errs := running()
				var fresh []string
				for _, v := range got {
					if v[:4] == "new-" {
						fresh = append(fresh, v)
					} else if len(fresh) > 0 {
						t.Errorf("%s was read after %s", v, fresh[len(fresh)-1])
					}
				}
				if diff := cmp.Diff(want, sorted(fresh)); diff != "" || len(errs) > 0 {
					t.Errorf("the group that ran: %v, %s", errs, diff)
				}
				if stopped, err := c.NewGroup("stopped", client.Topics("t")); err != nil {
					t.Error(err)
				} else {
					got, err := groupRead(t.Context(), stopped, len(want), time.Minute)
					if err != nil || len(got) != len(want) {
						t.Errorf("the group that was stopped reads %d, %v, want %d", len(got), err, len(want))
					}
					_ = stopped.Close()
				}
				conn := w.conn(brokerAddr)
				defer conn.Close()
				late, err := runnelv1.NewLogServiceClient(conn).Commit(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if err := late.Send(&runnelv1.CommitRequest{Group: "stopped", Offsets: []*runnelv1.OffsetCommit{{Topic: "t", TopicId: &old[0].ID, Offset: 500}}}); err != nil {
					t.Fatal(err)
				}
				_ = late.CloseSend()
				if resp, err := late.Recv(); err != nil || resp.GetResults()[0].GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH {
					t.Errorf("a late commit: %v, %v", resp, err)
				}
			})
		})
	}
}

// Partitions that are added while all run are written to, and read by groups from
// their first record, whatever the group's policy; nothing is lost or read twice
// (CG-21).
func TestCG21_partitionsAreAdded(t *testing.T) {
	for name, policy := range map[string]client.ResetPolicy{"earliest": client.ResetEarliest, "latest": client.ResetLatest} {
		t.Run(name, func(t *testing.T) {
			inWhole(t, nil, func(w *town) {
				t := w.t
				c := w.client(brokerAddr)
				defer c.Close()
				w.topic(c, "t", 1, nil)
				var stops []func() ([]string, []error)
				for range 2 {
					stops = append(stops, w.member(c, "g", client.Topics("t"), client.OnNoCommit(policy)))
				}
				time.Sleep(10 * time.Second)
				f := w.feed(c, "t", "", 5*time.Millisecond)
				for _, n := range []int32{3, 4, 12} {
					time.Sleep(10 * time.Second)
					if _, _, err := c.NewAdmin().AddPartitions(t.Context(), "t", n); err != nil {
						t.Fatal(err)
					}
				}
				time.Sleep(30 * time.Second)
				f.stop()
				time.Sleep(10 * time.Second)
				acked, failed := f.account()
				if len(failed) > 0 {
					t.Errorf("%d writes failed: %v", len(failed), failed[0])
				}
				var got []string
				for _, stop := range stops {
					values, errs := stop()
					if len(errs) > 0 || len(values) == 0 {
						t.Errorf("a member read %d, and had %v", len(values), errs)
					}
					got = append(got, values...)
				}
				if diff := cmp.Diff(sorted(acked), sorted(got)); diff != "" {
					t.Errorf("%d of %d: %.1000s", len(got), len(acked), diff)
				}
				os, err := c.NewAdmin().ListOffsets(t.Context(), "t", client.Latest())
				if err != nil || len(os) != 12 || os[11].Offset == 0 {
					t.Errorf("%+v, %v: want records in all partitions", os, err)
				}
			})
		})
	}
}

// Members that wait for a topic wait quietly, in one group, and miss nothing of
// it once it is there (CG-21).
func TestCG21_topicComesLater(t *testing.T) {
	inWhole(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		var changes atomic.Int64
		hooks := client.GroupHooks{
			OnAssign: func([]client.PartitionID) { changes.Add(1) },
			OnRevoke: func([]client.PartitionID) { changes.Add(1) },
			OnLost:   func([]client.PartitionID, error) { changes.Add(1) },
		}
		var stops []func() ([]string, []error)
		for range 3 {
			stops = append(stops, w.member(c, "g", client.Topics("t"), client.WithGroupHooks(hooks)))
		}
		time.Sleep(5 * time.Second)
		epoch := func() int64 {
			d, err := c.NewAdmin().DescribeGroup(t.Context(), "g")
			if err != nil || d.State != client.GroupStable || len(d.Members) != 3 {
				t.Errorf("%+v, %v", d, err)
			}
			return d.Epoch
		}
		before := epoch()
		time.Sleep(20 * time.Second)
		if after := epoch(); after != before || changes.Load() != 0 {
			t.Errorf("while it waited the group went from epoch %d to %d, with %d changes", before, after, changes.Load())
		}
		w.topic(c, "t", 3, nil)
		f := w.feed(c, "t", "", time.Millisecond)
		time.Sleep(15 * time.Millisecond)
		f.stop()
		time.Sleep(10 * time.Second)
		if n := changes.Load(); n != 3 {
			t.Errorf("%d changes, of which three members need one each", n)
		}
		acked, _ := f.account()
		var got []string
		for _, stop := range stops {
			values, errs := stop()
			if len(errs) > 0 {
				t.Error(errs)
			}
			got = append(got, values...)
		}
		if diff := cmp.Diff(sorted(acked), sorted(got)); diff != "" || len(acked) < 10 {
			t.Error(diff)
		}
	})
}

// Who reads by a pattern gets what is created later, and gives up what is
// deleted, without an error and without unrest (CG-12).
func TestCG12_patterns(t *testing.T) {
	inWhole(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "evt.a", 2, nil)
		w.topic(c, "log.a", 2, nil)
		var stops []func() ([]string, []error)
		for range 2 {
			stops = append(stops, w.member(c, "g", client.TopicPattern(`evt\..*`)))
		}
		a := w.feed(c, "evt.a", "a", 10*time.Millisecond)
		l := w.feed(c, "log.a", "l", 10*time.Millisecond)
		time.Sleep(10 * time.Second)
		w.topic(c, "evt.b", 2, nil)
		b := w.feed(c, "evt.b", "b", 10*time.Millisecond)
		time.Sleep(10 * time.Second)
		a.stop()
		time.Sleep(time.Second)
		d, err := c.NewAdmin().DescribeGroup(t.Context(), "g")
		if err != nil {
			t.Fatal(err)
		}
		w.deleteTopic(c, "evt.a")
		time.Sleep(30 * time.Second)
		after, err := c.NewAdmin().DescribeGroup(t.Context(), "g")
		if err != nil || after.State != client.GroupStable || after.Epoch > d.Epoch+2 || len(after.Partitions) != 2 {
			t.Errorf("after the deletion: %+v, %v; epoch before: %d", after, err, d.Epoch)
		}
		b.stop()
		l.stop()
		time.Sleep(time.Second)
		want, _ := a.account()
		more, _ := b.account()
		var got []string
		for _, stop := range stops {
			values, errs := stop()
			if len(errs) > 0 {
				t.Error(errs)
			}
			got = append(got, values...)
		}
		if diff := cmp.Diff(sorted(append(want, more...)), sorted(got)); diff != "" {
			t.Errorf("%.1000s", diff)
		}
	})
}
