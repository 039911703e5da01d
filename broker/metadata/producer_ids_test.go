package metadata_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
)

// A broker has producer ids before anybody asks for one, so that producers can start
// when no controller is there any more; without Run it has none.
func TestProducerIDs_beforeTheControllersGo(t *testing.T) {
	for _, stocked := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, "a")
			ids := metadata.NewProducerIDs(w.Session)
			ctx, cancel := context.WithCancel(t.Context())
			var stocking sync.WaitGroup
			if stocked {
				stocking.Go(func() {
					if err := ids.Run(ctx); err != nil {
						t.Error(err)
					}
				})
			}
			end := w.run(t)
			w.await(t, "a", registered)
			settle()
			for _, s := range w.servers {
				s.Stop()
			}
			settle()
			time.Sleep(5 * time.Second)
			id, err := ids.Next(t.Context())
			switch {
			case stocked && (err != nil || id != 1):
				t.Errorf("id %d, %v, want the first one", id, err)
			case !stocked && !errors.Is(err, metadata.ErrNoController):
				t.Errorf("id %d, %v of none", id, err)
			}
			cancel()
			stocking.Wait()
			end()
		})
	}
}

// Without a controller Run waits for one, and ends with its context.
func TestProducerIDs_runEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.controllers["a"].Set(metadatatest.Mute(true))
		ids := metadata.NewProducerIDs(w.Session)
		ctx, cancel := context.WithCancel(t.Context())
		defer w.run(t)()
		var stocking sync.WaitGroup
		stocking.Go(func() {
			if err := ids.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(time.Minute)
		cancel()
		stocking.Wait()
	})
}
