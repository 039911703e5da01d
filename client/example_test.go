package client_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/runnelmq/runnel/client"
)

// exampleCluster stands for a running cluster with a topic "orders" of one
// partition; it returns the addresses of its brokers. A program has such
// addresses from its configuration: []string{"127.0.0.1:7420"}.
func exampleCluster() (brokers []string, stop func()) {
	lis, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	f := emptyFake()
	addr := lis.Addr().String()
	stop = f.startNode(addr, lis, true)
	f.create("orders", 1)
	return []string{addr}, stop
}

func Example() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()

	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()

	p, err := c.NewProducer()
	if err != nil {
		panic(err)
	}
	defer p.Close(ctx)
	results, err := p.ProduceSync(ctx,
		client.Record{Topic: "orders", Key: []byte("alice"), Value: []byte("an apple")},
		client.Record{Topic: "orders", Key: []byte("bob"), Value: []byte("a pear")},
	)
	if err != nil {
		panic(err)
	}
	fmt.Println("written up to offset", results[1].Offset)

	r, err := c.NewReader()
	if err != nil {
		panic(err)
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: "orders", Partition: client.AnyPartition, AtEnd: true}); err != nil {
		panic(err)
	}
	for rec, err := range r.Records(ctx) {
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s wants %s\n", rec.Key, rec.Value)
	}
	// Output:
	// written up to offset 1
	// alice wants an apple
	// bob wants a pear
}

// Many records at once: each outcome is told to a callback.
func ExampleProducer_Produce() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	p, err := c.NewProducer(client.Compress(client.Zstd, 0), client.DeliveryTimeout(30*time.Second))
	if err != nil {
		panic(err)
	}
	var acknowledged int // callbacks come one at a time
	for i := range 1000 {
		p.Produce(ctx, client.Record{Topic: "orders", Value: fmt.Append(nil, "order ", i)}, func(r client.Result) {
			switch r.Outcome() {
			case client.Acknowledged:
				acknowledged++
			case client.Failed:
				fmt.Println("not in the log, and never will be:", r.Err)
			case client.Unknown:
				fmt.Println("may be in the log: writing it again may store it twice:", r.Err)
			}
		})
	}
	if err := p.Close(ctx); err != nil { // sends what is left, and waits
		panic(err)
	}
	fmt.Println(acknowledged, "acknowledged")
	// Output: 1000 acknowledged
}

// Some records, and what became of each.
func ExampleProducer_ProduceSync() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	p, err := c.NewProducer()
	if err != nil {
		panic(err)
	}
	defer p.Close(ctx)
	results, err := p.ProduceSync(ctx,
		client.Record{Topic: "orders", Value: []byte("one")},
		client.Record{Topic: "no-such-topic", Value: []byte("two")},
	)
	for _, r := range results {
		fmt.Printf("%s: %v, reason %q\n", r.Topic, r.Outcome(), client.Reason(r.Err))
	}
	fmt.Println(errors.Is(err, client.ErrTopicNotFound), client.Retriable(err))
	// Output:
	// orders: acknowledged, reason ""
	// no-such-topic: failed, reason "TOPIC_NOT_FOUND"
	// true false
}

// Flush waits for what was given to Produce before.
func ExampleProducer_Flush() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	p, err := c.NewProducer(client.Linger(10 * time.Second)) // Flush does not linger
	if err != nil {
		panic(err)
	}
	defer p.Close(ctx)
	p.Produce(ctx, client.Record{Topic: "orders", Value: []byte("one")}, func(r client.Result) { fmt.Println("offset", r.Offset) })
	if err := p.Flush(ctx); err != nil {
		panic(err)
	}
	// Output: offset 0
}

// The last two records of each partition, record by record.
func ExampleReader_Records() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	writeOrders(c, 5)
	r, err := c.NewReader()
	if err != nil {
		panic(err)
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: "orders", Partition: client.AnyPartition, Start: client.BeforeEnd(2), AtEnd: true}); err != nil {
		panic(err)
	}
	var kept []client.Record
	for rec, err := range r.Records(ctx) {
		if err != nil {
			panic(err)
		}
		kept = append(kept, rec.Clone()) // rec itself is good until the next step
	}
	for _, rec := range kept {
		fmt.Printf("%d: %s\n", rec.Offset, rec.Value)
	}
	// Output:
	// 3: order 3
	// 4: order 4
}

// The same batch by batch: the fastest way to read, without a copy.
func ExampleReader_Poll() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	writeOrders(c, 3)
	r, err := c.NewReader(client.Prefetch(16<<20), client.OnOutOfRange(client.ResetEarliest))
	if err != nil {
		panic(err)
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: "orders", Start: client.AtTime(time.Now().Add(-time.Hour))}); err != nil {
		panic(err)
	}
	for {
		b, err := r.Poll(ctx)
		if err != nil {
			panic(err)
		}
		for rec := range b.All() {
			fmt.Printf("%s\n", rec.Value)
		}
		if err := b.Err(); err != nil {
			panic(err)
		}
		if b.NextOffset() == b.HighWatermark() {
			return // there is no more at present
		}
	}
	// Output:
	// order 0
	// order 1
	// order 2
}

// Going back to an offset, and leaving a partition alone for a while.
func ExampleReader_Seek() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	writeOrders(c, 3)
	r, err := c.NewReader()
	if err != nil {
		panic(err)
	}
	defer r.Close()
	if err := r.Assign(ctx, client.Assignment{Topic: "orders", AtEnd: true}); err != nil {
		panic(err)
	}
	again := true
	for rec, err := range r.Records(ctx) {
		if err != nil {
			panic(err)
		}
		fmt.Printf("%s\n", rec.Value)
		if rec.Offset == 1 && again {
			again = false
			if err := r.Seek(ctx, "orders", 0, client.AtOffset(1)); err != nil {
				panic(err)
			}
		}
	}
	// Output:
	// order 0
	// order 1
	// order 1
	// order 2
}

func ExampleAdmin_DescribeTopics() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	topics, err := c.NewAdmin().DescribeTopics(ctx, []string{"orders", "no-such-topic"})
	if err != nil {
		panic(err) // of the call as a whole
	}
	for _, t := range topics {
		if t.Err != nil {
			fmt.Println(t.Name, client.Reason(t.Err))
			continue
		}
		fmt.Println(t.Name, t.PartitionCount)
	}
	// Output:
	// orders 1
	// no-such-topic TOPIC_NOT_FOUND
}

func ExampleAdmin_CreateTopics() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	results, err := c.NewAdmin().CreateTopics(ctx, []client.NewTopic{
		{Name: "orders", Partitions: 8},
		{Name: "payments", Partitions: 8, Configs: map[string]string{"retention.ms": "86400000"}},
	})
	if err != nil {
		panic(err)
	}
	for _, r := range results {
		switch {
		case errors.Is(r.Err, client.ErrTopicExists):
			fmt.Println(r.Name, "was there")
		case r.Err != nil:
			panic(r.Err)
		default:
			fmt.Println(r.Name, "created")
		}
	}
	// Output:
	// orders was there
	// payments created
}

// Figures for a program's own metrics.
func ExampleWithHooks() {
	brokers, stop := exampleCluster()
	defer stop()
	var records, retries int
	c, err := client.New(brokers, client.WithHooks(client.Hooks{
		Produced: func(b client.BatchInfo) {
			if b.Err == nil {
				records += b.Records
			}
			retries += b.Retries
		},
		Proxied: func(addr string, why error) {
			fmt.Println("the leader at", addr, "is reached through another broker:", why)
		},
	}))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	writeOrders(c, 3)
	fmt.Println(records, "records,", retries, "retries")
	// Output: 3 records, 0 retries
}

// Every record gets a header, such as the trace it belongs to: for that, see
// the package tracing.
func ExampleIntercept() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	p, err := c.NewProducer(client.Intercept(func(_ context.Context, r *client.Record) func(client.Result) {
		r.Headers = append(r.Headers, client.Header{Key: "from", Value: []byte("shop")})
		begun := time.Now()
		return func(client.Result) { _ = time.Since(begun) }
	}))
	if err != nil {
		panic(err)
	}
	defer p.Close(ctx)
	if _, err := p.ProduceSync(ctx, client.Record{Topic: "orders", Value: []byte("one")}); err != nil {
		panic(err)
	}
	// Output:
}

func writeOrders(c *client.Client, n int) {
	ctx := context.Background()
	p, err := c.NewProducer()
	if err != nil {
		panic(err)
	}
	defer p.Close(ctx)
	for i := range n {
		if _, err := p.ProduceSync(ctx, client.Record{Topic: "orders", Value: fmt.Append(nil, "order ", i)}); err != nil {
			panic(err)
		}
	}
}

// Encrypted connections, with a bearer token for every call. The broker's name is
// checked against its certificate, by its address or as ServerName says.
func ExampleTLS() {
	roots := x509.NewCertPool() // the authority that signed the brokers' certificates
	c, err := client.New([]string{"broker-1.example:7420", "broker-2.example:7420"},
		client.TLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}),
		client.Token("a token from the authorization server"))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	fmt.Println(c.Brokers())
	// Output: [broker-1.example:7420 broker-2.example:7420]
}

// A token is not sent in the clear.
func ExampleToken() {
	_, err := client.New([]string{"127.0.0.1:7420"}, client.Token("secret"))
	fmt.Println(err)
	// Output: a token is sent over TLS only: add client.TLS, or leave the token out
}

// Through a port-forward or a load balancer the brokers' own addresses lead
// nowhere: everything goes to the one that is given.
func ExampleWithRouting() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers, client.WithRouting(client.Proxy), client.ConnectTimeout(2*time.Second), client.UserAgent("shop/1.4"))
	if err != nil {
		panic(err)
	}
	defer c.Close()
	fmt.Println("alive:", c.Ping(ctx) == nil)
	// Output: alive: true
}

// By default a record with a key goes where Kafka's Java client would put it. A
// partitioner of one's own sees the whole record.
func ExamplePartitionBy() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	if _, err := c.NewAdmin().CreateTopics(ctx, []client.NewTopic{{Name: "by-country", Partitions: 2}}); err != nil {
		panic(err)
	}
	byCountry, err := c.NewProducer(client.PartitionBy(func(r *client.Record, n int32) int32 {
		if len(r.Headers) > 0 && string(r.Headers[0].Value) == "ch" {
			return n - 1
		}
		return 0
	}))
	if err != nil {
		panic(err)
	}
	defer byCountry.Close(ctx)
	manual, err := c.NewProducer(client.PartitionBy(client.Manual))
	if err != nil {
		panic(err)
	}
	defer manual.Close(ctx)
	country := []client.Header{{Key: "country", Value: []byte("ch")}}
	a, err := byCountry.ProduceSync(ctx, client.Record{Topic: "by-country", Value: []byte("one"), Headers: country})
	if err != nil {
		panic(err)
	}
	b, err := manual.ProduceSync(ctx, client.Record{Topic: "by-country", Partition: 0, Value: []byte("two")})
	if err != nil {
		panic(err)
	}
	fmt.Println(a[0].Partition, b[0].Partition)
	// Output: 1 0
}

// Where memory counts more than waiting: a bound, and an error when it is used up.
func ExampleFailWhenFull() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	p, err := c.NewProducer(client.MaxBufferedBytes(64<<10), client.FailWhenFull(), client.Linger(time.Second), client.BatchBytes(1<<20))
	if err != nil {
		panic(err)
	}
	var full bool
	for range 100 {
		p.Produce(ctx, client.Record{Topic: "orders", Value: make([]byte, 1<<10)}, func(r client.Result) {
			if errors.Is(r.Err, client.ErrBufferFull) {
				full = true // it was not taken: slow down, and try again
			}
		})
	}
	if err := p.Close(ctx); err != nil {
		panic(err)
	}
	fmt.Println("full:", full)
	// Output: full: true
}

// Where a reader stands is the program's to keep: with what it made of the
// records, for example, so that both are stored or neither.
func ExampleReader_Position() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	writeOrders(c, 5)
	read := func(from client.Start, n int) (next int64) {
		r, err := c.NewReader()
		if err != nil {
			panic(err)
		}
		defer r.Close()
		if err := r.Assign(ctx, client.Assignment{Topic: "orders", Start: from, AtEnd: true}); err != nil {
			panic(err)
		}
		for rec, err := range r.Records(ctx) {
			if err != nil {
				panic(err)
			}
			fmt.Printf("%s\n", rec.Value)
			if n--; n == 0 {
				break
			}
		}
		next, _ = r.Position("orders", 0)
		return next
	}
	kept := read(client.Earliest(), 2)
	read(client.AtOffset(kept), 10)
	// Output:
	// order 0
	// order 1
	// order 2
	// order 3
	// order 4
}

// What is left of records that a program could not write: those that failed for
// certain are safe to write again, of the others nobody can say.
func ExampleRetriable() {
	brokers, stop := exampleCluster()
	defer stop()
	ctx := context.Background()
	c, err := client.New(brokers)
	if err != nil {
		panic(err)
	}
	defer c.Close()
	p, err := c.NewProducer()
	if err != nil {
		panic(err)
	}
	defer p.Close(ctx)
	_, err = p.ProduceSync(ctx, client.Record{Topic: "orders", Value: make([]byte, 2<<20)})
	if e, ok := errors.AsType[*client.Error](err); ok {
		most, _ := e.Int("maxBytes")
		fmt.Println(e.Reason, most, client.Retriable(err), errors.Is(err, client.ErrOutcomeUnknown))
	}
	// Output: RECORD_TOO_LARGE 1048576 false false
}
