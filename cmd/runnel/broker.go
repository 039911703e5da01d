package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/client"
)

func (a *app) brokerCommand() *cobra.Command {
	var f serverFlags
	c := &cobra.Command{
		Use:   "broker",
		Short: "Run a broker, which keeps records and serves clients; or list or fence those there are",
		Long: `Runs one broker of a cluster until it is told to stop (SIGTERM or SIGINT); it
hands its work over and then ends. A second signal ends it at once.

The configuration is, each over the one before: the defaults, the file of
--config, environment variables that begin with RUNNEL_BROKER_, and --set.`,
		Example: `  runnel broker --set id=1 --set controllers=10.0.0.1:7422,10.0.0.2:7422
  runnel broker --config broker.yaml --check-config`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg := broker.DefaultConfig()
			done, err := load(a, f, "RUNNEL_BROKER_", &cfg, func(*broker.Config) error { return nil })
			if done || err != nil {
				return err
			}
			log, err := a.logger(cfg.Logging.Level, cfg.Logging.Format)
			if err != nil {
				return err
			}
			b, err := broker.New(cfg, broker.Deps{Log: log, Version: version()})
			if err != nil {
				return err
			}
			ctx, stop := serving(c.Context())
			defer stop()
			return b.Run(ctx)
		},
	}
	f.add(c)
	c.AddCommand(a.brokerList(), a.brokerFence())
	return c
}

func (a *app) brokerList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the brokers of the cluster, and which are in service", Args: args(),
		Example: "  runnel broker list --format json",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.withAdmin(c.Context(), func(ctx context.Context, admin *client.Admin) error {
				d, err := admin.DescribeCluster(ctx)
				if err != nil {
					return err
				}
				views := []brokerView{}
				for _, b := range d.Brokers {
					views = append(views, brokerView(b))
				}
				if a.format == "json" {
					return a.printJSON(views)
				}
				return a.brokerTable(views)
			})
		},
	}
}
