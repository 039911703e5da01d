package router

import (
	"time"

	"google.golang.org/grpc/mem"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/wire"
)

// A Result is what became of a write.
type Result struct {
	Appended partition.Appended
	// Stored is true when Appended is known, also when it is uncertain whether
	// that stays.
	Stored bool
	Err    error
}

// A writeState says how far a write has come.
type writeState uint8

const (
	writeWaiting  writeState = iota // for a leader, or for its turn
	writeQueued                     // for the link to take it
	writeHanded                     // to gRPC: from here on its fate is another broker's
	writeLocal                      // to the partition of this broker
	writeFinished                   // its outcome was told
)

// A Write is one batch for one partition. Fields that are set before Push do
// not change.
type Write struct {
	// Buf is a buffer of the router's pool, with room for a batch header before
	// Start; [Start, End) is a serialized RecordBatch. It is given up with Push.
	Buf        *[]byte
	Start, End int
	Acks       int32
	Timeout    time.Duration
	Deadline   time.Time
	// Answered is true when nobody waits for the outcome any more: acks NONE.
	Answered bool
	// Done hears the outcome, once, without locks.
	Done func(Result)

	p    *Pipeline
	data mem.Buffer // over Buf; the write holds one reference until it is finished

	// The fields below are guarded by the pipeline's mu.

	state   writeState
	ordinal uint64 // in the pipeline
	number  uint64 // the pipeline's when it was sent
	at      view   // whom it was sent to
	cause   error  // why the last try failed
	late    bool   // its time passed while it was being appended here
	loose   bool   // its bytes are on the router's own account
	cancel  func() bool
	got     partition.Appended // when it was stored here
}

// Size is what a write counts for, in bytes.
func (w *Write) Size() int64 { return int64(w.End - w.Start) }

func (w *Write) begin(p *Pipeline, pool *wire.Pool) {
	w.p = p
	w.data = mem.NewBuffer(w.Buf, pool)
}

// Expire gives up on a write whose time has passed. Its outcome is told before
// Expire returns, or is on its way.
func (w *Write) Expire() { w.p.expire(w) }

// Stored tells, for one that a Local took, where it was stored.
func (w *Write) Stored(got partition.Appended) { w.p.stored(w, got) }

// Await tells how to stop waiting for the commit of one that was stored.
func (w *Write) Await(cancel func() bool) { w.p.await(w, cancel) }

// Committed tells what became of a write that was stored here.
func (w *Write) Committed(err error) { w.p.committed(w, err) }
