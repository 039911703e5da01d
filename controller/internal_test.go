package controller_test

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func ensure(id int32) *controllerv1.EnsureInternalTopicRequest {
	return &controllerv1.EnsureInternalTopicRequest{
		Name: "__consumer_offsets", Partitions: 50, Configs: map[string]string{"retention.ms": "-1"}, BrokerId: id,
	}
}

// Row 80: one of three brokers is up when the first group comes; all brokers ask at once, again and again.
func TestInternalTopic_is_made_once_and_grows(t *testing.T) {
	inCluster(t, 1, func(w *world, c controllerv1.ControllerServiceClient, brokers []*broker) {
		t := w.t
		ids := make([]string, 8)
		var wg sync.WaitGroup
		for n := range ids {
			wg.Go(func() {
				resp, err := c.EnsureInternalTopic(t.Context(), ensure(1))
				if err != nil || resp.GetPartitions() != 50 || resp.GetReplicationFactor() != 1 || !resp.GetApplied() {
					t.Errorf("%v, %v", resp, err)
				}
				ids[n] = resp.GetTopicId()
			})
		}
		wg.Wait()
		slices.Sort(ids)
		if len(slices.Compact(ids)) != 1 {
			t.Errorf("made more than once: %v", ids)
		}
		for id := range int32(2) {
			b := w.newBroker(id + 2).serve(addr1)
			defer b.leave()
		}
		time.Sleep(time.Second)
		synctest.Wait()
		resp, err := c.EnsureInternalTopic(t.Context(), ensure(2))
		if err != nil || resp.GetReplicationFactor() != 3 || resp.GetCreated() {
			t.Errorf("with three brokers: %v, %v", resp, err)
		}
		record := brokers[0].topicNamed("__consumer_offsets")
		if !record.GetInternal() || record.GetReplicationFactor() != 3 || record.GetTargetReplicationFactor() != 3 {
			t.Errorf("as brokers know it: %v", record)
		}
		for n := range int32(50) {
			if p := brokers[0].partition(record.GetTopicId(), n); len(p.GetReplicas()) != 3 || !slices.Equal(p.GetIsr(), []int32{1}) || p.GetMinIsr() != 1 {
				t.Fatalf("%v", p)
			}
		}
		dead, err := c.DeleteTopics(t.Context(), &controllerv1.DeleteTopicsRequest{Request: &runnelv1.DeleteTopicsRequest{
			Topics: []*runnelv1.TopicRef{{Name: "__consumer_offsets"}},
		}})
		if err != nil || dead.GetResponse().GetResults()[0].GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_TOPIC_INTERNAL {
			t.Errorf("a user deletes it: %v, %v", dead, err)
		}
		_, err = c.EnsureInternalTopic(t.Context(), &controllerv1.EnsureInternalTopicRequest{Name: "mine", Partitions: 1})
		wantReason(t, "a user's name", err, runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME)
	})
}

// In one process there is one broker for ever, and nothing to wait for.
func TestInternalTopic_dev(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctl := w.controller(addr1, func(_ *controllerConfig, d *controllerDeps) { d.Dev = true })
		defer ctl.stop(t)
		<-ctl.Ready()
		b := w.newBroker(1).serve(addr1)
		defer b.leave()
		if _, err := w.client(addr1).EnsureInternalTopic(t.Context(), ensure(1)); err != nil {
			t.Fatal(err)
		}
		if r := b.topicNamed("__consumer_offsets"); r.GetReplicationFactor() != 1 || r.GetTargetReplicationFactor() != 1 {
			t.Errorf("%v", r)
		}
	})
}
