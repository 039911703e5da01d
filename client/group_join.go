package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

const (
	// pingShare: a ping leaves every session timeout / pingShare. When its answer is
	// due for as long, the broker is doubted, and for twice as long, the stream is
	// given up: by then another one has been found to go on with.
	pingShare = 4
	// mostOwned bounds the partitions of one message.
	mostOwned = 5000
)

// A groupStream is one Join stream. Its fields are the join goroutine's.
type groupStream struct {
	g      *Group
	number int
	s      grpc.BidiStreamingClient[runnelv1.JoinRequest, runnelv1.JoinResponse]
	// sent has the times of what was not answered yet, by sequence: from first on.
	sent    []time.Time
	first   uint64
	greeted time.Time // when the member introduced itself
	joined  bool
	told    groupRevision
	growing *groupTarget
	goaway  *runnelv1.Goaway
}

// join keeps a stream to the coordinator open until ctx ends.
func (g *Group) join(ctx context.Context) {
	defer close(g.left)
	failures := 0
	for number := 1; ctx.Err() == nil; number++ {
		s := &groupStream{g: g, number: number, first: 1}
		err := s.serve(ctx)
		if s.joined {
			failures = 0
		}
		wait := rejoinAfter(s.goaway)
		if err != nil {
			failures++
			wait = max(wait, backoffFor(failures), retryAfter(err))
		}
		if s.over(err) {
			return
		}
		if wait > 0 {
			select {
			case <-g.leave:
				return
			default:
			}
			pause(ctx, wait)
		}
	}
}

// over decides about the end of a stream. It is true when there is to be no other.
func (s *groupStream) over(err error) bool {
	g := s.g
	select {
	case <-g.leave:
		return true
	default:
	}
	switch {
	case err == nil:
	case errors.Is(err, ErrUnknownMember), errors.Is(err, ErrFencedMemberEpoch):
		g.forfeit(fmt.Errorf("%w: %w", ErrPartitionLost, err), false)
		select {
		case <-g.toRejoin: // this is it
		default:
		}
	case replaced(err):
		g.forfeit(fmt.Errorf("another member has joined group %q as %q, the instance id of this one: each needs one of its own: %w", g.name, g.o.instance, err), true)
		return true
	case refusesStream(err), hasCode(err, codes.InvalidArgument):
		g.forfeit(fmt.Errorf("join group %q: %w", g.name, err), true)
		return true
	}
	return false
}

// replaced says whether another process has the place of this one. Else it is an
// earlier stream of this member's that was fenced for: one that was given up, and
// whose first message was held up on its way.
func replaced(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && errors.Is(err, ErrFencedMember) && e.Metadata["instanceId"] != ""
}

// serve talks until the stream ends, for whichever reason.
func (s *groupStream) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer cancel(nil)
	var err error
	if s.s, err = runnelv1.NewGroupServiceClient(s.g.c.conn).Join(ctx); err != nil {
		return rpcError(err)
	}
	if err := s.hello(); err != nil {
		return s.broken(err)
	}
	frames := make(chan *runnelv1.JoinResponse)
	var ended error
	receiver.Go(func() {
		defer close(frames)
		for {
			m, err := s.s.Recv()
			if err != nil {
				ended = err
				return
			}
			select {
			case frames <- m:
			case <-ctx.Done():
				return
			}
		}
	})
	ping := time.NewTicker(s.interval())
	defer ping.Stop()
	for {
		var err error
		select {
		case m, ok := <-frames:
			if !ok {
				return s.ended(ended)
			}
			if err := s.take(m); err != nil {
				return err
			}
			if s.goaway != nil && !s.goaway.GetFinal() {
				return nil
			}
			if m.GetJoined() != nil {
				ping.Reset(s.interval())
			}
		case <-ping.C:
			due := s.due()
			if due >= 1 {
				s.g.c.cluster.doubt()
			}
			if due >= 2 {
				return fmt.Errorf("join group %q: %w", s.g.name, errStreamSilent)
			}
			err = s.send(&runnelv1.JoinRequest{})
		case <-s.g.toTell:
			err = s.tell()
		case <-s.g.toRejoin:
			return nil
		case <-s.g.leave:
			return s.farewell(ctx, frames)
		case <-ctx.Done():
			return nil
		}
		if err != nil {
			return s.broken(err)
		}
	}
}

// ended is what the end of a stream means.
func (s *groupStream) ended(err error) error {
	if err == nil || errors.Is(err, io.EOF) {
		if s.goaway != nil {
			return nil
		}
		return errStreamEnded
	}
	return rpcError(err)
}

// broken is why nothing can be sent: Recv knows.
func (s *groupStream) broken(err error) error {
	if errors.Is(err, io.EOF) {
		return errStreamEnded
	}
	return rpcError(err)
}

func (s *groupStream) interval() time.Duration {
	s.g.mu.Lock()
	defer s.g.mu.Unlock()
	return s.g.session / pingShare
}

// due is for how many intervals an answer has been due; they are measured by a
// ticker that may be somewhat early.
func (s *groupStream) due() int {
	if len(s.sent) == 0 {
		return 0
	}
	return int((time.Since(s.sent[0]) + s.interval()/8) / s.interval())
}

func (s *groupStream) send(m *runnelv1.JoinRequest) error {
	m.Sequence = s.first + uint64(len(s.sent))
	s.sent = append(s.sent, time.Now())
	return s.s.Send(m)
}

// hello introduces the member, with what it owns when it owns anything.
func (s *groupStream) hello() error {
	g := s.g
	g.mu.Lock()
	j := &runnelv1.JoinGroup{
		Group: g.name, MemberId: g.id, InstanceId: g.o.instance, Topics: g.o.topics, TopicPattern: g.o.pattern,
		Assignor: g.o.assignor.proto(), Rack: g.o.rack, ClientName: g.c.opts.agent,
	}
	if g.epoch > 0 {
		j.MemberEpoch = new(g.epoch)
	}
	g.mu.Unlock()
	if g.o.session > 0 {
		j.SessionTimeout = durationpb.New(g.o.session)
	}
	if g.o.rebalance > 0 {
		j.RebalanceTimeout = durationpb.New(g.o.rebalance)
	}
	s.greeted = time.Now()
	return s.send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Join{Join: j}})
}

// take takes one message in.
func (s *groupStream) take(m *runnelv1.JoinResponse) error {
	switch e := m.GetEvent().(type) {
	case *runnelv1.JoinResponse_Joined:
		s.welcome(e.Joined)
	case *runnelv1.JoinResponse_Assignment:
		s.assign(e.Assignment)
	case *runnelv1.JoinResponse_Pong:
		s.heard(e.Pong.GetSequence())
	case *runnelv1.JoinResponse_Error:
		return itemError(e.Error)
	case *runnelv1.JoinResponse_Goaway:
		s.goaway = e.Goaway
	}
	return nil
}

// welcome takes in how the member stands.
func (s *groupStream) welcome(j *runnelv1.Joined) {
	g := s.g
	if !j.GetResumed() {
		g.mu.Lock()
		had := len(g.parts) > 0
		g.mu.Unlock()
		if had {
			g.forfeit(ErrPartitionLost, false)
			select {
			case <-g.toRejoin: // it is joined, as one that owns nothing
			default:
			}
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	s.joined = true
	if d := j.GetSessionTimeout().AsDuration(); d > 0 {
		g.session = d
	}
	if d := j.GetRebalanceTimeout().AsDuration(); d > 0 {
		g.rebalance = d
	}
	// One that has let its lease run out stays expelled: the watch says so.
	if g.epoch == 0 || !g.lease.IsZero() {
		g.epoch = j.GetMemberEpoch()
		g.lease = later(g.lease, s.greeted.Add(g.session))
	}
	poke(g.toWatch)
}

// sentAt is when the message of a sequence was sent; the zero time when it is not
// waited for.
func (s *groupStream) sentAt(sequence uint64) time.Time {
	if i := sequence - s.first; sequence >= s.first && i < uint64(len(s.sent)) {
		return s.sent[i]
	}
	return time.Time{}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// heard extends the lease: the coordinator knew of this member after the message
// was sent.
func (s *groupStream) heard(sequence uint64) {
	at := s.sentAt(sequence)
	if at.IsZero() {
		return
	}
	n := sequence - s.first + 1
	s.sent, s.first = s.sent[n:], sequence+1
	g := s.g
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.lease.IsZero() && g.aliveLocked() {
		g.lease = later(g.lease, at.Add(g.session))
	}
}

// assign takes in what the member is to own.
func (s *groupStream) assign(a *runnelv1.Assignment) {
	g := s.g
	t := s.growing
	if t == nil || t.revision != a.GetRevision() {
		t = &groupTarget{groupRevision: groupRevision{s.number, a.GetRevision()}, parts: map[partitionKey]*groupPart{}}
	}
	s.growing = t
	for _, at := range a.GetTopics() {
		for _, ap := range at.GetPartitions() {
			p := &groupPart{
				partitionKey: partitionKey{at.GetTopic(), ap.GetPartition()}, id: at.GetTopicId(), epoch: ap.GetAssignmentEpoch(),
				from: noOffset, fromEpoch: noOffset,
			}
			take(&p.from, ap.Offset)
			take(&p.fromEpoch, ap.LeaderEpoch)
			t.parts[p.partitionKey] = p
		}
	}
	if a.GetMore() {
		return
	}
	s.growing = nil
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.epoch == 0 {
		return // all was lost meanwhile: another stream is next
	}
	g.epoch = max(g.epoch, a.GetMemberEpoch())
	g.target = t
	poke(g.toKeep)
}

// tell reports what is owned, once the newest Assignment was carried out.
func (s *groupStream) tell() error {
	g := s.g
	g.mu.Lock()
	at := g.carried
	due := at.stream == s.number && at != s.told && g.target != nil
	byTopic := map[string]*runnelv1.TopicPartitions{}
	var topics []*runnelv1.TopicPartitions
	for _, p := range sortedParts(g.parts) {
		tp := byTopic[p.id]
		if tp == nil {
			tp = &runnelv1.TopicPartitions{TopicId: p.id}
			byTopic[p.id] = tp
			topics = append(topics, tp)
		}
		tp.Partitions = append(tp.Partitions, p.partition)
	}
	g.mu.Unlock()
	if !due {
		return nil
	}
	s.told = at
	for _, m := range owned(at.revision, topics) {
		if err := s.send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Owned{Owned: m}}); err != nil {
			return err
		}
	}
	return nil
}

// owned cuts a report into messages.
func owned(revision uint64, topics []*runnelv1.TopicPartitions) (ms []*runnelv1.OwnedPartitions) {
	m, n := &runnelv1.OwnedPartitions{Revision: revision}, 0
	for _, tp := range topics {
		for ps := tp.GetPartitions(); len(ps) > 0; {
			if n == mostOwned {
				m.More = true
				ms = append(ms, m)
				m, n = &runnelv1.OwnedPartitions{Revision: revision}, 0
			}
			k := min(len(ps), mostOwned-n)
			m.Topics = append(m.Topics, &runnelv1.TopicPartitions{TopicId: tp.GetTopicId(), Partitions: ps[:k]})
			ps, n = ps[k:], n+k
		}
	}
	return append(ms, m)
}

// farewell leaves, and waits until that is heard.
func (s *groupStream) farewell(ctx context.Context, frames <-chan *runnelv1.JoinResponse) error {
	if err := s.send(&runnelv1.JoinRequest{Event: &runnelv1.JoinRequest_Leave{Leave: &runnelv1.LeaveGroup{}}}); err != nil {
		return s.broken(err)
	}
	for {
		select {
		case _, ok := <-frames:
			if !ok {
				return nil
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// watch takes everything for lost when the lease runs out.
func (g *Group) watch(ctx context.Context) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		g.mu.Lock()
		member, lease := g.epoch != 0, g.lease
		out := member && !g.aliveLocked()
		session := g.session
		g.mu.Unlock()
		if out {
			g.forfeit(fmt.Errorf("%w: no answer from the group's coordinator for %v", ErrPartitionLost, session), false)
		}
		if wait := time.Until(lease); member && !out {
			timer.Reset(wait)
		} else {
			timer.Reset(time.Hour)
		}
		select {
		case <-g.toWatch:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
	}
}
