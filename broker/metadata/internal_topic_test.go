package metadata_test

import (
	"errors"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/runnelmq/runnel/broker/metadata"
)

func TestEnsureInternalTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		if _, err := w.EnsureInternalTopic(t.Context(), "__consumer_offsets", 50, nil); !errors.Is(err, metadata.ErrNoController) {
			t.Errorf("without a controller: %v", err)
		}
		defer w.run(t)()
		w.await(t, "a", registered)
		settle()
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				topic, err := w.EnsureInternalTopic(t.Context(), "__consumer_offsets", 50, map[string]string{"retention.ms": "-1"})
				if err != nil || !topic.Internal || len(topic.Partitions) != 50 || topic.Set["retention.ms"] != "-1" {
					t.Errorf("%+v, %v", topic, err)
				}
			})
		}
		wg.Wait()
		w.controllers["a"].Break(errors.New("away"))
		settle()
		if topic, err := w.EnsureInternalTopic(t.Context(), "__consumer_offsets", 7, nil); err != nil || len(topic.Partitions) != 50 {
			t.Errorf("known, and no controller there: %+v, %v", topic, err)
		}
	})
}
