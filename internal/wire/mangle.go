//go:build !race

package wire

// mangle is on under the race detector only: it costs a pass over the buffer.
const mangle = false
