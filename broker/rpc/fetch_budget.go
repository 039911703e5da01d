package rpc

import (
	"container/list"
	"sync"

	"github.com/runnelmq/runnel/internal/wire"
)

// A fetchBudget is the memory that all Fetch streams of the broker share for
// responses on their way. Half of it is for buffers of at most 64 KiB, half for
// larger ones, so that readers stuck with large batches never keep the others
// from going on. In each half, who asked first is served first: a stream asks
// for one buffer at a time, so streams take turns.
type fetchBudget struct {
	// mu guards the fields below
	mu sync.Mutex

	small, large budgetHalf
}

type budgetHalf struct {
	free    int64
	waiting list.List // of *budgetClaim
}

// A budgetClaim is one stream's wish for a buffer.
type budgetClaim struct {
	budget *fetchBudget
	bytes  int64
	// ready receives once, when the bytes were taken for the claim.
	ready chan struct{}
	place *list.Element // nil once granted
}

func newFetchBudget(bytes int64) *fetchBudget {
	return &fetchBudget{small: budgetHalf{free: bytes / 2}, large: budgetHalf{free: bytes / 2}}
}

func (b *fetchBudget) half(bytes int64) *budgetHalf {
	if bytes <= firstResponse {
		return &b.small
	}
	return &b.large
}

// try takes bytes if they are free and nobody waits for them.
func (b *fetchBudget) try(bytes int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	h := b.half(bytes)
	if h.waiting.Len() > 0 || h.free < bytes {
		return false
	}
	h.free -= bytes
	return true
}

// claim takes bytes as soon as it is their turn; nil when that was at once.
func (b *fetchBudget) claim(bytes int64) *budgetClaim {
	if b.try(bytes) {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()

	c := &budgetClaim{budget: b, bytes: bytes, ready: make(chan struct{}, 1)}
	h := b.half(bytes)
	c.place = h.waiting.PushBack(c)
	h.grant()
	return c
}

// release gives bytes back that were taken as one.
func (b *fetchBudget) release(bytes int64) {
	b.mu.Lock()
	defer b.mu.Unlock()

	h := b.half(bytes)
	h.free += bytes
	h.grant()
}

// abandon gives up a claim, granted or not.
func (c *budgetClaim) abandon() {
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()

	h := c.budget.half(c.bytes)
	if c.place != nil {
		h.waiting.Remove(c.place)
		c.place = nil
	} else {
		h.free += c.bytes
	}
	h.grant()
}

// grant serves those who wait, in order.
func (h *budgetHalf) grant() {
	for e := h.waiting.Front(); e != nil; e = h.waiting.Front() {
		c, _ := e.Value.(*budgetClaim)
		if h.free < c.bytes {
			return
		}
		h.free -= c.bytes
		h.waiting.Remove(e)
		c.place = nil
		c.ready <- struct{}{} // has room for the one value it ever gets
	}
}

// A fetchFlow counts the buffers of one stream that are on their way, and
// settles with the budget. gRPC gives buffers back when the transport has
// written them, and never when the connection died; so settle is what counts
// in the end.
type fetchFlow struct {
	pool   *wire.Pool
	budget *fetchBudget
	// drained receives when buffers came back.
	drained chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	underway int // bytes handed to the transport and not back yet
	// small and large are what the stream owes each half of the budget.
	small, large int64
	settled      bool
}

func newFetchFlow(pool *wire.Pool, budget *fetchBudget) *fetchFlow {
	return &fetchFlow{pool: pool, budget: budget, drained: make(chan struct{}, 1)}
}

// Get implements mem.BufferPool, for the small heads of responses.
func (f *fetchFlow) Get(length int) *[]byte {
	b := f.pool.Get(length)
	f.mu.Lock()
	defer f.mu.Unlock()

	f.underway += cap(*b)
	return b
}

// Put implements mem.BufferPool: a head was written.
func (f *fetchFlow) Put(b *[]byte) {
	f.arrived(cap(*b))
	f.pool.Put(b)
}

func (f *fetchFlow) arrived(bytes int) {
	f.mu.Lock()
	f.underway -= bytes
	f.mu.Unlock()
	select {
	case f.drained <- struct{}{}:
	default:
	}
}

// clear reports whether the transport has taken so much that the next response
// may follow: at most one of 64 KiB or more is underway at a time. It is below
// what gRPC lets a stream have outstanding, so sending never blocks.
func (f *fetchFlow) clear() bool {
	f.mu.Lock()
	defer f.mu.Unlock()

	return f.underway < firstResponse
}

// took notes bytes that were taken from the budget for the stream.
func (f *fetchFlow) took(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if bytes <= firstResponse {
		f.small += bytes
	} else {
		f.large += bytes
	}
}

// gave gives bytes back that were taken as one; nothing after settle.
func (f *fetchFlow) gave(bytes int64) {
	f.mu.Lock()
	owed := !f.settled
	if owed && bytes <= firstResponse {
		f.small -= bytes
	} else if owed {
		f.large -= bytes
	}
	f.mu.Unlock()
	if owed {
		f.budget.release(bytes)
	}
}

// settle gives back all that is still owed. Buffers that return later find the
// account closed.
func (f *fetchFlow) settle() {
	f.mu.Lock()
	small, large := f.small, f.large
	f.small, f.large, f.settled = 0, 0, true
	f.mu.Unlock()

	f.budget.mu.Lock()
	defer f.budget.mu.Unlock()

	f.budget.small.free += small
	f.budget.large.free += large
	f.budget.small.grant()
	f.budget.large.grant()
}

// payloads is the pool of a stream's payload buffers, which are paid for.
type payloads struct {
	flow *fetchFlow
}

// Get implements mem.BufferPool. The bytes were taken from the budget before.
func (p payloads) Get(length int) *[]byte { return p.flow.pool.Get(length) }

// Put implements mem.BufferPool: a payload was written.
func (p payloads) Put(b *[]byte) {
	p.flow.gave(int64(cap(*b)))
	p.flow.arrived(cap(*b))
	p.flow.pool.Put(b)
}

// sending notes that a payload buffer is handed to the transport.
func (p payloads) sending(b *[]byte) {
	p.flow.mu.Lock()
	defer p.flow.mu.Unlock()

	p.flow.underway += cap(*b)
}
