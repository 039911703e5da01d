package record

import (
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/snappy"
)

func compressSnappy(dst, src []byte) []byte {
	// EncodeSnappy encodes into the whole length of its first argument.
	n := len(dst)
	dst = append(dst, make([]byte, s2.MaxEncodedLen(len(src)))...)
	return dst[:n+len(s2.EncodeSnappy(dst[n:], src))]
}

func decompressSnappy(dst, payload []byte, limit int) ([]byte, error) {
	size, err := snappy.DecodedLen(payload)
	if err != nil {
		return nil, corruptPayload(CompressionSnappy, "has no right length: %v: want the block format, not the framing format", err)
	}
	if size > limit {
		return nil, tooLargeSet(limit)
	}
	// Two bytes of payload stand for at most 64 bytes.
	if size > len(payload)*32 {
		return nil, corruptPayload(CompressionSnappy, "says it holds %d bytes, more than it can", size)
	}
	// Strict: the s2 decoder takes extensions that no other Snappy reader understands.
	out, err := snappy.DecodeStrict(room(dst, size), payload)
	if err != nil {
		return nil, corruptPayload(CompressionSnappy, "cannot be decompressed: %v: want the block format, not the framing format", err)
	}
	return out, nil
}
