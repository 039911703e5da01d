package coordinator

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/vfs"
)

// BenchmarkLoad has a coordinator begin anew with a log on the disk, in which
// 10,000 groups have committed ten offsets each, until it serves all of them.
func BenchmarkLoad(b *testing.B) {
	const groups, offsets, writers = 10_000, 10, 64
	ctx := context.Background()
	r := makeRig(b, Config{LagEvery: -1}, 1, vfs.OS(), b.TempDir(), func() {}, func(time.Duration) { lifecycle.Wait(ctx, time.Millisecond) })
	defer r.end()
	topic := uuid.New()
	var parts []group.Commit
	for n := range int32(offsets) {
		parts = append(parts, group.Commit{Part: group.Part{Topic: topic, Number: n}, Offset: 1_000_000, LeaderEpoch: 1})
	}
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := w; i < groups; i += writers {
				taken, err := r.Commit(ctx, 0, fmt.Sprint("group-", i), "", 0, parts)
				for _, one := range taken {
					if err == nil {
						err = one.Err
					}
				}
				if err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
	stop := func() uint64 {
		r.stop()
		r.runs.Wait()
		r.Coordinator = nil
		return heap()
	}
	empty := stop()
	var kept uint64
	for b.Loop() {
		r.start()
		b.StopTimer()
		kept = heap() - empty
		if got := r.committed("group-9999", parts[offsets-1].Part); got != 1_000_000 {
			b.Errorf("%d is committed", got)
		}
		var loaded int
		_, err := ask(ctx, r.all()[0], false, unanswered, func(s *shard, reply func(struct{}, error)) {
			loaded = len(s.groups)
			reply(struct{}{}, nil)
		})
		if err != nil || loaded != groups {
			b.Errorf("%d groups are loaded: %v", loaded, err)
		}
		empty = stop()
		b.StartTimer()
	}
	r.start() // for its end
	b.ReportMetric(groups, "groups")
	b.ReportMetric(float64(kept)/(1<<20), "MiB-kept")
}

// heap returns how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
