package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/wire"
)

const (
	// keepAliveAfter is how long a stream may be silent before the client says
	// an empty word: proxies time out each direction on its own.
	keepAliveAfter = 20 * time.Second
	// maxAckTimeout is the longest that brokers wait for acknowledgements.
	maxAckTimeout = 5 * time.Minute
)

var (
	errStreamSilent = errors.New("the broker did not answer a sign of life")
	errStreamEnded  = errors.New("the stream ended before the answer")
)

// A produceStream is one Produce stream and what is unanswered on it.
type produceStream struct {
	p      *Producer
	s      grpc.ClientStream
	cancel context.CancelCauseFunc
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

// schedule puts a partition that has something to send into the ready list.
func (p *Producer) schedule(pt *partition) {
	p.mu.Lock()
	p.ready = append(p.ready, pt)
	p.mu.Unlock()
	poke(p.wake)
}

func (p *Producer) next() *partition {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.ready) == 0 {
		return nil
	}
	pt := p.ready[0]
	p.ready[0] = nil
	p.ready = p.ready[1:]
	return pt
}

func (p *Producer) hasReady() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.ready) > 0
}

func (p *Producer) streamError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streamErr
}

func (p *Producer) setStreamError(err error) {
	p.mu.Lock()
	p.streamErr = err
	p.mu.Unlock()
}

// run keeps a stream open while there is something to send. There is never
// more than one, so that batches of a partition cannot overtake each other.
func (p *Producer) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		if !p.hasReady() {
			select {
			case <-p.wake:
			case <-ctx.Done():
			}
			continue
		}
		s, err := p.open(ctx)
		var wait time.Duration
		if err == nil {
			err = s.serve(ctx)
			wait = rejoinAfter(s.goaway)
			if s.answered {
				failures = 0
			}
		}
		if err != nil {
			failures++
			p.setStreamError(err)
			wait = max(wait, backoffFor(failures))
		}
		if wait > 0 {
			pause(ctx, wait)
		}
	}
}

func (p *Producer) open(ctx context.Context) (*produceStream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	cs, err := p.c.stream(ctx, runnelv1.LogService_Produce_FullMethodName)
	if err != nil {
		cancel(err)
		return nil, rpcError(err)
	}
	return &produceStream{
		p: p, s: cs, cancel: cancel,
		draining: make(chan struct{}), over: make(chan struct{}),
		inflight: map[uint64]*batch{}, heard: time.Now(),
	}, nil
}

// serve sends and receives until the stream ends, and then gives every batch
// that is unanswered what is due to it. It returns nil after a planned end.
func (s *produceStream) serve(ctx context.Context) error {
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
	s.cancel(ctx.Err())
	receiver.Wait()
	s.bury()
	switch {
	case isDone(ctx):
		return nil
	case s.err == nil && !s.answered:
		return errStreamEnded // and would again at once
	}
	return s.err
}

// send sends batches until the stream is over, false, or to be ended, true.
func (s *produceStream) send(ctx context.Context) bool {
	alive := time.NewTicker(keepAliveAfter / 4)
	defer alive.Stop()
	sent := time.Now()
	for {
		for pt := s.p.next(); pt != nil; pt = s.p.next() {
			if s.ended(ctx) {
				s.p.unschedule(pt)
				return ctx.Err() != nil || !s.isOver()
			}
			if !s.sendOne(pt) {
				<-s.over
				return false
			}
			sent = time.Now()
		}
		select {
		case <-s.p.wake:
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

// unschedule takes back that pt was to be sent from, for the next stream.
func (p *Producer) unschedule(pt *partition) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ready = append([]*partition{pt}, p.ready...)
}

// sendOne sends the next batch of pt; false when the stream took nothing.
func (s *produceStream) sendOne(pt *partition) bool {
	now := time.Now()
	b, more := pt.take(now)
	if more {
		s.p.schedule(pt)
	}
	if b == nil {
		return true
	}
	if b.encoded == nil {
		if err := s.p.builders.encode(b, s.p.o.compression.record(), s.p.o.level); err != nil {
			pt.answered(b, verdict{err: recordError(err), base: -1})
			return true
		}
	}
	left := b.due.Sub(now)
	b.encoded.Ref()
	s.mu.Lock()
	s.lastID++
	id := s.lastID
	s.inflight[id] = b
	s.order = append(s.order, id)
	s.mu.Unlock()
	err := s.s.SendMsg(&wire.ProduceBatch{
		RequestID: id, Topic: pt.topic.name, TopicID: pt.id, Partition: pt.number,
		Acks: int32(s.p.o.acks.proto()), Timeout: min(max(left-min(left/10, 2*time.Second), time.Millisecond), maxAckTimeout),
		LeaderEpoch: -1, Batch: b.encoded,
	})
	if err == nil {
		return true
	}
	// gRPC took nothing of it: it may go with the next stream.
	s.mu.Lock()
	_, mine := s.inflight[id]
	delete(s.inflight, id)
	s.mu.Unlock()
	if mine {
		pt.returned([]*batch{b}, nil)
	}
	return false
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
				s.err = rpcError(err)
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
		s.p.setStreamError(nil)
	}
	if b != nil {
		b.part.answered(b, judge(r, b.part))
	}
}

// judge turns an answer into what it means for the batch.
func judge(r *wire.ProduceResponse, pt *partition) verdict {
	if r.Error == nil {
		v := verdict{base: r.BaseOffset}
		if r.AppendTimeMs != wire.None {
			v.stampMs = r.AppendTimeMs
		}
		return v
	}
	err := itemError(r.Error)
	v := verdict{err: err, base: -1, pause: r.Error.GetRetryAfter().AsDuration()}
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
	case errors.Is(err, ErrRecordTooLarge):
		v.split = true
		pt.topic.stale()
	case errors.Is(err, ErrTopicNotFound), errors.Is(err, ErrPartitionNotFound), errors.Is(err, ErrTopicIDMismatch):
		pt.topic.stale()
	default:
		v.again = Retriable(err)
	}
	return v
}

// bury gives what is unanswered at the end of the stream what is due to it: it
// is sent again when the broker has said that it never read it, or when it
// refused the whole stream before the first answer; else its outcome is
// unknown.
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
				pt.answered(b, verdict{err: s.err, base: -1, lost: true})
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

// refusesStream reports whether err is about the caller and not about what was
// sent: nothing of a stream that begins with it is read.
func refusesStream(err error) bool {
	e, ok := errors.AsType[*Error](err)
	return ok && slices.Contains([]codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented}, e.Code)
}
