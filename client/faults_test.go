package client_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// A storm is what happens to the requests of one run, at random but by seed.
type storm struct {
	// mu guards the fields below
	mu sync.Mutex

	rng   *rand.Rand
	f     *fakeBroker
	over  bool
	moves int
	hurt  int
}

// decide is called by a fakeBroker, with its mu held.
func (s *storm) decide(_ int, req *runnelv1.ProduceRequest) action {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return action{}
	}
	a := action{wait: time.Duration(s.rng.IntN(30)) * time.Millisecond}
	if s.rng.IntN(20) == 0 {
		p := s.f.topics["t"].parts[req.GetPartition()]
		p.lead(s.rng.IntN(len(s.f.nodes)+1) - 1) // or nobody, until the next move
		if p.leader < 0 {
			p.lead(s.rng.IntN(len(s.f.nodes)))
		}
		s.moves++
	}
	if s.rng.IntN(6) > 0 {
		return a
	}
	s.hurt++
	switch s.rng.IntN(8) {
	case 0: // stored, and the answer lost with the connection
		a.dropKill = errBroken
	case 1: // the connection lost before
		a.kill = errBroken
	case 2:
		a.also = uncertain()
	case 3:
		a.err = uncertain()
	case 4:
		a.err = item(runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS, codes.Unavailable)
	case 5:
		a.err = item(runnelv1.ErrorReason_ERROR_REASON_MOVING, codes.Unavailable)
	case 6:
		a.final = true
	case 7: // it hangs, and so does everything behind it
		a.wait = time.Duration(1+s.rng.IntN(20)) * time.Second
	}
	return a
}

// An app writes numbers to every partition and does not rest before each is
// acknowledged: what failed or is unknown it writes again.
func app(t *testing.T, p *client.Producer, parts int32, n int, rng *rand.Rand) (unknown int) {
	t.Helper()
	type key struct {
		part int32
		n    int
	}
	var mu sync.Mutex
	var again []key
	write := func(k key) {
		r := client.Record{Topic: "t", Partition: k.part, Value: []byte(itoa(k.n))}
		p.Produce(t.Context(), r, func(res client.Result) {
			mu.Lock()
			defer mu.Unlock()
			if res.Outcome() == client.Unknown {
				unknown++
			}
			if res.Err != nil && unknown+len(again) < 3 {
				t.Logf("partition %d, %d: %v", k.part, k.n, res.Err)
			}
			if res.Err != nil {
				again = append(again, k)
			}
		})
	}
	for i := range n {
		for part := range parts {
			write(key{part, i})
		}
		if rng.IntN(40) == 0 {
			time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
		}
	}
	for {
		flush(t, p)
		mu.Lock()
		todo := again
		again = nil
		mu.Unlock()
		if len(todo) == 0 {
			return unknown
		}
		for _, k := range todo {
			write(k)
		}
	}
}

// weather runs the app in a storm and returns what is stored.
func weather(t *testing.T, seed uint64, opts ...client.ProducerOption) (stored [][]int, unknown int, s *storm) {
	t.Helper()
	const parts, n = 3, 400
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 3, map[string]int{"t": parts})
		s = &storm{rng: rand.New(rand.NewPCG(seed, 1)), f: f}
		f.onProduce = s.decide
		opts = append([]client.ProducerOption{client.BatchBytes(1 << 10), client.PartitionBy(client.Manual), client.DeliveryTimeout(10 * time.Minute)}, opts...)
		p := producer(t, f.client(t), opts...)
		unknown = app(t, p, parts, n, rand.New(rand.NewPCG(seed, 2)))
		for i := range parts {
			var vs []int
			for _, r := range f.all(t, "t", i) {
				v, err := strconv.Atoi(string(r.Value))
				if err != nil {
					t.Fatal(err)
				}
				vs = append(vs, v)
			}
			stored = append(stored, vs)
		}
	})
	return stored, unknown, s
}

func seeds(t *testing.T) int {
	t.Helper()
	if n, err := strconv.Atoi(os.Getenv("RUNNEL_CLIENT_SEEDS")); err == nil {
		return n
	}
	return 25
}

// PD-10: whatever becomes of leaders, connections and answers, every record of
// an idempotent producer is in the log once, and in order. RUNNEL_CLIENT_SEEDS
// sets how many runs there are.
func TestProducer_exactlyOnceInAStorm(t *testing.T) {
	moves, hurt := 0, 0
	for seed := range uint64(seeds(t)) { //nolint:gosec // a count
		stored, unknown, s := weather(t, seed)
		for part, vs := range stored {
			if len(vs) != 400 || !slices.IsSorted(vs) || len(slices.Compact(slices.Clone(vs))) != len(vs) {
				t.Fatalf("seed %d: partition %d holds %v", seed, part, vs)
			}
		}
		if unknown > 0 {
			t.Fatalf("seed %d: %d outcomes are unknown", seed, unknown)
		}
		moves += s.moves
		hurt += s.hurt
	}
	if moves == 0 || hurt == 0 {
		t.Errorf("%d leader moves, %d faults: nothing was tried", moves, hurt)
	}
}

// The same without idempotence stores records twice, so that the test above
// would notice.
func TestProducer_stormFindsDuplicates(t *testing.T) {
	for seed := range uint64(10) {
		stored, unknown, _ := weather(t, seed, client.WithoutIdempotence())
		for _, vs := range stored {
			slices.Sort(vs)
			if unknown > 0 && len(slices.Compact(slices.Clone(vs))) < len(vs) {
				return
			}
		}
	}
	t.Error("no record is stored twice in ten runs without idempotence")
}
