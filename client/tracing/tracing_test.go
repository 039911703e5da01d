package tracing_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/client/tracing"
)

func TestCarriesATrace(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tp := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	ctx, request := tp.Tracer("test").Start(t.Context(), "request")

	r := client.Record{Topic: "t", Key: []byte("k"), Headers: make([]client.Header, 1, 8)}
	r.Headers[0] = client.Header{Key: "mine", Value: []byte("x")}
	own := r.Headers[:2]
	sent := r
	done := tracing.Producer(tp)(ctx, &sent)
	if own[1].Key != "" {
		t.Error("the caller's list of headers was written to")
	}
	done(client.Result{Topic: "t", Partition: 3, Offset: 17})
	request.End()

	_, span := tracing.Process(context.Background(), tp, sent)
	span.End()
	got := spans.Ended()
	var names []string
	for _, s := range got {
		names = append(names, s.Name())
		if s.SpanContext().TraceID() != request.SpanContext().TraceID() {
			t.Errorf("span %q is of another trace", s.Name())
		}
	}
	if diff := cmp.Diff([]string{"send t", "request", "process t"}, names); diff != "" {
		t.Fatal(diff)
	}
	if got[2].Parent().SpanID() != got[0].SpanContext().SpanID() || got[0].SpanKind() != trace.SpanKindProducer {
		t.Errorf("the reader's span is a child of %v, want of the record's", got[2].Parent())
	}
}

func TestFailedRecord(t *testing.T) {
	spans := tracetest.NewSpanRecorder()
	tp := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
	tracing.Producer(tp)(t.Context(), &client.Record{Topic: "t"})(client.Result{Partition: -1, Offset: -1, Err: client.ErrTopicNotFound})
	if s := spans.Ended()[0].Status(); s.Code != codes.Error || s.Description != "TOPIC_NOT_FOUND" {
		t.Errorf("status %+v", s)
	}
}

// Writing a trace twice leaves the last one, and without one nothing is written.
func TestInject(t *testing.T) {
	tp := sdk.NewTracerProvider()
	var r client.Record
	tracing.Inject(t.Context(), &r)
	if len(r.Headers) != 0 {
		t.Errorf("without a trace: headers %v", r.Headers)
	}
	for range 2 {
		ctx, span := tp.Tracer("test").Start(t.Context(), "x")
		tracing.Inject(ctx, &r)
		got := trace.SpanContextFromContext(tracing.Extract(t.Context(), r))
		if len(r.Headers) != 1 || r.Headers[0].Key != "traceparent" || got.SpanID() != span.SpanContext().SpanID() {
			t.Errorf("headers %v", r.Headers)
		}
		span.End()
	}
}
