package rpc

import (
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/topicconfig"
	"github.com/runnelmq/runnel/internal/wire"
)

// A produceSession is one Produce stream, or one Append call. The reader's goroutine
// takes requests in and appends; the handler's goroutine sends the answers.
type produceSession struct {
	svc       *LogService
	principal string // who writes
	calls     callBook
	// slots limits the calls that were read and not answered; the reader puts
	// one in before it reads.
	slots chan struct{}
	// stop is closed when the handler returns.
	stop chan struct{}

	// The fields below belong to the reader.

	req     wire.ProduceRequest
	records wire.Records
	planner planner
	// away is the account of what goes to other brokers; nil until something does.
	away *router.Stream
	// taken is true when the present request's buffer was given away.
	taken bool
	// found is what the last request resolved to, good while image is current.
	found struct {
		image *metadata.Image
		topic *metadata.Topic
		id    string // its id, as text
	}

	// The fields below belong to the sender.

	resp    wire.ProduceResponse
	sending []*produceCall
}

func (s *LogService) newProducer(ctx context.Context) *produceSession {
	p := &produceSession{svc: s, principal: rpcserver.Principal(ctx), slots: make(chan struct{}, s.opts.MaxInflight), stop: make(chan struct{})}
	p.calls.init(s.metrics.parked)
	return p
}

// produce handles a Produce stream.
func (s *LogService) produce(ss grpc.ServerStream) error {
	p := s.newProducer(ss.Context())
	defer p.calls.abandonAll()
	defer close(p.stop)
	s.readers.Go(func() {
		p.receive(ss)
		<-p.stop
		p.leave()
	})
	return p.send(ss)
}

// receive reads requests until the stream ends, the client half-closes, or the
// broker has said its last word.
func (p *produceSession) receive(ss grpc.ServerStream) {
	ctx := ss.Context()
	var msg wire.Message
	for {
		select {
		case p.slots <- struct{}{}:
		case <-p.stop:
			return
		}
		if err := ss.RecvMsg(&msg); err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			p.calls.finish(err)
			return
		}
		c := p.calls.admit(p)
		if c == nil {
			msg.Free()
			return
		}
		buf := msg.Copy(p.svc.opts.Pool, record.PrefixMax)
		if err := p.req.Parse(*buf, record.PrefixMax, len(*buf)); err != nil {
			c.id = p.req.RequestID
			p.calls.answer(c, err)
		} else if p.req.KeepAlive() {
			c.id = p.req.RequestID
			p.calls.answer(c, nil)
		} else {
			p.handle(ctx, c, buf)
		}
		if !p.taken {
			p.svc.opts.Pool.Put(buf)
		}
		p.taken = false
		if !p.throttle() {
			return
		}
	}
}

// send sends answers until all that was read is answered and nothing more is to
// be read.
func (p *produceSession) send(ss grpc.ServerStream) error {
	ctx := ss.Context()
	now := time.Now()
	bye := p.svc.farewell(now)
	var reason runnelv1.GoawayReason
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		state, err := p.flush(ss)
		if err != nil {
			return err
		}
		now = time.Now()
		switch {
		case state.last && state.ended:
			return state.cause
		case state.last:
			p.resp = wire.ProduceResponse{Partition: wire.None, BaseOffset: wire.None, AppendTimeMs: wire.None, LogStart: wire.None, Goaway: bye.last(reason)}
			if err := ss.SendMsg(&p.resp); err != nil {
				return err
			}
			return errStreamEnded
		case bye.over(now):
			p.calls.close() // what was read until now is still answered
			bye = farewell{}
		}
		if why, ok := bye.due(now); ok {
			reason = why
			p.resp = wire.ProduceResponse{Partition: wire.None, BaseOffset: wire.None, AppendTimeMs: wire.None, LogStart: wire.None, Goaway: bye.begin(why, now)}
			if err := ss.SendMsg(&p.resp); err != nil {
				return err
			}
		}
		rearm(timer, now, earlier(bye.next(), p.calls.expire(now)))
		select {
		case <-p.calls.wake:
		case <-timer.C:
		case <-bye.draining():
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// flush sends the answers there are.
func (p *produceSession) flush(ss grpc.ServerStream) (bookState, error) {
	var state bookState
	p.sending, state = p.calls.take(p.sending[:0])
	for _, c := range p.sending {
		p.answer(c)
		if err := ss.SendMsg(&p.resp); err != nil {
			return state, err
		}
		p.calls.sent(c)
		<-p.slots
	}
	clear(p.sending)
	return state, nil
}

// answer makes p.resp the answer to c.
func (p *produceSession) answer(c *produceCall) {
	p.resp = wire.ProduceResponse{
		RequestID: c.id, Partition: wire.None, BaseOffset: wire.None, AppendTimeMs: wire.None, LogStart: wire.None,
		Results: p.resp.Results[:0],
	}
	r := &p.resp
	if err := c.wholeError(); err != nil {
		r.Error = p.svc.item(err)
		return
	}
	if len(c.parts) == 1 && c.parts[0].err == nil {
		pt := c.parts[0]
		r.Duplicate = pt.got.Duplicate
		r.Partition, r.BaseOffset, r.LogStart = pt.key.number, int64(pt.got.Base), int64(pt.got.LogStart)
		if pt.logAppendTime {
			r.AppendTimeMs = pt.got.AppendTimeMs
		}
	}
	items := make([]*runnelv1.ItemError, len(c.parts))
	for i, pt := range c.parts {
		if pt.err != nil {
			items[i] = p.svc.item(pt.err)
		}
	}
	for _, at := range c.places {
		pt := c.parts[at.part]
		res := wire.ProduceResult{Partition: pt.key.number, Offset: wire.None, Error: items[at.part]}
		if pt.err == nil {
			res.Offset = int64(pt.got.Base) + int64(at.index)
		}
		r.Results = append(r.Results, res)
	}
}

// wholeError is why the request as a whole failed: what was wrong with it, or
// what befell its only partition. A batch of records that may have been stored
// is told of in the results.
func (c *produceCall) wholeError() error {
	if c.err != nil || len(c.parts) != 1 {
		return c.err
	}
	if pt := c.parts[0]; c.batch || !errors.Is(pt.err, partition.ErrCommitUncertain) {
		return pt.err
	}
	return nil
}

// rearm sets a timer to a time, or far away for zero.
func rearm(t *time.Timer, now, at time.Time) {
	if at.IsZero() {
		t.Reset(time.Hour)
		return
	}
	t.Reset(max(at.Sub(now), 0))
}

// stampedByLeader reports whether the leader's clock gives the times of t.
func stampedByLeader(t *metadata.Topic) bool {
	return t.Config.TimestampType == topicconfig.LogAppendTime
}

// appendHandler handles the unary Append.
func (s *LogService) appendHandler(
	_ any, ctx context.Context, decode func(any) error, interceptor grpc.UnaryServerInterceptor, //nolint:revive // the order is gRPC's
) (any, error) {
	var msg wire.Message
	if err := decode(&msg); err != nil {
		return nil, err
	}
	if interceptor == nil {
		return s.appendOne(ctx, &msg)
	}
	info := &grpc.UnaryServerInfo{Server: s, FullMethod: runnelv1.LogService_Append_FullMethodName}
	return interceptor(ctx, &msg, info, func(ctx context.Context, _ any) (any, error) {
		return s.appendOne(ctx, &msg)
	})
}
