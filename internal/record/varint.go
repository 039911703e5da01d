package record

import "math/bits"

// lengthSize is how many bytes the minimal varint of v takes.
func lengthSize(v int) int { return (bits.Len32(uint32(v)|1) + 6) / 7 }

// putLength writes the minimal varint of v, which is below 1<<28, and returns its size.
func putLength(b []byte, v int) int {
	n := 0
	for v >= 0x80 {
		b[n] = byte(v) | 0x80
		v >>= 7
		n++
	}
	b[n] = byte(v)
	return n + 1
}

// length reads a minimal varint of at most lengthMax bytes. It returns its size, 0 when b ends inside it, and -1 when it is
// too long or not minimal.
func length(b []byte) (v, size int) {
	for i := range min(len(b), lengthMax) {
		c := b[i]
		v |= int(c&0x7F) << (7 * i)
		if c < 0x80 {
			if c == 0 && i > 0 {
				return 0, -1
			}
			return v, i + 1
		}
	}
	if len(b) < lengthMax {
		return 0, 0
	}
	return 0, -1
}

// uvarint reads a varint as every Protobuf reader takes it, minimal or not. Size is 0 when b ends inside it or it
// overflows 64 bits.
func uvarint(b []byte) (v uint64, size int) {
	for i := range min(len(b), 10) {
		c := b[i]
		if i == 9 && c > 1 {
			return 0, 0
		}
		v |= uint64(c&0x7F) << (7 * i)
		if c < 0x80 {
			return v, i + 1
		}
	}
	return 0, 0
}

// minimalUvarint is uvarint, but a varint that has a shorter form has size 0.
func minimalUvarint(b []byte) (v uint64, size int) {
	v, size = uvarint(b)
	if size > 1 && b[size-1] == 0 {
		return 0, 0
	}
	return v, size
}

// uvarintSize is how many bytes the minimal varint of v takes.
func uvarintSize(v uint64) int { return (bits.Len64(v|1) + 6) / 7 }

func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

func unzigzag(v uint64) int64 { return int64(v>>1) ^ -int64(v&1) }
