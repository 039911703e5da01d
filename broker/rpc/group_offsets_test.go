package rpc

import (
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
)

// Resets go where they say, through any broker, or nowhere at all.
func TestGroups_resetOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		b := w.brokers[1]
		reset := func(dry bool, resets ...*runnelv1.OffsetReset) *runnelv1.ResetOffsetsResponse {
			t.Helper()
			for _, r := range resets {
				r.Topic = "orders"
			}
			got, err := b.client().ResetOffsets(t.Context(), &runnelv1.ResetOffsetsRequest{Group: "r", Resets: resets, DryRun: dry})
			if err != nil {
				t.Fatal(err)
			}
			return got
		}
		news := func(r *runnelv1.ResetOffsetsResponse) (out []int64) {
			for _, x := range r.GetResults() {
				if x.GetError() != nil || x.NewOffset == nil {
					out = append(out, -1)
				} else {
					out = append(out, x.GetNewOffset())
				}
			}
			return out
		}
		latest := &runnelv1.OffsetReset{To: &runnelv1.OffsetReset_Position{Position: runnelv1.Position_POSITION_LATEST}}
		if got := reset(true, latest); !cmp.Equal(news(got), []int64{10, 10, 10, 10}) || got.GetApplied() {
			t.Errorf("dry: %v", got)
		}
		if got := reset(false, latest); !got.GetApplied() {
			t.Errorf("%v", got)
		}
		if got := reset(false, &runnelv1.OffsetReset{Partition: new(int32(1)), To: &runnelv1.OffsetReset_Shift{Shift: -3}},
			&runnelv1.OffsetReset{Partition: new(int32(2)), To: &runnelv1.OffsetReset_Shift{Shift: 100}},
			&runnelv1.OffsetReset{Partition: new(int32(3)), To: &runnelv1.OffsetReset_Timestamp{Timestamp: timestamppb.New(time.Unix(0, 0))}},
			&runnelv1.OffsetReset{Partition: new(int32(0)), To: &runnelv1.OffsetReset_Offset{Offset: 4}},
		); !cmp.Equal(news(got), []int64{7, 10, 0, 4}) || !got.GetApplied() || got.GetResults()[0].GetOldOffset() != 10 {
			t.Errorf("%v", got)
		}
		got := reset(false, &runnelv1.OffsetReset{Partition: new(int32(0)), To: &runnelv1.OffsetReset_Offset{Offset: 11}},
			&runnelv1.OffsetReset{Partition: new(int32(1)), To: &runnelv1.OffsetReset_Offset{Offset: 1}})
		if got.GetApplied() || got.GetResults()[0].GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE {
			t.Errorf("%v", got)
		}
		f, err := w.brokers[3].client().FetchOffsets(t.Context(), &runnelv1.FetchOffsetsRequest{Group: "r", Topics: []*runnelv1.GroupTopic{{Topic: "orders"}, {Topic: "none"}}})
		if err != nil {
			t.Fatal(err)
		}
		var now []int64
		for _, o := range f.GetOffsets() {
			now = append(now, o.GetOffset())
		}
		if diff := cmp.Diff([]int64{4, 7, 10, 0, 0}, now); diff != "" || f.GetOffsets()[4].GetError() == nil {
			t.Errorf("committed %v: %s", f, diff)
		}
		m := w.member(3, 1)
		m.until(func() bool { return m.last != nil })
		for name, resets := range map[string][]*runnelv1.OffsetReset{
			"nothing": nil, "no place": {{Topic: "orders"}}, "twice": {{Topic: "orders", Partition: new(int32(0)), To: latest.GetTo()}, {Topic: "orders", To: latest.GetTo()}},
			"position": {{Topic: "orders", To: &runnelv1.OffsetReset_Position{}}},
		} {
			_, err := b.client().ResetOffsets(t.Context(), &runnelv1.ResetOffsetsRequest{Group: "r", Resets: resets})
			if status.Code(err) != codes.InvalidArgument {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// Lag is the same wherever it is asked, and exact.
func TestGroups_lag(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := groupTown(t, LogOptions{})
		first := time.Now()
		b := w.brokers[1]
		b.commit(&runnelv1.CommitRequest{Group: "l", Offsets: []*runnelv1.OffsetCommit{
			{Topic: "orders", Partition: 0, Offset: 4}, {Topic: "orders", Partition: 1, Offset: 10},
		}})
		pass(50 * time.Second)
		b.text("orders", 1, "later")
		pass(10 * time.Second)
		d := w.brokers[3].describeGroup("l")
		p := d.GetPartitions()
		if len(p) != 2 {
			t.Fatal(d)
		}
		age := time.Since(first).Seconds() + 1 // the records were there a second before
		if p[0].GetLagRecords() != 6 || math.Abs(p[0].GetLagSeconds()-age) > 0.5 || p[0].GetHighWatermark() != 10 {
			t.Errorf("partition 0: %v, want an age of %v", p[0], age)
		}
		if p[1].GetLagRecords() != 1 || math.Abs(p[1].GetLagSeconds()-10) > 0.5 {
			t.Errorf("partition 1: %v", p[1])
		}
		week := (7 * 24 * time.Hour).Seconds() // the default retention
		if d.GetLagRecords() != 7 || math.Abs(d.GetTimeToDataLossSeconds()-(week-age)) > 1 || d.GetLagSeconds() != p[0].GetLagSeconds() {
			t.Errorf("in all: %d records, %v s, %v s to loss", d.GetLagRecords(), d.GetLagSeconds(), d.GetTimeToDataLossSeconds())
		}
	})
}

// Groups are listed page by page, over all their coordinators.
func TestGroups_list(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := buildTown(t, 3, nil, LogOptions{}, &coordinator.Config{LagEvery: -1})
		b := w.brokers[1]
		if l, err := b.client().ListGroups(t.Context(), &runnelv1.ListGroupsRequest{}); err != nil || len(l.GetGroups()) != 0 {
			t.Errorf("before there is any: %v %v", l, err)
		}
		w.topic(coordinator.Topic, 1, 2, 3, 1, 2, 3)
		w.topic("orders", 1)
		pass(time.Second)
		var want []string
		for i := range 25 {
			id := fmt.Sprintf("group-%02d", i)
			want = append(want, id)
			if got := b.commit(&runnelv1.CommitRequest{Group: id, Offsets: offsets(0, 0)}); got[0].GetError() != nil {
				t.Fatal(got)
			}
		}
		b.commit(&runnelv1.CommitRequest{Group: "other", Offsets: offsets(0, 0)})
		var got []string
		for token, first := "", true; first || token != ""; first = false {
			l, err := b.client().ListGroups(t.Context(), &runnelv1.ListGroupsRequest{Prefix: "group-", PageSize: new(int32(4)), PageToken: token})
			if err != nil || len(l.GetGroups()) > 4 || len(l.GetErrors()) > 0 {
				t.Fatal(l, err)
			}
			for _, g := range l.GetGroups() {
				got = append(got, g.GetGroup())
			}
			token = l.GetNextPageToken()
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		if _, err := b.client().DeleteGroup(t.Context(), &runnelv1.DeleteGroupRequest{Group: "group-03"}); err != nil {
			t.Error(err)
		}
		l, err := b.client().ListGroups(t.Context(), &runnelv1.ListGroupsRequest{States: []runnelv1.GroupState{runnelv1.GroupState_GROUP_STATE_EMPTY}})
		if err != nil || len(l.GetGroups()) != 25 {
			t.Error(len(l.GetGroups()), err)
		}
		w.move(coordinator.Topic, 0, -1)
		if l, err := b.client().ListGroups(t.Context(), &runnelv1.ListGroupsRequest{}); err != nil || len(l.GetErrors()) != 1 {
			t.Errorf("with a partition that nobody leads: %v %v", l.GetErrors(), err)
		}
	})
}
