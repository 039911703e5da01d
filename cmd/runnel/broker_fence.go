package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

func (a *app) brokerFence() *cobra.Command {
	var yes bool
	c := &cobra.Command{
		Use: "fence ID", Short: "Take a broker out of service until its process is started anew", Args: args("ID"),
		Long: `Takes a broker out of service until its process is started anew: others lead its
partitions, and it is in sync with none. It is for a broker that answers, yet
does harm, such as one with a failing disk; one that does not answer is fenced
by itself, and one that can be stopped in order is better stopped.

It shows the broker first; then it asks, or, where nobody can be asked, needs
--yes. A partition of which no other copy is complete is offline until the
broker's process is started anew.`,
		Example: `  runnel broker fence 2
  runnel broker fence 2 --yes`,
		RunE: func(c *cobra.Command, names []string) error {
			id, err := strconv.ParseInt(names[0], 10, 32)
			if err != nil || id < 0 {
				return usagef("%q: want the id of a broker; see %s", names[0], a.typed("broker list"))
			}
			return a.fence(c.Context(), int32(id), yes)
		},
	}
	c.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return c
}

func (a *app) fence(ctx context.Context, id int32, yes bool) error {
	err := a.withAdmin(ctx, func(ctx context.Context, admin *client.Admin) error {
		d, err := admin.DescribeCluster(ctx)
		if err != nil {
			return err
		}
		n := slices.IndexFunc(d.Brokers, func(b client.BrokerDescription) bool { return b.ID == id })
		if n < 0 {
			return fmt.Errorf("there is no broker %d: see %s", id, a.typed("broker list"))
		}
		if a.format == "json" {
			return nil
		}
		return a.brokerTable([]brokerView{brokerView(d.Brokers[n])})
	})
	if err != nil {
		return err
	}
	if err := a.confirm(yes, fmt.Sprintf("Take broker %d out of service until its process is started anew?", id)); err != nil {
		return err
	}
	return a.withAdmin(ctx, func(ctx context.Context, admin *client.Admin) error {
		epoch, applied, err := admin.FenceBroker(ctx, id, a.adminOptions(false)...)
		if err != nil {
			return err
		}
		if a.format == "json" {
			return a.printJSON(struct {
				Broker  int32 `json:"broker"`
				Epoch   int64 `json:"broker_epoch"`
				Applied bool  `json:"applied"`
			}{id, epoch, applied})
		}
		fmt.Fprintf(a.out, "broker %d is out of service until its process is started anew (registration %d)\n", id, epoch)
		a.warnUnlessApplied(applied)
		return nil
	})
}
