package rpc

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// groupTown is three brokers, of which the second coordinates all groups, and
// the first and third lead a topic of four partitions with ten records each.
func groupTown(t *testing.T, opts LogOptions) *testTown {
	t.Helper()
	w := buildTown(t, 3, nil, opts, &coordinator.Config{LagEvery: -1})
	w.topic(coordinator.Topic, 2)
	w.topic("orders", 1, 3, 1, 3)
	for n := range int32(4) {
		values := make([]string, 10)
		for i := range values {
			values[i] = fmt.Sprint("v", i)
		}
		w.brokers[1].text("orders", n, values...)
	}
	pass(time.Second)
	return w
}

// pass lets time go by in the bubble.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A testMember is a Join stream at a broker.
type testMember struct {
	t      *testing.T
	id     string
	stream runnelv1.GroupService_JoinClient
	epoch  int64
	last   *runnelv1.Assignment
	joined *runnelv1.Joined
	pong   uint64
	err    *runnelv1.ItemError
	goaway *runnelv1.Goaway
}

func (w *testTown) member(broker int32, n int) *testMember {
	w.t.Helper()
	m := &testMember{t: w.t, id: uuid.UUID{14: byte(n >> 8), 15: byte(n)}.String()}
	m.connect(w.brokers[broker], 0)
	return m
}

func (m *testMember) connect(b *testBroker, epoch int64) {
	m.t.Helper()
	stream, err := runnelv1.NewGroupServiceClient(b.conn).Join(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	m.stream, m.err = stream, nil
	m.send(&runnelv1.JoinRequest{Sequence: 1, Event: &runnelv1.JoinRequest_Join{Join: &runnelv1.JoinGroup{
		Group: "g", MemberId: m.id, MemberEpoch: &epoch, Topics: []string{"orders"},
	}}})
}

func (m *testMember) send(r *runnelv1.JoinRequest) {
	m.t.Helper()
	if err := m.stream.Send(r); err != nil {
		m.t.Fatal(err)
	}
}

// recv takes one answer in, carries an Assignment out, and returns the answer.
func (m *testMember) recv() *runnelv1.JoinResponse {
	m.t.Helper()
	r, err := m.stream.Recv()
	if err != nil {
		m.t.Fatalf("member %s: %v", m.id, err)
	}
	switch e := r.GetEvent().(type) {
	case *runnelv1.JoinResponse_Joined:
		m.joined, m.epoch = e.Joined, e.Joined.GetMemberEpoch()
	case *runnelv1.JoinResponse_Assignment:
		m.last, m.epoch = e.Assignment, e.Assignment.GetMemberEpoch()
		owned := &runnelv1.OwnedPartitions{Revision: e.Assignment.GetRevision()}
		for _, t := range e.Assignment.GetTopics() {
			o := &runnelv1.TopicPartitions{TopicId: t.GetTopicId()}
			for _, p := range t.GetPartitions() {
				o.Partitions = append(o.Partitions, p.GetPartition())
			}
			owned.Topics = append(owned.Topics, o)
		}
		_ = m.stream.Send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Owned{Owned: owned}}) // the stream may have ended meanwhile
	case *runnelv1.JoinResponse_Pong:
		m.pong = max(m.pong, e.Pong.GetSequence())
	case *runnelv1.JoinResponse_Error:
		m.err = e.Error
	case *runnelv1.JoinResponse_Goaway:
		m.goaway = e.Goaway
	}
	return r
}

// until takes answers in until one makes ok true.
func (m *testMember) until(ok func() bool) {
	m.t.Helper()
	for !ok() {
		m.recv()
	}
}

func (m *testMember) owns() int {
	n := 0
	for _, t := range m.last.GetTopics() {
		n += len(t.GetPartitions())
	}
	return n
}

func (b *testBroker) client() runnelv1.GroupServiceClient {
	return runnelv1.NewGroupServiceClient(b.conn)
}

func (b *testBroker) commit(reqs ...*runnelv1.CommitRequest) []*runnelv1.CommitResponse {
	b.t.Helper()
	stream, err := b.log.Commit(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	for _, r := range reqs {
		if err := stream.Send(r); err != nil {
			b.t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		b.t.Fatal(err)
	}
	var out []*runnelv1.CommitResponse
	for {
		r, err := stream.Recv()
		if err == io.EOF { //nolint:errorlint // gRPC's own
			return out
		}
		if err != nil {
			b.t.Fatal(err)
		}
		out = append(out, r)
	}
}

func offsets(n int32, offset int64) []*runnelv1.OffsetCommit {
	return []*runnelv1.OffsetCommit{{Topic: "orders", Partition: n, Offset: offset}}
}

func (b *testBroker) describeGroup(id string) *runnelv1.DescribeGroupResponse {
	b.t.Helper()
	d, err := b.client().DescribeGroup(b.t.Context(), &runnelv1.DescribeGroupRequest{Group: id})
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

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
		for _, m := range ms {
			m.until(func() bool { return m.last != nil })
		}
		pass(time.Second)
		before := w.brokers[2].describeGroup("g")
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
		want := []string{"UNSPECIFIED", "OFFSET_OUT_OF_RANGE", "PARTITION_NOT_FOUND", "TOPIC_NOT_FOUND", "TOPIC_ID_MISMATCH", "TOPIC_INTERNAL"}
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

// Resets go where they say, through any broker, or nowhere at all.
func TestGroups_resetOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		b := w.brokers[1]
		reset := func(dry bool, resets ...*runnelv1.OffsetReset) *runnelv1.ResetOffsetsResponse {
			t.Helper()
			for _, r := range resets {
				r.Topic = "orders"
			}
			got, err := b.client().ResetOffsets(t.Context(), &runnelv1.ResetOffsetsRequest{Group: "r", Resets: resets, DryRun: dry})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		news := func(r *runnelv1.ResetOffsetsResponse) (out []int64) {
			for _, x := range r.GetResults() {
				if x.GetError() != nil || x.NewOffset == nil {
					out = append(out, -1)
				} else {
					out = append(out, x.GetNewOffset())
				}
			}
			return out
		}
		latest := &runnelv1.OffsetReset{To: &runnelv1.OffsetReset_Position{Position: runnelv1.Position_POSITION_LATEST}}
		if got := reset(true, latest); !cmp.Equal(news(got), []int64{10, 10, 10, 10}) || got.GetApplied() {
			t.Errorf("dry: %v", got)
		}
		if got := reset(false, latest); !got.GetApplied() {
			t.Errorf("%v", got)
		}
		if got := reset(false, &runnelv1.OffsetReset{Partition: new(int32(1)), To: &runnelv1.OffsetReset_Shift{Shift: -3}},
			&runnelv1.OffsetReset{Partition: new(int32(2)), To: &runnelv1.OffsetReset_Shift{Shift: 100}},
			&runnelv1.OffsetReset{Partition: new(int32(3)), To: &runnelv1.OffsetReset_Timestamp{Timestamp: timestamppb.New(time.Unix(0, 0))}},
			&runnelv1.OffsetReset{Partition: new(int32(0)), To: &runnelv1.OffsetReset_Offset{Offset: 4}},
		); !cmp.Equal(news(got), []int64{7, 10, 0, 4}) || !got.GetApplied() || got.GetResults()[0].GetOldOffset() != 10 {
			t.Errorf("%v", got)
		}
		got := reset(false, &runnelv1.OffsetReset{Partition: new(int32(0)), To: &runnelv1.OffsetReset_Offset{Offset: 11}},
			&runnelv1.OffsetReset{Partition: new(int32(1)), To: &runnelv1.OffsetReset_Offset{Offset: 1}})
		if got.GetApplied() || got.GetResults()[0].GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE {
			t.Errorf("%v", got)
		}
		f, err := w.brokers[3].client().FetchOffsets(t.Context(), &runnelv1.FetchOffsetsRequest{Group: "r", Topics: []*runnelv1.GroupTopic{{Topic: "orders"}, {Topic: "none"}}})
		if err != nil {
			t.Fatal(err)
		}
		var now []int64
		for _, o := range f.GetOffsets() {
			now = append(now, o.GetOffset())
		}
		if diff := cmp.Diff([]int64{4, 7, 10, 0, 0}, now); diff != "" || f.GetOffsets()[4].GetError() == nil {
			t.Errorf("committed %v: %s", f, diff)
		}
		m := w.member(3, 1)
		m.until(func() bool { return m.last != nil })
		for name, resets := range map[string][]*runnelv1.OffsetReset{
			"nothing": nil, "no place": {{Topic: "orders"}}, "twice": {{Topic: "orders", Partition: new(int32(0)), To: latest.GetTo()}, {Topic: "orders", To: latest.GetTo()}},
			"position": {{Topic: "orders", To: &runnelv1.OffsetReset_Position{}}},
		} {
			_, err := b.client().ResetOffsets(t.Context(), &runnelv1.ResetOffsetsRequest{Group: "r", Resets: resets})
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Lag is the same wherever it is asked, and exact.
func TestGroups_lag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		first := time.Now()
		b := w.brokers[1]
		b.commit(&runnelv1.CommitRequest{Group: "l", Offsets: []*runnelv1.OffsetCommit{
			{Topic: "orders", Partition: 0, Offset: 4}, {Topic: "orders", Partition: 1, Offset: 10},
		}})
		pass(50 * time.Second)
		b.text("orders", 1, "later")
		pass(10 * time.Second)
		d := w.brokers[3].describeGroup("l")
		p := d.GetPartitions()
		if len(p) != 2 {
			t.Fatal(d)
		}
		age := time.Since(first).Seconds() + 1 // the records were there a second before
		if p[0].GetLagRecords() != 6 || math.Abs(p[0].GetLagSeconds()-age) > 0.5 || p[0].GetHighWatermark() != 10 {
			t.Errorf("partition 0: %v, want an age of %v", p[0], age)
		}
		if p[1].GetLagRecords() != 1 || math.Abs(p[1].GetLagSeconds()-10) > 0.5 {
			t.Errorf("partition 1: %v", p[1])
		}
		week := (7 * 24 * time.Hour).Seconds() // the default retention
		if d.GetLagRecords() != 7 || math.Abs(d.GetTimeToDataLossSeconds()-(week-age)) > 1 || d.GetLagSeconds() != p[0].GetLagSeconds() {
			t.Errorf("in all: %d records, %v s, %v s to loss", d.GetLagRecords(), d.GetLagSeconds(), d.GetTimeToDataLossSeconds())
		}
	})
}

// Groups are listed page by page, over all their coordinators.
func TestGroups_list(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := buildTown(t, 3, nil, LogOptions{}, &coordinator.Config{LagEvery: -1})
		b := w.brokers[1]
		if l, err := b.client().ListGroups(t.Context(), &runnelv1.ListGroupsRequest{}); err != nil || len(l.GetGroups()) != 0 {
			t.Errorf("before there is any: %v %v", l, err)
		}
		w.topic(coordinator.Topic, 1, 2, 3, 1, 2, 3)
		w.topic("orders", 1)
		pass(time.Second)
		var want []string
		for i := range 25 {
			id := fmt.Sprintf("group-%02d", i)
			want = append(want, id)
			if got := b.commit(&runnelv1.CommitRequest{Group: id, Offsets: offsets(0, 0)}); got[0].GetError() != nil {
				t.Fatal(got)
			}
		}
		b.commit(&runnelv1.CommitRequest{Group: "other", Offsets: offsets(0, 0)})
		var got []string
		for token, first := "", true; first || token != ""; first = false {
			l, err := b.client().ListGroups(t.Context(), &runnelv1.ListGroupsRequest{Prefix: "group-", PageSize: new(int32(4)), PageToken: token})
			if err != nil || len(l.GetGroups()) > 4 || len(l.GetErrors()) > 0 {
				t.Fatal(l, err)
			}
			for _, g := range l.GetGroups() {
				got = append(got, g.GetGroup())
			}
			token = l.GetNextPageToken()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if _, err := b.client().DeleteGroup(t.Context(), &runnelv1.DeleteGroupRequest{Group: "group-03"}); err != nil {
			t.Error(err)
		}
		l, err := b.client().ListGroups(t.Context(), &runnelv1.ListGroupsRequest{States: []runnelv1.GroupState{runnelv1.GroupState_GROUP_STATE_EMPTY}})
		if err != nil || len(l.GetGroups()) != 25 {
			t.Error(len(l.GetGroups()), err)
		}
		w.move(coordinator.Topic, 0, -1)
		if l, err := b.client().ListGroups(t.Context(), &runnelv1.ListGroupsRequest{}); err != nil || len(l.GetErrors()) != 1 {
			t.Errorf("with a partition that nobody leads: %v %v", l.GetErrors(), err)
		}
	})
}

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
