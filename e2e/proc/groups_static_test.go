package proc

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

// Ten static members are restarted one after the other while records are stored:
// each has its partitions again, the others hear nothing of it, and no record is
// processed twice or not at all.
func TestGroups_rollingRestart(t *testing.T) {
	if !whole() {
		t.Skip("it takes long: make e2e")
	}
	const members, partitions, batch = 10, 30, 300
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "work", "--partitions", fmt.Sprint(partitions))
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	l := &groupLog{}
	var all sync.WaitGroup
	defer all.Wait()
	ctx, end := context.WithCancel(t.Context())
	defer end()
	name := func(i int) string { return fmt.Sprint("pod-", i) }
	start := func(i int) (stop func()) {
		mine, cancel := context.WithCancel(ctx)
		done := make(chan struct{})
		all.Go(func() {
			defer close(done)
			if err := l.work(mine, c, name(i), client.InstanceID(name(i))); err != nil {
				t.Errorf("%s: %v", name(i), err)
			}
		})
		return func() { cancel(); <-done }
	}
	// settled returns which instance has each partition, when the group is at rest,
	// and in which epoch the group is.
	settled := func(what string) (owners map[int32]string, epoch int64) {
		eventually(t, what, func() bool {
			d, err := c.NewAdmin().DescribeGroup(ctx, "workers")
			if err != nil || d.State != client.GroupStable || len(d.Members) != members || len(d.Partitions) != partitions {
				return false
			}
			instances := map[string]string{}
			for i := range d.Members {
				m := &d.Members[i]
				if !m.Connected || m.Owned != partitions/members || m.Target != m.Owned {
					return false
				}
				instances[m.MemberID] = m.InstanceID
			}
			owners, epoch = map[int32]string{}, d.Epoch
			for i := range d.Partitions {
				owners[d.Partitions[i].Partition] = instances[d.Partitions[i].MemberID]
			}
			return true
		})
		return owners, epoch
	}
	stops := make([]func(), members)
	for i := range stops {
		stops[i] = start(i)
	}
	before, epoch := settled("ten members have three partitions each")
	mark := len(l.all())
	for i := range stops {
		fillTopic(t, c, "work", batch)
		stops[i]()
		fillTopic(t, c, "work", batch)
		stops[i] = start(i)
		after, now := settled(name(i) + " is back")
		if diff := cmp.Diff(before, after); diff != "" || now != epoch {
			t.Errorf("%s was restarted: group epoch %d, then %d; owners (-before +after):\n%s", name(i), epoch, now, diff)
		}
		// The coordinator counts what a static member had before it has told it.
		eventually(t, name(i)+" has heard what is its", func() bool {
			heard := 0
			for _, e := range l.all()[mark:] {
				if e.kind == evAssigned && e.member == name(i) {
					heard++
				}
			}
			return heard == partitions/members
		})
		events := l.all()
		for _, e := range events[mark:] {
			if e.kind != evRecord && (e.member != name(i) || before[e.partition] != name(i)) {
				t.Errorf("%s was restarted, and partition %d is %s to %s", name(i), e.partition, e.kind, e.member)
			}
		}
		mark = len(events)
	}
	var h *groupStory
	eventually(t, "all records are processed", func() bool {
		h = tell(l.all())
		return len(h.seen) >= 2*batch*members
	})
	for place, times := range h.seen {
		if times != 1 {
			t.Errorf("record %s was processed %d times", place, times)
		}
	}
	if len(h.seen) != 2*batch*members || h.again != partitions {
		t.Errorf("%d records, %d partitions given again; want %d, and each partition once", len(h.seen), h.again, 2*batch*members)
	}
	for _, v := range h.violations {
		t.Error(v)
	}
}
