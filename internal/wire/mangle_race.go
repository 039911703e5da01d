//go:build race

package wire

// mangle makes the pool spoil returned buffers, so that a slice kept too long
// shows in tests under the race detector.
const mangle = true
