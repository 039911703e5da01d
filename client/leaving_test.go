package client_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/memnet"
)

// leave takes the last broker out of the cluster; the others lead what it led.
func (f *fakeBroker) leave() (gone *fakeNode) {
	f.locked(func() {
		last := len(f.nodes) - 1
		gone = f.nodes[last]
		for _, topic := range f.topics {
			for i, p := range topic.parts {
				if p.leader == last {
					p.lead(i % last)
				}
			}
		}
		f.nodes = f.nodes[:last]
	})
	return gone
}

// Brokers come and go under ever new addresses: nothing of those that are gone
// is left, neither a goroutine nor a connection, and what goes on goes to the
// leaders.
func TestClient_brokersComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": 6})
		var stops []func()
		t.Cleanup(func() { // once the client is closed
			for _, stop := range stops {
				stop()
			}
		})
		c := f.client(t)
		p, r := producer(t, c), newReader(t, c)
		assign(t, r, client.Assignment{Topic: "t", Partition: client.AnyPartition})
		y := newTally()
		const each = 60
		spread(t, p, y, 0, each)
		flush(t, p)
		read(t, r, each)
		at := each
		for i := range 8 {
			last := f.leave()
			last.srv.Stop()
			synctest.Wait()
			addr := "new-" + itoa(i) + ":7420"
			lis := memnet.Listen(addr, 1<<20)
			f.locked(func() {
				stops = append(stops, f.startNode(addr, lis, true))
				for _, part := range []int{2, 5} {
					f.topics["t"].parts[part].lead(2)
				}
			})
			synctest.Wait()
			spread(t, p, y, at, at+each)
			flush(t, p)
			read(t, r, each)
			at += each
			time.Sleep(10 * time.Second)
			synctest.Wait()
			f.locked(func() {
				if f.nodes[2].direct == 0 || f.nodes[2].fetched.Load() == 0 {
					t.Errorf("%s: %d writes and %d reads, want some of each", addr, f.nodes[2].direct, f.nodes[2].fetched.Load())
				}
			})
			want := []string{"", "broker-0:7420", "broker-1:7420", addr}
			for what, got := range map[string][]string{"producer": p.Lanes(), "reader": r.Lanes(), "client": append(c.Connections(), "")} {
				for _, to := range got {
					if !slices.Contains(want, to) {
						t.Errorf("the %s still has a way to %q", what, to)
					}
				}
				if !slices.Contains(got, addr) {
					t.Errorf("the %s has no way to %s", what, addr)
				}
			}
		}
		y.check(t, at, 0, 0)
	})
}

// A broker that left and still owes an answer is waited for; the lane ends with
// it, and is there again when the broker is.
func TestProducer_leavingBrokerAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, map[string]int{"t": 2})
		p := producer(t, f.client(t), client.WithoutIdempotence(), client.PartitionBy(client.Manual))
		one := func(y *tally, v string) {
			p.Produce(t.Context(), client.Record{Topic: "t", Partition: 1, Value: []byte(v)}, y.done(v))
		}
		y := newTally()
		one(y, "0")
		flush(t, p)
		synctest.Wait() // the leader is known
		const addr = "broker-1:7420"
		f.locked(func() {
			f.onProduce = func(int, *runnelv1.ProduceRequest) action { return action{wait: 30 * time.Second} }
		})
		one(y, "1")
		synctest.Wait()
		var node *fakeNode
		f.locked(func() { node, f.nodes = f.nodes[1], f.nodes[:1] })
		synctest.Wait()
		time.Sleep(10 * time.Second)
		if !slices.Contains(p.Lanes(), addr) {
			t.Fatalf("lanes %q: the one that waits for an answer is gone", p.Lanes())
		}
		flush(t, p)
		y.check(t, 2, 0, 0)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if slices.Contains(p.Lanes(), addr) {
			t.Errorf("lanes %q, want none to the broker that left", p.Lanes())
		}
		f.locked(func() {
			f.onProduce = nil
			f.nodes = append(f.nodes, node)
		})
		synctest.Wait()
		was := node.direct
		one(y, "2")
		flush(t, p)
		y.check(t, 3, 0, 0)
		f.locked(func() { was = node.direct - was })
		if was != 1 || !slices.Contains(p.Lanes(), addr) {
			t.Errorf("%d requests on lanes %q, want it to be back", was, p.Lanes())
		}
	})
}
