package main

import (
	"context"
	"io"
	"os"
	"time"
)

// lookUp is how often a reader that waits for input sees whether it still has
// to.
const lookUp = 100 * time.Millisecond

// A breakable reads r until ctx ends, and then errInterrupted. Whoever waits
// at a terminal or a pipe for a line that may never come waits in here, and no
// goroutine is left in a read.
type breakable struct {
	ctx context.Context //nolint:containedctx // it is the reader's life
	r   io.Reader
}

// Read implements io.Reader.
func (b breakable) Read(p []byte) (int, error) {
	for b.ctx.Err() == nil {
		f, ok := b.r.(*os.File)
		if !ok || readable(f, lookUp) {
			return b.r.Read(p)
		}
	}
	return 0, errInterrupted
}
