package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

func (a *app) topicCommand() *cobra.Command {
	return noun("topic", "Create, list, describe, change and delete topics",
		a.topicCreate(), a.topicList(), a.topicDescribe(), a.topicDelete(), a.topicDeleteRecords(), a.topicAlter(), a.topicAddPartitions())
}

// parseConfigs reads key=value flags.
func parseConfigs(kvs []string) (map[string]string, error) {
	m := map[string]string{}
	for _, kv := range kvs {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return nil, usagef("--config %q: want key=value, such as retention.ms=3600000", kv)
		}
		if _, twice := m[k]; twice {
			return nil, usagef("--config: %s is given twice", k)
		}
		m[k] = v
	}
	return m, nil
}

// configFlag adds a flag that takes one key=value a time, whatever is in it.
func configFlag(c *cobra.Command, kvs *[]string, help string) {
	c.Flags().StringArrayVar(kvs, "config", nil, help)
}

type topicView struct {
	Name              string `json:"name"`
	ID                string `json:"id"`
	Partitions        int32  `json:"partitions"`
	ReplicationFactor int32  `json:"replication_factor"`
	Created           *bool  `json:"created,omitempty"`
	Applied           *bool  `json:"applied,omitempty"`
	Internal          *bool  `json:"internal,omitempty"`
}

func (a *app) topicCreate() *cobra.Command {
	var (
		t       client.NewTopic
		configs []string
		dry     bool
	)
	c := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a topic",
		Long: `Creates a topic, or nothing when anything about it is wrong. What is not said is
as the cluster's configuration has it: 1 partition, and as many copies of it as
there are brokers, 3 at most, unless it was changed.

The keys of --config are those that "runnel topic describe" shows, such as
retention.ms; docs/configuration.md says what each does.`,
		Example: `  runnel topic create orders --partitions 8
  runnel topic create audit --config retention.ms=-1 --config flush=sync
  runnel topic create orders --if-not-exists`,
		Args: args("NAME"),
		RunE: func(c *cobra.Command, names []string) error {
			var err error
			if t.Configs, err = parseConfigs(configs); err != nil {
				return err
			}
			if c.Flags().Changed("partitions") && t.Partitions == 0 || c.Flags().Changed("replication-factor") && t.ReplicationFactor == 0 {
				return usagef("a topic has at least one partition and one replica")
			}
			t.Name = names[0]
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				return a.createTopic(ctx, admin, t, dry)
			})
		},
	}
	f := c.Flags()
	f.Int32Var(&t.Partitions, "partitions", 0, "`N` partitions (default: as the cluster is configured)")
	f.Int32Var(&t.ReplicationFactor, "replication-factor", 0, "`N` copies of each partition (default: as the cluster is configured)")
	f.BoolVar(&t.IfNotExists, "if-not-exists", false, "succeed when the topic is there already")
	f.BoolVar(&dry, "dry-run", false, "check all, create nothing")
	configFlag(c, &configs, "`key=value` of the topic's configuration; may be repeated")
	return c
}

// adminOptions bounds a change by --timeout, with a little left for the answer.
func (a *app) adminOptions(dry bool) []client.AdminOption {
	opts := []client.AdminOption{client.ApplyTimeout(a.timeout * 9 / 10)}
	if dry {
		opts = append(opts, client.ValidateOnly())
	}
	return opts
}

func (a *app) createTopic(ctx context.Context, admin *client.Admin, t client.NewTopic, dry bool) error {
	rs, err := admin.CreateTopics(ctx, []client.NewTopic{t}, a.adminOptions(dry)...)
	if err != nil {
		return err
	}
	r, err := one(rs)
	if err != nil {
		return err
	}
	if r.Err != nil {
		if errors.Is(r.Err, client.ErrTopicExists) {
			return fmt.Errorf("create topic %q: %w\nAdd --if-not-exists to make that a success.", t.Name, r.Err) //nolint:revive,staticcheck // shown as it is
		}
		return fmt.Errorf("create topic %q: %w", t.Name, r.Err)
	}
	if a.format == "json" {
		return a.printJSON(topicView{
			Name: r.Name, ID: r.ID, Partitions: r.Partitions, ReplicationFactor: r.ReplicationFactor, Created: &r.Created, Applied: &r.Applied,
		})
	}
	switch {
	case dry:
		fmt.Fprintf(a.out, "topic %s can be created\n", t.Name)
	case !r.Created:
		fmt.Fprintf(a.out, "topic %s exists already, with %s\n", r.Name, partitions(r.Partitions))
	default:
		fmt.Fprintf(a.out, "created topic %s with %s, replication factor %d\n", r.Name, partitions(r.Partitions), r.ReplicationFactor)
	}
	a.warnUnlessApplied(r.Applied || dry || !r.Created)
	return nil
}

// partitions counts partitions in words.
func partitions(n int32) string { return counted(int64(n), "partition") }

// counted is a number of things.
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

func (a *app) warnUnlessApplied(applied bool) {
	if !applied {
		fmt.Fprintln(a.err, "runnel: it is done, but not every broker has heard of it yet: see "+a.typed("cluster health"))
	}
}

// one returns the only result.
func one[T any](rs []T) (T, error) {
	if len(rs) != 1 {
		var none T
		return none, fmt.Errorf("the broker gave %d results for one topic", len(rs))
	}
	return rs[0], nil
}

func (a *app) topicList() *cobra.Command {
	var internal bool
	var prefix string
	c := &cobra.Command{
		Use: "list", Short: "List topics", Args: args(),
		Example: "  runnel topic list --prefix orders. --format json",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				ts, err := admin.ListTopics(ctx, prefix, internal)
				if err != nil {
					return err
				}
				var views []topicView
				var rows [][]string
				for _, t := range ts {
					views = append(views, topicView{Name: t.Name, ID: t.ID, Partitions: t.Partitions, ReplicationFactor: t.ReplicationFactor, Internal: &t.Internal})
					rows = append(rows, []string{t.Name, fmt.Sprint(t.Partitions), fmt.Sprint(t.ReplicationFactor), t.ID})
				}
				if a.format == "json" {
					return a.printJSON(never(views))
				}
				if len(rows) == 0 {
					fmt.Fprintln(a.err, "There are no topics yet. Create one with: "+a.typed("topic create NAME"))
					return nil
				}
				return table(a.out, "name partitions replicas id", rows)
			})
		},
	}
	c.Flags().StringVar(&prefix, "prefix", "", "only names that begin with this `text`")
	c.Flags().BoolVar(&internal, "internal", false, "also topics that the system keeps for itself")
	return c
}

func (a *app) topicDelete() *cobra.Command {
	var dry bool
	c := &cobra.Command{
		Use: "delete NAME", Short: "Delete a topic with all its records, for good", Args: args("NAME"), ValidArgsFunction: a.topics,
		Example: "  runnel topic delete orders",
		RunE: func(c *cobra.Command, names []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				rs, err := admin.DeleteTopics(ctx, names, a.adminOptions(dry)...)
				if err != nil {
					return err
				}
				r, err := one(rs)
				if err != nil {
					return err
				}
				if r.Err != nil {
					return fmt.Errorf("delete topic %q: %w", names[0], r.Err)
				}
				if a.format == "json" {
					return a.printJSON(struct {
						Name    string `json:"name"`
						ID      string `json:"id"`
						Applied bool   `json:"applied"`
					}{r.Name, r.ID, r.Applied})
				}
				if dry {
					fmt.Fprintf(a.out, "topic %s can be deleted\n", r.Name)
					return nil
				}
				fmt.Fprintf(a.out, "deleted topic %s\n", r.Name)
				a.warnUnlessApplied(r.Applied)
				return nil
			})
		},
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "check, delete nothing")
	return c
}

func (a *app) topicAlter() *cobra.Command {
	var (
		configs, remove []string
		dry             bool
	)
	c := &cobra.Command{
		Use: "alter NAME", Short: "Change a topic's configuration, all or nothing", Args: args("NAME"), ValidArgsFunction: a.topics,
		Long: `Changes a topic's configuration, all or nothing, while it is in use, and prints
what is in force then. The keys are those that "runnel topic describe" shows;
docs/configuration.md says what each does.`,
		Example: `  runnel topic alter orders --config retention.ms=3600000
  runnel topic alter orders --remove retention.ms`,
		RunE: func(c *cobra.Command, names []string) error {
			set, err := parseConfigs(configs)
			if err != nil {
				return err
			}
			if len(set)+len(remove) == 0 {
				return usagef("nothing to change: add --config key=value or --remove key")
			}
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				cs, applied, err := admin.AlterTopicConfig(ctx, names[0], set, remove, a.adminOptions(dry)...)
				if err != nil {
					return err
				}
				if a.format == "json" {
					return a.printJSON(struct {
						Name    string       `json:"name"`
						Applied bool         `json:"applied"`
						Configs []configView `json:"configs"`
					}{names[0], applied, configViews(cs)})
				}
				a.warnUnlessApplied(applied || dry)
				return a.printConfigs(cs)
			})
		},
	}
	configFlag(c, &configs, "`key=value` to set; may be repeated")
	c.Flags().StringArrayVar(&remove, "remove", nil, "`key` to put back to its default; may be repeated")
	c.Flags().BoolVar(&dry, "dry-run", false, "check, change nothing")
	return c
}

func (a *app) topicAddPartitions() *cobra.Command {
	var to int32
	var dry bool
	c := &cobra.Command{
		Use: "add-partitions NAME --to N", Short: "Raise a topic's number of partitions", Args: args("NAME"), ValidArgsFunction: a.topics,
		Long:    "Raises a topic's number of partitions. Records of a key may go to another partition\nafterwards than those before.",
		Example: "  runnel topic add-partitions orders --to 16",
		RunE: func(c *cobra.Command, names []string) error {
			if to < 1 {
				return usagef("--to is missing: the number of partitions to reach")
			}
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				n, applied, err := admin.AddPartitions(ctx, names[0], to, a.adminOptions(dry)...)
				if err != nil {
					return err
				}
				if a.format == "json" {
					return a.printJSON(struct {
						Name       string `json:"name"`
						Partitions int32  `json:"partitions"`
						Applied    bool   `json:"applied"`
					}{names[0], n, applied})
				}
				if dry {
					fmt.Fprintf(a.out, "topic %s can have %s\n", names[0], partitions(to))
					return nil
				}
				fmt.Fprintf(a.out, "topic %s has %s\n", names[0], partitions(n))
				a.warnUnlessApplied(applied)
				return nil
			})
		},
	}
	c.Flags().Int32Var(&to, "to", 0, "`N` partitions in all, afterwards")
	c.Flags().BoolVar(&dry, "dry-run", false, "check, change nothing")
	return c
}
