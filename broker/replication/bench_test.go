package replication

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/vfs"
)

// loopback is three brokers with real disks and a real network.
func loopback(b *testing.B) *town {
	b.Helper()
	w := &town{t: b, objects: map[string]*controllerv1.MetadataObject{}, nodes: map[int32]*node{}}
	for id := range int32(3) {
		var lc net.ListenConfig
		lis, err := lc.Listen(b.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			b.Fatal(err)
		}
		n := &node{town: w, id: id + 1, addr: lis.Addr().String()}
		n.run(vfs.OS(), filepath.Join(b.TempDir(), "data"), lis, func(ctx context.Context, to string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "tcp", to)
		})
	}
	return w
}

// leads waits until broker 1 leads a partition and all follow it.
func (w *town) leads(id uuid.UUID, number int32) *node {
	n := w.nodes[1]
	for {
		if p, err := n.set.Get(id, number); err == nil && p.State().Leader {
			break
		}
		<-n.set.Changed()
	}
	_, committed := n.append(id, number, 1, 1)
	if err := <-committed; err != nil {
		w.t.Fatal(err)
	}
	return n
}

// BenchmarkReplicate appends at a leader and waits for two followers; per
// operation one batch of 64 KiB, of which up to 64 are on their way.
func BenchmarkReplicate(b *testing.B) {
	for _, partitions := range []int32{1, 16} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			w := loopback(b)
			defer w.end()
			id := w.topic(async, partitions, 3, 1, 2, 3)
			var leader *node
			for n := range partitions {
				leader = w.leads(id, n)
			}
			const size = 64 << 10
			slots := make(chan struct{}, 64)
			var failed atomic.Pointer[error]
			proto := batchOf(b, 64, size/64)
			b.SetBytes(int64(proto.FrameSize()))
			n := int32(0)
			for b.Loop() {
				slots <- struct{}{}
				p := leader.replica(id, n%partitions)
				n++
				a, err := p.Append(batchOf(b, 64, size/64), nil)
				if err != nil {
					b.Fatal(err)
				}
				p.WhenCommitted(a, func(err error) {
					if err != nil {
						failed.Store(&err)
					}
					<-slots
				})
			}
			for range cap(slots) {
				slots <- struct{}{}
			}
			if err := failed.Load(); err != nil {
				b.Fatal(*err)
			}
		})
	}
}

// BenchmarkRoundTrip is how long one small record takes until two followers have it.
func BenchmarkRoundTrip(b *testing.B) {
	w := loopback(b)
	defer w.end()
	id := w.topic(async, 1, 3, 1, 2, 3)
	leader := w.leads(id, 0)
	p := leader.replica(id, 0)
	done := make(chan error, 1)
	for b.Loop() {
		a, err := p.Append(batchOf(b, 1, 100), nil)
		if err != nil {
			b.Fatal(err)
		}
		p.WhenCommitted(a, func(err error) { done <- err })
		if err := <-done; err != nil {
			b.Fatal(err)
		}
	}
}
