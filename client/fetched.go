package client

import (
	"fmt"
	"iter"
	"strconv"
	"sync/atomic"
	"time"
	"unsafe"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// A Batch is records of one partition, in order, as [Reader.Poll] returns them.
// It is for one goroutine at a time.
type Batch struct {
	r       *Reader
	a       *assigned
	lane    *fetchLane // that it came over
	tag     uint64
	fetched wire.FetchedBatches
	buf     *[]byte // holds all bytes
	size    int64   // what it costs of the credit
	err     error   // in the queue: the partition's error instead of records

	// Records outside [from, stop) were not asked for. stop is noOffset for none.
	from, stop int64
	// next is where to go on after it.
	next int64

	frames  [][]byte
	frame   int   // index of the next one
	until   int64 // the offset after the present one
	it      record.Iterator
	epoch   int64
	rec     Record
	headers []Header
	sets    [][]byte // decompressed sets in use
	bad     error
	again   bool  // what is bad is to be read once more, and nobody need know
	last    int64 // epoch of the last record; noOffset: not known
	// pos is the offset after the record that Next moved to.
	pos atomic.Int64
}

// Topic returns the name of the topic.
func (b *Batch) Topic() string { return b.a.topic }

// Partition returns the number of the partition.
func (b *Batch) Partition() int32 { return b.a.partition }

// NextOffset returns where to go on after the batch. It may be beyond the
// offset of the last record plus one.
func (b *Batch) NextOffset() int64 { return b.next }

// HighWatermark returns the first offset that was not committed when the batch
// was sent: how far behind the end the reader is.
func (b *Batch) HighWatermark() int64 { return b.fetched.HighWatermark }

// Size returns the bytes of the batch as it was sent.
func (b *Batch) Size() int { return int(b.size) }

// Next moves to the next record, and reports whether there is one. When it is
// false, Err says whether that is the end.
func (b *Batch) Next() bool {
	for b.bad == nil {
		if b.a.lost.Load() {
			b.bad = ErrPartitionLost
			return false
		}
		if b.it.Next() {
			rec := b.it.Record()
			offset := int64(rec.Offset)
			if offset < b.from {
				continue
			}
			if b.stop != noOffset && offset >= b.stop {
				return false
			}
			b.fill(&rec)
			b.pos.Store(offset + 1)
			return true
		}
		if err := b.it.Err(); err != nil {
			b.damaged(b.until, err)
			return false
		}
		if b.frame == len(b.frames) {
			return false
		}
		b.open(b.frames[b.frame])
		b.frame++
	}
	return false
}

// Record returns the record that Next moved to. It is good until the next call
// of [Reader.Poll].
func (b *Batch) Record() Record { return b.rec }

// All walks over the records that Next has not moved to yet.
func (b *Batch) All() iter.Seq[Record] {
	return func(yield func(Record) bool) {
		for b.Next() {
			if !yield(b.rec) {
				return
			}
		}
	}
}

// Err returns why Next ended early: the bytes are not what was stored, although
// they were read twice. The partition is not read on. The error is both
// [ErrCorruptData] and an [Error] that is [ErrLogCorrupt], whose Metadata say at
// which offset, and where sound records go on (nextOffset). A broker does not look
// into what it sends, and does so when it is asked for the same place again: the
// batch that meets damage first only ends there, and the Reader asks by itself. So
// a broker with a damaged copy is left for one with a sound copy.
func (b *Batch) Err() error {
	if b.bad == nil || b.again {
		return nil
	}
	return &PartitionError{Topic: b.a.topic, Partition: b.a.partition, Err: b.bad}
}

// damaged ends the batch: what comes before the offset next cannot be used.
func (b *Batch) damaged(next int64, err error) {
	at := max(b.pos.Load(), b.from)
	e := localError(runnelv1.ErrorReason_ERROR_REASON_LOG_CORRUPT,
		"offset %d: %v, also when it was asked for again; seek there to try once more, or to %d to go on without", at, err, next)
	e.Code = codes.DataLoss
	e.Metadata = map[string]string{
		"topic": b.a.topic, "partition": strconv.FormatInt(int64(b.a.partition), 10),
		"offset": strconv.FormatInt(at, 10), "nextOffset": strconv.FormatInt(next, 10),
	}
	b.bad = fmt.Errorf("%w: %w", ErrCorruptData, e)
	if b.a.doubted.Swap(at+1) != at+1 {
		b.again, b.next = true, at
	}
}

// following returns where to go on behind a frame whose header cannot be
// believed: at the next sound one, else behind the batch.
func (b *Batch) following() int64 {
	for _, frame := range b.frames[b.frame+1:] {
		if f, v := record.ParseFrame(frame, int64(len(frame)), record.MaxFrameSize); v == record.OK {
			return int64(f.Header.BaseOffset)
		}
	}
	return b.next
}

// open begins with the records of another frame, after verifying it.
func (b *Batch) open(frame []byte) {
	f, v := record.CheckFrame(frame, record.MaxFrameSize)
	if v != record.OK {
		next := b.following()
		if v == record.CorruptPayload {
			next = int64(f.Header.NextOffset())
		}
		b.damaged(next, fmt.Errorf("a batch has a %v", v))
		return
	}
	h, payload := f.Header, f.Payload(frame)
	b.until = int64(h.NextOffset())
	b.epoch = int64(h.LeaderEpoch)
	if h.Compression != record.CompressionNone {
		set, err := b.r.codec.Decompress(b.r.scratch(4*len(payload)), h.Compression, payload, record.DefaultMaxDecompressedBytes)
		if err != nil {
			b.damaged(b.until, err)
			return
		}
		b.sets = append(b.sets, set)
		h.Compression, payload = record.CompressionNone, set
	}
	b.it.Reset(h, payload)
}

// fill makes rec the present record, without copying what it points to.
func (b *Batch) fill(rec *record.Record) {
	b.rec = Record{
		Topic: b.a.topic, Partition: b.a.partition, Offset: int64(rec.Offset),
		Timestamp: time.UnixMilli(rec.TimestampMs), Key: rec.Key, Value: rec.Value, LeaderEpoch: b.epoch,
	}
	if !rec.HasHeaders() {
		return
	}
	first := len(b.headers)
	for h := rec.Headers(); h.Next(); {
		b.headers = append(b.headers, Header{Key: text(h.Key()), Value: h.Value()})
	}
	b.rec.Headers = b.headers[first:len(b.headers):len(b.headers)]
}

// text is b as a string that lives no longer than b.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// newBatch takes a response in. It returns the epoch of its last batch, noOffset
// without one.
func (r *Reader) newBatch(buf *[]byte, f wire.FetchedBatches) (b *Batch, epoch int64) {
	b, _ = r.batches.Get().(*Batch)
	if b == nil {
		b = &Batch{}
	}
	b.r, b.fetched, b.buf = r, f, buf
	epoch = noOffset
	if f.Batches == 0 {
		return b, epoch
	}
	b.size = int64(len(*buf))
	f.Frames(func(frame []byte) bool {
		b.frames = append(b.frames, frame)
		return true
	})
	if frame, v := record.ParseFrame(b.frames[len(b.frames)-1], int64(len(b.frames[len(b.frames)-1])), record.MaxFrameSize); v == record.OK {
		epoch = int64(frame.Header.LeaderEpoch)
	}
	b.last = epoch
	return b, epoch
}

// releaseLocked gives back what a batch holds.
func (r *Reader) releaseLocked(b *Batch) {
	l := b.lane
	l.queued -= b.size
	l.credit += b.size
	if l.credit >= int64(l.share/creditShare) {
		poke(l.wake)
	}
	r.recycle(b)
}

func (r *Reader) recycle(b *Batch) {
	if b.buf != nil {
		r.c.pool.Put(b.buf)
	}
	for _, set := range b.sets {
		r.c.pool.Put(&set)
	}
	clear(b.frames)
	clear(b.headers)
	clear(b.sets)
	frames, headers, sets := b.frames[:0], b.headers[:0], b.sets[:0]
	*b = Batch{frames: frames, headers: headers, sets: sets}
	r.batches.Put(b)
}

// scratch returns an empty buffer with room for about n bytes.
func (r *Reader) scratch(n int) []byte { return (*r.c.pool.Get(min(n, wire.MaxPooled)))[:0] }
