package main

import (
	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/broker"
)

func (a *app) brokerCommand() *cobra.Command {
	var f serverFlags
	c := &cobra.Command{
		Use:   "broker",
		Short: "Run a broker: it keeps records and serves clients",
		Long: `Runs one broker of a cluster until it is told to stop (SIGTERM or SIGINT); it
hands its work over and then ends. A second signal ends it at once.

The configuration is, each over the one before: the defaults, the file of
--config, environment variables that begin with RUNNEL_BROKER_, and --set.`,
		Example: `  runnel broker --set id=1 --set controllers=10.0.0.1:7422,10.0.0.2:7422
  runnel broker --config broker.yaml --check-config`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg := broker.DefaultConfig()
			done, err := load(a, f, "RUNNEL_BROKER_", &cfg, func(*broker.Config) {})
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
	return c
}
