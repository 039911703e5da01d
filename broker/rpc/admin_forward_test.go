package rpc

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// Questions are answered by the leaders, whoever is asked.
func TestForward_questions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 1, 2, 3, 3)
		for n := range int32(4) {
			for range n + 1 {
				w.brokers[1].text("t", n, "v")
				time.Sleep(time.Second)
			}
		}
		ctx := t.Context()
		for _, q := range []*runnelv1.OffsetQuery{
			{Topic: "t"},
			{Topic: "t", Place: &runnelv1.OffsetQuery_Position{Position: runnelv1.Position_POSITION_EARLIEST}},
			{Topic: "t", Place: &runnelv1.OffsetQuery_Timestamp{Timestamp: timestamppb.New(time.Now().Add(-3 * time.Second))}},
		} {
			resp, err := w.brokers[1].admin.ListOffsets(ctx, &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{q}})
			if err != nil || len(resp.GetOffsets()) != 4 {
				t.Fatal(resp, err)
			}
			for n, got := range resp.GetOffsets() {
				leader := w.brokers[w.topics["t"].partitions[n].GetLeader()]
				one := &runnelv1.OffsetQuery{Topic: "t", Place: q.Place, Partition: new(int32(n))}
				want, err := leader.admin.ListOffsets(ctx, &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{one}})
				if err != nil || got.GetError() != nil {
					t.Error(got, err)
				}
				if diff := cmp.Diff(want.GetOffsets()[0], got, protocmp.Transform()); diff != "" {
					t.Errorf("%v, partition %d: the leader says -, the proxy +:\n%s", q, n, diff)
				}
			}
		}
		d, err := w.brokers[1].admin.DescribeTopics(ctx, &runnelv1.DescribeTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: "t"}}})
		if err != nil {
			t.Fatal(err)
		}
		for n, p := range d.GetTopics()[0].GetPartitions() {
			if p.HighWatermark == nil || p.GetHighWatermark() != int64(n+1) || p.GetSizeBytes() == 0 || p.GetSegments() != 1 || p.GetError() != nil {
				t.Errorf("described: %v", p)
			}
		}
		del := &runnelv1.DeleteRecordsRequest{Topic: "t", Timeout: durationpb.New(3 * time.Second)}
		for n := range int32(4) {
			del.Partitions = append(del.Partitions, &runnelv1.DeleteRecordsPartition{Partition: n, BeforeOffset: 1})
		}
		del.Partitions[3].BeforeOffset = 99
		del.Partitions = append(del.Partitions, &runnelv1.DeleteRecordsPartition{Partition: 7})
		r, err := w.brokers[1].admin.DeleteRecords(ctx, del)
		if err != nil {
			t.Fatal(err)
		}
		for n, got := range r.GetResults() {
			want := []runnelv1.ErrorReason{3: runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, 4: runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND}[n]
			if got.GetError().GetReason() != want || want == 0 && got.GetLogStartOffset() != 1 || got.GetPartition() != del.Partitions[n].GetPartition() {
				t.Errorf("partition %d: %v, want %v", n, got, want)
			}
		}
	})
}

// A question waits a little for a leader, and finds the one that is new.
func TestForward_questionsWaitForLeaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		patient := t.Context()
		ask := func() *runnelv1.OffsetAnswer {
			resp, err := w.brokers[1].admin.ListOffsets(patient, &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{{Topic: "t"}}})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetOffsets()[0]
		}
		w.move("t", 0, 3, 2, 3) // broker 1 hears of it from broker 2
		if a := ask(); a.GetError() != nil || a.GetLeaderEpoch() != 2 {
			t.Error(a)
		}
		w.move("t", 0, -1)
		start := time.Now()
		if a := ask(); a.GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_NO_LEADER || time.Since(start) != askTimeout {
			t.Errorf("after %s: %v", time.Since(start), a)
		}
		// Who waits for less is told why, before it hangs up.
		var hurry context.CancelFunc
		patient, hurry = context.WithTimeout(t.Context(), time.Second)
		defer hurry()
		if a := ask(); a.GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_NO_LEADER || !strings.Contains(a.GetError().GetMessage(), "waits for broker") {
			t.Errorf("within a second: %v", a)
		}
		patient = t.Context()
		var mover sync.WaitGroup
		defer mover.Wait()
		mover.Go(func() {
			time.Sleep(time.Second)
			w.move("t", 0, 2)
		})
		start = time.Now()
		if a := ask(); a.GetError() != nil || time.Since(start) > 1100*time.Millisecond {
			t.Errorf("after %s: %v", time.Since(start), a)
		}
	})
}
