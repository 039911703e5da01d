package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

// copyView is a copy of a partition; what was not reported is null.
type copyView struct {
	Broker           int32  `json:"broker"`
	State            string `json:"state"`
	Silent           bool   `json:"silent"` // active as last known, and did not answer
	Role             string `json:"role"`
	ReportedAt       string `json:"reported_at,omitempty"`
	Intact           *bool  `json:"intact"`
	LastEpoch        *int64 `json:"last_epoch"`
	LogEnd           *int64 `json:"log_end_offset"`
	HighWatermark    *int64 `json:"high_watermark"`
	MissingCommitted *int64 `json:"missing_committed"`
	MissingRecords   *int64 `json:"missing_records"`
}

// recoveryView is what is known of a partition's copies and was done.
type recoveryView struct {
	Topic       string     `json:"topic"`
	Partition   int32      `json:"partition"`
	Copies      []copyView `json:"copies"`
	Leader      *int32     `json:"leader"`  // that was, or would be, elected
	Elected     bool       `json:"elected"` // false: nothing was changed
	LeaderEpoch *int64     `json:"leader_epoch"`
	Applied     *bool      `json:"applied"`
}

// A recovery is one run of runnel partition recover.
type recovery struct {
	topic     string
	partition int32
	from      int32 // -1: the best
	yes       bool
}

func (r *recovery) String() string { return fmt.Sprintf("%s/%d", r.topic, r.partition) }

func (a *app) partitionRecover() *cobra.Command {
	r := recovery{}
	c := &cobra.Command{
		Use: "recover TOPIC/PARTITION", Short: "Elect a leader of a partition that has none, even if records are lost", Args: args("TOPIC/PARTITION"),
		Long: `Elects one of the copies that are left of a partition without a leader, even if
that loses acknowledged records for good. First it shows the copies, and what
would be lost with each; then it asks, or, where nobody can be asked, needs
--yes. Without --yes it changes nothing then.

Bring back the brokers that have better copies first, if you can: a partition
whose record names a complete copy is led again as soon as its broker is there.

missing-committed counts records that were certainly acknowledged and that a
copy lacks: at least as many are lost with it. missing-records are those that
the longest copy has beyond it, acknowledged or not. Copies that were not
reported, as their brokers were not here since the controller took over, count
for neither.

A broker that is silent did not answer just now, and is not yet known to be dead.
Its copy is chosen only with --from, and so is another one while the silent
broker reported more than any that answers.`,
		Example: `  runnel partition recover orders/3
  runnel partition recover orders/3 --from 2 --yes`,
		RunE: func(c *cobra.Command, names []string) error {
			topic, number, err := parsePartition(names[0])
			if err != nil {
				return err
			}
			if c.Flags().Changed("from") && r.from < 0 {
				return usagef("--from %d: want the id of a broker; see %s", r.from, a.typed("broker list"))
			}
			r.topic, r.partition = topic, number
			return a.recover(c.Context(), &r)
		},
	}
	c.Flags().Int32Var(&r.from, "from", -1, "`broker` whose copy to take (default: the one with the most recent records)")
	c.Flags().BoolVar(&r.yes, "yes", false, "do not ask")
	hideDefault(c, "from")
	return c
}

// parsePartition reads a topic and a partition's number.
func parsePartition(s string) (topic string, partition int32, err error) {
	n := strings.LastIndexByte(s, '/')
	if n <= 0 {
		return "", 0, usagef("%q: want TOPIC/PARTITION, such as orders/3", s)
	}
	p, err := strconv.ParseInt(s[n+1:], 10, 32)
	if err != nil || p < 0 {
		return "", 0, usagef("%q: want TOPIC/PARTITION, such as orders/3: the first partition is 0", s)
	}
	return s[:n], int32(p), nil
}

func (a *app) recover(ctx context.Context, r *recovery) error {
	var found client.Recovery
	err := a.withAdmin(ctx, func(ctx context.Context, admin *client.Admin) error {
		var err error
		found, err = admin.RecoverPartition(ctx, r.topic, r.partition, r.from, a.adminOptions(true)...)
		return err
	})
	if err != nil {
		return err
	}
	view := viewRecovery(r, &found)
	if a.format != "json" {
		if err := a.printCopies(r, &found); err != nil {
			return err
		}
	}
	err = a.elect(ctx, r, &found, &view)
	if a.format == "json" {
		err = errors.Join(a.printJSON(view), err)
	}
	return err
}

// elect elects the very copy that was shown, if that is wanted.
func (a *app) elect(ctx context.Context, r *recovery, found *client.Recovery, view *recoveryView) error {
	if found.Leader < 0 {
		return a.noneElectable(ctx, r, found)
	}
	if err := a.confirm(r.yes, fmt.Sprintf("Elect broker %d the leader of %s?", found.Leader, r)); err != nil {
		return err
	}
	return a.withAdmin(ctx, func(ctx context.Context, admin *client.Admin) error {
		done, err := admin.RecoverPartition(ctx, r.topic, r.partition, found.Leader, a.adminOptions(false)...)
		if err != nil {
			return err
		}
		view.Elected, view.Leader, view.LeaderEpoch, view.Applied = true, &done.Leader, &done.LeaderEpoch, &done.Applied
		if a.format != "json" {
			fmt.Fprintf(a.out, "broker %d leads %s since leader epoch %d\n", done.Leader, r, done.LeaderEpoch)
		}
		a.warnUnlessApplied(done.Applied)
		return nil
	})
}

// noneElectable says why no copy can be elected.
func (a *app) noneElectable(ctx context.Context, r *recovery, found *client.Recovery) error {
	leader := int32(-1)
	err := a.withAdmin(ctx, func(ctx context.Context, admin *client.Admin) error {
		ds, err := admin.DescribeTopics(ctx, []string{r.topic})
		if err != nil {
			return err
		}
		d, err := one(ds)
		if err == nil && d.Err == nil && int(r.partition) < len(d.Partitions) {
			leader = d.Partitions[r.partition].Leader
		}
		return err
	})
	if err != nil {
		return err
	}
	if leader >= 0 && slices.ContainsFunc(found.Copies, func(c client.PartitionCopy) bool { return c.BrokerID == leader && c.Silent }) {
		return fmt.Errorf("%s is led by broker %d as the controllers last knew, and that does not answer: if it has died, another one leads in a few seconds, or none; look again then", r, leader)
	}
	if leader >= 0 {
		return fmt.Errorf("%s is led by broker %d: there is nothing to recover", r, leader)
	}
	holders := make([]int32, 0, len(found.Copies))
	silent := false
	for i := range found.Copies {
		c := &found.Copies[i]
		holders = append(holders, c.BrokerID)
		silent = silent || c.Silent
		if c.BrokerID == r.from {
			return fmt.Errorf("broker %d is %s: start it, or choose another copy of %s with --from", r.from, c.State, r)
		}
	}
	if r.from >= 0 {
		return fmt.Errorf("broker %d has no copy of %s: choose one of %s with --from", r.from, r, ids(holders))
	}
	if silent {
		return fmt.Errorf("no copy of %s is chosen while a broker that may hold the most is silent: look again in a few seconds, start one of the brokers %s, or choose a copy with --from", r, ids(holders))
	}
	return fmt.Errorf("no copy of %s can be elected: start one of the brokers %s", r, ids(holders))
}

func viewRecovery(r *recovery, found *client.Recovery) recoveryView {
	v := recoveryView{Topic: r.topic, Partition: r.partition, Copies: []copyView{}}
	if found.Leader >= 0 {
		v.Leader = &found.Leader
	}
	for i := range found.Copies {
		c := &found.Copies[i]
		view := copyView{Broker: c.BrokerID, State: c.State, Silent: c.Silent, Role: c.Role}
		if !c.ReportedAt.IsZero() {
			view.ReportedAt, view.Intact = stamp(c.ReportedAt), &c.Intact
			view.LastEpoch, view.LogEnd, view.HighWatermark = &c.LastEpoch, &c.LogEnd, &c.HighWatermark
			view.MissingCommitted, view.MissingRecords = &c.MissingCommitted, &c.MissingRecords
		}
		v.Copies = append(v.Copies, view)
	}
	return v
}

// printCopies shows the copies and what would be lost.
func (a *app) printCopies(r *recovery, found *client.Recovery) error {
	var rows [][]string
	var silent []int32
	for i := range found.Copies {
		c := &found.Copies[i]
		state, intact := c.State, "-"
		if c.Silent {
			state = "silent"
			silent = append(silent, c.BrokerID)
		}
		if !c.ReportedAt.IsZero() {
			intact = map[bool]string{true: "yes", false: "no"}[c.Intact]
		}
		rows = append(rows, []string{
			fmt.Sprint(c.BrokerID), state, c.Role, intact, known(c.LastEpoch), known(c.LogEnd), known(c.HighWatermark),
			known(c.MissingCommitted), known(c.MissingRecords),
		})
	}
	if err := table(a.out, "broker state role intact epoch log-end high-watermark missing-committed missing-records", rows); err != nil {
		return err
	}
	if len(silent) > 0 {
		fmt.Fprintf(a.out, "\nBrokers that are silent (%s) are in service as the controllers last knew, and did not answer just now: they may have died. Look again in a few seconds.\n", ids(silent))
	}
	if found.Leader >= 0 {
		fmt.Fprintf(a.out, "\n%s\n", loss(r, found))
	}
	return nil
}

// loss says what is lost when the leader is elected.
func loss(r *recovery, found *client.Recovery) string {
	what := fmt.Sprintf("Electing broker %d as the leader of %s ", found.Leader, r)
	unreported := 0
	var complete []int32
	text := what + "loses an unknown number of records: it has not reported its copy."
	for i := range found.Copies {
		c := &found.Copies[i]
		if c.BrokerID != found.Leader && (c.Role == "in sync" || c.Role == "eligible") {
			complete = append(complete, c.BrokerID)
		}
		switch {
		case c.ReportedAt.IsZero():
			unreported++
		case c.BrokerID != found.Leader:
		case c.MissingCommitted > 0:
			text = what + fmt.Sprintf("loses for good at least %d acknowledged records, of %d that the longest copy has beyond it.", c.MissingCommitted, c.MissingRecords)
		case c.MissingRecords > 0:
			text = what + fmt.Sprintf("loses %s of the longest copy for good; they may have been acknowledged.", counted(c.MissingRecords, "record"))
		case c.Intact:
			text = what + "loses nothing that another reported copy has."
		default:
			text = what + "loses nothing that another reported copy has, yet its copy may have lost acknowledged records itself."
		}
	}
	if unreported > 0 {
		text += fmt.Sprintf("\nNot reported: %d of %d copies; they may have more.", unreported, len(found.Copies))
	}
	if len(complete) > 0 {
		text += fmt.Sprintf("\nNothing need be lost if the copy of broker %s can be brought back instead: it is recorded as complete.", ids(complete))
	}
	return text
}
