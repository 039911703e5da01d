package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

func (a *app) groupCommand() *cobra.Command {
	return noun("group", "List, describe, move and delete consumer groups, and handle their dead letters",
		a.groupList(), a.groupDescribe(), a.groupSeek(), a.groupDelete(), a.groupDLQ())
}

type groupView struct {
	Group       string `json:"group"`
	State       string `json:"state"`
	Members     int32  `json:"members"`
	Coordinator *int32 `json:"coordinator"`
}

func (a *app) groupList() *cobra.Command {
	var prefix string
	c := &cobra.Command{
		Use: "list", Short: "List consumer groups", Args: args(),
		Long: `Lists consumer groups. It fails when a coordinator could not be asked, after
showing those that it has heard of.`,
		Example: "  runnel group list\n  runnel group list --prefix billing- --format json",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				gs, err := admin.ListGroups(ctx, prefix)
				if len(gs) == 0 && err != nil {
					return err
				}
				var views []groupView
				var rows [][]string
				for _, g := range gs {
					views = append(views, groupView{g.Group, string(g.State), g.Members, present(g.Coordinator)})
					rows = append(rows, []string{g.Group, string(g.State), fmt.Sprint(g.Members), known(g.Coordinator)})
				}
				switch {
				case a.format == "json":
					return errors.Join(a.printJSON(never(views)), err)
				case len(rows) == 0:
					fmt.Fprintln(a.err, "There are no groups yet. Read as one with: "+a.typed("consume TOPIC --group NAME"))
					return nil
				}
				return errors.Join(table(a.out, "group state members coordinator", rows), err)
			})
		},
	}
	c.Flags().StringVar(&prefix, "prefix", "", "only groups whose names begin with this `text`")
	return c
}

func (a *app) groupDelete() *cobra.Command {
	return &cobra.Command{
		Use: "delete GROUP", Short: "Delete a group, with all that it has committed", Args: args("GROUP"),
		Long: `Deletes a group, with all that it has committed. One that has members is not
deleted: stop them first.`,
		Example: "  runnel group delete billing",
		RunE: func(c *cobra.Command, names []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				if err := admin.DeleteGroup(ctx, names[0]); err != nil {
					return err
				}
				if a.format == "json" {
					return a.printJSON(struct {
						Group   string `json:"group"`
						Deleted bool   `json:"deleted"`
					}{names[0], true})
				}
				fmt.Fprintf(a.out, "deleted group %s\n", names[0])
				return nil
			})
		},
	}
}

type resetView struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Old       *int64 `json:"old_offset"`
	New       *int64 `json:"new_offset"`
	Error     string `json:"error,omitempty"`
}

type seekFlags struct {
	topic     string
	partition int32
	to        string
	dry       bool
	create    bool
}

func (a *app) groupSeek() *cobra.Command {
	var f seekFlags
	c := &cobra.Command{
		Use: "seek GROUP --topic TOPIC --to PLACE", Short: "Make a group go on at another place", Args: args("GROUP"),
		Long: `Makes a group go on at another place in a topic: all partitions that are named, or
none when anything is wrong. It works while members run: they give the partitions
up, and are given them again with the new place.

--to is earliest, latest, an offset, a time such as @2026-01-31T12:00:00Z, or +10 or
-10 for so many records on or back from what is committed.

The group must exist; with --create one that does not is made, so that its members
begin there.`,
		Example: `  runnel group seek billing --topic orders --to earliest --dry-run
  runnel group seek billing --topic orders --to @2026-01-31T12:00:00Z
  runnel group seek billing --topic orders --partition 3 --to -100`,
		RunE: func(c *cobra.Command, names []string) error {
			if c.Flags().Changed("partition") && f.partition < 0 {
				return usagef("--partition %d: the first is 0", f.partition)
			}
			if f.topic == "" || f.to == "" {
				return usagef("--topic and --to are needed: what to move, and where to")
			}
			return a.seekGroup(c.Context(), names[0], f)
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.topic, "topic", "", "the `topic` to move in")
	fs.Int32Var(&f.partition, "partition", client.AnyPartition, "only partition `N` (default: all)")
	hideDefault(c, "partition")
	fs.StringVar(&f.to, "to", "", "where to: `earliest|latest|OFFSET|@TIME|+N|-N`")
	fs.BoolVar(&f.dry, "dry-run", false, "say what would be done, change nothing")
	fs.BoolVar(&f.create, "create", false, "make the group if it does not exist")
	complete(c, "to", "earliest", "latest")
	return c
}

// reset reads --to.
func (f *seekFlags) reset() (client.OffsetReset, error) {
	r := client.OffsetReset{Topic: f.topic, Partition: f.partition}
	if strings.HasPrefix(f.to, "+") || strings.HasPrefix(f.to, "-") {
		n, err := strconv.ParseInt(f.to, 10, 64)
		if err != nil || n == 0 {
			return r, usagef("--to %q: want how many records, such as +10 or -10", f.to)
		}
		r.Shift = n
		return r, nil
	}
	to, err := parseFrom(f.to)
	if err != nil {
		return r, usagef("--to %q: want earliest, latest, an offset, @TIME, or +N or -N", f.to)
	}
	r.To = to
	return r, nil
}

func (a *app) seekGroup(ctx context.Context, group string, f seekFlags) error {
	reset, err := f.reset()
	if err != nil {
		return err
	}
	return a.withAdmin(ctx, func(ctx context.Context, admin *client.Admin) error {
		if err := groupExists(ctx, admin, group, f.create); err != nil {
			return err
		}
		rs, applied, err := admin.ResetOffsets(ctx, group, []client.OffsetReset{reset}, a.adminOptions(f.dry)...)
		if err != nil {
			return err
		}
		views, rows, failed := []resetView{}, [][]string{}, false
		for _, r := range rs {
			v := resetView{Topic: r.Topic, Partition: r.Partition, Old: present(r.Old), New: present(r.New)}
			if r.Err != nil {
				v.Error, failed = r.Err.Error(), true
			}
			views = append(views, v)
			rows = append(rows, []string{r.Topic, fmt.Sprint(r.Partition), known(r.Old), known(r.New), v.Error})
		}
		if a.format == "json" {
			err = a.printJSON(struct {
				Group   string      `json:"group"`
				Applied bool        `json:"applied"`
				Results []resetView `json:"results"`
			}{group, applied, views})
		} else {
			err = table(a.out, "topic partition from to error", rows)
		}
		switch {
		case err != nil:
			return err
		case failed:
			return errors.New("nothing was changed: see the errors above")
		case f.dry:
			fmt.Fprintln(a.err, "Nothing was changed: this is what would be.")
		}
		return nil
	})
}

// groupExists is an error when a group is not there, and need not be created: most
// often its name is mistyped, and moving it would make another one in silence.
func groupExists(ctx context.Context, admin *client.Admin, group string, create bool) error {
	if create {
		return nil
	}
	_, err := admin.DescribeGroup(ctx, group)
	if errors.Is(err, client.ErrGroupNotFound) {
		return fmt.Errorf("%w\nTo make it, so that its members begin there, add --create", err)
	}
	return err
}

// within writes a number of seconds for people; negative: not known.
func within(seconds float64) string {
	switch {
	case seconds < 0:
		return "-"
	case math.IsInf(seconds, 1):
		return "never"
	case seconds < 10:
		return strconv.FormatFloat(seconds, 'f', 1, 64) + "s"
	case seconds >= 100*365*24*3600:
		return "over 100 years"
	}
	return (time.Duration(seconds) * time.Second).String()
}
