package controller_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

const addr2 = "controller-2:7422"

func TestStandby_points_to_the_active_controller_and_takes_over(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.controller(addr1, nil)
		<-first.Ready()
		second := w.controller(addr2, nil)
		defer second.stop(t)
		synctest.Wait()
		b := w.newBroker(1).serve(addr1)
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t"}).GetTopicId()
		_, err := w.client(addr2).CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: "u"}))
		wantReason(t, "a standby", err, runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER)
		if got := rpcerr.Info(err).GetMetadata()["address"]; got != addr1 {
			t.Errorf("the standby points to %q", got)
		}
		epoch, before := b.toldBy(), b.partition(topic, 0)
		start := time.Now()
		first.stop(t)
		b.failure()
		b.leave()
		<-second.Ready()
		if took := time.Since(start); took > time.Second {
			t.Errorf("an orderly end was followed by %v without a controller", took)
		}
		b.serve(addr2)
		defer b.leave()
		if p := b.partition(topic, 0); b.toldBy() <= epoch || !cmp.Equal(p.GetPartitionEpoch(), before.GetPartitionEpoch()) {
			t.Errorf("controller epoch %d after %d; partition %v, was %v", b.toldBy(), epoch, p, before)
		}
	})
}

// A controller whose lease ended unnoticed can change nothing, and gives up when it tries.
func TestDeposedController_is_fenced_by_its_first_write(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.controller(addr1, nil)
		defer first.stop(t)
		<-first.Ready()
		b := w.newBroker(1).serve(addr1)
		defer b.leave()
		second := w.controller(addr2, nil)
		defer second.stop(t)
		synctest.Wait()
		w.kv.ExpireLeases()
		// Long enough for an election, and too short for the winner to give up because no broker comes to it.
		time.Sleep(time.Second)
		_, err1 := w.client(addr1).CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: "t"}))
		_, err2 := w.client(addr2).CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: "t"}))
		not := 0
		for _, err := range []error{err1, err2} {
			if rpcerr.Reason(err) == runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER {
				not++
			}
		}
		if not != 1 {
			t.Errorf("of two controllers, one must be active: %v, %v", err1, err2)
		}
	})
}

// NOT_CONTROLLER means that nothing was changed: who is told so may ask the next controller again. A change that was begun before
// another controller took over has an unknown outcome instead.
func TestDeposedController_does_not_call_undone_what_it_began(t *testing.T) {
	for name, c := range map[string]struct {
		at   int // transaction of the change before which the lease ends
		want runnelv1.ErrorReason
	}{
		"before the first transaction": {1, runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER},
		"after the first":              {2, runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				first := w.controller(addr1, nil)
				defer first.stop(t)
				<-first.Ready()
				b := w.newBroker(1).serve(addr1)
				defer b.leave()
				mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t"})
				synctest.Wait()
				n := 0
				w.kv.Hook(func() {
					if n++; n == c.at {
						w.kv.ExpireLeases()
					}
				})
				_, err := w.client(addr1).AddPartitions(t.Context(), &controllerv1.AddPartitionsRequest{Request: &runnelv1.AddPartitionsRequest{Topic: "t", Total: 400}})
				wantReason(t, name, err, c.want)
			})
		})
	}
}

// Whatever transaction a controller dies after, the next one finishes what it began.
func TestNewController_finishes_what_the_old_one_began(t *testing.T) {
	for after := range 6 {
		t.Run(fmt.Sprintf("dead after %d transactions", after), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t)
				first := w.controller(addr1, nil)
				<-first.Ready()
				b := w.newBroker(1).serve(addr1)
				mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "old", Partitions: new(int32(300))})
				n := 0
				w.kv.Inject(func([]store.Write) storetest.Fault {
					if n++; n > after {
						return storetest.FaultBefore
					}
					return storetest.FaultNone
				})
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				_, _ = w.client(addr1).DeleteTopics(ctx, &controllerv1.DeleteTopicsRequest{Request: &runnelv1.DeleteTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: "old"}}}})
				_, _ = w.client(addr1).CreateTopics(ctx, create(&runnelv1.NewTopic{Name: "new", Partitions: new(int32(500))}))
				first.cancel()
				<-first.done
				b.failure()
				b.leave()
				w.kv.Inject(nil)

				second := w.controller(addr2, nil)
				defer second.stop(t)
				<-second.Ready()
				b.serve(addr2)
				defer b.leave()
				synctest.Wait()
				deleted := after >= 1
				if got := b.topicNamed("old") == nil; got != deleted {
					t.Errorf("old topic gone: %v, want %v", got, deleted)
				}
				var topics map[string]*controllerv1.TopicRecord
				b.locked(func() { topics = maps.Clone(b.topics) })
				for id, topic := range topics {
					if topic.GetPhase() == controllerv1.TopicPhase_TOPIC_PHASE_DELETING {
						b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Removed{Removed: &controllerv1.TopicsRemoved{TopicIds: []string{id}}}}
					}
				}
				synctest.Wait()
				partitions := 0
				if !deleted {
					partitions += 300
				}
				if after >= 2 {
					partitions += 500
					if b.topicNamed("new") == nil {
						t.Error("the new topic was not finished")
					}
				}
				kept := 0
				for key := range w.kv.Dump() {
					if strings.Contains(key, "/partitions/") {
						kept++
					}
				}
				b.locked(func() {
					if kept != partitions || len(b.partitions) != partitions {
						t.Errorf("%d partitions are kept and the broker knows %d, want %d", kept, len(b.partitions), partitions)
					}
				})
			})
		})
	}
}

// A fence that was cut short is finished by the next controller before it serves.
func TestNewController_finishes_a_fence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.controller(addr1, nil)
		<-first.Ready()
		b := []*broker{w.newBroker(1).serve(addr1), w.newBroker(2).serve(addr1)}
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", Partitions: new(int32(400)), ReplicationFactor: new(int32(2))}).GetTopicId()
		n := 0
		w.kv.Inject(func([]store.Write) storetest.Fault {
			if n++; n > 2 { // the registration, and one of four chunks
				return storetest.FaultBefore
			}
			return storetest.FaultNone
		})
		b[0].mu.Lock()
		b[0].mute = true
		b[0].mu.Unlock()
		time.Sleep(5 * time.Second)
		first.cancel()
		<-first.done
		for _, br := range b {
			br.failure()
			br.leave()
		}
		w.kv.Inject(nil)
		second := w.controller(addr2, nil)
		defer second.stop(t)
		<-second.Ready()
		b[1].serve(addr2)
		defer b[1].leave()
		for n := range int32(400) {
			if p := b[1].partition(topic, n); p.GetLeader() != 2 || !slices.Equal(p.GetIsr(), []int32{2}) {
				t.Fatalf("partition %d: %v", n, p)
			}
		}
	})
}

// Answers get lost, come late, or never: every definite answer is true, and everything that was created is whole.
func TestAmbiguousCommits_are_found_out(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(t)
			ctl := w.controller(addr1, nil)
			defer ctl.stop(t)
			<-ctl.Ready()
			b := w.newBroker(1).serve(addr1)
			defer b.leave()
			c := w.client(addr1)
			w.kv.Inject(func([]store.Write) storetest.Fault {
				return []storetest.Fault{
					storetest.FaultNone, storetest.FaultNone, storetest.FaultBefore, storetest.FaultAfter, storetest.FaultDelayed,
				}[rng.IntN(5)]
			})
			want := map[string]bool{} // by name: exists; absent when unknown
			for n := range 30 {
				name := fmt.Sprintf("t%d", rng.IntN(8))
				if rng.IntN(3) > 0 {
					resp, err := c.CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: name, Partitions: new(int32(1 + rng.IntN(200)))}))
					if err != nil {
						t.Fatal(err)
					}
					switch e := resp.GetResponse().GetResults()[0].GetError(); {
					case e == nil, e.GetReason() == runnelv1.ErrorReason_ERROR_REASON_TOPIC_EXISTS:
						if exists, known := want[name]; e != nil && known && !exists {
							t.Errorf("seed %d, %d: %s exists, and should not", seed, n, name)
						} else if e == nil && exists {
							t.Errorf("seed %d, %d: %s was created twice", seed, n, name)
						}
						want[name] = true
					case e.GetOutcomeUnknown():
						delete(want, name)
					case e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_CONFLICT:
						t.Errorf("seed %d, %d: %v", seed, n, e)
					}
				} else {
					resp, err := c.DeleteTopics(t.Context(), &controllerv1.DeleteTopicsRequest{Request: &runnelv1.DeleteTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: name}}}})
					if err != nil {
						t.Fatal(err)
					}
					switch e := resp.GetResponse().GetResults()[0].GetError(); {
					case e == nil, e.GetReason() == runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND:
						if exists, known := want[name]; (e == nil) != exists && known {
							t.Errorf("seed %d, %d: deleting %s: %v, exists %v", seed, n, name, e, exists)
						}
						want[name] = false
					case e.GetOutcomeUnknown():
						delete(want, name)
					case e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_CONFLICT:
						t.Errorf("seed %d, %d: %v", seed, n, e)
					}
				}
				if rng.IntN(4) == 0 {
					w.kv.Release()
				}
			}
			w.kv.Inject(nil)
			w.kv.Release()
			time.Sleep(5 * time.Second)
			for name, exists := range want {
				topic := b.topicNamed(name)
				if (topic != nil) != exists {
					t.Errorf("seed %d: %s: %v, want it to exist: %v", seed, name, topic, exists)
				}
			}
			var topics map[string]*controllerv1.TopicRecord
			b.locked(func() { topics = maps.Clone(b.topics) })
			for id, topic := range topics {
				if topic.GetPhase() != controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE {
					continue
				}
				for n := range topic.GetPartitions() {
					if b.partition(id, n) == nil {
						t.Errorf("seed %d: %s lacks partition %d", seed, topic.GetName(), n)
					}
				}
			}
		})
	}
}

func TestFullStore_is_reported(t *testing.T) {
	inCluster(t, 1, func(w *world, c controllerv1.ControllerServiceClient, _ []*broker) {
		t := w.t
		w.kv.Inject(func([]store.Write) storetest.Fault { return storetest.FaultFull })
		resp, err := c.CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: "t"}))
		if err != nil || resp.GetResponse().GetResults()[0].GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_METADATA_STORE_FULL {
			t.Errorf("full: %v, %v", resp, err)
		}
		w.kv.Inject(func([]store.Write) storetest.Fault { return storetest.FaultFullApplied })
		if r := mustCreate(t, c, &runnelv1.NewTopic{Name: "t"}); r.GetTopicId() == "" {
			t.Errorf("full, and written all the same: %v", r)
		}
		w.kv.Inject(nil)
	})
}

// With the store away, admin calls say that the outcome is unknown, brokers stay in service, and nothing is fenced afterwards.
func TestStoreOutage_costs_admin_calls_only(t *testing.T) {
	inCluster(t, 1, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		w.kv.Inject(func([]store.Write) storetest.Fault { return storetest.FaultBefore })
		start := time.Now()
		resp, err := c.CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: "t"}))
		if err != nil {
			t.Fatal(err)
		}
		e := resp.GetResponse().GetResults()[0].GetError()
		if e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE || !e.GetOutcomeUnknown() || time.Since(start) > 15*time.Second {
			t.Errorf("after %v: %v", time.Since(start), e)
		}
		w.kv.Inject(nil)
		if r := mustCreate(t, c, &runnelv1.NewTopic{Name: "t"}); !r.GetApplied() || b[0].phase(1) != inService {
			t.Errorf("afterwards: %v; broker %v", r, b[0].phase(1))
		}
	})
}

// OP-15: what was missed while the watch was broken, and is compacted since, is found by listing anew, removals included.
func TestCompactedWatch_resyncs_once(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.controller(addr1, nil)
		defer first.stop(t)
		<-first.Ready()
		cut := &cutKV{Fake: w.kv}
		second := w.controller(addr2, func(_ *controllerConfig, d *controllerDeps) { d.KV = cut })
		defer second.stop(t)
		b := w.newBroker(1).serve(addr1)
		defer b.leave()
		c := w.client(addr1)
		mustCreate(t, c, &runnelv1.NewTopic{Name: "gone"})
		synctest.Wait()
		cut.set(true)
		w.kv.BreakWatches()
		synctest.Wait()
		for n := range 50 {
			mustCreate(t, c, &runnelv1.NewTopic{Name: fmt.Sprintf("t%d", n)})
		}
		if _, err := c.DeleteTopics(t.Context(), &controllerv1.DeleteTopicsRequest{Request: &runnelv1.DeleteTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: "gone"}}}}); err != nil {
			t.Fatal(err)
		}
		var ids []string
		b.locked(func() { ids = slices.Collect(maps.Keys(b.topics)) })
		for _, id := range ids {
			b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Removed{Removed: &controllerv1.TopicsRemoved{TopicIds: []string{id}}}}
		}
		synctest.Wait()
		w.kv.Compact()
		cut.set(false)
		time.Sleep(5 * time.Second)

		first.stop(t)
		b.failure()
		b.leave()
		<-second.Ready()
		b.serve(addr2)
		gone := b.topicNamed("gone")
		b.locked(func() {
			if len(b.topics) != 50 || gone != nil || len(b.partitions) != 50 {
				t.Errorf("the second controller tells of %d topics and %d partitions", len(b.topics), len(b.partitions))
			}
		})
		if n := metric(t, second, "runnel_metadata_resyncs_total"); n != 1 {
			t.Errorf("%v resyncs", n)
		}
	})
}

// A broker that gave up waiting for its registration is not taken for connected when that is done after all.
func TestAbandonedRegistration_leaves_no_session(t *testing.T) {
	alone(t, dev, func(w *world) {
		w.kv.Inject(func([]store.Write) storetest.Fault { return storetest.FaultBefore })
		b := w.newBroker(1)
		b.join(addr1)
		time.Sleep(time.Second)
		b.leave()
		w.kv.Inject(nil)
		time.Sleep(15 * time.Second)
		// The registration stands; if its session did too, another data directory would be a duplicate.
		w.newBroker(1).serve(addr1).leave()
	})
}
