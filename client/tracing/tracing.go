// Package tracing carries OpenTelemetry traces in the headers of records, as
// W3C Trace Context has them: traceparent and tracestate.
//
// [Producer] begins a span for every record that is written, and [Process] one
// for a record that was read, as its child. [Inject] and [Extract] only carry.
package tracing

import (
	"context"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/runnelmq/runnel/client"
)

const scope = "github.com/runnelmq/runnel/client/tracing"

// format is what headers carry, whatever the program's own propagator is: a
// reader in another program must understand it.
func format() propagation.TextMapPropagator { return propagation.TraceContext{} }

// Inject writes the trace of ctx into the headers of r. The list that r.Headers
// was before is not changed.
func Inject(ctx context.Context, r *client.Record) { format().Inject(ctx, carrier{r}) }

// Extract returns ctx with the trace that the headers of r carry, if any.
func Extract(ctx context.Context, r client.Record) context.Context {
	return format().Extract(ctx, carrier{&r})
}

// Producer returns an interceptor for [client.Intercept] that begins a span for
// every record, and ends it with the record's outcome. A nil provider stands
// for the one that is registered with OpenTelemetry.
func Producer(tp trace.TracerProvider) client.Interceptor {
	tracer := tracerOf(tp)
	return func(ctx context.Context, r *client.Record) func(client.Result) {
		ctx, span := tracer.Start(ctx, "send "+r.Topic, trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(attributes(r, "send")...))
		Inject(ctx, r)
		return func(res client.Result) {
			if res.Partition >= 0 {
				span.SetAttributes(attribute.String("messaging.destination.partition.id", strconv.Itoa(int(res.Partition))))
			}
			if res.Offset >= 0 {
				span.SetAttributes(attribute.Int64("messaging.runnel.offset", res.Offset))
			}
			if res.Err != nil {
				span.SetAttributes(attribute.String("error.type", res.Outcome().String()))
				span.SetStatus(codes.Error, res.Err.Error())
			}
			span.End()
		}
	}
}

// Process begins a span for the work on a record that was read, as a child of
// the one it was written in. The caller ends it. A nil provider is as for
// [Producer].
func Process(ctx context.Context, tp trace.TracerProvider, r client.Record) (context.Context, trace.Span) {
	attrs := attributes(&r, "process")
	attrs = append(attrs,
		attribute.String("messaging.destination.partition.id", strconv.Itoa(int(r.Partition))),
		attribute.Int64("messaging.runnel.offset", r.Offset))
	return tracerOf(tp).Start(Extract(ctx, r), "process "+r.Topic, trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...))
}

func tracerOf(tp trace.TracerProvider) trace.Tracer {
	if tp == nil {
		tp = otel.GetTracerProvider()
	}
	return tp.Tracer(scope)
}

// attributes are those of OpenTelemetry's conventions for messaging. A record
// that was read is good for a moment only, and a span for longer: what is in
// the span are copies.
func attributes(r *client.Record, operation string) []attribute.KeyValue {
	attrs := []attribute.KeyValue{
		attribute.String("messaging.system", "runnel"),
		attribute.String("messaging.operation.type", operation),
		attribute.String("messaging.destination.name", strings.Clone(r.Topic)),
		attribute.Int("messaging.message.body.size", len(r.Value)),
	}
	if utf8.Valid(r.Key) && len(r.Key) > 0 {
		attrs = append(attrs, attribute.String("messaging.runnel.key", string(r.Key)))
	}
	return attrs
}

// A carrier lets a propagator read and write the headers of a record.
type carrier struct{ r *client.Record }

// Get returns a copy of the first header of that name.
func (c carrier) Get(key string) string {
	for _, h := range c.r.Headers {
		if h.Key == key {
			return string(h.Value)
		}
	}
	return ""
}

// Set replaces the header of that name, or adds one.
func (c carrier) Set(key, value string) {
	hs := make([]client.Header, 0, len(c.r.Headers)+1)
	for _, h := range c.r.Headers {
		if h.Key != key {
			hs = append(hs, h)
		}
	}
	hs = append(hs, client.Header{Key: key, Value: []byte(value)})
	c.r.Headers = hs
}

// Keys returns the names of all headers.
func (c carrier) Keys() (ks []string) {
	for _, h := range c.r.Headers {
		ks = append(ks, strings.Clone(h.Key))
	}
	return ks
}
