package controller_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func recoverRequest(topic string, from *int32, dry bool) *controllerv1.RecoverPartitionRequest {
	return &controllerv1.RecoverPartitionRequest{Principal: "test", Request: &runnelv1.RecoverPartitionRequest{
		Topic: topic, Partition: new(int32(0)), FromBrokerId: from, DryRun: dry,
	}}
}

// The only replica in sync is gone for good: an operator sees what each copy lacks, and has one elected.
func TestRecoverPartition(t *testing.T) {
	three(t, func(w *world, c controllerv1.ControllerServiceClient, b []*broker, topic string) {
		t := w.t
		lead, x, y := b[0], b[1], b[2]
		lead.propose(1, topic, 0, lead.id(), x.id())
		lead.awaitISR(topic, 0, lead.id(), x.id())
		ctx := t.Context()
		_, err := c.RecoverPartition(ctx, recoverRequest("t", new(x.id()), false))
		wantReason(t, "a partition that is led", err, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
		// Both in sync die; y comes back, and then x, with an empty disk.
		lead.leave()
		x.leave()
		y.until("the fence", func() bool { return y.phaseLocked(lead.id()) == fenced && y.phaseLocked(x.id()) == fenced })
		x2, y2 := x.restarted(), y.restarted()
		y.leave()
		b[1], b[2] = x2, y2
		name := partitionName(topic, 0)
		x2.shapes[name] = &controllerv1.ReplicaReport{Shape: controllerv1.ReplicaShape_REPLICA_SHAPE_LOST}
		y2.shapes[name] = &controllerv1.ReplicaReport{Shape: controllerv1.ReplicaShape_REPLICA_SHAPE_INTACT, LastEpoch: 1, LogEndOffset: 70, HighWatermark: 60}
		y2.serve(addr1)
		defer y2.leave()
		// Before it answers where the controller asks it, it may be dead already: it is not chosen.
		resp, err := c.RecoverPartition(ctx, recoverRequest("t", nil, true))
		if err != nil || resp.GetResponse().Leader != nil {
			t.Errorf("with nobody who answers: %v, %v", resp, err)
		}
		for _, cp := range resp.GetResponse().GetCopies() {
			if cp.GetSilent() != (cp.GetBrokerId() == y.id()) {
				t.Errorf("silent: %v", cp)
			}
		}
		_, err = c.RecoverPartition(ctx, recoverRequest("t", nil, false))
		wantReason(t, "nobody who answers", err, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
		y2.open()
		resp, err = c.RecoverPartition(ctx, recoverRequest("t", nil, true))
		if err != nil {
			t.Fatal(err)
		}
		copies := map[int32]*runnelv1.PartitionCopy{}
		for _, cp := range resp.GetResponse().GetCopies() {
			copies[cp.GetBrokerId()] = cp
		}
		got := copies[y.id()]
		if resp.GetResponse().GetLeader() != y.id() || resp.GetResponse().LeaderEpoch != nil || got.GetLogEndOffset() != 70 || got.GetHighWatermark() != 60 ||
			got.GetRole() != runnelv1.CopyRole_COPY_ROLE_BEHIND || got.GetState() != runnelv1.BrokerState_BROKER_STATE_ACTIVE || got.GetReportedAt() == nil || !got.GetIntact() || got.GetSilent() {
			t.Errorf("%v", resp)
		}
		if cp := copies[lead.id()]; cp.GetRole() != runnelv1.CopyRole_COPY_ROLE_IN_SYNC || cp.GetState() != runnelv1.BrokerState_BROKER_STATE_FENCED || cp.LogEndOffset != nil || cp.ReportedAt != nil {
			t.Errorf("the dead leader's copy: %v", cp)
		}
		x2.serve(addr1)
		defer x2.leave()
		if resp, err = c.RecoverPartition(ctx, recoverRequest("t", new(x.id()), true)); err != nil || resp.GetResponse().GetLeader() != x.id() {
			t.Fatalf("%v, %v", resp, err)
		}
		for _, cp := range resp.GetResponse().GetCopies() {
			if cp.GetBrokerId() == x.id() && (cp.GetMissingCommitted() != 60 || cp.GetMissingRecords() != 70 || cp.GetIntact()) {
				t.Errorf("the empty copy: %v", cp)
			}
		}
		for what, from := range map[string]int32{"a dead broker": lead.id(), "a stranger": 9, "nobody": -4} {
			_, err := c.RecoverPartition(ctx, recoverRequest("t", &from, false))
			wantReason(t, what, err, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
		}
		_, err = c.RecoverPartition(ctx, recoverRequest("nope", nil, true))
		wantReason(t, "no topic", err, runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND)
		if p := y2.partition(topic, 0); p.GetLeader() != -1 {
			t.Fatalf("elected by looking: %v", p)
		}
		if resp, err = c.RecoverPartition(ctx, recoverRequest("t", nil, false)); err != nil {
			t.Fatal(err)
		}
		p := awaitLeader(y2, topic, y.id(), 1)
		if resp.GetResponse().GetLeaderEpoch() != p.GetLeaderEpoch() || !resp.GetResponse().GetApplied() ||
			!slices.Equal(p.GetIsr(), []int32{y.id()}) || !slices.Equal(p.GetLossyEpochs(), []int64{p.GetLeaderEpoch()}) {
			t.Errorf("%v, partition %v", resp, p)
		}
	})
}

func TestFenceBroker_holds_until_the_process_starts_anew(t *testing.T) {
	three(t, func(w *world, c controllerv1.ControllerServiceClient, b []*broker, topic string) {
		t := w.t
		lead, other := b[0], b[1]
		resp, err := c.FenceBroker(t.Context(), &controllerv1.FenceBrokerRequest{Request: &runnelv1.FenceBrokerRequest{BrokerId: new(lead.id())}})
		if err != nil || resp.GetResponse().GetBrokerEpoch() != lead.epoch || !resp.GetResponse().GetApplied() {
			t.Fatalf("%v, %v", resp, err)
		}
		time.Sleep(time.Minute)
		p := other.partition(topic, 0)
		if other.phase(lead.id()) != fenced || p.GetLeader() != other.id() || slices.Contains(p.GetIsr(), lead.id()) {
			t.Errorf("broker %v, partition %v", other.phase(lead.id()), p)
		}
		synctest.Wait()
		// The same process stays out, with another session, too.
		lead.leave()
		lead.join(addr1)
		time.Sleep(10 * time.Second)
		if other.phase(lead.id()) != fenced {
			t.Error("back with a new session")
		}
		lead.leave()
		again := lead.restarted().serve(addr1)
		defer again.leave()
		for what, req := range map[string]*runnelv1.FenceBrokerRequest{"nobody": {}, "a stranger": {BrokerId: new(int32(77))}} {
			_, err := c.FenceBroker(t.Context(), &controllerv1.FenceBrokerRequest{Request: req})
			wantReason(t, what, err, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
		}
	})
}

// A report counts in the session it was made in: of a broker that registered again, and has not reported again, nothing is known.
func TestReport_ends_with_its_session(t *testing.T) {
	three(t, func(w *world, c controllerv1.ControllerServiceClient, b []*broker, topic string) {
		t := w.t
		lead, x, y := b[0], b[1], b[2]
		lead.propose(1, topic, 0, lead.id())
		lead.awaitISR(topic, 0, lead.id())
		lead.propose(2, topic, 0, lead.id(), x.id()) // so that y is in no set
		lead.awaitISR(topic, 0, lead.id(), x.id())
		lead.leave()
		x.leave()
		y.until("the fence", func() bool { return y.phaseLocked(lead.id()) == fenced && y.phaseLocked(x.id()) == fenced })
		end := func() (reported bool, offset int64) {
			t.Helper()
			resp, err := c.RecoverPartition(t.Context(), recoverRequest("t", new(y.id()), true))
			if err != nil {
				t.Fatal(err)
			}
			for _, cp := range resp.GetResponse().GetCopies() {
				if cp.GetBrokerId() == y.id() {
					return cp.LogEndOffset != nil || cp.ReportedAt != nil, cp.GetLogEndOffset()
				}
			}
			t.Fatalf("no copy of broker %d: %v", y.id(), resp)
			return false, 0
		}
		report := func(offset int64) {
			y.shapes[partitionName(topic, 0)] = &controllerv1.ReplicaReport{
				Shape: controllerv1.ReplicaShape_REPLICA_SHAPE_INTACT, LastEpoch: 1, LogEndOffset: offset, HighWatermark: offset,
			}
			y.recover()
			synctest.Wait()
			if ok, got := end(); !ok || got != offset {
				t.Errorf("reported %d, and it is taken for %d, %v", offset, got, ok)
			}
		}
		report(70)
		y.leave()
		y.noRecover = true
		y.join(addr1) // the same process, with a new session
		y.until("the metadata", func() bool { return y.partitions[partitionName(topic, 0)] != nil })
		synctest.Wait()
		if ok, got := end(); ok {
			t.Errorf("registered again, and still taken to hold %d as it reported before", got)
		}
		report(60)
	})
}

// Nor is a report weighed in a later session that it was not made in: a broker is let in on what it says there.
func TestReport_is_weighed_in_its_session_only(t *testing.T) {
	alone(t, nil, func(w *world) {
		b := w.newBroker(1)
		b.noRecover = true
		b.join(addr1)
		synctest.Wait()
		// While its disk is bad nothing is weighed.
		b.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Heartbeat{Heartbeat: &controllerv1.BrokerHeartbeat{Number: 1 << 40, StorageFailed: true}}}
		synctest.Wait()
		b.recover()
		synctest.Wait()
		b.leave()
		b.join(addr1)
		defer b.leave()
		time.Sleep(10 * time.Second)
		if b.phase(1) != fenced {
			w.t.Errorf("it is %v without having reported in this session", b.phase(1))
		}
		b.recover()
		b.until("being in service", func() bool { return b.phaseLocked(1) == inService })
	})
}

// What brokers hold by now is asked of them: since they registered they may have copied more. Of one that does not answer, and
// of one that is not the registered process, the last report stands.
func TestRecoverPartition_asks_the_brokers(t *testing.T) {
	inCluster(t, 3, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		topic := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3)), Configs: map[string]string{"min.insync.replicas": "1"}}).GetTopicId()
		order := b[0].partition(topic, 0).GetReplicas()
		lead, x, y := b[order[0]-1], b[order[1]-1], b[order[2]-1]
		lead.propose(1, topic, 0, lead.id())
		lead.awaitISR(topic, 0, lead.id())
		lead.leave()
		x.until("the fence", func() bool { return x.phaseLocked(lead.id()) == fenced })
		holds := func(b *broker, end int64) *door {
			d := b.open()
			d.holds = &replicav1.DescribeReplicaResponse{
				Incarnation: b.register.GetBroker().GetIncarnation(), Held: true, LastEpoch: 1, LogEndOffset: end, HighWatermark: end - 5, Intact: true,
			}
			return d
		}
		asked := func() map[int32]*runnelv1.PartitionCopy {
			t.Helper()
			resp, err := c.RecoverPartition(t.Context(), recoverRequest("t", nil, true))
			if err != nil {
				t.Fatal(err)
			}
			out := map[int32]*runnelv1.PartitionCopy{-1: {BrokerId: resp.GetResponse().Leader}}
			for _, cp := range resp.GetResponse().GetCopies() {
				out[cp.GetBrokerId()] = cp
			}
			return out
		}
		start := time.Now()
		time.Sleep(time.Hour)
		if got := asked()[x.id()]; got.GetLogEndOffset() != 0 || got.GetReportedAt().AsTime().After(start) || !got.GetSilent() {
			t.Errorf("of one that does not answer: %v", got)
		}
		dx, _ := holds(x, 40), holds(y, 70)
		got := asked()
		if cp := got[x.id()]; cp.GetLogEndOffset() != 40 || cp.GetHighWatermark() != 35 || cp.GetMissingRecords() != 30 || cp.GetMissingCommitted() != 25 ||
			!cp.GetIntact() || cp.GetSilent() || time.Since(cp.GetReportedAt().AsTime()) > time.Second {
			t.Errorf("of one that answers: %v", cp)
		}
		if got[-1].GetBrokerId() != y.id() {
			t.Errorf("chosen: %v", got[-1])
		}
		dx.mu.Lock()
		dx.holds.Incarnation = "another"
		dx.mu.Unlock()
		if got := asked()[x.id()]; got.GetLogEndOffset() != 0 || !got.GetSilent() {
			t.Errorf("of another process: %v", got)
		}
	})
}
