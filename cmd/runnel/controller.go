package main

import (
	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/controller"
)

func (a *app) controllerCommand() *cobra.Command {
	var (
		f         serverFlags
		bootstrap bool
		endpoints []string
	)
	c := &cobra.Command{
		Use:   "controller",
		Short: "Run a controller, which decides which broker does what; or manage its metadata",
		Long: `Runs one controller of a cluster until it is told to stop (SIGTERM or SIGINT).
It keeps the cluster's metadata in an etcd of its own, inside this process, or
in the one that --etcd-endpoints names. A second signal ends it at once.

A new cluster is made only with --bootstrap, so that a controller that lost its
data never starts an empty cluster in place of the old one.

The configuration is, each over the one before: the defaults, the file of
--config, environment variables that begin with RUNNEL_CONTROLLER_, and --set.`,
		Example: `  runnel controller --bootstrap --set data_dir=/var/lib/runnel
  runnel controller --etcd-endpoints 10.0.0.1:2379,10.0.0.2:2379`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg := controller.DefaultConfig()
			done, err := load(a, f, "RUNNEL_CONTROLLER_", &cfg, func(cfg *controller.Config) error {
				if len(endpoints) > 0 {
					cfg.Etcd.Endpoints = endpoints
				}
				return nil
			})
			if done || err != nil {
				return err
			}
			log, err := a.logger(cfg.Logging.Level, cfg.Logging.Format)
			if err != nil {
				return err
			}
			ctl, err := controller.New(cfg, controller.Deps{Log: log, Bootstrap: bootstrap})
			if err != nil {
				return err
			}
			ctx, stop := serving(c.Context())
			defer stop()
			return ctl.Run(ctx)
		},
	}
	f.add(c)
	c.Flags().BoolVar(&bootstrap, "bootstrap", false, "make a new cluster where there is none")
	c.AddCommand(a.controllerJoin(), a.controllerMembers(), a.controllerRemove(), a.controllerBackup(), a.controllerRestore())
	c.Flags().StringSliceVar(&endpoints, "etcd-endpoints", nil, "`host:port` of an external etcd, several with commas")
	return c
}
