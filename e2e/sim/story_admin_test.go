package sim

import (
	"context"
	"testing"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// What an operator asks for while the controllers fail over is done by the next
// one: one call, without a second try. Whoever asks then who is active is told.
func TestStoryAdminOutlivesFailovers(t *testing.T) {
	play(t, setting{controllers: 3}, func(s *stage) {
		admin := runnelv1.NewAdminServiceClient(s.conns[s.id(1)])
		for range 5 {
			h := s.active()
			if h == nil {
				s.t.Fatal("no controller is active")
			}
			h.kill()
			answered := make(chan error, 1)
			var active string
			s.wg.Go(func() {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				defer cancel()
				_, err := admin.AlterTopicConfigs(ctx, &runnelv1.AlterTopicConfigsRequest{Topic: "story", Set: map[string]string{"retention.ms": "3600000"}})
				if err == nil {
					var d *runnelv1.DescribeClusterResponse
					d, err = admin.DescribeCluster(ctx, &runnelv1.DescribeClusterRequest{})
					active = d.GetController()
				}
				answered <- err
			})
			done := false
			var err error
			s.soon("the change is answered", 11*time.Second, func() bool {
				select {
				case err = <-answered:
					done = true
				default:
				}
				return done
			})
			if err != nil || active == "" || active == h.addr() {
				s.t.Errorf("with %s dead: %v; %q is said to be active", h.name, err, active)
			}
			h.start()
			s.stepFor(3 * time.Second)
		}
	})
}
