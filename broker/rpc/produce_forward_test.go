package rpc

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// An answer is the same whichever broker is asked.
func TestForward_answersAreThoseOfTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("a", 2)
		w.topic("b", 2)
		now := time.Now().UnixMilli()
		spoilt := buildBatch(t, record.CompressionNone, now, []byte("v"))
		spoilt[len(spoilt)-1] ^= 1
		leader := marshal(t, &runnelv1.ProduceRequest{Acks: runnelv1.Acks_ACKS_LEADER})
		none := marshal(t, &runnelv1.ProduceRequest{Acks: runnelv1.Acks_ACKS_NONE})
		for name, raw := range map[string]func(topic string) []byte{
			"text": func(topic string) []byte { return marshal(t, textRequest(5, topic, 0, "a", "b")) },
			"a batch": func(topic string) []byte {
				return rawRequest(topic, 0, buildBatch(t, record.CompressionZstd, now, []byte("v")))
			},
			"a spoilt batch":  func(topic string) []byte { return rawRequest(topic, 0, spoilt) },
			"an old time":     func(topic string) []byte { return rawRequest(topic, 0, buildBatch(t, 1, now+1e9, []byte("v"))) },
			"a huge record":   func(topic string) []byte { return marshal(t, textRequest(5, topic, 0, strings.Repeat("x", 2<<20))) },
			"a huge batch":    func(topic string) []byte { return rawRequest(topic, 0, buildBatch(t, 1, now, make([]byte, 2<<20))) },
			"acks LEADER":     func(topic string) []byte { return append(marshal(t, textRequest(5, topic, 0, "a")), leader...) },
			"acks NONE":       func(topic string) []byte { return append(marshal(t, textRequest(5, topic, 0, "a")), none...) },
			"no partition":    func(topic string) []byte { return marshal(t, textRequest(5, topic, 7, "a")) },
			"not one of many": func(topic string) []byte { return marshal(t, &runnelv1.ProduceRequest{Topic: topic}) },
		} {
			here, err := w.brokers[2].oneOf(raw("a"))
			if err != nil {
				t.Fatal(err)
			}
			there, err := w.brokers[1].oneOf(raw("b"))
			if err != nil {
				t.Fatal(err)
			}
			same := cmp.FilterPath(func(p cmp.Path) bool {
				return strings.Contains(p.GoString(), "message") || strings.Contains(p.GoString(), "metadata")
			}, cmp.Ignore())
			if diff := cmp.Diff(here, there, protocmp.Transform(), same); diff != "" {
				t.Errorf("%s: the leader says -, the proxy +:\n%s", name, diff)
			}
			if strings.ReplaceAll(here.GetError().GetMessage(), "a/0", "b/0") != there.GetError().GetMessage() && here.GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND {
				t.Errorf("%s: %q, and through the proxy %q", name, here.GetError().GetMessage(), there.GetError().GetMessage())
			}
			synctest.Wait()
		}
		if a, b := w.brokers[2].ends()["a/0"], w.brokers[2].ends()["b/0"]; a != b || a == 0 {
			t.Errorf("%d stored at the leader, %d through the proxy", a, b)
		}
		if stored := w.brokers[1].ends(); len(stored) != 0 {
			t.Errorf("the proxy stored %v", stored)
		}
	})
}

// Records of one request go to their partitions, wherever those are led, one
// batch each.
func TestForward_recordsAreSpread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 1, 2, 3)
		req := &runnelv1.ProduceRequest{RequestId: 4, Topic: "t"}
		for i := range 60 {
			req.TextRecords = append(req.TextRecords, &runnelv1.ProduceTextRecord{Key: new(strconv.Itoa(i)), Value: new(strconv.Itoa(i))})
		}
		resp := w.brokers[1].produce(req)
		next := map[int32]int64{}
		for i, r := range resp.GetResults() {
			if r.GetError() != nil || r.GetOffset() != next[r.GetPartition()] {
				t.Errorf("record %d: %v, want offset %d", i, r, next[r.GetPartition()])
			}
			next[r.GetPartition()]++
		}
		if len(next) != 3 || len(resp.GetResults()) != 60 {
			t.Fatal(resp)
		}
		for n := range int32(3) {
			if got := w.brokers[n+1].ends(); len(got) != 1 || got[fmt.Sprintf("t/%d", n)] != next[n] {
				t.Errorf("broker %d stored %v", n+1, got)
			}
		}
		// Unary, too.
		one, err := w.brokers[1].log.Append(t.Context(), &runnelv1.AppendRequest{Request: textRequest(1, "t", 1, "x")})
		if err != nil || one.GetResponse().GetBaseOffset() != next[1] {
			t.Error(one, err)
		}
	})
}

// DIRECT says who leads, and forwards nothing.
func TestForward_directIsToldTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		req := textRequest(1, "t", 0, "a")
		req.Routing = runnelv1.Routing_ROUTING_DIRECT
		want := map[string]string{"leader": "2", "leaderEpoch": "1", "address": "broker-2:7420"}
		e := w.brokers[1].produce(req).GetError()
		if e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER || codes.Code(e.GetCode()) != codes.FailedPrecondition || !cmp.Equal(e.GetMetadata(), want) {
			t.Error(e)
		}
		got := w.brokers[1].fetchAll(&runnelv1.FetchRequest{
			Options: &runnelv1.FetchOptions{Routing: runnelv1.Routing_ROUTING_DIRECT}, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}},
		})
		if e := got.errors[0]; e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER || !cmp.Equal(e.GetMetadata(), want) {
			t.Error(got.errors)
		}
		if len(w.dials) != 0 {
			t.Errorf("connections were made: %v", w.dials)
		}
	})
}

// A pumped is a stream through a proxy while the leadership moves.
type pumped struct {
	answers map[uint64]*runnelv1.ProduceResponse
	err     error
}

// pumpThrough sends count records, one a request, pause apart.
func (w *testTown) pumpThrough(id int32, topic string, count int, pause time.Duration, timeout time.Duration) <-chan pumped {
	stream := w.brokers[id].open()
	out := make(chan pumped, 1)
	w.pumps.Go(func() {
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
	w.pumps.Go(func() {
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

// Without a leader a request waits within its timeout, and fails for certain.
func TestForward_waitsForALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		w.move("t", 0, -1)
		stream := w.brokers[1].open()
		short := textRequest(1, "t", 0, "a")
		short.Timeout = durationpb.New(3 * time.Second)
		send(t, stream, short, textRequest(2, "t", 0, "b"))
		start := time.Now()
		r := recv(t, stream)
		if e := problem(r); r.GetRequestId() != 1 || e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_NO_LEADER || e.GetOutcomeUnknown() || time.Since(start) != 3*time.Second {
			t.Errorf("after %s: %v", time.Since(start), r)
		}
		w.move("t", 0, 2)
		if r := recv(t, stream); r.GetRequestId() != 2 || problem(r) != nil || r.GetBaseOffset() != 0 || time.Since(start) > 3*time.Second+100*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(start), r)
		}
	})
}

// Who knows less waits for the news; the newer view counts, whoever has it.
func TestForward_theNewerViewCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		// The proxy knows first.
		w.move("t", 0, 3, 1)
		stream := w.brokers[1].open()
		send(t, stream, textRequest(1, "t", 0, "a"))
		time.Sleep(700 * time.Millisecond)
		start := time.Now()
		w.tell("t", 0, 3)
		if r := recv(t, stream); problem(r) != nil || time.Since(start) > 20*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(start), r)
		}
		// The proxy knows last: it learns from a refusal.
		w.move("t", 0, 2, 2, 3)
		start = time.Now()
		send(t, stream, textRequest(2, "t", 0, "b"))
		if r := recv(t, stream); problem(r) != nil || time.Since(start) > 20*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(start), r)
		}
		// And to the proxy itself.
		w.move("t", 0, 1, 2, 3)
		send(t, stream, textRequest(3, "t", 0, "c"))
		synctest.Wait()
		w.tell("t", 0, 1)
		if r := recv(t, stream); problem(r) != nil {
			t.Error(r)
		}
	})
}

// Too few replicas in sync is told at once, and its cause (RP-16).
func TestForward_notEnoughReplicasAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		w.isr("t", 0, 2, 2)
		start := time.Now()
		e := w.brokers[1].produce(textRequest(1, "t", 0, "a")).GetError()
		if e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS || e.GetOutcomeUnknown() || e.GetMetadata()["minIsr"] != "2" || time.Since(start) > time.Second {
			t.Errorf("after %s: %v", time.Since(start), e)
		}
		// After the append it is uncertain.
		w.isr("t", 0, 2, 2, 3)
		stream := w.brokers[1].open()
		send(t, stream, textRequest(1, "t", 0, "a"))
		synctest.Wait()
		w.isr("t", 0, 2, 2)
		if e := problem(recv(t, stream)); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || !e.GetOutcomeUnknown() {
			t.Error(e)
		}
	})
}

// The time of a request counts from when the proxy got it, and what is held is
// let go when it is over, not at the end of an enormous timeout (PD-15).
func TestForward_timeoutIsPassedOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		w.isr("t", 0, 1, 2, 1)
		req := textRequest(1, "t", 0, "a")
		req.Timeout = durationpb.New(2 * time.Second)
		start := time.Now()
		r := w.brokers[1].produce(req)
		if e := problem(r); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || time.Since(start) != 2*time.Second {
			t.Errorf("after %s: %v", time.Since(start), r)
		}
		time.Sleep(200 * time.Millisecond)
		if open := w.forward[2].open(); open != 0 {
			t.Errorf("the leader still waits for %d", open)
		}
		w.isr("t", 0, 1, 2)
		for range 100 {
			req := textRequest(1, "t", 0, "a")
			req.Timeout = durationpb.New(1 << 50)
			if r := w.brokers[1].produce(req); problem(r) != nil {
				t.Fatal(r)
			}
		}
		synctest.Wait()
		if held := w.routers[1].Held(); held != (router.Held{}) || w.forward[2].open() != 0 {
			t.Errorf("held afterwards: %+v", held)
		}
	})
}

// A leader that goes down says what it has not read; that is sent again.
func TestForward_drainedLeaderLeavesNoDoubt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		const sent = 300
		done := w.pumpThrough(1, "t", sent, time.Millisecond, 30*time.Second)
		time.Sleep(100 * time.Millisecond)
		w.forward[2].Drain()
		time.Sleep(20 * time.Millisecond)
		w.move("t", 0, 3)
		p := <-done
		if n := checkOrder(t, sent, p, w.contents("t", 0)); n != sent {
			t.Errorf("%d of %d succeeded", n, sent)
		}
	})
}

// Writes that were answered before they were stored are stored, also when the
// stream has ended.
func TestForward_unansweredWritesOutliveTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		w.move("t", 0, -1)
		for i := range 3 {
			req := textRequest(uint64(i), "t", 0, strconv.Itoa(i))
			req.Acks = runnelv1.Acks_ACKS_NONE
			if r := w.brokers[1].produce(req); r.GetError() != nil || r.BaseOffset != nil {
				t.Error(r)
			}
		}
		w.move("t", 0, 2)
		time.Sleep(time.Second)
		if got := len(w.contents("t", 0)); got != 3 {
			t.Errorf("%d stored", got)
		}
		// But not for ever.
		w.move("t", 0, -1)
		req := textRequest(9, "t", 0, "late")
		req.Acks = runnelv1.Acks_ACKS_NONE
		w.brokers[1].produce(req)
		time.Sleep(time.Minute)
		if held := w.routers[1].Held(); held != (router.Held{}) {
			t.Errorf("held: %+v", held)
		}
	})
}

// What a client stream may have under way is bounded, and so is what one broker
// may be sent.
func TestForward_backPressure(t *testing.T) {
	const kib = 1 << 10
	for name, c := range map[string]struct {
		tune  func(*router.Options)
		parts []int32
		want  int // requests that are read
	}{
		"a partition": {func(o *router.Options) { o.PartitionBytes = 4 * kib }, []int32{0}, 4},
		"a stream":    {func(o *router.Options) { o.StreamBytes, o.PartitionBytes = 8*kib, 6*kib }, []int32{0, 1, 2, 3}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 2, c.tune, LogOptions{})
				w.topic("t", 2, 2, 2, 2)
				for n := range int32(4) {
					w.isr("t", n, 1, 2, 1)
				}
				stream := w.brokers[1].open()
				const sent = 20
				w.pumps.Go(func() {
					for i := range sent {
						_ = stream.Send(textRequest(uint64(i+1), "t", c.parts[i%len(c.parts)], strings.Repeat("x", kib)))
					}
				})
				time.Sleep(time.Second)
				got := 0
				for _, end := range w.brokers[2].ends() {
					got += int(end)
				}
				if got != c.want {
					t.Errorf("%d requests were read and passed on, want %d", got, c.want)
				}
				for n := range int32(4) {
					w.isr("t", n, 1, 2)
				}
				for range sent {
					if r := recv(t, stream); problem(r) != nil {
						t.Error(r)
					}
				}
			})
		})
	}
}

func TestForward_peerIsNotFlooded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, func(o *router.Options) { o.PeerBytes = 10 << 10 }, LogOptions{})
		w.topic("t", 2, 2, 2, 2, 2)
		for n := range int32(5) {
			w.isr("t", n, 1, 2, 1)
		}
		var streams []runnelv1.LogService_ProduceClient
		for n := range int32(5) {
			s := w.brokers[1].open()
			streams = append(streams, s)
			for i := range 4 {
				send(t, s, textRequest(uint64(i), "t", n, strings.Repeat("x", 1<<10)))
			}
		}
		time.Sleep(time.Second)
		got := 0
		for _, end := range w.brokers[2].ends() {
			got += int(end)
		}
		if held := w.routers[1].Held(); got != 9 || held.Unanswered > 10<<10 {
			t.Errorf("%d requests, %d bytes were sent", got, held.Unanswered)
		}
		for n := range int32(5) {
			w.isr("t", n, 1, 2)
		}
		for _, s := range streams {
			for i := range uint64(4) {
				if r := recv(t, s); problem(r) != nil || r.GetRequestId() != i {
					t.Error(r)
				}
			}
		}
	})
}

// After a refusal a leader takes nothing more of that number, and nothing of an
// older one once it saw a newer, over whatever stream (mutation 22).
func TestForwardProduce_fencesPipelines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		id := w.topic("t", 1).String()
		first, second := w.forwardStream(2), w.forwardStream(2)
		defer first.end()
		defer second.end()
		req := func(pipeline, number uint64, _ string) *wire.ForwardProduce {
			return &wire.ForwardProduce{TopicID: id, LeaderEpoch: 1, Pipeline: pipeline, PipelineNumber: number, Timeout: time.Second, Acks: 3}
		}
		const notLeader, fenced = runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA
		first.check(req(7, 1, "a"), notLeader)
		w.move("t", 0, 2)
		first.check(req(7, 1, "b"), fenced)
		second.check(req(7, 1, "c"), fenced)
		second.check(req(7, 2, "a"), 0)
		first.check(req(7, 1, "b"), fenced)
		second.check(req(7, 2, "b"), 0)
		first.check(req(8, 1, "x"), 0) // another pipeline
	})
}

// A request of a newer epoch waits for the news, and all behind it with it; for
// a second, not longer.
func TestForwardProduce_waitsForNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		id := w.topic("t", 1, 2).String()
		s := w.forwardStream(2)
		defer s.end()
		ahead := &wire.ForwardProduce{TopicID: id, LeaderEpoch: 2, Pipeline: 1, PipelineNumber: 1, Timeout: 30 * time.Second, Acks: 3}
		start := time.Now()
		s.send(ahead)
		s.send(&wire.ForwardProduce{TopicID: id, LeaderEpoch: 1, Pipeline: 1, PipelineNumber: 1, Timeout: 30 * time.Second, Acks: 3})
		s.send(&wire.ForwardProduce{TopicID: id, LeaderEpoch: 1, Partition: 1, Pipeline: 2, PipelineNumber: 1, Timeout: 30 * time.Second, Acks: 3})
		if r := s.recv(); r.Sequence != 3 || r.Error != nil || time.Since(start) != 0 {
			t.Errorf("another pipeline: %+v", r)
		}
		time.Sleep(500 * time.Millisecond)
		w.move("t", 0, 2)
		for want := uint64(1); want <= 2; want++ {
			if r := s.recv(); r.Sequence != want || r.Error != nil || r.BaseOffset != int64(want-1) {
				t.Errorf("%+v, want an answer to %d", r, want)
			}
		}
		start = time.Now()
		s.send(&wire.ForwardProduce{TopicID: id, LeaderEpoch: 9, Pipeline: 1, PipelineNumber: 1, Timeout: 30 * time.Second, Acks: 3})
		r := s.recv()
		if took := time.Since(start); r.Error.GetReason() != runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA || took < time.Second || took > time.Second+20*time.Millisecond {
			t.Errorf("after %s: %+v", took, r)
		}
		// The leader's own epoch may be the newer one.
		w.move("t", 0, 2)
		s.check(&wire.ForwardProduce{TopicID: id, LeaderEpoch: 1, Pipeline: 3, PipelineNumber: 1, Timeout: time.Second, Acks: 3}, 0)
	})
}
