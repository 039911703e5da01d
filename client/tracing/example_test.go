package tracing_test

import (
	"context"
	"fmt"

	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/client/tracing"
)

// A producer that begins a span for every record, as a child of the one in the
// context that Produce is given.
func ExampleProducer() {
	spans := tracetest.NewSpanRecorder()
	tp := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)) // nil stands for the registered one
	c, err := client.New([]string{"127.0.0.1:1"})
	if err != nil {
		panic(err)
	}
	defer c.Close()
	p, err := c.NewProducer(client.Intercept(tracing.Producer(tp)))
	if err != nil {
		panic(err)
	}
	ctx, request := tp.Tracer("shop").Start(context.Background(), "request")
	p.Produce(ctx, client.Record{Topic: "orders", Value: []byte("one")}, nil)
	request.End()
	ended, cancel := context.WithCancel(ctx)
	cancel() // there is no broker in this example
	_ = p.Close(ended)
	for _, s := range spans.Ended() {
		fmt.Println(s.Name(), s.SpanContext().TraceID() == request.SpanContext().TraceID())
	}
	// Output:
	// request true
	// send orders true
}

// The work on a record is a child of the span that it was written in, wherever
// that was.
func ExampleProcess() {
	tp := sdk.NewTracerProvider()
	ctx, written := tp.Tracer("shop").Start(context.Background(), "request")
	rec := client.Record{Topic: "orders", Value: []byte("one")}
	tracing.Inject(ctx, &rec) // as tracing.Producer does for every record
	written.End()

	// In another program, with a record that was read:
	ctx, span := tracing.Process(context.Background(), tp, rec)
	defer span.End()
	_ = ctx // for what is called
	fmt.Println(span.SpanContext().TraceID() == written.SpanContext().TraceID())
	// Output: true
}

// Without spans of its own, a program passes on what it was given.
func ExampleExtract() {
	rec := client.Record{Headers: []client.Header{{Key: "traceparent", Value: []byte("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")}}}
	ctx := tracing.Extract(context.Background(), rec)
	var next client.Record
	tracing.Inject(ctx, &next)
	fmt.Printf("%s: %s\n", next.Headers[0].Key, next.Headers[0].Value)
	// Output: traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01
}
