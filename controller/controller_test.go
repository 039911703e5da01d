package controller_test

import (
	"testing"
	"testing/synctest"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func TestCreateTopic_reaches_brokers_whole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.controller("controller-1:7422", nil)
		defer c.stop(t)
		<-c.Ready()
		b := w.newBroker(1).serve(c.addr)
		defer b.leave()
		r := mustCreate(t, w.client(c.addr), &runnelv1.NewTopic{Name: "orders", Partitions: new(int32(300))})
		if !r.GetApplied() || !r.GetCreated() || r.GetPartitions() != 300 || r.GetReplicationFactor() != 1 {
			t.Errorf("result %v", r)
		}
		topic := b.topicNamed("orders")
		if topic.GetTopicId() != r.GetTopicId() {
			t.Fatalf("the broker knows %v, created was %s", topic, r.GetTopicId())
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.partitions) != 300 {
			t.Errorf("the broker knows %d partitions", len(b.partitions))
		}
		for _, d := range b.deltas {
			n := 0
			for _, o := range d.GetObjects() {
				if o.GetPartition() != nil {
					n++
				}
				if o.GetTopic().GetPhase() == controllerv1.TopicPhase_TOPIC_PHASE_CREATING {
					t.Error("the broker was told of a topic that was being created")
				}
			}
			if n != 0 && n != 300 {
				t.Errorf("a delta with %d partitions: brokers see half a topic", n)
			}
		}
	})
}
