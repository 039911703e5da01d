package rpc

import (
	"context"
	"time"

	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

// appendOne is Produce for the one request in msg, which it frees.
func (s *LogService) appendOne(ctx context.Context, msg *wire.Message) (*wire.ProduceResponse, error) {
	p := s.newProducer(ctx)
	defer p.leave()
	defer p.calls.abandonAll()
	c := p.calls.admit(p)
	buf := msg.Copy(s.opts.Pool, record.PrefixMax)
	err := p.req.ParseWrapped(*buf, record.PrefixMax, len(*buf))
	if err == nil {
		p.handle(ctx, c, buf)
	}
	if !p.taken {
		s.opts.Pool.Put(buf)
	}
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if p.sending, _ = p.calls.take(p.sending[:0]); len(p.sending) > 0 {
			break
		}
		now := time.Now()
		rearm(timer, now, p.calls.expire(now))
		select {
		case <-p.calls.wake:
		case <-timer.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if err := c.wholeError(); err != nil {
		return nil, err
	}
	p.answer(c)
	p.resp.RequestID = 0 // "request_id is ignored"
	p.resp.Wrapped = true
	return &p.resp, nil
}

// read handles the server-streaming Read: Fetch with one request, no edits.
func (s *LogService) read(ss grpc.ServerStream) error {
	var msg wire.Message
	if err := ss.RecvMsg(&msg); err != nil {
		return err
	}
	var req runnelv1.ReadRequest
	if err := msg.Decode(s.opts.Pool, &req); err != nil {
		return invalid("the request is no ReadRequest: %s", rpcerr.Clean(err.Error()))
	}
	first := req.GetRequest()
	switch {
	case len(first.GetRemove())+len(first.GetPause())+len(first.GetResume()) > 0:
		return invalid("Read takes no edits (remove, pause, resume): use Fetch")
	case first.GetCreditBytes() != 0 || first.GetOptions() != nil && first.GetOptions().InitialCreditBytes != nil:
		return invalid("Read takes no credit (initial_credit_bytes, credit_bytes): use Fetch")
	}
	f := s.newFetcher(ss, true)
	return f.run(first)
}
