package client

import "time"

// Hooks are called by a client as it works, for metrics and logs. Each may be
// nil. They are called by the client's own goroutines, several at a time, and
// must not block, nor call the client.
type Hooks struct {
	// Produced is called when a batch has its outcome, after the callbacks of
	// its records.
	Produced func(BatchInfo)
	// Fetched is called when records of a partition have arrived.
	Fetched func(FetchInfo)
	// Proxied is called when a leader can't be reached at the address that it
	// advertises, and is reached through the brokers that the client was made
	// with instead: that costs a hop. Direct is called when it can be again.
	Proxied func(addr string, why error)
	// Direct ends what Proxied began.
	Direct func(addr string)
	// Broken is called when a stream of a Producer or Reader has ended without
	// being asked to; they open another by themselves. addr is empty for the
	// brokers that the client was made with.
	Broken func(addr string, why error)
}

// A BatchInfo is about a batch that a Producer wrote, or failed to write.
type BatchInfo struct {
	// Topic and Partition say where.
	Topic     string
	Partition int32
	// Records is how many.
	Records int
	// Bytes is their size before compression, WireBytes after; 0 when it was
	// never sent.
	Bytes, WireBytes int
	// Age is the time since the batch was begun.
	Age time.Duration
	// Retries is how often it was sent again.
	Retries int
	// Duplicate is true when the broker had it already: an earlier answer was lost.
	Duplicate bool
	// Err is nil when it was acknowledged; see [Result.Outcome].
	Err error
}

// A FetchInfo is about one answer that a Reader got.
type FetchInfo struct {
	// Topic and Partition say from where.
	Topic     string
	Partition int32
	// Bytes is the size of the answer.
	Bytes int
	// Lag is how many offsets are committed beyond the answer.
	Lag int64
}

func (h *Hooks) proxied(addr string, why error) {
	if h.Proxied != nil {
		h.Proxied(addr, why)
	}
}

func (h *Hooks) direct(addr string) {
	if h.Direct != nil {
		h.Direct(addr)
	}
}

func (h *Hooks) broken(p place, why error) {
	if h.Broken != nil && why != nil {
		h.Broken(string(p), why)
	}
}
