package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/controller"
)

// controllerFlags are those of commands about a controller's metadata store.
type controllerFlags struct {
	serverFlags

	endpoints []string
}

func (f *controllerFlags) add(c *cobra.Command) {
	f.serverFlags.add(c)
	c.Flags().StringSliceVar(&f.endpoints, "etcd-endpoints", nil, "`host:port` of etcd's port for clients, several with commas (default: as the configuration says)")
}

// controllerConfig loads a controller's configuration.
func (a *app) controllerConfig(f serverFlags) (cfg controller.Config, done bool, err error) {
	cfg = controller.DefaultConfig()
	done, err = load(a, f, "RUNNEL_CONTROLLER_", &cfg, func(*controller.Config) error { return nil })
	return cfg, done, err
}

// errNoAnswerOfEtcd is part of what commands that ask etcd, and no broker, fail with when --timeout is over.
var errNoAnswerOfEtcd = errors.New("no answer")

// managing calls f with the configuration, within --timeout.
func (a *app) managing(ctx context.Context, f controllerFlags, do func(context.Context, controller.Config) error) error {
	cfg, done, err := a.controllerConfig(f.serverFlags)
	if done || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	err = do(ctx, cfg)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", err, errNoAnswerOfEtcd)
	}
	return err
}

func (a *app) controllerJoin() *cobra.Command {
	var f serverFlags
	c := &cobra.Command{
		Use: "join HOST:PORT[,…]", Short: "Run a controller that joins the others of a cluster", Args: args("HOST:PORT"),
		Long: `Runs a controller without data as a new member of the cluster whose etcd is
reached at HOST:PORT, the etcd.client address of controllers that run. It gets
a vote once it has all metadata. With data it starts as "runnel controller" does.

A member that lost its data is removed before another takes its place: see
"runnel controller remove".`,
		Example: "  runnel controller join 127.0.0.1:7428 --config controller-4.yaml",
		RunE: func(c *cobra.Command, addrs []string) error {
			cfg, done, err := a.controllerConfig(f)
			if done || err != nil {
				return err
			}
			log, err := a.logger(cfg.Logging.Level, cfg.Logging.Format)
			if err != nil {
				return err
			}
			ctl, err := controller.New(cfg, controller.Deps{Log: log, Join: strings.Split(addrs[0], ",")})
			if err != nil {
				return err
			}
			ctx, stop := serving(c.Context())
			defer stop()
			return ctl.Run(ctx)
		},
	}
	f.add(c)
	return c
}

type memberView struct {
	ID      string   `json:"id"`
	Name    string   `json:"name"`
	Peers   []string `json:"peers"`
	Clients []string `json:"clients"`
	Role    string   `json:"role"` // leader, follower or learner
}

func (a *app) controllerMembers() *cobra.Command {
	var f controllerFlags
	c := &cobra.Command{
		Use: "members", Short: "List the members of the controllers' etcd", Args: args(),
		Example: "  runnel controller members --etcd-endpoints 127.0.0.1:7428",
		RunE: func(c *cobra.Command, _ []string) error {
			return a.managing(c.Context(), f, func(ctx context.Context, cfg controller.Config) error {
				all, err := controller.Members(ctx, cfg, f.endpoints, zerolog.Nop())
				if err != nil {
					return err
				}
				views := []memberView{}
				var rows [][]string
				for _, m := range all {
					role := "follower"
					switch {
					case m.Leader:
						role = "leader"
					case m.Learner:
						role = "learner"
					}
					views = append(views, memberView{m.ID, m.Name, never(m.Peers), never(m.Clients), role})
					rows = append(rows, []string{m.Name, m.ID, role, strings.Join(m.Peers, ","), strings.Join(m.Clients, ",")})
				}
				if a.format == "json" {
					return a.printJSON(views)
				}
				return table(a.out, "member id role peers clients", rows)
			})
		},
	}
	f.add(c)
	return c
}

func (a *app) controllerRemove() *cobra.Command {
	var f controllerFlags
	c := &cobra.Command{
		Use: "remove MEMBER", Short: "Remove a member, by name or id, from the controllers' etcd", Args: args("MEMBER"),
		Long: `Removes a member from the controllers' etcd, such as one whose machine or data is
lost, so that another can take its place with "runnel controller join".`,
		Example: "  runnel controller remove controller-3 --etcd-endpoints 127.0.0.1:7428",
		RunE: func(c *cobra.Command, names []string) error {
			return a.managing(c.Context(), f, func(ctx context.Context, cfg controller.Config) error {
				if err := controller.RemoveMember(ctx, cfg, f.endpoints, names[0], zerolog.Nop()); err != nil {
					return err
				}
				fmt.Fprintf(a.err, "removed member %s\n", names[0])
				return nil
			})
		},
	}
	f.add(c)
	return c
}

func (a *app) controllerBackup() *cobra.Command {
	var f controllerFlags
	c := &cobra.Command{
		Use: "backup FILE", Short: "Write all metadata of a cluster that runs to a new file", Args: args("FILE"),
		Long:    "Writes all metadata, as of one moment, to a new file, while the cluster runs.\nRecords are not part of it.",
		Example: "  runnel controller backup metadata.backup --etcd-endpoints 127.0.0.1:7428",
		RunE: func(c *cobra.Command, names []string) error {
			return a.managing(c.Context(), f, func(ctx context.Context, cfg controller.Config) error {
				return a.backup(ctx, cfg, f.endpoints, names[0])
			})
		},
	}
	f.add(c)
	return c
}

// backup leaves no file that is not whole.
func (a *app) backup(ctx context.Context, cfg controller.Config, endpoints []string, path string) (err error) {
	out, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := controller.Backup(ctx, cfg, endpoints, out, zerolog.Nop())
	if err == nil {
		err = out.Sync()
	}
	if err = errors.Join(err, out.Close()); err != nil {
		return errors.Join(err, os.Remove(path))
	}
	fmt.Fprintf(a.err, "wrote %d objects as of revision %d to %s\n", info.Objects, info.Revision, path)
	return nil
}

func (a *app) controllerRestore() *cobra.Command {
	var f serverFlags
	c := &cobra.Command{
		Use: "restore FILE", Short: "Make the metadata of a cluster anew from a backup", Args: args("FILE"),
		Long: `Makes the metadata of a cluster from a backup: in a new embedded member on this
machine, which must have no data, or in the external etcd that the configuration
names. No controller and no broker may run. Then start this controller, let the
others join it with "runnel controller join", and start the brokers.`,
		Example: "  runnel controller restore metadata.backup --config controller.yaml",
		RunE: func(c *cobra.Command, names []string) error {
			in, err := os.Open(names[0])
			if err != nil {
				return err
			}
			defer in.Close()
			return a.managing(c.Context(), controllerFlags{serverFlags: f}, func(ctx context.Context, cfg controller.Config) error {
				info, err := controller.Restore(ctx, cfg, in, zerolog.Nop())
				if err != nil {
					return err
				}
				fmt.Fprintf(a.err, "restored %d objects\n", info.Objects)
				return nil
			})
		},
	}
	f.add(c)
	return c
}
