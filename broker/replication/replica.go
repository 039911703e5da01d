package replication

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/telemetry"
	"github.com/runnelmq/runnel/internal/wire"
)

// A replica is a partition that follows one leader in one epoch. What the
// stream brings waits in its queue, and is worked off by a goroutine that is
// there while there is something to do: so nobody but it waits for its disk.
type replica struct {
	peer    *peer
	part    *partition.Partition
	at      place
	topicID string // text
	epoch   record.Epoch

	// number is the subscription, 0 while there is none. Only the worker
	// changes it.
	number atomic.Int64
	// taking: the worker is appending, and acknowledges right after.
	taking atomic.Bool

	// mu guards the fields below
	mu sync.Mutex

	queue   []item
	working bool
	closed  bool
	givenUp int64       // the subscription that the leader was last told is given up
	again   *time.Timer // of the next attempt to subscribe, or nil

	// The fields below belong to the worker.

	link     *link
	accepted bool // the subscription is
	failures int
	since    time.Time // of the subscription
	trouble  telemetry.Recurrence
}

// An item is one thing for a replica's worker to do.
type item struct {
	kind   itemKind
	link   *link // the stream it came over
	number int64 // of the subscription it is about

	answer partition.SubscribeAnswer
	data   wire.ReplicaData
	buf    *[]byte // that data lies in
	news   standing
}

type itemKind uint8

const (
	itemStart    itemKind = iota // subscribe on link
	itemStop                     // the link broke, or the replica is done with
	itemGiveUp                   // number is another epoch's
	itemAnswer                   // to the subscribe
	itemData                     // append
	itemProgress                 // news
	itemEnded                    // the leader ended it
	itemLost                     // the partition seems to have dropped it
)

// post queues an item. It returns false when the replica is done with: the
// caller keeps what the item holds.
func (r *replica) post(it item) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.closed {
		return false
	}
	r.queue = append(r.queue, it)
	r.workLocked()
	return true
}

func (r *replica) workLocked() {
	if !r.working {
		r.working = true
		r.peer.owner.workers.Go(r.work)
	}
}

// close lets go of the replica: what is queued is not done any more.
func (r *replica) close() {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.closed {
		return
	}
	if r.again != nil {
		r.again.Stop()
	}
	r.queue = append(r.queue, item{kind: itemStop})
	r.closed = true
	r.workLocked()
}

// work does what is queued.
func (r *replica) work() {
	var spare []item
	for {
		r.mu.Lock()
		batch := r.queue
		r.queue = spare
		if len(batch) == 0 {
			r.queue, r.working = nil, false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		for i := range batch {
			r.do(&batch[i])
		}
		clear(batch)
		spare = batch[:0]
	}
}

func (r *replica) isClosed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.closed
}

func (r *replica) do(it *item) {
	switch {
	case it.kind == itemData:
		r.take(it)
	case it.kind == itemStop && (it.link == nil || it.link == r.link):
		r.drop()
	case r.isClosed() || it.kind == itemStop:
	case it.kind == itemStart:
		r.start(it.link)
	case it.link != r.link || it.number != r.number.Load():
		// Of an earlier subscription.
	case it.kind == itemGiveUp:
		r.drop()
	case it.kind == itemAnswer:
		r.answered(it.answer)
	case it.kind == itemProgress:
		if err := r.part.OnProgress(it.number, it.news.highWatermark, it.news.logStart); err != nil {
			r.failed(err)
		}
	case it.kind == itemEnded:
		r.drop()
		r.retry(false)
	case it.kind == itemLost && r.accepted:
		if _, held := r.part.FollowerAck(it.number); !held {
			r.drop()
			r.retry(false)
		}
	}
}

// start subscribes.
func (r *replica) start(l *link) {
	if l.broken.Load() {
		return
	}
	r.drop()
	r.link = l
	if leader, epoch, ok := r.part.Following(); !ok || epoch != r.epoch || leader != r.peer.to.leader {
		r.later(time.Second) // another replica will take the place of this one
		return
	}
	number := r.peer.owner.numbers.Add(1)
	sub, ok := r.part.FollowerStart(number, func() {
		if !r.taking.Load() {
			l.out.ack(number, r, 0)
		}
	})
	if ok && (sub.Epoch != r.epoch || sub.Leader != r.peer.to.leader) {
		r.part.FollowerStop(number) // just now
		ok = false
	}
	if !ok {
		r.later(time.Second)
		return
	}
	r.number.Store(number)
	r.since = time.Now()
	r.peer.route(number, r)
	m := &replicav1.Subscribe{
		TopicId: r.topicID, Partition: r.at.number, LeaderEpoch: int64(sub.Epoch), Subscription: number,
		NextOffset: int64(sub.NextOffset), LogStartOffset: int64(sub.LogStart), CreditBytes: partitionCredit,
	}
	if sub.HasLastEpoch {
		e := int64(sub.LastEpoch)
		m.LastEpoch = &e
	}
	l.out.say(&replicav1.ReplicateRequest{Event: &replicav1.ReplicateRequest_Subscribe{Subscribe: m}})
}

// renounce tells the leader, once, that a subscription is given up.
func (r *replica) renounce(l *link, number int64, withdraw bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.givenUp != number {
		r.givenUp = number
		l.out.unsubscribe(number, withdraw)
	}
}

// drop gives the subscription up, if there is one, and says so first: what the
// log does next, this subscription does not vouch for.
func (r *replica) drop() { r.giveUp(false) }

// giveUp is drop; with withdraw the leader is asked to wait for this replica no
// more.
func (r *replica) giveUp(withdraw bool) {
	number := r.number.Load()
	if number == 0 {
		return
	}
	r.renounce(r.link, number, withdraw)
	r.number.Store(0)
	r.accepted = false
	r.peer.route(number, nil)
	r.part.FollowerStop(number)
}

// answered does what the leader made of the subscribe.
func (r *replica) answered(a partition.SubscribeAnswer) {
	number := r.number.Load()
	again, err := r.part.OnSubscribed(number, a)
	switch {
	case a.Kind == partition.Refused: // one of the two will hear of another epoch
		r.peer.owner.deps.Log.Debug().Stringer("partition_id", r.part).Int32("leader", int32(r.peer.to.leader)).Int64("leader_epoch", int64(r.epoch)).
			Int64("known_epoch", int64(a.LeaderEpoch)).Str("reason", a.Reason).Msg("a leader refused a subscription")
		r.drop()
		r.retry(false)
	case err != nil:
		r.failed(err)
	case again:
		r.drop()
		r.retry(true)
	default:
		// The partition has asked for an ack already: an idle one would stand
		// still without the first in its epoch.
		r.accepted = true
	}
}

// take appends a data frame. Whatever becomes of it, its credit goes back.
func (r *replica) take(it *item) {
	bytes := int64(len(it.data.Frames))
	d := &it.data
	var err error
	current := it.link == r.link && it.number == r.number.Load() && !r.isClosed()
	if current {
		r.taking.Store(true)
		err = r.part.OnData(partition.Data{
			Epoch: record.Epoch(d.LeaderEpoch), Subscription: d.Subscription,
			Start: record.Offset(d.StartOffset), Next: record.Offset(d.NextOffset),
			PrevEpoch: record.Epoch(d.PrevEpoch), HasPrevEpoch: d.HasPrevEpoch,
			HighWatermark: record.Offset(d.HighWatermark), LogStart: record.Offset(d.LogStart), Batches: d.Frames,
		})
		r.taking.Store(false)
	}
	r.peer.owner.deps.Pool.Put(it.buf)
	it.link.taken(bytes)
	it.link.out.ack(it.number, r, bytes)
	switch {
	case err != nil:
		r.failed(err)
	case current:
		r.failures = 0
	}
}

// failed drops the subscription because of what came over it, and tries anew.
func (r *replica) failed(err error) {
	full := errors.Is(err, partition.ErrStorageFull)
	r.giveUp(full)
	owner := r.peer.owner
	owner.deps.Metrics.dropped.Inc()
	if errors.Is(err, partition.ErrDiverged) {
		return // the partition has said so, and waits for another leader epoch
	}
	r.calm()
	level := zerolog.DebugLevel
	if tell, _ := r.trouble.Again(time.Now(), tellEvery); tell {
		level = zerolog.WarnLevel
		if errors.Is(err, partition.ErrNotSubscribed) {
			level = zerolog.InfoLevel
		}
	}
	owner.deps.Log.WithLevel(level).Stringer("partition_id", r.part).Int32("leader", int32(r.peer.to.leader)).Int64("leader_epoch", int64(r.epoch)).Err(err).
		Msg("a subscription was dropped, and is made anew")
	if full {
		r.later(retryMax) // by then it is out of the ISR, unless no controller answers
		return
	}
	r.retry(false)
}

// Attempts to subscribe follow each other ever slower while they come to
// nothing. The first few that are part of cutting a log to the leader's are not
// held back.
const (
	retryMin  = 50 * time.Millisecond
	retryMax  = time.Second
	freeSteps = 16
	// settled is how long a subscription lasts that was worth it.
	settled = 5 * time.Second
)

// retry subscribes again on the same stream; at once, if that is what the
// leader wants.
func (r *replica) retry(wanted bool) {
	r.calm()
	r.failures++
	if wanted && r.failures <= freeSteps || r.failures == 1 {
		r.later(0)
		return
	}
	r.later(min(retryMin<<min(r.failures-2, 10), retryMax))
}

// calm forgets earlier failures when the last subscription was worth it.
func (r *replica) calm() {
	if time.Since(r.since) > settled {
		r.failures = 0
		r.trouble.Over()
	}
}

// later subscribes again on the same stream after a while.
func (r *replica) later(d time.Duration) {
	again := item{kind: itemStart, link: r.link}
	if d <= 0 {
		r.post(again)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.again != nil {
		r.again.Stop()
	}
	if !r.closed {
		r.again = time.AfterFunc(d, func() { r.post(again) })
	}
}
