package client

import (
	"bytes"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/runnelmq/runnel/internal/record"
)

// recordOverhead is what a producer remembers of a record beside its bytes.
const recordOverhead = 48

// A stage is where a batch is on its way.
type stage uint8

const (
	stageOpen     stage = iota // takes records
	stageQueued                // complete, not sent, or refused and to be sent again
	stageInFlight              // given to the stream
	stageSettled               // has its outcome
)

// A batch is a group of records of one partition that are stored together.
// Its fields are guarded by the partition's mu, but for what is said otherwise.
type batch struct {
	part    *partition
	stage   stage
	builder *record.Builder // nil once encoded
	// reserved is how much of the builders' budget it has, while it is open.
	reserved int64
	entries  []entry
	cost     int64
	gen      *generation
	opened   time.Time
	// due is when the oldest record runs out of time.
	due    time.Time
	expiry *time.Timer
	linger *time.Timer
	// urgent batches do not linger.
	urgent bool
	// attempts counts refusals, for the pause before the next; retries, those
	// that made it be sent again.
	attempts, retries int
	// seq is the number of its first record, and epoch what it is counted in:
	// see numbering.
	seq, epoch int64
	// inDoubt is true once it was sent and no answer came that says what became
	// of it: it may be stored.
	inDoubt bool
	// misplaced and cut say that it was refused last for its number, or for what
	// its parts may be taken without.
	misplaced, cut bool
	// cuts is how many more times it may be cut in search of bad records, together
	// with what it was cut from; nil: maxCuts.
	cuts *int
	// lastErr is why it was refused, for the record's error when time is up.
	lastErr error

	// sized is size when it was last sent.
	sized int
	// sent is when it was given to a stream; guarded by the stream's mu.
	sent time.Time

	// encoded is set by the sender, once, before it is first sent: from when it
	// is in flight until it is given to the stream, builder and encoded are the
	// sender's. One reference is the batch's own.
	encoded mem.Buffer
	// header and payload are what is in it; payload is its end.
	header  record.Header
	payload int
}

// size returns the bytes of its records, before compression.
func (b *batch) size() int {
	if b.builder != nil {
		return b.builder.Size()
	}
	return b.sized
}

// settle takes the batch out of the game. It returns false when it was so
// already. The caller holds the partition's mu, and hands the result to the
// producer after releasing it.
func (b *batch) settle(err error) (settled, bool) {
	if b.stage == stageSettled {
		return settled{}, false
	}
	b.stage = stageSettled
	if b.expiry != nil {
		b.expiry.Stop()
	}
	if b.linger != nil {
		b.linger.Stop()
	}
	s := settled{
		topic: b.part.topic.name, partition: b.part.number,
		entries: b.entries, base: -1, err: err, cost: b.cost, gen: b.gen,
		opened: b.opened, bytes: b.size(), retries: b.retries,
	}
	if b.encoded != nil {
		s.wire = b.encoded.Len()
	}
	b.entries = nil
	return s, true
}

// drop gives up the batch's own hold on its bytes. A stream that is sending
// them has another.
func (b *batch) drop(pool *builderPool) {
	b.complete(pool)
	if b.encoded != nil {
		b.encoded.Free()
		b.encoded = nil
	}
	if b.builder != nil {
		pool.put(b.builder)
		b.builder = nil
	}
}

// complete gives up what b has reserved: it takes no records any more.
func (b *batch) complete(pool *builderPool) {
	pool.reserved.Add(-b.reserved)
	b.reserved = 0
}

// A builderPool reuses builders and with them their buffers.
type builderPool struct {
	pool sync.Pool
	// codec compresses. Only the sender finishes batches, one at a time.
	codec *record.Codec
	// budget bounds reserved, the bytes that open batches have room for: without
	// it each of very many would hold a whole batch's worth for one record.
	budget   int64
	reserved atomic.Int64
}

// smallBuilder is how many bytes a builder may take without a reservation.
const smallBuilder = 2 << 10

// get returns a builder with room for about want bytes, or for as many as may be
// reserved, and what was. That is to be released when the batch is complete.
func (p *builderPool) get(want int) (b *record.Builder, reserved int64) {
	if b, ok := p.pool.Get().(*record.Builder); ok {
		// It is there anyway, and leaves less to reserve for others.
		reserved = int64(b.Cap())
		p.reserved.Add(reserved)
		return b, reserved
	}
	b = record.NewBuilder(p.codec, record.Limits{MaxRecordBytes: record.MaxRecordSize, MaxRecords: maxBatchRecords})
	if want > smallBuilder {
		reserved = p.reserve(int64(want))
		b.Grow(int(reserved))
	}
	return b, reserved
}

// reserve takes n bytes of the budget, or the part of it that one batch may have:
// so the first ones get what they want, and a thousand share the rest.
func (p *builderPool) reserve(n int64) int64 {
	for {
		used := p.reserved.Load()
		n = min(n, max(p.budget-used, 0)/8)
		if p.reserved.CompareAndSwap(used, used+n) {
			return n
		}
	}
}

func (p *builderPool) put(b *record.Builder) {
	b.Reset()
	p.pool.Put(b)
}

// smallMessage is the size up to which a message is copied, so that its builder
// is free at once. gRPC does not count references of buffers that small.
const smallMessage = 4 << 10

// encode serializes b, which keeps one reference to the result. The builder
// goes back to the pool when the last one is freed.
func (p *builderPool) encode(b *batch, id *identity, c record.Compression, level int) error {
	builder := b.builder
	b.builder = nil
	out, err := builder.Finish(c, level)
	if err != nil {
		p.put(builder)
		return err
	}
	if id != nil {
		id.number(&out.Header, b)
	}
	msg := out.Message()
	b.header, b.payload = out.Header, len(out.Payload())
	if len(msg) <= smallMessage {
		b.encoded = newBuffer(bytes.Clone(msg))
		p.put(builder)
		return nil
	}
	b.encoded = mem.NewBuffer(&msg, &returner{pool: p, builder: builder})
	return nil
}

// newBuffer returns a buffer of bytes that nobody else has. They go to the
// garbage collector.
func newBuffer(b []byte) mem.Buffer { return mem.SliceBuffer(b) }

// A returner is the pool of one buffer: it gives the builder back that the
// buffer is part of.
type returner struct {
	pool    *builderPool
	builder *record.Builder
}

// Get implements mem.BufferPool. It is not used: gRPC asks the pool of a
// buffer only to take it back.
func (*returner) Get(n int) *[]byte {
	b := make([]byte, n)
	return &b
}

// Put implements mem.BufferPool.
func (r *returner) Put(*[]byte) { r.pool.put(r.builder) }

// An entryPool reuses the lists of what is remembered of records.
type entryPool struct{ pool sync.Pool }

func (p *entryPool) get() []entry {
	if e, ok := p.pool.Get().(*[]entry); ok {
		return (*e)[:0]
	}
	return nil
}

func (p *entryPool) put(e []entry) {
	if cap(e) < 8 {
		return // not worth it
	}
	clear(e[:cap(e)]) // callbacks hold on to things
	e = e[:0]
	p.pool.Put(&e)
}
