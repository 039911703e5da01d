package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

const (
	// askWait is how long a controller may take to say what is new.
	askWait = 500 * time.Millisecond
	// confirmWait is how long followers may take to answer a heartbeat: each is sent one
	// twice in that time.
	confirmWait = time.Second
)

// sure fails unless this broker leads partition n at a time after the call: by the
// word of a controller, else of all others that could have been elected. Without, an
// earlier leader may believe in itself for a while, and has not heard of what the
// next one has answered.
func (c *Coordinator) sure(ctx context.Context, n int32) error {
	began := time.Now()
	if c.deps.CatchUp != nil {
		wait, cancel := context.WithTimeout(ctx, askWait)
		err := c.deps.CatchUp(wait)
		cancel()
		if err == nil {
			return nil // what is known now is what counts
		}
	}
	p, err := c.local(n)
	if err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, confirmWait)
	defer cancel()
	for !p.ConfirmedSince(began) {
		if st := p.State(); st.Err != nil {
			return st.Err
		}
		if !lifecycle.Wait(wait, lookEvery) {
			return fmt.Errorf("%s: %w: no controller, and not all its followers, say that it still leads; try again", p, partition.ErrUnconfirmed)
		}
	}
	return nil
}
