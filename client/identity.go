package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// An identity is what brokers know a producer by.
type identity struct{ id, epoch int64 }

// number writes the identity, and the number of b, into h.
func (id *identity) number(h *record.Header, b *batch) {
	h.ProducerID = record.ProducerID(id.id)
	h.ProducerEpoch = record.ProducerEpoch(id.epoch + b.epoch)
	h.BaseSequence = record.Sequence(b.seq)
}

// identified reports whether batches can be numbered. When they cannot be yet,
// it asks for an identity.
func (p *Producer) identified() bool {
	if !p.o.idempotent || p.identity.Load() != nil {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.identifying {
		p.identifying = p.startLocked(p.identify)
	}
	return false
}

// identify asks for an identity until there is one, it is refused, or nothing
// waits for it.
func (p *Producer) identify(ctx context.Context) {
	var err error
	for attempt := 1; ; attempt++ {
		var id *identity
		if id, err = p.c.initProducer(ctx); err == nil {
			// Never another one: what was sent under the first is known by it.
			p.identity.CompareAndSwap(nil, id)
			break
		}
		if ctx.Err() != nil {
			return // Close says what becomes of what is left
		}
		p.mu.Lock()
		p.identityErr = err
		p.mu.Unlock()
		if !passes(err) || p.memory.used.Load() == 0 {
			break
		}
		pause(ctx, backoffFor(attempt))
	}
	p.mu.Lock()
	p.identifying = false
	if err == nil {
		p.identityErr = nil
	}
	p.mu.Unlock()
	p.eachPartition(func(pt *partition) {
		if err != nil && !passes(err) {
			pt.failUnsent(err)
		}
		pt.wake()
	})
}

// passes reports whether a question that changes nothing may be asked again.
func passes(err error) bool {
	return Retriable(err) || errors.Is(err, ErrControllerUnavailable) || errors.Is(err, context.DeadlineExceeded)
}

func (c *Client) initProducer(ctx context.Context) (*identity, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := runnelv1.NewProducerServiceClient(questions{c}).InitProducer(ctx, &runnelv1.InitProducerRequest{})
	if err != nil {
		err = rpcError(err)
		if hasCode(err, codes.Unimplemented) {
			err = fmt.Errorf("the brokers have no idempotent producers: upgrade them, or accept that a record may be stored twice, "+
				"or be lost with its outcome unknown, by making the producer with client.WithoutIdempotence(): %w", err)
		}
		return nil, err
	}
	if resp.GetProducerId() < 1 {
		return nil, fmt.Errorf("init producer: the broker gave the id %d", resp.GetProducerId())
	}
	return &identity{id: resp.GetProducerId(), epoch: resp.GetProducerEpoch()}, nil
}
