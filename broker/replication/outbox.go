package replication

import (
	"sync"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/partition"
)

// An outbox is what a follower has to say to one leader. Acks are not queued:
// what is due is asked for when it can be sent, so that they are as new as can
// be, and one message carries all there are.
type outbox struct {
	wake chan struct{} // capacity 1

	// mu guards the fields below
	mu sync.Mutex

	events []*replicav1.ReplicateRequest
	due    map[int64]int // place in acks
	acks   []dueAck
}

// A dueAck is a subscription that has something to acknowledge, or credit to
// give back.
type dueAck struct {
	number  int64
	replica *replica // nil: nobody has the subscription any more
	credit  int64
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), due: map[int64]int{}}
}

func (o *outbox) poke() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// say queues an event; they keep their order.
func (o *outbox) say(m *replicav1.ReplicateRequest) {
	o.mu.Lock()
	o.events = append(o.events, m)
	o.mu.Unlock()
	o.poke()
}

// unsubscribe gives a subscription up; with withdraw, for a while.
func (o *outbox) unsubscribe(number int64, withdraw bool) {
	o.say(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Unsubscribe{Unsubscribe: &replicav1.Unsubscribe{
		Subscription: number, Withdraw: withdraw,
	}}})
}

// ack notes that there is something to acknowledge, and credit to give back.
func (o *outbox) ack(number int64, r *replica, credit int64) {
	o.mu.Lock()
	i, ok := o.due[number]
	if !ok {
		i = len(o.acks)
		o.due[number] = i
		o.acks = append(o.acks, dueAck{number: number})
	}
	o.acks[i].credit += credit
	if r != nil {
		o.acks[i].replica = r
	}
	o.mu.Unlock()
	o.poke()
}

// take returns all that is to be sent, in exchange for room for the next.
func (o *outbox) take(spare []dueAck) (events []*replicav1.ReplicateRequest, acks []dueAck) {
	o.mu.Lock()
	defer o.mu.Unlock()

	events, acks = o.events, o.acks
	o.events, o.acks = nil, spare[:0]
	clear(o.due)
	return events, acks
}

// ackMessage spells what is due, nil when it is nothing after all. Credit of a
// subscription that is no longer held goes back without a word about its log.
func ackMessage(l *link, due []dueAck) *replicav1.ReplicateRequest {
	acks := make([]*replicav1.Ack, 0, len(due))
	for _, d := range due {
		var a partition.FollowerAck
		held := false
		if d.replica != nil {
			a, held = d.replica.part.FollowerAck(d.number)
			if !held && d.replica.number.Load() == d.number {
				d.replica.post(item{kind: itemLost, link: l, number: d.number})
			}
		}
		m := &replicav1.Ack{Subscription: d.number, CreditBytes: d.credit}
		switch {
		case held:
			m.TopicId, m.Partition, m.LeaderEpoch = d.replica.topicID, d.replica.at.number, int64(a.Epoch)
			m.Written, m.Durable, m.LogStartOffset = int64(a.Written), int64(a.Durable), int64(a.LogStart)
		case d.credit == 0:
			continue
		}
		acks = append(acks, m)
	}
	if len(acks) == 0 {
		return nil
	}
	return &replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Acks{Acks: &replicav1.Acks{Acks: acks}}}
}
