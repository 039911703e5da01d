package replication

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// A reader is a follower that does only what the test says, and answers
// heartbeats while it is not numb.
type reader struct {
	t      testing.TB
	conn   *grpc.ClientConn
	stream replicateClient
	cancel context.CancelFunc
	wg     sync.WaitGroup

	// mu guards the fields below
	mu sync.Mutex

	got  []*replicav1.ReplicateResponse // but heartbeats
	at   []time.Time
	numb bool
	err  error
}

// read opens a stream to broker 1.
func (w *town) read(open *replicav1.Open) *reader {
	w.t.Helper()
	conn, err := rpcserver.Dial(address(1), rpcserver.DialOptions{Dial: func(ctx context.Context, to string) (net.Conn, error) {
		return w.net.dial(ctx, "nobody", to)
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	r := &reader{t: w.t, conn: conn, cancel: cancel}
	if r.stream, err = replicav1.NewReplicaServiceClient(conn).Replicate(ctx); err != nil {
		w.t.Fatal(err)
	}
	if open != nil {
		r.send(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Open{Open: open}})
	}
	r.wg.Go(r.receive)
	return r
}

// opening is what a follower that is registered as broker 2 opens with.
func (w *town) opening(epoch int64) *replicav1.Open {
	return &replicav1.Open{
		ClusterId: cluster, BrokerId: 2, Incarnation: "two", BrokerEpoch: epoch, LeaderId: 1, LeaderIncarnation: w.nodes[1].incarnation,
		LeaderBrokerEpoch: w.epochOf(1), CreditBytes: streamCredit,
	}
}

func (r *reader) send(m *replicav1.ReplicateRequest) { _ = r.stream.Send(m) }

func (r *reader) receive() {
	for {
		m, err := r.stream.Recv()
		r.mu.Lock()
		if err != nil {
			r.err = err
			r.mu.Unlock()
			return
		}
		answer := m.GetHeartbeat() != nil && !r.numb
		if m.GetHeartbeat() == nil {
			r.got, r.at = append(r.got, m), append(r.at, time.Now())
		}
		r.mu.Unlock()
		if answer {
			r.send(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_HeartbeatAck{HeartbeatAck: &replicav1.HeartbeatAck{Number: m.GetHeartbeat().GetNumber()}}})
		}
	}
}

// take returns what came since the last call, once nothing more happens.
func (r *reader) take() ([]*replicav1.ReplicateResponse, []time.Time) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	got, at := r.got, r.at
	r.got, r.at = nil, nil
	return got, at
}

func (r *reader) code() codes.Code {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return status.Code(r.err)
}

func (r *reader) close() {
	r.cancel()
	r.wg.Wait()
	_ = r.conn.Close()
}

func (r *reader) subscribe(id uuid.UUID, partition int32, epoch, number, next int64, last *int64) {
	r.send(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Subscribe{Subscribe: &replicav1.Subscribe{
		TopicId: id.String(), Partition: partition, LeaderEpoch: epoch, Subscription: number, NextOffset: next, LastEpoch: last, CreditBytes: partitionCredit,
	}}})
}

func (r *reader) ack(a *replicav1.Ack) {
	r.send(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Acks{Acks: &replicav1.Acks{Acks: []*replicav1.Ack{a}}}})
}

// leaderTown is broker 1 running, and broker 2 registered and played by a test.
func leaderTown(t *testing.T, f func(w *town, epoch int64)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1)
		defer w.end()
		w.deaf = true
		epoch := w.register(2, "two")
		synctest.Wait()
		f(w, epoch)
	})
}

func TestServer_isProbed(t *testing.T) {
	leaderTown(t, func(w *town, _ int64) {
		t := w.t
		r := w.read(w.opening(1))
		defer r.close()
		got, err := replicav1.NewReplicaServiceClient(r.conn).Probe(t.Context(), &replicav1.ProbeRequest{})
		if err != nil || got.GetBrokerId() != 1 || got.GetIncarnation() != w.nodes[1].incarnation || got.GetClusterId() != cluster {
			t.Errorf("%v, %v", got, err)
		}
	})
}

func TestServer_takesStreamsOnlyFromWhomItKnows(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*replicav1.Open)
		want codes.Code
	}{
		"as it should be":        {func(*replicav1.Open) {}, codes.OK},
		"another cluster":        {func(o *replicav1.Open) { o.ClusterId = "d" }, codes.FailedPrecondition},
		"another broker":         {func(o *replicav1.Open) { o.LeaderId = 3 }, codes.FailedPrecondition},
		"another process":        {func(o *replicav1.Open) { o.LeaderIncarnation = "x" }, codes.FailedPrecondition},
		"its earlier epoch":      {func(o *replicav1.Open) { o.LeaderBrokerEpoch-- }, codes.FailedPrecondition},
		"its later epoch":        {func(o *replicav1.Open) { o.LeaderBrokerEpoch++ }, codes.Unavailable},
		"the earlier epoch":      {func(o *replicav1.Open) { o.BrokerEpoch-- }, codes.FailedPrecondition},
		"the follower's process": {func(o *replicav1.Open) { o.Incarnation = "x" }, codes.FailedPrecondition},
		"a later epoch":          {func(o *replicav1.Open) { o.BrokerEpoch++ }, codes.Unavailable},
		"an unknown broker":      {func(o *replicav1.Open) { o.BrokerId = 7 }, codes.Unavailable},
		"no credit":              {func(o *replicav1.Open) { o.CreditBytes = 0 }, codes.InvalidArgument},
	} {
		t.Run(name, func(t *testing.T) {
			leaderTown(t, func(w *town, epoch int64) {
				t := w.t
				open := w.opening(epoch)
				c.edit(open)
				start := time.Now()
				r := w.read(open)
				defer r.close()
				if c.want == codes.Unavailable {
					if r.code() != codes.OK || time.Since(start) != 0 {
						t.Error("it was not waited for")
					}
					time.Sleep(parkTime)
				}
				if got := r.code(); got != c.want {
					t.Errorf("%s, want %s", got, c.want)
				}
				got, _ := r.take()
				if opened := len(got) == 1 && got[0].GetOpened() != nil; opened != (c.want == codes.OK) {
					t.Errorf("got %v", got)
				}
			})
		})
	}
	leaderTown(t, func(w *town, epoch int64) {
		t := w.t
		r := w.read(w.opening(epoch + 1))
		defer r.close()
		time.Sleep(parkTime / 2)
		w.register(2, "two")
		if got, _ := r.take(); len(got) != 1 || got[0].GetOpened() == nil {
			t.Errorf("registered meanwhile: %v", got)
		}
		w.register(2, "three")
		if r.code() != codes.FailedPrecondition {
			t.Errorf("another process came: %v", r.err)
		}
	})
	leaderTown(t, func(w *town, epoch int64) {
		t := w.t
		r := w.read(nil)
		defer r.close()
		r.ack(&replicav1.Ack{})
		if r.code() != codes.InvalidArgument {
			t.Errorf("not opened: %v", r.err)
		}
		r2 := w.read(w.opening(epoch))
		defer r2.close()
		r2.send(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Open{Open: w.opening(epoch)}})
		if r2.code() != codes.InvalidArgument {
			t.Errorf("opened twice: %v", r2.err)
		}
		r3 := w.read(w.opening(epoch))
		defer r3.close()
		r3.ack(&replicav1.Ack{Subscription: 1, CreditBytes: -1})
		if r3.code() != codes.InvalidArgument {
			t.Errorf("took credit away: %v", r3.err)
		}
	})
}

func TestServer_parksWhatIsAheadOfItsMetadata(t *testing.T) {
	leaderTown(t, func(w *town, epoch int64) {
		t := w.t
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		r := w.read(w.opening(epoch))
		defer r.close()
		r.take()
		r.subscribe(id, 0, 2, 1, 0, nil)
		unknown := uuid.New()
		r.subscribe(unknown, 0, 1, 2, 0, nil)
		if got, _ := r.take(); len(got) != 0 {
			t.Fatalf("answered at once: %v", got)
		}
		time.Sleep(parkTime / 2)
		w.elect(id, 0, 1, 1)
		if got, _ := r.take(); len(got) != 1 || got[0].GetSubscribed().GetSubscription() != 1 || got[0].GetSubscribed().GetAccepted() == nil {
			t.Fatalf("after the metadata came: %v", got)
		}
		time.Sleep(parkTime/2 - time.Millisecond)
		if got, _ := r.take(); len(got) != 0 {
			t.Fatalf("refused early: %v", got)
		}
		time.Sleep(time.Millisecond)
		if got, _ := r.take(); len(got) != 1 || got[0].GetSubscribed().GetSubscription() != 2 || got[0].GetSubscribed().GetRefused() == nil {
			t.Fatalf("after a second: %v", got)
		}
		r.subscribe(id, 0, 1, 3, 0, nil)
		got, _ := r.take()
		if len(got) != 1 || got[0].GetSubscribed().GetRefused().GetLeaderEpoch() != 2 {
			t.Fatalf("an earlier epoch: %v", got)
		}
	})
}

// dataBytes returns the bytes of batches that came for a subscription, and the
// offset they go up to.
func dataBytes(got []*replicav1.ReplicateResponse, number int64) (bytes, next int64) {
	for _, m := range got {
		if d := m.GetData(); d.GetSubscription() == number && d != nil {
			for _, b := range d.GetBatches() {
				bytes += int64(proto.Size(b))
			}
			next = d.GetNextOffset()
		}
	}
	return bytes, next
}

func TestServer_keepsToTheCredit(t *testing.T) {
	leaderTown(t, func(w *town, epoch int64) {
		t := w.t
		id := w.topic(async, 2, 1, 1, 2)
		open := w.opening(epoch)
		open.CreditBytes = partitionCredit + 500_000
		synctest.Wait()
		r := w.read(open)
		defer r.close()
		r.subscribe(id, 0, 1, 1, 0, nil)
		r.subscribe(id, 1, 1, 2, 0, nil)
		synctest.Wait()
		const batch = 300_000
		for range 12 {
			w.nodes[1].append(id, 0, 1, batch)
			w.nodes[1].append(id, 1, 1, batch)
		}
		got, _ := r.take()
		one, next := dataBytes(got, 1)
		two, _ := dataBytes(got, 2)
		if one > partitionCredit+batch+1000 || two > partitionCredit+batch+1000 || one+two > open.GetCreditBytes()+batch+1000 || one+two < open.GetCreditBytes() {
			t.Errorf("%d and %d bytes came for credits of %d each and %d together", one, two, partitionCredit, open.GetCreditBytes())
		}
		// Credit of a subscription that was given up comes back to the stream.
		r.send(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Unsubscribe{Unsubscribe: &replicav1.Unsubscribe{Subscription: 2}}})
		r.ack(&replicav1.Ack{Subscription: 2, CreditBytes: two + 2000})
		r.ack(&replicav1.Ack{TopicId: id.String(), LeaderEpoch: 1, Subscription: 1, Written: next, CreditBytes: one + 2000})
		for range 20 {
			got, _ = r.take()
			if again, _ := dataBytes(got, 2); again != 0 {
				t.Error("what was given up is still sent")
			}
			n, to := dataBytes(got, 1)
			if n == 0 {
				break
			}
			next = to
			r.ack(&replicav1.Ack{TopicId: id.String(), LeaderEpoch: 1, Subscription: 1, Written: next, CreditBytes: n + 1000})
		}
		if next != 12 {
			t.Errorf("sent up to %d", next)
		}
	})
}

func TestServer_tellsNewsInTime(t *testing.T) {
	leaderTown(t, func(w *town, epoch int64) {
		t := w.t
		const partitions = 50
		id := w.topic(async, partitions, 1, 1, 2)
		synctest.Wait()
		r := w.read(w.opening(epoch))
		defer r.close()
		for n := range int32(partitions) {
			r.subscribe(id, n, 1, int64(n)+1, 0, nil)
			r.ack(&replicav1.Ack{TopicId: id.String(), Partition: n, LeaderEpoch: 1, Subscription: int64(n) + 1})
		}
		synctest.Wait()
		for n := range int32(partitions) {
			w.nodes[1].append(id, n, 1, 10)
		}
		time.Sleep(2 * progressDelay)
		r.take()
		acks := &replicav1.Acks{}
		for n := range int32(partitions) {
			acks.Acks = append(acks.Acks, &replicav1.Ack{TopicId: id.String(), Partition: n, LeaderEpoch: 1, Subscription: int64(n) + 1, Written: 1})
		}
		start := time.Now()
		r.send(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Acks{Acks: acks}})
		time.Sleep(2 * progressDelay)
		got, at := r.take()
		if len(got) != 1 || len(got[0].GetProgress().GetPartitions()) != partitions {
			t.Fatalf("%d messages, the first %v", len(got), got)
		}
		if d := at[0].Sub(start); d > progressDelay {
			t.Errorf("after %s", d)
		}
		for _, p := range got[0].GetProgress().GetPartitions() {
			if p.GetHighWatermark() != 1 {
				t.Errorf("%v", p)
			}
		}
	})
}

func TestServer_believesOnlyTheCurrentSubscription(t *testing.T) {
	leaderTown(t, func(w *town, epoch int64) {
		t := w.t
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		w.nodes[1].append(id, 0, 1, 10)
		p := w.nodes[1].replica(id, 0)
		r := w.read(w.opening(epoch))
		defer r.close()
		r.subscribe(id, 0, 1, 5, 0, nil)
		if got, _ := r.take(); len(got) != 3 || got[1].GetSubscribed().GetAccepted() == nil || got[2].GetData().GetNextOffset() != 1 {
			t.Fatalf("%v", got)
		}
		right := func() *replicav1.Ack {
			return &replicav1.Ack{TopicId: id.String(), LeaderEpoch: 1, Subscription: 5, Written: 1}
		}
		for name, edit := range map[string]func(*replicav1.Ack){
			"another topic":        func(a *replicav1.Ack) { a.TopicId = uuid.NewString() },
			"another partition":    func(a *replicav1.Ack) { a.Partition = 1 },
			"another epoch":        func(a *replicav1.Ack) { a.LeaderEpoch = 2 },
			"another subscription": func(a *replicav1.Ack) { a.Subscription = 4 },
		} {
			a := right()
			edit(a)
			r.ack(a)
			r.take()
			if hw := p.State().HighWatermark; hw != 0 {
				t.Errorf("%s: the high watermark is %d", name, hw)
			}
		}
		r.send(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Unsubscribe{Unsubscribe: &replicav1.Unsubscribe{Subscription: 5}}})
		r.ack(right())
		r.take()
		if hw := p.State().HighWatermark; hw != 0 {
			t.Errorf("given up: the high watermark is %d", hw)
		}
		one := int64(1)
		r.subscribe(id, 0, 1, 6, 1, &one)
		a := right()
		a.Subscription = 6
		r.ack(a)
		r.take()
		if hw := p.State().HighWatermark; hw != 1 {
			t.Errorf("right at last: the high watermark is %d", hw)
		}
	})
}

func TestServer_endsWhatItNoLongerLeads(t *testing.T) {
	leaderTown(t, func(w *town, epoch int64) {
		t := w.t
		id := w.topic(async, 1, 1, 1, 2)
		synctest.Wait()
		r := w.read(w.opening(epoch))
		defer r.close()
		r.subscribe(id, 0, 1, 1, 0, nil)
		r.take()
		w.change(id, 0, func(p *controllerv1.PartitionRecord) { p.LeaderEpoch, p.Leader = 2, 2 })
		if got, _ := r.take(); len(got) != 1 || got[0].GetEnded().GetSubscription() != 1 || got[0].GetEnded().GetLeaderEpoch() != 2 {
			t.Errorf("%v", got)
		}
	})
}

func TestServer_givesSilentFollowersUp(t *testing.T) {
	leaderTown(t, func(w *town, epoch int64) {
		t := w.t
		r := w.read(w.opening(epoch))
		defer r.close()
		time.Sleep(time.Minute)
		if r.code() != codes.OK {
			t.Fatalf("it answers: %v", r.err)
		}
		r.mu.Lock()
		r.numb = true
		r.mu.Unlock()
		time.Sleep(silence + heartbeatEvery)
		if r.code() != codes.Unavailable {
			t.Errorf("it is silent: %v", r.err)
		}
		if n := w.nodes[1].metric("replication_follower_streams"); n != 0 {
			t.Errorf("%v streams", n)
		}
	})
}
