package record

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// A Batch is a validated payload with room before it for a frame's prefix. It points into the buffer it was made from:
// Seal and Message write into the PrefixMax bytes before the payload, so whatever else the buffer held there must have been
// read by then, and only one batch of a buffer can be used at a time.
type Batch struct {
	// Header has what is known before the append: the payload's CRC, counts, timestamps, compression and the producer's
	// fields. Seal fills in the rest.
	Header

	// MinTimestampMs is the smallest record timestamp, in Unix milliseconds.
	MinTimestampMs int64

	buf []byte
	// Invariant: PrefixMax <= start <= end <= len(buf).
	start, end int
}

// Payload returns the payload's content, compressed when it is compressed.
func (b *Batch) Payload() []byte { return b.buf[b.start:b.end:b.end] }

// FrameSize returns how many bytes Seal returns.
func (b *Batch) FrameSize() int { return frameSize(b.end - b.start) }

// frameSize is the size of a frame whose payload has the given size.
func frameSize(payload int) int {
	body := HeaderSize + payloadTagSize + lengthSize(payload) + payload
	return 1 + lengthSize(body) + body
}

// Seal fills in the leader's fields, computes the header CRC and returns the whole frame, in place: the payload is not
// copied. It may be called again, as after a failed append.
func (b *Batch) Seal(base Offset, epoch Epoch, appendTimeMs int64, tt TimestampType) []byte {
	b.Format = Format
	b.BaseOffset = base
	b.LeaderEpoch = epoch
	b.AppendTimeMs = appendTimeMs
	b.TimestampType = tt
	size := b.end - b.start
	first := b.end - b.FrameSize()
	if first < 0 || !b.plausible(size) || !tt.Valid() || !b.Compression.Valid() {
		panic(fmt.Sprintf("record: sealing an impossible batch: payload at %d, %+v", b.start, b.Header))
	}
	putPrefix(b.buf[first:b.start], &b.Header, size)
	return b.buf[first:b.end:b.end]
}

// putPrefix writes into b, which has the size for it, what comes before a payload of the given size, and sets h.HeaderCRC.
func putPrefix(b []byte, h *Header, size int) {
	b[0] = outerTag
	header := b[1+putLength(b[1:], HeaderSize+payloadTagSize+lengthSize(size)+size):]
	putHeader(header, h)
	putPayloadPrefix(header[HeaderSize:], h.Compression, size)
	h.HeaderCRC = crc32.Checksum(header[coveredFrom:], castagnoli)
	binary.LittleEndian.PutUint32(header[posHeaderCRC:], h.HeaderCRC)
}

// putPayloadPrefix writes the payload's tag and length.
func putPayloadPrefix(b []byte, c Compression, size int) {
	b[0], b[1] = payloadTag(c), payloadTagHigh
	putLength(b[payloadTagSize:], size)
}

// messageMax is the most bytes Message needs before the payload.
const messageMax = 2 + 5 + 5 + 5 + 9 + 9 + 2 + 2 + 9 + 10 + 10 + payloadTagSize + lengthMax

// appendMessagePrefix appends what comes before the payload in the message a producer sends.
func (b *Batch) appendMessagePrefix(dst []byte) []byte {
	dst = append(dst, 0x10, Format, 0x1D)
	dst = binary.LittleEndian.AppendUint32(dst, b.PayloadCRC)
	dst = binary.LittleEndian.AppendUint32(append(dst, 0x2D), b.LastOffsetDelta)
	dst = binary.LittleEndian.AppendUint32(append(dst, 0x35), b.RecordCount)
	dst = binary.LittleEndian.AppendUint64(append(dst, 0x41), uint64(b.BaseTimestampMs))
	dst = binary.LittleEndian.AppendUint64(append(dst, 0x49), uint64(b.MaxTimestampMs))
	dst = append(dst, 0x58, byte(b.Compression))
	if b.Transactional {
		dst = append(dst, 0x68, 1)
	}
	if b.ProducerID != 0 {
		dst = binary.LittleEndian.AppendUint64(append(dst, 0x79), uint64(b.ProducerID))
		dst = binary.LittleEndian.AppendUint64(append(dst, 0x81, 0x01), uint64(b.ProducerEpoch))
		dst = binary.LittleEndian.AppendUint64(append(dst, 0x89, 0x01), uint64(b.BaseSequence))
	}
	size := b.end - b.start
	var rest [payloadTagSize + lengthMax]byte
	putPayloadPrefix(rest[:], b.Compression, size)
	return append(dst, rest[:payloadTagSize+lengthSize(size)]...)
}

// AppendMessage appends the serialized RecordBatch message that a producer sends, without a tag or length of its own.
func (b *Batch) AppendMessage(dst []byte) []byte {
	return append(b.appendMessagePrefix(dst), b.Payload()...)
}

// Message returns what AppendMessage appends, in place: the payload is not copied.
func (b *Batch) Message() []byte {
	var prefix [messageMax]byte
	p := b.appendMessagePrefix(prefix[:0])
	first := b.start - len(p)
	copy(b.buf[first:], p)
	return b.buf[first:b.end:b.end]
}

// AppendMessage appends what [Batch.AppendMessage] does for a batch of h and a payload that was read before, such as to send
// it with other producer's fields. The payload is copied.
func AppendMessage(dst []byte, h Header, payload []byte) []byte {
	b := Batch{Header: h, buf: payload, end: len(payload)}
	return b.AppendMessage(dst)
}
