package rpc

import (
	"time"

	"github.com/google/uuid"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
)

// A timeLimit is how long a request may take, and until when.
type timeLimit struct {
	timeout  time.Duration
	deadline time.Time
}

// goesAway reports whether a failure to write here means that the router is to
// find who can take the write.
func (p *produceSession) goesAway(err error) bool {
	return p.svc.opts.Router != nil && p.req.Routing != int32(runnelv1.Routing_ROUTING_DIRECT) && router.Routable(err)
}

// leadsHere reports whether part is to be tried on this broker first. It is not
// while earlier parts of the stream for the same partition are on their way
// elsewhere: they come first.
func (p *produceSession) leadsHere(pt *producePart) bool {
	switch {
	case pt.part == nil:
		return false
	case p.away != nil && p.away.Busy(pt.key.topic, pt.key.number) != nil:
		return false
	case p.svc.opts.Router == nil || p.req.Routing == int32(runnelv1.Routing_ROUTING_DIRECT):
		return true
	}
	return pt.part.State().Leader
}

// forward gives part i of the present request to the router, which tells done.
// An error means that it did not.
func (p *produceSession) forward(
	pt *producePart, i int, t *metadata.Topic, buf *[]byte, limit timeLimit, done func(router.Result),
) (*router.Write, error) {
	w := &router.Write{
		Acks: p.req.Acks, Timeout: limit.timeout, Deadline: limit.deadline,
		Answered: p.req.Acks == int32(runnelv1.Acks_ACKS_NONE), Done: done,
	}
	if p.req.HasBatch {
		// The only part there is: it takes the buffer along.
		p.taken = true
		w.Buf, w.Start, w.End = buf, p.req.BatchStart, p.req.BatchEnd
	} else if err := p.pack(w, i, t); err != nil {
		return nil, err
	}
	if p.away == nil {
		p.away = p.svc.opts.Router.NewStream(p.svc, p.principal)
	}
	p.away.Pipeline(pt.key.topic, pt.key.number).Push(w)
	return w, nil
}

// pack makes the records of part i the batch of w.
func (p *produceSession) pack(w *router.Write, i int, t *metadata.Topic) error {
	b := p.svc.builder(limits(t))
	defer p.svc.builders.Put(b)
	batch, err := p.build(b, i)
	if err != nil {
		return err
	}
	msg := batch.Message()
	w.Buf = p.svc.opts.Pool.Get(record.PrefixMax + len(msg))
	w.Start, w.End = record.PrefixMax, record.PrefixMax+len(msg)
	copy((*w.Buf)[w.Start:], msg)
	return nil
}

// storeUnanswered is append for what nobody waits for.
func (p *produceSession) storeUnanswered(pt *producePart, i int, t *metadata.Topic, buf *[]byte, limit timeLimit) error {
	if p.leadsHere(pt) {
		_, err := p.store(pt, i, t, *buf)
		if err == nil || !p.goesAway(err) {
			return err
		}
	}
	_, err := p.forward(pt, i, t, buf, limit, func(res router.Result) {
		if res.Err != nil {
			p.svc.metrics.refused.Inc()
		}
	})
	return err
}

// throttle waits until the stream holds less than it may for other brokers;
// false when the handler has returned.
func (p *produceSession) throttle() bool {
	if p.away == nil {
		return true
	}
	for {
		full, room := p.away.Full()
		if !full {
			return true
		}
		select {
		case <-room:
		case <-p.stop:
			return false
		}
	}
}

// leave takes leave of what is on its way to other brokers.
func (p *produceSession) leave() {
	if p.away != nil {
		p.away.Detach()
	}
}

// WriteLocal implements router.Local: the leadership came here while w was on
// its way.
func (s *LogService) WriteLocal(topic uuid.UUID, n int32, w *router.Write) error {
	part, err := s.opts.Partitions.Get(topic, n)
	if err != nil {
		return err
	}
	t := part.Topic()
	batch, err := s.validator.ParseBatch(*w.Buf, w.Start, w.End, limits(t))
	if err != nil {
		return err
	}
	got, err := s.appendBatch(part, t, &batch, nil, w.Acks)
	if err != nil {
		return err
	}
	w.Stored(got)
	if answeredAtOnce(w.Acks) {
		w.Committed(nil)
		return nil
	}
	w.Await(part.WhenCommitted(got, w.Committed))
	return nil
}

// answeredAtOnce reports whether an append is the end of a write.
func answeredAtOnce(acks int32) bool {
	return acks == int32(runnelv1.Acks_ACKS_LEADER) || acks == int32(runnelv1.Acks_ACKS_NONE)
}

var _ router.Local = (*LogService)(nil)
