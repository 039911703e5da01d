package replication

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// A storm is a town where things go wrong at random.
type storm struct {
	*town

	rng   *rand.Rand
	topic uuid.UUID

	// mu guards the fields below
	mu sync.Mutex

	committed map[int32]map[record.Offset]string // by partition: values of one-record batches
	appended  int
}

const stormPartitions = 4

// write appends a record at the leader of a partition, and notes when it is
// committed.
func (s *storm) write() {
	n := s.rng.Int32N(stormPartitions)
	for _, node := range s.nodes {
		p, err := node.set.Get(s.topic, n)
		if err != nil || !p.State().Leader {
			continue
		}
		s.appended++
		value := fmt.Sprintf("%d of %d by %d%s", s.appended, n, node.id, make([]byte, s.rng.IntN(20_000)))
		b := record.NewBuilder(record.NewCodec(), record.Limits{})
		if err := b.Add(nil, []byte(value), nil, 1); err != nil {
			s.t.Fatal(err)
		}
		batch, err := b.Finish(record.CompressionNone, 0)
		if err != nil {
			s.t.Fatal(err)
		}
		a, err := p.Append(&batch, nil)
		if err != nil {
			continue // refused: nothing was promised
		}
		p.WhenCommitted(a, func(err error) {
			if err == nil {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.committed[n][a.Last] = value
			}
		})
	}
}

// move elects another leader of the ISR.
func (s *storm) move(n int32) {
	s.change(s.topic, n, func(p *controllerv1.PartitionRecord) {
		var can []int32
		for _, id := range p.GetIsr() {
			if s.nodes[id] != nil {
				can = append(can, id)
			}
		}
		if len(can) > 0 {
			p.Leader = can[s.rng.IntN(len(can))]
		} else {
			p.Leader = -1
		}
		p.LeaderEpoch++
	})
}

// restart ends a broker and starts it again, as a controller that fences does.
func (s *storm) restart(id int32) {
	mem := s.nodes[id].mem
	s.nodes[id].stop()
	s.net.unlisten(address(id))
	for n := range int32(stormPartitions) {
		s.change(s.topic, n, func(p *controllerv1.PartitionRecord) {
			if rest := slices.DeleteFunc(slices.Clone(p.GetIsr()), func(b int32) bool { return b == id }); len(rest) >= 2 {
				p.Isr = rest
			}
		})
		s.move(n)
	}
	time.Sleep(time.Duration(s.rng.IntN(2000)) * time.Millisecond)
	s.start(id, mem)
	for n := range int32(stormPartitions) {
		s.move(n)
	}
}

func (s *storm) blow() {
	a := s.rng.Int32N(3) + 1
	b := (a+s.rng.Int32N(2))%3 + 1
	switch s.rng.IntN(24) {
	case 0:
		s.net.cut(a, b)
	case 1:
		s.net.silence(a, b)
	case 2:
		s.net.isolate(a, b)
	case 3, 4, 5:
		s.net.heal()
	case 6, 7:
		s.move(s.rng.Int32N(stormPartitions))
	case 8:
		if s.rng.IntN(4) == 0 {
			s.restart(a)
		}
	case 9:
		time.Sleep(time.Duration(s.rng.IntN(4000)) * time.Millisecond)
	default:
		for range s.rng.IntN(10) {
			s.write()
		}
		time.Sleep(time.Duration(s.rng.IntN(10)) * time.Millisecond)
	}
}

// whole says whether all copies are in sync and equally long.
func (s *storm) whole() bool {
	for n := range int32(stormPartitions) {
		if len(s.isr(s.topic, n)) != 3 {
			return false
		}
		var st [3]record.Offset
		for i := range int32(3) {
			state := s.nodes[i+1].replica(s.topic, n).State()
			if st[i] = state.HighWatermark; state.LogEnd != state.HighWatermark {
				return false
			}
		}
		if st[0] != st[1] || st[1] != st[2] {
			return false
		}
	}
	return true
}

// kept checks that every committed record is where it was promised to be.
func (s *storm) kept() {
	it := record.NewIterator(record.NewCodec())
	buf := make([]byte, 4<<20)
	total := 0
	for n := range int32(stormPartitions) {
		found := map[record.Offset]string{}
		for _, node := range s.nodes {
			p := node.replica(s.topic, n)
			st := p.State()
			if !st.Leader {
				continue
			}
			for from := st.LogStart; from < st.HighWatermark; {
				size, err := p.Read(buf, from, st.HighWatermark)
				if err != nil || size == 0 {
					s.t.Fatalf("read at %d: %d bytes, %v", from, size, err)
				}
				for at := 0; at < size; {
					f, _ := record.CheckFrame(buf[at:size], record.MaxFrameSize)
					it.Reset(f.Header, f.Payload(buf[at:size]))
					for it.Next() {
						found[it.Record().Offset] = string(it.Record().Value)
					}
					from = f.Header.NextOffset()
					at += f.Size
				}
			}
		}
		for off, want := range s.committed[n] {
			if got := found[off]; got != want {
				s.t.Errorf("partition %d offset %d: have %.30q, %.30q was committed", n, off, got, want)
			}
		}
		total += len(s.committed[n])
		s.same(s.topic, n)
	}
	s.t.Logf("%d appended, %d committed", s.appended, total)
	if total == 0 {
		s.t.Error("nothing was committed: the storm tests nothing")
	}
}

// Connections break and fall silent, leaders move, brokers restart: what was
// committed stays, and when the weather is fine again all copies are the same.
func TestStorm(t *testing.T) {
	seeds := 3
	if n, err := strconv.Atoi(os.Getenv("RUNNEL_SOAK_SEEDS")); err == nil {
		seeds = n
	}
	first := uint64(1)
	if n, err := strconv.ParseUint(os.Getenv("RUNNEL_SOAK_FIRST"), 10, 64); err == nil {
		first = n
	}
	for seed := first; seed < first+uint64(seeds); seed++ { //nolint:gosec // a small number
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 1, 2, 3)
				defer w.end()
				flush := async
				if seed%2 == 0 {
					flush = bySync
				}
				s := &storm{town: w, rng: rand.New(rand.NewPCG(seed, 1)), topic: w.topic(flush, stormPartitions, 2, 1, 2, 3), committed: map[int32]map[record.Offset]string{}}
				for n := range int32(stormPartitions) {
					s.committed[n] = map[record.Offset]string{}
				}
				synctest.Wait()
				for range 300 {
					s.blow()
				}
				s.net.heal()
				for n := range int32(stormPartitions) {
					s.move(n)
				}
				s.within(30*time.Second, "all copies are whole", s.whole)
				s.kept()
			})
		})
	}
}
