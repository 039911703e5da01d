package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// A target is what a stream is bound to: both processes as they are registered.
type target struct {
	cluster     string
	leader      metadata.BrokerID
	incarnation string
	epoch       int64
	addr        string
	self        int64 // this broker's epoch
	lane        int   // of several streams to one leader
}

// A peer is a stream to one leader, over as many connections as it takes, with
// the replicas that follow it.
type peer struct {
	owner *Followers
	to    target

	// mu guards the fields below
	mu sync.Mutex

	replicas map[place]*replica
	numbers  map[int64]*replica // by subscription
	link     *link              // nil: no stream stands
}

// A link is one stream that stands.
type link struct {
	out    *outbox
	broken atomic.Bool
	// untaken is the bytes of batches that came and were not appended.
	untaken atomic.Int64
}

// taken notes that bytes no longer wait.
func (l *link) taken(bytes int64) { l.untaken.Add(-bytes) }

func newPeer(f *Followers, to target) *peer {
	return &peer{owner: f, to: to, replicas: map[place]*replica{}, numbers: map[int64]*replica{}}
}

// add begins to follow.
func (p *peer) add(r *replica) {
	p.mu.Lock()
	p.replicas[r.at] = r
	l := p.link
	p.mu.Unlock()
	if l != nil {
		r.post(item{kind: itemStart, link: l})
	}
}

// remove ends that. The leader hears of it before anything else is done with
// the log.
func (p *peer) remove(r *replica) {
	p.mu.Lock()
	if p.replicas[r.at] == r {
		delete(p.replicas, r.at)
	}
	l := p.link
	p.mu.Unlock()
	if n := r.number.Load(); l != nil && n != 0 {
		r.renounce(l, n, false)
	}
	r.close()
}

func (p *peer) empty() bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return len(p.replicas) == 0
}

// route notes which replica has a subscription; nil: none any more.
func (p *peer) route(number int64, r *replica) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if r == nil {
		delete(p.numbers, number)
	} else {
		p.numbers[number] = r
	}
}

func (p *peer) routed(number int64) *replica {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.numbers[number]
}

// followers returns the replicas as they are now.
func (p *peer) followers() []*replica {
	p.mu.Lock()
	defer p.mu.Unlock()

	out := make([]*replica, 0, len(p.replicas))
	for _, r := range p.replicas {
		out = append(out, r)
	}
	return out
}

// attach lets all replicas subscribe on a stream that stands.
func (p *peer) attach(l *link) {
	p.mu.Lock()
	p.link = l
	p.mu.Unlock()
	for _, r := range p.followers() {
		r.post(item{kind: itemStart, link: l})
	}
}

// detach ends that.
func (p *peer) detach(l *link) {
	l.broken.Store(true)
	p.mu.Lock()
	if p.link == l {
		p.link = nil
	}
	p.mu.Unlock()
	for _, r := range p.followers() {
		r.post(item{kind: itemStop, link: l})
	}
}

// Waits between connections.
const (
	backoffMin = 50 * time.Millisecond
	backoffMax = time.Second
)

// run keeps a stream up until ctx is done.
func (p *peer) run(ctx context.Context) {
	log := p.owner.deps.Log.With().Int32("leader", int32(p.to.leader)).Str("address", p.to.addr).Logger()
	conn, err := p.owner.deps.Dial(p.to.addr)
	if err != nil {
		log.Error().Err(err).Msg("this leader can't be followed: its internal address is of no use")
		return
	}
	defer func() { _ = conn.Close() }() // it only fails when it was closed before
	backoff := backoffMin
	for ctx.Err() == nil {
		opened, err := p.session(ctx, conn)
		if ctx.Err() != nil {
			return
		}
		if opened {
			backoff = backoffMin
		}
		if opened || backoff == backoffMin {
			log.Warn().Err(err).Msg("the stream from a leader broke: it is opened again")
		}
		if !lifecycle.Wait(ctx, backoff/2+rand.N(backoff)) { //nolint:gosec // jitter is no secret
			return
		}
		backoff = min(backoff*2, backoffMax)
		conn.ResetConnectBackoff() // the waiting was ours
	}
}

type replicateClient = grpc.BidiStreamingClient[replicav1.ReplicateRequest, replicav1.ReplicateResponse]

// session runs one stream. opened says that the leader took it.
func (p *peer) session(ctx context.Context, conn *grpc.ClientConn) (opened bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	quiet := time.AfterFunc(silence, func() { cancel(fmt.Errorf("%w: nothing came for %s", ErrSilent, silence)) })
	defer quiet.Stop()
	stream, err := replicav1.NewReplicaServiceClient(conn).Replicate(ctx)
	if err == nil {
		err = stream.Send(p.open())
	}
	if err == nil || errors.Is(err, io.EOF) { // then the status is at the receiving end
		var first *replicav1.ReplicateResponse
		if first, err = stream.Recv(); err == nil && first.GetOpened() == nil {
			err = fmt.Errorf("%w: the first message is %T, not opened", ErrProtocol, first.GetEvent())
		}
	}
	if err != nil {
		return false, because(ctx, err)
	}
	p.owner.deps.Metrics.following.Inc()
	defer p.owner.deps.Metrics.following.Dec()
	l := &link{out: newOutbox()}
	p.attach(l)
	defer p.detach(l)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	wg.Go(func() {
		err := p.receive(stream, l, func() { quiet.Reset(silence) })
		cancel(err)
	})
	if err := send(ctx, stream, l); err != nil && !errors.Is(err, io.EOF) {
		cancel(err)
	}
	// Why it ended is said by who ended it; a failed send only says that it did.
	<-ctx.Done()
	return true, because(ctx, ctx.Err())
}

// because prefers why this end broke a stream to how that looked.
func because(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

func (p *peer) open() *replicav1.ReplicateRequest {
	img := p.owner.deps.Store.Load()
	return &replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Open{Open: &replicav1.Open{
		ClusterId: p.to.cluster, BrokerId: int32(img.Self), Incarnation: p.owner.deps.Incarnation, BrokerEpoch: p.to.self,
		LeaderId: int32(p.to.leader), LeaderIncarnation: p.to.incarnation, LeaderBrokerEpoch: p.to.epoch, CreditBytes: streamCredit,
	}}}
}

// send says what the outbox holds until ctx is done.
func send(ctx context.Context, stream replicateClient, l *link) error {
	var acks []dueAck
	for {
		var events []*replicav1.ReplicateRequest
		events, acks = l.out.take(acks)
		for _, m := range events {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if m := ackMessage(l, acks); m != nil {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		clear(acks)
		select {
		case <-l.out.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// receive hands on what the leader sends, and waits for nobody but the leader.
func (p *peer) receive(stream replicateClient, l *link, heard func()) error {
	pool := p.owner.deps.Pool
	var msg wire.Message
	for {
		if err := stream.RecvMsg(&msg); err != nil {
			if errors.Is(err, io.EOF) {
				return fmt.Errorf("%w: the leader ended the stream", ErrClosing)
			}
			return err
		}
		heard()
		buf := msg.Copy(pool, 0)
		var d wire.ReplicaData
		isData, err := d.Parse(*buf, 0, len(*buf))
		if err == nil && isData {
			err = p.data(l, &d, buf)
		} else if err == nil {
			m := &replicav1.ReplicateResponse{}
			if err = proto.Unmarshal(*buf, m); err == nil {
				err = p.event(l, m)
			}
			pool.Put(buf)
		}
		if err != nil {
			return fmt.Errorf("%w: %w", ErrProtocol, err)
		}
	}
}

var errOverdrawn = errors.New("more was sent than there was credit for")

// data hands a frame to its replica; buf goes with it.
func (p *peer) data(l *link, d *wire.ReplicaData, buf *[]byte) error {
	bytes := int64(len(d.Frames))
	if l.untaken.Load() >= streamCredit {
		p.owner.deps.Pool.Put(buf)
		return errOverdrawn
	}
	p.owner.deps.Metrics.receivedBytes.Add(float64(bytes))
	l.untaken.Add(bytes)
	r := p.routed(d.Subscription)
	if r != nil && r.at.number == d.Partition && r.topicID == string(d.TopicID) && int64(r.epoch) == d.LeaderEpoch &&
		r.post(item{kind: itemData, link: l, number: d.Subscription, data: *d, buf: buf}) {
		return nil
	}
	p.owner.deps.Pool.Put(buf)
	l.taken(bytes)
	l.out.ack(d.Subscription, nil, bytes)
	return nil
}

// event hands anything else on.
func (p *peer) event(l *link, m *replicav1.ReplicateResponse) error {
	to := func(number int64, it item) {
		if r := p.routed(number); r != nil {
			it.link, it.number = l, number
			r.post(it)
		}
	}
	switch {
	case m.GetSubscribed() != nil:
		to(m.GetSubscribed().GetSubscription(), item{kind: itemAnswer, answer: answered(m.GetSubscribed())})
	case m.GetProgress() != nil:
		for _, n := range m.GetProgress().GetPartitions() {
			to(n.GetSubscription(), item{kind: itemProgress, news: standing{record.Offset(n.GetHighWatermark()), record.Offset(n.GetLogStartOffset())}})
		}
	case m.GetHeartbeat() != nil:
		p.renounce(l)
		l.out.say(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_HeartbeatAck{
			HeartbeatAck: &replicav1.HeartbeatAck{Number: m.GetHeartbeat().GetNumber()},
		}})
	case m.GetEnded() != nil:
		to(m.GetEnded().GetSubscription(), item{kind: itemEnded})
	case m.GetOpened() != nil:
		return errTwice
	}
	return nil
}

var errTwice = errors.New("opened came twice")

// renounce gives up what another leader or epoch has taken the place of, as far
// as this broker has heard: the answer to a heartbeat says that the rest is
// still held.
func (p *peer) renounce(l *link) {
	img := p.owner.deps.Store.Load()
	for _, r := range p.followers() {
		n := r.number.Load()
		if n == 0 {
			continue
		}
		if t, ok := img.TopicByID(r.at.topic); ok {
			if mp, ok := t.Partition(r.at.number); ok && mp.Leader == p.to.leader && mp.LeaderEpoch == r.epoch {
				continue
			}
		}
		r.renounce(l, n, false)
		r.post(item{kind: itemGiveUp, link: l, number: n})
	}
}
