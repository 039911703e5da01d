package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// topicAge is how long what a producer knows of a topic is trusted: added
// partitions are used, and a changed limit is obeyed, after that.
const topicAge = time.Minute

// A topic is what a producer knows of one. Records that come before it knows
// the partitions wait, each with its own deadline.
type topic struct {
	name   string
	sticky sticky

	// view is what producing needs, nil while records are held so that none
	// passes one that came before. It is changed under mu only.
	view atomic.Pointer[topicView]
	// largest is how large a batch may be, as far as was learned from refusals;
	// 0: nothing was.
	largest atomic.Int64

	// mu guards the fields below
	mu sync.Mutex

	// parts are all partitions there are, with those of a topic of this name
	// that is gone, as long as the producer lives.
	parts   []*partition
	id      string
	loading bool
	held    []*heldRecord
	lastErr error
}

// A topicView is what a producer knows of a topic; it is never changed.
type topicView struct {
	partitions []*partition
	// maxRecord is the topic's max.message.bytes.
	maxRecord int
	// until is when it should be looked at again.
	until time.Time
}

// A heldRecord is one whose topic is not known yet.
type heldRecord struct {
	r      Record // a copy
	e      entry
	cost   int64
	gen    *generation
	due    time.Time // when its time is up, here or in a batch
	expiry *time.Timer
}

// known returns the topic's view, nil before it is known. It looks at the topic
// again, meanwhile, when the last time was long ago.
func (t *topic) known(p *Producer, now time.Time) *topicView {
	v := t.view.Load()
	if v == nil || now.Before(v.until) {
		return v
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lookLocked(p)
	return v
}

func (t *topic) lookLocked(p *Producer) {
	if !t.loading {
		t.loading = p.start(func(ctx context.Context) { t.load(ctx, p) })
	}
}

// batchBytes returns up to what size batches are filled.
func (t *topic) batchBytes(most int) int {
	if n := t.largest.Load(); n > 0 {
		return min(most, int(n))
	}
	return most
}

// all returns every partition that may have batches.
func (t *topic) all() []*partition {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.parts
}

// stale makes the next record look at the topic again.
func (t *topic) stale() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if v := t.view.Load(); v != nil {
		old := *v
		old.until = time.Time{}
		t.view.Store(&old)
	}
}

// replaced makes the next record wait for what is known of the topic of this
// name that there is now, when the one known is that with the given id, which is
// gone.
func (t *topic) replaced(id string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.id == id {
		t.view.Store(nil)
	}
}

// compare makes the next record look at the topic again when there are more
// partitions than are known, or another topic of that name.
func (t *topic) compare(with *clusterView) {
	leaders := with.topics[t.name]
	if leaders == nil {
		return
	}
	t.mu.Lock()
	v, id := t.view.Load(), t.id
	t.mu.Unlock()
	switch {
	case v == nil:
	case id != leaders.id:
		t.replaced(id)
	case len(v.partitions) < len(leaders.parts):
		t.stale()
	}
}

// hold keeps a record until the topic is known. It is false when it has become
// known meanwhile.
func (t *topic) hold(p *Producer, r *Record, e entry, cost int64, due time.Time) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.view.Load() != nil {
		return false, nil
	}
	if t.lookLocked(p); !t.loading {
		return false, errProducerClosed
	}
	p.c.cluster.want(t.name)
	p.identified() // so that it is there in time
	h := &heldRecord{r: r.Clone(), e: e, cost: cost, gen: p.join(nil), due: due}
	h.expiry = time.AfterFunc(time.Until(due), func() { t.expire(p, h) })
	t.held = append(t.held, h)
	return true, nil
}

func (t *topic) expire(p *Producer, h *heldRecord) {
	t.mu.Lock()
	i := slices.Index(t.held, h)
	if i >= 0 {
		t.held = slices.Delete(t.held, i, i+1)
	}
	err := t.lastErr
	t.mu.Unlock()
	if i >= 0 {
		p.settle(h.settled(t.name, certain(deliveryTimeout(p.o.delivery, err))))
	}
}

func (h *heldRecord) settled(topic string, err error) settled {
	h.expiry.Stop()
	h.r = Record{} // a timer that was stopped may hold on to h
	return settled{topic: topic, partition: -1, entries: []entry{h.e}, base: -1, err: err, cost: h.cost, gen: h.gen}
}

// load asks about the topic until there is an answer, or nobody waits for one.
func (t *topic) load(ctx context.Context, p *Producer) {
	for attempt := 1; ; attempt++ {
		d, err := describe(ctx, p.c, t.name)
		if err == nil {
			t.learn(p, d)
			return
		}
		passing := Retriable(err) || errors.Is(err, context.DeadlineExceeded)
		t.mu.Lock()
		if ctx.Err() == nil {
			t.lastErr = err
		}
		again := passing && len(t.held) > 0 && ctx.Err() == nil
		t.mu.Unlock()
		if !again {
			t.fail(ctx, p, err)
			return
		}
		pause(ctx, backoffFor(attempt))
	}
}

// fail ends a load without a result: what waits for it fails, and the next
// record asks again. When the producer is closing, that says why instead.
func (t *topic) fail(ctx context.Context, p *Producer, err error) {
	if ctx.Err() != nil {
		return
	}
	t.mu.Lock()
	t.loading = false
	switch v := t.view.Load(); {
	case errors.Is(err, ErrTopicNotFound):
		t.view.Store(nil)
	case v != nil:
		old := *v
		old.until = time.Now().Add(topicAge)
		t.view.Store(&old)
	}
	held := t.held
	t.held = nil
	t.mu.Unlock()
	for _, h := range held {
		p.settle(h.settled(t.name, certain(err)))
	}
}

// learn takes in what a broker said of the topic, and lets go what waited.
func (t *topic) learn(p *Producer, d *runnelv1.TopicDescription) {
	v := &topicView{maxRecord: maxRecordOf(d), until: time.Now().Add(topicAge)}
	t.mu.Lock()
	for _, pt := range t.parts { // by number, as they were added
		if pt.id == d.GetTopicId() {
			v.partitions = append(v.partitions, pt)
		}
	}
	for n := int32(len(v.partitions)); n < d.GetPartitionCount(); n++ { //nolint:gosec // a partition count
		pt := &partition{p: p, topic: t, id: d.GetTopicId(), number: n}
		v.partitions = append(v.partitions, pt)
		t.parts = append(slices.Clip(t.parts), pt)
	}
	t.id, t.lastErr = d.GetTopicId(), nil
	for len(t.held) > 0 {
		held := t.held
		t.held = nil
		t.mu.Unlock()
		for _, h := range held {
			h.expiry.Stop()
			p.place(t, v, h)
		}
		t.mu.Lock()
	}
	t.loading = false
	t.view.Store(v)
	t.mu.Unlock()
}

// abandon fails what waits when the producer is closed.
func (t *topic) abandon(p *Producer) {
	t.mu.Lock()
	held := t.held
	t.held, t.loading = nil, false
	err := certain(closedBecause(errProducerClosed, t.lastErr))
	t.mu.Unlock()
	for _, h := range held {
		p.settle(h.settled(t.name, err))
	}
}

// describe asks for a topic's partition count, id and limits.
func describe(ctx context.Context, c *Client, name string) (*runnelv1.TopicDescription, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	none := int32(0) // their leaders need not be asked
	resp, err := runnelv1.NewAdminServiceClient(questions{c}).DescribeTopics(ctx, &runnelv1.DescribeTopicsRequest{
		Topics: []*runnelv1.TopicRef{{Name: name}}, MaxPartitions: &none,
	})
	if err != nil {
		return nil, rpcError(err)
	}
	if len(resp.GetTopics()) != 1 {
		return nil, fmt.Errorf("describe topic %q: %d answers for one question", name, len(resp.GetTopics()))
	}
	d := resp.GetTopics()[0]
	if err := itemError(d.GetError()); err != nil {
		return nil, err
	}
	if d.GetPartitionCount() < 1 {
		return nil, fmt.Errorf("describe topic %q: the broker says it has %d partitions", name, d.GetPartitionCount())
	}
	return d, nil
}

func maxRecordOf(d *runnelv1.TopicDescription) int {
	for _, c := range d.GetConfigs() {
		if c.GetKey() == "max.message.bytes" {
			if n, err := strconv.Atoi(c.GetValue()); err == nil && n > 0 {
				return min(n, record.MaxRecordSize)
			}
		}
	}
	return record.MaxRecordSize
}

// pause waits for d, or until ctx is done.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

func isDone(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}
