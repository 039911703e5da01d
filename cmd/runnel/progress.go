package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// A progress shows on a terminal how far long work has come.
type progress struct {
	w     io.Writer // nil: nobody looks
	total int64     // bytes; 0: not known
	state func() (done, records int64)
	begun time.Time
	stop  chan struct{}
	once  sync.Once
	wait  sync.WaitGroup
}

// startProgress shows what state returns, now and then, when w is a terminal.
func startProgress(w io.Writer, total int64, state func() (done, records int64)) *progress {
	p := &progress{total: total, state: state, begun: time.Now(), stop: make(chan struct{})}
	if interactive(w) {
		p.w = w
		p.wait.Go(p.run)
	}
	return p
}

func (p *progress) run() {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-p.stop:
			fmt.Fprint(p.w, "\r\x1b[K")
			return
		case <-tick.C:
			done, records := p.state()
			fmt.Fprint(p.w, "\r\x1b[K"+progressLine(done, p.total, records, time.Since(p.begun)))
		}
	}
}

// close takes the line off the screen. Another one does nothing.
func (p *progress) close() {
	p.once.Do(func() { close(p.stop) })
	p.wait.Wait()
}

func progressLine(done, total, records int64, took time.Duration) string {
	rate := float64(records) / max(took.Seconds(), 0.001)
	line := fmt.Sprintf("%s, %s, %.0f/s", counted(records, "record"), bytesText(done), rate)
	if total <= 0 {
		return line
	}
	const width = 30
	share := min(float64(done)/float64(total), 1)
	full := int(share * width)
	return fmt.Sprintf("[%s%s] %3.0f%%  %s", strings.Repeat("#", full), strings.Repeat(".", width-full), share*100, line)
}
