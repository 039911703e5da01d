package partition

import (
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Under sync a follower acknowledges only what its disk has as durable.
func TestReplicate_durable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Flush = bySync })
		r.pull(2, 3)
		release := make(chan struct{})
		r.nodes[3].fault.Before(vfs.OpSync, func(vfs.Op, string) { <-release })
		r.append(1, 1)
		r.pull(2, 3)
		if a, _ := r.nodes[3].p.FollowerAck(r.nodes[3].sub); a.Written != 0 || a.Durable != 0 {
			t.Errorf("ack %+v", a)
		}
		if hw := r.nodes[1].p.State().HighWatermark; hw != 0 {
			t.Errorf("high watermark %d", hw)
		}
		told := r.nodes[3].told
		close(release)
		synctest.Wait()
		if r.nodes[3].told == told {
			t.Error("nobody is told that the disk has it")
		}
		r.pull(3)
		if hw := r.nodes[1].p.State().HighWatermark; hw != 1 {
			t.Errorf("high watermark %d", hw)
		}
	})
}

// A partition whose replicas counted what is written comes to count what is
// durable, and nothing is appended: who had not made it durable does so now.
func TestReplicate_durableFromNowOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.append(1, 3)
		r.pull(2, 3)
		r.part.Flush, r.part.MinIsr = bySync, 1
		r.part.PartitionEpoch++
		r.tell()
		for range 30 {
			time.Sleep(time.Second)
			r.ack(r.nodes[2])
			r.ack(r.nodes[3])
		}
		if n := r.settle(1); n > 0 {
			t.Errorf("idle followers were found to be behind: %d proposals, the ISR is %v", n, r.part.GetIsr())
		}
		for _, n := range r.nodes[2:] {
			if a, ok := n.p.FollowerAck(n.sub); !ok || a.Durable != 3 || n.p.log.Durable() != 3 {
				t.Errorf("broker %d acknowledges %+v, %t; the disk has what is below %d", n.id, a, ok, n.p.log.Durable())
			}
		}
	})
}

// A topic whose replicas counted what is durable comes to count what is written,
// and the log can't note that: the disk counts on until it can.
func TestReplicate_durableUntilItIsNoted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Flush, p.MinIsr = bySync, 1 })
		n := r.nodes[1]
		n.fault.Inject(vfs.Rule{Ops: vfs.OpOpen, Path: "*checkpoint", Times: -1, Err: syscall.EMFILE})
		r.part.Flush, r.part.MinIsr = async, 2
		r.part.PartitionEpoch++
		r.tell()
		if in := n.p.Inside(); !in.Leader || !in.Sync || in.MinISR != 2 {
			t.Errorf("it is not noted that what is written counts: %+v", in)
		}
		if in := r.nodes[2].p.Inside(); in.Sync {
			t.Errorf("it is noted that what is written counts: %+v", in)
		}
		n.fault.Clear()
		time.Sleep(2 * retryEvery)
		synctest.Wait()
		if in := n.p.Inside(); !in.Leader || in.Sync {
			t.Errorf("what is written counts: %+v", in)
		}
	})
}
