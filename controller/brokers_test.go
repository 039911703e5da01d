package controller_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
)

const (
	fenced       = controllerv1.BrokerPhase_BROKER_PHASE_FENCED
	inService    = controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE
	shuttingDown = controllerv1.BrokerPhase_BROKER_PHASE_SHUTTING_DOWN
)

func dev(_ *controller.Config, d *controller.Deps) { d.Dev, d.Bootstrap = true, false }

// alone runs a test with a controller, active and without brokers.
func alone(t *testing.T, change func(*controller.Config, *controller.Deps), test func(w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		c := w.controller(addr1, change)
		defer c.stop(t)
		<-c.Ready()
		test(w)
	})
}

// awaitLeader waits until a broker sees a leader of partition 0 in an epoch of its own.
func awaitLeader(b *broker, topic string, leader int32, after int64) *controllerv1.PartitionRecord {
	b.w.t.Helper()
	name := partitionName(topic, 0)
	b.until("a leader", func() bool {
		p := b.partitions[name]
		return p.GetLeader() == leader && p.GetLeaderEpoch() > after
	})
	return b.partition(topic, 0)
}

func TestRegister_refuses(t *testing.T) {
	alone(t, nil, func(w *world) {
		t := w.t
		first := w.newBroker(1).serve(addr1)
		defer first.leave()
		for name, tt := range map[string]struct {
			change func(r *controllerv1.Register)
			reason runnelv1.ErrorReason
		}{
			"no broker":               {func(r *controllerv1.Register) { r.Broker = nil }, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a negative id":           {func(r *controllerv1.Register) { r.Broker.BrokerId = -1 }, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"no incarnation":          {func(r *controllerv1.Register) { r.Broker.Incarnation = "" }, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a nil directory":         {func(r *controllerv1.Register) { r.Broker.DirectoryId = uuid.Nil.String() }, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a bind-all address":      {func(r *controllerv1.Register) { r.Broker.ClientAddress = "0.0.0.0:7420" }, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a bad internal address":  {func(r *controllerv1.Register) { r.Broker.InternalAddress = "::1" }, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"another's address":       {func(r *controllerv1.Register) { r.Broker.ClientAddress = "broker-1:7420" }, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"no cluster":              {func(r *controllerv1.Register) { r.ClusterId = "x" }, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"another cluster":         {func(r *controllerv1.Register) { r.ClusterId = uuid.NewString() }, runnelv1.ErrorReason_ERROR_REASON_CLUSTER_MISMATCH},
			"a newer controller seen": {func(r *controllerv1.Register) { r.HighestControllerEpoch = 1 << 40 }, runnelv1.ErrorReason_ERROR_REASON_CLUSTER_MISMATCH},
			"a newer feature level":   {func(r *controllerv1.Register) { r.Broker.MinFeatureLevel, r.Broker.MaxFeatureLevel = 7, 8 }, runnelv1.ErrorReason_ERROR_REASON_UNSUPPORTED},
			"a live broker's id":      {func(r *controllerv1.Register) { r.Broker.BrokerId = 1 }, runnelv1.ErrorReason_ERROR_REASON_DUPLICATE_BROKER},
		} {
			b := w.newBroker(2)
			tt.change(b.register)
			b.join(addr1)
			wantReason(t, name, b.failure(), tt.reason)
			b.leave()
		}
		first.locked(func() {
			if len(first.brokers) != 1 {
				t.Errorf("registered are %v", first.brokers)
			}
		})
	})
}

func TestSession_needs_a_registration_first(t *testing.T) {
	alone(t, nil, func(w *world) {
		t := w.t
		stream, err := w.client(addr1).Session(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Heartbeat{Heartbeat: &controllerv1.BrokerHeartbeat{}}}); err != nil {
			t.Fatal(err)
		}
		_, err = stream.Recv()
		wantReason(t, "a heartbeat first", err, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
		b := w.newBroker(1).serve(addr1)
		b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Register{Register: b.register}}
		wantReason(t, "a second registration", b.failure(), runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
		b.leave()
		b = w.newBroker(2).serve(addr1)
		b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Removed{Removed: &controllerv1.TopicsRemoved{TopicIds: []string{"x"}}}}
		wantReason(t, "garbage", b.failure(), runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
		b.leave()
	})
}

func TestRegister_of_the_same_incarnation_changes_nothing(t *testing.T) {
	alone(t, nil, func(w *world) {
		t := w.t
		a := w.newBroker(1).serve(addr1)
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t"}).GetTopicId()
		epoch, before := a.epoch, a.partition(topic, 0)
		// The second stream of the same process takes over from the first.
		second := w.newBroker(1)
		second.register = a.register
		second.shape = controllerv1.ReplicaShape_REPLICA_SHAPE_SUSPECT // an old report must not be weighed again
		second.serve(addr1)
		wantReason(t, "the first stream", a.failure(), runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH)
		a.leave()
		time.Sleep(5 * time.Second)
		if p := second.partition(topic, 0); second.epoch != epoch || p.GetPartitionEpoch() != before.GetPartitionEpoch() || p.GetLeader() != 1 {
			t.Errorf("epoch %d, was %d; partition %v, was %v", second.epoch, epoch, p, before)
		}
		second.leave()
	})
}

// kill -9 and restart of the only broker: its data is intact, and it leads again, in a new epoch.
func TestNewIncarnation_replaces_at_once_and_leads_again(t *testing.T) {
	for name, change := range map[string]func(*controller.Config, *controller.Deps){"cluster": nil, "dev": dev} {
		t.Run(name, func(t *testing.T) {
			alone(t, change, func(w *world) {
				t := w.t
				a := w.newBroker(1).serve(addr1)
				topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", Partitions: new(int32(300))}).GetTopicId()
				a.leave()
				start := time.Now()
				b := a.restarted().serve(addr1)
				defer b.leave()
				p := awaitLeader(b, topic, 1, 1)
				if b.epoch <= a.epoch || len(p.GetLossyEpochs()) != 0 || !slices.Equal(p.GetIsr(), []int32{1}) {
					t.Errorf("epoch %d after %d, partition %v", b.epoch, a.epoch, p)
				}
				if took := time.Since(start); took > time.Second {
					t.Errorf("it took %v", took)
				}
				if b.ledAtFirst != 0 {
					t.Errorf("the new incarnation saw itself as the leader of %d partitions", b.ledAtFirst)
				}
			})
		})
	}
}

// The only copy may have lost something: it leads again, and that is on record.
func TestSuspectReplica_is_elected_as_the_last_resort(t *testing.T) {
	alone(t, dev, func(w *world) {
		t := w.t
		a := w.newBroker(1).serve(addr1)
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t"}).GetTopicId()
		a.leave()
		b := a.restarted()
		b.shape = controllerv1.ReplicaShape_REPLICA_SHAPE_SUSPECT
		b.serve(addr1)
		defer b.leave()
		p := awaitLeader(b, topic, 1, 1)
		if !slices.Equal(p.GetLossyEpochs(), []int64{p.GetLeaderEpoch()}) || len(p.GetLastKnown()) != 0 || !slices.Equal(p.GetIsr(), []int32{1}) {
			t.Errorf("partition %v", p)
		}
	})
}

func TestDuplicateBroker_may_come_when_the_old_one_is_dead(t *testing.T) {
	alone(t, nil, func(w *world) {
		t := w.t
		other := w.newBroker(2).serve(addr1) // somebody must be alive, else nobody is fenced
		defer other.leave()
		a := w.newBroker(1).serve(addr1)
		a.leave()
		b := w.newBroker(1)
		b.join(addr1)
		wantReason(t, "while the old one may live", b.failure(), runnelv1.ErrorReason_ERROR_REASON_DUPLICATE_BROKER)
		b.leave()
		time.Sleep(4 * time.Second)
		b = w.newBroker(1).serve(addr1)
		b.leave()
	})
}

func TestSilentBroker_is_fenced_and_comes_back(t *testing.T) {
	inCluster(t, 3, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		topic := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3))}).GetTopicId()
		before := b[0].partition(topic, 0)
		leader, follower := b[before.GetLeader()-1], b[before.GetLeader()%3]
		leader.mu.Lock()
		leader.mute = true
		leader.mu.Unlock()
		start := time.Now()
		id := leader.register.GetBroker().GetBrokerId()
		follower.until("the fence", func() bool { return follower.phaseLocked(id) == fenced })
		if took := time.Since(start); took < 2500*time.Millisecond || took > 3700*time.Millisecond {
			t.Errorf("fenced after %v", took)
		}
		follower.until("another leader", func() bool {
			p := follower.partitions[partitionName(topic, 0)]
			return p.GetLeader() != id && p.GetLeader() > 0 && p.GetLeaderEpoch() == before.GetLeaderEpoch()+1 && len(p.GetIsr()) == 2 && len(p.GetElr()) == 0
		})
		wantReason(t, "the silent broker's session", leader.failure(), runnelv1.ErrorReason_ERROR_REASON_STALE_BROKER_EPOCH)
		leader.leave()
		leader.mute = false
		leader.serve(addr1)
		if p := follower.partition(topic, 0); p.GetLeader() == id || slices.Contains(p.GetIsr(), id) {
			t.Errorf("back by registering alone: %v", p)
		}
	})
}

func TestDev_never_fences_by_time(t *testing.T) {
	alone(t, dev, func(w *world) {
		t := w.t
		a := w.newBroker(1).serve(addr1)
		defer a.leave()
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t"}).GetTopicId()
		other := w.newBroker(2).serve(addr1) // where nobody is heard, nobody is fenced anyway
		defer other.leave()
		a.mu.Lock()
		a.mute = true
		a.mu.Unlock()
		time.Sleep(time.Hour)
		if a.phase(1) != inService || a.partition(topic, 0).GetLeaderEpoch() != 1 {
			t.Errorf("after an hour of silence: %v, %v", a.phase(1), a.partition(topic, 0))
		}
	})
}

// When nobody is heard, the fault is on this side.
func TestController_that_hears_nobody_fences_nobody(t *testing.T) {
	inCluster(t, 2, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		for _, br := range b {
			br.mu.Lock()
			br.mute = true
			br.mu.Unlock()
		}
		time.Sleep(30 * time.Second)
		for id := range int32(2) {
			if b[0].phase(id+1) != inService {
				t.Errorf("broker %d is %v", id+1, b[0].phase(id+1))
			}
		}
	})
}

func TestShutdown_hands_leaderships_over(t *testing.T) {
	inCluster(t, 2, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		shared := mustCreate(t, c, &runnelv1.NewTopic{Name: "shared", Partitions: new(int32(200)), ReplicationFactor: new(int32(2))}).GetTopicId()
		mustCreate(t, c, &runnelv1.NewTopic{Name: "own", Partitions: new(int32(2)), ReplicationFactor: new(int32(1))})
		start := time.Now()
		b[0].out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_ShuttingDown{ShuttingDown: &controllerv1.ShuttingDown{}}}
		<-b[0].drain
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		synctest.Wait()
		for n := range int32(200) {
			if p := b[1].partition(shared, n); p.GetLeader() != 2 || !slices.Equal(p.GetIsr(), []int32{2}) {
				t.Errorf("partition %d: %v", n, p)
			}
		}
		alone := 0
		b[1].locked(func() {
			for _, p := range b[1].partitions {
				if p.GetLeader() == 1 {
					alone++ // nobody else has it: it is served until the end
				}
			}
		})
		if b[1].phase(1) != shuttingDown || alone != 1 {
			t.Errorf("broker 1 is %v and leads %d partitions", b[1].phase(1), alone)
		}
		resp, err := c.CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: "x", ReplicationFactor: new(int32(2))}))
		if err != nil || resp.GetResponse().GetResults()[0].GetError().GetMetadata()["available"] != "1" {
			t.Errorf("a new topic on a broker that leaves: %v, %v", resp, err)
		}
		start = time.Now()
		b[0].leave()
		b[1].until("the fence", func() bool { return b[1].phaseLocked(1) == fenced })
		if time.Since(start) > time.Second {
			t.Errorf("fenced %v after the end of its session", time.Since(start))
		}
	})
}

func TestStorageFailure_fences_at_once(t *testing.T) {
	inCluster(t, 2, func(w *world, _ controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		b[0].out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Heartbeat{Heartbeat: &controllerv1.BrokerHeartbeat{Number: 1 << 40, StorageFailed: true}}}
		start := time.Now()
		b[1].until("the fence", func() bool { return b[1].phaseLocked(1) == fenced })
		time.Sleep(10 * time.Second)
		if b[1].phase(1) != fenced || time.Since(start) > 11*time.Second {
			t.Errorf("broker 1 is %v", b[1].phase(1))
		}
	})
}

// A broker is in service only when its report was weighed and it has applied its own registration.
func TestUnfence_waits_for_report_and_metadata(t *testing.T) {
	alone(t, nil, func(w *world) {
		t := w.t
		silent := w.newBroker(1)
		silent.noRecover = true
		silent.join(addr1)
		defer silent.leave()
		lazy := w.newBroker(2)
		lazy.lazy = true
		lazy.join(addr1)
		defer lazy.leave()
		time.Sleep(10 * time.Second)
		if silent.phase(1) != fenced || silent.phase(2) != fenced {
			t.Errorf("without a report: %v; without applied metadata: %v", silent.phase(1), silent.phase(2))
		}
		silent.recover()
		silent.until("being in service", func() bool { return silent.phaseLocked(1) == inService })
		lazy.mu.Lock()
		lazy.lazy = false
		lazy.mu.Unlock()
		lazy.until("being in service", func() bool { return lazy.phaseLocked(2) == inService })
	})
}

func TestSnapshot_comes_in_pieces_with_heartbeats_answered(t *testing.T) {
	alone(t, nil, func(w *world) {
		t := w.t
		a := w.newBroker(1).serve(addr1)
		defer a.leave()
		mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", Partitions: new(int32(10_000))})
		b := w.newBroker(2).serve(addr1)
		defer b.leave()
		b.locked(func() {
			if len(b.partitions) != 10_000 || len(b.pieces) < 3 {
				t.Errorf("%d partitions in pieces of %v objects", len(b.partitions), b.pieces)
			}
		})
		b.heartbeat()
		b.until("the answer", func() bool { return b.answered == b.beats })
	})
}

func TestClusterSecret_is_demanded(t *testing.T) {
	alone(t, func(c *controller.Config, _ *controller.Deps) { c.Security.ClusterSecret = "0123456789abcdef" }, func(w *world) {
		t := w.t
		_, err := w.client(addr1).CreateTopics(context.Background(), create(&runnelv1.NewTopic{Name: "t"}))
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("without the secret: %v", err)
		}
	})
}

// A broker that asks whether it is up to date is told all that was committed before it asked, and then has its answer: also one
// that is slow to receive.
func TestHeartbeat_is_answered_after_what_was_committed(t *testing.T) {
	inCluster(t, 1, func(w *world, c controllerv1.ControllerServiceClient, brokers []*broker) {
		t, b := w.t, brokers[0]
		for round := range 8 {
			held := make(chan struct{})
			b.locked(func() { b.held, b.mute = held, true })
			for n := range 12 { // more than can be on its way
				req := create(&runnelv1.NewTopic{Name: fmt.Sprintf("t-%d-%d", round, n), Partitions: new(int32(110))})
				req.Request.Timeout = durationpb.New(0)
				if resp, err := c.CreateTopics(t.Context(), req); err != nil || resp.GetResponse().GetResults()[0].GetError() != nil {
					t.Fatalf("%v, %v", resp, err)
				}
			}
			question := uint64(0)
			b.locked(func() { b.mute, question = false, b.beats+1 })
			b.heartbeat()
			synctest.Wait() // the question is there
			b.locked(func() { b.held = nil })
			close(held)
			b.until("the answer", func() bool { return b.answered >= question })
			made := int64(0)
			last := fmt.Sprintf("t-%d-11", round)
			b.until("the last topic", func() bool {
				for _, d := range b.deltas {
					for _, o := range d.GetObjects() {
						if o.GetTopic().GetName() == last {
							made = d.GetRevision()
						}
					}
				}
				return made > 0
			})
			b.locked(func() {
				n := slices.IndexFunc(b.answers, func(a answer) bool { return a.number >= question })
				if b.answers[n].revision < made {
					t.Errorf("%s was made at revision %d, before the question that was answered at %d", last, made, b.answers[n].revision)
				}
			})
		}
	})
}
