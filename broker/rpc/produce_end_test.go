package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

// Told to go, a client that half-closes in time gets its answers and OK; one
// that does not gets its answers, the last word, and UNAVAILABLE.
func TestProduce_endings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{opts: LogOptions{GoawayGrace: 3 * time.Second}})
		b.topic("t", 1)
		b.isr("t", 1, 2, 1, 1, 2)
		polite, deaf := b.open(), b.open()
		for _, s := range []runnelv1.LogService_ProduceClient{polite, deaf} {
			send(t, s, textRequest(1, "t", 0, "a"))
		}
		synctest.Wait()
		b.svc.Drain()
		for _, s := range []runnelv1.LogService_ProduceClient{polite, deaf} {
			if g := recv(t, s).GetGoaway(); g.GetReason() != runnelv1.GoawayReason_GOAWAY_REASON_DRAINING || g.GetFinal() || g.GetGrace().AsDuration() != 3*time.Second {
				t.Error(g)
			}
		}
		_ = polite.CloseSend()
		time.Sleep(2 * time.Second)
		send(t, deaf, textRequest(2, "t", 0, "b")) // within the grace period: read
		time.Sleep(2 * time.Second)
		synctest.Wait()
		_ = deaf.Send(textRequest(3, "t", 0, "c")) // after it: not read
		synctest.Wait()
		if got := b.ends()["t/0"]; got != 3 {
			t.Errorf("%d requests were read, want 3", got)
		}
		b.isr("t", 1, 3, 1, 1)
		if got := recv(t, polite); got.GetRequestId() != 1 || got.GetError() != nil {
			t.Error(got)
		}
		ended(t, polite, codes.OK, 0)
		for _, want := range []uint64{1, 2} {
			if got := recv(t, deaf); got.GetRequestId() != want || got.GetError() != nil {
				t.Error(got)
			}
		}
		if g := recv(t, deaf).GetGoaway(); !g.GetFinal() {
			t.Error("no last word")
		}
		ended(t, deaf, codes.Unavailable, runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN)
	})
}

func TestProduce_streamsGrowOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{opts: LogOptions{MaxStreamAge: 10 * time.Minute}})
		start := time.Now()
		g := recv(t, b.open()).GetGoaway()
		if age := time.Since(start); g.GetReason() != runnelv1.GoawayReason_GOAWAY_REASON_MAX_AGE || age < 8*time.Minute || age > 12*time.Minute {
			t.Errorf("after %s: %v", age, g)
		}
	})
}

func TestAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 2)
		resp, err := b.log.Append(t.Context(), &runnelv1.AppendRequest{Request: textRequest(9, "t", 1, "a", "b")})
		want := &runnelv1.ProduceResponse{
			Partition: new(int32(1)), BaseOffset: new(int64(0)), LogStartOffset: new(int64(0)),
			Results: []*runnelv1.ProduceRecordResult{
				{Partition: new(int32(1)), Offset: new(int64(0))}, {Partition: new(int32(1)), Offset: new(int64(1))},
			},
		}
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, resp.GetResponse(), protocmp.Transform()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		_, err = b.log.Append(t.Context(), &runnelv1.AppendRequest{Request: textRequest(9, "none", 1, "a")})
		if status.Code(err) != codes.NotFound || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND {
			t.Error(err)
		}
		_, err = b.log.Append(t.Context(), &runnelv1.AppendRequest{})
		if status.Code(err) != codes.InvalidArgument {
			t.Error(err)
		}
		var out wire.Message
		err = b.conn.Invoke(t.Context(), runnelv1.LogService_Append_FullMethodName, wire.NewMessage([]byte{0x0a, 0x7f}), &out)
		if status.Code(err) != codes.InvalidArgument || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
			t.Errorf("garbage: %v", err)
		}
		b.isr("t", 2, 2, 1, 1, 2)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err = b.log.Append(ctx, &runnelv1.AppendRequest{Request: textRequest(9, "t", 1, "c")}); status.Code(err) != codes.DeadlineExceeded {
			t.Error(err)
		}
		if got := b.ends()["t/1"]; got != 3 {
			t.Errorf("log end %d", got)
		}
	})
}
