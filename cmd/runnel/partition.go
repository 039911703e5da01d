package main

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

func (a *app) partitionCommand() *cobra.Command {
	return noun("partition", "List partitions, such as those that are in trouble, and recover them", a.partitionList(), a.partitionRecover())
}

// A partitionFilter says which partitions to list. Several conditions must all
// hold.
type partitionFilter struct {
	topics          []string
	leader, replica int32 // broker ids; -1: any
	offline         bool
	underMinISR     bool
	underReplicated bool
	internal        bool
}

func (f *partitionFilter) wants(p *client.PartitionDescription) bool {
	switch {
	case f.offline && p.Leader >= 0,
		f.underMinISR && len(p.ISR) >= int(p.MinISR),
		f.underReplicated && len(p.ISR) >= len(p.Replicas),
		f.leader >= 0 && p.Leader != f.leader,
		f.replica >= 0 && !slices.Contains(p.Replicas, f.replica):
		return false
	}
	return true
}

// A placedPartition is a partition with its topic's name.
type placedPartition struct {
	Topic string `json:"topic"`
	partitionView
}

func (a *app) partitionList() *cobra.Command {
	f := partitionFilter{}
	c := &cobra.Command{
		Use: "list", Short: "List partitions with their leaders and replicas, of all topics or some", Args: args(),
		Long: `Lists partitions with their leaders and replicas. With several conditions, those
that meet all of them.`,
		Example: `  runnel partition list --offline
  runnel partition list --under-min-isr --format json
  runnel partition list --topic orders --leader 2`,
		RunE: func(c *cobra.Command, _ []string) error {
			for flag, id := range map[string]int32{"leader": f.leader, "replica": f.replica} {
				if c.Flags().Changed(flag) && id < 0 {
					return usagef("--%s %d: want the id of a broker; see %s", flag, id, a.typed("broker list"))
				}
			}
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				ps, err := listPartitions(ctx, admin, f)
				if err != nil {
					return err
				}
				return a.printPartitions(ps)
			})
		},
	}
	fs := c.Flags()
	fs.BoolVar(&f.offline, "offline", false, "only those without a leader: nothing can be written or read")
	fs.BoolVar(&f.underMinISR, "under-min-isr", false, "only those with fewer replicas in sync than writes with acks ALL need")
	fs.BoolVar(&f.underReplicated, "under-replicated", false, "only those with replicas that are not in sync")
	fs.StringSliceVar(&f.topics, "topic", nil, "only of this `topic`; several with commas")
	fs.Int32Var(&f.leader, "leader", -1, "only those that this `broker` leads")
	fs.Int32Var(&f.replica, "replica", -1, "only those that this `broker` has a copy of")
	fs.BoolVar(&f.internal, "internal", false, "also of topics that the system keeps for itself, after all others")
	hideDefault(c, "leader", "replica")
	return c
}

func listPartitions(ctx context.Context, admin *client.Admin, f partitionFilter) ([]placedPartition, error) {
	names := f.topics
	if len(names) == 0 {
		ts, err := admin.ListTopics(ctx, "", f.internal)
		if err != nil {
			return nil, err
		}
		var system []string
		for _, t := range ts {
			if t.Internal {
				system = append(system, t.Name)
			} else {
				names = append(names, t.Name)
			}
		}
		names = append(names, system...)
	}
	ds, err := admin.DescribeTopics(ctx, names)
	if err != nil {
		return nil, err
	}
	ps := []placedPartition{}
	for _, d := range ds {
		if d.Err != nil {
			return nil, fmt.Errorf("topic %q: %w", d.Name, d.Err)
		}
		for i := range d.Partitions {
			if f.wants(&d.Partitions[i]) {
				ps = append(ps, placedPartition{d.Name, viewPartition(&d.Partitions[i])})
			}
		}
	}
	return ps, nil
}

func (a *app) printPartitions(ps []placedPartition) error {
	if a.format == "json" {
		return a.printJSON(ps)
	}
	var rows [][]string
	for i := range ps {
		p := &ps[i]
		leader := "none"
		if p.Leader != nil {
			leader = fmt.Sprint(*p.Leader)
		}
		rows = append(rows, []string{
			fmt.Sprintf("%s/%d", p.Topic, p.Partition), leader, fmt.Sprint(p.LeaderEpoch), ids(p.Replicas), ids(p.ISR), ids(p.ELR), fmt.Sprint(p.MinISR),
		})
	}
	if len(rows) == 0 {
		fmt.Fprintln(a.err, "There are no such partitions.")
		return nil
	}
	return table(a.out, "partition leader epoch replicas isr elr min-isr", rows)
}
