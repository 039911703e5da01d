package replication

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// A puppet is a leader that says only what the test has it say, and notes what
// it hears. It opens streams by itself.
type puppet struct {
	replicav1.UnimplementedReplicaServiceServer

	t      *testing.T
	server *grpc.Server
	wg     sync.WaitGroup

	// mu guards the fields below
	mu sync.Mutex

	opens  []*replicav1.Open
	stream grpc.BidiStreamingServer[replicav1.ReplicateRequest, replicav1.ReplicateResponse]
	heard  []*replicav1.ReplicateRequest
	at     []time.Time
	over   int // streams that ended
	mute   bool
}

// Replicate implements replicav1.ReplicaServiceServer.
func (l *puppet) Replicate(ss grpc.BidiStreamingServer[replicav1.ReplicateRequest, replicav1.ReplicateResponse]) error {
	defer func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.over++
	}()
	first, err := ss.Recv()
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.opens, l.stream = append(l.opens, first.GetOpen()), ss
	l.mu.Unlock()
	if !l.mute {
		l.say(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Opened{Opened: &replicav1.Opened{}}})
	}
	for {
		m, err := ss.Recv()
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.heard, l.at = append(l.heard, m), append(l.at, time.Now())
		l.mu.Unlock()
	}
}

func (l *puppet) say(m *replicav1.ReplicateResponse) {
	l.mu.Lock()
	ss := l.stream
	l.mu.Unlock()
	_ = ss.Send(m)
}

// hear returns what was heard since the last call, once nothing more happens.
func (l *puppet) hear() ([]*replicav1.ReplicateRequest, []time.Time) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	heard, at := l.heard, l.at
	l.heard, l.at = nil, nil
	return heard, at
}

func (l *puppet) streams() (opened, over int) {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.opens), l.over
}

func (l *puppet) beat(n uint64) {
	l.say(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Heartbeat{Heartbeat: &replicav1.Heartbeat{Number: n}}})
}

func (l *puppet) answer(s *replicav1.Subscribed) {
	l.say(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Subscribed{Subscribed: s}})
}

func (l *puppet) accept(number int64) {
	l.answer(&replicav1.Subscribed{Subscription: number, Answer: &replicav1.Subscribed_Accepted{Accepted: &replicav1.Accepted{}}})
}

// data sends a frame; edit makes it wrong.
func (l *puppet) data(id uuid.UUID, epoch, number int64, size int, edit func(*replicav1.Data)) {
	batches := batchesOf(l.t, frameOf(l.t, 0, record.Epoch(epoch), 1, size))
	d := &replicav1.Data{TopicId: id.String(), LeaderEpoch: epoch, Subscription: number, NextOffset: 1, Batches: batches}
	if edit != nil {
		edit(d)
	}
	l.say(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Data{Data: d}})
}

func batchesOf(tb testing.TB, frame []byte) []*runnelv1.RecordBatch {
	tb.Helper()
	seg := &runnelv1.Segment{}
	if err := proto.Unmarshal(frame, seg); err != nil {
		tb.Fatal(err)
	}
	return seg.GetBatches()
}

func frameOf(tb testing.TB, base record.Offset, epoch record.Epoch, records, size int) []byte {
	tb.Helper()
	return batchOf(tb, records, size).Seal(base, epoch, 1, record.CreateTime)
}

// puppetTown is broker 2 running, with broker 1 played by the test.
func puppetTown(t *testing.T, f func(w *town, l *puppet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2)
		l := &puppet{t: t, server: grpc.NewServer(grpc.WaitForHandlers(true), grpc.MaxRecvMsgSize(16<<20))}
		replicav1.RegisterReplicaServiceServer(l.server, l)
		lis := w.net.listen(address(1))
		l.wg.Go(func() { _ = l.server.Serve(lis) })
		w.register(1, "one")
		defer l.wg.Wait()
		defer l.server.Stop()
		defer w.end()
		f(w, l)
	})
}

// kinds spells messages for comparing.
func kinds(heard []*replicav1.ReplicateRequest) []string {
	var out []string
	for _, m := range heard {
		switch e := m.GetEvent().(type) {
		case *replicav1.ReplicateRequest_Subscribe:
			out = append(out, fmt.Sprintf("subscribe %d at %d", e.Subscribe.GetSubscription(), e.Subscribe.GetNextOffset()))
		case *replicav1.ReplicateRequest_Unsubscribe:
			out = append(out, fmt.Sprintf("unsubscribe %d", e.Unsubscribe.GetSubscription()))
		case *replicav1.ReplicateRequest_HeartbeatAck:
			out = append(out, fmt.Sprintf("beat %d", e.HeartbeatAck.GetNumber()))
		case *replicav1.ReplicateRequest_Acks:
			for _, a := range e.Acks.GetAcks() {
				what := "nothing"
				if a.GetLeaderEpoch() != 0 {
					what = fmt.Sprint(a.GetWritten())
				}
				credit := ""
				if a.GetCreditBytes() > 0 {
					credit = ", credit"
				}
				out = append(out, fmt.Sprintf("ack %d: %s%s", a.GetSubscription(), what, credit))
			}
		}
	}
	return out
}

func expect(tb testing.TB, l *puppet, want ...string) {
	tb.Helper()
	heard, _ := l.hear()
	if got := kinds(heard); !slices.Equal(got, want) {
		tb.Errorf("heard %q, want %q", got, want)
	}
}

func TestFollower_acknowledgesAtOnce(t *testing.T) {
	puppetTown(t, func(w *town, l *puppet) {
		t := w.t
		id := w.topic(async, 1, 1, 1, 2)
		expect(t, l, "subscribe 1 at 0")
		o := l.opens[0]
		if o.GetClusterId() != cluster || o.GetBrokerId() != 2 || o.GetIncarnation() != w.nodes[2].incarnation || o.GetBrokerEpoch() != w.epochOf(2) ||
			o.GetLeaderId() != 1 || o.GetLeaderIncarnation() != "one" || o.GetLeaderBrokerEpoch() != w.epochOf(1) || o.GetCreditBytes() != streamCredit {
			t.Errorf("opened with %v", o)
		}
		start := time.Now()
		l.accept(1)
		expect(t, l, "ack 1: 0") // although there is nothing to send
		l.data(id, 1, 1, 100, nil)
		expect(t, l, "ack 1: 1, credit")
		if time.Since(start) != 0 {
			t.Error("it took its time")
		}
	})
}

func TestFollower_dropsWhatDoesNotFit(t *testing.T) {
	for name, c := range map[string]struct {
		edit    func(*replicav1.Data)
		ignored bool // it is of another subscription, and that is all
	}{
		"another start":        {edit: func(d *replicav1.Data) { d.StartOffset, d.NextOffset = 1, 2 }},
		"another epoch before": {edit: func(d *replicav1.Data) { d.StartOffset, d.PrevEpoch = 0, new(int64(7)); d.NextOffset = 0 }},
		"a bad checksum":       {edit: func(d *replicav1.Data) { d.Batches[0].GetRecords().GetRecords()[0].Value = []byte("other") }},
		"a later epoch inside": {edit: func(d *replicav1.Data) { d.Batches = batchesOf(t, frameOf(t, 0, 5, 1, 10)) }},
		"another subscription": {edit: func(d *replicav1.Data) { d.Subscription = 9 }, ignored: true},
		"another epoch":        {edit: func(d *replicav1.Data) { d.LeaderEpoch = 2 }, ignored: true},
		"another topic":        {edit: func(d *replicav1.Data) { d.TopicId = "x" }, ignored: true},
		"another partition":    {edit: func(d *replicav1.Data) { d.Partition = 1 }, ignored: true},
	} {
		t.Run(name, func(t *testing.T) {
			puppetTown(t, func(w *town, l *puppet) {
				t := w.t
				id := w.topic(async, 1, 1, 1, 2)
				synctest.Wait()
				l.accept(1)
				l.hear()
				l.data(id, 1, 1, 100, c.edit)
				heard, _ := l.hear()
				got := kinds(heard)
				switch {
				case !c.ignored:
					// What was given up says nothing about the log any more.
					want := []string{"unsubscribe 1", "subscribe 2 at 0", "ack 1: nothing, credit"}
					slices.Sort(got)
					slices.Sort(want)
					if !slices.Equal(got, want) || w.nodes[2].dropped() != 1 {
						t.Errorf("heard %q, %v dropped", got, w.nodes[2].dropped())
					}
				case len(got) != 1 || got[0] != "ack 1: nothing, credit" && got[0] != "ack 9: nothing, credit" && got[0] != "ack 1: 0, credit":
					t.Errorf("heard %q", got)
				}
				if end := w.nodes[2].replica(id, 0).State().LogEnd; end != 0 {
					t.Errorf("the log ends at %d", end)
				}
			})
		})
	}
}

func TestFollower_dropsTheSubscriptionBeforeItCuts(t *testing.T) {
	puppetTown(t, func(w *town, l *puppet) {
		t := w.t
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		l.accept(1)
		l.data(id, 1, 1, 100, nil)
		l.hear()
		w.elect(id, 0, 1, 1)
		expect(t, l, "unsubscribe 1", "subscribe 2 at 1")
		disk := w.nodes[2].hold(truncating, id, 0)
		l.answer(&replicav1.Subscribed{Subscription: 2, Answer: &replicav1.Subscribed_Diverging{Diverging: &replicav1.Diverging{Epoch: 0, EndOffset: 0}}})
		l.data(id, 1, 1, 100, func(d *replicav1.Data) { d.StartOffset, d.NextOffset = 1, 2 }) // of the old epoch
		disk.wait()
		expect(t, l, "ack 1: nothing, credit")
		disk.release()
		expect(t, l, "unsubscribe 2", "subscribe 3 at 0")
		l.answer(&replicav1.Subscribed{Subscription: 3, Answer: &replicav1.Subscribed_Reset_{Reset_: &replicav1.Reset{LogStartOffset: 40, Epoch: new(int64(1))}}})
		heard, _ := l.hear()
		if got := kinds(heard); !slices.Equal(got, []string{"unsubscribe 3", "subscribe 4 at 40"}) || heard[1].GetSubscribe().LastEpoch != nil {
			t.Errorf("after a reset: %q, %v", got, heard)
		}
	})
}

// Whoever learnt of another epoch says so before it answers a heartbeat, also
// while its log is busy.
func TestFollower_renouncesBeforeItAnswersAHeartbeat(t *testing.T) {
	puppetTown(t, func(w *town, l *puppet) {
		t := w.t
		id := w.topic(async, 1, 1, 1, 2)
		other := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		l.accept(1)
		l.accept(2)
		l.beat(1)
		heard, _ := l.hear()
		if got := kinds(heard); !slices.Contains(got, "beat 1") || slices.Contains(got, "unsubscribe 1") {
			t.Errorf("heard %q", got)
		}
		number := int64(1)
		for _, m := range heard {
			if s := m.GetSubscribe(); s.GetTopicId() == id.String() {
				number = s.GetSubscription()
			}
		}
		disk := w.nodes[2].hold(writing, id, 0)
		l.data(id, 1, number, 100, nil)
		disk.wait()
		l.hear()
		w.elect(id, 0, 1, 1, 2)
		l.beat(2)
		heard, _ = l.hear()
		got := kinds(heard)
		up, beat := slices.Index(got, fmt.Sprint("unsubscribe ", number)), slices.Index(got, "beat 2")
		if up < 0 || beat < up {
			t.Errorf("heard %q", got)
		}
		if n := len(got); n != 2 {
			t.Errorf("%s was given up too: %q", other, got)
		}
		disk.release()
	})
}

func TestFollower_endsAStreamThatIsOverdrawn(t *testing.T) {
	puppetTown(t, func(w *town, l *puppet) {
		t := w.t
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		l.accept(1)
		disk := w.nodes[2].hold(writing, id, 0)
		for range 16 {
			l.data(id, 1, 1, 1<<20, nil)
		}
		if opened, over := l.streams(); opened != 1 || over != 0 {
			t.Fatalf("%d streams, %d over", opened, over)
		}
		l.data(id, 1, 1, 1<<20, nil)
		if _, over := l.streams(); over != 1 {
			t.Error("it took more than it gave credit for")
		}
		disk.release()
		time.Sleep(time.Second)
		if opened, _ := l.streams(); opened != 2 {
			t.Errorf("%d streams", opened)
		}
	})
}

// Whatever was taken is forgotten: only what waits counts.
func TestFollower_takesMoreThanAllCredit(t *testing.T) {
	puppetTown(t, func(w *town, l *puppet) {
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		l.accept(1)
		for i := range int64(40) {
			l.data(id, 1, 1, 1<<20, func(d *replicav1.Data) {
				d.Batches = batchesOf(w.t, frameOf(w.t, record.Offset(i), 1, 1, 1<<20))
				d.StartOffset, d.NextOffset = i, i+1
				if i > 0 {
					d.PrevEpoch = new(int64(1))
				}
			})
			synctest.Wait()
		}
		if opened, over := l.streams(); opened != 1 || over != 0 {
			w.t.Errorf("%d streams, %d over", opened, over)
		}
		if end := w.nodes[2].replica(id, 0).State().LogEnd; end != 40 {
			w.t.Errorf("the log ends at %d", end)
		}
	})
}

func TestFollower_waitsForNoAnswerForEver(t *testing.T) {
	puppetTown(t, func(w *town, l *puppet) {
		l.mute = true
		w.topic(async, 1, 1, 1, 2)
		time.Sleep(silence - time.Millisecond)
		if opened, over := l.streams(); opened != 1 || over != 0 {
			w.t.Errorf("%d streams, %d over", opened, over)
		}
		time.Sleep(time.Second)
		if opened, over := l.streams(); opened != 2 || over != 1 {
			w.t.Errorf("afterwards %d streams, %d over", opened, over)
		}
	})
}

func TestFollower_opensAgainAfterSilenceAndNeverReusesANumber(t *testing.T) {
	puppetTown(t, func(w *town, l *puppet) {
		t := w.t
		w.topic(async, 3, 1, 1, 2)
		seen := map[int64]bool{}
		for i := range 3 {
			time.Sleep(2 * silence / 3)
			l.beat(1)
			time.Sleep(2 * silence / 3)
			if opened, over := l.streams(); opened != i+1 || over != i {
				t.Fatalf("%d streams, %d over", opened, over)
			}
			heard, _ := l.hear()
			for _, m := range heard {
				if s := m.GetSubscribe(); s != nil {
					if seen[s.GetSubscription()] {
						t.Errorf("subscription %d came twice", s.GetSubscription())
					}
					seen[s.GetSubscription()] = true
				}
			}
			time.Sleep(silence/3 + 150*time.Millisecond)
		}
		if len(seen) != 9 {
			t.Errorf("%d subscriptions", len(seen))
		}
	})
}

func TestFollower_triesAgainEverSlower(t *testing.T) {
	puppetTown(t, func(w *town, l *puppet) {
		t := w.t
		w.topic(async, 1, 1, 1, 2)
		var times []time.Time
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
			heard, at := l.hear()
			for i, m := range heard {
				if s := m.GetSubscribe(); s != nil {
					times = append(times, at[i])
					l.answer(&replicav1.Subscribed{Subscription: s.GetSubscription(), Answer: &replicav1.Subscribed_Refused{Refused: &replicav1.Refused{Reason: "no"}}})
				}
			}
			if time.Now().UnixMilli()%500 < 5 {
				l.beat(1)
			}
		}
		if n := len(times); n < 6 || n > 12 {
			t.Errorf("%d attempts in five seconds", n)
		}
		if last := times[len(times)-1].Sub(times[len(times)-2]); last < retryMax || last > retryMax+10*time.Millisecond {
			t.Errorf("the last pause was %s", last)
		}
	})
}

func TestLanes_spreadPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.cfg.Streams = 3
		w.start(1, newDisk())
		w.start(2, newDisk())
		defer w.end()
		id := w.topic(async, 30, 2, 1, 2)
		synctest.Wait()
		for n := range int32(30) {
			_, committed := w.nodes[1].append(id, n, 1, 10)
			w.within(20*time.Millisecond, "committed", w.done(committed))
		}
		if n := w.nodes[1].metric("replication_follower_streams"); n != 3 {
			t.Errorf("%v streams", n)
		}
	})
}
