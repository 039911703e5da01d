package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

func TestGroup_deadLetter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.create("dead", 1)
		g.f.fill(t, "t", 0, 20, 10, record.CompressionNone)
		a := member(t, g.f.client(t), client.WithDeadLetter(client.DeadLetter{Topic: "dead", Attempts: 3, Backoff: time.Second}))
		var tried []int64
		ctx, cancel := context.WithCancel(t.Context())
		begun := time.Now()
		err := a.Run(ctx, func(_ context.Context, r client.Record) error {
			tried = append(tried, r.Offset)
			if r.Offset == 19 {
				cancel()
			}
			if r.Offset == 3 {
				return errors.New("three is a bad number")
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		if want := []int64{0, 1, 2, 3, 3, 3, 4, 5}; !slices.Equal(tried[:8], want) || len(tried) != 22 {
			t.Errorf("tried %v", tried)
		}
		if took := time.Since(begun); took < 1500*time.Millisecond || took > 3100*time.Millisecond {
			t.Errorf("two pauses took %v, want 1.5s to 3s", took)
		}
		dead := g.f.all(t, "dead", 0)
		if len(dead) != 1 {
			t.Fatalf("%d dead letters", len(dead))
		}
		got := map[string]string{}
		for h := dead[0].Headers(); h.Next(); {
			got[string(h.Key())] = string(h.Value())
		}
		for name, want := range map[string]string{
			client.DeadLetterTopic: "t", client.DeadLetterPartition: "0", client.DeadLetterOffset: "3", client.DeadLetterGroup: "g",
			client.DeadLetterError: "three is a bad number", client.DeadLetterAttempts: "3",
		} {
			if got[name] != want {
				t.Errorf("header %s is %q, want %q", name, got[name], want)
			}
		}
		if _, err := time.Parse(time.RFC3339Nano, got[client.DeadLetterTime]); err != nil {
			t.Error(err)
		}
		_ = a.Close()
		if at := g.committed("t", 0); at != 20 {
			t.Errorf("committed %d, want 20", at)
		}
	})
}

func TestGroup_deadLetterFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 20, 10, record.CompressionNone)
		fails := func(context.Context, client.Record) error { return errors.New("no") }
		a := member(t, g.f.client(t), client.WithDeadLetter(client.DeadLetter{Topic: "dead", Attempts: 1}))
		if err := a.Run(t.Context(), fails); !errors.Is(err, client.ErrTopicNotFound) || !strings.Contains(err.Error(), "dead-letter") {
			t.Errorf("run: %v", err)
		}
		g.f.create("dead", 1)
		g.f.locked(func() {
			g.f.onProduce = func(int, *runnelv1.ProduceRequest) action {
				return action{err: item(runnelv1.ErrorReason_ERROR_REASON_INVALID_RECORD, codes.InvalidArgument)}
			}
		})
		err := a.Run(t.Context(), fails)
		if !errors.Is(err, client.ErrInvalidRecord) || !strings.Contains(err.Error(), "cannot be put aside") {
			t.Errorf("run: %v", err)
		}
		// Another Run begins with the same record.
		g.f.locked(func() { g.f.onProduce = nil })
		first := int64(-1)
		stop := errors.New("stop")
		b := member(t, g.f.client(t))
		_ = a.Close()
		if err := b.Run(t.Context(), func(_ context.Context, r client.Record) error { first = r.Offset; return stop }); !errors.Is(err, stop) {
			t.Error(err)
		}
		if first != 0 {
			t.Errorf("begins with %d, want 0", first)
		}
		if err := b.Run(t.Context(), func(_ context.Context, r client.Record) error { first = r.Offset; return stop }); !errors.Is(err, stop) || first != 0 {
			t.Errorf("%v; goes on with %d, want 0", err, first)
		}
	})
}
