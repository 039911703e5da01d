package sim

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// A groupStage is a stage with one member of a group that reads the story's topic. What
// the member says takes the ways that the story tells of.
type groupStage struct {
	*stage

	watch    *groupWatch
	at       client.PartitionID
	member   string
	epoch    int64 // of the member
	begins   int64 // where its newest assignment lets it begin
	sequence uint64
	// coordinator and proxy are the places of the broker that coordinates, and of another.
	coordinator, proxy int
}

// playGroup plays a story about a group. Records are there, and the member has joined.
func playGroup(t *testing.T, story func(s *groupStage)) {
	t.Helper()
	play(t, setting{}, func(s *stage) {
		s.sent(0, 5)
		g := &groupStage{stage: s, watch: s.load.watch("story", s.topic), member: "5f0c3c9e-0c7b-4f0f-9a39-d8a3dbb0c001"}
		g.at = client.PartitionID{Topic: s.topic.name, Partition: s.key.Number}
		for o := range int64(5) {
			g.watch.parts[g.at].handed[o] = true
		}
		g.join(0)
		if !g.find() {
			t.Fatal("nobody coordinates the group")
		}
		story(g)
	})
}

// find finds who coordinates, if somebody does.
func (s *groupStage) find() bool {
	pic := s.picture()
	var parts []*state.Partition
	for k, p := range pic.partitions {
		if t := pic.topics[k.Topic]; t != nil && t.Name == coordinator.Topic {
			parts = append(parts, p)
		}
	}
	for _, p := range parts {
		for i := range s.r {
			if p.Number == coordinator.Number(s.watch.name, len(parts)) && s.id(i) == p.Leader {
				s.coordinator, s.proxy = i, (i+1)%len(s.r)
				return true
			}
		}
	}
	return false
}

// join has the member join through a broker as one that owns nothing, and waits until it has the
// partition.
func (s *groupStage) join(through int) {
	s.t.Helper()
	news := make(chan *runnelv1.Assignment, 10)
	conn := s.conns[s.id(through)]
	s.load.wg.Go(func() {
		stream, err := runnelv1.NewGroupServiceClient(conn).Join(s.load.ctx)
		if err != nil {
			return
		}
		_ = stream.Send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Join{Join: &runnelv1.JoinGroup{
			Group: s.watch.name, MemberId: s.member, Topics: []string{s.topic.name}, SessionTimeout: durationpb.New(time.Minute),
		}}})
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if a := m.GetAssignment(); len(a.GetTopics()) > 0 {
				news <- a
			}
		}
	})
	s.soon("the member has its partition", 20*time.Second, func() bool {
		select {
		case a := <-news:
			s.epoch, s.begins = a.GetMemberEpoch(), a.GetTopics()[0].GetPartitions()[0].GetOffset()
			return true
		default:
			return false
		}
	})
}

// A committing is a commit on its way.
type committing struct {
	done chan struct{}
	err  error
}

func (c *committing) over() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// commit has the member commit through a broker, over a stream of its own.
func (s *groupStage) commit(through int, offset int64) *committing {
	s.sequence++
	out := &committing{done: make(chan struct{})}
	req := &runnelv1.CommitRequest{
		Group: s.watch.name, MemberId: s.member, MemberEpoch: s.epoch, Sequence: s.sequence, Timeout: durationpb.New(time.Minute),
		Offsets: []*runnelv1.OffsetCommit{{Topic: s.topic.name, TopicId: &s.topic.id, Partition: s.at.Partition, Offset: offset}},
	}
	conn := s.conns[s.id(through)]
	s.load.wg.Go(func() {
		defer close(out.done)
		if out.err = commitOnce(s.load.ctx, conn, req); out.err == nil {
			s.watch.told(s.at, s.member, offset)
		}
	})
	return out
}

func commitOnce(ctx context.Context, conn grpc.ClientConnInterface, req *runnelv1.CommitRequest) error {
	stream, err := runnelv1.NewLogServiceClient(conn).Commit(ctx)
	if err != nil {
		return err
	}
	if err := stream.Send(req); err != nil {
		return err
	}
	m, err := stream.Recv()
	if err != nil {
		return err
	}
	for _, item := range []*runnelv1.ItemError{m.GetError(), m.GetResults()[0].GetError()} {
		if item != nil {
			return rpcerr.ItemStatus(item).Err()
		}
	}
	return stream.CloseSend()
}

// committed commits, and waits until that is answered.
func (s *groupStage) committed(through int, offset int64) {
	s.t.Helper()
	c := s.commit(through, offset)
	s.soon("a commit was answered", 5*time.Second, c.over)
	if c.err != nil {
		s.t.Errorf("the story does not go on: offset %d was not committed: %v", offset, c.err)
	}
}

// looks compares what a broker tells to be committed with what the member was told. It
// returns why it tells nothing.
func (s *groupStage) looks(through int) error {
	s.t.Helper()
	before := s.watch.committed()
	type answer struct {
		now map[client.PartitionID]int64
		err error
	}
	got := make(chan answer, 1)
	s.load.wg.Go(func() {
		now, err := s.watch.fetch(s.load.ctx, int(s.id(through)))
		got <- answer{now, err}
	})
	s.soon("the offsets were told", 5*time.Second, func() bool { return len(got) > 0 })
	a := <-got
	if a.err == nil {
		s.watch.compare(before, a.now)
	}
	return a.err
}

// sees is looks, at who coordinates.
func (s *groupStage) sees() {
	s.t.Helper()
	if err := s.looks(s.coordinator); err != nil {
		s.t.Errorf("the story does not go on: %v", err)
	}
}

// late has the member commit through the proxy. What goes from there to the coordinator at this
// moment arrives seconds later than what follows it over other connections, as if it had been
// lost once or twice.
func (s *groupStage) late(offset int64) *committing {
	s.committed(s.proxy, 1)           // which has heard now where the records end, and does not ask again
	s.stepFor(100 * time.Millisecond) // and the copies have said all they had to say
	heal := s.lasting(s.net.delay(3*time.Second, link{s.r[s.proxy].name, s.r[s.coordinator].name}))
	out := s.commit(s.proxy, offset)
	s.stepFor(5 * time.Millisecond)
	heal()
	return out
}

// A commit that is held up, and is made again over another stream, comes after the next
// one: it sets nothing back. The broker that it went through does not know that
// nobody waits for it any more.
func TestStoryCommitComesLate(t *testing.T) {
	playGroup(t, func(s *groupStage) {
		late := s.late(2)
		s.committed(s.coordinator, 2)
		s.committed(s.coordinator, 4)
		if late.over() {
			s.t.Log("the commit was not late")
		}
		s.soon("the late one was answered", 5*time.Second, late.over)
		s.sees()
	})
}

// A member that took all it had for lost joins again, and goes on from what is committed by
// then. A commit of before that comes after this would be undone by its next one: it is
// refused.
func TestStoryCommitOfALostPartition(t *testing.T) {
	playGroup(t, func(s *groupStage) {
		late := s.late(4)
		s.join(s.coordinator)
		if s.begins != 1 {
			s.t.Errorf("it begins with offset %d", s.begins)
		}
		s.soon("the late one was answered", 5*time.Second, late.over)
		s.committed(s.coordinator, 2)
		s.sees()
	})
}

// A commit is answered when the next coordinator will have it, and not before.
func TestStoryCommitIsReplicated(t *testing.T) {
	playGroup(t, func(s *groupStage) {
		s.committed(s.coordinator, 1)
		s.isolate(s.coordinator)
		first := s.coordinator
		s.commit(first, 3)
		s.stepFor(500 * time.Millisecond)
		s.r[first].kill()
		s.soon("another one coordinates", 10*time.Second, func() bool { return s.find() && s.coordinator != first })
		s.stepFor(time.Second)
		s.sees()
	})
}

// A coordinator that was cut off and replaced tells nobody what was committed before, while its followers'
// last answers still make it believe in itself.
func TestStoryOffsetsAreNeverOld(t *testing.T) {
	playGroup(t, func(s *groupStage) {
		s.committed(s.coordinator, 1)
		first := s.coordinator
		s.outlaw(first) // only its followers answer
		s.stepFor(2500 * time.Millisecond)
		s.isolate(first)
		s.soon("another one coordinates", 10*time.Second, func() bool { return s.find() && s.coordinator != first })
		s.committed(s.coordinator, 4)
		if err := s.looks(first); err == nil {
			s.t.Error("it tells what is committed, though nobody confirms it")
		}
		s.sees()
	})
}
