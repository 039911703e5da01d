package broker

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/internal/vfs"
)

// addresses of broker id; the first has those of a town.
func clientOf(id int32) string   { return fmt.Sprintf("127.0.0.1:%d", 7420+100*(id-1)) }
func internalOf(id int32) string { return fmt.Sprintf("127.0.0.1:%d", 7421+100*(id-1)) }

// join starts one more broker, on a disk of its own.
func (w *town) join(id int32, disk vfs.FS) *running {
	w.t.Helper()
	cfg := testConfig()
	cfg.ID, cfg.Listen.Client, cfg.Listen.Internal = id, clientOf(id), internalOf(id)
	b, err := New(cfg, Deps{FS: disk, Listen: w.net.listen, Dial: w.net.dial, Log: zerolog.Nop(), Version: "test"})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.t.Context())
	r := &running{Broker: b, cancel: cancel, done: make(chan struct{})}
	w.wg.Go(func() {
		defer close(r.done)
		r.err = b.Run(ctx)
		w.net.close(cfg.Listen.Client)
		w.net.close(cfg.Listen.Internal)
	})
	select {
	case <-r.Ready():
	case <-r.done:
		w.t.Fatalf("broker %d ended: %v", id, r.err)
	}
	return r
}

// at makes the town's client talk to another broker.
func (w *town) at(id int32) {
	w.t.Helper()
	_ = w.conn.Close()
	conn, err := grpc.NewClient("passthrough:///"+clientOf(id), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(w.net.dial), grpc.WithIdleTimeout(0))
	if err != nil {
		w.t.Fatal(err)
	}
	w.conn = conn
}

// Three whole brokers copy a topic among each other; the leadership moves from
// one to the next and nothing that was acknowledged is missing.
func TestReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		brokers := map[int32]*running{}
		for id := range int32(3) {
			brokers[id+1] = w.join(id+1, vfs.NewMem())
		}
		id := uuid.New()
		lead := func(broker int32, epoch int64) {
			w.controller.Put(
				&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{
					TopicId: id.String(), Name: "orders", Phase: controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE, Partitions: 1, ReplicationFactor: 3,
				}}},
				&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Partition{Partition: &controllerv1.PartitionRecord{
					TopicId: id.String(), Leader: broker, LeaderEpoch: epoch, PartitionEpoch: epoch,
					Replicas: []int32{1, 2, 3}, Isr: []int32{1, 2, 3}, MinIsr: 3, Flush: controllerv1.FlushMode_FLUSH_MODE_ASYNC,
				}}},
			)
			time.Sleep(20 * time.Millisecond) // until all have applied it, and follow
		}
		var want []string
		for i, leader := range []int32{1, 2, 3, 1} {
			lead(leader, int64(i)+1)
			w.at(leader)
			for range 10 {
				v := fmt.Sprintf("%d at %d", len(want), leader)
				start := time.Now()
				if off, err := w.produce("orders", v); err != nil || off != int64(len(want)) {
					t.Fatalf("produce at broker %d: offset %d, %v", leader, off, err)
				}
				if took := time.Since(start); took > time.Millisecond {
					t.Errorf("it took %s", took)
				}
				want = append(want, v)
			}
			if got, err := w.read("orders"); err != nil || !slices.Equal(got, want) {
				t.Fatalf("read at broker %d: %v, %v", leader, got, err)
			}
		}
		conn, err := brokers[1].dial(nil, nil)(internalOf(3))
		if err != nil {
			t.Fatal(err)
		}
		who, err := replicav1.NewReplicaServiceClient(conn).Probe(t.Context(), &replicav1.ProbeRequest{})
		if err != nil || who.GetBrokerId() != 3 || who.GetIncarnation() != brokers[3].incarnation || who.GetClusterId() != w.controller.ClusterID() {
			t.Errorf("probe: %v, %v", who, err)
		}
		_ = conn.Close()
		for _, b := range brokers {
			start := time.Now()
			b.end(t)
			if took := time.Since(start); took > 3*time.Second {
				t.Errorf("a broker took %v to end", took)
			}
		}
	})
}
