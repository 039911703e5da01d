package record

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/pierrec/lz4/v4"
)

const (
	lz4Magic = 0x184D2204
	// lz4Ratio is the most bytes one byte of an LZ4 block can stand for.
	lz4Ratio = 255
)

// Bits of the first descriptor byte.
const (
	lz4HasDictionary      = 1 << 0
	lz4HasContentChecksum = 1 << 2
	lz4HasContentSize     = 1 << 3
	lz4HasBlockChecksum   = 1 << 4
)

type lz4Reader struct {
	*lz4.Reader

	src bytes.Reader
}

func (c *Codec) compressLZ4(dst []byte, level int, src []byte) ([]byte, error) {
	w, _ := c.lz4Writers[level].Get().(*lz4.Writer)
	if w == nil {
		w = lz4.NewWriter(nil)
	}
	out := appendWriter{b: dst}
	w.Reset(&out)
	compression := [levels]lz4.CompressionLevel{
		lz4.Fast, lz4.Level1, lz4.Level2, lz4.Level3, lz4.Level4, lz4.Level5, lz4.Level6, lz4.Level7, lz4.Level8, lz4.Level9,
	}[level]
	// Without its own checksum: the payload CRC covers the frame.
	err := w.Apply(lz4.CompressionLevelOption(compression), lz4.ConcurrencyOption(1), lz4.ChecksumOption(false),
		lz4.BlockSizeOption(lz4BlockFor(len(src))), lz4.SizeOption(uint64(len(src))))
	if err == nil {
		_, err = w.Write(src)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return dst, corruptPayload(CompressionLZ4, "cannot be written: %v", err)
	}
	c.lz4Writers[level].Put(w)
	return out.b, nil
}

// lz4BlockFor is the smallest block size that holds size bytes, or the largest there is.
func lz4BlockFor(size int) lz4.BlockSize {
	for _, s := range []lz4.BlockSize{lz4.Block64Kb, lz4.Block256Kb, lz4.Block1Mb} {
		if size <= int(s) {
			return s
		}
	}
	return lz4.Block4Mb
}

func (c *Codec) decompressLZ4(dst, payload []byte, limit int) ([]byte, error) {
	size, err := lz4Bound(payload)
	if err != nil {
		return nil, err
	}
	r, _ := c.lz4Readers.Get().(*lz4Reader)
	if r == nil {
		r = &lz4Reader{Reader: lz4.NewReader(nil)}
		if err := r.Apply(lz4.ConcurrencyOption(1)); err != nil {
			return nil, corruptPayload(CompressionLZ4, "cannot be read: %v", err)
		}
	}
	defer c.lz4Readers.Put(r)
	r.src.Reset(payload)
	r.Reset(&r.src)
	defer func() {
		r.src.Reset(nil)
		r.Reset(nil)
	}()
	out, err := readAll(room(dst, min(size, limit)+1), r, limit)
	switch {
	case errors.Is(err, ErrTooLarge):
		return nil, err
	case err != nil:
		return nil, corruptPayload(CompressionLZ4, "cannot be decompressed: %v", err)
	}
	return out, nil
}

// lz4Bound walks over the blocks of the one frame that payload must be, and returns the most bytes it can stand for. What
// it does not look at, such as checksums, the reader does.
func lz4Bound(payload []byte) (int, error) {
	const cutOff = "is cut off, or is no LZ4 frame"
	if len(payload) < 7 || binary.LittleEndian.Uint32(payload) != lz4Magic {
		return 0, corruptPayload(CompressionLZ4, cutOff)
	}
	flags, block := payload[4], payload[5]>>4&7
	if block < 4 {
		return 0, corruptPayload(CompressionLZ4, "has no right block size")
	}
	blockMax := 1 << (8 + 2*block)
	if flags&lz4HasDictionary != 0 {
		return 0, unsupported(CompressionLZ4, "a dictionary is asked for: compress without one")
	}
	pos, content := 6, uint64(0)
	if flags&lz4HasContentSize != 0 {
		if len(payload) < pos+8 {
			return 0, corruptPayload(CompressionLZ4, cutOff)
		}
		content = binary.LittleEndian.Uint64(payload[pos:])
		pos += 8
	}
	pos++ // the descriptor's checksum
	size := 0
	for {
		if len(payload)-pos < 4 {
			return 0, corruptPayload(CompressionLZ4, cutOff)
		}
		word := binary.LittleEndian.Uint32(payload[pos:])
		pos += 4
		if word == 0 {
			break
		}
		stored := int(word & (1<<31 - 1))
		if stored > blockMax || stored > len(payload)-pos {
			return 0, corruptPayload(CompressionLZ4, cutOff)
		}
		pos += stored
		if word>>31 != 0 {
			size += stored
		} else {
			size += min(stored*lz4Ratio, blockMax)
		}
		if flags&lz4HasBlockChecksum != 0 {
			pos += 4
		}
	}
	if flags&lz4HasContentChecksum != 0 {
		pos += 4
	}
	switch {
	case pos > len(payload):
		return 0, corruptPayload(CompressionLZ4, cutOff)
	case pos < len(payload):
		return 0, corruptPayload(CompressionLZ4, "has %d bytes behind its first frame: want exactly one frame", len(payload)-pos)
	case flags&lz4HasContentSize != 0 && content > uint64(size):
		return 0, corruptPayload(CompressionLZ4, "says it holds %d bytes, more than it can", content)
	case flags&lz4HasContentSize != 0:
		size = int(content)
	}
	return size, nil
}
