package proc

import (
	"context"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3" //nolint:depguard // the fault is etcd's own: nothing of ours moves its leadership this way
	"google.golang.org/grpc"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// serves waits until a controller takes a decision: the check of a topic to be
// created goes through all that a creation does but the writing.
func serves(t *testing.T, s *stage) time.Duration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var asks []controllerv1.ControllerServiceClient
	for _, n := range s.g.Controllers {
		if n == s.active {
			continue
		}
		conn := must[*grpc.ClientConn](t)(rpcserver.Dial(n.Internal, rpcserver.DialOptions{}))
		defer conn.Close()
		asks = append(asks, controllerv1.NewControllerServiceClient(conn))
	}
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		for _, c := range asks {
			_, err := c.CreateTopics(ctx, &controllerv1.CreateTopicsRequest{Request: &runnelv1.CreateTopicsRequest{
				Topics: []*runnelv1.NewTopic{{Name: "asked"}}, ValidateOnly: true,
			}})
			if err == nil {
				return time.Since(s.begin)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("no controller takes over")
		}
	}
}

// leadEtcd makes the active controller's member the leader of etcd, which it
// gives away by itself after a while.
func leadEtcd(t *testing.T, s *stage) {
	t.Helper()
	endpoint := func(n *Node) string { return "http://" + n.Etcd }
	var all []string
	for _, n := range s.g.Controllers {
		all = append(all, endpoint(n))
	}
	c := must[*clientv3.Client](t)(clientv3.New(clientv3.Config{Endpoints: all}))
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	mine := must[*clientv3.StatusResponse](t)(c.Status(ctx, endpoint(s.active)))
	for _, at := range all {
		st := must[*clientv3.StatusResponse](t)(c.Status(ctx, at))
		if st.Leader != st.Header.MemberId || st.Leader == mine.Header.MemberId {
			continue
		}
		leader := must[*clientv3.Client](t)(clientv3.New(clientv3.Config{Endpoints: []string{at}}))
		defer leader.Close()
		if _, err := leader.MoveLeader(ctx, mine.Header.MemberId); err != nil {
			t.Fatal(err)
		}
	}
}
