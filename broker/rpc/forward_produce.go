package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/producer"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

const (
	// newsWait is how long a request waits for metadata that its sender has.
	newsWait = time.Second
	// newsEvery is how often it looks: a partition that is about to lead makes no noise.
	newsEvery = 5 * time.Millisecond
	// expireEvery is how often requests are looked at whose time may have passed.
	// Senders keep the time themselves; this only frees what is held.
	expireEvery = 100 * time.Millisecond
)

// A forwardProduce is one ForwardProduce stream. The handler's goroutine
// appends; one receives, one sends.
type forwardProduce struct {
	svc *ForwardService
	// in has the requests that were received.
	in   chan *[]byte
	stop chan struct{} // closed when the handler returns
	// parked are the requests that wait for metadata, in the order they came.
	parked []*forwardedWrite
	out    forwardOutbox
}

// A forwardedWrite is one request.
type forwardedWrite struct {
	req      wire.ForwardProduce
	buf      *[]byte // nil once it is stored or refused
	deadline time.Time
	// until is when it stops waiting for metadata.
	until  time.Time
	got    partition.Appended
	cancel func() bool
}

// A forwardOutbox has the answers to send and what is still to be answered.
type forwardOutbox struct {
	// wake receives when there are answers, or the end came.
	wake chan struct{}
	// settled receives when something was answered.
	settled chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	answers []wire.ForwardProduced
	open    map[*forwardedWrite]struct{} // stored, and waited for
	last    bool                         // no more requests are taken
	count   *atomic.Int64                // of open, of all streams
}

// produce handles a ForwardProduce stream.
func (s *ForwardService) produce(ss grpc.ServerStream) error {
	f := &forwardProduce{
		svc: s, in: make(chan *[]byte, 64), stop: make(chan struct{}),
		out: forwardOutbox{wake: make(chan struct{}, 1), settled: make(chan struct{}, 1), open: map[*forwardedWrite]struct{}{}, count: &s.waiting},
	}
	s.readers.Go(func() { f.receive(ss) })
	ctx, cancel := context.WithCancel(ss.Context())
	sent := make(chan error, 1)
	var sender sync.WaitGroup
	sender.Go(func() {
		sent <- f.send(ctx, ss)
		cancel() // the handler has nobody to answer any more
	})
	err := f.work(ctx)
	close(f.stop)
	f.out.finish()
	if err != nil {
		cancel()
	}
	sender.Wait()
	f.abandon()
	cancel()
	return errors.Join(err, <-sent)
}

// receive reads requests until the stream ends.
func (f *forwardProduce) receive(ss grpc.ServerStream) {
	defer close(f.in)
	var msg wire.Message
	for {
		if err := ss.RecvMsg(&msg); err != nil {
			return
		}
		select {
		case f.in <- msg.Copy(f.svc.logs.opts.Pool, record.PrefixMax):
		case <-f.stop:
			return
		}
	}
}

// work takes requests until there are no more, or the broker drains, and then
// waits until all are settled.
func (f *forwardProduce) work(ctx context.Context) error {
	tick := time.NewTicker(expireEvery)
	defer tick.Stop()
	retry := time.NewTicker(newsEvery)
	defer retry.Stop()
	in, drain := f.in, f.svc.drain
	for in != nil || len(f.parked) > 0 || f.out.waiting() {
		var again <-chan time.Time
		if len(f.parked) > 0 {
			again = retry.C
		}
		select {
		case buf, ok := <-in:
			if !ok {
				in = nil
				continue
			}
			f.take(buf)
		case now := <-again:
			f.unpark(now)
		case now := <-tick.C:
			f.expire(now)
		case <-f.out.settled:
		case <-drain:
			in, drain = nil, nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// take begins with a request.
func (f *forwardProduce) take(buf *[]byte) {
	now := time.Now()
	w := &forwardedWrite{buf: buf}
	if err := w.req.Parse(*buf, record.PrefixMax, len(*buf)); err != nil {
		f.refuse(w, invalid("the forwarded request is malformed: %s", rpcerr.Clean(err.Error())))
		return
	}
	w.deadline = now.Add(min(w.req.Timeout, longestProduceTimeout))
	w.until = now.Add(newsWait)
	if w.deadline.Before(w.until) {
		w.until = w.deadline
	}
	switch f.svc.pipelines.enter(w.req.Pipeline, w.req.PipelineNumber, now) {
	case passageRefused:
		f.refuse(w, router.ErrFenced)
	case passageParked:
		f.park(w)
	case passageOpen:
		f.append(w, now)
	}
}

func (f *forwardProduce) park(w *forwardedWrite) {
	f.parked = append(f.parked, w)
	f.svc.pipelines.park(w.req.Pipeline, w.req.PipelineNumber, 1)
}

// unpark tries those again that wait for metadata. Behind one that goes on
// waiting, all of its pipeline do.
func (f *forwardProduce) unpark(now time.Time) {
	parked := f.parked
	f.parked = nil
	behind := map[uint64]bool{}
	for _, w := range parked {
		if behind[w.req.Pipeline] {
			f.parked = append(f.parked, w)
			continue
		}
		f.svc.pipelines.park(w.req.Pipeline, w.req.PipelineNumber, -1)
		if f.svc.pipelines.again(w.req.Pipeline, w.req.PipelineNumber) == passageRefused {
			f.refuse(w, router.ErrFenced)
			continue
		}
		before := len(f.parked)
		f.append(w, now)
		behind[w.req.Pipeline] = len(f.parked) > before
	}
}

// append appends a request, refuses it, or lets it wait for news.
func (f *forwardProduce) append(w *forwardedWrite, now time.Time) {
	got, part, err := f.svc.logs.takeForwarded(w)
	switch {
	case err == nil:
	case (errors.Is(err, partition.ErrUnknownEpoch) || errors.Is(err, partition.ErrNoLeader)) && now.Before(w.until):
		f.park(w)
		return
	case errors.Is(err, partition.ErrCommitUncertain), errors.Is(err, producer.ErrStateLost):
		f.free(w)
		f.answer(w, err)
		return
	default:
		f.svc.pipelines.refuse(w.req.Pipeline, w.req.PipelineNumber)
		f.refuse(w, err)
		return
	}
	w.got = got
	f.free(w)
	if answeredAtOnce(w.req.Acks) {
		f.answer(w, nil)
		return
	}
	f.out.expect(w)
	cancel := part.WhenCommitted(got, func(err error) {
		if err != nil {
			err = &uncertainError{cause: err, base: got.Base}
		}
		f.resolve(w, err)
	})
	f.out.await(w, cancel)
}

// takeForwarded appends a request to a partition that this broker leads, in the
// sender's epoch or a later one.
func (s *LogService) takeForwarded(w *forwardedWrite) (got partition.Appended, part *partition.Partition, err error) {
	topic, err := metadata.ParseTopicID(w.req.TopicID)
	if err != nil {
		return got, nil, err
	}
	part, err = s.forwardedTo(topic, w.req.Partition, record.Epoch(w.req.LeaderEpoch))
	if err != nil {
		return got, nil, err
	}
	t := part.Topic()
	batch, err := s.validator.ParseBatch(*w.buf, w.req.BatchStart, w.req.BatchEnd, limits(t))
	if err != nil {
		return got, nil, err
	}
	got, err = s.appendBatch(part, t, &batch, nil, w.req.Acks)
	return got, part, err
}

// forwardedTo returns a partition that this broker leads, for a sender that
// knows the given epoch. When that one is newer than what is known here it is
// ErrUnknownEpoch, and when this broker is about to lead, ErrNoLeader.
func (s *LogService) forwardedTo(topic uuid.UUID, n int32, epoch record.Epoch) (*partition.Partition, error) {
	img := s.opts.Store.Load()
	t, ok := img.TopicByID(topic)
	if !ok {
		return nil, fmt.Errorf("topic %s: %w: try again", topic, partition.ErrUnknownEpoch)
	}
	mp, ok := t.Partition(n)
	if !ok || mp.LeaderEpoch < epoch {
		return nil, fmt.Errorf("%s/%d: epoch %d: %w: try again", t.Name, n, epoch, partition.ErrUnknownEpoch)
	}
	part, err := s.opts.Partitions.Get(topic, n)
	if err != nil {
		return nil, err
	}
	st := part.State()
	if st.Err != nil && mp.Leader == img.Self && st.Epoch < mp.LeaderEpoch {
		return nil, fmt.Errorf("%s: %w: this broker is about to lead it, try again", part, partition.ErrNoLeader)
	}
	return part, st.Err
}

func (f *forwardProduce) free(w *forwardedWrite) {
	f.svc.logs.opts.Pool.Put(w.buf)
	w.buf = nil
}

// refuse answers a request of which nothing was stored.
func (f *forwardProduce) refuse(w *forwardedWrite, err error) {
	f.free(w)
	f.answer(w, err)
}

// answer queues the answer to a request that is not waited for.
func (f *forwardProduce) answer(w *forwardedWrite, err error) { f.out.add(f.response(w, err)) }

// resolve answers a request that was waited for, once.
func (f *forwardProduce) resolve(w *forwardedWrite, err error) { f.out.settle(w, f.response(w, err)) }

func (f *forwardProduce) response(w *forwardedWrite, err error) wire.ForwardProduced {
	r := wire.ForwardProduced{Sequence: w.req.Sequence, BaseOffset: wire.None, LastOffset: wire.None}
	if err != nil {
		r.Error = f.svc.logs.item(err)
	} else {
		r.BaseOffset, r.LastOffset = int64(w.got.Base), int64(w.got.Last)
		r.AppendTimeMs, r.LogStart, r.Duplicate = w.got.AppendTimeMs, int64(w.got.LogStart), w.got.Duplicate
	}
	return r
}

// expire stops waiting for commits that have taken too long.
func (f *forwardProduce) expire(now time.Time) {
	for _, w := range f.out.overdue(now) {
		if w.cancel() {
			f.resolve(w, &uncertainError{cause: partition.ErrCommitUncertain, base: w.got.Base, after: w.req.Timeout})
		}
	}
}

// abandon stops waiting for everything: the sender is gone.
func (f *forwardProduce) abandon() {
	for _, w := range f.parked {
		f.svc.pipelines.park(w.req.Pipeline, w.req.PipelineNumber, -1)
		f.free(w)
	}
	for _, w := range f.out.overdue(time.Time{}) {
		if w.cancel() {
			f.resolve(w, partition.ErrCommitUncertain)
		}
	}
}

// send sends answers until the last, and then says that nothing else was read.
func (f *forwardProduce) send(ctx context.Context, ss grpc.ServerStream) error {
	var batch []wire.ForwardProduced
	for {
		var last bool
		batch, last = f.out.take(batch[:0])
		for i := range batch {
			if err := ss.SendMsg(&batch[i]); err != nil {
				return err
			}
		}
		if last {
			bye := wire.ForwardProduced{BaseOffset: wire.None, LastOffset: wire.None, Error: f.svc.logs.item(partition.ErrShuttingDown)}
			return ss.SendMsg(&bye)
		}
		select {
		case <-f.out.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (o *forwardOutbox) add(r wire.ForwardProduced) {
	o.mu.Lock()
	o.answers = append(o.answers, r)
	o.mu.Unlock()
	signal(o.wake)
}

// take moves the answers behind into. last is true when none will follow.
func (o *forwardOutbox) take(into []wire.ForwardProduced) ([]wire.ForwardProduced, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()

	into = append(into, o.answers...)
	clear(o.answers)
	o.answers = o.answers[:0]
	return into, o.last
}

func (o *forwardOutbox) finish() {
	o.mu.Lock()
	o.last = true
	o.mu.Unlock()
	signal(o.wake)
}

// expect notes that a request is waited for.
func (o *forwardOutbox) expect(w *forwardedWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()

	o.open[w] = struct{}{}
	o.count.Add(1)
}

// await notes how to stop waiting.
func (o *forwardOutbox) await(w *forwardedWrite, cancel func() bool) {
	o.mu.Lock()
	defer o.mu.Unlock()

	w.cancel = cancel
}

// settle ends the waiting for a request, with its answer, unless it had ended.
func (o *forwardOutbox) settle(w *forwardedWrite, r wire.ForwardProduced) {
	o.mu.Lock()
	if _, ok := o.open[w]; ok {
		delete(o.open, w)
		o.count.Add(-1)
		o.answers = append(o.answers, r)
	}
	o.mu.Unlock()
	signal(o.wake)
	signal(o.settled)
}

func (o *forwardOutbox) waiting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()

	return len(o.open) > 0
}

// overdue returns what is waited for longer than it may; at the zero time, all.
func (o *forwardOutbox) overdue(now time.Time) (out []*forwardedWrite) {
	o.mu.Lock()
	defer o.mu.Unlock()

	for w := range o.open {
		if w.cancel != nil && (now.IsZero() || !now.Before(w.deadline)) {
			out = append(out, w)
		}
	}
	return out
}
