package telemetry

import "time"

// A Recurrence is trouble that may come again many times a minute. It says when
// the log is to tell of it: when it begins, and then once in a while. The zero
// Recurrence is none; its owner locks it, or is one goroutine.
type Recurrence struct {
	since  time.Time // when it began; zero: it has not
	told   time.Time
	untold int
}

// Again notes that the trouble came, and says whether to tell: it is new, or was
// not told for every. before is how often it came since it was told last.
func (r *Recurrence) Again(now time.Time, every time.Duration) (tell bool, before int) {
	if r.since.IsZero() {
		r.since = now
	} else if now.Sub(r.told) < every {
		r.untold++
		return false, 0
	}
	before = r.untold
	r.told, r.untold = now, 0
	return true, before
}

// Over ends it, and says whether there was any and when it began.
func (r *Recurrence) Over() (since time.Time, was bool) {
	since, was = r.since, !r.since.IsZero()
	*r = Recurrence{}
	return since, was
}
