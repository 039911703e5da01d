package record

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/klauspost/compress/gzip"
)

// deflateRatio is the most bytes one byte of a deflate stream can stand for.
const deflateRatio = 1032

type gzipReader struct {
	gzip.Reader

	src bytes.Reader
}

func (c *Codec) compressGzip(dst []byte, level int, src []byte) ([]byte, error) {
	w, _ := c.gzipWriters[level].Get().(*gzip.Writer)
	if w == nil {
		effective := level
		if level == 0 {
			effective = gzip.DefaultCompression
		}
		var err error
		if w, err = gzip.NewWriterLevel(nil, effective); err != nil {
			return dst, unsupported(CompressionGzip, "%v", err)
		}
	}
	out := appendWriter{b: dst}
	w.Reset(&out)
	_, err := w.Write(src)
	if err = errors.Join(err, w.Close()); err != nil {
		return dst, corruptPayload(CompressionGzip, "cannot be written: %v", err)
	}
	c.gzipWriters[level].Put(w)
	return out.b, nil
}

func (c *Codec) decompressGzip(dst, payload []byte, limit int) ([]byte, error) {
	r, _ := c.gzipReaders.Get().(*gzipReader)
	if r == nil {
		r = new(gzipReader)
	}
	defer c.gzipReaders.Put(r)
	r.src.Reset(payload)
	defer r.src.Reset(nil)
	if err := r.Reset(&r.src); err != nil {
		return nil, corruptPayload(CompressionGzip, "has no right header: %v", err)
	}
	r.Multistream(false)
	// The last four bytes are the size modulo 1<<32. They are a hint: the reader verifies them at the end.
	hint := 0
	if len(payload) >= 4 {
		hint = int(binary.LittleEndian.Uint32(payload[len(payload)-4:]))
	}
	out, err := readAll(room(dst, min(hint, limit, len(payload)*deflateRatio)+1), r, limit)
	switch {
	case errors.Is(err, ErrTooLarge):
		return nil, err
	case err != nil:
		return nil, corruptPayload(CompressionGzip, "cannot be decompressed: %v", err)
	case r.src.Len() > 0:
		return nil, corruptPayload(CompressionGzip, "has %d bytes behind its first member: want exactly one member", r.src.Len())
	}
	return out, nil
}

// readAll appends what r has to dst, and fails with ErrTooLarge when that is more than limit bytes.
func readAll(dst []byte, r io.Reader, limit int) ([]byte, error) {
	for {
		if len(dst) == cap(dst) {
			grown := make([]byte, len(dst), min(2*cap(dst)+512, limit+1))
			copy(grown, dst)
			dst = grown
		}
		n, err := r.Read(dst[len(dst):min(cap(dst), limit+1)])
		dst = dst[:len(dst)+n]
		if len(dst) > limit {
			return nil, tooLargeSet(limit)
		}
		if errors.Is(err, io.EOF) {
			return dst, nil
		}
		if err != nil {
			return nil, err
		}
	}
}
