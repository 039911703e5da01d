package controller_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
)

// After the metadata were restored the brokers may be started late, and one after
// the other: how long the first waits for the others counts from when it is there,
// or its copy would lead, and the others be cut to it, because nobody was there before.
func TestRecoveryWait_begins_with_the_first_broker(t *testing.T) {
	for name, tt := range map[string]struct {
		second time.Duration // when the broker with most records comes after the other one
		leader int32
	}{"the other comes in time": {4 * time.Minute, 2}, "it does not": {6 * time.Minute, 1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				topic := uuid.New()
				_, err := store.New(w.kv, "runnel").Restore(t.Context(), []state.Object{
					&state.Cluster{ID: uuid.New()}, &state.Counters{BrokerEpoch: 2, ControllerEpoch: 1, FeatureLevel: 1}, &state.ProducerIDs{Next: 1},
					&state.Topic{ID: topic, Name: "t", Phase: state.TopicActive, Partitions: 1, ReplicationFactor: 2}, &state.Name{Name: "t", Topic: topic},
					&state.Partition{Topic: topic, Replicas: []state.BrokerID{1, 2}, Leader: 1, LeaderEpoch: 1, PartitionEpoch: 1, ISR: []state.BrokerID{1, 2}, MinISR: 1},
				})
				if err != nil {
					t.Fatal(err)
				}
				ctl := w.controller(addr1, nil)
				defer ctl.stop(t)
				<-ctl.Ready()
				time.Sleep(time.Hour)
				come := func(id int32, end int64) *broker {
					b := w.newBroker(id)
					b.shapes[partitionName(topic.String(), 0)] = &controllerv1.ReplicaReport{
						Shape: controllerv1.ReplicaShape_REPLICA_SHAPE_INTACT, LastEpoch: 1, LogEndOffset: end,
					}
					return b.serve(addr1)
				}
				first := come(1, 40)
				defer first.leave()
				time.Sleep(tt.second)
				second := come(2, 70)
				defer second.leave()
				time.Sleep(time.Second)
				if p := second.partition(topic.String(), 0); p.GetLeader() != tt.leader || len(p.GetLossyEpochs()) != 1 {
					t.Errorf("led by %d, want %d: %v", p.GetLeader(), tt.leader, p)
				}
			})
		})
	}
}
