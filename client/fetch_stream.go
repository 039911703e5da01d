package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/wire"
)

const (
	// progressInterval is how often a broker says something on an idle stream, and
	// mostSilent after how long without a word one is given up in any case.
	progressInterval = 3 * time.Second
	mostSilent       = 30 * time.Second
	// creditShare: credit goes back in parts of at least prefetch/creditShare.
	creditShare = 4
)

// A fetchStream is one Fetch stream.
type fetchStream struct {
	r      *Reader
	lane   *fetchLane
	share  int // of the prefetch, at most what the broker may send ahead
	s      grpc.ClientStream
	cancel context.CancelCauseFunc
	moves  int64         // of the seeds, when it was opened
	over   chan struct{} // closed when nothing more will be received
	err    error         // why; set before over is closed

	// mu guards the fields below
	mu sync.Mutex

	heard  time.Time
	any    bool
	goaway *runnelv1.Goaway
}

func (l *fetchLane) open(ctx context.Context) (*fetchStream, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	moves := l.r.c.cluster.moves.Load()
	cs, err := l.r.c.stream(ctx, l.place, runnelv1.LogService_Fetch_FullMethodName)
	if err != nil {
		cancel(err)
		return nil, err
	}
	return &fetchStream{r: l.r, lane: l, s: cs, cancel: cancel, moves: moves, over: make(chan struct{}), heard: time.Now()}, nil
}

// serve reads until the stream ends. It returns nil after a planned end.
func (s *fetchStream) serve(ctx context.Context) error {
	var receiver sync.WaitGroup
	receiver.Go(s.receive)
	cause := s.send(ctx)
	s.cancel(cause)
	receiver.Wait()
	switch {
	case isDone(ctx) || cause == nil:
		return nil
	case errors.Is(cause, errStreamSilent), errors.Is(cause, errSilent):
		return cause
	case s.err == nil:
		return errStreamEnded
	}
	return s.err
}

// send tells the broker what to send. It returns nil when the stream is not
// needed any more, and else why it is given up.
func (s *fetchStream) send(ctx context.Context) error {
	alive := time.NewTicker(doubtAfter / 2)
	defer alive.Stop()
	req, sent := s.opening(), time.Now()
	for {
		if req != nil {
			if err := s.s.SendMsg(req); err != nil {
				<-s.over
				return err
			}
			req, sent = nil, time.Now()
		}
		select {
		case <-s.lane.wake:
			if !s.lane.active() || s.lane.shareNow() != s.share {
				return nil
			}
			req = s.lane.edits()
		case <-s.over:
			if s.leaving() {
				return nil
			}
			return errStreamEnded
		case <-ctx.Done():
			return nil
		case now := <-alive.C:
			switch silent := s.silent(now); {
			case silent >= mostSilent:
				return errStreamSilent
			case silent < progressInterval+doubtAfter:
			case s.r.c.cluster.leftSilent(s.lane.place, s.moves):
				return errSilent
			default:
				s.r.c.cluster.doubt()
			}
			if now.Sub(sent) >= keepAliveAfter {
				req = &runnelv1.FetchRequest{}
			}
		}
	}
}

// rejoinAfter is when to open the next stream after a planned end.
func rejoinAfter(g *runnelv1.Goaway) time.Duration {
	if g == nil {
		return 0
	}
	return max(g.GetReconnectAfter().AsDuration(), firstBackoff)
}

func (s *fetchStream) silent(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return now.Sub(s.heard)
}

// leaving reports whether the broker announced the end.
func (s *fetchStream) leaving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.goaway != nil
}

// opening returns the first request of the stream, with all partitions wanted.
func (s *fetchStream) opening() *runnelv1.FetchRequest {
	r, l := s.r, s.lane
	r.mu.Lock()
	defer r.mu.Unlock()
	s.share = l.share
	credit := int64(s.share) - l.queued
	l.credit = 0
	if credit < 1 {
		// What is queued is over the bound: a stream begins with at least 1,
		// and gets the rest back later.
		l.credit, credit = credit-1, 1
	}
	most := int32(min(max(s.share/creditShare, minResponse), maxResponse)) //nolint:gosec // bounded
	req := &runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{
		Format: runnelv1.FetchFormat_FETCH_FORMAT_BATCHES, Follow: true, Isolation: r.o.isolation, Routing: l.place.routing(),
		MaxResponseBytes: &most, InitialCreditBytes: &credit, ProgressInterval: durationpb.New(progressInterval),
	}}
	l.removed = nil
	for _, a := range r.parts {
		if a.lane != l {
			continue
		}
		a.sent, a.dirty = a.wanted(), false
		if a.sent {
			req.Partitions = append(req.Partitions, a.request())
		}
	}
	return req
}

// edits returns what has changed since the last request; nil for nothing.
func (l *fetchLane) edits() *runnelv1.FetchRequest {
	r := l.r
	r.mu.Lock()
	defer r.mu.Unlock()
	req := &runnelv1.FetchRequest{}
	for _, key := range l.removed {
		req.Remove = append(req.Remove, key.ref())
	}
	l.removed = nil
	for _, a := range r.parts {
		if !a.dirty || a.lane != l {
			continue
		}
		a.dirty = false
		switch {
		case a.wanted():
			a.sent = true
			req.Partitions = append(req.Partitions, a.request())
		case a.sent:
			a.sent = false
			req.Remove = append(req.Remove, a.ref())
		}
	}
	if l.credit >= int64(l.share/creditShare) {
		req.CreditBytes, l.credit = l.credit, 0
	}
	if len(req.Remove)+len(req.Partitions) == 0 && req.CreditBytes == 0 {
		return nil
	}
	return req
}

func (k partitionKey) ref() *runnelv1.PartitionRef {
	return &runnelv1.PartitionRef{Topic: k.topic, Partition: &k.partition}
}

// request is how to read on from here. It is sent when a may be elsewhere already,
// so nothing in it is a's own.
func (a *assigned) request() *runnelv1.FetchPartition {
	f := &runnelv1.FetchPartition{Topic: a.topic, Partition: &a.partition, Tag: a.ask}
	if a.id != "" {
		f.TopicId = new(a.id)
	}
	if a.next == noOffset {
		f.Start = &runnelv1.FetchPartition_Position{Position: runnelv1.Position_POSITION_EARLIEST}
	} else {
		f.Start = &runnelv1.FetchPartition_Offset{Offset: a.next}
	}
	if a.stop != noOffset {
		f.StopOffset = new(a.stop)
	}
	if a.epoch != noOffset {
		f.LastEpoch = new(a.epoch)
	}
	return f
}

// receive takes responses until the stream ends.
func (s *fetchStream) receive() {
	defer close(s.over)
	var msg wire.Message
	for {
		if err := s.s.RecvMsg(&msg); err != nil {
			if !errors.Is(err, io.EOF) {
				s.err = streamError(s.s, err)
			}
			return
		}
		buf := msg.Copy(s.r.c.pool, 0)
		var f wire.FetchedBatches
		if err := f.Parse(*buf, 0, len(*buf)); err != nil {
			s.err = fmt.Errorf("the broker's response cannot be read: %w", err)
			s.cancel(s.err)
			return
		}
		s.mu.Lock()
		s.heard, s.any = time.Now(), true
		if f.Goaway != nil {
			s.goaway = f.Goaway
		}
		s.mu.Unlock()
		s.r.take(s.lane, buf, f)
		if f.Goaway != nil && !f.Goaway.GetFinal() {
			// Everything is resumed by offset: there is nothing to wait for.
			s.cancel(nil)
		}
	}
}

// take queues a response for Poll.
func (r *Reader) take(l *fetchLane, buf *[]byte, f wire.FetchedBatches) {
	r.tell(&f, len(*buf))
	b, epoch := r.newBatch(buf, f)
	b.lane = l
	err := itemError(f.Error)
	if err != nil && errors.Is(err, ErrNotLeader) {
		r.c.cluster.hint(string(f.Topic), string(f.TopicID), f.Partition, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing = time.Time{}
	l.queued += b.size
	a := r.parts[partitionKey{string(f.Topic), f.Partition}]
	if a == nil || a.ask != f.Tag || a.lane != l || r.closed || f.Partition == wire.None {
		r.releaseLocked(b)
		return
	}
	b.a, b.tag = a, a.tag.Load()
	if err != nil {
		r.troubleLocked(b, err)
		return
	}
	a.attempts, a.failing = 0, time.Time{}
	if a.id == "" { // from here on it is this topic, and no other of its name
		a.id = string(f.TopicID)
	}
	b.from, b.stop = a.next, a.stop
	if a.next == noOffset {
		// It asked for what there is from the beginning on, which may be inside
		// the first batch. In later answers a record that was read before the log
		// start moved past it is handed out.
		b.from = max(0, min(f.LogStart, f.NextOffset))
	}
	moved := f.NextOffset != wire.None && f.NextOffset != a.next
	if moved {
		a.next = f.NextOffset
	}
	b.next = a.next
	b.pos.Store(b.from)
	if epoch != noOffset {
		a.epoch = epoch
	}
	if f.End || a.stop != noOffset && a.next >= a.stop {
		a.ended, a.sent = true, !f.End && a.sent
		a.dirty = a.sent
		poke(r.wake)
	}
	if f.Batches == 0 && !moved && !f.End {
		r.releaseLocked(b)
		return
	}
	r.queue = append(r.queue, b)
	r.arrivedLocked()
}

// tell calls the hook.
func (r *Reader) tell(f *wire.FetchedBatches, size int) {
	if h := r.c.opts.hooks.Fetched; h != nil && f.Batches > 0 {
		h(FetchInfo{
			Topic: string(f.Topic), Partition: f.Partition, Bytes: size,
			Lag: max(f.HighWatermark-f.NextOffset, 0),
		})
	}
}

// troubleLocked decides what an error of a partition means.
func (r *Reader) troubleLocked(b *Batch, err error) {
	a := b.a
	a.sent = false
	now := time.Now()
	if a.failing.IsZero() {
		a.failing = now
	}
	a.attempts++
	hopeless := r.o.retryTimeout > 0 && now.Sub(a.failing) >= r.o.retryTimeout
	switch {
	case Retriable(err) && !hopeless:
		r.releaseLocked(b)
		ask := a.ask
		time.AfterFunc(max(backoffFor(a.attempts), retryAfter(err)), func() { r.again(a, ask) })
		return
	case r.resetLocked(a, err):
		r.releaseLocked(b)
		a.dirty = true
		poke(r.wake)
		return
	}
	a.ended = true
	b.err = err
	r.queue = append(r.queue, b)
	r.changedLocked()
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}

// again asks for a partition once more, unless it was moved meanwhile.
func (r *Reader) again(a *assigned, ask uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.ask != ask {
		return
	}
	a.dirty = true
	poke(r.wake)
}

// resetLocked applies the policy to a place that is not in the log. It is false
// when the policy is to fail, or err is another one.
func (r *Reader) resetLocked(a *assigned, err error) bool {
	e, ok := errors.AsType[*Error](err)
	if !ok || r.o.reset == ResetFail || !errors.Is(err, ErrOffsetOutOfRange) && !errors.Is(err, ErrLogTruncated) {
		return false
	}
	end, hasEnd := e.Int("endOffset")
	if hw, ok := e.Int("highWatermark"); ok && !hasEnd {
		end, hasEnd = hw, true
	}
	start, hasStart := e.Int("logStartOffset")
	to := int64(noOffset)
	switch {
	case r.o.reset == ResetEarliest && hasStart:
		to = start
	case r.o.reset == ResetEarliest: // as the broker finds it
	case !hasEnd:
		return false
	case r.o.reset == ResetNearest && hasStart && a.next < start:
		to = start
	default:
		to = end
	}
	if to == a.next && !errors.Is(err, ErrLogTruncated) {
		return false // it would be refused again; what was cut is not asked about any more
	}
	a.next, a.epoch = to, noOffset
	if len(r.queue) == 0 {
		a.pos = to
	}
	return true
}
