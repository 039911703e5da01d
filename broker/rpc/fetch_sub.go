package rpc

import (
	"container/heap"
	"math"
	"sync"
	"time"

	"github.com/google/uuid"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
)

// Coalescing.
const (
	// coalesceFor is how long a small response waits for company when the last
	// one left just before.
	coalesceFor = time.Millisecond
	// coalesceBelow is how small such responses are, in bytes.
	coalesceBelow = 16 << 10
)

// noStop is the stop offset of a partition that is read without end.
const noStop = record.Offset(math.MaxInt64)

// A subState says what a partition of a session waits for.
type subState uint8

const (
	subIdle   subState = iota // for records: the partition will call
	subReady                  // for its turn, in the queue
	subHeld                   // for more records or a time, in the heap
	subBroke                  // for credit, in the other queue
	subPaused                 // for the client
	subGone                   // for nothing
)

// A source is a partition one can read from: one of this broker, or one that
// another broker leads.
type source interface {
	State() partition.State
	Read(dst []byte, from, end record.Offset) (int, error)
	WhenReadable(from record.Offset, fn func()) (cancel func())
}

var (
	_ source = (*partition.Partition)(nil)
	_ source = (*router.Source)(nil)
)

// A fetchSub is one partition of a reading session.
type fetchSub struct {
	key        subKey
	topic      string
	topicID    string
	part       source
	away       *router.Source           // part, when another broker leads it
	want       *runnelv1.FetchPartition // how it was asked for
	placed     bool                     // next is known
	written    written
	tag        uint64
	next       record.Offset // where to go on
	stop       record.Offset // first offset not wanted, noStop: none
	earliest   bool          // began at the log start, and nothing was sent yet
	state      subState
	cancel     func() // of the wake-up that is registered, nil without
	wake       func() // what the partition calls
	cursor     *fetchCursor
	need       int       // bytes the next record or batch takes, when more than usual
	readySince time.Time // since when there is something to send; zero: not
	lastSent   time.Time
	lastSize   int
	due        time.Time // held until
	heapIndex  int
	ahead      *fetchSub // neighbours in the queue
	behind     *fetchSub
	reported   reported
	told       bool // reported was told
}

// subKey names a partition of a session.
type subKey struct {
	topic     uuid.UUID
	partition int32
}

// written is what of a partition the client has: where a reader goes on that
// has to begin anew.
type written struct {
	next     record.Offset
	epoch    record.Epoch // of the record before next, when hasEpoch
	hasEpoch bool
}

// reported is what the client was last told.
type reported struct {
	next, highWatermark, logStart record.Offset
}

// A subQueue holds the partitions that have something to send. They take turns:
// one response each.
type subQueue struct {
	front, back *fetchSub
	len         int
}

func (q *subQueue) push(s *fetchSub) {
	s.ahead, s.behind = q.back, nil
	if q.back == nil {
		q.front = s
	} else {
		q.back.behind = s
	}
	q.back = s
	q.len++
}

func (q *subQueue) remove(s *fetchSub) {
	if s.ahead == nil {
		q.front = s.behind
	} else {
		s.ahead.behind = s.behind
	}
	if s.behind == nil {
		q.back = s.ahead
	} else {
		s.behind.ahead = s.ahead
	}
	s.ahead, s.behind = nil, nil
	q.len--
}

// A holdHeap has the held partitions, the earliest due first.
type holdHeap []*fetchSub

// Len implements heap.Interface.
func (h *holdHeap) Len() int { return len(*h) }

// Less implements heap.Interface.
func (h *holdHeap) Less(i, j int) bool { return (*h)[i].due.Before((*h)[j].due) }

// Swap implements heap.Interface.
func (h *holdHeap) Swap(i, j int) {
	s := *h
	s[i], s[j] = s[j], s[i]
	s[i].heapIndex, s[j].heapIndex = i, j
}

// Push implements heap.Interface.
func (h *holdHeap) Push(x any) {
	s, _ := x.(*fetchSub)
	s.heapIndex = len(*h)
	*h = append(*h, s)
}

// Pop implements heap.Interface.
func (h *holdHeap) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}

// A subBoard keeps every partition of a session where its state says. It is
// pure but for the wake-ups it registers: time comes in as arguments.
type subBoard struct {
	subs  map[subKey]*fetchSub
	ready subQueue
	broke subQueue
	holds holdHeap
	woken wakeList
}

func newSubBoard() subBoard {
	return subBoard{subs: map[subKey]*fetchSub{}, woken: wakeList{signal: make(chan struct{}, 1)}}
}

// add takes a new partition in. It is ready: the first turn finds out.
func (b *subBoard) add(s *fetchSub) {
	s.wake = func() { b.woken.add(s) }
	b.subs[s.key] = s
	s.state = subReady
	b.ready.push(s)
}

// leave takes s out of where its state has it.
func (b *subBoard) leave(s *fetchSub) {
	switch s.state {
	case subReady:
		b.ready.remove(s)
	case subHeld:
		heap.Remove(&b.holds, s.heapIndex)
	case subBroke:
		b.broke.remove(s)
	case subIdle, subPaused, subGone:
	}
	if s.cancel != nil {
		s.cancel()
		s.cancel = nil
	}
}

// queue makes s ready, at the end of the queue.
func (b *subBoard) queue(s *fetchSub) {
	b.leave(s)
	s.state = subReady
	b.ready.push(s)
}

// idle lets s wait for something to read at from.
func (b *subBoard) idle(s *fetchSub, from record.Offset) {
	b.leave(s)
	s.state, s.readySince = subIdle, time.Time{}
	s.cancel = s.part.WhenReadable(from, s.wake)
}

// hold lets s wait until due, or until there is more to read than up to from;
// noStop: until due.
func (b *subBoard) hold(s *fetchSub, due time.Time, from record.Offset) {
	b.leave(s)
	s.state, s.due = subHeld, due
	heap.Push(&b.holds, s)
	if from != noStop {
		s.cancel = s.part.WhenReadable(from, s.wake)
	}
}

// owe lets s wait for credit.
func (b *subBoard) owe(s *fetchSub) {
	b.leave(s)
	s.state = subBroke
	b.broke.push(s)
}

// pay makes all ready that waited for credit, in their order.
func (b *subBoard) pay() {
	for b.broke.front != nil {
		b.queue(b.broke.front)
	}
}

// pause and resume.
func (b *subBoard) pause(s *fetchSub) {
	b.leave(s)
	s.state, s.readySince = subPaused, time.Time{}
}

func (b *subBoard) resume(s *fetchSub) {
	if s.state == subPaused {
		b.queue(s)
	}
}

// remove ends s.
func (b *subBoard) remove(s *fetchSub) {
	b.leave(s)
	s.state = subGone
	delete(b.subs, s.key)
}

// removeAll ends everything: no wake-up stays registered.
func (b *subBoard) removeAll() {
	for _, s := range b.subs {
		b.remove(s)
	}
}

// rouse makes those ready whose partition called or whose time came. One whose
// last response was small and left just now is held for a moment, so that a
// trickle of records travels together.
func (b *subBoard) rouse(now time.Time) {
	for _, s := range b.woken.take() {
		switch s.state {
		case subIdle:
			if s.readySince.IsZero() {
				s.readySince = now
			}
			until := s.lastSent.Add(coalesceFor)
			if s.lastSize > 0 && s.lastSize < coalesceBelow && now.Before(until) {
				b.hold(s, until, noStop)
				continue
			}
			b.queue(s)
		case subHeld:
			b.queue(s)
		case subReady, subBroke, subPaused, subGone:
		}
	}
	for len(b.holds) > 0 && !now.Before(b.holds[0].due) {
		b.queue(b.holds[0])
	}
}

// next returns when time makes a partition ready; zero: never.
func (b *subBoard) next() time.Time {
	if len(b.holds) == 0 {
		return time.Time{}
	}
	return b.holds[0].due
}

// A wakeList takes calls of partitions to the session's goroutine.
type wakeList struct {
	signal chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	subs []*fetchSub
}

func (w *wakeList) add(s *fetchSub) {
	w.mu.Lock()
	w.subs = append(w.subs, s)
	w.mu.Unlock()
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

func (w *wakeList) take() []*fetchSub {
	w.mu.Lock()
	defer w.mu.Unlock()

	if len(w.subs) == 0 {
		return nil
	}
	subs := w.subs
	w.subs = nil
	return subs
}

// checkOffset says why reading can't go on at next in a partition that is led
// here: what another broker leads is for that one to judge.
func (s *fetchSub) checkOffset() error {
	if p, ok := s.part.(*partition.Partition); ok {
		return p.CheckOffset(s.next)
	}
	return nil
}
