package client_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

func uncertain() *runnelv1.ItemError {
	it := item(runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN, codes.DeadlineExceeded)
	it.OutcomeUnknown = true
	return it
}

// exactly wants the numbers [0, n) in partition 0 of "t", each once and in
// order.
func (f *fakeBroker) exactly(t *testing.T, n int) {
	t.Helper()
	got := f.all(t, "t", 0)
	for i, r := range got {
		if string(r.Value) != itoa(i) {
			t.Fatalf("record %d is %q; %d are stored, want %d", i, r.Value, len(got), n)
		}
	}
	if len(got) != n {
		t.Fatalf("%d records are stored, want %d", len(got), n)
	}
}

// Whatever goes wrong on the way, each record is stored once, in order, and
// acknowledged.
func TestProducer_retriesStoreNothingTwice(t *testing.T) {
	for name, decide := range map[string]func(n int, req *runnelv1.ProduceRequest) action{
		"answers lost, stream broken": func(n int, _ *runnelv1.ProduceRequest) action {
			if n%7 == 5 {
				return action{kill: errBroken}
			}
			return action{drop: n%7 == 3 || n%7 == 4}
		},
		"the first answer lost": func(n int, _ *runnelv1.ProduceRequest) action {
			if n == 2 {
				return action{kill: errBroken}
			}
			return action{drop: n == 1}
		},
		"uncertain, and stored": func(n int, _ *runnelv1.ProduceRequest) action {
			if n%13 == 2 {
				return action{also: uncertain()}
			}
			return action{}
		},
		"uncertain, and not stored": func(n int, _ *runnelv1.ProduceRequest) action {
			if n%13 == 2 {
				return action{err: uncertain()}
			}
			return action{}
		},
		"refused in between": refuse(runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, codes.Unavailable, 1, 3, 4, 9, 17, 18),
		"refused, then broken": func(n int, _ *runnelv1.ProduceRequest) action {
			switch n % 17 {
			case 2:
				return action{err: item(runnelv1.ErrorReason_ERROR_REASON_MOVING, codes.Unavailable)}
			case 5:
				return action{drop: true}
			case 6:
				return action{kill: errBroken}
			}
			return action{}
		},
		"too large now and then": func(n int, req *runnelv1.ProduceRequest) action {
			if (n == 3 || n == 7) && req.GetBatch().GetRecordCount() > 1 {
				return action{err: item(runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE, codes.InvalidArgument)}
			}
			return action{}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake(t, map[string]int{"t": 1})
				f.onProduce = decide
				p := producer(t, f.client(t), client.BatchBytes(1<<10))
				y := newTally()
				send(t, p, y, 0, 2000)
				flush(t, p)
				y.check(t, 2000, 0, 0)
				f.increasing(t, y)
				f.exactly(t, 2000)
			})
		})
	}
}

// A batch that fails for certain leaves no gap in the numbers of those after it.
func TestProducer_failedBatchLeavesNoGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = refuse(runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH, codes.InvalidArgument, 2, 9)
		p := producer(t, f.client(t), client.BatchBytes(1<<10))
		y := newTally()
		send(t, p, y, 0, 2000)
		flush(t, p)
		failed := y.count(client.Failed)
		if failed == 0 || failed > 1000 {
			t.Errorf("%d records failed, want those of two batches", failed)
		}
		y.check(t, 2000-failed, failed, 0)
		f.increasing(t, y)
	})
}

// When the log has forgotten the producer, what was sent once is numbered anew,
// and what may be stored is unknown.
func TestProducer_stateLost(t *testing.T) {
	for _, inDoubt := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			f := newFake(t, map[string]int{"t": 1})
			p := producer(t, f.client(t), client.BatchBytes(1<<10))
			y := newTally()
			send(t, p, y, 0, 500)
			flush(t, p)
			stored := f.calls
			f.locked(func() {
				f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
					if n != stored+2 {
						return action{drop: inDoubt && n == stored+1}
					}
					clear(f.topics["t"].parts[0].known) // its holder has mu
					if inDoubt {
						return action{kill: errBroken}
					}
					return action{}
				}
			})
			send(t, p, y, 500, 2000)
			flush(t, p)
			unknown := y.count(client.Unknown)
			if inDoubt != (unknown > 0) {
				t.Errorf("in doubt %v: %d are unknown", inDoubt, unknown)
			}
			y.check(t, 2000-unknown, 0, unknown)
			f.increasing(t, y)
		})
	}
}

// Brokers without idempotent producers: the error says what to do.
func TestProducer_noIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.noIDs = item(runnelv1.ErrorReason_ERROR_REASON_UNSPECIFIED, codes.Unimplemented)
		c := f.client(t)
		p := producer(t, c)
		begun := time.Now()
		_, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")})
		if err == nil || !strings.Contains(err.Error(), "WithoutIdempotence()") || errors.Is(err, client.ErrOutcomeUnknown) {
			t.Errorf("%v, want one that names WithoutIdempotence", err)
		}
		if took := time.Since(begun); took > time.Second {
			t.Errorf("took %v", took)
		}
		other := producer(t, c, client.WithoutIdempotence())
		if _, err := other.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("x")}); err != nil {
			t.Error(err)
		}
		// No controller is a passing trouble.
		f.locked(func() { f.noIDs = item(runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE, codes.Unavailable) })
		done := newTally()
		p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte("y")}, done.done("y"))
		time.Sleep(5 * time.Second)
		f.locked(func() { f.noIDs = nil })
		flush(t, p)
		done.check(t, 1, 0, 0)
	})
}

// PD-09: the first batches of a producer meet a broker that does not lead any
// more, over and over.
func TestProducer_leaderMovesAtTheFirstBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			if n%8 == 1 {
				p := f.topics["t"].parts[0]
				p.lead((p.leader + 1) % 3)
			}
			return action{}
		}
		p := producer(t, f.client(t), client.BatchBytes(1<<10))
		y := newTally()
		send(t, p, y, 0, 20_000)
		flush(t, p)
		y.check(t, 20_000, 0, 0)
		f.exactly(t, 20_000)
		if moves := f.topics["t"].parts[0].epoch; moves < 30 {
			t.Errorf("only %d leader moves", moves)
		}
	})
}

// A record whose time was up before its answer is unknown, and stored late; the
// ones after it are stored all the same, and none is taken for it.
func TestProducer_goesOnAfterUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			if n == 2 {
				return action{wait: 5 * time.Second}
			}
			return action{}
		}
		p := producer(t, f.client(t), client.DeliveryTimeout(time.Second))
		y := newTally()
		for i := range 4 {
			send(t, p, y, i, i+1)
			flush(t, p)
		}
		time.Sleep(10 * time.Second)
		send(t, p, y, 4, 6)
		flush(t, p)
		if y.results["1"].Outcome() != client.Unknown || y.results["0"].Outcome() != client.Acknowledged || y.results["5"].Outcome() != client.Acknowledged {
			t.Errorf("outcomes: %+v", y.results)
		}
		y.check(t, 6-y.count(client.Unknown), 0, y.count(client.Unknown))
		f.increasing(t, y)
	})
}

// Without numbers too, the order is kept and nothing fails while leaders move:
// what goes to the next leader waits for the answers of the last one.
func TestProducer_leaderMovesWithoutNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 1})
		f.onProduce = func(n int, _ *runnelv1.ProduceRequest) action {
			if n%10 == 5 {
				p := f.topics["t"].parts[0]
				p.lead((p.leader + 1) % 3)
				close(f.changed) // the watches tell at once
				f.changed = make(chan struct{})
			}
			return action{wait: time.Duration(n%3) * 10 * time.Millisecond}
		}
		p := producer(t, f.client(t), client.BatchBytes(1<<10), client.WithoutIdempotence())
		y := newTally()
		p.Produce(t.Context(), client.Record{Topic: "t", Key: make([]byte, 2<<10), Value: []byte("0")}, y.done("0"))
		flush(t, p)
		send(t, p, y, 1, 10_000)
		flush(t, p)
		y.check(t, 10_000, 0, 0)
		f.increasing(t, y)
	})
}
