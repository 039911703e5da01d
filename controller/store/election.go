package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// electionTry is how long one call of an election may take. See txnTimeout.
const electionTry = 500 * time.Millisecond

// resignTimeout bounds the end of a tenure: without a majority nobody hears of it, and a process that ends has little time.
const resignTimeout = 1500 * time.Millisecond

// A Tenure is one controller's time as the active one.
type Tenure struct {
	Fence Fence
	Epoch int64 // rises by one with each election
	lease LeaseID
	ttl   time.Duration
	// granted is when the lease's time began at the latest that is sure to be early enough: when it was asked for.
	granted time.Time
}

// Campaign tries once to become the active controller. counters is the newest that the caller has seen. won is false when
// another is active, or when counters is out of date.
func (s *Store) Campaign(ctx context.Context, me state.Controller, counters *state.Counters, ttl time.Duration) (t Tenure, won bool, err error) {
	t.ttl, t.granted = ttl, time.Now()
	granting, cancel := context.WithTimeout(ctx, electionTry)
	t.lease, err = s.kv.Grant(granting, ttl)
	cancel()
	if err != nil {
		return Tenure{}, false, fmt.Errorf("election: %w", err)
	}
	next := *counters
	next.ControllerEpoch++
	me.Epoch, t.Epoch = next.ControllerEpoch, next.ControllerEpoch
	writes, err := s.writes([]state.Change{{Key: me.Key(), Object: &me}, {Key: next.Key(), Object: &next}})
	if err != nil {
		return Tenure{}, false, err
	}
	writes[0].Lease = t.lease
	_, err = s.txn(ctx, []Compare{
		{Key: writes[0].Key, Create: true},
		{Key: writes[1].Key, Revision: int64(counters.Revision)},
	}, writes)
	if err != nil {
		s.ambiguous.Add(1)
	}
	// Whatever the answer was: who stands there now is active.
	page, rerr := s.read(ctx, []string{writes[0].Key})
	if rerr == nil && len(page.Pairs) > 0 && page.Pairs[0].Lease == t.lease && bytes.Equal(page.Pairs[0].Value, writes[0].Value) {
		t.Fence = Fence(page.Pairs[0].Create)
		return t, true, nil
	}
	return Tenure{}, false, errors.Join(err, rerr, s.Resign(ctx, t))
}

// Hold keeps a tenure alive until ctx is done or it has ended, which it takes for granted once its time to live has passed
// since it last asked for more and got it: the clock starts with the question, so this side gives up before etcd does.
func (s *Store) Hold(ctx context.Context, t Tenure) error {
	deadline := t.granted.Add(t.ttl)
	for ctx.Err() == nil {
		if !lifecycle.Wait(ctx, t.ttl/4) {
			return nil
		}
		asked := time.Now()
		one, cancel := context.WithDeadline(ctx, deadline)
		err := s.kv.KeepAlive(one, t.lease)
		cancel()
		switch {
		case err == nil:
			deadline = asked.Add(t.ttl)
		case errors.Is(err, ErrNoLease), !time.Now().Before(deadline):
			return fmt.Errorf("%w: the election lease was lost: %w", ErrFenced, err)
		}
	}
	return nil
}

// Resign ends a tenure at once, so that another controller need not wait for it to time out.
func (s *Store) Resign(ctx context.Context, t Tenure) error {
	if t.lease == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, resignTimeout)
	defer cancel()
	_, err := again(ctx, func(ctx context.Context) (struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, electionTry)
		defer cancel()
		return struct{}{}, s.kv.Revoke(ctx, t.lease)
	})
	return err
}

// Depose ends the tenure of a controller that is known to be dead. It is safe even if that was wrong: the election is liveness
// only. Nothing happens when another incarnation is active by now.
func (s *Store) Depose(ctx context.Context, incarnation uuid.UUID) error {
	page, err := s.read(ctx, []string{s.electionKey()})
	if err != nil || len(page.Pairs) == 0 {
		return err
	}
	p := page.Pairs[0]
	o, err := encoding.Unmarshal(state.Key{Kind: state.KindController}, p.Value, state.Revision(p.Mod))
	if err != nil {
		return err
	}
	if c, ok := o.(*state.Controller); !ok || c.Incarnation != incarnation || p.Lease == 0 {
		return nil
	}
	// The dead controller may have led etcd, too: until there is a new leader, what is asked for is lost.
	_, err = again(ctx, func(ctx context.Context) (struct{}, error) {
		ctx, cancel := context.WithTimeout(ctx, electionTry)
		defer cancel()
		return struct{}{}, s.kv.Revoke(ctx, p.Lease)
	})
	return err
}
