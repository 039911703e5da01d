package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

// A commitSession is one Commit stream. Requests of one group are done one after
// another, those of several at the same time.
type commitSession struct {
	svc *LogService
	ss  grpc.ServerStream
	// slots holds a token for each request that was read and not answered.
	slots chan struct{}
	wake  chan struct{} // cap 1
	stop  chan struct{} // closed when the handler returns
	works sync.WaitGroup

	// mu guards the fields below
	mu sync.Mutex

	queues  map[string][]*runnelv1.CommitRequest // by group; one that is there is worked on
	answers []*runnelv1.CommitResponse
	closed  bool  // no work begins any more
	ended   bool  // the reader has read its last
	cause   error // why, nil at an orderly end
	open    int   // requests that were read and not answered
}

// commit handles a Commit stream.
func (s *LogService) commit(ss grpc.ServerStream) error {
	if s.groups == nil {
		return fmt.Errorf("%w: this broker keeps no consumer groups", errUnsupported)
	}
	c := &commitSession{
		svc: s, ss: ss, slots: make(chan struct{}, s.maxInflight()), wake: make(chan struct{}, 1), stop: make(chan struct{}),
		queues: map[string][]*runnelv1.CommitRequest{},
	}
	ctx, cancel := context.WithCancel(ss.Context())
	s.readers.Go(func() { c.receive(ctx) })
	defer c.works.Wait()
	defer cancel()
	defer c.close()
	return c.answer(ctx)
}

// close lets no work begin any more.
func (c *commitSession) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	close(c.stop)
}

func (s *LogService) maxInflight() int { return s.opts.MaxInflight }

func (c *commitSession) signal() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// receive reads requests until the stream ends.
func (c *commitSession) receive(ctx context.Context) {
	var msg wire.Message
	for {
		select {
		case c.slots <- struct{}{}:
		case <-c.stop:
			return
		}
		if err := c.ss.RecvMsg(&msg); err != nil {
			c.mu.Lock()
			c.ended = true
			if !errors.Is(err, io.EOF) {
				c.cause = err
			}
			c.mu.Unlock()
			c.signal()
			return
		}
		req := &runnelv1.CommitRequest{}
		err := msg.Decode(c.svc.opts.Pool, req)
		switch {
		case err != nil:
			c.reply(&runnelv1.CommitResponse{Error: c.svc.item(invalid("the message is no CommitRequest: %s", rpcerr.Clean(err.Error())))}, true)
		case req.GetGroup() == "" && len(req.GetOffsets()) == 0 && req.GetMemberId() == "":
			c.reply(&runnelv1.CommitResponse{RequestId: req.GetRequestId()}, true) // a keep-alive
		default:
			c.enqueue(ctx, req)
		}
	}
}

// enqueue puts a request behind those of its group.
func (c *commitSession) enqueue(ctx context.Context, req *runnelv1.CommitRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.closed {
		return // nobody is answered any more
	}
	c.open++
	q, busy := c.queues[req.GetGroup()]
	c.queues[req.GetGroup()] = append(q, req)
	if !busy {
		c.works.Go(func() { c.work(ctx, req.GetGroup()) })
	}
}

// work does the requests of one group.
func (c *commitSession) work(ctx context.Context, id string) {
	for {
		c.mu.Lock()
		q := c.queues[id]
		if len(q) == 0 || ctx.Err() != nil {
			delete(c.queues, id)
			c.mu.Unlock()
			return
		}
		req := q[0]
		c.queues[id] = q[1:]
		c.mu.Unlock()
		resp, err := c.svc.groups.Commit(ctx, req)
		if err != nil {
			resp = &runnelv1.CommitResponse{Error: c.svc.groups.errors.item(err)}
		}
		resp.RequestId = req.GetRequestId()
		c.reply(resp, false)
	}
}

func (c *commitSession) reply(resp *runnelv1.CommitResponse, unqueued bool) {
	c.mu.Lock()
	c.answers = append(c.answers, resp)
	if !unqueued {
		c.open--
	}
	c.mu.Unlock()
	c.signal()
}

// answer sends answers until all is answered that was read, or the stream is to
// end.
func (c *commitSession) answer(ctx context.Context) error {
	bye := c.svc.farewell(time.Now())
	var reason runnelv1.GoawayReason
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		if why, ok := bye.due(now); ok {
			reason = why
			if err := c.ss.SendMsg(&runnelv1.CommitResponse{Goaway: bye.begin(why, now)}); err != nil {
				return err
			}
		}
		c.mu.Lock()
		answers, ended, cause, open := c.answers, c.ended, c.cause, c.open
		c.answers = nil
		c.mu.Unlock()
		for _, a := range answers {
			if err := c.ss.SendMsg(a); err != nil {
				return err
			}
			<-c.slots
		}
		switch {
		case len(answers) > 0:
			continue
		case cause != nil:
			return cause
		case ended && open == 0:
			return nil
		case bye.over(now) && open == 0:
			if err := c.ss.SendMsg(&runnelv1.CommitResponse{Goaway: bye.last(reason)}); err != nil {
				return err
			}
			return errStreamEnded
		}
		rearm(timer, now, bye.next())
		select {
		case <-c.wake:
		case <-timer.C:
		case <-bye.draining():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Commit stores offsets of a group, wherever it is coordinated.
func (s *GroupService) Commit(ctx context.Context, req *runnelv1.CommitRequest) (*runnelv1.CommitResponse, error) {
	ctx, cancel, err := within(ctx, req.GetTimeout(), defaultProduceTimeout)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := checkCommit(req); err != nil {
		return nil, err
	}
	part, err := s.place(ctx, req.GetGroup(), true)
	if err != nil {
		return nil, err
	}
	if err := s.direct(req.GetRouting(), part); err != nil {
		return nil, err
	}
	resp, asked, at := s.resolveCommit(ctx, req)
	if len(at) == 0 {
		return resp, nil
	}
	asked.Timeout = timeLeft(ctx)
	got, err := s.call(ctx, groupCall{method: "commit", changes: true, once: true}, part, &replicav1.ForwardGroupRequest{
		Request: &replicav1.ForwardGroupRequest_Commit{Commit: asked},
	})
	if err != nil {
		return nil, err
	}
	for k, r := range got.GetCommit().GetResults() {
		if k < len(at) {
			resp.Results[at[k]] = r
		}
	}
	return resp, nil
}

func checkCommit(req *runnelv1.CommitRequest) error {
	if err := group.CheckID(req.GetGroup()); err != nil {
		return err
	}
	switch n := len(req.GetOffsets()); {
	case n == 0:
		return invalid("the commit has no offsets")
	case n > mostPerCall:
		return invalid("the commit has %d offsets: want at most %d", n, mostPerCall)
	case req.GetMemberId() == "" && req.GetMemberEpoch() != 0:
		return invalid("member_epoch %d without a member_id: set both, or neither", req.GetMemberEpoch())
	}
	for _, o := range req.GetOffsets() {
		switch {
		case o.GetOffset() < 0:
			return invalid("offset %d of %s/%d: want 0 or more", o.GetOffset(), o.GetTopic(), o.GetPartition())
		case len(o.GetMetadata()) > coordinator.MaxMetadata:
			return invalid("the metadata of %s/%d has %d bytes: want at most %d", o.GetTopic(), o.GetPartition(), len(o.GetMetadata()), coordinator.MaxMetadata)
		case o.LeaderEpoch != nil && o.GetLeaderEpoch() < 0:
			return invalid("leader_epoch %d of %s/%d: want 0 or more, or leave it out", o.GetLeaderEpoch(), o.GetTopic(), o.GetPartition())
		}
	}
	return nil
}

// resolveCommit names the topics of a commit by id, and takes out what can't be
// committed. at says where the results of the rest go.
func (s *GroupService) resolveCommit(ctx context.Context, req *runnelv1.CommitRequest) (resp *runnelv1.CommitResponse, asked *runnelv1.CommitRequest, at []int) {
	resp = &runnelv1.CommitResponse{Results: make([]*runnelv1.OffsetCommitResult, len(req.GetOffsets()))}
	asked = &runnelv1.CommitRequest{Group: req.GetGroup(), MemberId: req.GetMemberId(), MemberEpoch: req.GetMemberEpoch(), Sequence: req.GetSequence()}
	places := make([]commitPlace, 0, len(req.GetOffsets()))
	var tried []int
	for i, o := range req.GetOffsets() {
		resp.Results[i] = &runnelv1.OffsetCommitResult{Topic: o.GetTopic(), Partition: new(o.GetPartition())}
		t, err := s.deps.Finder.Find(ctx, o.GetTopic(), o.GetTopicId())
		if err == nil && t.Internal {
			err = refusal.New(errTopicSystem, nil, "topic %q is internal: groups can't read it", t.Name)
		}
		if err != nil {
			resp.Results[i].Error = s.errors.item(err)
			continue
		}
		resp.Results[i].TopicId = t.ID.String()
		places, tried = append(places, commitPlace{t, o.GetPartition(), o.GetOffset()}), append(tried, i)
	}
	check := s.checkEnds
	if req.GetMemberId() == "" {
		check = checkThere // whoever is no member puts offsets where they like
	}
	for k, err := range check(ctx, places) {
		i := tried[k]
		if err != nil {
			resp.Results[i].Error = s.errors.item(err)
			continue
		}
		o := req.GetOffsets()[i]
		asked.Offsets = append(asked.Offsets, &runnelv1.OffsetCommit{
			Topic: o.GetTopic(), TopicId: new(places[k].topic.ID.String()), Partition: o.GetPartition(), Offset: o.GetOffset(),
			LeaderEpoch: o.LeaderEpoch, Metadata: o.GetMetadata(),
		})
		at = append(at, i)
	}
	return resp, asked, at
}
