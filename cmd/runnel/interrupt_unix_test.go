//go:build unix

package main

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// A command that is told to stop ends what it does, whoever tells it: somebody
// at the keyboard, or what runs it as a service.
func TestInterruptible(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			ctx, stop := interruptible(t.Context())
			defer stop()
			if err := syscall.Kill(os.Getpid(), sig); err != nil {
				t.Fatal(err)
			}
			within, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			<-within.Done()
			if err := context.Cause(ctx); !errors.Is(err, errInterrupted) {
				t.Errorf("it ended because of %v", err)
			}
		})
	}
}
