package partition

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/runnelmq/runnel/broker/producer"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// sequenced returns a batch of an idempotent producer.
func sequenced(t *testing.T, id record.ProducerID, seq record.Sequence, records int) *record.Batch {
	t.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	for i := range records {
		if err := b.Add(nil, fmt.Appendf(nil, "%d/%d", id, int(seq)+i), nil, time.Now().UnixMilli()); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish(record.CompressionNone, 0)
	if err != nil {
		t.Fatal(err)
	}
	out.ProducerID, out.BaseSequence = id, seq
	return &out
}

// remembered is a replica's state of producers.
func (p *Partition) remembered() []byte { return p.producers.AppendState(nil) }

// A retry at the next leader is answered with the offset of the first time, and
// what the old leader alone had is new there.
func TestProducers_followTheLeadership(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		send := func(broker int, seq record.Sequence) (Appended, error) {
			return r.nodes[broker].p.Append(sequenced(t, 7, seq, 2), nil)
		}
		r.pull(2, 3)
		var first [3]Appended
		for i := range first {
			var err error
			if first[i], err = send(1, record.Sequence(2*i)); err != nil || first[i].Duplicate {
				t.Fatal(first[i], err)
			}
		}
		r.pull(2, 3)
		lost, err := send(1, 6)
		if err != nil || lost.Base != 6 {
			t.Fatal(lost, err)
		}
		r.append(1, 1)
		r.lead(2)
		if _, err := send(1, 6); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("the old leader: %v", err)
		}
		other := r.append(2, 1) // at the offset that the lost one had
		for i := range first {
			again, err := send(2, record.Sequence(2*i))
			want := first[i]
			want.Duplicate = true
			if err != nil || !cmp.Equal(again, want) {
				t.Fatalf("batch %d again: %+v, %v; want %+v", i, again, err, want)
			}
		}
		again, err := send(2, 6)
		if err != nil || again.Duplicate || again.Base != other.Last+1 {
			t.Fatalf("the lost one again: %+v, %v", again, err)
		}
		r.pull(1, 3)
		for _, n := range r.nodes[1:] {
			if !bytes.Equal(n.p.remembered(), r.nodes[2].p.remembered()) {
				t.Errorf("broker %d remembers\n%x, the leader\n%x", n.id, n.p.remembered(), r.nodes[2].p.remembered())
			}
		}
		if got := r.nodes[2].count(t, "producer_duplicates_total"); got != 3 {
			t.Errorf("%v duplicates counted", got)
		}
		_, err = send(2, 99)
		if !errors.Is(err, producer.ErrOutOfOrder) || r.nodes[2].count(t, "producer_out_of_order_total") != 1 {
			t.Errorf("a gap: %v", err)
		}
		if _, err = r.nodes[2].p.Append(sequenced(t, 8, 99, 1), nil); !errors.Is(err, producer.ErrStateLost) || r.nodes[2].count(t, "producer_state_lost_total") != 1 {
			t.Errorf("a stranger: %v", err)
		}
		var facts interface{ Metadata() map[string]string }
		if !errors.As(err, &facts) || facts.Metadata()["producerId"] != "8" {
			t.Errorf("no facts in %v", err)
		}
	})
}

// A leader that may have been replaced does not say that earlier batches are
// missing: its successor has them.
func TestProducers_gapAtAFormerLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		r.lead(2, 2, 3) // and broker 1 hears nothing any more
		l := r.nodes[1]
		l.session.mu.Lock()
		l.session.confirmed = false
		l.session.mu.Unlock()
		time.Sleep(4 * time.Second)
		if _, err := r.nodes[2].p.Append(sequenced(t, 7, 0, 1), nil); err != nil {
			t.Fatal(err)
		}
		if _, err := l.p.Append(sequenced(t, 7, 1, 1), nil); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("the former leader: %v", err)
		}
		if got, err := l.p.Append(sequenced(t, 7, 0, 1), nil); err != nil || got.Duplicate {
			t.Errorf("the first batch, for acks ALL: %+v, %v", got, err)
		}
		if _, err := l.p.Append(sequenced(t, 7, 5, 1), nil); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("a gap: %v", err)
		}
	})
}

// A duplicate is answered when the first one is committed, and nothing that is
// said of new batches only is said of it.
func TestProducers_duplicatesWaitForTheirCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		leader := r.nodes[1].p
		first, err := leader.Append(sequenced(t, 7, 0, 3), nil)
		if err != nil {
			t.Fatal(err)
		}
		again, err := leader.Append(sequenced(t, 7, 0, 3), nil)
		if err != nil || !again.Duplicate || again.Base != first.Base || again.Last != first.Last || again.AppendTimeMs != first.AppendTimeMs {
			t.Fatalf("again: %+v, %v; first %+v", again, err, first)
		}
		told := 0
		leader.WhenCommitted(again, func(err error) {
			if err != nil {
				t.Error(err)
			}
			told++
		})
		if r.pull(2); told != 0 {
			t.Fatal("answered before it is committed")
		}
		if r.pull(3); told != 1 {
			t.Fatal("not answered when it is committed")
		}
		// The others are gone from the ISR: nothing new is taken.
		r.part.Isr = []int32{1}
		r.part.PartitionEpoch++
		r.tell()
		if _, err := leader.Append(sequenced(t, 7, 3, 1), nil); !errors.Is(err, ErrNotEnoughReplicas) {
			t.Fatalf("a new one: %v", err)
		}
		again, err = leader.Append(sequenced(t, 7, 0, 3), nil)
		leader.WhenCommitted(again, func(err error) {
			if err == nil {
				told++
			}
		})
		if err != nil || !again.Duplicate || told != 2 {
			t.Errorf("a retry of what is committed: %+v, %v, answered %d times", again, err, told)
		}
		// What is answered at once is answered by a leader that is one for sure.
		if again, err = leader.AppendAtOnce(sequenced(t, 7, 0, 3), nil); err != nil || !again.Duplicate {
			t.Errorf("a retry, answered at once: %+v, %v", again, err)
		}
		r.nodes[1].session.mu.Lock()
		r.nodes[1].session.confirmed = false
		r.nodes[1].session.mu.Unlock()
		time.Sleep(time.Minute) // of the bubble
		if again, err = leader.AppendAtOnce(sequenced(t, 7, 0, 3), nil); !errors.Is(err, ErrUnconfirmed) {
			t.Errorf("a retry at a leader that may be none: %+v, %v", again, err)
		}
	})
}

// The state is there after a clean stop, a kill, and retention of all that it
// is of.
func TestProducers_outliveRestartsAndRetention(t *testing.T) {
	for _, crash := range []bool{false, true} {
		t.Run(map[bool]string{false: "clean", true: "killed"}[crash], func(t *testing.T) {
			mem, id := vfs.NewMem(), uuid.New()
			var want []byte
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, mem)
				p := r.topicOf(id, "orders", async, map[string]string{"segment.bytes": "1048576", "retention.ms": "3600000"}, 1)
				for seq := range record.Sequence(7) {
					if _, err := p.Append(sequenced(t, 7, seq, 1), nil); err != nil {
						t.Fatal(err)
					}
				}
				r.append(p, 1)
				time.Sleep(2 * time.Hour) // of the bubble
				if st := p.State(); st.LogStart != 8 || p.Segments() != 1 {
					t.Fatalf("nothing was removed: %+v", st)
				}
				want = p.remembered()
				r.end(crash)
			})
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t, mem)
				defer r.end(false)
				p := r.topicOf(id, "orders", async, map[string]string{"segment.bytes": "1048576", "retention.ms": "3600000"}, 2)
				if !bytes.Equal(p.remembered(), want) {
					t.Fatalf("remembered\n%x, want\n%x", p.remembered(), want)
				}
				if a, err := p.Append(sequenced(t, 7, 6, 1), nil); err != nil || !a.Duplicate || a.Base != 6 {
					t.Errorf("a retry: %+v, %v", a, err)
				}
				if a, err := p.Append(sequenced(t, 7, 7, 1), nil); err != nil || a.Duplicate || a.Base != 8 {
					t.Errorf("the next one: %+v, %v", a, err)
				}
			})
		})
	}
}

// Producers are forgotten by the brokers' clock alone.
func TestProducers_expire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		defer r.end(false)
		r.cfg.Producers.ExpiryMs = time.Hour.Milliseconds()
		p := r.topic("orders", async, nil)
		if _, err := p.Append(sequenced(t, 7, 0, 1), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Minute) // of the bubble
		if a, err := p.Append(sequenced(t, 7, 0, 1), nil); err != nil || !a.Duplicate || p.producers.count.Load() != 1 {
			t.Fatalf("a retry within the expiry: %+v, %v", a, err)
		}
		time.Sleep(2 * time.Minute)
		if n := p.producers.count.Load(); n != 0 {
			t.Errorf("%d producers are remembered", n)
		}
		if _, err := p.Append(sequenced(t, 7, 1, 1), nil); !errors.Is(err, producer.ErrStateLost) {
			t.Errorf("it goes on after the expiry: %v", err)
		}
	})
}

// An idempotent producer that loses answers, over random elections, each of
// which takes what is not committed: in the end each record is there once, in
// order, and no answer was taken back.
func TestProducers_exactlyOnceInOrder(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := &carelessClient{t: t, r: newTrio(t, nil), rng: rand.New(rand.NewPCG(seed, 1)), acked: map[record.Sequence]record.Offset{}}
				c.r.pull(2, 3)
				for range 60 {
					c.step()
				}
				c.finish()
			})
		})
	}
}

// A carelessClient is a producer of one partition.
type carelessClient struct {
	t   *testing.T
	r   *trio
	rng *rand.Rand
	// pending are the first sequences of the batches without an answer, in order.
	pending []record.Sequence
	next    record.Sequence
	acked   map[record.Sequence]record.Offset
}

func (c *carelessClient) leader() *trioNode { return c.r.nodes[c.r.part.GetLeader()] }

func size(seq record.Sequence) int { return 1 + int(seq)%3 }

func (c *carelessClient) step() {
	switch n := c.rng.IntN(10); {
	case n < 4:
		if len(c.pending) < producer.Window {
			c.pending = append(c.pending, c.next)
			c.next += record.Sequence(size(c.next))
		}
		c.send()
	case n < 6:
		c.send()
	case n < 9:
		followers := slices.DeleteFunc([]int{1, 2, 3}, func(id int) bool { return id == int(c.r.part.GetLeader()) })
		c.r.pull(followers[c.rng.IntN(2)])
	default:
		c.r.lead(int32(1 + c.rng.IntN(3)))
	}
}

// send sends what is pending, in order, as far as luck has it, and hears some of
// the answers.
func (c *carelessClient) send() {
	p := c.leader().p
	answered := 0
	for i, seq := range c.pending {
		if c.rng.IntN(6) == 0 {
			break
		}
		a, err := p.Append(sequenced(c.t, 7, seq, size(seq)), nil)
		if err != nil {
			c.t.Fatalf("sequence %d: %v", seq, err)
		}
		if i == answered && p.State().HighWatermark > a.Last && c.rng.IntN(2) == 0 {
			c.acked[seq] = a.Base
			answered++
		}
	}
	c.pending = c.pending[answered:]
}

func (c *carelessClient) finish() {
	c.t.Helper()
	followers := slices.DeleteFunc([]int{1, 2, 3}, func(id int) bool { return id == int(c.r.part.GetLeader()) })
	for range 100 {
		c.send()
		c.r.pull(followers...)
	}
	if len(c.pending) > 0 {
		c.t.Fatalf("without an answer: %v", c.pending)
	}
	next := record.Sequence(0)
	b := c.leader().bytes(c.t)
	for len(b) > 0 {
		f, _ := record.ParseFrame(b, int64(len(b)), record.MaxFrameSize)
		h := &f.Header
		if h.BaseSequence != next || c.acked[next] != h.BaseOffset || int(h.RecordCount) != size(next) {
			c.t.Fatalf("at offset %d: sequence %d, want %d at %d", h.BaseOffset, h.BaseSequence, next, c.acked[next])
		}
		next += record.Sequence(h.RecordCount)
		b = b[f.Size:]
	}
	if next != c.next {
		c.t.Errorf("the log ends before sequence %d, want %d", next, c.next)
	}
	for _, n := range c.r.nodes[1:] {
		if !bytes.Equal(n.p.remembered(), c.leader().p.remembered()) {
			c.t.Errorf("broker %d remembers something else than the leader", n.id)
		}
	}
}

// What is remembered is what a scan of the log makes, whatever was cut.
func TestProducers_areAFunctionOfTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.pull(2, 3)
		rng := rand.New(rand.NewPCG(5, 5))
		next := map[record.ProducerID]record.Sequence{}
		for range 200 {
			leader := r.nodes[r.part.GetLeader()]
			id := record.ProducerID(1 + rng.IntN(4))
			if a, err := leader.p.Append(sequenced(t, id, next[id], 1+rng.IntN(3)), nil); err == nil && !a.Duplicate {
				next[id] += record.Sequence(a.Last-a.Base) + 1
			} else {
				next[id] = 0
				id += 10 * record.ProducerID(1+rng.IntN(1000))
				_, _ = leader.p.Append(sequenced(t, id, 0, 1), nil)
			}
			switch rng.IntN(12) {
			case 0:
				r.lead(int32(1 + rng.IntN(3)))
			case 1, 2, 3:
				for id := range 3 {
					if int32(id+1) != r.part.GetLeader() {
						r.pull(id + 1)
					}
				}
			case 4:
				if err := leader.p.log.Roll(); err != nil {
					t.Fatal(err)
				}
			}
			for _, n := range r.nodes[1:] {
				if got, want := n.p.remembered(), scanned(t, n.p.log); !bytes.Equal(got, want) {
					t.Fatalf("broker %d remembers\n%x, its log says\n%x", n.id, got, want)
				}
			}
		}
	})
}

// scanned makes a state from all headers.
func scanned(t *testing.T, l *commitlog.Log) []byte {
	t.Helper()
	table := producer.New(producer.Config{})
	buf := make([]byte, 1<<20)
	for from := l.Start(); from < l.End(); {
		n, err := l.Read(buf, from, l.End())
		if err != nil || n == 0 {
			t.Fatal(n, err)
		}
		for b := buf[:n]; len(b) > 0; {
			f, _ := record.ParseFrame(b, int64(len(b)), record.MaxFrameSize)
			table.Apply(&f.Header)
			from = f.Header.NextOffset()
			b = b[f.Size:]
		}
	}
	return table.AppendState(nil)
}
