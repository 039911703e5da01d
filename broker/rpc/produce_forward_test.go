package rpc

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
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
		req := textRequest(1, "t", 0, "a")
		req.Acks = runnelv1.Acks_ACKS_LEADER // is no promise that needs them
		if r := w.brokers[1].produce(req); problem(r) != nil || r.GetBaseOffset() != 0 {
			t.Error(r)
		}
		// After the append it is uncertain.
		w.isr("t", 0, 2, 2, 3)
		stream := w.brokers[1].open()
		send(t, stream, textRequest(1, "t", 0, "a"))
		synctest.Wait()
		w.isr("t", 0, 2, 2)
		if e := problem(recv(t, stream)); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || !e.GetOutcomeUnknown() || !strings.Contains(e.GetMessage(), "1 replicas are in sync by now") {
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
		if open := w.forward[2].waiting.Load(); open != 0 {
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
		if held := w.routers[1].Held(); held != (router.Held{}) || w.forward[2].waiting.Load() != 0 {
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
