package record

import (
	"errors"

	"github.com/klauspost/compress/zstd"
)

const (
	// zstdWindow is the largest window a frame may ask for: what RFC 8878 wants every decoder to support.
	zstdWindow = 8 << 20
	// zstdBlock is the most bytes a block can stand for.
	zstdBlock = 128 << 10
	// zstdWriterWindow keeps encoders small; batches are hardly ever larger.
	zstdWriterWindow = 4 << 20
)

func (c *Codec) compressZstd(dst []byte, level int, src []byte) ([]byte, error) {
	speed := zstd.EncoderLevelFromZstd(level)
	if level == 0 {
		speed = zstd.SpeedFastest
	}
	pool := &c.zstdWriters[speed]
	w, _ := pool.Get().(*zstd.Encoder)
	if w == nil {
		var err error
		// Without its own checksum: the payload CRC covers the frame.
		w, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(speed), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(zstdWriterWindow), zstd.WithEncoderCRC(false), zstd.WithZeroFrames(true))
		if err != nil {
			return dst, unsupported(CompressionZstd, "%v", err)
		}
	}
	dst = w.EncodeAll(src, dst)
	pool.Put(w)
	return dst, nil
}

// A zstdReader stops once it has decoded limit bytes, or a window where that is more: the library takes no frame whose
// window is over its memory limit.
type zstdReader struct {
	*zstd.Decoder

	limit int
}

func (c *Codec) decompressZstd(dst, payload []byte, limit int) ([]byte, error) {
	size, err := zstdBound(payload)
	if err != nil {
		return nil, err
	}
	r, _ := c.zstdReaders.Get().(*zstdReader)
	if r == nil || r.limit != limit {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(zstdWindow),
			zstd.WithDecoderMaxMemory(uint64(max(limit, zstdWindow))), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, unsupported(CompressionZstd, "%v", err)
		}
		r = &zstdReader{Decoder: d, limit: limit}
	}
	defer c.zstdReaders.Put(r)
	out, err := r.DecodeAll(payload, room(dst, min(size, limit+2*zstdBlock)))
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded) || (err == nil && len(out) > limit):
		return nil, tooLargeSet(limit)
	case err != nil:
		return nil, corruptPayload(CompressionZstd, "cannot be decompressed: %v", err)
	}
	return out, nil
}

// zstdBound walks over the blocks of the one frame that payload must be, and returns the most bytes it can stand for.
func zstdBound(payload []byte) (int, error) {
	var h zstd.Header
	if err := h.Decode(payload); err != nil {
		return 0, corruptPayload(CompressionZstd, "has no right frame header: %v", err)
	}
	switch {
	case h.Skippable:
		return 0, corruptPayload(CompressionZstd, "begins with a skippable frame: want exactly one frame of data")
	case h.DictionaryID != 0:
		return 0, unsupported(CompressionZstd, "a dictionary (%d) is asked for: compress without one", h.DictionaryID)
	}
	window := h.WindowSize
	if h.SingleSegment {
		window = h.FrameContentSize
	}
	if window > zstdWindow {
		return 0, unsupported(CompressionZstd, "a window of %d bytes is asked for: want at most %d", window, zstdWindow)
	}
	size, pos := 0, h.HeaderSize
	for last := false; !last; {
		if len(payload)-pos < 3 {
			return 0, corruptPayload(CompressionZstd, "is cut off at a block header")
		}
		block := int(payload[pos]) | int(payload[pos+1])<<8 | int(payload[pos+2])<<16
		pos += 3
		last = block&1 != 0
		content, stored := zstdBlock, block>>3
		switch block >> 1 & 3 {
		case 0: // raw
			content = stored
		case 1: // one byte, repeated
			content, stored = stored, 1
		case 2: // compressed
		default:
			return 0, corruptPayload(CompressionZstd, "has a block of a reserved type")
		}
		if stored > len(payload)-pos || content > zstdBlock {
			return 0, corruptPayload(CompressionZstd, "is cut off in a block, or has one that is too large")
		}
		pos += stored
		size += content
	}
	if h.HasCheckSum {
		pos += 4
	}
	switch {
	case pos > len(payload):
		return 0, corruptPayload(CompressionZstd, "is cut off at its checksum")
	case pos < len(payload):
		return 0, corruptPayload(CompressionZstd, "has %d bytes behind its first frame: want exactly one frame", len(payload)-pos)
	case h.HasFCS && h.FrameContentSize > uint64(size):
		return 0, corruptPayload(CompressionZstd, "says it holds %d bytes, more than it can", h.FrameContentSize)
	case h.HasFCS:
		size = int(h.FrameContentSize)
	}
	return size, nil
}
