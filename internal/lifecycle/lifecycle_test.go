package lifecycle

import (
	"context"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/runnelmq/runnel/internal/memnet"
)

func TestServeStopsWithin(t *testing.T) {
	const grace = 10 * time.Second
	for name, c := range map[string]struct {
		stream bool
		want   time.Duration
	}{
		"at once when nothing is open":        {false, 0},
		"after the grace with an open stream": {true, grace},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lis := memnet.Listen("broker:7420", 1<<16)
				srv := grpc.NewServer(grpc.WaitForHandlers(true))
				healthpb.RegisterHealthServer(srv, health.NewServer())
				ctx, cancel := context.WithCancel(t.Context())
				var wg sync.WaitGroup
				var took time.Duration
				wg.Go(func() {
					if err := Serve(ctx, srv, lis, grace); err != nil {
						t.Errorf("Serve = %v", err)
					}
				})
				conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
				if err != nil {
					t.Fatal(err)
				}
				if c.stream {
					w, err := healthpb.NewHealthClient(conn).Watch(t.Context(), &healthpb.HealthCheckRequest{})
					if err != nil {
						t.Fatal(err)
					}
					if _, err := w.Recv(); err != nil {
						t.Fatal(err)
					}
				}
				synctest.Wait()
				start := time.Now()
				cancel()
				wg.Wait()
				if took = time.Since(start); took != c.want {
					t.Errorf("took %v, want %v", took, c.want)
				}
				if err := conn.Close(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestEvery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 10500*time.Millisecond)
		defer cancel()
		n := 0
		Every(ctx, time.Second, func(time.Time) { n++ })
		if n != 10 {
			t.Errorf("%d calls in 10.5 s of one a second", n)
		}
	})
}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if !Wait(ctx, 400*time.Millisecond) {
			t.Error("gave up early")
		}
		if Wait(ctx, time.Hour) {
			t.Error("waited on after the end")
		}
	})
}
