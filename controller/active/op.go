package active

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/runnelmq/runnel/controller/store"
)

// The life of an op. It leaves opWaiting and opRunning once, by whoever is first: the loop or a caller that gives up.
const (
	opWaiting int32 = iota
	opRunning
	opAnswered
	opAbandoned
)

// An op is one event that waits for its turn.
type op struct {
	state atomic.Int32
	// run does it and answers it.
	run func(context.Context) error
}

// An answer is what came of an op.
type answer[T any] struct {
	value T
	err   error
}

// serve runs an event. It returns an error only when the tenure is over.
func (a *Active) serve(ctx context.Context, o *op) error {
	if !o.state.CompareAndSwap(opWaiting, opRunning) {
		return nil // its caller is gone
	}
	if err := o.run(ctx); errors.Is(err, store.ErrFenced) {
		return err
	}
	return nil
}

// ask has the loop run fn, and waits for what it returns. The context fn gets is the loop's: what was begun is ended even if the
// caller gives up. drop, which may be nil, gets a value that came when its caller was gone.
func ask[T any](ctx context.Context, a *Active, fn func(context.Context) (T, error), drop func(T)) (T, error) {
	var none T
	answers := make(chan answer[T], 1)
	o := &op{}
	o.run = func(ctx context.Context) error {
		v, err := fn(ctx)
		answers <- answer[T]{v, err}
		if !o.state.CompareAndSwap(opRunning, opAnswered) && err == nil && drop != nil {
			drop(v)
		}
		return err
	}
	select {
	case <-a.ready:
	case <-a.done:
		return none, ErrEnded
	case <-ctx.Done():
		return none, ctx.Err()
	}
	select {
	case a.ops <- o:
	case <-a.done:
		return none, ErrEnded
	case <-ctx.Done():
		return none, ctx.Err()
	}
	select {
	case r := <-answers:
		return r.value, r.err
	case <-a.done:
	case <-ctx.Done():
	}
	switch {
	case o.state.CompareAndSwap(opWaiting, opAbandoned): // never begun
		if err := ctx.Err(); err != nil {
			return none, err
		}
		return none, ErrEnded
	case o.state.CompareAndSwap(opRunning, opAbandoned):
		return none, fmt.Errorf("%w: %w", store.ErrUnknown, context.Cause(ctx))
	default:
		r := <-answers
		return r.value, r.err
	}
}

// do is ask for what has no value.
func (a *Active) do(ctx context.Context, fn func(context.Context) error) error {
	_, err := ask(ctx, a, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) }, nil)
	return err
}
