package record

// A Rewriter makes batches that keep only some of another one's records, as compaction does. Offsets, epochs, append times
// and the producer's fields stay what they were: the batches cover the same offsets as the first, also when nothing is left
// in them. It owns its buffers and reuses them, and is for one goroutine at a time.
type Rewriter struct {
	codec            *Codec
	maxFrame, maxSet int
	it               Iterator

	header  Header
	payload []byte
	kept    []keptRecord
	set     []byte
	packed  []byte
}

// A keptRecord points into the iterator's set.
type keptRecord struct {
	body      []byte // the serialized Record without its offset_delta
	delta     uint32
	timestamp int64 // as the producer gave it
}

// NewRewriter returns a Rewriter that decompresses and compresses with codec.
func NewRewriter(codec *Codec) *Rewriter {
	return &Rewriter{codec: codec, maxFrame: MaxFrameSize, maxSet: DefaultMaxDecompressedBytes, it: Iterator{codec: codec}}
}

// Filter asks keep for each record of a batch whose payload's checksum the caller has verified, and returns how many stay.
// The record is good during the call only. The payload must stay as it is until AppendFrames has returned. Errors are those
// of Iterator.Err.
func (r *Rewriter) Filter(h Header, payload []byte, keep func(*Record) bool) (kept int, err error) {
	r.header, r.payload, r.kept = h, payload, r.kept[:0]
	r.it.Reset(h, payload)
	for r.it.Next() {
		if !keep(&r.it.rec) {
			continue
		}
		raw := &r.it.raw
		end := r.it.pos
		body := r.it.set[end-raw.size : end : end]
		if raw.hasOffset {
			// The last field: see appendRecord and the strict profile.
			body = body[:len(body)-1-uvarintSize(uint64(raw.offset))]
		}
		r.kept = append(r.kept, keptRecord{
			body: body, delta: uint32(r.it.rec.Offset - h.BaseOffset), timestamp: h.BaseTimestampMs + raw.delta,
		})
	}
	return len(r.kept), r.it.Err()
}

// AppendFrames appends to dst, as a whole frame, the batch that the last Filter left, with the given delete horizon. It is
// compressed as the first one was, unless that makes it no smaller. A batch that would be larger than a frame may be, or than
// readers decompress, because its records now say their offsets, becomes two or more that cover the offsets together.
func (r *Rewriter) AppendFrames(dst []byte, deleteHorizonMs int64) ([]byte, error) {
	r.header.DeleteHorizonMs = deleteHorizonMs
	if len(r.kept) == int(r.header.RecordCount) {
		h := r.header
		return appendFrame(dst, &h, r.payload), nil
	}
	return r.appendSpan(dst, r.kept, 0, r.header.LastOffsetDelta)
}

// appendSpan appends the batch of the kept records, as one that covers the offset deltas first to last.
func (r *Rewriter) appendSpan(dst []byte, kept []keptRecord, first, last uint32) ([]byte, error) {
	h := r.header
	h.BaseOffset += Offset(first)
	h.LastOffsetDelta = last - first
	h.RecordCount = uint32(len(kept))
	if h.ProducerID != 0 {
		h.BaseSequence += Sequence(first)
	}
	h.MaxTimestampMs = h.BaseTimestampMs
	r.set = r.set[:0]
	for i, k := range kept {
		if i == 0 || k.timestamp > h.MaxTimestampMs {
			h.MaxTimestampMs = k.timestamp
		}
		r.set = appendKept(r.set, k.body, k.delta-first, uint32(i))
	}
	payload, err := r.compress(&h)
	if err != nil {
		return dst, err
	}
	tooLarge := frameSize(len(payload)) > r.maxFrame || (h.Compression != CompressionNone && len(r.set) > r.maxSet)
	if tooLarge && len(kept) > 1 {
		half := len(kept) / 2
		middle := kept[half].delta
		if dst, err = r.appendSpan(dst, kept[:half], first, middle-1); err != nil {
			return dst, err
		}
		return r.appendSpan(dst, kept[half:], middle, last)
	}
	h.PayloadCRC = PayloadCRC(payload)
	return appendFrame(dst, &h, payload), nil
}

// compress returns the payload of r.set, and says in h how it is compressed.
func (r *Rewriter) compress(h *Header) ([]byte, error) {
	if h.Compression == CompressionNone || len(r.set) == 0 {
		h.Compression = CompressionNone
		return r.set, nil
	}
	packed, err := r.codec.Compress(r.packed[:0], h.Compression, 0, r.set)
	if err != nil {
		return nil, err
	}
	r.packed = packed
	if len(packed) >= len(r.set) {
		h.Compression = CompressionNone
		return r.set, nil
	}
	return packed, nil
}

// appendKept appends a record to a set in which it is the one at index.
func appendKept(dst, body []byte, delta, index uint32) []byte {
	size := len(body)
	if delta != index {
		size += 1 + uvarintSize(uint64(delta))
	}
	dst = append(appendUvarint(append(dst, tagRecord), uint64(size)), body...)
	if delta != index {
		dst = appendUvarint(append(dst, tagOffset), uint64(delta))
	}
	return dst
}

// appendFrame appends the frame of a header and its payload.
func appendFrame(dst []byte, h *Header, payload []byte) []byte {
	var prefix [PrefixMax]byte
	n := frameSize(len(payload)) - len(payload)
	putPrefix(prefix[:n], h, len(payload))
	return append(append(dst, prefix[:n]...), payload...)
}
