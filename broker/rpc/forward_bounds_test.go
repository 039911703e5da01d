package rpc

import (
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/wire"
)

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
				var sender sync.WaitGroup
				sender.Go(func() {
					for i := range sent {
						_ = stream.Send(textRequest(uint64(i+1), "t", c.parts[i%len(c.parts)], strings.Repeat("x", kib)))
					}
				})
				defer sender.Wait()
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
