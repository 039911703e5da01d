package state

import (
	"fmt"
	"testing"

	"github.com/google/uuid"
)

// Members of the ELR are complete for as long as the high watermark stands still, and it moves as soon as the ISR is as large as
// another minimum. While it is not, they are needed: the ISR may be lost.
func TestMinISR_change_empties_the_ELR_when_the_ISR_is_enough(t *testing.T) {
	for minISR, elr := range map[string]int{"1": 0, "2": 2, "3": 2} {
		b := withBrokers(t, 3)
		topic := b.newTopic("t", 1, 3, map[string]string{"min.insync.replicas": "3"})
		if minISR == "3" {
			b = withBrokers(t, 3)
			topic = b.newTopic("t", 1, 3, map[string]string{"min.insync.replicas": "2"})
		}
		b.fence(2)
		b.fence(3)
		b.work()
		if p := b.Partitions(topic)[0]; len(p.ELR) != 2 {
			t.Fatalf("before: %+v", p)
		}
		_, changes, err := b.AlterConfigs(Ref{Name: "t"}, map[string]string{"min.insync.replicas": minISR}, nil)
		b.must(changes, err)
		b.work()
		b.must(b.Lower(func(BrokerID) Revision { return b.Revision() }), nil)
		if p := b.Partitions(topic)[0]; len(p.ELR) != elr || fmt.Sprint(p.MinISR) != minISR {
			t.Errorf("with the minimum %s: %+v", minISR, p)
		}
	}
}

// Where disks are to count instead of copies, fewer copies are enough only once all that are in sync go by disks. Who is fenced
// before is as complete as they are.
func TestMinISR_lower_waits_for_disks(t *testing.T) {
	b := withBrokers(t, 3)
	topic := b.newTopic("t", 1, 3, map[string]string{"min.insync.replicas": "2"})
	alter := func(set map[string]string) {
		t.Helper()
		_, changes, err := b.AlterConfigs(Ref{Name: "t"}, set, nil)
		b.must(changes, err)
		b.work()
	}
	is := func(what string, minISR int32, sync bool, isr, elr int) *Partition {
		t.Helper()
		p := b.Partitions(topic)[0]
		if p.MinISR != minISR || p.Sync != sync || len(p.ISR) != isr || len(p.ELR) != elr {
			t.Errorf("%s: %+v", what, p)
		}
		return p
	}
	all := func(BrokerID) Revision { return b.Revision() }

	alter(map[string]string{"min.insync.replicas": "1"})
	p := is("it is to be lower", 2, true, 3, 0)
	if !b.Lowering(topic) || b.Lowering(uuid.New()) {
		t.Error("nothing tells that it is on its way, or of what")
	}
	for late := range BrokerID(3) {
		if c := b.Lower(func(id BrokerID) Revision {
			if id == late+1 {
				return p.Revision - 1
			}
			return p.Revision
		}); c != nil {
			t.Errorf("lowered, and broker %d has not heard of it: %+v", late+1, c[0].Object)
		}
	}
	b.fence(2)
	if c := b.Lower(all); c != nil {
		t.Errorf("lowered before a fence is done: %+v", c[0].Object)
	}
	b.work()
	b.fence(3)
	b.work()
	is("who is fenced meanwhile", 2, true, 1, 1)
	b.fence(1)
	b.work()
	if p := is("nobody leads", 2, true, 1, 1); p.Leader != NoLeader || b.Lower(all) != nil {
		t.Errorf("lowered, and nobody leads: %+v", p)
	}
	b.must(b.Unfence(1, b.Broker(1).Epoch))
	b.work()
	b.must(b.Lower(all), nil)
	is("the only one that is left goes by its disk", 1, true, 1, 0)
	if b.Lowering(topic) || b.Lower(all) != nil {
		t.Error("there is no end to it")
	}

	alter(map[string]string{"min.insync.replicas": "3"})
	is("a higher one comes at once", 3, false, 1, 0)
	alter(map[string]string{"min.insync.replicas": "2"})
	is("so does a lower one of copies", 2, false, 1, 0)
	alter(map[string]string{"min.insync.replicas": "1", "flush": "async"})
	is("and one that relies on no disk", 1, false, 1, 0)
	alter(map[string]string{"min.insync.replicas": "2"})
	alter(map[string]string{"min.insync.replicas": "1", "flush": "sync"})
	is("this one waits", 2, true, 1, 0)
	alter(map[string]string{"min.insync.replicas": "2", "flush": "async"})
	is("until it is not wanted any more", 2, false, 1, 0)
	if b.Lowering(topic) {
		t.Error("it is still on its way")
	}
}
