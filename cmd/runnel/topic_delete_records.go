package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

// A deletion is one run of runnel topic delete-records.
type deletion struct {
	topic     string
	partition int32 // client.AnyPartition: all
	before    string
	dry, yes  bool
}

// cutView is what becomes of one partition.
type cutView struct {
	Partition int32 `json:"partition"`
	// Start and End are what was found; Before is what goes below.
	Start  int64 `json:"old_log_start_offset"`
	Before int64 `json:"before_offset"`
	End    int64 `json:"high_watermark"`
	// LogStart is what was made of it; null: nothing was.
	LogStart *int64 `json:"log_start_offset"`
	Error    string `json:"error,omitempty"`
}

// gone is how many records go at most: compaction may have removed some.
func (c *cutView) gone() int64 { return max(c.Before-c.Start, 0) }

func (a *app) topicDeleteRecords() *cobra.Command {
	var d deletion
	c := &cobra.Command{
		Use: "delete-records NAME --before PLACE", Short: "Delete the oldest records of a topic, for good", Args: args("NAME"), ValidArgsFunction: a.topics,
		Long: `Deletes the records of a topic's partitions that lie before a place, for good:
the partitions begin there afterwards. First it shows what goes; then it asks,
or, where nobody can be asked, needs --yes. It ends when no replica that may
lead has the records any more.

--before is an offset, of one --partition; latest, for all records there are; or
a time such as @2026-01-31T12:00:00Z, for those before the first record that is
not older. What is written meanwhile stays.`,
		Example: `  runnel topic delete-records orders --before @2026-01-31T12:00:00Z --dry-run
  runnel topic delete-records orders --partition 3 --before 3641
  runnel topic delete-records orders --before latest --yes`,
		RunE: func(c *cobra.Command, names []string) error {
			if c.Flags().Changed("partition") && d.partition < 0 {
				return usagef("--partition %d: the first is 0", d.partition)
			}
			d.topic = names[0]
			return a.deleteRecords(c.Context(), &d)
		},
	}
	fs := c.Flags()
	fs.Int32Var(&d.partition, "partition", client.AnyPartition, "only of partition `N` (default: of all)")
	hideDefault(c, "partition")
	fs.StringVar(&d.before, "before", "", "what to delete the records before: `OFFSET|latest|@TIME`")
	fs.BoolVar(&d.dry, "dry-run", false, "show what would be deleted, delete nothing")
	fs.BoolVar(&d.yes, "yes", false, "do not ask")
	complete(c, "before", "latest")
	return c
}

// place reads --before: an offset, or, with -1, where to look for it.
func (d *deletion) place() (offset int64, at client.Start, err error) {
	if d.before == "" {
		return 0, at, usagef("--before is missing: what to delete the records before")
	}
	if n, err := strconv.ParseInt(d.before, 10, 64); err == nil && n >= 0 {
		if d.partition == client.AnyPartition {
			return 0, at, usagef("--before %d: an offset is one of a partition: add --partition", n)
		}
		return n, at, nil
	}
	if d.before == "latest" || strings.HasPrefix(d.before, "@") {
		if at, err = parseFrom(d.before); err == nil {
			return -1, at, nil
		}
	}
	return 0, at, usagef("--before %q: want an offset, latest, or a time such as @2026-01-31T12:00:00Z", d.before)
}

func (a *app) deleteRecords(ctx context.Context, d *deletion) error {
	offset, at, err := d.place()
	if err != nil {
		return err
	}
	var cuts []cutView
	err = a.withAdmin(ctx, func(ctx context.Context, admin *client.Admin) error {
		cuts, err = a.findCuts(ctx, admin, d, offset, at)
		return err
	})
	if err != nil {
		return err
	}
	total := int64(0)
	for i := range cuts {
		total += cuts[i].gone()
	}
	if a.format != "json" {
		if err := a.printCuts(cuts); err != nil {
			return err
		}
	}
	switch {
	case d.dry:
		fmt.Fprintln(a.err, "Nothing was deleted: this is what would be.")
	case total == 0:
		fmt.Fprintln(a.err, "There is nothing to delete.")
	default:
		if err := a.confirm(d.yes, fmt.Sprintf("Delete up to %s of %s, for good?", counted(total, "record"), d.topic)); err != nil {
			return err
		}
		if err := a.cut(ctx, d, cuts); err != nil {
			return err
		}
	}
	if a.format == "json" {
		if err := a.printJSON(struct {
			Topic      string    `json:"topic"`
			Partitions []cutView `json:"partitions"`
		}{d.topic, cuts}); err != nil {
			return err
		}
	}
	for i := range cuts {
		if cuts[i].Error != "" {
			return errQuiet
		}
	}
	return nil
}

// findCuts looks up what is to go. The end comes first: what is written after it
// was asked for stays, also where the place is later.
func (a *app) findCuts(ctx context.Context, admin *client.Admin, d *deletion, offset int64, at client.Start) ([]cutView, error) {
	ends, err := d.offsets(ctx, admin, client.Latest())
	if err != nil {
		return nil, err
	}
	starts, err := d.offsets(ctx, admin, client.Earliest())
	if err != nil {
		return nil, err
	}
	var places map[int32]int64
	byTime := offset < 0 && d.before != "latest"
	if byTime {
		if places, err = d.offsets(ctx, admin, at); err != nil {
			return nil, err
		}
	}
	if len(ends) == 0 {
		return nil, fmt.Errorf("topic %q has no partition %d: see %s", d.topic, d.partition, a.typed("topic describe "+word(d.topic)))
	}
	cuts := make([]cutView, 0, len(ends))
	for _, n := range slices.Sorted(maps.Keys(ends)) {
		c := cutView{Partition: n, Start: starts[n], End: ends[n], Before: ends[n]}
		if byTime {
			place, ok := places[n]
			if !ok { // the broker that was asked then does not know it yet
				return nil, fmt.Errorf("nothing was deleted: what of %s/%d is older could not be found out: try again", d.topic, n)
			}
			if place >= 0 { // -1: all records are older
				c.Before = min(place, c.End)
			}
		}
		if offset > c.End {
			return nil, fmt.Errorf("%s/%d has committed records up to offset %d only, and --before is %d: nothing was deleted", d.topic, n, c.End, offset)
		}
		if offset >= 0 {
			c.Before = offset
		}
		cuts = append(cuts, c)
	}
	return cuts, nil
}

// offsets returns the offsets that a place has in the partitions that are meant;
// -1 where there is none.
func (d *deletion) offsets(ctx context.Context, admin *client.Admin, at client.Start) (map[int32]int64, error) {
	found, err := admin.ListOffsets(ctx, d.topic, at)
	if err != nil {
		return nil, err
	}
	offsets := map[int32]int64{}
	for _, o := range found {
		if d.partition != client.AnyPartition && o.Partition != d.partition {
			continue
		}
		if errors.Is(o.Err, client.ErrTopicNotFound) {
			return nil, o.Err
		}
		if o.Err != nil {
			return nil, fmt.Errorf("nothing was deleted: %s/%d: %w", d.topic, o.Partition, o.Err)
		}
		offsets[o.Partition] = o.Offset
	}
	return offsets, nil
}

// printCuts shows what is to go.
func (a *app) printCuts(cuts []cutView) error {
	var rows [][]string
	for i := range cuts {
		c := &cuts[i]
		rows = append(rows, []string{fmt.Sprint(c.Partition), fmt.Sprint(c.Start), fmt.Sprint(c.Before), fmt.Sprint(c.End), fmt.Sprint(c.gone())})
	}
	return table(a.out, "partition begins delete-before end records", rows)
}

// cut deletes what was shown, and notes what became of it.
func (a *app) cut(ctx context.Context, d *deletion, cuts []cutView) error {
	before, at := map[int32]int64{}, map[int32]*cutView{}
	for i := range cuts {
		if cuts[i].gone() > 0 {
			before[cuts[i].Partition], at[cuts[i].Partition] = cuts[i].Before, &cuts[i]
		}
	}
	return a.withAdmin(ctx, func(ctx context.Context, admin *client.Admin) error {
		done, err := admin.DeleteRecords(ctx, d.topic, before, a.adminOptions(false)...)
		if err != nil {
			return err
		}
		for _, r := range done {
			c := at[r.Partition]
			if c == nil {
				continue
			}
			if r.Err != nil {
				c.Error = r.Err.Error()
				fmt.Fprintf(a.err, "runnel: %s/%d: %s\n", d.topic, r.Partition, c.Error)
				continue
			}
			c.LogStart = &r.LogStart
			if a.format != "json" {
				fmt.Fprintf(a.out, "%s/%d begins at offset %d\n", d.topic, r.Partition, r.LogStart)
			}
		}
		return nil
	})
}
