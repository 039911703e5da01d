package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

func storageFull() *runnelv1.ItemError {
	return item(runnelv1.ErrorReason_ERROR_REASON_STORAGE_FULL, codes.ResourceExhausted)
}

// many produces n records that need several batches, all at once.
func many(t *testing.T, p *client.Producer, y *tally, n int) {
	t.Helper()
	for i := range n {
		p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte(strings.Repeat("x", 500) + itoa(i))}, y.done(itoa(i)))
	}
}

// A disk that is full from the first batch on: the broker refuses that one, and
// those behind it for what they are behind of. Nothing of that is in doubt,
// whether time is up or the producer is closed.
func TestProducer_refusedIsNotUnknown(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, p *client.Producer){
		"time is up": flush,
		"closed": func(t *testing.T, p *client.Producer) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), 1700*time.Millisecond) // between two tries
			defer cancel()
			_ = p.Close(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				first := int64(-1)
				f.onProduce = func(_ int, req *runnelv1.ProduceRequest) action {
					h := req.GetBatch()
					if first < 0 || h.GetBaseSequence() == first {
						first = h.GetBaseSequence()
						return action{err: storageFull()}
					}
					return action{} // the leader knows no such producer
				}
				p := producer(t, f.client(t), client.BatchBytes(1<<10), client.DeliveryTimeout(5010*time.Millisecond))
				y := newTally()
				many(t, p, y, 40)
				end(t, p)
				y.check(t, 0, 40, 0)
				for v, r := range y.results {
					if !errors.Is(r.Err, client.ErrStorageFull) {
						t.Errorf("%s: %v, want the reason of the first", v, r.Err)
						break
					}
				}
			})
		})
	}
}

// What was sent and never answered stays in doubt, whatever is refused later;
// what was never sent has failed for certain, although it waited for that.
func TestProducer_refusedAfterDoubtIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			if n == 1 {
				return action{kill: status.Error(codes.Unavailable, "gone")}
			}
			return action{err: storageFull()}
		}
		p := producer(t, f.client(t), client.MaxInFlight(1), client.BatchBytes(1<<10), client.DeliveryTimeout(5010*time.Millisecond))
		y := newTally()
		many(t, p, y, 4) // in batches of two or fewer
		flush(t, p)
		unknown := y.count(client.Unknown)
		if unknown == 0 || unknown > 2 || y.count(client.Failed) != 4-unknown {
			t.Errorf("%d unknown and %d failed of 4, want the first batch to be unknown", unknown, y.count(client.Failed))
		}
		if err := y.of("0").Err; !errors.Is(err, client.ErrOutcomeUnknown) {
			t.Errorf("the first: %v, want it unknown", err)
		}
	})
}

// Nothing was sent as long as there is no identity, or no topic: however the
// question about those ended, the record is not in the log.
func TestProducer_unaskedIsNotUnknown(t *testing.T) {
	for name, it := range map[string]*runnelv1.ItemError{
		"no controller": item(runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE, codes.Unavailable),
		"internal":      item(runnelv1.ErrorReason_ERROR_REASON_INTERNAL, codes.Internal),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				f.noIDs = it
				p := producer(t, f.client(t), client.DeliveryTimeout(5*time.Second))
				rs, err := p.ProduceSync(t.Context(), client.Record{Topic: "t"})
				if rs[0].Outcome() != client.Failed || client.Reason(err) == "" {
					t.Errorf("%v: %v, want it failed for certain, and why", rs[0].Outcome(), err)
				}
				if e, ok := errors.AsType[*client.Error](err); !ok || e.OutcomeUnknown {
					t.Errorf("%+v says that the outcome is unknown", e)
				}
			})
		})
	}
}

// What Close leaves without an outcome says so once, and in words.
func TestProducer_closeCutShortSaysWhatItMeans(t *testing.T) {
	const unanswered = "outcome unknown: the producer was closed before the answer"
	for name, c := range map[string]struct {
		opts []client.ProducerOption
		do   func(f *fakeBroker)
		want string
	}{
		"no answer": {nil, func(f *fakeBroker) {
			f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} }
		}, unanswered},
		"no answer, not numbers": {[]client.ProducerOption{client.WithoutIdempotence()}, func(f *fakeBroker) {
			f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{ignore: true} }
		}, unanswered},
		"refused": {nil, func(f *fakeBroker) {
			f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{err: storageFull()} }
		}, "the producer is closed: the fake says so (STORAGE_FULL)"},
		"lost": {nil, func(f *fakeBroker) {
			f.onProduce = func(int, *runnelv1.ProduceRequest) action {
				return action{kill: status.Error(codes.Unavailable, "gone")}
			}
		}, unanswered + ": the connection to the broker was lost: gone"},
		"topic not known": {nil, func(f *fakeBroker) { f.nodes[0].blackhole = true }, "the producer is closed"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				c.do(f)
				p := producer(t, f.client(t), c.opts...)
				y := newTally()
				send(t, p, y, 0, 1)
				synctest.Wait()
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := p.Close(ctx); err == nil || err.Error() != "close: context canceled" {
					t.Errorf("close: %v", err)
				}
				if err := y.of("0").Err; err == nil || err.Error() != c.want {
					t.Errorf("%q, want %q", err, c.want)
				}
			})
		})
	}
}

// A call that its caller gave up says so once.
func TestClient_canceledCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 1, map[string]int{"t": 1})
		f.nodes[0].frozen = true
		c := f.client(t)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		if err := c.Ping(ctx); !errors.Is(err, context.Canceled) || err.Error() != "context canceled" {
			t.Errorf("ping: %v", err)
		}
	})
}
