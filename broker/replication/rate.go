package replication

import (
	"sync"
	"time"
)

// A bucket bounds bytes a second. It may be overdrawn: who took more waits
// longer. Safe for concurrent use.
type bucket struct {
	rate int64 // bytes a second; 0: no bound

	// mu guards the fields below
	mu sync.Mutex

	level float64 // bytes; at most what flows in a tenth of a second
	at    time.Time
}

func newBucket(rate int64) *bucket { return &bucket{rate: rate} }

// burst is how much may be taken at once after a pause.
func (b *bucket) burst() float64 { return max(float64(b.rate)/10, 64<<10) }

// wait returns how long it takes until something may be taken; 0: it may.
func (b *bucket) wait(now time.Time) time.Duration {
	if b.rate <= 0 {
		return 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()

	b.fillLocked(now)
	if b.level > 0 {
		return 0
	}
	return max(time.Duration((1-b.level)/float64(b.rate)*float64(time.Second)), time.Millisecond)
}

// take takes bytes, whether they are there or not.
func (b *bucket) take(now time.Time, bytes int64) {
	if b.rate <= 0 {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()

	b.fillLocked(now)
	b.level -= float64(bytes)
}

func (b *bucket) fillLocked(now time.Time) {
	if b.at.IsZero() {
		b.level = b.burst()
	} else if d := now.Sub(b.at); d > 0 {
		b.level = min(b.level+d.Seconds()*float64(b.rate), b.burst())
	}
	b.at = now
}
