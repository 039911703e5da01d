package rpc

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// Members at every broker are one group; whichever broker is asked tells the same.
func TestGroups_fromAnyBroker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		var ms []*testMember
		for i := range int32(3) {
			ms = append(ms, w.member(i+1, int(i)))
			ms[i].until(func() bool { return ms[i].joined != nil && ms[i].last != nil })
		}
		ms[0].until(func() bool { return ms[0].owns() <= 2 })
		total := 0
		for _, m := range ms {
			m.send(&runnelv1.JoinRequest{Sequence: 7})
			m.until(func() bool { return m.pong == 7 })
		}
		pass(100 * time.Millisecond)
		d := w.brokers[3].describeGroup("g")
		for _, m := range d.GetMembers() {
			total += int(m.GetOwnedPartitions())
			if !m.GetConnected() || m.GetSessionTimeout().AsDuration() != 10*time.Second {
				t.Errorf("%v", m)
			}
		}
		if d.GetState() != runnelv1.GroupState_GROUP_STATE_STABLE || total != 4 || d.GetCoordinator() != 2 {
			t.Errorf("%d partitions are owned: %v", total, d)
		}
		first := ms[0].last.GetTopics()[0].GetPartitions()[0].GetPartition()
		for id, b := range w.brokers {
			got := b.commit(&runnelv1.CommitRequest{RequestId: 5, Group: "g", MemberId: ms[0].id, MemberEpoch: ms[0].epoch, Offsets: offsets(first, int64(id))})
			if len(got) != 1 || got[0].GetRequestId() != 5 || got[0].GetResults()[0].GetOffset() != int64(id) || got[0].GetResults()[0].GetError() != nil {
				t.Errorf("broker %d: %v", id, got)
			}
			for _, r := range w.brokers {
				f, err := r.client().FetchOffsets(t.Context(), &runnelv1.FetchOffsetsRequest{Group: "g"})
				if err != nil || len(f.GetOffsets()) != 1 || f.GetOffsets()[0].GetOffset() != int64(id) || f.GetOffsets()[0].GetTopic() != "orders" {
					t.Errorf("%v %v", f, err)
				}
			}
		}
		// What one broker held up is told by every other one what came after it.
		for i, c := range []struct {
			sequence     uint64
			offset, want int64
		}{{7, 4, 4}, {9, 8, 8}, {8, 6, 8}} {
			got := w.brokers[int32(i+1)].commit(&runnelv1.CommitRequest{ //nolint:gosec // small
				Group: "g", MemberId: ms[0].id, MemberEpoch: ms[0].epoch, Sequence: c.sequence, Offsets: offsets(first, c.offset),
			})
			if r := got[0].GetResults()[0]; r.GetError() != nil || r.GetOffset() != c.want {
				t.Errorf("offset %d with sequence %d: %v", c.offset, c.sequence, got)
			}
		}
		// No member can have read what is not there.
		got := w.brokers[1].commit(&runnelv1.CommitRequest{Group: "g", MemberId: ms[0].id, MemberEpoch: ms[0].epoch, Offsets: offsets(first, 11)})
		if rpcerr.Name(got[0].GetResults()[0].GetError().GetReason()) != "OFFSET_OUT_OF_RANGE" {
			t.Errorf("beyond the end: %v", got)
		}
		ms[2].send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Leave{Leave: &runnelv1.LeaveGroup{}}})
		for {
			if _, err := ms[2].stream.Recv(); err == io.EOF { //nolint:errorlint // gRPC's own
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		pass(100 * time.Millisecond)
		if d := w.brokers[1].describeGroup("g"); len(d.GetMembers()) != 2 {
			t.Errorf("%d members after a leave", len(d.GetMembers()))
		}
	})
}

// Row 75: a broker that carried a thousand members' streams goes away, and so does
// the coordinator after it; every member goes on elsewhere, and nothing moves.
func TestGroups_restartsMoveNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		const members = 1000
		var ms []*testMember
		for i := range members {
			ms = append(ms, w.member(1, i))
		}
		for round := range uint64(3) { // what the first ones are to give up they must hear of
			for _, m := range ms {
				m.send(&runnelv1.JoinRequest{Sequence: 10 + round})
				m.until(func() bool { return m.last != nil && m.pong == 10+round })
			}
			pass(time.Second)
		}
		before := w.brokers[2].describeGroup("g")
		if before.GetState() != runnelv1.GroupState_GROUP_STATE_STABLE {
			t.Fatalf("the group is %v", before.GetState())
		}
		again := func(why string) {
			t.Helper()
			for _, m := range ms {
				m.connect(w.brokers[3], m.epoch)
			}
			for _, m := range ms {
				was := m.joined
				m.until(func() bool { return m.joined != was })
				if !m.joined.GetResumed() {
					t.Fatalf("%s: member %s had to begin anew", why, m.id)
				}
			}
			pass(time.Second)
			d := w.brokers[2].describeGroup("g") // the streams of the members are all that broker 3 takes
			if d.GetGroupEpoch() != before.GetGroupEpoch() || len(d.GetMembers()) != members {
				t.Errorf("%s: group epoch %d after %d, %d members", why, d.GetGroupEpoch(), before.GetGroupEpoch(), len(d.GetMembers()))
			}
			for i, p := range d.GetPartitions() {
				if q := before.GetPartitions()[i]; p.GetMemberId() != q.GetMemberId() || p.GetAssignmentEpoch() != q.GetAssignmentEpoch() {
					t.Errorf("%s: %v moved to %v", why, q, p)
				}
			}
		}
		w.cut(2) // the streams between brokers break, as when the proxy is killed
		for _, m := range ms {
			m.until(func() bool { return m.err != nil })
			if m.err.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING || codes.Code(m.err.GetCode()) != codes.Unavailable { //nolint:gosec // a code
				t.Fatalf("%v", m.err)
			}
		}
		again("after the proxy went")
		w.move(coordinator.Topic, 0, -1)
		w.move(coordinator.Topic, 0, 2) // which reads its log anew, and knows nothing else
		for _, m := range ms {
			m.until(func() bool { return m.err != nil })
		}
		again("after the coordinator went")
	})
}

// Who comes while there is no coordinator waits for one, a little.
func TestGroups_waitForACoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		w.move(coordinator.Topic, 0, -1)
		m := w.member(1, 1)
		pass(2 * time.Second)
		w.move(coordinator.Topic, 0, 2, 1) // it does not know yet that it leads
		pass(time.Second)
		w.tell(coordinator.Topic, 0, 2)
		m.until(func() bool { return m.joined != nil || m.err != nil })
		if m.err != nil {
			t.Errorf("it was told %v", m.err)
		}
		w.move(coordinator.Topic, 0, -1)
		m.until(func() bool { return m.err != nil })
		m.connect(w.brokers[1], m.epoch)
		m.until(func() bool { return m.err != nil })
		if m.err.GetReason() != runnelv1.ErrorReason_ERROR_REASON_NO_LEADER || m.err.GetOutcomeUnknown() {
			t.Errorf("without a coordinator for long: %v", m.err)
		}
	})
}

func TestGroups_refuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		b := w.brokers[1]
		member := uuid.New().String()
		long := strings.Repeat("x", 300)
		join := func(change func(*runnelv1.JoinGroup)) *runnelv1.JoinRequest {
			j := &runnelv1.JoinGroup{Group: "g", MemberId: member, Topics: []string{"orders"}}
			change(j)
			return &runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Join{Join: j}}
		}
		for name, c := range map[string]struct {
			req    *runnelv1.JoinRequest
			reason string
		}{
			"no join":        {&runnelv1.JoinRequest{}, "INVALID_REQUEST"},
			"no group":       {join(func(j *runnelv1.JoinGroup) { j.Group = "" }), "INVALID_GROUP"},
			"no UUID":        {join(func(j *runnelv1.JoinGroup) { j.MemberId = "me" }), "INVALID_REQUEST"},
			"nothing":        {join(func(j *runnelv1.JoinGroup) { j.Topics = nil }), "INVALID_SUBSCRIPTION"},
			"bad pattern":    {join(func(j *runnelv1.JoinGroup) { j.TopicPattern = "(" }), "INVALID_SUBSCRIPTION"},
			"internal":       {join(func(j *runnelv1.JoinGroup) { j.Topics = []string{coordinator.Topic} }), "INVALID_SUBSCRIPTION"},
			"bad topic":      {join(func(j *runnelv1.JoinGroup) { j.Topics = []string{"a b"} }), "INVALID_SUBSCRIPTION"},
			"assignor":       {join(func(j *runnelv1.JoinGroup) { j.Assignor = 77 }), "INVALID_REQUEST"},
			"long instance":  {join(func(j *runnelv1.JoinGroup) { j.InstanceId = long }), "INVALID_REQUEST"},
			"short session":  {join(func(j *runnelv1.JoinGroup) { j.SessionTimeout = durationpb.New(time.Millisecond) }), "INVALID_REQUEST"},
			"negative epoch": {join(func(j *runnelv1.JoinGroup) { j.MemberEpoch = new(int64(-1)) }), "INVALID_REQUEST"},
			"unknown member": {join(func(j *runnelv1.JoinGroup) { j.MemberEpoch = new(int64(3)) }), "UNKNOWN_MEMBER"},
			"direct":         {join(func(j *runnelv1.JoinGroup) { j.Routing = runnelv1.Routing_ROUTING_DIRECT }), "NOT_COORDINATOR"},
		} {
			stream, err := b.client().Join(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.Send(c.req); err != nil {
				t.Fatal(err)
			}
			r, err := stream.Recv()
			if err != nil || rpcerr.Name(r.GetError().GetReason()) != c.reason {
				t.Errorf("%s: %v %v", name, r, err)
			}
			if c.reason == "NOT_COORDINATOR" && (r.GetError().GetMetadata()["address"] != "broker-2:7420" || r.GetError().GetMetadata()["leader"] != "2") {
				t.Errorf("%s: %v", name, r)
			}
			if _, err := stream.Recv(); err != io.EOF { //nolint:errorlint // gRPC's own
				t.Errorf("%s: then %v", name, err)
			}
		}
		for name, c := range map[string]struct {
			req    *runnelv1.CommitRequest
			reason string
		}{
			"no offsets":    {&runnelv1.CommitRequest{Group: "g"}, "INVALID_REQUEST"},
			"no group":      {&runnelv1.CommitRequest{Offsets: offsets(0, 1)}, "INVALID_GROUP"},
			"negative":      {&runnelv1.CommitRequest{Group: "g", Offsets: offsets(0, -1)}, "INVALID_REQUEST"},
			"metadata":      {&runnelv1.CommitRequest{Group: "g", Offsets: []*runnelv1.OffsetCommit{{Topic: "orders", Metadata: strings.Repeat("x", 5000)}}}, "INVALID_REQUEST"},
			"timeout":       {&runnelv1.CommitRequest{Group: "g", Offsets: offsets(0, 1), Timeout: durationpb.New(time.Hour)}, "INVALID_REQUEST"},
			"unknown":       {&runnelv1.CommitRequest{Group: "g", MemberId: member, MemberEpoch: 1, Offsets: offsets(0, 1)}, "UNKNOWN_MEMBER"},
			"epoch alone":   {&runnelv1.CommitRequest{Group: "g", MemberEpoch: 1, Offsets: offsets(0, 1)}, "INVALID_REQUEST"},
			"direct":        {&runnelv1.CommitRequest{Group: "g", Routing: runnelv1.Routing_ROUTING_DIRECT, Offsets: offsets(0, 1)}, "NOT_COORDINATOR"},
			"other routing": {&runnelv1.CommitRequest{Group: "g", Routing: 9, Offsets: offsets(0, 1)}, "INVALID_REQUEST"},
		} {
			got := b.commit(c.req)
			if len(got) != 1 || rpcerr.Name(got[0].GetError().GetReason()) != c.reason || got[0].GetError().GetOutcomeUnknown() {
				t.Errorf("%s: %v", name, got)
			}
		}
		other := uuid.New().String()
		got := b.commit(&runnelv1.CommitRequest{Group: "g", Offsets: []*runnelv1.OffsetCommit{
			{Topic: "orders", Partition: 0, Offset: 10},
			{Topic: "orders", Partition: 1, Offset: 11},
			{Topic: "orders", Partition: 9, Offset: 1},
			{Topic: "nothing", Partition: 0, Offset: 1},
			{Topic: "orders", TopicId: &other, Partition: 0, Offset: 1},
			{Topic: coordinator.Topic, Partition: 0, Offset: 1},
		}}, &runnelv1.CommitRequest{RequestId: 3})
		var reasons []string
		for _, r := range got {
			for _, x := range r.GetResults() {
				reasons = append(reasons, rpcerr.Name(x.GetError().GetReason()))
			}
		}
		want := []string{"UNSPECIFIED", "UNSPECIFIED", "PARTITION_NOT_FOUND", "TOPIC_NOT_FOUND", "TOPIC_ID_MISMATCH", "TOPIC_INTERNAL"}
		if diff := cmp.Diff(want, reasons); diff != "" || len(got) != 2 {
			t.Errorf("%v: %s", got, diff)
		}
		for name, err := range map[string]error{
			"describe":      second(b.client().DescribeGroup(t.Context(), &runnelv1.DescribeGroupRequest{Group: "none"})),
			"fetch offsets": second(b.client().FetchOffsets(t.Context(), &runnelv1.FetchOffsetsRequest{Group: "none"})),
			"delete":        second(b.client().DeleteGroup(t.Context(), &runnelv1.DeleteGroupRequest{Group: "none"})),
		} {
			if status.Code(err) != codes.NotFound || rpcerr.Name(rpcerr.Reason(err)) != "GROUP_NOT_FOUND" {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

func second[T any](_ T, err error) error { return err }

// Streams end as planned when the broker drains, and memberships do not.
func TestGroups_drain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{GoawayGrace: time.Second})
		m := w.member(1, 1)
		m.until(func() bool { return m.last != nil })
		stream, err := w.brokers[1].log.Commit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&runnelv1.CommitRequest{RequestId: 1}); err != nil {
			t.Fatal(err)
		}
		if r, err := stream.Recv(); err != nil || r.GetRequestId() != 1 {
			t.Fatal(r, err)
		}
		w.brokers[1].svc.Drain()
		m.until(func() bool { return m.goaway != nil })
		m.goaway = nil
		m.until(func() bool { return m.goaway.GetFinal() })
		if _, err := m.stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("then %v", err)
		}
		var last *runnelv1.CommitResponse
		for {
			r, err := stream.Recv()
			if err != nil {
				if status.Code(err) != codes.Unavailable || !last.GetGoaway().GetFinal() {
					t.Errorf("the commits' stream: %v after %v", err, last)
				}
				break
			}
			last = r
		}
		m.connect(w.brokers[3], m.epoch)
		was := m.joined
		m.until(func() bool { return m.joined != was })
		if !m.joined.GetResumed() {
			t.Error("it had to begin anew")
		}
	})
}

// Members that came by other brokers go on until the coordinator ends: they do not
// hold up the end of this broker's own clients, which is before that.
func TestGroups_drainWithMembersOfOtherBrokers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		m := w.member(1, 1)
		m.until(func() bool { return m.last != nil })
		ended := make(chan struct{})
		var waiting sync.WaitGroup
		defer waiting.Wait()
		waiting.Go(func() {
			w.brokers[2].svc.Wait() // it has no clients
			close(ended)
		})
		synctest.Wait()
		select {
		case <-ended:
		default:
			t.Error("the coordinator waits for a client of another broker")
		}
		if err := m.stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
	})
}

// What another broker sends is no better than what a client does.
func TestForwardGroup_hostile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		fwd := w.forward[2]
		ctx := context.Background()
		for name, req := range map[string]*replicav1.ForwardGroupRequest{
			"nothing":         {},
			"a bad partition": {Partition: 99, Request: &replicav1.ForwardGroupRequest_Delete{Delete: &runnelv1.DeleteGroupRequest{Group: "g"}}},
			"negative":        {Partition: -1, Request: &replicav1.ForwardGroupRequest_Delete{Delete: &runnelv1.DeleteGroupRequest{Group: "g"}}},
			"no topic id":     {Request: &replicav1.ForwardGroupRequest_Commit{Commit: &runnelv1.CommitRequest{Group: "g", Offsets: offsets(0, 1)}}},
			"a bad timeout":   {Request: &replicav1.ForwardGroupRequest_Commit{Commit: &runnelv1.CommitRequest{Group: "g", Timeout: durationpb.New(-1)}}},
		} {
			if r, err := fwd.ForwardGroup(ctx, req); err != nil || r.GetError() == nil || r.GetError().GetCode() == int32(codes.Internal) {
				t.Errorf("%s: %v %v", name, r, err)
			}
		}
		if _, err := fwd.ForwardMeasure(ctx, &replicav1.ForwardMeasureRequest{Places: []*replicav1.MeasurePlace{{TopicId: "x"}}}); err == nil {
			t.Error("a place that is none")
		}
		r, err := fwd.ForwardMeasure(ctx, &replicav1.ForwardMeasureRequest{Places: []*replicav1.MeasurePlace{{TopicId: uuid.NewString(), Offset: new(int64(-9))}}})
		if err != nil || r.GetMeasures()[0].GetError() == nil {
			t.Errorf("a topic nobody knows: %v %v", r, err)
		}
	})
}

// That nobody can have read what a member commits is not said on the word of a
// leader that was replaced and has not heard of it.
func TestGroups_commitBeyondAFormerLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		w.copyLog("orders", 1, 1)
		w.move("orders", 1, 1, 1)
		w.brokers[1].text("orders", 1, "x", "y")
		m := w.member(1, 0)
		m.until(func() bool { return m.owns() == 4 })
		asked := 0
		fresh := metadata.ErrNoController
		w.catchUp = func(id int32) error {
			asked++
			if fresh == nil {
				w.tell("orders", 1, id)
			}
			return fresh
		}
		commit := func(offset int64) string {
			got := w.brokers[3].commit(&runnelv1.CommitRequest{Group: "g", MemberId: m.id, MemberEpoch: m.epoch, Offsets: offsets(1, offset)})
			return rpcerr.Name(got[0].GetResults()[0].GetError().GetReason())
		}
		if got := commit(12); got != "LEADER_UNCONFIRMED" {
			t.Errorf("while no controller answers: %s", got)
		}
		fresh = nil
		if got := commit(12); got != "OFFSET_NOT_AVAILABLE" {
			t.Errorf("once it is heard of: %s", got)
		}
		if got := commit(12); got != "UNSPECIFIED" {
			t.Errorf("then: %s", got)
		}
		if got := commit(13); got != "OFFSET_OUT_OF_RANGE" || asked < 3 {
			t.Errorf("beyond every end: %s", got)
		}
	})
}
