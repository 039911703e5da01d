package rpc

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// A broker that no controller has let in yet says that it knows nothing, and not that
// there is nothing; a question waits a moment for that.
func TestQuestions_beforeTheFirstImage(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		asks := map[string]func(context.Context) error{
			"list topics": func(ctx context.Context) error {
				_, err := c.ListTopics(ctx, &runnelv1.ListTopicsRequest{})
				return err
			},
			"describe topics": func(ctx context.Context) error {
				_, err := c.DescribeTopics(ctx, &runnelv1.DescribeTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: "t"}}})
				return err
			},
			"list offsets": func(ctx context.Context) error {
				_, err := c.ListOffsets(ctx, &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{{Topic: "t"}}})
				return err
			},
			"list partitions": func(ctx context.Context) error {
				_, err := c.ListPartitions(ctx, &runnelv1.ListPartitionsRequest{})
				return err
			},
			"describe cluster": func(ctx context.Context) error {
				_, err := c.DescribeCluster(ctx, &runnelv1.DescribeClusterRequest{})
				return err
			},
			"metadata": func(ctx context.Context) error {
				_, err := c.GetMetadata(ctx, &runnelv1.GetMetadataRequest{})
				return err
			},
			"watch": func(ctx context.Context) error {
				ctx, cancel := context.WithCancel(ctx)
				defer cancel()
				w, err := c.WatchMetadata(ctx, &runnelv1.WatchMetadataRequest{})
				if err != nil {
					return err
				}
				_, err = w.Recv()
				return err
			},
		}
		for name, ask := range asks {
			c.store.Publish(&metadata.Image{Self: 1})
			begun := time.Now()
			if got := rpcerr.Reason(ask(t.Context())); got != runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA {
				t.Errorf("%s: %v, want STALE_METADATA", name, got)
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("%s: refused after %v", name, took)
			}
			answered := make(chan error, 1)
			var asking sync.WaitGroup
			asking.Go(func() { answered <- ask(t.Context()) })
			synctest.Wait()
			c.store.Publish(&metadata.Image{Self: 1, ClusterID: "test"})
			asking.Wait()
			if err := <-answered; err != nil {
				t.Errorf("%s, and then the image comes: %v", name, err)
			}
		}
	})
}
