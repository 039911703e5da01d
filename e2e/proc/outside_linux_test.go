package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// A broker that was never let into the cluster says that it knows nothing, and clients
// that come to it first write, read and create at another one.
func TestCluster_seedOutside(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 2})
	out := g.Brokers[1]
	g.Brokers[0].cli(t, "topic", "create", "work", "--partitions", "2", "--replication-factor", "2")
	out.stop(t)
	out.Process = must[*Process](t)(out.aside())
	eventually(t, "it says that it knows nothing", func() bool {
		r := out.try(t, out.command(t, "topic", "list", "--timeout", "2s"))
		if r.Code == 0 {
			t.Fatalf("it lists topics: %s", r.Stdout)
		}
		return r.Code == 1
	})
	seeds := []string{out.Client, g.Brokers[0].Client}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := writeAndRead(ctx, seeds, nil, nil); err != nil {
		t.Error(err)
	}
	if err := writeAndRead(ctx, seeds, []client.Option{client.WithRouting(client.Proxy)}, []client.ProducerOption{client.WithoutIdempotence()}); err != nil {
		t.Errorf("proxied: %v", err)
	}
}

func writeAndRead(ctx context.Context, seeds []string, opts []client.Option, popts []client.ProducerOption) error {
	c, err := client.New(seeds, opts...)
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := c.NewProducer(popts...)
	if err != nil {
		return err
	}
	if _, err := p.ProduceSync(ctx, client.Record{Topic: "work", Value: []byte("v")}); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	if err := p.Close(ctx); err != nil {
		return err
	}
	// A client of its own, which has not found another broker yet.
	c2, err := client.New(seeds, opts...)
	if err != nil {
		return err
	}
	defer c2.Close()
	r, err := c2.NewReader()
	if err != nil {
		return err
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: "work", Partition: client.AnyPartition, AtEnd: true}); err != nil {
		return fmt.Errorf("assign: %w", err)
	}
	n := 0
	for {
		b, err := r.Poll(ctx)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		for b.Next() {
			n++
		}
	}
	if n == 0 {
		return errors.New("nothing was read")
	}
	c3, err := client.New(seeds, opts...)
	if err != nil {
		return err
	}
	defer c3.Close()
	if _, err := c3.NewAdmin().ListTopics(ctx, "", false); err != nil {
		return fmt.Errorf("list: %w", err)
	}
	return nil
}
