package commitlog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math"

	"github.com/runnelmq/runnel/internal/record"
)

// The index file's layout; see FORMAT.md.
const (
	indexMagic   = "RNLX"
	indexVersion = 1
	// indexHeaderSize and indexEntrySize are equal, so that a whole index is
	// a multiple of them.
	indexHeaderSize = 24
	indexEntrySize  = 24
)

// errBadIndex says that an index cannot be believed: it is made anew.
var errBadIndex = errors.New("bad index")

//nolint:gochecknoglobals // immutable
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// An entry says where a batch begins, and how late the records before it are.
type entry struct {
	offset record.Offset // of the batch's first record, as written
	pos    int64         // in the segment file, in bytes
	// maxTimestamp is the largest timestamp of the segment's records before
	// the batch, noTimestamp when there are none.
	maxTimestamp int64
}

// noTimestamp is below every timestamp.
const noTimestamp = math.MinInt64

// encodeIndexHeader returns the first bytes of an index.
func encodeIndexHeader(base record.Offset, interval int) []byte {
	b := []byte(indexMagic)
	b = binary.LittleEndian.AppendUint32(b, indexVersion)
	b = binary.LittleEndian.AppendUint64(b, uint64(base))
	b = binary.LittleEndian.AppendUint32(b, uint32(interval))
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

// parseIndexHeader returns the interval that an index was made with.
func parseIndexHeader(b []byte, base record.Offset) (interval int, err error) {
	if len(b) < indexHeaderSize || string(b[:4]) != indexMagic ||
		binary.LittleEndian.Uint32(b[4:]) != indexVersion ||
		record.Offset(binary.LittleEndian.Uint64(b[8:])) != base ||
		binary.LittleEndian.Uint32(b[20:]) != crc32.Checksum(b[:20], castagnoli) {
		return 0, errBadIndex
	}
	interval = int(binary.LittleEndian.Uint32(b[16:]))
	if interval <= 0 || interval > maxIndexIntervalBytes {
		return 0, errBadIndex
	}
	return interval, nil
}

// appendIndexEntry appends e. Its checksum covers the segment's base offset
// too, so that no entry of another segment passes for one of this.
func appendIndexEntry(dst []byte, base record.Offset, e entry) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.offset))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(e.pos))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(e.maxTimestamp))
	return binary.LittleEndian.AppendUint32(dst, entryChecksum(dst[start:], base))
}

func parseIndexEntry(b []byte, base record.Offset) (entry, error) {
	if len(b) < indexEntrySize || binary.LittleEndian.Uint32(b[20:]) != entryChecksum(b[:20], base) {
		return entry{}, errBadIndex
	}
	return entry{
		offset:       record.Offset(binary.LittleEndian.Uint64(b)),
		pos:          int64(binary.LittleEndian.Uint32(b[8:])),
		maxTimestamp: int64(binary.LittleEndian.Uint64(b[12:])),
	}, nil
}

func entryChecksum(b []byte, base record.Offset) uint32 {
	var key [8]byte
	binary.LittleEndian.PutUint64(key[:], uint64(base))
	return crc32.Update(crc32.Checksum(key[:], castagnoli), castagnoli, b)
}

// parseIndex reads a whole index: its interval, and the entries up to the
// first that is damaged or not above the one before. An error means that not
// even the header is right; whole reports whether all of it was.
func parseIndex(b []byte, base record.Offset) (interval int, entries []entry, whole bool, err error) {
	interval, err = parseIndexHeader(b, base)
	if err != nil {
		return 0, nil, false, err
	}
	last := entry{maxTimestamp: noTimestamp}
	rest := b[indexHeaderSize:]
	for len(rest) >= indexEntrySize {
		e, bad := parseIndexEntry(rest, base)
		if errors.Is(bad, errBadIndex) || e.pos <= last.pos || e.maxTimestamp < last.maxTimestamp ||
			(len(entries) > 0 && e.offset <= last.offset) {
			return interval, entries, false, nil
		}
		entries = append(entries, e)
		last = e
		rest = rest[indexEntrySize:]
	}
	return interval, entries, len(rest) == 0, nil
}
