package broker

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/rpc"
)

// offsetsPartitions is over how many partitions groups are spread. It is fixed
// when the first group comes.
const offsetsPartitions = 50

// offsetsConfig is how the topic of the groups is kept.
func offsetsConfig() map[string]string {
	return map[string]string{
		"cleanup.policy":    "compact",
		"segment.bytes":     "104857600", // small, so that what is compacted stays small
		"max.message.bytes": "3670016",
	}
}

// buildGroups builds the coordinator of consumer groups and their services.
func (n *node) buildGroups(finder metadata.Finder, admin *rpc.AdminService, reg prometheus.Registerer) {
	b := n.broker
	var groups *rpc.GroupService
	n.groups = coordinator.New(b.cfg.Group.coordinator(), coordinator.Deps{
		Store: n.store, Local: n.set.Get, CatchUp: finder.CatchUp, Metrics: reg, Log: b.deps.Log.With().Str("component", "coordinator").Logger(),
		Measure: func(ctx context.Context, places []coordinator.Place) []coordinator.Measure {
			return groups.Measure(ctx, places)
		},
	})
	groups = rpc.NewGroupService(rpc.GroupDeps{
		Store: n.store, Coordinator: n.groups, Finder: finder, Router: n.router, Logs: n.logs, Admin: admin,
		Ensure: func(ctx context.Context) (*metadata.Topic, error) {
			return n.session.EnsureInternalTopic(ctx, coordinator.Topic, offsetsPartitions, offsetsConfig())
		},
	})
	runnelv1.RegisterGroupServiceServer(n.client, groups)
}
