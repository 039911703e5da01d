package rpc

import (
	"sync"
	"time"

	"github.com/runnelmq/runnel/internal/wire"
)

// A fetchFlow counts the buffers of one stream that are on their way, and
// settles with the budget. gRPC gives buffers back when the transport has
// written them, and never when the connection died; so settle is what counts
// in the end.
type fetchFlow struct {
	pool   *wire.Pool
	budget *fetchBudget
	// drained receives when buffers came back.
	drained chan struct{}

	// mu guards the fields below; the budget's may be taken under it
	mu sync.Mutex

	underway int // bytes handed to the transport and not back yet
	// small and large are what the stream has of each half of the budget.
	small, large flowHalf
	settled      bool
	// moved is when the transport last gave a payload back, or got one while it
	// had none.
	moved time.Time
	// asideAt is when to ask again for payloads to be set aside; zero: not asked.
	asideAt time.Time
}

// A flowHalf is what a stream has of one half of the budget. Payloads are owed
// or set aside, whatever else there is is owed: aside <= out <= owed + aside.
type flowHalf struct {
	owed  int64 // bytes that count against the half
	aside int64 // bytes that were set aside
	out   int64 // bytes of payloads that the transport has
}

// stays is what the transport has and what is not set aside.
func (h *flowHalf) stays() int64 { return h.out - h.aside }

// shift notes that all that the transport has is set aside.
func (h *flowHalf) shift() {
	h.owed -= h.stays()
	h.aside = h.out
}

func newFetchFlow(pool *wire.Pool, budget *fetchBudget) *fetchFlow {
	return &fetchFlow{pool: pool, budget: budget, drained: make(chan struct{}, 1)}
}

// half returns the half that bytes taken as one count in.
func (f *fetchFlow) half(bytes int64) *flowHalf {
	if bytes <= firstResponse {
		return &f.small
	}
	return &f.large
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

	f.half(bytes).owed += bytes
}

// gave gives bytes back that were taken as one and are in no payload; nothing
// after settle.
func (f *fetchFlow) gave(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.settled {
		return
	}
	f.half(bytes).owed -= bytes
	f.budget.release(bytes, 0)
}

// wrote gives a payload's bytes back. Those that were set aside come back first,
// whichever payloads they were.
func (f *fetchFlow) wrote(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.settled {
		return
	}
	f.moved, f.asideAt = time.Now(), time.Time{}
	h := f.half(bytes)
	aside := min(h.aside, bytes)
	h.out -= bytes
	h.aside -= aside
	h.owed -= bytes - aside
	f.budget.release(bytes, aside)
}

// stuckAt returns when setAside has something to do; zero: never, as it is.
func (f *fetchFlow) stuckAt() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()

	switch {
	case f.small.stays()+f.large.stays() == 0:
		return time.Time{}
	case !f.asideAt.IsZero():
		return f.asideAt
	}
	return f.moved.Add(stuckAfter)
}

// setAside lets others have the stream's share of the budget if the transport
// got nowhere with its payloads for stuckAfter. When too much is set aside, it
// is tried again later.
func (f *fetchFlow) setAside(now time.Time) {
	if at := f.stuckAt(); at.IsZero() || now.Before(at) {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()

	small, large := f.small.stays(), f.large.stays()
	if f.settled || now.Before(f.moved.Add(stuckAfter)) {
		return // it moved just now
	}
	if !f.budget.setAside(small, large) {
		f.asideAt = now.Add(stuckAfter)
		return
	}
	f.small.shift()
	f.large.shift()
	f.asideAt = time.Time{}
}

// settle gives back all that is still owed or set aside. Buffers that return
// later find the account closed.
func (f *fetchFlow) settle() {
	f.mu.Lock()
	defer f.mu.Unlock()

	f.budget.settle(f.small, f.large)
	f.small, f.large, f.settled = flowHalf{}, flowHalf{}, true
}

// payloads is the pool of a stream's payload buffers, which are paid for.
type payloads struct {
	flow *fetchFlow
}

// Get implements mem.BufferPool. The bytes were taken from the budget before.
func (p payloads) Get(length int) *[]byte { return p.flow.pool.Get(length) }

// Put implements mem.BufferPool: a payload was written.
func (p payloads) Put(b *[]byte) {
	p.flow.wrote(int64(cap(*b)))
	p.flow.arrived(cap(*b))
	p.flow.pool.Put(b)
}

// sending notes that a payload buffer is handed to the transport.
func (p payloads) sending(b *[]byte) {
	f := p.flow
	f.mu.Lock()
	defer f.mu.Unlock()

	if f.small.out+f.large.out == 0 {
		f.moved = time.Now()
	}
	f.half(int64(cap(*b))).out += int64(cap(*b))
	f.underway += cap(*b)
}
