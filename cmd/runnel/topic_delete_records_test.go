package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A heap is the topic t with two partitions: of 0 to 100, the records from 40 on
// are of this year, and of 10 to 50 all are older. It notes what is deleted.
type heap struct {
	runnelv1.UnimplementedAdminServiceServer

	deleted []string
	refuse  bool // to delete of partition 1
	stale   bool // who is asked for a time does not know partition 1 yet
}

func (h *heap) ListOffsets(_ context.Context, req *runnelv1.ListOffsetsRequest) (*runnelv1.ListOffsetsResponse, error) {
	q := req.GetQueries()[0]
	offsets := []*int64{new(int64(100)), new(int64(50))}
	switch {
	case q.GetTimestamp() != nil:
		offsets = []*int64{new(int64(40)), nil}
		if h.stale {
			offsets = offsets[:1]
		}
	case q.GetPosition() == runnelv1.Position_POSITION_EARLIEST:
		offsets = []*int64{new(int64(0)), new(int64(10))}
	}
	resp := &runnelv1.ListOffsetsResponse{}
	for n, o := range offsets {
		resp.Offsets = append(resp.Offsets, &runnelv1.OffsetAnswer{Topic: "t", Partition: new(int32(n)), Offset: o}) //nolint:gosec // two
	}
	return resp, nil
}

func (h *heap) DeleteRecords(_ context.Context, req *runnelv1.DeleteRecordsRequest) (*runnelv1.DeleteRecordsResponse, error) {
	resp := &runnelv1.DeleteRecordsResponse{}
	for _, p := range req.GetPartitions() {
		r := &runnelv1.DeleteRecordsResult{Partition: new(p.GetPartition()), LogStartOffset: new(p.GetBeforeOffset())}
		if h.refuse && p.GetPartition() == 1 {
			r = &runnelv1.DeleteRecordsResult{Partition: new(int32(1)), Error: &runnelv1.ItemError{
				Reason: runnelv1.ErrorReason_ERROR_REASON_NO_LEADER, Code: int32(codes.Unavailable), Message: "nobody leads it",
			}}
		} else {
			h.deleted = append(h.deleted, fmt.Sprintf("%s/%d<%d", req.GetTopic(), p.GetPartition(), p.GetBeforeOffset()))
		}
		resp.Results = append(resp.Results, r)
	}
	slices.Sort(h.deleted)
	return resp, nil
}

func TestDeleteRecords(t *testing.T) {
	for _, tt := range []struct {
		args, deleted string
		code          int
		out, err      string
	}{
		{"t --before 30 --partition 0 --yes", "t/0<30", exitOK, "t/0 begins at offset 30", ""},
		{"t --before latest --yes", "t/0<100 t/1<50", exitOK, "t/1 begins at offset 50", ""},
		{"t --before latest --partition 1 --yes", "t/1<50", exitOK, "t/1 begins at offset 50", ""},
		{"t --before @2026-01-01T00:00:00Z --yes", "t/0<40 t/1<50", exitOK, "t/0 begins at offset 40", ""},
		{"t --before latest --dry-run", "", exitOK, "0          0       100            100  100", "Nothing was deleted"},
		{"t --before 10 --partition 1 --yes", "", exitOK, "", "There is nothing to delete"},
		{"t --before latest", "", exitUsage, "0          0       100            100  100", "add --yes"},
		{"t --before 101 --partition 0 --yes", "", exitFailed, "", "up to offset 100 only"},
		{"t --before latest --partition 2 --yes", "", exitFailed, "", "no partition 2: see runnel topic describe t"},
		{"t --before 30 --yes", "", exitUsage, "", "add --partition"},
		{"t --yes", "", exitUsage, "", "--before is missing"},
		{"t --before earliest --yes", "", exitUsage, "", "want an offset, latest, or a time"},
		{"t --before -5 --partition 0 --yes", "", exitUsage, "", "want an offset, latest, or a time"},
		{"t --before @noon --yes", "", exitUsage, "", "want an offset, latest, or a time"},
		{"t --before latest --partition -2 --yes", "", exitUsage, "", "the first is 0"},
	} {
		h := &heap{}
		r := cli(t, "y\n", append([]string{"topic", "delete-records", "--brokers", serveAdmin(t, h)}, strings.Fields(tt.args)...)...)
		if got := strings.Join(h.deleted, " "); got != tt.deleted || r.code != tt.code || !strings.Contains(r.out, tt.out) || !strings.Contains(r.err, tt.err) {
			t.Errorf("%s: exit code %d, deleted %q\n%s%s", tt.args, r.code, got, r.out, r.err)
		}
	}
}

// Where one partition fails, the others are told, and the exit code is not 0.
func TestDeleteRecords_partly(t *testing.T) {
	h := &heap{refuse: true}
	r := cli(t, "", "topic", "delete-records", "t", "--before", "latest", "--yes", "--format", "json", "--brokers", serveAdmin(t, h))
	var got struct {
		Topic      string    `json:"topic"`
		Partitions []cutView `json:"partitions"`
	}
	if err := json.Unmarshal([]byte(r.out), &got); err != nil {
		t.Fatalf("%v\n%s", err, r.out)
	}
	if r.code != exitFailed || !strings.Contains(r.err, "t/1: nobody leads it") || len(got.Partitions) != 2 || got.Topic != "t" {
		t.Fatalf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	if p := got.Partitions[0]; p.LogStart == nil || *p.LogStart != 100 || p.Error != "" || p.Start != 0 || p.End != 100 {
		t.Errorf("partition 0: %+v", p)
	}
	if p := got.Partitions[1]; p.LogStart != nil || !strings.Contains(p.Error, "nobody leads it") || p.Before != 50 {
		t.Errorf("partition 1: %+v", p)
	}
}

// Nothing goes of a partition of which a broker does not say what is older.
func TestDeleteRecords_unknownPlace(t *testing.T) {
	h := &heap{stale: true}
	r := cli(t, "", "topic", "delete-records", "t", "--before", "@2026-01-01T00:00:00Z", "--yes", "--brokers", serveAdmin(t, h))
	if r.code != exitFailed || len(h.deleted) > 0 || !strings.Contains(r.err, "nothing was deleted") || !strings.Contains(r.err, "t/1") {
		t.Errorf("exit code %d, deleted %v\n%s", r.code, h.deleted, r.err)
	}
}
