package client_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/runnelmq/runnel/client"
)

func Example() {
	ctx := context.Background()
	c, err := client.New([]string{"127.0.0.1:7420"})
	if err != nil {
		return
	}
	defer c.Close()
	p, err := c.NewProducer()
	if err != nil {
		return
	}
	defer p.Close(ctx)
	if _, err := p.ProduceSync(ctx, client.Record{Topic: "orders", Key: []byte("alice"), Value: []byte("one apple")}); err != nil {
		fmt.Println(err)
	}
}

func ExampleProducer_Produce() {
	ctx := context.Background()
	c, err := client.New([]string{"127.0.0.1:7420"})
	if err != nil {
		return
	}
	defer c.Close()
	p, err := c.NewProducer(client.Compress(client.Zstd, 0), client.DeliveryTimeout(30*time.Second))
	if err != nil {
		return
	}
	for i := range 1000 {
		p.Produce(ctx, client.Record{Topic: "orders", Value: fmt.Append(nil, i)}, func(r client.Result) {
			switch r.Outcome() {
			case client.Acknowledged:
			case client.Failed: // not in the log: it may be sent again
			case client.Unknown: // sending it again may store it twice
			}
		})
	}
	if err := p.Close(ctx); err != nil {
		fmt.Println(err)
	}
}

func ExampleReader_Records() {
	ctx := context.Background()
	c, err := client.New([]string{"127.0.0.1:7420"})
	if err != nil {
		return
	}
	defer c.Close()
	r, err := c.NewReader()
	if err != nil {
		return
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: "orders", Partition: client.AnyPartition, AtEnd: true}); err != nil {
		return
	}
	var kept []client.Record
	for rec, err := range r.Records(ctx) {
		if err != nil {
			fmt.Println(err)
			break
		}
		fmt.Printf("%d/%d %s\n", rec.Partition, rec.Offset, rec.Value)
		kept = append(kept, rec.Clone()) // rec itself is good until the next step
	}
	_ = kept
}

func ExampleReader_Poll() {
	ctx := context.Background()
	c, err := client.New([]string{"127.0.0.1:7420"})
	if err != nil {
		return
	}
	defer c.Close()
	r, err := c.NewReader(client.Prefetch(16<<20), client.OnOutOfRange(client.ResetEarliest))
	if err != nil {
		return
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: "orders", Start: client.AtTime(time.Now().Add(-time.Hour))}); err != nil {
		return
	}
	for {
		b, err := r.Poll(ctx)
		if err != nil {
			return
		}
		for rec := range b.All() {
			fmt.Println(rec.Offset)
		}
	}
}

func ExampleAdmin() {
	ctx := context.Background()
	c, err := client.New([]string{"127.0.0.1:7420"})
	if err != nil {
		return
	}
	defer c.Close()
	results, err := c.NewAdmin().CreateTopics(ctx, []client.NewTopic{{Name: "orders", Partitions: 8}})
	if err != nil {
		return
	}
	for _, r := range results {
		if errors.Is(r.Err, client.ErrTopicExists) {
			fmt.Println(r.Name, "was there")
		}
	}
}
