package client_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// The leader falls silent, and another one is elected: what it was sent goes to
// the new one, long before its connection is found dead.
func TestProducer_frozenLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, map[string]int{"t": 1})
		p := producer(t, f.client(t), client.BatchBytes(1<<10))
		y := newTally()
		send(t, p, y, 0, 500)
		flush(t, p)
		synctest.Wait() // the leader is known
		n := f.calls
		f.locked(func() {
			f.onProduce = func(i int, _ *runnelv1.ProduceRequest) action {
				if f.topics["t"].parts[0].leader == 0 {
					return action{drop: i%2 == n%2, ignore: i%2 != n%2}
				}
				return action{}
			}
		})
		send(t, p, y, 500, 1000)
		synctest.Wait()
		begun := time.Now()
		f.locked(func() { f.topics["t"].parts[0].lead(1) })
		flush(t, p)
		if took := time.Since(begun); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
		y.check(t, 1000, 0, 0)
		f.exactly(t, 1000)
	})
}

// The leader that falls silent is also the only seed, which would tell of its
// end: others are asked.
func TestProducer_frozenSeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 1})
		c := f.client(t)
		p := producer(t, c, client.BatchBytes(1<<10))
		y := newTally()
		send(t, p, y, 0, 500)
		flush(t, p)
		synctest.Wait() // the leader is known
		f.locked(func() {
			f.nodes[0].frozen = true
			f.topics["t"].parts[0].lead(1)
		})
		begun := time.Now()
		send(t, p, y, 500, 1000)
		flush(t, p)
		if took := time.Since(begun); took > 6*time.Second {
			t.Errorf("took %v", took)
		}
		y.check(t, 1000, 0, 0)
		f.exactly(t, 1000)
		f.locked(func() { f.topics["t"].parts[0].lead(2) })
		begun = time.Now()
		send(t, p, y, 1000, 1500)
		flush(t, p)
		if took := time.Since(begun); took > time.Second {
			t.Errorf("the next move took %v", took)
		}
	})
}

// A client that sends everything through its seeds leaves one that falls silent, long
// before its connection is found dead.
func TestProxied_frozenSeed(t *testing.T) {
	for name, opts := range map[string][]client.ProducerOption{"idempotent": nil, "not idempotent": {client.WithoutIdempotence()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(t, 2, map[string]int{"t": 1})
				c := f.known(t, client.WithRouting(client.Proxy))
				p := producer(t, c, opts...)
				r := newReader(t, c)
				assign(t, r, client.Assignment{Topic: "t"})
				y := newTally()
				send(t, p, y, 0, 100)
				flush(t, p)
				read(t, r, 100)
				f.locked(func() { f.nodes[0].frozen = true })
				begun := time.Now()
				if name != "idempotent" {
					// Nobody can tell what became of the first one.
					if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "t", Value: []byte("?")}); !errors.Is(err, client.ErrOutcomeUnknown) {
						t.Errorf("%v: want an unknown outcome", err)
					}
				}
				send(t, p, y, 100, 200)
				flush(t, p)
				if took := time.Since(begun); took > 5*time.Second {
					t.Errorf("produced after %v", took)
				}
				read(t, r, 100)
				if took := time.Since(begun); took > 8*time.Second {
					t.Errorf("read after %v", took)
				}
				y.check(t, 200, 0, 0)
			})
		})
	}
}
