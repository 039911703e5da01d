package proc

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A broker that carries the streams of a whole group, and does not coordinate it, is
// stopped in order and started again, and then another one that carries them by
// then is killed: every member goes on with what it has, and nothing moves.
func TestGroups_proxyRestarts(t *testing.T) {
	t.Parallel()
	members, pace := 50, 100*time.Millisecond
	if whole() {
		members, pace = 1000, 2*time.Second
	}
	const records = 1000
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	ctx := t.Context()
	b := newGroupBoard("work")
	for _, n := range g.Brokers {
		b.conns = append(b.conns, b.dial(t, n))
	}
	// All partitions have their records before the members come.
	_ = must[*runnelv1.CreateTopicsResponse](t)(runnelv1.NewAdminServiceClient(b.conns[0]).CreateTopics(ctx, &runnelv1.CreateTopicsRequest{
		Topics: []*runnelv1.NewTopic{{Name: b.topic, Partitions: new(int32(members)), ReplicationFactor: new(int32(3))}},
	}))
	values := make([]*runnelv1.ProduceTextRecord, records)
	for i := range values {
		values[i] = &runnelv1.ProduceTextRecord{Value: new("v")}
	}
	for n := range int32(members) { //nolint:gosec // few
		_ = must[*runnelv1.AppendResponse](t)(runnelv1.NewLogServiceClient(b.conns[0]).Append(ctx, &runnelv1.AppendRequest{
			Request: &runnelv1.ProduceRequest{Topic: b.topic, Partition: &n, TextRecords: values},
		}))
	}
	coordinator := coordinatorOf(t, b, "readers")
	first, second := g.Brokers[coordinator%3], g.Brokers[(coordinator+1)%3]
	const share = 250 // streams of a connection
	var conns [][]*grpc.ClientConn
	for range (members + share - 1) / share {
		conns = append(conns, []*grpc.ClientConn{b.dial(t, first), b.dial(t, second)})
	}
	run, stop := context.WithCancel(ctx)
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	stubs := make([]*groupStub, members)
	for i := range stubs {
		stubs[i] = &groupStub{board: b, id: uuid.NewString(), conns: conns[i/share], owned: map[int32]*stubPart{}, pace: pace}
		all.Go(func() { stubs[i].run(run) })
	}
	asked := b.conns[coordinator-1]
	// settled waits until all members are at rest, with their streams over one broker,
	// and every partition has a commit that is newer than since.
	settled := func(via *Node, since time.Time) *runnelv1.DescribeGroupResponse {
		t.Helper()
		var d *runnelv1.DescribeGroupResponse
		eventually(t, "all members are at rest, by way of "+via.Name, func() bool {
			turn := 0
			if via == second {
				turn = 1
			}
			if b.since(since) < members || b.carried(2, turn) < members {
				return false
			}
			d, _ = runnelv1.NewGroupServiceClient(asked).DescribeGroup(ctx, &runnelv1.DescribeGroupRequest{Group: "readers", PageSize: new(int32(5000))})
			return d.GetState() == runnelv1.GroupState_GROUP_STATE_STABLE && len(d.GetMembers()) == members && connected(d) == members
		})
		return d
	}
	before := settled(first, time.Now())
	for _, step := range []struct {
		how string
		end func(*Node)
		// The streams are carried by from, and then by to.
		from, to *Node
	}{
		{"stopped", func(n *Node) { n.stop(t) }, first, second},
		{"killed", (*Node).Kill, second, first},
	} {
		b.mu.Lock()
		moves := b.moves
		b.mu.Unlock()
		began := time.Now()
		step.end(step.from)
		_ = settled(step.to, began)
		took := time.Since(began)
		step.from.restart(t)
		after := settled(step.to, time.Now())
		b.mu.Lock()
		moves = b.moves - moves
		b.mu.Unlock()
		t.Logf("%s, which carried %d members, %s: all have committed by way of another broker after %v; moves: %d", step.from.Name, members, step.how, took.Round(time.Millisecond), moves)
		if moves != 0 || after.GetGroupEpoch() != before.GetGroupEpoch() || after.GetCoordinator() != coordinator {
			t.Errorf("%s: members were given or gave up %d partitions; group epoch %d after %d, coordinator %d after %d",
				step.how, moves, after.GetGroupEpoch(), before.GetGroupEpoch(), after.GetCoordinator(), coordinator)
		}
		for i, p := range after.GetPartitions() {
			if q := before.GetPartitions()[i]; p.GetMemberId() != q.GetMemberId() || p.GetAssignmentEpoch() != q.GetAssignmentEpoch() || p.GetCommittedOffset() <= q.GetCommittedOffset() {
				t.Errorf("%s: partition %d: %v, and then %v", step.how, p.GetPartition(), q, p)
			}
		}
		before = after
	}
	stop()
	all.Wait()
	for _, m := range stubs {
		if m.lost > 0 {
			t.Errorf("member %s had to begin anew %d times", m.id, m.lost)
		}
	}
	for _, v := range b.violations {
		t.Error(v)
	}
}

// coordinatorOf has a group made by committing to a partition of the board's topic,
// and returns which broker coordinates it.
func coordinatorOf(t *testing.T, b *groupBoard, group string) (id int32) {
	t.Helper()
	ctx := t.Context()
	eventually(t, "there is a coordinator", func() bool {
		stream, err := runnelv1.NewLogServiceClient(b.conns[0]).Commit(ctx)
		if err != nil {
			return false
		}
		_ = stream.Send(&runnelv1.CommitRequest{Group: group, Offsets: []*runnelv1.OffsetCommit{{Topic: b.topic}}})
		_ = stream.CloseSend()
		_, _ = stream.Recv()
		d, err := runnelv1.NewGroupServiceClient(b.conns[0]).DescribeGroup(ctx, &runnelv1.DescribeGroupRequest{Group: group})
		id = d.GetCoordinator()
		return err == nil && id > 0
	})
	return id
}

// connected counts the members that have a stream.
func connected(d *runnelv1.DescribeGroupResponse) (n int) {
	for _, m := range d.GetMembers() {
		if m.GetConnected() {
			n++
		}
	}
	return n
}

// carried counts the members that were welcomed last in the given one of so many
// turns.
func (b *groupBoard) carried(of, turn int) (n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, at := range b.via {
		if at%of == turn {
			n++
		}
	}
	return n
}
