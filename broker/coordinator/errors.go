package coordinator

import "errors"

// What the coordinator refuses beyond what groups do.
var (
	// ErrTimeout: nothing was changed in the time there was.
	ErrTimeout = errors.New("timed out")
	// ErrShift: there is no offset to shift.
	ErrShift = errors.New("no offset to shift")
)
