package broker

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// No id is given twice, over restarts of the broker too; without controllers
// those that are left are given, and then none.
func TestInitProducer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		producers := runnelv1.NewProducerServiceClient(w.conn)
		given := map[int64]bool{}
		next := func() error {
			resp, err := producers.InitProducer(t.Context(), &runnelv1.InitProducerRequest{})
			if err != nil {
				return err
			}
			if id := resp.GetProducerId(); id < 1 || given[id] || resp.GetProducerEpoch() != 0 {
				t.Fatalf("%v, after %d others", resp, len(given))
			}
			given[resp.GetProducerId()] = true
			return nil
		}
		for range 2100 {
			if err := next(); err != nil {
				t.Fatal(err)
			}
		}
		b.end(t)
		b = w.started(testConfig())
		defer b.end(t)
		for range 3 {
			if err := next(); err != nil {
				t.Fatal(err)
			}
		}
		w.controller.Set(metadatatest.Refuse(status.Error(codes.Unavailable, "down")))
		w.controller.Break(status.Error(codes.Unavailable, "down"))
		time.Sleep(time.Minute)
		left, err := 0, error(nil)
		for err == nil {
			if err = next(); err == nil {
				left++
			}
		}
		if status.Code(err) != codes.Unavailable || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE {
			t.Errorf("without controllers: %v", err)
		}
		if left < 500 {
			t.Errorf("%d ids were left, want at least 500", left)
		}
		w.controller.Set(metadatatest.Refuse(nil))
		time.Sleep(time.Minute)
		if err := next(); err != nil {
			t.Errorf("with a controller again: %v", err)
		}
	})
}
