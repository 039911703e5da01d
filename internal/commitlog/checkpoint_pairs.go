package commitlog

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io/fs"
	"path/filepath"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Two side files are lists of pairs of numbers; see FORMAT.md.
const (
	epochsName = "leader-epochs"
	damageName = "damage"

	epochsMagic = "RNLE"
	damageMagic = "RNLD"

	pairsVersion    = 1
	pairsHeaderSize = 12
	pairSize        = 16
)

// errBadPairs says that a side file cannot be believed.
var errBadPairs = errors.New("bad checksum or length")

func encodePairs(magic string, pairs [][2]int64) []byte {
	b := make([]byte, 0, pairsHeaderSize+len(pairs)*pairSize+4)
	b = append(b, magic...)
	b = binary.LittleEndian.AppendUint32(b, pairsVersion)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(pairs)))
	for _, p := range pairs {
		b = binary.LittleEndian.AppendUint64(b, uint64(p[0]))
		b = binary.LittleEndian.AppendUint64(b, uint64(p[1]))
	}
	return binary.LittleEndian.AppendUint32(b, crc32.Checksum(b, castagnoli))
}

func parsePairs(magic string, b []byte) ([][2]int64, error) {
	if len(b) < pairsHeaderSize+4 || string(b[:4]) != magic {
		return nil, errBadPairs
	}
	body := b[:len(b)-4]
	if binary.LittleEndian.Uint32(b[len(body):]) != crc32.Checksum(body, castagnoli) {
		return nil, errBadPairs
	}
	if binary.LittleEndian.Uint32(b[4:]) != pairsVersion {
		return nil, ErrUnknownFormat
	}
	rest := body[pairsHeaderSize:]
	n := int(binary.LittleEndian.Uint32(b[8:]))
	if len(rest)%pairSize != 0 || n != len(rest)/pairSize {
		return nil, errBadPairs
	}
	pairs := make([][2]int64, n)
	for i := range pairs {
		pairs[i][0] = int64(binary.LittleEndian.Uint64(rest[i*pairSize:]))
		pairs[i][1] = int64(binary.LittleEndian.Uint64(rest[i*pairSize+8:]))
	}
	return pairs, nil
}

// readPairs reads a side file; found is false when there is none.
func readPairs(fsys vfs.FS, dir, name, magic string) (pairs [][2]int64, found bool, err error) {
	b, err := vfs.ReadFile(fsys, filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	pairs, err = parsePairs(magic, b)
	return pairs, true, err
}

// A Range is the offsets from From up to, but without, To.
type Range struct {
	From, To record.Offset
}

// parseDamage reads the ranges of the damage file.
func parseDamage(pairs [][2]int64) ([]Range, error) {
	ranges := make([]Range, 0, len(pairs))
	last := record.Offset(0)
	for _, p := range pairs {
		r := Range{record.Offset(p[0]), record.Offset(p[1])}
		if r.From < last || r.To <= r.From {
			return nil, errBadPairs
		}
		last = r.To
		ranges = append(ranges, r)
	}
	return ranges, nil
}

func writeDamage(fsys vfs.FS, dir string, ranges []Range) error {
	pairs := make([][2]int64, len(ranges))
	for i, r := range ranges {
		pairs[i] = [2]int64{int64(r.From), int64(r.To)}
	}
	return vfs.WriteFileAtomic(fsys, filepath.Join(dir, damageName), encodePairs(damageMagic, pairs))
}

// addRange returns the ranges, which are in order, with r added; ranges that
// overlap or touch become one.
func addRange(ranges []Range, r Range) []Range {
	var out []Range
	for _, o := range ranges {
		switch {
		case o.To < r.From:
			out = append(out, o)
		case r.To < o.From:
			out = append(out, r)
			r = o
		default:
			r = Range{min(r.From, o.From), max(r.To, o.To)}
		}
	}
	return append(out, r)
}

// clampRanges returns what of the ranges is in [from, to).
func clampRanges(ranges []Range, from, to record.Offset) []Range {
	var out []Range
	for _, r := range ranges {
		r = Range{max(r.From, from), min(r.To, to)}
		if r.From < r.To {
			out = append(out, r)
		}
	}
	return out
}
