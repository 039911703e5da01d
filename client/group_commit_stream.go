package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

const (
	// mostUnderway is how many requests of a group may be unanswered, and gatherFor how
	// long after one the next waits for its answer. What comes meanwhile is gathered:
	// where answers are quick, fewer requests are quicker for all, since brokers make
	// the commits of a group in turn; where the way is long, nobody waits for it twice.
	mostUnderway = 4
	gatherFor    = 5 * time.Millisecond
	// commitWithin is how long brokers have to make a commit durable: less than they
	// have to answer.
	commitWithin = callTimeout - 2*time.Second
)

// A committer sends the commits of a group over one stream, which it opens when there
// is something to commit, and again when it was lost: what had no answer is then asked
// once more, as repeating a commit is safe. Its fields are the commit goroutine's.
type committer struct {
	g     *Group
	s     *commitStream // nil: none
	timer *time.Timer
	// coordinator is the address of the broker that coordinates the group; "": not
	// known. hops counts the times that another one was named since the last success.
	coordinator string
	hops        int
	attempt     int       // failures since the last success
	after       time.Time // nothing is sent before
	gathers     bool      // and not before gatherFor has passed, or all is answered
}

// A commitStream is one Commit stream, and what is unanswered on it, oldest first.
type commitStream struct {
	s        grpc.ClientStream
	place    place
	routing  runnelv1.Routing
	cancel   context.CancelCauseFunc
	receiver sync.WaitGroup
	answers  chan *runnelv1.CommitResponse // closed at the end
	err      error                         // why; set before that; nil: in good order
	last     uint64                        // request that was sent
	sent     []sentCommit
	spoke    time.Time // a message was sent
	heard    time.Time // one came, or was first waited for
	draining bool      // nothing more is sent
	goaway   *runnelv1.Goaway
}

// A sentCommit is a request without an answer.
type sentCommit struct {
	id uint64
	cs []*queuedCommit
}

// commitLoop commits, until ctx ends.
func (g *Group) commitLoop(ctx context.Context) {
	ticker := time.NewTicker(g.o.interval)
	defer ticker.Stop()
	m := &committer{g: g, timer: time.NewTimer(time.Hour)}
	defer m.timer.Stop()
	for {
		m.send(ctx)
		m.arm()
		var answers chan *runnelv1.CommitResponse
		if m.s != nil {
			answers = m.s.answers
		}
		select {
		case <-g.toCommit:
		case <-ticker.C:
			if !g.o.manual {
				g.mu.Lock()
				g.enqueueLocked(g.processedLocked(sortedParts(g.parts)), nil, nil)
			}
		case r, ok := <-answers:
			if ok {
				m.take(r)
			} else {
				m.ended()
			}
		case now := <-m.timer.C:
			m.look(now)
		case <-ctx.Done():
			m.close()
			g.give(errGroupClosed)
			return
		}
	}
}

// send sends what is queued, as far as may be.
func (m *committer) send(ctx context.Context) {
	for {
		if m.gathers = false; time.Now().Before(m.after) || m.s != nil && (m.s.draining || len(m.s.sent) == mostUnderway) {
			return
		}
		if m.s != nil && len(m.s.sent) > 0 && time.Since(m.s.spoke) < gatherFor {
			m.gathers = true
			return
		}
		req, cs, done := m.g.request()
		finish(done)
		if req == nil {
			return
		}
		if m.s == nil {
			var err error
			if m.s, err = m.open(ctx); err != nil {
				m.settle(cs, nil, err)
				return
			}
		}
		s := m.s
		s.last++
		req.RequestId, req.Routing = s.last, s.routing
		now := time.Now()
		if s.spoke = now; len(s.sent) == 0 {
			s.heard = now
		}
		s.sent = append(s.sent, sentCommit{s.last, cs})
		_ = s.s.SendMsg(req) // when it fails, the stream is over: the receiver knows why
	}
}

// open opens a stream: to the coordinator if it is known and can be reached, else to
// a broker that names it, or passes commits on to it.
func (m *committer) open(ctx context.Context) (*commitStream, error) {
	c := m.g.c
	s := &commitStream{answers: make(chan *runnelv1.CommitResponse), routing: runnelv1.Routing_ROUTING_DIRECT}
	switch {
	case c.opts.routing == Proxy:
		s.routing = runnelv1.Routing_ROUTING_PROXY
	case m.coordinator == "":
	case c.cluster.view.Load().id != "" && c.reachable(m.coordinator):
		s.place = place(m.coordinator)
	default:
		s.routing = runnelv1.Routing_ROUTING_PROXY
	}
	// Close ends it in good order, when ctx has ended.
	own, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	opening, opened := context.WithTimeoutCause(ctx, callTimeout, errNoAnswer)
	unhook := context.AfterFunc(opening, func() { cancel(context.Cause(opening)) })
	var err error
	s.s, err = c.stream(own, s.place, runnelv1.LogService_Commit_FullMethodName)
	unhook()
	opened()
	if err != nil {
		cancel(nil)
		return nil, err
	}
	s.cancel, s.heard, s.spoke = cancel, time.Now(), time.Now()
	s.receiver.Go(func() { s.receive(own) })
	return s, nil
}

// receive takes answers until the stream ends.
func (s *commitStream) receive(ctx context.Context) {
	defer close(s.answers)
	for {
		r := &runnelv1.CommitResponse{}
		if err := s.s.RecvMsg(r); err != nil {
			if !errors.Is(err, io.EOF) {
				s.err = streamError(s.s, err)
			}
			return
		}
		select {
		case s.answers <- r:
		case <-ctx.Done():
			s.err = context.Cause(ctx)
			return
		}
	}
}

// take takes an answer in.
func (m *committer) take(r *runnelv1.CommitResponse) {
	s := m.s
	s.heard = time.Now()
	if r.GetGoaway() != nil {
		s.goaway, m.coordinator = r.GetGoaway(), ""
		s.drain()
	}
	for i, sent := range s.sent {
		if sent.id != r.GetRequestId() {
			continue
		}
		s.sent = append(s.sent[:i], s.sent[i+1:]...)
		results, err := sent.results(r)
		if errors.Is(err, ErrNotCoordinator) {
			m.redirect(err)
		}
		m.settle(sent.cs, results, err)
		return
	}
}

// results returns what became of each commit.
func (c *sentCommit) results(r *runnelv1.CommitResponse) ([]error, error) {
	switch {
	case r.GetError() != nil:
		return nil, itemError(r.GetError())
	case len(r.GetResults()) != len(c.cs):
		return nil, fmt.Errorf("commit: %d results for %d offsets", len(r.GetResults()), len(c.cs))
	}
	errs := make([]error, len(c.cs))
	for i, one := range r.GetResults() {
		errs[i] = itemError(one.GetError())
	}
	return errs, nil
}

// redirect has the next stream go to the broker that an answer names.
func (m *committer) redirect(err error) {
	e, ok := errors.AsType[*Error](err)
	if !ok || m.s.draining {
		return // another answer of this stream has said so
	}
	m.coordinator = e.Metadata["address"]
	m.hops++
	m.s.drain()
}

// drain has the broker end the stream when all is answered.
func (s *commitStream) drain() {
	if !s.draining {
		s.draining = true
		_ = s.s.CloseSend()
	}
}

// settle takes the outcome of a request in.
func (m *committer) settle(cs []*queuedCommit, results []error, err error) {
	if errors.Is(err, ErrUnknownMember) || errors.Is(err, ErrFencedMemberEpoch) {
		m.g.forfeit(fmt.Errorf("%w: %w", ErrPartitionLost, err), false)
	}
	switch again := m.g.settle(cs, results, err); {
	case !again:
		m.attempt, m.hops = 0, 0
	case errors.Is(err, ErrNotCoordinator) && m.hops == 1: // it is known where to
	default:
		m.attempt++
		m.after = later(m.after, time.Now().Add(max(backoffFor(m.attempt), retryAfter(err))))
	}
}

// ended takes in that the stream is over.
func (m *committer) ended() {
	s := m.s
	m.s = nil
	s.cancel(nil)
	s.receiver.Wait()
	if !s.draining {
		m.coordinator = "" // it may be another one now
	}
	if s.goaway != nil {
		m.after = later(m.after, time.Now().Add(rejoinAfter(s.goaway)))
	}
	var left []*queuedCommit
	for _, sent := range s.sent {
		left = append(left, sent.cs...)
	}
	if len(left) == 0 {
		return
	}
	err := s.err
	if err == nil {
		err = errStreamEnded
	}
	m.settle(left, nil, err)
}

// due is when the stream is to be looked at.
func (s *commitStream) due() time.Time {
	at := s.spoke.Add(keepAliveAfter)
	if len(s.sent) > 0 || s.draining {
		at = s.heard.Add(callTimeout)
	}
	return at
}

// arm sets the timer for what is next.
func (m *committer) arm() {
	at := time.Now().Add(time.Hour)
	if m.s != nil {
		at = m.s.due()
	}
	if m.gathers {
		at = m.s.spoke.Add(gatherFor)
	}
	if m.after.After(time.Now()) && m.after.Before(at) {
		at = m.after
	}
	m.timer.Reset(max(time.Until(at), 0))
}

// look gives a stream up that is not answered on, and keeps one alive that is idle.
func (m *committer) look(now time.Time) {
	s := m.s
	switch {
	case s == nil || now.Before(s.due()):
	case len(s.sent) > 0 || s.draining:
		m.g.c.cluster.doubt()
		m.abandon(errNoAnswer)
	case now.Sub(s.heard) >= 2*keepAliveAfter:
		m.abandon(errStreamSilent)
	default:
		s.spoke = now
		_ = s.s.SendMsg(&runnelv1.CommitRequest{})
	}
}

// abandon ends a stream.
func (m *committer) abandon(why error) {
	m.s.cancel(why)
	for range m.s.answers { // they come too late
	}
	m.ended()
}

// close ends the stream in good order, if the broker does so at once.
func (m *committer) close() {
	if m.s == nil {
		return
	}
	m.s.drain()
	timer := time.NewTimer(awaitFor)
	defer timer.Stop()
	for open := true; open; {
		select {
		case _, open = <-m.s.answers:
		case <-timer.C:
			open = false
		}
	}
	m.s.cancel(nil)
	m.s.receiver.Wait()
}
