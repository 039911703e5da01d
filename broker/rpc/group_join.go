package rpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// A joinSession is one Join stream of a client, or of another broker that passes
// one on.
type joinSession struct {
	svc  *GroupService
	send func(*runnelv1.JoinResponse) error
	// frames are what came, in order; stop ends their reader.
	frames chan joinFrame
	stop   chan struct{}
	bye    farewell
	reason runnelv1.GoawayReason

	peer joinPeer
	// latest is the last join that came: what another coordinator begins with.
	latest *runnelv1.JoinRequest
	// joined and assigned say what the client was told.
	joined, assigned, left, halfClosed bool
}

// A joinFrame is what the reader got.
type joinFrame struct {
	req *runnelv1.JoinRequest
	err error
}

// A joinPeer is the coordinator's end of a membership.
type joinPeer interface {
	// say hands a message over; its error is what is wrong with the message, or the
	// cause of ctx, which ended first.
	say(ctx context.Context, req *runnelv1.JoinRequest) error
	// answers is closed when nothing more comes, which is orderly only after an
	// answer that says so.
	answers() <-chan *runnelv1.JoinResponse
	// close ends the stream, not the membership.
	close()
}

// joinPatience is how long a coordinator is waited for that is not there.
const joinPatience = 5 * time.Second

// Join implements runnelv1.GroupServiceServer.
func (s *GroupService) Join(stream grpc.BidiStreamingServer[runnelv1.JoinRequest, runnelv1.JoinResponse]) error {
	j := &joinSession{
		svc: s, send: stream.Send, frames: make(chan joinFrame), stop: make(chan struct{}), bye: s.deps.Logs.farewell(time.Now()),
	}
	defer close(j.stop)
	s.deps.Logs.readers.Go(func() { j.receive(stream.Recv) })
	return j.run(stream.Context(), func(ctx context.Context, first *runnelv1.JoinRequest) error {
		return j.connect(ctx, first, clientAddress(stream.Context()))
	})
}

// clientAddress is where a stream comes from.
func clientAddress(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return ""
	}
	if host, _, err := net.SplitHostPort(p.Addr.String()); err == nil {
		return host
	}
	return p.Addr.String()
}

// receive reads messages until the stream ends.
func (j *joinSession) receive(recv func() (*runnelv1.JoinRequest, error)) {
	for {
		req, err := recv()
		select {
		case j.frames <- joinFrame{req, err}:
		case <-j.stop:
			return
		}
		if err != nil {
			return
		}
	}
}

// fail tells why the membership ends on this stream, which then ends OK.
func (j *joinSession) fail(err error) error {
	return j.send(&runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Error{Error: j.svc.errors.item(err)}})
}

// errHalfClosed ends a session in an orderly way.
var errHalfClosed = errors.New("the client is done")

// run is the session: connect finds the coordinator for the first message.
func (j *joinSession) run(ctx context.Context, connect func(context.Context, *runnelv1.JoinRequest) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, err := j.first(ctx)
	switch {
	case errors.Is(err, errHalfClosed):
		return nil
	case err != nil:
		return err
	case first.GetJoin() == nil:
		return j.fail(invalid("the first message of a stream must be a join"))
	}
	j.latest = first
	deadline := time.Now().Add(joinPatience)
	for {
		if err := connect(ctx, j.latest); err != nil {
			return j.fail(err)
		}
		again, err := j.converse(ctx, deadline)
		j.peer.close()
		if !again || err != nil {
			return err
		}
		if !pauseFor(ctx, j.svc.deps.Store, 50*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// pauseFor waits for newer metadata, or for d. It is false when ctx is done.
func pauseFor(ctx context.Context, store *metadata.Store, d time.Duration) bool {
	changed := store.Changed()
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-changed:
	case <-t.C:
	case <-ctx.Done():
		return false
	}
	return true
}

// first waits for the first message.
func (j *joinSession) first(ctx context.Context) (*runnelv1.JoinRequest, error) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if done, err := j.part(time.Now()); done {
			return nil, err
		}
		rearm(timer, time.Now(), j.bye.next())
		select {
		case f := <-j.frames:
			if errors.Is(f.err, io.EOF) {
				return nil, errHalfClosed
			}
			return f.req, f.err
		case <-timer.C:
		case <-j.bye.draining():
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// part says goodbye when it is time, and whether the stream is over.
func (j *joinSession) part(now time.Time) (done bool, err error) {
	goaway := func(g *runnelv1.Goaway) error {
		return j.send(&runnelv1.JoinResponse{Event: &runnelv1.JoinResponse_Goaway{Goaway: g}})
	}
	if reason, ok := j.bye.due(now); ok {
		j.reason = reason
		if err := goaway(j.bye.begin(reason, now)); err != nil {
			return true, err
		}
	}
	if !j.bye.over(now) {
		return false, nil
	}
	if err := goaway(j.bye.last(j.reason)); err != nil {
		return true, err
	}
	return true, errStreamEnded
}

// converse passes messages on and answers back. again says that the coordinator
// was not ready, before anything was told to the client.
func (j *joinSession) converse(ctx context.Context, deadline time.Time) (again bool, err error) {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if done, err := j.part(time.Now()); done {
			return false, err
		}
		if j.halfClosed && j.assigned && !j.left {
			return false, nil
		}
		rearm(timer, time.Now(), j.bye.next())
		frames := j.frames
		if j.halfClosed {
			frames = nil
		}
		select {
		case f := <-frames:
			switch {
			case errors.Is(f.err, io.EOF):
				j.halfClosed = true
			case f.err != nil:
				return false, f.err
			default:
				if f.req.GetJoin() != nil {
					j.latest = f.req
				}
				j.left = j.left || f.req.GetLeave() != nil
				if err := j.peer.say(ctx, f.req); ctx.Err() != nil {
					return false, context.Cause(ctx)
				} else if err != nil {
					return false, j.fail(err)
				}
			}
		case resp, ok := <-j.peer.answers():
			if !ok {
				return false, j.broke()
			}
			if e := resp.GetError(); e != nil && !j.joined && !j.left && passingReason(e.GetReason()) && time.Now().Before(deadline) {
				return true, nil
			}
			if done, err := j.tell(resp); done {
				return false, err
			}
		case <-timer.C:
		case <-j.bye.draining():
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
	}
}

// broke ends the stream when the coordinator's end did.
func (j *joinSession) broke() error {
	if j.left {
		return nil // it had no more to say
	}
	return j.fail(fmt.Errorf("%w: the coordinator of the group went away: open another stream and go on with the same member_id and member_epoch", group.ErrLoading))
}

// tell passes an answer on, and says whether it was the last.
func (j *joinSession) tell(resp *runnelv1.JoinResponse) (done bool, err error) {
	if err := j.send(resp); err != nil {
		return true, err
	}
	switch e := resp.GetEvent().(type) {
	case *runnelv1.JoinResponse_Joined:
		j.joined = true
	case *runnelv1.JoinResponse_Assignment:
		j.assigned = !e.Assignment.GetMore()
	case *runnelv1.JoinResponse_Error:
		return true, nil
	}
	return false, nil
}

// passingReason says whether another try may find a coordinator.
func passingReason(r runnelv1.ErrorReason) bool {
	switch r {
	case runnelv1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, runnelv1.ErrorReason_ERROR_REASON_NO_LEADER,
		runnelv1.ErrorReason_ERROR_REASON_MOVING, runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA:
		return true
	default:
		return false
	}
}

// connect finds the coordinator, waiting for one a little, and brings it the
// first message.
func (j *joinSession) connect(ctx context.Context, first *runnelv1.JoinRequest, address string) error {
	s, join := j.svc, first.GetJoin()
	if _, err := s.terms(join, address); err != nil {
		return err
	}
	ctx2, cancel := context.WithTimeout(ctx, joinPatience)
	defer cancel()
	part, err := s.place(ctx2, join.GetGroup(), true)
	if err != nil {
		return err
	}
	if err := s.direct(join.GetRouting(), part); err != nil {
		return err
	}
	for {
		j.peer, err = s.reach(ctx, part, first, address)
		if err == nil || !router.Routable(err) || !pauseFor(ctx2, s.deps.Store, 50*time.Millisecond) {
			return err
		}
	}
}

// reach opens the coordinator's end, here or at another broker.
func (s *GroupService) reach(ctx context.Context, part router.Part, first *runnelv1.JoinRequest, address string) (joinPeer, error) {
	c, err := s.deps.Router.Converse("join", part)
	if err != nil {
		return nil, err
	}
	if c == nil {
		return s.joinHere(ctx, part.Number, first, address)
	}
	ctx, cancel := context.WithCancel(ctx)
	stream, err := c.Service.ForwardJoin(ctx)
	if err == nil {
		err = stream.Send(&replicav1.ForwardJoinRequest{Request: first, Partition: part.Number, ClientAddress: address, Principal: rpcserver.Principal(ctx)})
	}
	if err != nil {
		cancel()
		c.Close()
		return nil, fmt.Errorf("%w: the coordinator of the group can't be reached", group.ErrLoading)
	}
	r := &remoteMembership{stream: stream, cancel: cancel, conversation: c, out: make(chan *runnelv1.JoinResponse)}
	r.receiving.Go(func() { r.receive(ctx) })
	return r, nil
}

// direct refuses clients that want to go to the coordinator themselves, unless
// it is here.
func (s *GroupService) direct(routing runnelv1.Routing, part router.Part) error {
	switch routing {
	case runnelv1.Routing_ROUTING_UNSPECIFIED, runnelv1.Routing_ROUTING_PROXY:
		return nil
	case runnelv1.Routing_ROUTING_DIRECT:
	default:
		return invalid("routing %d is unknown", routing)
	}
	p, err := s.deps.Admin.deps.Set.Get(part.Topic, part.Number)
	if err == nil {
		err = p.State().Err
	}
	facts, ok := errors.AsType[interface {
		error
		Metadata() map[string]string
	}](err)
	if ok && errors.Is(err, partition.ErrNotLeader) {
		return &refusal.Error{Kind: group.ErrNotCoordinator, Text: "another broker coordinates the group: go to the address in the metadata", Facts: facts.Metadata()}
	}
	return nil
}

// A remoteMembership is one at another broker.
type remoteMembership struct {
	stream       grpc.BidiStreamingClient[replicav1.ForwardJoinRequest, replicav1.ForwardJoinResponse]
	cancel       context.CancelFunc
	conversation *router.Conversation
	out          chan *runnelv1.JoinResponse
	receiving    sync.WaitGroup // the goroutine that fills out
}

func (r *remoteMembership) receive(ctx context.Context) {
	defer close(r.out)
	for {
		resp, err := r.stream.Recv()
		if err != nil {
			return
		}
		select {
		case r.out <- resp.GetResponse():
		case <-ctx.Done():
			return
		}
	}
}

func (r *remoteMembership) say(_ context.Context, req *runnelv1.JoinRequest) error {
	// A failure to send shows as the end of the answers.
	_ = r.stream.Send(&replicav1.ForwardJoinRequest{Request: req})
	return nil
}

func (r *remoteMembership) answers() <-chan *runnelv1.JoinResponse { return r.out }

func (r *remoteMembership) close() {
	r.cancel()
	r.receiving.Wait()
	r.conversation.Close()
}

// join handles a ForwardJoin stream: the Join stream of a client of another
// broker, for a group that this one coordinates.
func (s *ForwardService) join(ss grpc.ServerStream) error {
	if s.groups == nil {
		return errUnsupported
	}
	j := &joinSession{
		svc: s.groups, frames: make(chan joinFrame), stop: make(chan struct{}), bye: farewell{drain: s.drain},
		send: func(resp *runnelv1.JoinResponse) error {
			return ss.SendMsg(&replicav1.ForwardJoinResponse{Response: resp})
		},
	}
	defer close(j.stop)
	var opening *replicav1.ForwardJoinRequest // set before the first frame is handed over
	s.readers.Go(func() {
		j.receive(func() (*runnelv1.JoinRequest, error) {
			fwd := &replicav1.ForwardJoinRequest{}
			if err := ss.RecvMsg(fwd); err != nil {
				return nil, err
			}
			if opening == nil {
				opening = fwd
			}
			if fwd.GetRequest() == nil {
				return &runnelv1.JoinRequest{}, nil
			}
			return fwd.GetRequest(), nil
		})
	})
	return j.run(ss.Context(), func(ctx context.Context, first *runnelv1.JoinRequest) (err error) {
		j.peer, err = s.groups.joinHere(ctx, opening.GetPartition(), first, opening.GetClientAddress())
		return err
	})
}

// idOf reads a member id.
func idOf(id string) (string, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return "", invalid("member_id %.40q is no UUID: make a random one when the member starts, and keep it", id)
	}
	return parsed.String(), nil
}
