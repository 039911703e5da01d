package partition

import (
	"container/list"

	"github.com/runnelmq/runnel/internal/record"
)

// commitQueue holds who waits for the high watermark to pass an offset, by
// offset, and among equals first come first served. Its caller locks.
type commitQueue struct {
	list list.List // of *commitWaiter
}

type commitWaiter struct {
	last record.Offset
	fn   func(error)
}

// add puts a waiter at its place. Appends are answered in order, so the place
// is nearly always the end.
func (q *commitQueue) add(w *commitWaiter) *list.Element {
	for e := q.list.Back(); e != nil; e = e.Prev() {
		if at(e).last <= w.last {
			return q.list.InsertAfter(w, e)
		}
	}
	return q.list.PushFront(w)
}

// cancel removes e and reports whether it was still there.
func (q *commitQueue) cancel(e *list.Element) bool {
	// The list forgets itself in an element that is removed, so a second
	// removal changes nothing; only the length tells.
	before := q.list.Len()
	q.list.Remove(e)
	return q.list.Len() < before
}

// due removes and returns those whose last offset is below hw.
func (q *commitQueue) due(hw record.Offset) []func(error) {
	var out []func(error)
	for e := q.list.Front(); e != nil && at(e).last < hw; e = q.list.Front() {
		out = append(out, at(e).fn)
		q.list.Remove(e)
	}
	return out
}

// all removes and returns everyone.
func (q *commitQueue) all() []func(error) {
	out := make([]func(error), 0, q.list.Len())
	for e := q.list.Front(); e != nil; e = q.list.Front() {
		out = append(out, at(e).fn)
		q.list.Remove(e)
	}
	return out
}

func at(e *list.Element) *commitWaiter {
	w, _ := e.Value.(*commitWaiter)
	return w
}

// readQueue holds who waits for something to read. Its caller locks.
type readQueue struct {
	list list.List // of *readWaiter
}

type readWaiter struct {
	from record.Offset
	fn   func()
}

func (q *readQueue) add(w *readWaiter) *list.Element { return q.list.PushBack(w) }

func (q *readQueue) cancel(e *list.Element) { q.list.Remove(e) }

// due removes and returns those with something to read below hw.
func (q *readQueue) due(hw record.Offset) []func() {
	var out []func()
	for e := q.list.Front(); e != nil; {
		next := e.Next()
		if w, _ := e.Value.(*readWaiter); w.from < hw {
			out = append(out, w.fn)
			q.list.Remove(e)
		}
		e = next
	}
	return out
}

// all removes and returns everyone.
func (q *readQueue) all() []func() {
	out := make([]func(), 0, q.list.Len())
	for e := q.list.Front(); e != nil; e = q.list.Front() {
		w, _ := e.Value.(*readWaiter)
		out = append(out, w.fn)
		q.list.Remove(e)
	}
	return out
}
