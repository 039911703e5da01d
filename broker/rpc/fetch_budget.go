package rpc

import (
	"container/list"
	"sync"
)

// A fetchBudget is the memory that all Fetch streams of the broker share for
// responses on their way. Half of it is for buffers of at most 64 KiB, half for
// larger ones, so that readers stuck with large batches never keep the others
// from going on. In each half, who asked first is served first: a stream asks
// for one buffer at a time, so streams take turns.
//
// What a client does not read cannot be taken back from gRPC, not even by ending
// the stream: it stays until the client reads, resets the stream, or its
// connection ends. So the responses of streams that made no progress for
// stuckAfter are set aside: they no longer count against the halves, which go on
// serving who reads. What is set aside is bounded by as much as the budget, so
// that Fetch never holds more than twice the budget in all. When that is full,
// stuck streams count against the halves again, as they came.
type fetchBudget struct {
	// mu guards the fields below
	mu sync.Mutex

	small, large budgetHalf
	// aside is what stuck streams hold beside the halves, at most asideMost.
	aside, asideMost int64
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
	return &fetchBudget{small: budgetHalf{free: bytes / 2}, large: budgetHalf{free: bytes / 2}, asideMost: bytes}
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

// release gives bytes back that were taken as one, of which some were set aside.
func (b *fetchBudget) release(bytes, aside int64) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.aside -= aside
	h := b.half(bytes)
	h.free += bytes - aside
	h.grant()
}

// setAside makes bytes of the halves free that a stuck stream goes on to hold.
// It is false when too much is set aside already.
func (b *fetchBudget) setAside(small, large int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.aside+small+large > b.asideMost {
		return false
	}
	b.aside += small + large
	b.refund(small, large)
	return true
}

// refund makes bytes of the halves free; mu is held.
func (b *fetchBudget) refund(small, large int64) {
	b.small.free += small
	b.large.free += large
	b.small.grant()
	b.large.grant()
}

// pressure returns how many streams wait and how many bytes are set aside.
func (b *fetchBudget) pressure() (waiting int, aside int64) {
	b.mu.Lock()
	defer b.mu.Unlock()

	return b.small.waiting.Len() + b.large.waiting.Len(), b.aside
}

// settle ends the account of a stream.
func (b *fetchBudget) settle(small, large flowHalf) {
	b.mu.Lock()
	defer b.mu.Unlock()

	b.aside -= small.aside + large.aside
	b.refund(small.owed, large.owed)
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
