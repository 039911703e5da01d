//go:build race

package rpc

// raceEnabled tells tests that count allocations.
const raceEnabled = true
