package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/partitioner"
	"github.com/runnelmq/runnel/internal/record"
)

// A Producer writes records. It collects them in batches by partition and
// keeps several batches of each partition under way. It is safe for concurrent
// use.
//
// Records of one partition are stored in the order in which Produce was called
// for them. A record that fails leaves a gap in that order and never comes
// later.
type Producer struct {
	c        *Client
	o        producerOptions
	memory   *memory
	builders builderPool
	entries  entryPool
	outcomes outcomes
	topics   sync.Map // name → *topic
	// identity is nil until it is known, and without idempotence.
	identity atomic.Pointer[identity]
	closing  chan struct{} // closed by Close
	stop     func()
	spawn    func(func(context.Context))
	workers  sync.WaitGroup // all but the one that calls callbacks
	caller   sync.WaitGroup
	// state changes under mu only.
	state atomic.Int32

	// mu guards the fields below. It may be taken while a partition's is held.
	mu sync.Mutex

	lanes   map[place]*lane
	stopped bool // nothing may be started any more
	// identifying is true while the identity is being asked for; identityErr is
	// why there is none.
	identifying bool
	identityErr error
	unlisten    func()
	// gens are the generations that are not done; the last one is being filled.
	gens []*generation
}

// NewProducer returns a producer. It does nothing before the first record.
func (c *Client) NewProducer(opts ...ProducerOption) (*Producer, error) {
	o, err := newProducerOptions(opts)
	if err != nil {
		return nil, err
	}
	p := &Producer{
		c: c, o: o,
		memory:   newMemory(o.buffered),
		builders: builderPool{codec: record.NewCodec(), budget: o.buffered / 4},
		outcomes: outcomes{wake: make(chan struct{}, 1)},
		lanes:    map[place]*lane{},
		closing:  make(chan struct{}),
		gens:     []*generation{{done: make(chan struct{})}},
	}
	ctx, stop := context.WithCancelCause(context.Background())
	p.stop = func() { stop(errUnanswered) }
	p.spawn = func(f func(context.Context)) { p.workers.Go(func() { f(ctx) }) }
	return p, nil
}

// The states of a producer.
const (
	producerNew int32 = iota
	producerRunning
	producerClosed
)

// start runs f in a goroutine that Close waits for; false when it is too late
// for that.
func (p *Producer) start(f func(context.Context)) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.startLocked(f)
}

func (p *Producer) startLocked(f func(context.Context)) bool {
	if p.stopped {
		return false
	}
	p.spawn(f)
	return true
}

func (p *Producer) identityError() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.identityErr
}

// rerouted tells every topic and partition that the cluster has changed.
func (p *Producer) rerouted() {
	view := p.c.cluster.view.Load()
	p.topics.Range(func(_, v any) bool {
		v.(*topic).compare(view) //nolint:errcheck,forcetypeassert // nothing else is in there
		return true
	})
	p.eachPartition(func(pt *partition) {
		pt.moved()
		pt.wake()
	})
	for _, l := range p.allLanes() { // some may lead nowhere now
		poke(l.wake)
	}
}

func (p *Producer) allLanes() []*lane {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.lanes))
}

// begin starts the goroutines that every producer has, at its first record. It
// is false after Close.
func (p *Producer) begin() bool {
	if p.state.Load() == producerRunning {
		return true
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Load() == producerNew {
		p.state.Store(producerRunning)
		p.unlisten = p.c.cluster.listen(p.rerouted)
		p.caller.Go(func() { p.outcomes.run(p.settled) })
	}
	return p.state.Load() == producerRunning
}

// Produce takes a record to be written and returns; done is called exactly
// once, when its outcome is known, and may be nil. The record's slices may be
// reused as soon as Produce has returned.
//
// When the producer's memory is used up, Produce waits until some is free. A
// record fails when ctx ends before it is taken; ctx does not matter after that.
// Calls of done come one at a time from a goroutine of the producer, and after
// Close from the caller's: done must not block, and must not wait for other
// records.
func (p *Producer) Produce(ctx context.Context, r Record, done func(Result)) {
	_ = p.produce(ctx, &r, done, false) // done is told
}

// intercepted lets the interceptors see r. It returns a copy, for r does not
// escape, and what is to be called with the outcome.
func (p *Producer) intercepted(ctx context.Context, r *Record, done func(Result)) (*Record, func(Result)) {
	c := *r
	c.Headers = slices.Clip(c.Headers)
	for _, see := range p.o.intercept {
		after, before := see(ctx, &c), done
		switch {
		case after == nil:
		case before == nil:
			done = after
		default:
			done = func(r Result) {
				after(r)
				before(r)
			}
		}
	}
	return &c, done
}

// ProduceSync writes records and waits for their outcomes, which it returns in
// the order given, with the first error among them. When ctx ends first,
// records without an outcome have an error that says so; they may still be
// written.
func (p *Producer) ProduceSync(ctx context.Context, rs ...Record) ([]Result, error) {
	var (
		mu      sync.Mutex
		results = make([]Result, len(rs))
		got     = make([]bool, len(rs))
		left    = len(rs)
		all     = make(chan struct{})
	)
	if left == 0 {
		return results, nil
	}
	done := func(i int, r Result) {
		mu.Lock()
		defer mu.Unlock()
		if got[i] {
			return // given up before
		}
		results[i], got[i] = r, true
		if left--; left == 0 {
			close(all)
		}
	}
	for i := range rs {
		// What was not taken is known now, also when ctx ends before the callback.
		if err := p.produce(ctx, &rs[i], func(r Result) { done(i, r) }, true); err != nil {
			done(i, Result{Topic: rs[i].Topic, Partition: -1, Offset: -1, Err: err})
		}
	}
	select {
	case <-all:
	case <-ctx.Done():
	}
	mu.Lock()
	defer mu.Unlock()
	var first error
	for i := range results {
		if !got[i] {
			got[i] = true
			results[i] = Result{Topic: rs[i].Topic, Partition: -1, Offset: -1, Err: unknown(context.Cause(ctx))}
		}
		if first == nil {
			first = results[i].Err
		}
	}
	return results, first
}

// produce does not let r escape: a record costs no allocation of its own. It
// returns why a record was not taken; that is told to done, too.
func (p *Producer) produce(ctx context.Context, r *Record, done func(Result), urgent bool) error {
	if len(p.o.intercept) > 0 {
		r, done = p.intercepted(ctx, r, done)
	}
	now := time.Now()
	e := entry{done: done, stampMs: now.UnixMilli()}
	if !r.Timestamp.IsZero() {
		e.stampMs = r.Timestamp.UnixMilli()
	}
	if !p.begin() {
		return p.refuse(r, e, 0, errProducerClosed)
	}
	if err := checkRecord(r); err != nil {
		return p.refuse(r, e, 0, err)
	}
	if ctx.Err() != nil {
		return p.refuse(r, e, 0, context.Cause(ctx))
	}
	cost := int64(recordSize(r) + recordOverhead)
	if !p.memory.try(cost) {
		if err := p.waitForMemory(ctx, cost); err != nil {
			return p.refuse(r, e, 0, err)
		}
		now = time.Now()
	}
	return p.route(r, e, cost, now, urgent)
}

// route takes r to its partition, or keeps it until those are known.
func (p *Producer) route(r *Record, e entry, cost int64, now time.Time, urgent bool) error {
	t, err := p.topic(r.Topic)
	if err != nil {
		return p.refuse(r, e, cost, err)
	}
	due := now.Add(p.o.delivery)
	for {
		if v := t.known(p, now); v != nil {
			return p.put(t, v, r, e, cost, due, urgent, nil)
		}
		held, err := t.hold(p, r, e, cost, due)
		if err != nil {
			return p.refuse(r, e, cost, err)
		}
		if held {
			return nil
		}
	}
}

// place puts a record that was held into its partition.
func (p *Producer) place(t *topic, v *topicView, h *heldRecord) {
	_ = p.put(t, v, &h.r, h.e, h.cost, h.due, true, h.gen) // told to its callback
	h.r = Record{}
	p.leave(h.gen)
}

// put chooses the partition and adds the record there.
func (p *Producer) put(t *topic, v *topicView, r *Record, e entry, cost int64, due time.Time, urgent bool, gen *generation) error {
	size := recordSize(r)
	if size > v.maxRecord {
		return p.refuse(r, e, cost, tooLarge(size, v.maxRecord))
	}
	n := int32(len(v.partitions)) //nolint:gosec // a partition count
	i, err := p.choose(t, r, size, n)
	if err != nil {
		return p.refuse(r, e, cost, err)
	}
	pt := v.partitions[i]
	schedule, err := pt.add(r, size, v.maxRecord, e, cost, due, urgent, gen)
	if err != nil {
		return p.refuse(r, e, cost, err)
	}
	if schedule {
		pt.push()
	}
	return nil
}

func (p *Producer) choose(t *topic, r *Record, size int, n int32) (int32, error) {
	switch {
	case p.o.partitioner != nil:
		c := *r // the copy may escape, r does not
		i := p.o.partitioner(&c, n)
		if i < 0 || i >= n {
			return 0, localError(runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND,
				"topic %q has the partitions 0 to %d, and the record is for partition %d", r.Topic, n-1, i)
		}
		return i, nil
	case r.Key != nil:
		return partitioner.ForKey(r.Key, int(n)), nil
	default:
		return t.sticky.choose(size, p.o.batchBytes, n), nil
	}
}

func (p *Producer) waitForMemory(ctx context.Context, cost int64) error {
	if p.o.failFull {
		return ErrBufferFull
	}
	// What lingers goes as soon as nothing better is to be sent, or it would wait
	// for nothing.
	return p.memory.wait(ctx, p.closing, cost, func() { p.eachPartition((*partition).wake) })
}

// refuse fails a record before it is in a batch. It returns err.
func (p *Producer) refuse(r *Record, e entry, cost int64, err error) error {
	p.settle(settled{topic: r.Topic, partition: -1, entries: []entry{e}, base: -1, err: err, cost: cost, gen: p.join(nil)})
	return err
}

// settle hands a group that has its outcome to the callbacks. After Close there
// is no goroutine for them any more, and the caller's must do.
func (p *Producer) settle(s settled) {
	if !p.outcomes.put(s) {
		s.tell()
		p.settled(&s)
	}
}

// settled is called after the callbacks of a group.
func (p *Producer) settled(s *settled) {
	if h := p.c.opts.hooks.Produced; h != nil && s.partition >= 0 && len(s.entries) > 0 {
		h(BatchInfo{
			Topic: s.topic, Partition: s.partition, Records: len(s.entries), Bytes: s.bytes, WireBytes: s.wire,
			Age: time.Since(s.opened), Retries: s.retries, Duplicate: s.duplicate, Err: s.err,
		})
	}
	p.memory.give(s.cost)
	p.entries.put(s.entries)
	p.leave(s.gen)
}

func (p *Producer) topic(name string) (*topic, error) {
	if t, ok := p.topics.Load(name); ok {
		return t.(*topic), nil //nolint:errcheck,forcetypeassert // nothing else is in there
	}
	if err := checkTopic(name); err != nil {
		return nil, err
	}
	name = strings.Clone(name) // it is kept
	t, _ := p.topics.LoadOrStore(name, &topic{name: name, sticky: sticky{partition: -1}})
	return t.(*topic), nil //nolint:errcheck,forcetypeassert // as above
}

func (p *Producer) eachPartition(f func(*partition)) {
	p.topics.Range(func(_, v any) bool {
		t := v.(*topic) //nolint:errcheck,forcetypeassert // nothing else is in there
		for _, pt := range t.all() {
			f(pt)
		}
		return true
	})
}

// join adds a group of records to a generation that has one already, or with
// nil to the present one.
func (p *Producer) join(g *generation) *generation {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g == nil {
		g = p.gens[len(p.gens)-1]
	}
	g.open++
	return g
}

// leave says that a group has its outcome.
func (p *Producer) leave(g *generation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g.open--
	if g.open == 0 && g != p.gens[len(p.gens)-1] {
		close(g.done)
		p.gens = slices.DeleteFunc(p.gens, func(o *generation) bool { return o == g })
	}
}

// Flush sends all records that Produce took before the call, without waiting
// for more, and returns when each has its outcome and its callback has been
// called, or when ctx ends. It says nothing of what the outcomes are.
func (p *Producer) Flush(ctx context.Context) error {
	for _, g := range p.turn() {
		select {
		case <-g.done:
		case <-ctx.Done():
			return fmt.Errorf("flush: %w", context.Cause(ctx))
		}
	}
	return nil
}

// turn begins a new generation and returns those before that are not done.
func (p *Producer) turn() []*generation {
	p.mu.Lock()
	if p.gens[len(p.gens)-1].open > 0 {
		p.gens = append(p.gens, &generation{done: make(chan struct{})})
	}
	before := slices.Clone(p.gens[:len(p.gens)-1])
	p.mu.Unlock()
	p.eachPartition((*partition).seal)
	return before
}

// Close flushes and ends the producer. When ctx ends first, records that were
// not sent fail with [ErrClosed], and those without an answer have an unknown
// outcome. Every record has had its callback when Close returns. It must not be
// called by a callback.
func (p *Producer) Close(ctx context.Context) error {
	p.mu.Lock()
	was := p.state.Swap(producerClosed)
	p.mu.Unlock()
	if was == producerClosed {
		p.caller.Wait()
		return nil
	}
	close(p.closing)
	err := p.Flush(ctx)
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	p.stop()
	p.workers.Wait()
	p.topics.Range(func(_, v any) bool {
		v.(*topic).abandon(p) //nolint:errcheck,forcetypeassert // nothing else is in there
		return true
	})
	p.eachPartition(func(pt *partition) { pt.abandon(errProducerClosed, errUnanswered) })
	if was == producerNew {
		p.caller.Go(func() { p.outcomes.run(p.settled) })
	}
	p.outcomes.close()
	p.caller.Wait()
	if p.unlisten != nil {
		p.unlisten()
	}
	if err != nil {
		return fmt.Errorf("close: %w", context.Cause(ctx))
	}
	return nil
}
