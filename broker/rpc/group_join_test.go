package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
)

// What a member says while its coordinator is still looked for counts: its last
// subscription, and that it left.
func TestGroups_saidBeforeThereIsACoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		w.move(coordinator.Topic, 0, -1)
		w.move(coordinator.Topic, 0, 2, 1) // it does not know yet that it leads
		stays, leaves := w.member(1, 1), w.member(1, 2)
		pass(time.Second)
		stays.send(&runnelv1.JoinRequest{Sequence: 2, Event: &runnelv1.JoinRequest_Join{Join: &runnelv1.JoinGroup{
			Group: "g", MemberId: stays.id, MemberEpoch: new(int64(0)), Topics: []string{"orders", "more"},
		}}})
		leaves.send(&runnelv1.JoinRequest{Sequence: 2, Event: &runnelv1.JoinRequest_Leave{Leave: &runnelv1.LeaveGroup{}}})
		pass(time.Second)
		w.tell(coordinator.Topic, 0, 2)
		stays.until(func() bool { return stays.joined != nil || stays.err != nil })
		pass(time.Second)
		members := w.brokers[2].describeGroup("g").GetMembers()
		if len(members) != 1 || members[0].GetMemberId() != stays.id || len(members[0].GetTopics()) != 2 {
			t.Errorf("members: %v", members)
		}
	})
}
