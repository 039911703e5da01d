package rpc

import (
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
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
