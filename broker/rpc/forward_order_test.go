package rpc

import (
	"errors"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A pumped is a stream through a proxy while the leadership moves.
type pumped struct {
	answers map[uint64]*runnelv1.ProduceResponse
	err     error
}

// pumpThrough sends count records, one a request, pause apart.
func (w *testTown) pumpThrough(id int32, topic string, count int, pause time.Duration, timeout time.Duration) <-chan pumped {
	stream := w.brokers[id].open()
	out := make(chan pumped, 1)
	var sender sync.WaitGroup
	sender.Go(func() {
		for i := range count {
			req := textRequest(uint64(i+1), topic, 0, strconv.Itoa(i+1))
			req.Timeout = durationpb.New(timeout)
			if err := stream.Send(req); err != nil {
				return
			}
			time.Sleep(pause)
		}
		_ = stream.CloseSend()
	})
	var receiver sync.WaitGroup
	receiver.Go(func() {
		defer sender.Wait()
		p := pumped{answers: map[uint64]*runnelv1.ProduceResponse{}}
		for {
			r, err := stream.Recv()
			if err != nil {
				if !errors.Is(err, io.EOF) {
					p.err = err
				}
				out <- p
				return
			}
			p.answers[r.GetRequestId()] = r
		}
	})
	return out
}

func problem(r *runnelv1.ProduceResponse) *runnelv1.ItemError {
	if r.GetError() != nil || len(r.GetResults()) == 0 {
		return r.GetError()
	}
	return r.GetResults()[0].GetError()
}

// checkOrder compares what was answered with what was stored: everything that
// succeeded is there once, in the order sent, and nothing that failed for
// certain is.
func checkOrder(t *testing.T, sent int, p pumped, log []stored) (succeeded int) {
	t.Helper()
	if p.err != nil || len(p.answers) != sent {
		t.Fatalf("%d of %d answered, %v", len(p.answers), sent, p.err)
	}
	at := map[uint64]int{}
	for i, s := range log {
		id, _ := strconv.ParseUint(s.value, 10, 64)
		if _, twice := at[id]; twice {
			t.Errorf("record %d is stored twice", id)
		}
		at[id] = i
	}
	last := -1
	for id := uint64(1); id <= uint64(sent); id++ {
		place, there := at[id]
		switch e := problem(p.answers[id]); {
		case e == nil && !there:
			t.Errorf("record %d was acknowledged and is not stored", id)
		case e == nil && place < last:
			t.Errorf("record %d is stored before one that was sent before it", id)
		case e == nil:
			last = place
			succeeded++
		case !e.GetOutcomeUnknown() && there:
			t.Errorf("record %d is stored, though the answer was %v", id, e)
		}
	}
	return succeeded
}

// A hundred moves of the leadership, of which brokers hear at different times:
// order is kept, nothing is stored twice, and nobody hears of it.
func TestForward_orderOverManyMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		const moves, perMove = 100, 20
		rng := rand.New(rand.NewPCG(1, 2))
		done := w.pumpThrough(1, "t", moves*perMove, time.Millisecond, 30*time.Second)
		for range moves {
			time.Sleep(time.Duration(rng.IntN(20)) * time.Millisecond)
			leader := int32(rng.IntN(3)) + 1
			order := []int32{1, 2, 3}
			rng.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
			w.move("t", 0, leader, order[0])
			for _, id := range order[1:] {
				time.Sleep(time.Duration(rng.IntN(8)) * time.Millisecond)
				w.tell("t", 0, id)
			}
		}
		p := <-done
		if n := checkOrder(t, moves*perMove, p, w.contents("t", 0)); n != moves*perMove {
			t.Errorf("%d of %d succeeded: planned moves lose nobody's certainty", n, moves*perMove)
		}
	})
}

// The same with connections that break: what was under way is uncertain, and
// never sent again.
func TestForward_orderOverBrokenConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		rng := rand.New(rand.NewPCG(3, 4))
		const sent = 2000
		done := w.pumpThrough(1, "t", sent, time.Millisecond, 30*time.Second)
		leader := int32(2)
		for range 60 {
			time.Sleep(time.Duration(rng.IntN(30)) * time.Millisecond)
			w.cut(leader)
			if rng.IntN(2) == 0 {
				leader = 5 - leader
				w.move("t", 0, leader)
			}
		}
		p := <-done
		if n := checkOrder(t, sent, p, w.contents("t", 0)); n < sent*9/10 {
			t.Errorf("%d of %d succeeded", n, sent)
		}
	})
}

// What is parked when the leadership is lost is uncertain, and it is not sent to
// the new leader: it would be there twice.
func TestForward_parkedIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		w.isr("t", 0, 1, 2, 3) // 3 never acks
		stream := w.brokers[1].open()
		send(t, stream, textRequest(1, "t", 0, "a"), textRequest(2, "t", 0, "b"))
		synctest.Wait()
		w.move("t", 0, 3)
		for id := range uint64(2) {
			r := recv(t, stream)
			if e := problem(r); r.GetRequestId() != id+1 || e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || !e.GetOutcomeUnknown() || e.GetMetadata()["baseOffset"] != strconv.FormatUint(id, 10) {
				t.Errorf("parked: %v", r)
			}
		}
		send(t, stream, textRequest(3, "t", 0, "c"))
		if r := recv(t, stream); problem(r) != nil {
			t.Error(r)
		}
		var got []string
		for _, s := range w.contents("t", 0) {
			got = append(got, s.value)
		}
		if !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Errorf("stored: %v", got)
		}
	})
}

// A connection that breaks: what was handed over is uncertain at once, and what
// comes next goes on.
func TestForward_brokenConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		w.isr("t", 0, 1, 2, 1)
		stream := w.brokers[1].open()
		send(t, stream, textRequest(1, "t", 0, "a"))
		synctest.Wait()
		start := time.Now()
		w.cut(2)
		r := recv(t, stream)
		if e := problem(r); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || !e.GetOutcomeUnknown() || time.Since(start) > time.Second {
			t.Errorf("after %s: %v", time.Since(start), r)
		}
		if text := problem(r).GetMessage(); !strings.Contains(text, "broke before the answer") || strings.ContainsAny(text, "*") {
			t.Errorf("not a text for people: %s", text)
		}
		w.isr("t", 0, 1, 2)
		send(t, stream, textRequest(2, "t", 0, "b"))
		if r := recv(t, stream); problem(r) != nil || r.GetBaseOffset() != 1 {
			t.Error(r)
		}
	})
}

// A broker that the metadata show out of service is not waited for, though its
// connections hang.
func TestForward_fencedLeaderIsNotWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		w.isr("t", 0, 1, 2, 1)
		stream := w.brokers[1].open()
		send(t, stream, textRequest(1, "t", 0, "a"), textRequest(2, "t", 0, "b"))
		synctest.Wait()
		start := time.Now()
		p := w.topics["t"].partitions[0]
		p.Leader, p.LeaderEpoch, p.PartitionEpoch, p.Isr = 3, 2, 9, []int32{3}
		fenced := w.registration(2, controllerv1.BrokerPhase_BROKER_PHASE_FENCED)
		w.publish([]*controllerv1.MetadataObject{fenced, partitionObject(p)}, 1, 3)
		for range 2 {
			if r := recv(t, stream); !problem(r).GetOutcomeUnknown() || time.Since(start) > 100*time.Millisecond {
				t.Errorf("after %s: %v", time.Since(start), r)
			}
		}
		send(t, stream, textRequest(3, "t", 0, "c"))
		if r := recv(t, stream); problem(r) != nil || time.Since(start) > 100*time.Millisecond {
			t.Error(r)
		}
	})
}

// What comes while answers are due waits for them: it is behind what may be
// refused yet, at whichever leader.
func TestForward_nothingOvertakesARefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("refused", 1)
		w.topic("moved", 1)
		// A waits for its commit, B is refused for good, and C for being behind B.
		w.move("refused", 0, 2, 1)
		stream := w.brokers[1].open()
		send(t, stream, textRequest(1, "refused", 0, "A"))
		huge := &runnelv1.ProduceRequest{RequestId: 2, Topic: "refused", Partition: new(int32(0)), Batch: &runnelv1.RecordBatch{Format: new(uint32(200))}}
		send(t, stream, huge, textRequest(3, "refused", 0, "C"))
		synctest.Wait()
		w.isr("refused", 0, 1, 2, 3)
		time.Sleep(10 * time.Millisecond)
		send(t, stream, textRequest(4, "refused", 0, "D"))
		synctest.Wait()
		w.isr("refused", 0, 1, 2)
		for id := uint64(1); id <= 4; id++ {
			if r := recv(t, stream); r.GetRequestId() != id || (problem(r) != nil) != (id == 2) || problem(r).GetOutcomeUnknown() {
				t.Error(r)
			}
		}
		if got := storedValues(w.contents("refused", 0)); got != "A C D" {
			t.Errorf("stored: %s", got)
		}
		// A waits at a leader that is about to hear that another one leads.
		w.move("moved", 0, 2, 1)
		send(t, stream, textRequest(5, "moved", 0, "A"))
		synctest.Wait()
		w.move("moved", 0, 3, 1, 3)
		send(t, stream, textRequest(6, "moved", 0, "B"))
		synctest.Wait()
		w.tell("moved", 0, 2)
		for id := uint64(5); id <= 6; id++ {
			if r := recv(t, stream); r.GetRequestId() != id || problem(r) != nil {
				t.Error(r)
			}
		}
		if got := storedValues(w.contents("moved", 0)); got != "A B" {
			t.Errorf("stored: %s", got)
		}
	})
}

func storedValues(all []stored) string {
	var out []string
	for _, s := range all {
		out = append(out, s.value)
	}
	return strings.Join(out, " ")
}
