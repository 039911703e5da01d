package partition

import (
	"context"
	"sync"
)

// A workQueue hands partitions that want something done to a few workers. A
// partition is in it at most once.
type workQueue struct {
	do   func(context.Context, *Partition)
	wake chan struct{} // capacity: number of workers

	// mu guards the fields below
	mu sync.Mutex

	waiting []*Partition
}

func newWorkQueue(workers int, do func(context.Context, *Partition)) *workQueue {
	return &workQueue{do: do, wake: make(chan struct{}, workers)}
}

func (q *workQueue) push(p *Partition) {
	q.mu.Lock()
	q.waiting = append(q.waiting, p)
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default: // every worker has been told to look
	}
}

func (q *workQueue) pop() *Partition {
	q.mu.Lock()
	defer q.mu.Unlock()

	if len(q.waiting) == 0 {
		return nil
	}
	p := q.waiting[0]
	q.waiting = q.waiting[1:]
	return p
}

// work does it until ctx is done.
func (q *workQueue) work(ctx context.Context) {
	for {
		for p := q.pop(); p != nil; p = q.pop() {
			q.do(ctx, p)
		}
		select {
		case <-q.wake:
		case <-ctx.Done():
			return
		}
	}
}
