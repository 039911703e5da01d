package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

type configView struct {
	Key    string `json:"key"`
	Value  string `json:"value"`
	Source string `json:"source"`
}

func configViews(cs []client.ConfigEntry) []configView {
	vs := make([]configView, 0, len(cs))
	for _, c := range cs {
		vs = append(vs, configView(c))
	}
	return vs
}

// printConfigs prints a topic's configuration, with what a number that stands
// for no limit means.
func (a *app) printConfigs(cs []client.ConfigEntry) error {
	var rows [][]string
	for _, c := range cs {
		value := c.Value
		if topicconfig.IsUnlimited(c.Key, value) {
			value = "unlimited (" + value + ")"
		}
		rows = append(rows, []string{c.Key, value, c.Source})
	}
	return table(a.out, "config value from", rows)
}

type partitionView struct {
	Partition      int32   `json:"partition"`
	Leader         *int32  `json:"leader"`
	LeaderEpoch    int64   `json:"leader_epoch"`
	PartitionEpoch int64   `json:"partition_epoch"`
	Replicas       []int32 `json:"replicas"`
	ISR            []int32 `json:"isr"`
	ELR            []int32 `json:"elr"`
	MinISR         int32   `json:"min_isr"`
	LogStart       *int64  `json:"log_start_offset"`
	HighWatermark  *int64  `json:"high_watermark"`
	LogEnd         *int64  `json:"log_end_offset"`
	SizeBytes      *int64  `json:"size_bytes"`
	Segments       *int32  `json:"segments"`
	Error          string  `json:"error,omitempty"`
}

type topicDetailView struct {
	Name              string          `json:"name"`
	ID                string          `json:"id"`
	Partitions        int32           `json:"partition_count"`
	ReplicationFactor int32           `json:"replication_factor"`
	Internal          bool            `json:"internal"`
	Durability        string          `json:"durability"`
	Configs           []configView    `json:"configs"`
	PartitionList     []partitionView `json:"partitions"`
}

// present is v, or nil when it is not known.
func present[N ~int32 | ~int64](v N) *N {
	if v < 0 {
		return nil
	}
	return &v
}

func (a *app) topicDescribe() *cobra.Command {
	return &cobra.Command{
		Use: "describe NAME", Short: "Show a topic's configuration, partitions, offsets and sizes", Args: args("NAME"), ValidArgsFunction: a.topics,
		Long: `Shows a topic's configuration, and of each partition who leads, which replicas
there are and are in sync (isr), the offsets it begins at, is committed up to
and ends at, and its size on the leader's disk. It fails when a partition
could not be asked, and shows why.`,
		Example: "  runnel topic describe orders\n  runnel topic describe orders --format json",
		RunE: func(c *cobra.Command, names []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				ds, err := admin.DescribeTopics(ctx, names)
				if err != nil {
					return err
				}
				d, err := one(ds)
				if err != nil {
					return err
				}
				if d.Err != nil {
					return fmt.Errorf("describe topic %q: %w", names[0], d.Err)
				}
				show := a.printTopic
				if a.format == "json" {
					show = func(d client.TopicDescription) error { return a.printJSON(describeView(d)) }
				}
				if err := show(d); err != nil {
					return err
				}
				return incomplete(d)
			})
		},
	}
}

// incomplete is errQuiet when not all could be told of a topic: what is missing
// has been shown.
func incomplete(d client.TopicDescription) error {
	for i := range d.Partitions {
		if missing(&d.Partitions[i]) != "" {
			return errQuiet
		}
	}
	return nil
}

// missing says why a partition's offsets are not known; "" when they are.
func missing(p *client.PartitionDescription) string {
	switch {
	case p.Err != nil:
		return p.Err.Error()
	case p.LogEnd < 0:
		return fmt.Sprintf("broker %d, which leads it, did not answer in time", p.Leader)
	}
	return ""
}

func describeView(d client.TopicDescription) topicDetailView {
	v := topicDetailView{
		Name: d.Name, ID: d.ID, Partitions: d.PartitionCount, ReplicationFactor: d.ReplicationFactor,
		Internal: d.Internal, Durability: d.Durability, Configs: configViews(d.Configs), PartitionList: []partitionView{},
	}
	for i := range d.Partitions {
		v.PartitionList = append(v.PartitionList, viewPartition(&d.Partitions[i]))
	}
	return v
}

func viewPartition(p *client.PartitionDescription) partitionView {
	return partitionView{
		Partition: p.Partition, Leader: present(p.Leader), LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch,
		Replicas: never(p.Replicas), ISR: never(p.ISR), ELR: never(p.ELR), MinISR: p.MinISR,
		LogStart: present(p.LogStart), HighWatermark: present(p.HighWatermark), LogEnd: present(p.LogEnd),
		SizeBytes: present(p.Size), Segments: present(p.Segments), Error: missing(p),
	}
}

func (a *app) printTopic(d client.TopicDescription) error {
	fmt.Fprintf(a.out, "topic %s\nid %s\npartitions %d, replication factor %d\n", d.Name, d.ID, d.PartitionCount, d.ReplicationFactor)
	if d.Durability != "" {
		fmt.Fprintf(a.out, "durability: %s\n", d.Durability)
	}
	fmt.Fprintln(a.out)
	var rows [][]string
	for _, p := range d.Partitions {
		rows = append(rows, []string{
			fmt.Sprint(p.Partition), known(p.Leader), fmt.Sprint(p.LeaderEpoch), ids(p.Replicas), ids(p.ISR),
			known(p.LogStart), known(p.HighWatermark), known(p.LogEnd), bytesText(p.Size), known(p.Segments),
		})
	}
	if err := table(a.out, "partition leader epoch replicas isr start committed end size segments", rows); err != nil {
		return err
	}
	for i := range d.Partitions {
		if why := missing(&d.Partitions[i]); why != "" {
			fmt.Fprintf(a.out, "partition %d: %s\n", d.Partitions[i].Partition, why)
		}
	}
	fmt.Fprintln(a.out)
	return a.printConfigs(d.Configs)
}
