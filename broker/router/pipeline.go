package router

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// A Pipeline is what one client stream writes to one partition: a FIFO. It is
// sent under one number until a request of it is refused; then nothing more is
// sent until every answer still due has come, and what was refused goes first,
// in its order, under the next number. The leader refuses whatever else it sees
// of the old one. So the records that are stored are stored in the order sent.
type Pipeline struct {
	r      *Router
	stream *Stream
	topic  uuid.UUID
	id     string // of the topic, as text
	n      int32
	// name tells the pipeline from all others, of whatever broker.
	name uint64

	// mu guards the fields below
	mu sync.Mutex

	number  uint64
	ordinal uint64
	waiting []*Write
	again   []*Write // refused, to be sent again
	due     int      // answers that are still to come, of whatever was sent
	bytes   int64
	// fenced is true when something was refused, or lost, under the number.
	fenced  bool
	sentTo  view // where the last one was sent
	tried   view // what failed last
	hint    view // who leads, as an answer told
	backoff time.Duration
	retryAt time.Time
	local   bool // a goroutine appends here
}

func newPipeline(s *Stream, topic uuid.UUID, n int32) *Pipeline {
	return &Pipeline{
		r: s.r, stream: s, topic: topic, id: topic.String(), n: n, number: 1, sentTo: view{leader: metadata.NoBroker},
		name: rand.Uint64(), //nolint:gosec // it has to differ from others, not to be secret
	}
}

// An outcome is told when no lock is held.
type outcome struct {
	w   *Write
	res Result
}

func tell(all []outcome) {
	for _, o := range all {
		o.w.Done(o.res)
	}
}

// idle says whether nothing waits and nothing is unanswered.
func (p *Pipeline) idle() bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	return len(p.waiting) == 0 && len(p.again) == 0 && p.due == 0 && !p.local
}

// Push puts w behind what is there. It does not wait.
func (p *Pipeline) Push(w *Write) {
	w.begin(p, p.r.opts.Pool)
	p.mu.Lock()
	p.ordinal++
	w.ordinal = p.ordinal
	// When others wait, something is under way that will look again: answers,
	// an append, or a time in the router's list.
	first := len(p.waiting) == 0
	p.waiting = append(p.waiting, w)
	before := p.bytes
	p.bytes += w.Size()
	limit := p.r.opts.PartitionBytes
	over := before < limit && p.bytes >= limit
	p.mu.Unlock()
	p.stream.charge(w.Size(), over)
	if first {
		p.kick(time.Now())
	}
}

// kick sends what can be sent now.
func (p *Pipeline) kick(now time.Time) {
	p.mu.Lock()
	done := p.overdueLocked(now)
	done = append(done, p.kickLocked(now)...)
	p.mu.Unlock()
	tell(done)
}

// overdueLocked finishes what waited longer than its time.
func (p *Pipeline) overdueLocked(now time.Time) (done []outcome) {
	p.waiting = slices.DeleteFunc(p.waiting, func(w *Write) bool {
		if now.Before(w.Deadline) {
			return false
		}
		done = append(done, p.finishLocked(w, Result{Err: late(w.Timeout, w.cause)}))
		return true
	})
	return done
}

func (p *Pipeline) kickLocked(now time.Time) (done []outcome) {
	if p.fenced && p.due == 0 && !p.local {
		p.renumberLocked()
	}
	if p.r.closed.Load() && p.due == 0 {
		return p.failLocked(errClosed)
	}
	if len(p.waiting) == 0 || p.local || p.fenced {
		return nil
	}
	v, err := p.r.leader(p.topic, p.n, p.hint)
	switch {
	case err != nil && !routable(err):
		return p.failLocked(err)
	case err == nil && v != p.tried: // somebody else leads by now
	case now.Before(p.retryAt):
		p.parkLocked(p.retryAt)
		return nil
	}
	if err != nil {
		p.retryLocked(now, err, v)
		return nil
	}
	if p.due > 0 && v.leader != p.sentTo.leader {
		return nil // what is there may be refused yet, and has to go first then
	}
	if v.leader == p.r.self {
		if !p.r.spawn(p.appendHere) {
			return p.failLocked(errClosed)
		}
		p.sentTo, p.local = v, true
		return nil
	}
	l, err := p.r.link(v.leader, p.name)
	if err != nil {
		p.retryLocked(now, err, v)
		return nil
	}
	if v.leader != p.sentTo.leader {
		p.number++
	}
	p.sentTo = v
	for i, w := range p.waiting {
		w.state, w.number, w.at = writeQueued, p.number, v
		if !l.push(w) {
			w.state = writeWaiting
			p.waiting = slices.Delete(p.waiting, 0, i)
			p.retryLocked(now, errUnreachable, v)
			return nil
		}
		p.due++
	}
	clear(p.waiting)
	p.waiting = p.waiting[:0]
	return nil
}

// renumberLocked begins the next number with what was refused of the last.
func (p *Pipeline) renumberLocked() {
	p.number++
	p.fenced = false
	if len(p.again) == 0 {
		return
	}
	slices.SortFunc(p.again, func(a, b *Write) int {
		if a.ordinal < b.ordinal {
			return -1
		}
		return 1
	})
	p.waiting = append(p.again, p.waiting...)
	p.again = nil
}

// retryLocked notes why nothing could be sent, and when to try again; earlier
// when another leader is known than v.
func (p *Pipeline) retryLocked(now time.Time, cause error, v view) {
	for _, w := range p.waiting {
		w.cause = cause
	}
	p.tried = v
	p.backoff = nextBackoff(p.backoff)
	p.retryAt = now.Add(p.backoff/2 + rand.N(p.backoff)/2) //nolint:gosec // spreading load needs no secret
	p.parkLocked(p.retryAt)
}

func (p *Pipeline) parkLocked(at time.Time) {
	for _, w := range p.waiting {
		if w.Deadline.Before(at) {
			at = w.Deadline
		}
	}
	p.r.park(p, at)
}

// failLocked finishes all that waits.
func (p *Pipeline) failLocked(err error) (done []outcome) {
	for _, w := range p.waiting {
		done = append(done, p.finishLocked(w, Result{Err: err}))
	}
	clear(p.waiting)
	p.waiting = p.waiting[:0]
	return done
}

// finishLocked ends a write, and returns what is to be told.
func (p *Pipeline) finishLocked(w *Write, res Result) outcome {
	w.state = writeFinished
	w.data.Free()
	w.data, w.Buf, w.cancel = nil, nil, nil
	limit := p.r.opts.PartitionBytes
	below := p.bytes >= limit && p.bytes-w.Size() < limit
	p.bytes -= w.Size()
	if w.loose {
		p.r.unloose(w.Size())
	}
	p.stream.discharge(w.Size(), below)
	if w.Answered && res.Err != nil {
		p.r.dropped.Inc()
	}
	return outcome{w, res}
}

// hand says that the link is about to give w to gRPC, and returns what to send;
// nil when w was given up meanwhile.
func (p *Pipeline) hand(w *Write, now time.Time) *wire.ForwardProduce {
	p.mu.Lock()
	if w.state != writeQueued || !now.Before(w.Deadline) {
		var done []outcome
		if w.state == writeQueued {
			done = []outcome{p.finishLocked(w, Result{Err: late(w.Timeout, w.cause)})}
		}
		p.due--
		done = append(done, p.kickLocked(now)...)
		p.mu.Unlock()
		tell(done)
		return nil
	}
	w.state = writeHanded
	req := &wire.ForwardProduce{
		TopicID: p.id, Partition: p.n, LeaderEpoch: int64(w.at.epoch), Pipeline: p.name, PipelineNumber: w.number,
		Acks: w.Acks, Timeout: w.Deadline.Sub(now), Principal: p.stream.principal, Batch: w.data.Slice(w.Start, w.End),
	}
	p.mu.Unlock()
	p.r.forwarded.WithLabelValues("produce").Inc()
	return req
}

// answered takes the leader's answer.
func (p *Pipeline) answered(w *Write, res *wire.ForwardProduced) {
	now := time.Now()
	err := p.r.remote(res.Error)
	p.mu.Lock()
	p.due--
	var done []outcome
	switch {
	case err == nil:
		p.backoff = 0
		if w.state != writeFinished {
			done = append(done, p.finishLocked(w, Result{Stored: true, Appended: partition.Appended{
				Base: record.Offset(res.BaseOffset), Last: record.Offset(res.LastOffset), AppendTimeMs: res.AppendTimeMs,
				LogStart: record.Offset(res.LogStart), Epoch: w.at.epoch, Duplicate: res.Duplicate,
			}}))
		}
	case res.Error.GetOutcomeUnknown():
		if w.state != writeFinished {
			done = append(done, p.finishLocked(w, Result{Err: err}))
		}
	default:
		done = p.refusedLocked(w, err, now)
	}
	done = append(done, p.kickLocked(now)...)
	p.mu.Unlock()
	tell(done)
}

// refusedLocked handles a definite no. After the first of a number, all others
// of it are refused just for that, and are sent again.
func (p *Pipeline) refusedLocked(w *Write, err error, now time.Time) (done []outcome) {
	first := !p.fenced
	p.fenced = true
	switch {
	case w.state == writeFinished:
		return nil
	case first && !Routable(err):
		return []outcome{p.finishLocked(w, Result{Err: err})}
	}
	w.state = writeWaiting
	p.again = append(p.again, w)
	if !first {
		return nil // it tells nothing new
	}
	w.cause = err
	if hint, ok := hintOf(err); ok && hint.epoch > w.at.epoch && hint.epoch > p.hint.epoch {
		p.hint, p.backoff = hint, 0 // somebody else leads: ask there at once
		return nil
	}
	p.tried = w.at
	p.backoff = nextBackoff(p.backoff)
	p.retryAt = now.Add(p.backoff)
	return nil
}

// lost is what becomes of a write that was handed over and whose link broke.
func (p *Pipeline) lost(w *Write, cause error) {
	now := time.Now()
	p.mu.Lock()
	p.due--
	p.fenced = true // what comes next must not be taken before what may still lie there
	var done []outcome
	if w.state != writeFinished {
		done = append(done, p.finishLocked(w, Result{Err: uncertain("it was sent to broker %d, and the connection broke before the answer: %s", w.at.leader, causeText(cause))}))
	}
	done = append(done, p.kickLocked(now)...)
	p.mu.Unlock()
	tell(done)
}

// returned takes a write back that the leader has never read.
func (p *Pipeline) returned(w *Write, cause error) {
	now := time.Now()
	p.mu.Lock()
	p.due--
	p.fenced = true
	if w.state != writeFinished {
		w.state, w.cause = writeWaiting, cause
		p.again = append(p.again, w)
		p.tried = w.at
		if p.backoff == 0 || !now.Before(p.retryAt) {
			p.backoff = nextBackoff(p.backoff)
			p.retryAt = now.Add(p.backoff)
		}
	}
	done := p.kickLocked(now)
	p.mu.Unlock()
	tell(done)
}

// expire ends a write whose time has passed.
func (p *Pipeline) expire(w *Write) {
	p.mu.Lock()
	var done []outcome
	switch w.state {
	case writeWaiting:
		drop := func(o *Write) bool { return o == w }
		p.waiting, p.again = slices.DeleteFunc(p.waiting, drop), slices.DeleteFunc(p.again, drop)
		done = append(done, p.finishLocked(w, Result{Err: late(w.Timeout, w.cause)}))
	case writeQueued: // the link finds it finished
		done = append(done, p.finishLocked(w, Result{Err: late(w.Timeout, w.cause)}))
	case writeHanded:
		done = append(done, p.finishLocked(w, Result{Err: uncertain("it was sent to broker %d, and no answer came within %s", w.at.leader, w.Timeout)}))
	case writeLocal:
		cancel := w.cancel
		w.late = true
		p.mu.Unlock()
		if cancel != nil && cancel() { // takes the partition's lock
			p.committed(w, uncertain("appended at offset %d, but not committed within %s", w.got.Base, w.Timeout))
		}
		return
	case writeFinished:
	}
	p.mu.Unlock()
	tell(done)
}

// detach drops what nobody waits for: all that was not sent, but for what was
// answered before, as long as there is room for that.
func (p *Pipeline) detach() {
	now := time.Now()
	p.mu.Lock()
	var done []outcome
	drop := func(w *Write) bool {
		if w.loose = w.Answered && p.r.loosen(w.Size()); w.loose {
			return false
		}
		done = append(done, p.finishLocked(w, Result{Err: late(w.Timeout, w.cause)}))
		return true
	}
	p.waiting, p.again = slices.DeleteFunc(p.waiting, drop), slices.DeleteFunc(p.again, drop)
	if len(p.waiting)+len(p.again) == 0 {
		p.r.unpark(p)
	}
	done = append(done, p.kickLocked(now)...)
	p.mu.Unlock()
	tell(done)
}
