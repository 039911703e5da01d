package record

// A Record is one record of a batch. Its slices point into the payload, or into the Iterator's buffer when the payload was
// compressed, and are good until the Iterator's next Reset.
type Record struct {
	Offset Offset
	// TimestampMs is the leader's append time with LogAppendTime, else the record's own, in Unix milliseconds.
	TimestampMs int64
	// Key is nil when absent; absent and empty differ.
	Key []byte
	// Value is nil when absent, which is a tombstone in a compacted topic.
	Value []byte

	headers []byte
}

// HasHeaders reports whether the record has any.
func (r *Record) HasHeaders() bool { return len(r.headers) > 0 }

// Headers returns an iterator over the record's headers, in order. It allocates nothing.
func (r *Record) Headers() HeaderIterator { return HeaderIterator{rest: r.headers} }

// A HeaderIterator walks over the headers of one record.
type HeaderIterator struct {
	key, value, rest []byte
}

// Next moves to the next header, and reports whether there is one.
func (it *HeaderIterator) Next() bool {
	if len(it.rest) == 0 {
		return false
	}
	it.key, it.value, it.rest = splitHeader(it.rest)
	return true
}

// Key returns the header's key: not empty, valid UTF-8.
func (it *HeaderIterator) Key() []byte { return it.key }

// Value returns the header's value, nil when absent; absent and empty differ.
func (it *HeaderIterator) Value() []byte { return it.value }

// An Iterator walks over the records of one batch. The zero value is ready for Reset and makes a Codec of its own when it
// first meets a compressed payload. It may be reused, by one goroutine at a time; walking allocates nothing.
type Iterator struct {
	codec   *Codec
	scratch []byte // holds decompressed sets

	header Header
	set    []byte
	pos    int
	// index of the next record. Invariant: index <= header.RecordCount while err is nil.
	index int
	last  int64 // offset delta of the record before, -1 at first
	rec   Record
	raw   rawRecord // what rec was made from
	err   error
}

// NewIterator returns an Iterator that decompresses with codec.
func NewIterator(codec *Codec) *Iterator { return &Iterator{codec: codec} }

// Reset begins with the payload of another batch, whose checksum the caller has verified. A payload that cannot be
// decompressed shows in Err; Next is false then.
func (it *Iterator) Reset(h Header, payload []byte) {
	it.header, it.set, it.pos, it.index, it.last, it.err = h, payload, 0, 0, -1, nil
	it.rec = Record{}
	if cap(it.scratch) > scratchKept {
		it.scratch = nil
	}
	if h.Compression == CompressionNone {
		return
	}
	if it.codec == nil {
		it.codec = NewCodec()
	}
	it.set, it.err = it.codec.Decompress(it.scratch[:0], h.Compression, payload, MaxDecompressedSize)
	if it.err != nil {
		it.set = nil
		return
	}
	it.scratch = it.set
}

// Next moves to the next record, and reports whether there is one. After it was false, Err says whether that is the end.
func (it *Iterator) Next() bool {
	if it.err != nil || it.pos == len(it.set) {
		if it.err == nil && uint32(it.index) != it.header.RecordCount {
			it.err = corruptf(-1, "%d records, the header says %d", it.index, it.header.RecordCount)
		}
		return false
	}
	r := &it.raw
	next, f := r.decode(it.set, it.pos)
	if f != noFault {
		return it.fail(next, f.String())
	}
	delta := int64(it.index)
	if r.hasOffset {
		delta = int64(r.offset)
	}
	if delta <= it.last || delta > int64(it.header.LastOffsetDelta) {
		return it.fail(it.pos, "its offset is not above that of the record before, or beyond the batch's last")
	}
	it.rec = Record{
		Offset:      it.header.BaseOffset + Offset(delta),
		TimestampMs: it.header.BaseTimestampMs + r.delta,
		Key:         r.key,
		Value:       r.value,
		headers:     r.headers,
	}
	if it.header.TimestampType == LogAppendTime {
		it.rec.TimestampMs = it.header.AppendTimeMs
	}
	it.pos, it.last = next, delta
	it.index++
	return true
}

func (it *Iterator) fail(position int, what string) bool {
	it.err = &BatchError{Kind: ErrCorruptBatch, Record: it.index, Position: position, What: what}
	it.rec = Record{}
	return false
}

// Record returns the record that Next moved to.
func (it *Iterator) Record() Record { return it.rec }

// Current is Record without the copy: it is good until Next or Reset is called again.
func (it *Iterator) Current() *Record { return &it.rec }

// Err returns why Next ended early, or nil at the end of a sound batch.
func (it *Iterator) Err() error { return it.err }
