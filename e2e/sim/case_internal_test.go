package sim

import (
	"testing"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// One of three brokers is up when the first group comes: its topic is there at
// once, and ends with three replicas of which two must be in sync.
func TestCaseInternalTopicGrows(t *testing.T) {
	scene(t, 1, false, func(c *cluster) {
		for _, h := range c.brokers[1:] {
			h.kill()
		}
		c.passFor(5 * time.Second)
		conn, err := rpcserver.Dial(c.controllers[0].addr(), rpcserver.DialOptions{
			Dial: c.dialer(clientHost, func() bool { return true }), Secret: secret,
		})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		resp, err := controllerv1.NewControllerServiceClient(conn).EnsureInternalTopic(c.t.Context(), &controllerv1.EnsureInternalTopicRequest{
			Name: "__consumer_offsets", Partitions: 5, BrokerId: 0,
		})
		if err != nil || resp.GetReplicationFactor() != 1 || !resp.GetApplied() {
			t.Fatalf("with one broker: %v, %v", resp, err)
		}
		whole := func(replicas, isr, minISR int) func() bool {
			return func() bool {
				n := 0
				for k, p := range c.picture().partitions {
					if k.Topic.String() == resp.GetTopicId() && p.Leader != state.NoLeader &&
						len(p.Replicas) == replicas && len(p.ISR) == isr && int(p.MinISR) == minISR {
						n++
					}
				}
				return n == 5
			}
		}
		for n, minISR := range []int{1, 1, 2} {
			if !c.await(10*time.Second, whole(n+1, n+1, minISR)) {
				c.judge.complain("80", "with %d brokers: %+v", n+1, c.picture().partitions)
			}
			if n < 2 {
				c.brokers[n+1].start()
			}
		}
	})
}
