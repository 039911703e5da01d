package rpc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

func TestWatchMetadata(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		var objects []*controllerv1.MetadataObject
		for i := range 5000 {
			objects = append(objects, elsewhere(uuid.New(), fmt.Sprintf("topic-%05d-%s", i, strings.Repeat("x", 200)), 2)...)
		}
		c.publish(objects...)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w, err := c.WatchMetadata(ctx, &runnelv1.WatchMetadataRequest{})
		if err != nil {
			t.Fatal(err)
		}
		next := func(w grpc.ServerStreamingClient[runnelv1.WatchMetadataResponse]) *runnelv1.WatchMetadataResponse {
			t.Helper()
			m, err := w.Recv()
			if err != nil {
				t.Fatal(err)
			}
			if n := proto.Size(m); n >= 1<<20 {
				t.Errorf("a piece of %d bytes", n)
			}
			return m
		}
		topics, pieces := 0, 0
		for {
			m := next(w)
			topics += len(m.GetTopics())
			pieces++
			if m.GetSnapshotComplete() {
				break
			}
		}
		if topics != 5000 || pieces < 2 {
			t.Errorf("%d topics in %d pieces", topics, pieces)
		}
		named, err := c.WatchMetadata(ctx, &runnelv1.WatchMetadataRequest{Topics: []string{"later", "later"}})
		if err != nil {
			t.Fatal(err)
		}
		if m := next(named); len(m.GetTopics()) != 1 || m.GetTopics()[0].GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND || !m.GetSnapshotComplete() {
			t.Errorf("a topic that is not there: %v", m)
		}
		// Created, changed, deleted: told at once, and of others nothing.
		id := c.topic("later", 1)
		for _, w := range []grpc.ServerStreamingClient[runnelv1.WatchMetadataResponse]{w, named} {
			start := time.Now()
			if m := next(w); len(m.GetTopics()) != 1 || m.GetTopics()[0].GetName() != "later" || m.GetTopics()[0].GetPartitions()[0].GetLeader() != 1 || time.Since(start) > 50*time.Millisecond {
				t.Errorf("created: %v", m)
			}
		}
		c.publish(elsewhere(uuid.New(), "another", 1)...)
		c.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: id.String()}})
		if m := next(named); !slices.Equal(m.GetDeletedTopicIds(), []string{id.String()}) || len(m.GetTopics()) != 0 {
			t.Errorf("deleted: %v", m)
		}
		// Nothing happens: the stream shows that it lives.
		start := time.Now()
		if m := next(named); len(m.GetTopics()) != 0 || time.Since(start) > 16*time.Second {
			t.Errorf("idle: %v after %v", m, time.Since(start))
		}
		close(c.drain)
		if m := next(named); m.GetGoaway().GetReason() != runnelv1.GoawayReason_GOAWAY_REASON_DRAINING || !m.GetGoaway().GetFinal() {
			t.Errorf("draining: %v", m)
		}
		if _, err := named.Recv(); rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN {
			t.Errorf("the end: %v", err)
		}
	})
}

// Who is in sync may change of many partitions one after the other, and no client
// goes by it: such changes are told together, and with the first that clients need.
func TestWatchMetadata_routine(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		id := uuid.New()
		c.publish(metadatatest.TopicObjects(id, "wide", 20, 1, 1)...)
		w, err := c.WatchMetadata(t.Context(), &runnelv1.WatchMetadataRequest{Topics: []string{"wide"}})
		if err != nil {
			t.Fatal(err)
		}
		next := func() []*runnelv1.PartitionMetadata {
			t.Helper()
			m, err := w.Recv()
			if err != nil || len(m.GetTopics()) != 1 {
				t.Fatalf("told %v, %v", m, err)
			}
			return m.GetTopics()[0].GetPartitions()
		}
		joins := func(n int32, epoch int64) {
			t.Helper()
			o := metadatatest.PartitionObject(id, n, 1, epoch)
			o.GetPartition().Isr = []int32{1, 2}
			c.publish(o)
			<-time.NewTimer(20 * time.Millisecond).C
		}
		both := func(ps []*runnelv1.PartitionMetadata) (n int) {
			for _, p := range ps {
				if len(p.GetIsr()) == 2 {
					n++
				}
			}
			return n
		}
		next()
		start := time.Now()
		for n := range int32(10) {
			joins(n, 1)
		}
		if n, took := both(next()), time.Since(start); n != 10 || took > watchRoutine+50*time.Millisecond {
			t.Errorf("%d of 10 after %v", n, took)
		}
		joins(10, 1)
		start = time.Now()
		joins(11, 2)
		if ps := next(); both(ps) != 12 || ps[11].GetLeaderEpoch() != 2 || time.Since(start) > 50*time.Millisecond {
			t.Errorf("a new epoch: %v after %v", ps[11], time.Since(start))
		}
		// Nothing was left over for later.
		if m, err := w.Recv(); err != nil || len(m.GetTopics()) != 0 || time.Since(start) < 10*time.Second {
			t.Errorf("and then %v, %v", m, err)
		}
	})
}
