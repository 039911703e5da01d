package client_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/runnelmq/runnel/client"
)

// exampleGroups is exampleCluster, with consumer groups.
func exampleGroups() (brokers []string, stop func()) {
	lis, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	f := emptyFake()
	f.group = &fakeGroup{
		f: f, topics: []string{"orders"}, members: map[string]*fakeMember{}, changed: make(chan struct{}),
		parts: map[fakeKey]*fakeOwned{{"orders", 0}: {committed: -1}},
	}
	addr := lis.Addr().String()
	stop = f.startNode(addr, lis, true)
	f.create("orders", 1)
	f.create("orders-dead", 1)
	return []string{addr}, stop
}

// A record counts as processed when the body after it has ended; the next member
// goes on with the one after.
func ExampleGroup_Records() {
	brokers, stop := exampleGroups()
	defer stop()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	writeOrders(c, 3)

	g, err := c.NewGroup("billing", client.Topics("orders"))
	if err != nil {
		panic(err)
	}
	defer g.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	for rec, err := range g.Records(ctx) {
		if errors.Is(err, context.Canceled) {
			break // asked to end: all that was handed out is processed
		}
		if err != nil {
			panic(err)
		}
		fmt.Printf("%d: %s\n", rec.Offset, rec.Value)
		if rec.Offset == 2 {
			cancel()
		}
	}
	// Output:
	// 0: order 0
	// 1: order 1
	// 2: order 2
}

// What cannot be processed is tried several times, and then put aside.
func ExampleGroup_Run() {
	brokers, stop := exampleGroups()
	defer stop()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	writeOrders(c, 3)

	g, err := c.NewGroup("billing", client.Topics("orders"),
		client.WithDeadLetter(client.DeadLetter{Topic: "orders-dead", Attempts: 2, Backoff: time.Millisecond}))
	if err != nil {
		panic(err)
	}
	defer g.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_ = g.Run(ctx, func(_ context.Context, rec client.Record) error {
		fmt.Printf("try %s\n", rec.Value)
		switch rec.Offset {
		case 1:
			return errors.New("no such customer")
		case 2:
			cancel()
		}
		return nil
	})
	// Output:
	// try order 0
	// try order 1
	// try order 1
	// try order 2
}

// Commits by hand: what the program has made durable itself, and no more.
func ExampleGroup_Poll() {
	brokers, stop := exampleGroups()
	defer stop()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	writeOrders(c, 3)

	g, err := c.NewGroup("billing", client.Topics("orders"), client.ManualCommit())
	if err != nil {
		panic(err)
	}
	defer g.Close()
	for n := 0; n < 3; {
		b, err := g.Poll(ctx)
		if err != nil {
			panic(err)
		}
		for rec := range b.All() {
			fmt.Printf("%d: %s\n", rec.Offset, rec.Value)
			n++
		}
		if err := b.Err(); err != nil {
			panic(err)
		}
		if err := g.Commit(ctx); err != nil {
			panic(err)
		}
	}
	// Output:
	// 0: order 0
	// 1: order 1
	// 2: order 2
}
