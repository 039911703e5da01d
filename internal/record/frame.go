package record

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
)

// A Verdict is what the bytes at a place in a log turned out to be.
type Verdict uint8

// The verdicts. Only OK, CorruptPayload and CorruptEnvelope tell where the next frame begins: Frame.Size after this one.
const (
	// OK is a frame whose header is right. ParseFrame has not looked at its payload.
	OK Verdict = iota
	// End is a file that ends right here.
	End
	// NeedMore says that the caller passed less than min(PrefixMax, remaining) bytes.
	NeedMore
	// ZeroFill is a zero byte where a frame should begin. At or above the recovery point the log may be cut here; below it
	// is corruption.
	ZeroFill
	// Torn is a file that ends inside a frame while all that is seen of it is right. As ZeroFill, it may be cut only at or
	// above the recovery point.
	Torn
	// CorruptHeader is a frame that cannot be trusted to say its size: the next one is to be found from the index only.
	CorruptHeader
	// CorruptPayload is a frame with a right header and a payload that does not match it. Only CheckFrame finds it.
	CorruptPayload
	// CorruptEnvelope is a right header behind a damaged outer tag or length. If a frame with a right header, or the end
	// of the file, follows at Size, then Frame.AppendEnvelope has the bytes that belong at its start.
	CorruptEnvelope
	// UnknownFormat is a frame of a later layout: refuse the partition, never truncate or repair it.
	UnknownFormat
)

// String returns the verdict in lower-case words.
func (v Verdict) String() string {
	switch v {
	case OK:
		return "ok"
	case End:
		return "end"
	case NeedMore:
		return "need more"
	case ZeroFill:
		return "zero fill"
	case Torn:
		return "torn"
	case CorruptHeader:
		return "corrupt header"
	case CorruptPayload:
		return "corrupt payload"
	case CorruptEnvelope:
		return "corrupt envelope"
	case UnknownFormat:
		return "unknown format"
	default:
		return "unknown verdict"
	}
}

// A Frame is one stored batch with its outer tag and length. Positions count from its first byte.
type Frame struct {
	Header Header
	// Size is the whole frame's, in bytes.
	Size int
	// PayloadStart and PayloadEnd bound the payload's content. Invariant: PayloadEnd == Size.
	PayloadStart, PayloadEnd int
}

// Payload returns the payload's content in b, which holds the whole frame.
func (f *Frame) Payload(b []byte) []byte { return b[f.PayloadStart:f.PayloadEnd:f.PayloadEnd] }

// AppendEnvelope appends the outer tag and length the frame must begin with.
func (f *Frame) AppendEnvelope(dst []byte) []byte {
	body := f.bodySize()
	var b [lengthMax]byte
	n := putLength(b[:], body)
	return append(append(dst, outerTag), b[:n]...)
}

// bodySize is the size of the serialized RecordBatch.
func (f *Frame) bodySize() int { return HeaderSize + f.prefixRest() + f.PayloadEnd - f.PayloadStart }

// prefixRest is the size of the payload's tag and length.
func (f *Frame) prefixRest() int { return payloadTagSize + lengthSize(f.PayloadEnd-f.PayloadStart) }

// ParseFrame judges the frame that should begin at b[0], in constant time and without its payload. It needs the first
// min(PrefixMax, remaining) bytes of it; remaining counts from b[0] to the end of the file, and maxFrame is MaxFrameSize but
// in tests. The Frame is meaningful with the verdicts OK, Torn when the header was complete (Size > 0), and CorruptEnvelope.
//
// Whether the batch is in its place (its base offset not below the expected one, its leader epoch not below the last one's)
// is the caller's to judge.
func ParseFrame(b []byte, remaining int64, maxFrame int) (Frame, Verdict) {
	if remaining <= 0 {
		return Frame{}, End
	}
	if int64(len(b)) > remaining {
		b = b[:remaining]
	}
	if len(b) < PrefixMax && int64(len(b)) < remaining {
		return Frame{}, NeedMore
	}
	if b[0] == 0 {
		return Frame{}, ZeroFill
	}
	body, n := length(b[1:])
	if n <= 0 {
		if n == 0 && b[0] == outerTag {
			return Frame{}, Torn
		}
		return repairedFrame(b, remaining, maxFrame)
	}
	header := b[1+n:]
	if unknownFormat(header) {
		return Frame{}, UnknownFormat
	}
	f, ok := headerAt(b, 1+n, maxFrame)
	switch {
	case !ok && b[0] == outerTag && tornHeader(header, body, 1+n, remaining, maxFrame):
		return Frame{}, Torn
	case !ok:
		return repairedFrame(b, remaining, maxFrame)
	case b[0] == outerTag && body == f.bodySize():
		if remaining < int64(f.Size) {
			return f, Torn
		}
		return f, OK
	case remaining < int64(f.Size):
		return Frame{}, CorruptHeader
	default:
		return f, CorruptEnvelope
	}
}

// CheckFrame judges the whole frame that should begin at b[0], payload included, where b ends with the file or with what
// was sent. It never returns NeedMore.
func CheckFrame(b []byte, maxFrame int) (Frame, Verdict) {
	f, v := ParseFrame(b, int64(len(b)), maxFrame)
	if (v == OK || v == CorruptEnvelope) && PayloadCRC(f.Payload(b)) != f.Header.PayloadCRC {
		if v == CorruptEnvelope {
			return Frame{}, CorruptHeader
		}
		return f, CorruptPayload
	}
	return f, v
}

// PayloadCRC returns the checksum of a payload's content.
func PayloadCRC(payload []byte) uint32 { return crc32.Checksum(payload, castagnoli) }

// VerifyPayload checks a payload's content against its header. The error is ErrCorruptBatch.
func VerifyPayload(h Header, payload []byte) error {
	if got := PayloadCRC(payload); got != h.PayloadCRC {
		return corruptf(-1, "the payload at offset %d has CRC32C %08x, its header says %08x", h.BaseOffset, got, h.PayloadCRC)
	}
	return nil
}

// headerAt returns the frame whose stored header begins at b[start], if the header is whole and right and its frame begins
// at b[0].
func headerAt(b []byte, start, maxFrame int) (Frame, bool) {
	if len(b) < start+HeaderSize+payloadTagSize+1 {
		return Frame{}, false
	}
	header := b[start : start+HeaderSize]
	if !tagsMatch(header) || !smallValuesMatch(header) {
		return Frame{}, false
	}
	rest := b[start+HeaderSize:]
	if rest[0] != payloadTag(Compression(header[posCompression])) || rest[1] != payloadTagHigh {
		return Frame{}, false
	}
	payload, n := length(rest[payloadTagSize:])
	if n <= 0 {
		return Frame{}, false
	}
	covered := b[start+coveredFrom : start+HeaderSize+payloadTagSize+n]
	if crc32.Checksum(covered, castagnoli) != binary.LittleEndian.Uint32(header[posHeaderCRC:]) {
		return Frame{}, false
	}
	f := Frame{Header: getHeader(header), PayloadStart: start + HeaderSize + payloadTagSize + n}
	f.PayloadEnd = f.PayloadStart + payload
	f.Size = f.PayloadEnd
	// The right outer length must fit before the header, else the header is not this frame's.
	if lengthSize(f.bodySize()) != start-1 || f.Size > maxFrame || !f.Header.plausible(payload) {
		return Frame{}, false
	}
	return f, true
}

// repairedFrame looks for a right header behind a damaged envelope. It tries the places a header can have, no others: a
// pattern further on may be part of a record.
func repairedFrame(b []byte, remaining int64, maxFrame int) (Frame, Verdict) {
	for n := 1; n <= lengthMax; n++ {
		if f, ok := headerAt(b, 1+n, maxFrame); ok && int64(f.Size) <= remaining {
			return f, CorruptEnvelope
		}
	}
	return Frame{}, CorruptHeader
}

// unknownFormat reports whether a stored header begins as every layout's does and names a format that is not ours. A zero,
// or a value no format will have, is damage.
func unknownFormat(header []byte) bool {
	return len(header) > posFormat && header[0] == headerTags[0][1] && header[posFormat-1] == 0x10 &&
		header[posFormat] != Format && header[posFormat] != 0 && header[posFormat] < 0x80
}

// tornHeader reports whether the file ends inside the part of the frame that leads up to the payload, while all there is
// of it is right. Start is where the header begins and body the outer length.
func tornHeader(header []byte, body, start int, remaining int64, maxFrame int) bool {
	if start+body > maxFrame || remaining >= int64(start+body) || !tagsMatch(header) || !smallValuesMatch(header) {
		return false
	}
	payload, ok := payloadSize(body)
	if !ok || len(header) < HeaderSize {
		return ok
	}
	// All that is missing can be told from the outer length, so the checksum can be verified already.
	var rest [payloadTagSize + lengthMax]byte
	putPayloadPrefix(rest[:], Compression(header[posCompression]), payload)
	missing := rest[:payloadTagSize+lengthSize(payload)]
	sum := crc32.Update(crc32.Checksum(header[coveredFrom:HeaderSize], castagnoli), castagnoli, missing)
	return bytes.HasPrefix(missing, header[HeaderSize:]) && sum == binary.LittleEndian.Uint32(header[posHeaderCRC:])
}

// payloadSize is the size of the payload in a batch of the given size. There is none for sizes that no batch has.
func payloadSize(body int) (int, bool) {
	for n := 1; n <= lengthMax; n++ {
		if size := body - HeaderSize - payloadTagSize - n; size >= 0 && lengthSize(size) == n {
			return size, true
		}
	}
	return 0, false
}

// Tags of the two payload fields: 82 02 and 8A 02.
const (
	recordsTag     = 0x82
	compressedTag  = 0x8A
	payloadTagHigh = 0x02
)

// payloadTag is the first byte of the payload's tag.
func payloadTag(c Compression) byte {
	if c == CompressionNone {
		return recordsTag
	}
	return compressedTag
}
