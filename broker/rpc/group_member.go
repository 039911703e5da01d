package rpc

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata"
)

// A localMembership is one that this broker coordinates.
type localMembership struct {
	svc     *GroupService
	m       *coordinator.Membership
	address string
	cancel  context.CancelFunc
	out     chan *runnelv1.JoinResponse
	// listening is the goroutine that fills out. It is the membership's alone: that may be of a client of another broker, whose stream
	// outlives those of this one's clients.
	listening sync.WaitGroup
	// owned is a report whose rest is still to come.
	owned map[group.Part]bool
}

// joinHere opens a membership of a group that this broker coordinates.
func (s *GroupService) joinHere(ctx context.Context, n int32, first *runnelv1.JoinRequest, address string) (joinPeer, error) {
	if err := group.CheckID(first.GetJoin().GetGroup()); err != nil {
		return nil, err
	}
	m, err := s.deps.Coordinator.Open(n, first.GetJoin().GetGroup())
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	l := &localMembership{svc: s, m: m, address: address, cancel: cancel, out: make(chan *runnelv1.JoinResponse)}
	l.listening.Go(func() { l.listen(ctx) })
	if err := l.say(ctx, first); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

func (l *localMembership) answers() <-chan *runnelv1.JoinResponse { return l.out }

func (l *localMembership) close() {
	l.m.Close()
	l.cancel()
	l.listening.Wait()
}

// listen spells what the coordinator has to say.
func (l *localMembership) listen(ctx context.Context) {
	defer close(l.out)
	for {
		news, err := l.m.Next(ctx)
		if err != nil {
			return
		}
		for _, resp := range l.svc.spell(news) {
			select {
			case l.out <- resp:
			case <-ctx.Done():
				return
			}
		}
		if news.End || news.Err != nil {
			return
		}
	}
}

// say hands a message to the coordinator.
func (l *localMembership) say(ctx context.Context, req *runnelv1.JoinRequest) error {
	switch e := req.GetEvent().(type) {
	case *runnelv1.JoinRequest_Join:
		id, err := idOf(e.Join.GetMemberId())
		if err != nil {
			return err
		}
		terms, err := l.svc.terms(e.Join, l.address)
		if err != nil {
			return err
		}
		return l.m.Join(ctx, id, e.Join.GetMemberEpoch(), terms, req.GetSequence())
	case *runnelv1.JoinRequest_Owned:
		return l.report(ctx, e.Owned, req.GetSequence())
	case *runnelv1.JoinRequest_Leave:
		return l.m.Leave(ctx, req.GetSequence())
	case nil:
		return l.m.Ping(ctx, req.GetSequence())
	default:
		return fmt.Errorf("%w: this version does not know the message", errUnsupported)
	}
}

// mostOwned bounds a report.
const mostOwned = 1 << 20

func (l *localMembership) report(ctx context.Context, o *runnelv1.OwnedPartitions, sequence uint64) error {
	if l.owned == nil {
		l.owned = map[group.Part]bool{}
	}
	for _, t := range o.GetTopics() {
		id, err := uuid.Parse(t.GetTopicId())
		if err != nil {
			return invalid("topic_id %.40q is none: take it from the Assignment", t.GetTopicId())
		}
		for _, n := range t.GetPartitions() {
			l.owned[group.Part{Topic: id, Number: n}] = true
		}
	}
	if len(l.owned) > mostOwned {
		return invalid("the report names more than %d partitions", mostOwned)
	}
	if o.GetMore() {
		return l.m.Ping(ctx, sequence)
	}
	owned := l.owned
	l.owned = nil
	return l.m.Own(ctx, o.GetRevision(), owned, sequence)
}

// terms reads what a member joins with.
func (s *GroupService) terms(j *runnelv1.JoinGroup, address string) (group.Terms, error) {
	cfg := s.deps.Coordinator.Config()
	t := group.Terms{
		Instance: j.GetInstanceId(), Topics: j.GetTopics(), Pattern: j.GetTopicPattern(), Assignor: group.Sticky, Rack: j.GetRack(),
		Session: cfg.SessionTimeout, Rebalance: cfg.RebalanceTimeout, ClientName: j.GetClientName(), ClientAddress: address,
	}
	if err := group.CheckID(j.GetGroup()); err != nil {
		return t, err
	}
	if _, err := idOf(j.GetMemberId()); err != nil {
		return t, err
	}
	if a := j.GetAssignor(); a != runnelv1.Assignor_ASSIGNOR_UNSPECIFIED {
		if _, known := runnelv1.Assignor_name[int32(a)]; !known {
			return t, invalid("assignor %d is unknown", a)
		}
		t.Assignor = group.Assignor(a) //nolint:gosec // a known one
	}
	for _, f := range []struct {
		name  string
		value string
	}{{"instance_id", t.Instance}, {"rack", t.Rack}, {"client_name", t.ClientName}} {
		if len(f.value) > mostName {
			return t, invalid("%s has %d bytes: want at most %d", f.name, len(f.value), mostName)
		}
	}
	var err error
	if t.Session, err = between("session_timeout", j.GetSessionTimeout(), t.Session, coordinator.MinSessionTimeout, coordinator.MaxSessionTimeout); err != nil {
		return t, err
	}
	if t.Rebalance, err = between("rebalance_timeout", j.GetRebalanceTimeout(), t.Rebalance, coordinator.MinRebalanceTimeout, coordinator.MaxRebalanceTimeout); err != nil {
		return t, err
	}
	if j.GetMemberEpoch() < 0 {
		return t, invalid("member_epoch %d: want 0, or the last one that was told", j.GetMemberEpoch())
	}
	return t, t.Check(metadata.CheckName)
}

// mostName is how many bytes the names may have that a member gives itself.
const mostName = 249

func between(name string, d *durationpb.Duration, def, least, most time.Duration) (time.Duration, error) {
	if d == nil {
		return def, nil
	}
	v := d.AsDuration()
	if d.CheckValid() != nil || v < least || v > most {
		return 0, invalid("%s %s: want a duration from %s to %s", name, v, least, most)
	}
	return v, nil
}

// spell turns news into messages.
func (s *GroupService) spell(n coordinator.News) []*runnelv1.JoinResponse {
	var out []*runnelv1.JoinResponse
	if j := n.Joined; j != nil {
		out = append(out, &runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Joined{Joined: &runnelv1.Joined{
			MemberId: j.Member, MemberEpoch: new(j.Epoch), SessionTimeout: durationpb.New(j.Session), RebalanceTimeout: durationpb.New(j.Rebalance),
			Resumed: j.Resumed,
		}}})
	}
	if n.Assignment != nil {
		for _, a := range s.spellAssignment(n.Assignment) {
			out = append(out, &runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Assignment{Assignment: a}})
		}
	}
	if n.Pong != nil {
		out = append(out, &runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Pong{Pong: &runnelv1.Pong{Sequence: *n.Pong}}})
	}
	if n.Err != nil {
		out = append(out, &runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Error{Error: s.errors.item(n.Err)}})
	}
	return out
}

// spellAssignment spells one, in pieces below a page.
func (s *GroupService) spellAssignment(a *coordinator.Assignment) []*runnelv1.Assignment {
	piece := func() *runnelv1.Assignment {
		return &runnelv1.Assignment{Revision: a.Revision, MemberEpoch: new(a.MemberEpoch)}
	}
	pieces := []*runnelv1.Assignment{piece()}
	var topic *runnelv1.TopicAssignment
	var last uuid.UUID
	size := 0
	for _, p := range a.Parts {
		if size > maxPage {
			pieces[len(pieces)-1].More = true
			pieces = append(pieces, piece())
			topic, size = nil, 0
		}
		if topic == nil || p.Part.Topic != last {
			last = p.Part.Topic
			topic = &runnelv1.TopicAssignment{Topic: s.nameOf(last), TopicId: last.String()}
			size += len(topic.GetTopic()) + 50
			at := pieces[len(pieces)-1]
			at.Topics = append(at.Topics, topic)
		}
		out := &runnelv1.PartitionAssignment{Partition: new(p.Part.Number), AssignmentEpoch: new(p.Epoch)}
		if c := p.Committed; c != nil {
			out.Offset, out.Metadata = new(c.Offset), c.Metadata
			if c.LeaderEpoch >= 0 {
				out.LeaderEpoch = new(c.LeaderEpoch)
			}
		}
		size += 40 + len(out.GetMetadata())
		topic.Partitions = append(topic.Partitions, out)
	}
	return pieces
}
