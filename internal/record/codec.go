package record

import (
	"fmt"
	"sync"
)

// A Codec compresses and decompresses payloads. It keeps encoders and decoders for reuse, so make one for each broker or
// client; it is safe for concurrent use, starts no goroutine and needs no closing.
//
// It is owned, not global, because the Zstandard coders hold channels: one made inside a synctest bubble must not be used
// in another.
type Codec struct {
	gzipReaders, lz4Readers, zstdReaders sync.Pool
	// By level.
	gzipWriters, lz4Writers, zstdWriters [levels]sync.Pool
}

// levels is the number of compression levels for which encoders are kept, 0 included.
const levels = 10

// scratchKept is the largest buffer for decompressed sets that is kept for the next one.
const scratchKept = 4 << 20

// NewCodec returns a Codec.
func NewCodec() *Codec { return new(Codec) }

// CheckLevel reports whether a compression has the given level: 1 to 9 for gzip and lz4, 1 to 22 for zstd. 0, the default
// one, is right for all, and the only one of snappy and none.
func CheckLevel(c Compression, level int) error {
	highest := 0
	switch c {
	case CompressionGzip, CompressionLZ4:
		highest = 9
	case CompressionZstd:
		highest = 22
	case CompressionNone, CompressionSnappy:
	default:
		return unsupported(c, "it is none of none, gzip, snappy, lz4, zstd")
	}
	if level != 0 && highest == 0 {
		return unsupported(c, "it has no levels: leave the level at 0, not %d", level)
	}
	if level < 0 || level > highest {
		return unsupported(c, "it has no level %d: want 1 to %d, or 0 for its default", level, highest)
	}
	return nil
}

// Compress appends src, compressed as one payload, to dst. The error is ErrUnsupportedCompression.
func (c *Codec) Compress(dst []byte, compression Compression, level int, src []byte) ([]byte, error) {
	if err := CheckLevel(compression, level); err != nil {
		return dst, err
	}
	switch compression {
	case CompressionGzip:
		return c.compressGzip(dst, level, src)
	case CompressionSnappy:
		return compressSnappy(dst, src), nil
	case CompressionLZ4:
		return c.compressLZ4(dst, level, src)
	case CompressionZstd:
		return c.compressZstd(dst, level, src)
	default:
		return append(dst, src...), nil
	}
}

// Decompress returns what payload holds, at most limit bytes of it, in dst's memory where that is large enough and in new
// memory otherwise. It takes exactly one frame or member and nothing behind it. What it allocates grows with what payload
// can expand to, and stops near limit (for zstd: near limit or 8 MiB, whichever is more).
//
// The errors are ErrCorruptBatch, ErrTooLarge when there would be more than limit bytes, and ErrUnsupportedCompression.
func (c *Codec) Decompress(dst []byte, compression Compression, payload []byte, limit int) ([]byte, error) {
	switch compression {
	case CompressionNone:
		if len(payload) > limit {
			return nil, tooLargeSet(limit)
		}
		return append(dst[:0], payload...), nil
	case CompressionGzip:
		return c.decompressGzip(dst, payload, limit)
	case CompressionSnappy:
		return decompressSnappy(dst, payload, limit)
	case CompressionLZ4:
		return c.decompressLZ4(dst, payload, limit)
	case CompressionZstd:
		return c.decompressZstd(dst, payload, limit)
	default:
		return nil, unsupported(compression, "it is none of none, gzip, snappy, lz4, zstd")
	}
}

// room returns dst emptied, with room for size bytes.
func room(dst []byte, size int) []byte {
	if cap(dst) < size {
		return make([]byte, 0, size)
	}
	return dst[:0]
}

// appendWriter is an io.Writer that appends.
type appendWriter struct{ b []byte }

func (w *appendWriter) Write(p []byte) (int, error) {
	w.b = append(w.b, p...)
	return len(p), nil
}

func unsupported(c Compression, format string, args ...any) error {
	return &BatchError{
		Kind: ErrUnsupportedCompression, Record: -1, Position: -1, Compression: c,
		What: c.String() + ": " + fmt.Sprintf(format, args...),
	}
}

func tooLargeSet(limit int) error {
	return &BatchError{
		Kind: ErrTooLarge, Record: -1, Position: -1, Size: limit + 1, Limit: limit,
		What: fmt.Sprintf("the compressed records are more than %d bytes when decompressed: send smaller batches", limit),
	}
}

func corruptPayload(c Compression, format string, args ...any) error {
	return corruptf(-1, "the "+c.String()+" payload "+format, args...)
}
