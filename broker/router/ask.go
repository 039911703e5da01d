package router

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

// A Part names a partition that a question is about.
type Part struct {
	Topic  uuid.UUID
	Number int32
}

// A Question is asked about partitions, each of its leader.
type Question struct {
	// Method is what it is counted as.
	Method string
	Parts  []Part
	// Changes is true when the answer is that something was changed: then a call
	// that broke leaves an outcome unknown, unless another one succeeds.
	Changes bool
	// Once is true when asking again could undo what was asked later: a call that
	// broke after it was sent is then not repeated, and its outcome is unknown.
	Once bool
	// Here answers part i on this broker.
	Here func(ctx context.Context, i int) error
	// There asks another broker about some of the parts, by index, and tells
	// what it said about each. Its error is that of the whole call.
	There func(ctx context.Context, c replicav1.ForwardServiceClient, at []int) ([]*runnelv1.ItemError, error)
}

// Ask asks until every part has an answer that does not pass by itself, or ctx
// is done, and returns the failures by part. A question may be asked twice: its
// asking again must change nothing.
func (r *Router) Ask(ctx context.Context, q Question) []error {
	errs := make([]error, len(q.Parts))
	hints := make([]view, len(q.Parts))
	open := make([]int, len(q.Parts))
	for i := range open {
		open[i] = i
	}
	broke := make([]bool, len(q.Parts))
	var backoff time.Duration
	for {
		changed := r.opts.Store.Changed()
		r.round(ctx, q, open, errs, hints)
		again := open[:0]
		for _, i := range open {
			if q.Once && errors.Is(errs[i], errBroke) {
				errs[i] = uncertain("the broker that was asked went away before it answered")
				continue
			}
			if errs[i] != nil && routable(errs[i]) {
				broke[i] = broke[i] || errors.Is(errs[i], errBroke)
				if hint, ok := hintOf(errs[i]); ok && hint.epoch > hints[i].epoch {
					hints[i] = hint
				}
				again = append(again, i)
			}
		}
		if open = again; len(open) == 0 {
			return errs
		}
		backoff = nextBackoff(backoff)
		timer := time.NewTimer(backoff)
		select {
		case <-changed:
			backoff = 0 // whoever leads now may not have heard of it yet
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			for _, i := range open {
				if q.Changes && broke[i] {
					errs[i] = uncertain("the leader was asked, and did not answer in time")
				}
			}
			return errs
		}
		timer.Stop()
	}
}

// round asks each leader once.
func (r *Router) round(ctx context.Context, q Question, open []int, errs []error, hints []view) {
	leaders := map[metadata.BrokerID][]int{}
	for _, i := range open {
		v, err := r.leader(q.Parts[i].Topic, q.Parts[i].Number, hints[i])
		if errs[i] = err; err == nil {
			leaders[v.leader] = append(leaders[v.leader], i)
		}
	}
	var calls sync.WaitGroup
	for id, at := range leaders {
		if id != r.self {
			calls.Go(func() { r.call(ctx, q, id, at, errs) })
			continue
		}
		for _, i := range at {
			errs[i] = q.Here(ctx, i)
		}
	}
	calls.Wait()
}

// call asks one broker about the parts that it leads.
func (r *Router) call(ctx context.Context, q Question, id metadata.BrokerID, at []int, errs []error) {
	items, err := r.ask(ctx, q, id, at)
	for k, i := range at {
		if errs[i] = err; err == nil {
			errs[i] = r.remote(items[k])
		}
	}
}

func (r *Router) ask(ctx context.Context, q Question, id metadata.BrokerID, at []int) ([]*runnelv1.ItemError, error) {
	p, err := r.peer(id)
	if err != nil {
		return nil, err
	}
	c, err := p.forward()
	if err != nil {
		return nil, err
	}
	r.forwarded.WithLabelValues(q.Method).Inc()
	items, err := q.There(ctx, c, at)
	switch {
	case errors.Is(err, ErrUnsent):
		return nil, fmt.Errorf("broker %d: %w", id, errUnreachable)
	case err != nil:
		return nil, fmt.Errorf("broker %d: %w", id, errBroke)
	case len(items) != len(at):
		return nil, fmt.Errorf("broker %d answered %d of %d questions: %w", id, len(items), len(at), errBroke)
	}
	return items, nil
}

// AskBroker asks one other broker about itself, once, whether it is in service or
// not. Its errors say why it gave no answer.
func (r *Router) AskBroker(ctx context.Context, method string, id metadata.BrokerID, ask func(replicav1.ForwardServiceClient) error) error {
	p, err := r.peer(id)
	if err != nil {
		return err
	}
	c, err := p.forward()
	if err != nil {
		return err
	}
	r.forwarded.WithLabelValues(method).Inc()
	if err := ask(c); err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	return nil
}

// A Conversation is a stream to the broker that leads a partition.
type Conversation struct {
	Service replicav1.ForwardServiceClient
	done    func()
}

// Close gives its place on the connection back. Call it when the stream has
// ended.
func (c *Conversation) Close() { c.done() }

// Converse returns the service of the broker that leads a partition, for one
// stream, or nil when that is this broker. It does not wait for a leader: the
// errors are those of a leader that is not there.
func (r *Router) Converse(method string, part Part) (*Conversation, error) {
	v, err := r.leader(part.Topic, part.Number, view{})
	if err != nil || v.leader == r.self {
		return nil, err
	}
	p, err := r.peer(v.leader)
	if err != nil {
		return nil, err
	}
	c, done, err := p.reading(1)
	if err != nil {
		return nil, err
	}
	r.forwarded.WithLabelValues(method).Inc()
	return &Conversation{Service: replicav1.NewForwardServiceClient(c), done: done}, nil
}
