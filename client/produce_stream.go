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
	"github.com/runnelmq/runnel/internal/wire"
)

const (
	// keepAliveAfter is how long a stream may be silent before the client says
	// an empty word: proxies time out each direction on its own.
	keepAliveAfter = 20 * time.Second
	// maxAckTimeout is the longest that brokers wait for acknowledgements.
	maxAckTimeout = 5 * time.Minute
	// retryAckTimeout is how long they may where what is in doubt is sent again,
	// and lateAnswer how long after that a stream without an answer is given up.
	retryAckTimeout = 30 * time.Second
	lateAnswer      = 5 * time.Second
)

var (
	errStreamSilent = errors.New("the broker did not answer a sign of life")
	errStreamEnded  = errors.New("the stream ended before the answer")
	errNoAnswer     = errors.New("the broker did not answer in time")
	errNotMember    = errors.New("the broker is no member of the cluster any more")
)

// A produceStream is one Produce stream and what is unanswered on it.
type produceStream struct {
	p      *Producer
	lane   *lane
	s      grpc.ClientStream
	cancel context.CancelCauseFunc
	moves  int64 // of the seeds, when it was opened
	// draining is closed when the broker asked for the stream to be ended.
	draining chan struct{}
	// over is closed when nothing more will be received.
	over chan struct{}
	err  error // why; set before over is closed

	// mu guards the fields below
	mu sync.Mutex

	lastID   uint64
	inflight map[uint64]*batch
	// order are the ids of inflight and of some that were answered, oldest first.
	order    []uint64
	heard    time.Time
	answered bool // anything but an error has been received
	goaway   *runnelv1.Goaway
}

func (l *lane) open(ctx context.Context) (*produceStream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	moves := l.p.c.cluster.moves.Load()
	cs, err := l.p.c.stream(ctx, l.place, runnelv1.LogService_Produce_FullMethodName)
	if err != nil {
		cancel(err)
		return nil, err
	}
	return &produceStream{
		p: l.p, lane: l, s: cs, cancel: cancel, moves: moves,
		draining: make(chan struct{}), over: make(chan struct{}),
		inflight: map[uint64]*batch{}, heard: time.Now(),
	}, nil
}

// serve sends and receives until the stream ends, and then gives every batch
// that is unanswered what is due to it. It returns nil after a planned end.
func (s *produceStream) serve(ctx context.Context) error {
	s.lane.carries(s)
	defer s.lane.carries(nil)
	var receiver sync.WaitGroup
	receiver.Go(s.receive)
	planned := s.send(ctx)
	if planned {
		// The broker answers what it has read, and then ends the stream.
		_ = s.s.CloseSend()
		select {
		case <-s.over:
		case <-ctx.Done():
		}
	}
	s.cancel(context.Cause(ctx))
	receiver.Wait()
	if s.err == nil { // the broker may have ended it at the same time
		s.err = endedFor(ctx)
	}
	s.bury()
	switch {
	case isDone(ctx), s.lane.ended.Load():
		return nil
	case s.err == nil && !s.answered:
		return errStreamEnded // and would again at once
	}
	return s.err
}

// send sends batches until the stream is over, false, or to be ended, true.
func (s *produceStream) send(ctx context.Context) bool {
	alive := time.NewTicker(doubtAfter / 2)
	defer alive.Stop()
	sent := time.Now()
	for {
		for pt := s.lane.next(); pt != nil; pt = s.lane.next() {
			if s.ended(ctx) {
				s.lane.unshift(pt)
				return ctx.Err() != nil || !s.isOver()
			}
			if !s.sendOne(pt) {
				<-s.over
				return false
			}
			sent = time.Now()
		}
		if s.idle() && s.lane.retire() {
			s.cancel(errNotMember)
			<-s.over
			return false
		}
		select {
		case <-s.lane.wake:
		case <-s.over:
			return false
		case <-s.draining:
			return true
		case <-ctx.Done():
			return true
		case now := <-alive.C:
			if !s.keepAlive(now, sent) {
				<-s.over
				return false
			}
			if now.Sub(sent) >= keepAliveAfter {
				sent = now
			}
		}
	}
}

func (s *produceStream) ended(ctx context.Context) bool {
	select {
	case <-s.over:
	case <-s.draining:
	case <-ctx.Done():
	default:
		return false
	}
	return true
}

func (s *produceStream) isOver() bool {
	select {
	case <-s.over:
		return true
	default:
		return false
	}
}

// sendOne sends the next batch of pt; false when the stream took nothing.
func (s *produceStream) sendOne(pt *partition) bool {
	now := time.Now()
	b, more := pt.take(s.lane, now)
	if more {
		pt.push()
	}
	if b == nil {
		return true
	}
	id := s.p.identity.Load()
	if b.encoded == nil {
		if err := s.p.builders.encode(b, id, s.p.o.compression.record(), s.p.o.level); err != nil {
			pt.answered(b, verdict{err: recordError(err), base: -1})
			return true
		}
	} else if id != nil {
		b.stamp(id)
	}
	b.encoded.Ref()
	timeout := s.p.ackTimeout(b.due.Sub(now))
	s.mu.Lock()
	b.sent = now
	s.lastID++
	request := s.lastID
	s.inflight[request] = b
	s.order = append(s.order, request)
	s.mu.Unlock()
	err := s.s.SendMsg(&wire.ProduceBatch{
		RequestID: request, Topic: pt.topic.name, TopicID: pt.id, Partition: pt.number, Routing: int32(s.lane.place.routing()),
		Acks: int32(s.p.o.acks.proto()), Timeout: timeout,
		LeaderEpoch: -1, Batch: b.encoded,
	})
	if err == nil {
		return true
	}
	// gRPC took nothing of it: it may go with the next stream.
	s.mu.Lock()
	_, mine := s.inflight[request]
	delete(s.inflight, request)
	s.mu.Unlock()
	if mine {
		pt.returned([]*batch{b}, nil)
	}
	return false
}

// ackTimeout is how long a broker may wait for acknowledgements when so much
// time is left: an answer is better than none.
func (p *Producer) ackTimeout(left time.Duration) time.Duration {
	most := maxAckTimeout
	if p.o.idempotent {
		most = retryAckTimeout
	}
	return min(max(left-min(left/10, 2*time.Second), time.Millisecond), most)
}

// idle reports whether nothing is unanswered.
func (s *produceStream) idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.inflight) == 0
}

// due returns how long the oldest answer has been waited for.
func (s *produceStream) due(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, request := range s.order {
		if b := s.inflight[request]; b != nil {
			return now.Sub(b.sent)
		}
	}
	return 0
}

// keepAlive says an empty word after a long silence, and ends a stream on
// which such words stay unanswered.
func (s *produceStream) keepAlive(now, sent time.Time) bool {
	s.mu.Lock()
	silent := now.Sub(s.heard)
	s.mu.Unlock()
	if silent >= 2*keepAliveAfter {
		s.cancel(errStreamSilent)
		return false
	}
	if due := s.due(now); due >= doubtAfter {
		if s.p.c.cluster.leftSilent(s.lane.place, s.moves) {
			s.cancel(errSilent)
			return false
		}
		s.p.c.cluster.doubt()
		if s.p.o.idempotent && due >= retryAckTimeout+lateAnswer {
			s.cancel(errNoAnswer)
			return false
		}
	}
	if now.Sub(sent) < keepAliveAfter {
		return true
	}
	return s.s.SendMsg(&runnelv1.ProduceRequest{}) == nil
}

// receive takes answers until the stream ends.
func (s *produceStream) receive() {
	defer close(s.over)
	var (
		msg  wire.Message
		resp wire.ProduceResponse
	)
	for {
		if err := s.s.RecvMsg(&msg); err != nil {
			if !errors.Is(err, io.EOF) {
				s.err = streamError(s.s, err)
			}
			return
		}
		buf := msg.Copy(s.p.c.pool, 0)
		err := resp.Parse(*buf, 0, len(*buf))
		s.p.c.pool.Put(buf)
		if err != nil {
			s.err = fmt.Errorf("the broker's answer cannot be read: %w", err)
			s.cancel(s.err)
			return
		}
		s.answer(&resp)
	}
}

// streamError returns why a stream ended: what the client ended it for, else
// what the broker said.
func streamError(s grpc.ClientStream, err error) error {
	if cause := endedFor(s.Context()); cause != nil {
		return cause
	}
	return rpcError(err)
}

// endedFor returns what ctx was ended for, if that was said.
func endedFor(ctx context.Context) error {
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

func (s *produceStream) answer(r *wire.ProduceResponse) {
	s.mu.Lock()
	s.heard = time.Now()
	first := !s.answered
	s.answered = true
	b := s.inflight[r.RequestID]
	delete(s.inflight, r.RequestID)
	for len(s.order) > 0 && s.inflight[s.order[0]] == nil {
		s.order = s.order[1:]
	}
	if r.Goaway != nil {
		if s.goaway == nil {
			close(s.draining)
		}
		s.goaway = r.Goaway
	}
	s.mu.Unlock()
	if first {
		s.lane.fails(nil)
	}
	if b != nil {
		b.part.answered(b, judge(r, b.part))
	}
}

// forget takes what is unanswered of pt out of the books, oldest first.
func (s *produceStream) forget(pt *partition) (bs []*batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, request := range s.order {
		if b := s.inflight[request]; b != nil && b.part == pt {
			bs = append(bs, b)
			delete(s.inflight, request)
		}
	}
	return bs
}

// bury gives what is unanswered at the end of the stream what is due to it: it
// was not stored when the broker has said that it never read it, or when it
// refused the whole stream before the first answer; else its outcome is in
// doubt.
func (s *produceStream) bury() {
	s.mu.Lock()
	left := make(map[*partition][]*batch)
	var parts []*partition
	for _, id := range s.order {
		b := s.inflight[id]
		if b == nil {
			continue
		}
		if left[b.part] == nil {
			parts = append(parts, b.part)
		}
		left[b.part] = append(left[b.part], b)
	}
	clear(s.inflight)
	s.order = nil
	final := s.goaway.GetFinal()
	refused := !s.answered && refusesStream(s.err)
	s.mu.Unlock()
	for _, pt := range parts {
		switch {
		case final:
			pt.returned(left[pt], s.err)
		case refused:
			for _, b := range left[pt] {
				pt.answered(b, verdict{err: s.err, base: -1})
			}
		default:
			why := s.err
			if why == nil {
				why = errStreamEnded
			}
			for _, b := range left[pt] {
				pt.answered(b, verdict{err: unknown(why), base: -1, lost: true})
			}
		}
	}
}
