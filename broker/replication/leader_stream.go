package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
)

// A leaderStream serves one follower. Its receiver takes in what the follower
// says, its sender owns the schedule, its fetcher reads for those that catch up,
// and its handler watches over them: it ends the stream when the follower falls
// silent or is replaced, and asks again for subscribes that wait for metadata.
type leaderStream struct {
	srv         *Server
	ss          grpc.BidiStreamingServer[replicav1.ReplicateRequest, replicav1.ReplicateResponse]
	follower    metadata.BrokerID
	incarnation string
	epoch       int64 // the follower's registration
	credit      int64
	link        partition.Link
	inbox       inbox
	parking     chan struct{} // capacity 1: a subscribe was parked

	// mu guards the fields below
	mu sync.Mutex

	heard  time.Time // when the follower last said something
	beats  map[uint64]time.Time
	subs   map[int64]*subscription // accepted
	parked []*wish
	closed bool
}

// A subscription is one that a follower has at this leader.
type subscription struct {
	part     *partition.Partition
	topicID  []byte // text
	follower metadata.BrokerID
	number   int64
	epoch    record.Epoch
	written  atomic.Int64 // as last acknowledged
	poked    atomic.Bool  // the sender will look
}

// A wish is a subscribe that is not answered.
type wish struct {
	ask       partition.FollowerSubscribe
	topicText string
	where     place
	credit    int64
	until     time.Time
}

func newLeaderStream(srv *Server, ss grpc.BidiStreamingServer[replicav1.ReplicateRequest, replicav1.ReplicateResponse], open *replicav1.Open) *leaderStream {
	return &leaderStream{
		srv: srv, ss: ss, follower: metadata.BrokerID(open.GetBrokerId()), incarnation: open.GetIncarnation(), epoch: open.GetBrokerEpoch(),
		credit: open.GetCreditBytes(), inbox: newInbox(), parking: make(chan struct{}, 1),
		heard: time.Now(), beats: map[uint64]time.Time{}, subs: map[int64]*subscription{},
	}
}

// serve runs the stream until either side ends it.
func (s *leaderStream) serve() error {
	s.srv.deps.Metrics.leading.Inc()
	defer s.srv.deps.Metrics.leading.Dec()
	ctx := s.ss.Context()
	received, sent := make(chan error, 1), make(chan error, 1)
	q := newSender(s)
	s.srv.workers.Go(func() { received <- s.receive() })
	s.srv.workers.Go(func() { sent <- q.run(ctx) })
	s.srv.workers.Go(func() { q.fetch(ctx) })
	err := s.watch(ctx, received, sent)
	s.close()
	return err
}

// watch returns when the stream is to end.
func (s *leaderStream) watch(ctx context.Context, received, sent <-chan error) error {
	timer := time.NewTimer(silence)
	defer timer.Stop()
	for {
		known, applied := s.srv.deps.Store.Changed(), s.srv.deps.Set.Changed()
		if wait, err := judgePeer(s.srv.deps.Store.Load(), s.follower, s.incarnation, s.epoch); err != nil && !wait {
			return err
		}
		s.retry(time.Now())
		next, err := s.nextLook(time.Now())
		if err != nil {
			return err
		}
		timer.Reset(next)
		select {
		case <-known:
		case <-applied:
		case <-s.parking:
		case <-timer.C:
		case err := <-received:
			return err
		case err := <-sent:
			return err
		case <-s.srv.drain:
			return ErrClosing
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// nextLook returns how long nothing needs looking after, or that the follower
// has been silent for too long.
func (s *leaderStream) nextLook(now time.Time) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()

	quiet := now.Sub(s.heard)
	if quiet >= silence {
		return 0, fmt.Errorf("%w: nothing came from broker %d for %s", ErrSilent, s.follower, quiet)
	}
	next := silence - quiet
	for _, w := range s.parked {
		next = min(next, max(w.until.Sub(now), 0))
	}
	return next, nil
}

// close ends all subscriptions.
func (s *leaderStream) close() {
	s.mu.Lock()
	s.closed = true
	subs := s.subs
	s.subs, s.parked = map[int64]*subscription{}, nil
	s.mu.Unlock()
	for _, sub := range subs {
		s.srv.deps.Metrics.lag.remove(sub)
		sub.part.FollowerGone(s.follower, sub.number)
	}
}

// receive takes in what the follower says until it half-closes.
func (s *leaderStream) receive() error {
	for {
		m, err := s.ss.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		s.mu.Lock()
		s.heard = time.Now()
		s.mu.Unlock()
		switch {
		case m.GetAcks() != nil:
			err = s.acks(m.GetAcks())
		case m.GetSubscribe() != nil:
			err = s.subscribe(m.GetSubscribe())
		case m.GetUnsubscribe() != nil:
			s.unsubscribe(m.GetUnsubscribe())
		case m.GetHeartbeatAck() != nil:
			s.confirm(m.GetHeartbeatAck().GetNumber())
		case m.GetOpen() != nil:
			err = fmt.Errorf("%w: a second open", ErrProtocol)
		}
		if err != nil {
			return err
		}
	}
}

func (s *leaderStream) acks(m *replicav1.Acks) error {
	for _, a := range m.GetAcks() {
		if a.GetCreditBytes() < 0 {
			return fmt.Errorf("%w: subscription %d takes credit away", ErrProtocol, a.GetSubscription())
		}
		if a.GetCreditBytes() > 0 {
			s.inbox.giveBack(a.GetSubscription(), a.GetCreditBytes())
		}
		s.mu.Lock()
		sub := s.subs[a.GetSubscription()]
		s.mu.Unlock()
		// What was dropped since gives back its credit and says nothing else.
		if sub == nil || int64(sub.epoch) != a.GetLeaderEpoch() || sub.part.Number() != a.GetPartition() || string(sub.topicID) != a.GetTopicId() {
			continue
		}
		sub.written.Store(a.GetWritten())
		sub.part.Ack(partition.FollowerAck{
			Follower: s.follower, BrokerEpoch: s.epoch, Epoch: sub.epoch, Subscription: sub.number,
			Written: record.Offset(a.GetWritten()), Durable: record.Offset(a.GetDurable()), LogStart: record.Offset(a.GetLogStartOffset()),
		})
	}
	return nil
}

// beat notes that a heartbeat is about to be sent.
func (s *leaderStream) beat(number uint64, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.beats[number] = now
}

// confirm takes the answer to a heartbeat: all subscriptions that were not given
// up before it were still held when it was sent.
func (s *leaderStream) confirm(number uint64) {
	s.mu.Lock()
	at, ok := s.beats[number]
	for n := range s.beats {
		if n <= number {
			delete(s.beats, n)
		}
	}
	s.mu.Unlock()
	if ok {
		s.link.Confirm(at)
	}
}

// unsubscribe ends a subscription that the follower gave up.
func (s *leaderStream) unsubscribe(m *replicav1.Unsubscribe) {
	number := m.GetSubscription()
	if sub := s.forget(number); sub != nil {
		if m.GetWithdraw() {
			sub.part.FollowerWithdrew(s.follower, number)
		} else {
			sub.part.FollowerGone(s.follower, number)
		}
		s.inbox.control(control{end: number})
	}
}

// forget takes a subscription off the books, or a wish for one. It returns nil
// when another did so.
func (s *leaderStream) forget(number int64) *subscription {
	s.mu.Lock()
	sub := s.subs[number]
	delete(s.subs, number)
	s.parked = without(s.parked, func(w *wish) bool { return w.ask.Subscription == number })
	s.mu.Unlock()
	if sub != nil {
		s.srv.deps.Metrics.lag.remove(sub)
	}
	return sub
}
