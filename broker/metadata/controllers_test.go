package metadata_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// Each controller is asked, those in reserve too: one that does not serve, or is
// not there, is told.
func TestSession_asksControllers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c", "d")
		defer w.run(t)()
		w.await(t, "a", registered)
		w.healths[2].SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
		w.servers[3].Stop()
		settle()
		begin := time.Now()
		got := w.AskControllers(t.Context())
		if took := time.Since(begin); took > 1100*time.Millisecond {
			t.Errorf("it took %s", took)
		}
		if len(got) != 4 {
			t.Fatalf("got %v", got)
		}
		for n, want := range []string{"", "", "does not serve", "connection"} {
			c := got[n]
			if c.Address != string(rune('a'+n)) || c.Active != (n == 0) {
				t.Errorf("%d: %+v", n, c)
			}
			if (c.Err == nil) != (want == "") || c.Err != nil && (!strings.Contains(c.Err.Error(), want) || strings.Contains(c.Err.Error(), "desc = ")) {
				t.Errorf("%s: %v, want %q", c.Address, c.Err, want)
			}
		}
	})
}

// One that was never registered has nothing to hand over, and waits for nobody.
func TestHandOver_neverRegistered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		if err := w.HandOver(ctx); err != nil {
			t.Errorf("HandOver = %v", err)
		}
		w.run(t)()
	})
}
