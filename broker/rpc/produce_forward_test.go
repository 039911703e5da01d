package rpc

import (
	"testing"
	"testing/synctest"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func TestForward_produce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		resp := w.brokers[1].produce(textRequest(7, "t", 0, "a"))
		if resp.GetError() != nil || resp.GetBaseOffset() != 0 || resp.GetRequestId() != 7 || resp.GetPartition() != 0 || len(resp.GetResults()) != 1 {
			t.Fatal(resp)
		}
		if got := w.brokers[2].ends()["t/0"]; got != 1 {
			t.Error(got)
		}
		_ = runnelv1.Acks_ACKS_ALL
	})
}
