package rpc

import "time"

// maxCredit caps what a client can save up.
const maxCredit = 1 << 30

// A fetchCredit is the balance of a stream with explicit credit. Without, it
// always has enough.
type fetchCredit struct {
	limited bool
	balance int64
}

// start begins with the credit that the options gave.
func (c *fetchCredit) start(bytes int64) {
	c.limited, c.balance = true, min(bytes, maxCredit)
}

// add adds what the client gave.
func (c *fetchCredit) add(bytes int64) {
	// Both are at most maxCredit after the first min, so the sum is no overflow.
	c.balance = min(c.balance+min(bytes, maxCredit), maxCredit)
}

// spend subtracts a response with records. It may overdraw, so that one
// response is always possible.
func (c *fetchCredit) spend(bytes int) {
	if c.limited {
		c.balance -= int64(bytes)
	}
}

// lift makes the credit unlimited, as half-closing does.
func (c *fetchCredit) lift() { c.limited = false }

// ok reports whether records may be sent.
func (c *fetchCredit) ok() bool { return !c.limited || c.balance > 0 }

// Sizes of responses.
const (
	firstResponse = 64 << 10
	// slowAfter is how long the transport may take for what it has before the
	// stream counts as blocked. A network that carries 64 KiB within it carries
	// small responses well enough.
	slowAfter = 10 * time.Millisecond
	// perSize is how many responses of one size must go through before the
	// next size is tried: who never reads is stuck with a fraction of what its
	// HTTP/2 window took, not with the largest response there is.
	perSize = 4
)

// A fetchSize decides how large the next response may be.
type fetchSize struct {
	current, most int
	passed        int // responses of the current size that went through
}

func newFetchSize(most int) fetchSize {
	return fetchSize{current: min(firstResponse, most), most: most}
}

// sent notes that a response left. One that was not full tells nothing.
func (s *fetchSize) sent(bytes int) {
	if bytes < s.current/2 {
		return
	}
	if s.passed++; s.passed >= perSize {
		s.passed, s.current = 0, min(s.current*2, s.most)
	}
}

// blocked notes that the transport did not take what it got.
func (s *fetchSize) blocked() {
	s.passed, s.current = 0, min(firstResponse, s.most)
}
