package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

// lossView is a time to data loss in seconds; null: never.
type lossView float64

func (l lossView) MarshalJSON() ([]byte, error) {
	if math.IsInf(float64(l), 1) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(l))
}

type groupDetailView struct {
	Group       string              `json:"group"`
	State       string              `json:"state"`
	Epoch       int64               `json:"epoch"`
	Assignor    string              `json:"assignor"`
	Coordinator *int32              `json:"coordinator"`
	LagRecords  *int64              `json:"lag_records,omitempty"`
	LagSeconds  *float64            `json:"lag_seconds,omitempty"`
	Loss        *lossView           `json:"time_to_data_loss_seconds,omitempty"`
	Uncommitted int                 `json:"uncommitted_partitions"`
	Unread      int64               `json:"uncommitted_records"`
	BeyondEnd   int                 `json:"beyond_end_partitions"`
	Expires     *time.Time          `json:"expire_time,omitempty"`
	Members     []groupMemberView   `json:"members"`
	Partitions  []groupPositionView `json:"partitions"`
}

type groupMemberView struct {
	ID            string   `json:"member_id"`
	Instance      string   `json:"instance_id,omitempty"`
	Client        string   `json:"client"`
	Address       string   `json:"address"`
	Rack          string   `json:"rack,omitempty"`
	Epoch         int64    `json:"epoch"`
	Topics        []string `json:"topics,omitempty"`
	Pattern       string   `json:"topic_pattern,omitempty"`
	Owned         int32    `json:"owned_partitions"`
	Target        int32    `json:"target_partitions"`
	Connected     bool     `json:"connected"`
	SilentSeconds float64  `json:"silent_seconds"`
}

type groupPositionView struct {
	Topic         string    `json:"topic"`
	Partition     int32     `json:"partition"`
	Member        string    `json:"member_id,omitempty"`
	Next          string    `json:"next_member_id,omitempty"`
	Committed     *int64    `json:"committed_offset,omitempty"`
	LogStart      *int64    `json:"log_start_offset,omitempty"`
	HighWatermark *int64    `json:"high_watermark,omitempty"`
	LagRecords    *int64    `json:"lag_records,omitempty"`
	LagSeconds    *float64  `json:"lag_seconds,omitempty"`
	Loss          *lossView `json:"time_to_data_loss_seconds,omitempty"`
	BeyondEnd     int64     `json:"beyond_end_records,omitempty"`
}

func (a *app) groupDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe GROUP", Short: "Show a group's members, and how far behind it is", Args: args("GROUP"),
		Long: `Shows a group's members, and of each partition what is committed, the end, and how
far behind the group is: in records, in time (the age of the first record that it
has not committed), and how long until records are deleted that it has not read,
at the pace of the last minutes ("loss in"). "-" is what is not known.

"none" is committed of a partition that the group reads and has not committed
anything of. How far behind it is there depends on where its reader began, which only
that knows, so these partitions are counted beside the lag.

"past the end" is the lag where the committed offset lies beyond the end: the log has
lost records there that the group had read, which only an election that cannot keep
them all can do, or the offset was set for records that are not written yet. What is
written there next may be skipped, until "group seek" moves the group.`,
		Example: "  runnel group describe billing\n  runnel group describe billing --format json",
		RunE: func(c *cobra.Command, names []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				d, err := admin.DescribeGroup(ctx, names[0])
				if err != nil {
					return err
				}
				if a.format == "json" {
					return a.printJSON(groupDetail(d))
				}
				return a.printGroup(d)
			})
		},
	}
}

func seconds(v float64) *float64 {
	if v < 0 {
		return nil
	}
	return &v
}

func groupDetail(d client.GroupDescription) groupDetailView {
	v := groupDetailView{
		Group: d.Group, State: string(d.State), Epoch: d.Epoch, Assignor: d.Assignor, Coordinator: present(d.Coordinator),
		LagRecords: present(d.LagRecords), LagSeconds: seconds(d.LagSeconds), Loss: (*lossView)(seconds(d.TimeToDataLossSecs)),
		Uncommitted: d.Uncommitted, Unread: d.UncommittedRecords, BeyondEnd: d.BeyondEnd,
		Members: []groupMemberView{}, Partitions: []groupPositionView{},
	}
	if !d.ExpireTime.IsZero() {
		v.Expires = &d.ExpireTime
	}
	for i := range d.Members {
		m := &d.Members[i]
		v.Members = append(v.Members, groupMemberView{
			ID: m.MemberID, Instance: m.InstanceID, Client: m.ClientName, Address: m.ClientAddress, Rack: m.Rack, Epoch: m.Epoch,
			Topics: m.Topics, Pattern: m.TopicPattern, Owned: m.Owned, Target: m.Target, Connected: m.Connected, SilentSeconds: m.SilentFor.Seconds(),
		})
	}
	for i := range d.Partitions {
		p := &d.Partitions[i]
		v.Partitions = append(v.Partitions, groupPositionView{
			Topic: p.Topic, Partition: p.Partition, Member: p.MemberID, Next: p.NextMemberID, Committed: present(p.Committed),
			LogStart: present(p.LogStart), HighWatermark: present(p.HighWatermark), LagRecords: present(p.LagRecords),
			LagSeconds: seconds(p.LagSeconds), Loss: (*lossView)(seconds(p.TimeToDataLossSecs)),
			BeyondEnd: p.BeyondEnd,
		})
	}
	return v
}

func (a *app) printGroup(d client.GroupDescription) error {
	fmt.Fprintf(a.out, "group        %s\nstate        %s, epoch %d\nassignor     %s\ncoordinator  broker %s\n", d.Group, d.State, d.Epoch, d.Assignor, known(d.Coordinator))
	fmt.Fprintf(a.out, "behind       %s records, %s\ndata loss in %s\n", known(d.LagRecords), within(d.LagSeconds), within(d.TimeToDataLossSecs))
	if d.Uncommitted > 0 {
		fmt.Fprintf(a.out, "no commit    of %s, which hold %s\n", counted(int64(d.Uncommitted), "partition"), counted(d.UncommittedRecords, "record"))
	}
	if d.BeyondEnd > 0 {
		fmt.Fprintf(a.out, "past the end in %s: what is written there next may be skipped; see: runnel group describe --help\n", counted(int64(d.BeyondEnd), "partition"))
	}
	if !d.ExpireTime.IsZero() {
		fmt.Fprintf(a.out, "forgotten at %s\n", stamp(d.ExpireTime))
	}
	var rows [][]string
	for i := range d.Members {
		m := &d.Members[i]
		share := fmt.Sprint(m.Owned)
		if m.Owned != m.Target {
			share = fmt.Sprintf("%d, to be %d", m.Owned, m.Target)
		}
		state := "connected"
		if !m.Connected {
			state = "silent for " + within(m.SilentFor.Seconds())
		}
		rows = append(rows, []string{m.MemberID, orDash(m.InstanceID), orDash(m.ClientName), orDash(m.ClientAddress), share, state})
	}
	fmt.Fprintln(a.out)
	if err := table(a.out, "member instance client address partitions state", rows); err != nil {
		return err
	}
	rows = nil
	for i := range d.Partitions {
		p := &d.Partitions[i]
		owner := orDash(p.MemberID)
		if p.NextMemberID != "" {
			owner += " -> " + p.NextMemberID
		}
		rows = append(rows, []string{
			orDash(p.Topic), fmt.Sprint(p.Partition), committed(p.Committed), known(p.HighWatermark), behind(p),
			within(p.LagSeconds), within(p.TimeToDataLossSecs), owner,
		})
	}
	fmt.Fprintln(a.out)
	return table(a.out, "topic partition committed end lag behind loss-in member", rows)
}

// behind writes how far behind a group is in a partition.
func behind(p *client.GroupPartition) string {
	if p.BeyondEnd > 0 {
		return "past the end"
	}
	return known(p.LagRecords)
}

// committed writes a committed offset.
func committed(offset int64) string {
	if offset < 0 {
		return "none"
	}
	return fmt.Sprint(offset)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
