package wire

import (
	"math/bits"
	"sync"

	"google.golang.org/grpc/mem"
)

// Sizes of pooled buffers, as powers of two.
const (
	minShift = 11 // 2 KiB
	maxShift = 22 // 4 MiB
	// MaxPooled is the largest buffer that is kept for reuse.
	MaxPooled = 1 << maxShift
)

// A Pool hands out byte buffers of powers of two from 2 KiB to 4 MiB. Unlike
// the pool that comes with gRPC it does not zero them, and a buffer of 40 KiB
// does not pin 1 MiB. It is safe for concurrent use and implements
// mem.BufferPool.
type Pool struct {
	classes [maxShift - minShift + 1]sync.Pool
}

var _ mem.BufferPool = (*Pool)(nil)

// NewPool returns an empty pool.
func NewPool() *Pool { return &Pool{} }

// Get returns a buffer of the given length whose content is anything. Above
// MaxPooled it is freshly made.
func (p *Pool) Get(length int) *[]byte {
	class := classOf(length)
	if class >= len(p.classes) {
		b := make([]byte, length)
		return &b
	}
	if b, ok := p.classes[class].Get().(*[]byte); ok {
		*b = (*b)[:length]
		return b
	}
	b := make([]byte, length, 1<<(class+minShift))
	return &b
}

// Put takes a buffer back. The caller must not touch it again. One that is not
// of a pooled size is left to the garbage collector.
func (p *Pool) Put(b *[]byte) {
	size := cap(*b)
	class := classOf(size)
	if class >= len(p.classes) || size != 1<<(class+minShift) {
		return
	}
	if mangle {
		for i := range (*b)[:size] {
			(*b)[:size][i] = 0xDB
		}
	}
	p.classes[class].Put(b)
}

// SizeFor returns the capacity that Get gives for a length: what a buffer costs.
func SizeFor(length int) int {
	class := classOf(length)
	if class > maxShift-minShift {
		return length
	}
	return 1 << (class + minShift)
}

// classOf returns the index of the smallest class that holds length bytes.
func classOf(length int) int {
	if length <= 1<<minShift {
		return 0
	}
	return bits.Len(uint(length-1)) - minShift //nolint:gosec // length is positive here
}
