package partition

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/internal/vfs"
)

// A copy is described while its log is being checkpointed on a slow disk: only
// whoever asked waits for that, no writer and no reader.
func TestDescribe_whileADiskIsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, vfs.NewMem())
		p := r.topic("t", async, nil)
		r.append(p, 1)
		var once sync.Once
		var asked sync.WaitGroup
		r.fault.Before(vfs.OpSync|vfs.OpRename, func(vfs.Op, string) {
			once.Do(func() {
				asked.Go(func() {
					if c, ok := r.Describe(p.Topic().ID, 0); !ok || !c.Intact {
						t.Errorf("described as %+v, %v", c, ok)
					}
				})
				time.Sleep(time.Millisecond)
				if !p.mu.TryLock() {
					t.Error("the partition is locked for as long as its disk takes")
					return
				}
				p.mu.Unlock()
			})
		})
		if err := p.log.Checkpoint(); err != nil {
			t.Fatal(err)
		}
		asked.Wait()
		r.end(false)
	})
}
