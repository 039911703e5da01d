package controller_test

import (
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// RP-13: controllers come and go, and brokers stay: no leader, no ISR and no epoch of any partition changes.
func TestControllers_take_turns_and_partitions_stay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		addrs := []string{addr1, addr2}
		active := w.controller(addr1, nil)
		<-active.Ready()
		var brokers []*broker
		for id := range int32(3) {
			brokers = append(brokers, w.newBroker(id+1).serve(addr1))
		}
		mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", Partitions: new(int32(100)), ReplicationFactor: new(int32(3))})
		partitions := func() map[string]int64 {
			out := map[string]int64{}
			for path, pair := range w.kv.Dump() {
				if strings.Contains(path, "/partitions/") {
					out[path] = pair.Mod
				}
			}
			return out
		}
		before := partitions()
		if len(before) != 100 {
			t.Fatalf("%d partitions", len(before))
		}
		for turn := range 10 {
			next := addrs[(turn+1)%2]
			standby := w.controller(next, nil)
			active.stop(t)
			for _, b := range brokers {
				b.failure()
				b.leave()
			}
			<-standby.Ready()
			for _, b := range brokers {
				b.serve(next)
			}
			time.Sleep(10 * time.Second) // longer than the grace of a new controller
			active = standby
			if !maps.Equal(partitions(), before) {
				t.Fatalf("turn %d changed partitions", turn)
			}
		}
		for _, b := range brokers {
			b.leave()
		}
		active.stop(t)
	})
}
