package client_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/runnelmq/runnel/client"
)

// Interceptors see records in order, in the caller's goroutine, and what they
// add is stored; their callbacks come before the record's own.
func TestProducer_intercept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake(t, map[string]int{"t": 1})
		var seen, told []string
		tag := func(name string) client.ProducerOption {
			return client.Intercept(func(_ context.Context, r *client.Record) func(client.Result) {
				seen = append(seen, name+string(r.Value))
				r.Headers = append(r.Headers, client.Header{Key: name})
				return func(res client.Result) { told = append(told, name+itoa(res.Offset)) }
			})
		}
		nothing := client.Intercept(func(context.Context, *client.Record) func(client.Result) { return nil })
		p := producer(t, f.client(t), tag("a"), nothing, tag("b"))
		mine := make([]client.Header, 0, 8)
		for i := range 2 {
			p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte(itoa(i)), Headers: mine}, func(res client.Result) { told = append(told, itoa(res.Offset)) })
		}
		p.Produce(t.Context(), client.Record{Topic: "t", Value: []byte("2")}, nil)
		flush(t, p)
		if want := []string{"a0", "b0", "a1", "b1", "a2", "b2"}; !slices.Equal(seen, want) {
			t.Errorf("seen %q, want %q", seen, want)
		}
		if want := []string{"b0", "a0", "0", "b1", "a1", "1", "b2", "a2"}; !slices.Equal(told, want) {
			t.Errorf("told %q, want %q", told, want)
		}
		if mine[:1][0].Key != "" {
			t.Error("the caller's list was written to")
		}
		for _, r := range f.all(t, "t", 0) {
			var names []string
			for h := r.Headers(); h.Next(); {
				names = append(names, string(h.Key()))
			}
			if !slices.Equal(names, []string{"a", "b"}) {
				t.Errorf("headers %q", names)
			}
		}
	})
}
