package proc

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A groupBoard is what all members of a group together believe.
type groupBoard struct {
	conns []*grpc.ClientConn
	topic string

	// mu guards the fields below
	mu sync.Mutex

	owner map[int32]string // who works on each partition
	// acked is the highest offset whose commit was acknowledged, at when the last
	// one was.
	acked map[int32]int64
	at    map[int32]time.Time
	// moves counts the partitions that members were given or had to give up, via has
	// the turn in which each member was welcomed last.
	moves      int
	via        map[string]int
	violations []string
}

func newGroupBoard(topic string) *groupBoard {
	return &groupBoard{topic: topic, owner: map[int32]string{}, acked: map[int32]int64{}, at: map[int32]time.Time{}, via: map[string]int{}}
}

// dial returns another connection to a node.
func (b *groupBoard) dial(t *testing.T, n *Node) *grpc.ClientConn {
	t.Helper()
	conn := must[*grpc.ClientConn](t)(grpc.NewClient(n.Client, grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (b *groupBoard) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.violations = append(b.violations, fmt.Sprintf(format, args...))
}

func (b *groupBoard) take(n int32, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was := b.owner[n]; was != "" && was != id {
		b.violations = append(b.violations, fmt.Sprintf("partition %d: %s works on it, and %s begins to", n, was, id))
	}
	b.owner[n] = id
	b.moves++
}

func (b *groupBoard) drop(n int32, id string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.owner[n] == id {
		delete(b.owner, n)
		b.moves++
	}
}

func (b *groupBoard) welcomed(id string, turn int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.via[id] = turn
}

// since returns how many partitions have had a commit acknowledged after t.
func (b *groupBoard) since(t time.Time) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.at {
		if at.After(t) {
			n++
		}
	}
	return n
}

// A groupStub is a member with nothing but generated code.
type groupStub struct {
	board *groupBoard
	id    string
	// conns are where its streams go, in turn.
	conns []*grpc.ClientConn
	turn  int
	epoch int64
	// owned has the next offset to commit of each partition, and the epoch of its
	// assignment.
	owned map[int32]*stubPart
	lost  int  // times it had to begin anew
	idle  bool // it commits nothing
	pace  time.Duration
}

type stubPart struct {
	assigned, next int64
}

// run is a member until ctx is done.
func (m *groupStub) run(ctx context.Context) {
	for ctx.Err() == nil {
		m.session(ctx)
		m.turn++
		pause := time.NewTimer(20 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

func (m *groupStub) conn() *grpc.ClientConn { return m.conns[m.turn%len(m.conns)] }

// session is one stream, to one broker.
func (m *groupStub) session(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := runnelv1.NewGroupServiceClient(m.conn()).Join(ctx)
	if err != nil {
		return
	}
	_ = stream.Send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Join{Join: &runnelv1.JoinGroup{
		Group: "readers", MemberId: m.id, MemberEpoch: &m.epoch, Topics: []string{m.board.topic},
	}}})
	answers := make(chan *runnelv1.JoinResponse)
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer cancel()
	receiver.Go(func() {
		defer close(answers)
		for {
			r, err := stream.Recv()
			if err != nil {
				return
			}
			select {
			case answers <- r:
			case <-ctx.Done():
				return
			}
		}
	})
	work := time.NewTicker(max(m.pace, 20*time.Millisecond))
	defer work.Stop()
	ping := time.NewTicker(time.Second)
	defer ping.Stop()
	for {
		select {
		case r, ok := <-answers:
			if !ok || !m.heed(r, stream) {
				return
			}
		case <-work.C:
			m.work(ctx)
		case <-ping.C:
			_ = stream.Send(&runnelv1.JoinRequest{})
		case <-ctx.Done():
			return
		}
	}
}

// heed does what the coordinator says; false: the stream is over.
func (m *groupStub) heed(r *runnelv1.JoinResponse, stream runnelv1.GroupService_JoinClient) bool {
	switch e := r.GetEvent().(type) {
	case *runnelv1.JoinResponse_Joined:
		m.epoch = e.Joined.GetMemberEpoch()
		m.board.welcomed(m.id, m.turn)
	case *runnelv1.JoinResponse_Assignment:
		m.epoch = e.Assignment.GetMemberEpoch()
		m.assign(e.Assignment)
		owned := &runnelv1.TopicPartitions{}
		for n := range m.owned {
			owned.Partitions = append(owned.Partitions, n)
		}
		report := &runnelv1.OwnedPartitions{Revision: e.Assignment.GetRevision()}
		if len(e.Assignment.GetTopics()) > 0 {
			owned.TopicId = e.Assignment.GetTopics()[0].GetTopicId()
			report.Topics = []*runnelv1.TopicPartitions{owned}
		}
		_ = stream.Send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Owned{Owned: report}})
	case *runnelv1.JoinResponse_Error:
		switch e.Error.GetReason() {
		case runnelv1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER_EPOCH, runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER:
			m.lost++
			for n := range m.owned {
				m.board.drop(n, m.id)
			}
			m.owned, m.epoch = map[int32]*stubPart{}, 0
		default: // another stream goes on
		}
		return false
	case *runnelv1.JoinResponse_Goaway:
		return false
	}
	return true
}

func (m *groupStub) assign(a *runnelv1.Assignment) {
	now := map[int32]*runnelv1.PartitionAssignment{}
	for _, t := range a.GetTopics() {
		for _, p := range t.GetPartitions() {
			now[p.GetPartition()] = p
		}
	}
	for n, p := range m.owned {
		if want := now[n]; want == nil || want.GetAssignmentEpoch() != p.assigned {
			delete(m.owned, n)
			m.board.drop(n, m.id)
		}
	}
	for n, p := range now {
		if m.owned[n] != nil {
			continue
		}
		m.board.take(n, m.id)
		m.owned[n] = &stubPart{assigned: p.GetAssignmentEpoch(), next: p.GetOffset() + 1}
		m.board.mu.Lock()
		acked := m.board.acked[n]
		m.board.mu.Unlock()
		if p.GetOffset() < acked {
			m.board.complain("partition %d: %d was acknowledged, and %s is to begin at %d", n, acked, m.id, p.GetOffset())
		}
	}
}

// work commits one offset more of each partition.
func (m *groupStub) work(ctx context.Context) {
	if len(m.owned) == 0 || m.idle {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	stream, err := runnelv1.NewLogServiceClient(m.conn()).Commit(ctx)
	if err != nil {
		return
	}
	req := &runnelv1.CommitRequest{Group: "readers", MemberId: m.id, MemberEpoch: m.epoch}
	for n, p := range m.owned {
		req.Offsets = append(req.Offsets, &runnelv1.OffsetCommit{Topic: m.board.topic, Partition: n, Offset: p.next})
	}
	_ = stream.Send(req)
	_ = stream.CloseSend()
	resp, err := stream.Recv()
	if err != nil {
		return
	}
	for _, r := range resp.GetResults() {
		if r.GetError() != nil {
			continue
		}
		n := r.GetPartition()
		m.board.mu.Lock()
		m.board.acked[n] = max(m.board.acked[n], r.GetOffset())
		m.board.at[n] = time.Now()
		m.board.mu.Unlock()
		m.owned[n].next = r.GetOffset() + 1
	}
}

// The broker that coordinates a group is killed, and then stopped, under it:
// nobody loses a
// partition, none has two owners, no acknowledged commit is missing.
func TestGroups_coordinatorKilled(t *testing.T) {
	t.Parallel()
	const partitions, members = 12, 6
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	b := newGroupBoard("work")
	for _, n := range g.Brokers {
		b.conns = append(b.conns, b.dial(t, n))
	}
	ctx := t.Context()
	_ = must[*runnelv1.CreateTopicsResponse](t)(runnelv1.NewAdminServiceClient(b.conns[0]).CreateTopics(ctx, &runnelv1.CreateTopicsRequest{
		Topics: []*runnelv1.NewTopic{{Name: b.topic, Partitions: new(int32(partitions)), ReplicationFactor: new(int32(3))}},
	}))
	values := make([]*runnelv1.ProduceTextRecord, 5000)
	for i := range values {
		values[i] = &runnelv1.ProduceTextRecord{Value: new("v")}
	}
	for n := range int32(partitions) {
		_ = must[*runnelv1.AppendResponse](t)(runnelv1.NewLogServiceClient(b.conns[0]).Append(ctx, &runnelv1.AppendRequest{
			Request: &runnelv1.ProduceRequest{Topic: b.topic, Partition: &n, TextRecords: values},
		}))
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	stubs := make([]*groupStub, members)
	for i := range stubs {
		stubs[i] = &groupStub{board: b, id: uuid.NewString(), conns: b.conns, turn: i, owned: map[int32]*stubPart{}}
		all.Go(func() { stubs[i].run(run) })
	}
	other := b.conns[0]
	began := time.Now()
	settled := func(conn *grpc.ClientConn) *runnelv1.DescribeGroupResponse {
		t.Helper()
		var d *runnelv1.DescribeGroupResponse
		deadline := time.Now().Add(30 * time.Second)
		var committed int
		unknown := func(p *runnelv1.GroupPartition) bool { return p.LagRecords == nil } // its leader may be slow to tell
		for ok := false; !ok; ok = d.GetState() == runnelv1.GroupState_GROUP_STATE_STABLE && len(d.GetMembers()) == members && committed == partitions &&
			!slices.ContainsFunc(d.GetPartitions(), unknown) {
			if time.Now().After(deadline) {
				t.Fatalf("the group does not come to rest: %d partitions have commits, %v", b.since(began), d)
			}
			pause := time.NewTimer(10 * time.Millisecond)
			<-pause.C
			committed = b.since(began) // first: so that the description shows them
			d, _ = runnelv1.NewGroupServiceClient(conn).DescribeGroup(ctx, &runnelv1.DescribeGroupRequest{Group: "readers"})
		}
		return d
	}
	before := settled(other)
	for _, p := range before.GetPartitions() {
		if p.LagRecords == nil || p.GetLagRecords() > 5000 || p.GetHighWatermark() != 5000 {
			t.Errorf("lag of %v", p)
		}
	}
	for _, how := range []string{"killed", "stopped"} {
		victim := before.GetCoordinator()
		other = b.conns[victim%3] // the next one
		began = time.Now()
		if how == "killed" {
			g.Brokers[victim-1].Kill()
		} else {
			g.Brokers[victim-1].stop(t)
		}
		after := settled(other)
		t.Logf("broker %d, the coordinator, %s: every partition has commits again after %v", victim, how, time.Since(began).Round(time.Millisecond))
		if after.GetGroupEpoch() != before.GetGroupEpoch() || after.GetCoordinator() == victim {
			t.Errorf("%s: group epoch %d after %d, coordinator %d after %d", how, after.GetGroupEpoch(), before.GetGroupEpoch(), after.GetCoordinator(), victim)
		}
		for i, p := range after.GetPartitions() {
			if q := before.GetPartitions()[i]; p.GetMemberId() != q.GetMemberId() || p.GetAssignmentEpoch() != q.GetAssignmentEpoch() {
				t.Errorf("%s: partition %d moved", how, p.GetPartition())
			}
		}
		before = after
		if how == "killed" {
			g.Brokers[victim-1].restart(t)
			began = time.Now()
			before = settled(other)
		}
	}
	stop()
	all.Wait()
	f := must[*runnelv1.FetchOffsetsResponse](t)(runnelv1.NewGroupServiceClient(other).FetchOffsets(ctx, &runnelv1.FetchOffsetsRequest{Group: "readers"}))
	for _, o := range f.GetOffsets() {
		if o.GetOffset() < b.acked[o.GetPartition()] {
			t.Errorf("partition %d: %d was acknowledged, %d is committed", o.GetPartition(), b.acked[o.GetPartition()], o.GetOffset())
		}
	}
	for _, m := range stubs {
		if m.lost > 0 {
			t.Errorf("member %s had to begin anew %d times", m.id, m.lost)
		}
	}
	for _, v := range b.violations {
		t.Error(v)
	}
}

// A thousand members of a topic with a thousand partitions find their places: all
// but the first come at once, and take from who is there.
func TestGroups_thousandMembers(t *testing.T) {
	if !whole() {
		t.Skip("a part of make e2e: it makes a thousand partitions")
	}
	const members = 1000
	n := dev(t, Dev{})
	b := newGroupBoard("wide")
	for range 4 {
		b.conns = append(b.conns, b.dial(t, n))
	}
	ctx := t.Context()
	_ = must[*runnelv1.CreateTopicsResponse](t)(runnelv1.NewAdminServiceClient(b.conns[0]).CreateTopics(ctx, &runnelv1.CreateTopicsRequest{
		Topics: []*runnelv1.NewTopic{{Name: b.topic, Partitions: new(int32(members))}},
	}))
	var all sync.WaitGroup
	defer all.Wait()
	stops := make([]context.CancelFunc, members)
	start := func(i int) {
		var run context.Context
		run, stops[i] = context.WithCancel(ctx)
		m := &groupStub{board: b, id: uuid.NewString(), conns: b.conns, turn: i, owned: map[int32]*stubPart{}, idle: true}
		all.Go(func() { m.run(run) })
	}
	defer func() {
		for _, stop := range stops {
			stop()
		}
	}()
	settled := func(want int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			d, err := runnelv1.NewGroupServiceClient(b.conns[0]).DescribeGroup(ctx, &runnelv1.DescribeGroupRequest{Group: "readers"})
			if err == nil && d.GetState() == runnelv1.GroupState_GROUP_STATE_STABLE && len(d.GetMembers()) == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%v, %d members: %v", d.GetState(), len(d.GetMembers()), err)
			}
			pause := time.NewTimer(20 * time.Millisecond)
			<-pause.C
		}
	}
	start(0)
	settled(1) // the topic of the groups is there
	began := time.Now()
	for i := 1; i < members; i++ {
		start(i)
	}
	settled(members)
	t.Logf("%d members have one partition each after %v", members, time.Since(began).Round(time.Millisecond))
	for _, v := range b.violations {
		t.Error(v)
	}
}
