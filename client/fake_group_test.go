package client_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A fakeGroup is the coordinator of the one group of a fakeBroker. It hands
// partitions over one at a time, fences commits as the real one does, and fails as
// it is told.
type fakeGroup struct {
	runnelv1.UnimplementedGroupServiceServer

	f       *fakeBroker
	readers sync.WaitGroup

	// mu guards the fields below
	mu sync.Mutex

	topics  []string // all partitions of these are divided
	members map[string]*fakeMember
	order   []string // members, as they joined
	parts   map[fakeKey]*fakeOwned
	epoch   int64
	streams int
	joins   []*runnelv1.JoinGroup
	commits int
	leaves  int
	back    []string // commits that went back
	double  []string // partitions that a second member was given
	mute    bool     // nothing is answered, and nothing that is said heard
	// onJoin may end the nth stream with an error of the membership or of the call,
	// onCommit answer the nth commit with one.
	onJoin   func(n int, j *runnelv1.JoinGroup) (*runnelv1.ItemError, error)
	onCommit func(n int, req *runnelv1.CommitRequest) (*runnelv1.ItemError, error)
	changed  chan struct{}
	// onCommitted is told of what the nth Commit stream is to be answered, and says
	// whether it is; or ends the stream.
	onCommitted func(n int, resp *runnelv1.CommitResponse) (answer bool, err error)
	// coordinator is the address of the node that commits go to; "": any.
	coordinator   string
	commitStreams []string // by the addresses of their nodes
	openCommits   int
	signs         int // empty messages on them
}

type fakeKey struct {
	topic string
	n     int32
}

type fakeMember struct {
	id       string
	epoch    int64
	out      chan *runnelv1.JoinResponse // of its stream; nil: none
	over     chan struct{}               // closed when another stream took its place
	revision uint64
	given    map[fakeKey]int64 // the last Assignment
}

type fakeOwned struct {
	owner     string
	epoch     int64
	committed int64 // -1: nothing
	pinned    string
}

func newFakeGroup(t *testing.T, topics map[string]int) *fakeGroup {
	t.Helper()
	f := emptyFake()
	g := &fakeGroup{f: f, members: map[string]*fakeMember{}, parts: map[fakeKey]*fakeOwned{}, changed: make(chan struct{})}
	f.group = g
	f.addNode(t, "broker:7420", true)
	for name, n := range topics {
		f.create(name, n)
		g.topics = append(g.topics, name)
		for i := range n {
			g.parts[fakeKey{name, int32(i)}] = &fakeOwned{committed: -1}
		}
	}
	t.Cleanup(func() {
		if len(g.back) > 0 || len(g.double) > 0 {
			t.Errorf("offsets that went back: %v; owned twice: %v", g.back, g.double)
		}
	})
	return g
}

// with runs fn while nothing else of g does, and then divides anew.
func (g *fakeGroup) with(fn func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	fn()
	g.divide()
}

// expel forgets a member, and tells it when it is connected.
func (g *fakeGroup) expel(id string, tell bool) {
	g.with(func() {
		m := g.members[id]
		if m == nil {
			return
		}
		g.remove(m)
		if tell && m.out != nil {
			m.out <- &runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Error{Error: item(runnelv1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, codes.NotFound)}}
		}
	})
}

func (g *fakeGroup) remove(m *fakeMember) {
	delete(g.members, m.id)
	g.order = slices.DeleteFunc(g.order, func(id string) bool { return id == m.id })
	for _, p := range g.parts {
		if p.owner == m.id {
			p.owner = ""
		}
	}
}

func (g *fakeGroup) keys() []fakeKey {
	keys := slices.Collect(maps.Keys(g.parts))
	slices.SortFunc(keys, func(a, b fakeKey) int {
		if a.topic != b.topic {
			if a.topic < b.topic {
				return -1
			}
			return 1
		}
		return int(a.n - b.n)
	})
	return keys
}

// divide sends every member what it may have now.
func (g *fakeGroup) divide() {
	if g.mute {
		return
	}
	want := map[string]map[fakeKey]int64{}
	for i, key := range g.keys() {
		p := g.parts[key]
		if len(g.order) == 0 {
			continue
		}
		to := g.order[i%len(g.order)]
		if p.pinned != "" {
			to = p.pinned
		}
		if p.owner == "" && g.members[to] != nil && g.members[to].out != nil {
			p.owner = to
			g.epoch++
			p.epoch = g.epoch
		}
		if p.owner == to {
			if want[to] == nil {
				want[to] = map[fakeKey]int64{}
			}
			want[to][key] = p.epoch
		}
	}
	for _, id := range g.order {
		m := g.members[id]
		if m.out == nil || m.revision > 0 && maps.Equal(want[id], m.given) {
			continue
		}
		g.assign(m, want[id])
	}
}

func (g *fakeGroup) assign(m *fakeMember, parts map[fakeKey]int64) {
	m.revision++
	m.given = parts
	m.epoch = g.epoch
	a := &runnelv1.Assignment{Revision: m.revision, MemberEpoch: new(m.epoch)}
	topics := map[string]*runnelv1.TopicAssignment{}
	for _, key := range g.keys() {
		if _, ok := parts[key]; !ok {
			continue
		}
		ta := topics[key.topic]
		if ta == nil {
			ta = &runnelv1.TopicAssignment{Topic: key.topic, TopicId: g.f.topicID(key.topic)}
			topics[key.topic] = ta
			a.Topics = append(a.Topics, ta)
		}
		pa := &runnelv1.PartitionAssignment{Partition: new(key.n), AssignmentEpoch: new(parts[key])}
		if p := g.parts[key]; p.committed >= 0 {
			pa.Offset = new(p.committed)
		}
		ta.Partitions = append(ta.Partitions, pa)
	}
	m.out <- &runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Assignment{Assignment: a}}
}

func (f *fakeBroker) topicID(name string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if t := f.topics[name]; t != nil {
		return t.id
	}
	return "" // it is forgotten
}

// Join implements runnelv1.GroupServiceServer.
func (g *fakeGroup) Join(s grpc.BidiStreamingServer[runnelv1.JoinRequest, runnelv1.JoinResponse]) error {
	first, err := s.Recv()
	if err != nil {
		return err
	}
	j := first.GetJoin()
	g.mu.Lock()
	g.streams++
	g.joins = append(g.joins, j)
	if g.onJoin != nil {
		it, err := g.onJoin(g.streams, j)
		if err != nil {
			g.mu.Unlock()
			return err
		}
		if it != nil {
			g.mu.Unlock()
			return s.Send(&runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Error{Error: it}})
		}
	}
	m := g.members[j.GetMemberId()]
	if j.GetMemberEpoch() > 0 && m == nil {
		g.mu.Unlock()
		return s.Send(&runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Error{Error: item(runnelv1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, codes.NotFound)}})
	}
	resumed := m != nil && j.GetMemberEpoch() > 0
	if m != nil && !resumed {
		g.remove(m)
		m = nil
	}
	if m == nil {
		g.epoch++
		m = &fakeMember{id: j.GetMemberId(), epoch: g.epoch}
		g.members[m.id] = m
		g.order = append(g.order, m.id)
	}
	if m.over != nil {
		close(m.over)
	}
	out, over := make(chan *runnelv1.JoinResponse, 1000), make(chan struct{})
	m.out, m.over, m.revision, m.given = out, over, 0, nil
	session := j.GetSessionTimeout()
	if session == nil {
		session = durationpb.New(defaultSession)
	}
	rebalance := j.GetRebalanceTimeout()
	out <- &runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Joined{Joined: &runnelv1.Joined{
		MemberId: m.id, MemberEpoch: new(m.epoch), SessionTimeout: session, RebalanceTimeout: rebalance, Resumed: resumed,
	}}}
	g.pong(out, first)
	g.divide()
	g.mu.Unlock()
	ended := make(chan struct{})
	g.readers.Go(func() {
		defer close(ended)
		for {
			req, err := s.Recv()
			if err != nil {
				return
			}
			if g.hear(m, out, req) {
				return
			}
		}
	})
	return g.talk(s, m, out, over, ended)
}

// A fakeGroupNode is how a node passes on to the coordinator what it gets.
type fakeGroupNode struct {
	*fakeGroup

	d *fakeNode
}

// Join implements runnelv1.GroupServiceServer.
func (n fakeGroupNode) Join(s grpc.BidiStreamingServer[runnelv1.JoinRequest, runnelv1.JoinResponse]) error {
	return n.fakeGroup.Join(fakeJoin{s, n.d})
}

// A fakeJoin stands still while its node is frozen.
type fakeJoin struct {
	grpc.BidiStreamingServer[runnelv1.JoinRequest, runnelv1.JoinResponse]

	d *fakeNode
}

func (j fakeJoin) Recv() (*runnelv1.JoinRequest, error) {
	req, err := j.BidiStreamingServer.Recv()
	if err == nil {
		err = j.d.stuck(j.Context())
	}
	return req, err
}

func (j fakeJoin) Send(resp *runnelv1.JoinResponse) error {
	if err := j.d.stuck(j.Context()); err != nil {
		return err
	}
	return j.BidiStreamingServer.Send(resp)
}

func (g *fakeGroup) talk(s grpc.BidiStreamingServer[runnelv1.JoinRequest, runnelv1.JoinResponse], m *fakeMember, out chan *runnelv1.JoinResponse, over, ended chan struct{}) error {
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		if m.out == out {
			m.out = nil
		}
	}()
	for {
		select {
		case r := <-out:
			g.mu.Lock()
			mute := g.mute
			g.mu.Unlock()
			if mute {
				continue
			}
			if err := s.Send(r); err != nil {
				return err
			}
			if r.GetError() != nil {
				return nil
			}
		case <-over:
			return nil
		case <-ended:
			return nil
		case <-s.Context().Done():
			return s.Context().Err()
		}
	}
}

func (g *fakeGroup) pong(out chan *runnelv1.JoinResponse, req *runnelv1.JoinRequest) {
	out <- &runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Pong{Pong: &runnelv1.Pong{Sequence: req.GetSequence()}}}
}

// hear takes one message of a member. It is true when it leaves.
func (g *fakeGroup) hear(m *fakeMember, out chan *runnelv1.JoinResponse, req *runnelv1.JoinRequest) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.mute {
		return false
	}
	g.pong(out, req)
	switch e := req.GetEvent().(type) {
	case *runnelv1.JoinRequest_Leave:
		g.leaves++
		if g.members[m.id] == m {
			g.remove(m)
		}
		g.divide()
		return true
	case *runnelv1.JoinRequest_Owned:
		if g.members[m.id] != m || e.Owned.GetRevision() != m.revision {
			break
		}
		has := map[fakeKey]bool{}
		for _, tp := range e.Owned.GetTopics() {
			for _, n := range tp.GetPartitions() {
				for _, topic := range g.topics {
					if g.f.topicID(topic) == tp.GetTopicId() {
						has[fakeKey{topic, n}] = true
					}
				}
			}
		}
		for key, p := range g.parts {
			if _, given := m.given[key]; p.owner == m.id && !given && !has[key] {
				p.owner = ""
			}
		}
		g.divide()
	}
	close(g.changed)
	g.changed = make(chan struct{})
	return false
}

// Commit implements runnelv1.LogServiceServer.
func (d *fakeNode) Commit(s grpc.BidiStreamingServer[runnelv1.CommitRequest, runnelv1.CommitResponse]) error {
	g := d.group
	g.mu.Lock()
	g.commitStreams = append(g.commitStreams, d.addr)
	g.openCommits++
	number := len(g.commitStreams)
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		g.openCommits--
		g.mu.Unlock()
	}()
	for {
		req, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if req.GetGroup() == "" {
			g.mu.Lock()
			g.signs++
			g.mu.Unlock()
			if err := s.Send(&runnelv1.CommitResponse{RequestId: req.GetRequestId()}); err != nil {
				return err
			}
			continue
		}
		var resp *runnelv1.CommitResponse
		if at := g.coordinatorFor(req); at != "" && at != d.addr {
			resp = &runnelv1.CommitResponse{RequestId: req.GetRequestId(), Error: item(runnelv1.ErrorReason_ERROR_REASON_NOT_COORDINATOR, codes.FailedPrecondition, "address", at)}
		} else if resp, err = g.commit(req); err != nil {
			return err
		}
		g.mu.Lock()
		decide := g.onCommitted
		g.mu.Unlock()
		if decide != nil {
			answer, err := decide(number, resp)
			if errors.Is(err, io.EOF) {
				return nil // in good order
			}
			if err != nil {
				return err
			}
			if !answer {
				continue
			}
		}
		if err := s.Send(resp); err != nil {
			return err
		}
	}
}

// withhold decides from now on which Commit requests are answered; see onCommitted.
func (g *fakeGroup) withhold(decide func(n int, resp *runnelv1.CommitResponse) (answer bool, err error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.onCommitted = decide
}

// coordinatorFor returns where a client that goes there itself has to go; "": here.
func (g *fakeGroup) coordinatorFor(req *runnelv1.CommitRequest) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if req.GetRouting() != runnelv1.Routing_ROUTING_DIRECT {
		return ""
	}
	return g.coordinator
}

func (g *fakeGroup) commit(req *runnelv1.CommitRequest) (*runnelv1.CommitResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.commits++
	resp := &runnelv1.CommitResponse{RequestId: req.GetRequestId()}
	if g.onCommit != nil {
		it, err := g.onCommit(g.commits, req)
		if err != nil {
			return nil, err
		}
		if resp.Error = it; it != nil {
			return resp, nil
		}
	}
	m := g.members[req.GetMemberId()]
	switch {
	case m == nil:
		resp.Error = item(runnelv1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, codes.NotFound)
		return resp, nil
	case req.GetMemberEpoch() > m.epoch:
		resp.Error = item(runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER_EPOCH, codes.FailedPrecondition)
		return resp, nil
	}
	for _, o := range req.GetOffsets() {
		r := &runnelv1.OffsetCommitResult{Topic: o.GetTopic(), TopicId: o.GetTopicId(), Partition: &o.Partition}
		p := g.parts[fakeKey{o.GetTopic(), o.GetPartition()}]
		switch {
		case p == nil || p.owner != m.id || p.epoch > req.GetMemberEpoch():
			r.Error = item(runnelv1.ErrorReason_ERROR_REASON_STALE_ASSIGNMENT, codes.FailedPrecondition)
		case o.GetTopicId() != g.f.topicID(o.GetTopic()):
			r.Error = item(runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH, codes.FailedPrecondition)
		default:
			if o.GetOffset() < p.committed {
				g.back = append(g.back, fmt.Sprintf("%s/%d from %d to %d", o.GetTopic(), o.GetPartition(), p.committed, o.GetOffset()))
			}
			p.committed = o.GetOffset()
			r.Offset = new(o.Offset)
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

func (g *fakeGroup) committed(topic string, n int32) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.parts[fakeKey{topic, n}].committed
}
