package partition

import (
	"context"
	"sync"
)

// flushQueue hands partitions that want to be made durable to a few flushers.
// A partition is in it at most once.
type flushQueue struct {
	wake chan struct{} // capacity: number of flushers

	// mu guards the fields below
	mu sync.Mutex

	waiting []*Partition
}

func newFlushQueue(flushers int) *flushQueue {
	return &flushQueue{wake: make(chan struct{}, flushers)}
}

func (q *flushQueue) push(p *Partition) {
	q.mu.Lock()
	q.waiting = append(q.waiting, p)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // every flusher has been told to look
	}
}

func (q *flushQueue) pop() *Partition {
	q.mu.Lock()
	defer q.mu.Unlock()

	if len(q.waiting) == 0 {
		return nil
	}
	p := q.waiting[0]
	q.waiting = q.waiting[1:]
	return p
}

// work makes partitions durable until ctx is done. While one sync runs the
// partition takes further appends; they share the next one.
func (q *flushQueue) work(ctx context.Context) {
	for {
		for p := q.pop(); p != nil; p = q.pop() {
			p.flushOnce()
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return
		}
	}
}
