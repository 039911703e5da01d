package replication

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// A place is a partition.
type place struct {
	topic  uuid.UUID
	number int32
}

// subscribe takes a follower's wish.
func (s *leaderStream) subscribe(m *replicav1.Subscribe) error {
	id, err := uuid.Parse(m.GetTopicId())
	if err != nil || m.GetSubscription() <= 0 || m.GetCreditBytes() <= 0 {
		return fmt.Errorf("%w: subscription %d to %q with %d bytes of credit", ErrProtocol, m.GetSubscription(), rpcerr.Clean(m.GetTopicId()), m.GetCreditBytes())
	}
	w := &wish{
		ask: partition.FollowerSubscribe{
			Follower: s.follower, BrokerEpoch: s.epoch, Leader: s.srv.deps.Store.Load().Self,
			Epoch: record.Epoch(m.GetLeaderEpoch()), Subscription: m.GetSubscription(), NextOffset: record.Offset(m.GetNextOffset()),
			LastEpoch: record.Epoch(m.GetLastEpoch()), HasLastEpoch: m.LastEpoch != nil, LogStart: record.Offset(m.GetLogStartOffset()),
		},
		topicText: m.GetTopicId(), where: place{id, m.GetPartition()}, credit: m.GetCreditBytes(), until: time.Now().Add(parkTime),
	}
	s.mu.Lock()
	// The follower has moved on from what it wished before.
	s.parked = without(s.parked, func(old *wish) bool { return old.where == w.where })
	s.mu.Unlock()
	if s.grant(w, false) {
		return nil
	}
	s.mu.Lock()
	s.parked = append(s.parked, w)
	s.mu.Unlock()
	select {
	case s.parking <- struct{}{}:
	default:
	}
	return nil
}

// retry asks again for what waits for metadata, and refuses what has waited for
// long enough.
func (s *leaderStream) retry(now time.Time) {
	s.mu.Lock()
	waiting := s.parked
	s.parked = nil
	s.mu.Unlock()
	for _, w := range waiting {
		if s.grant(w, !now.Before(w.until)) {
			continue
		}
		s.mu.Lock()
		newer := slices.ContainsFunc(s.parked, func(o *wish) bool { return o.where == w.where })
		if !newer && !s.closed {
			s.parked = append(s.parked, w)
		}
		s.mu.Unlock()
	}
}

// grant answers a wish. It returns false when that is to wait for metadata,
// which the last attempt never is.
func (s *leaderStream) grant(w *wish, last bool) bool {
	sub := &subscription{topicID: []byte(w.topicText), follower: s.follower, number: w.ask.Subscription, epoch: w.ask.Epoch}
	answer, err := s.ask(w, sub)
	if err != nil {
		known := s.knownEpoch(w.where)
		if !last && (known < w.ask.Epoch || errors.Is(err, partition.ErrPark) || errors.Is(err, partition.ErrNoLeader)) {
			return false
		}
		answer = partition.SubscribeAnswer{Kind: partition.Refused, LeaderEpoch: known, Reason: rpcerr.Clean(err.Error())}
	}
	c := control{msg: &replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Subscribed{Subscribed: subscribed(sub.number, answer)}}}
	if answer.Kind != partition.Accepted {
		s.inbox.control(c)
		return true
	}
	sub.written.Store(int64(w.ask.NextOffset))
	c.begin = &lane{
		number: sub.number, sub: sub, next: w.ask.NextOffset, end: w.ask.NextOffset, credit: w.credit,
		told: standing{answer.HighWatermark, answer.LogStart},
	}
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.subs[sub.number] = sub
	}
	s.mu.Unlock()
	if closed {
		sub.part.FollowerGone(s.follower, sub.number)
		return true
	}
	s.srv.deps.Metrics.lag.add(sub)
	s.inbox.control(c)
	return true
}

// ask has the partition judge a wish.
func (s *leaderStream) ask(w *wish, sub *subscription) (partition.SubscribeAnswer, error) {
	p, err := s.srv.deps.Set.Get(w.where.topic, w.where.number)
	if err != nil {
		return partition.SubscribeAnswer{}, err
	}
	sub.part = p
	return p.Subscribe(w.ask, &s.link, func() { s.inbox.poke(sub) })
}

// knownEpoch returns the leader epoch of a partition as this broker knows it.
func (s *leaderStream) knownEpoch(at place) record.Epoch {
	t, ok := s.srv.deps.Store.Load().TopicByID(at.topic)
	if !ok {
		return 0
	}
	p, ok := t.Partition(at.number)
	if !ok {
		return 0
	}
	return p.LeaderEpoch
}

// subscribed spells an answer.
func subscribed(number int64, a partition.SubscribeAnswer) *replicav1.Subscribed {
	m := &replicav1.Subscribed{Subscription: number}
	switch a.Kind {
	case partition.Accepted:
		m.Answer = &replicav1.Subscribed_Accepted{Accepted: &replicav1.Accepted{HighWatermark: int64(a.HighWatermark), LogStartOffset: int64(a.LogStart)}}
	case partition.Diverging:
		m.Answer = &replicav1.Subscribed_Diverging{Diverging: &replicav1.Diverging{Epoch: int64(a.Epoch), EndOffset: int64(a.End)}}
	case partition.Reset:
		r := &replicav1.Reset{LogStartOffset: int64(a.LogStart), PurgedToOffset: int64(a.PurgedTo)}
		if a.HasEpoch {
			e := int64(a.Epoch)
			r.Epoch = &e
		}
		m.Answer = &replicav1.Subscribed_Reset_{Reset_: r}
	case partition.Refused:
		m.Answer = &replicav1.Subscribed_Refused{Refused: &replicav1.Refused{LeaderEpoch: int64(a.LeaderEpoch), Reason: a.Reason}}
	}
	return m
}

// answered reads an answer.
func answered(m *replicav1.Subscribed) partition.SubscribeAnswer {
	switch a := m.GetAnswer().(type) {
	case *replicav1.Subscribed_Accepted:
		return partition.SubscribeAnswer{
			Kind: partition.Accepted, HighWatermark: record.Offset(a.Accepted.GetHighWatermark()), LogStart: record.Offset(a.Accepted.GetLogStartOffset()),
		}
	case *replicav1.Subscribed_Diverging:
		return partition.SubscribeAnswer{Kind: partition.Diverging, Epoch: record.Epoch(a.Diverging.GetEpoch()), End: record.Offset(a.Diverging.GetEndOffset())}
	case *replicav1.Subscribed_Reset_:
		return partition.SubscribeAnswer{
			Kind: partition.Reset, LogStart: record.Offset(a.Reset_.GetLogStartOffset()),
			Epoch: record.Epoch(a.Reset_.GetEpoch()), HasEpoch: a.Reset_.Epoch != nil,
			PurgedTo: record.Offset(a.Reset_.GetPurgedToOffset()),
		}
	case *replicav1.Subscribed_Refused:
		return partition.SubscribeAnswer{Kind: partition.Refused, LeaderEpoch: record.Epoch(a.Refused.GetLeaderEpoch()), Reason: a.Refused.GetReason()}
	}
	return partition.SubscribeAnswer{Kind: partition.Refused, Reason: "an answer this version does not know"}
}

// without returns list without the elements that drop says; list is used up.
func without[E any](list []E, drop func(E) bool) []E { return slices.DeleteFunc(list, drop) }
