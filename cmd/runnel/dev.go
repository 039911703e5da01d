package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/internal/telemetry"
	"github.com/runnelmq/runnel/internal/vfs"
)

// devBroker is the id of the only broker.
const devBroker = 1

// devConfig is the configuration of a whole node.
type devConfig struct {
	Controller controller.Config `yaml:"controller" envPrefix:"CONTROLLER_"`
	Broker     broker.Config     `yaml:"broker" envPrefix:"BROKER_"`
}

// Validate implements validator.
func (c devConfig) Validate() error {
	var errs []error
	for _, room := range []struct {
		name string
		err  error
	}{{"controller", c.Controller.Validate()}, {"broker", c.Broker.Validate()}} {
		if room.err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", room.name, room.err))
		}
	}
	return errors.Join(errs...)
}

func defaultDevConfig() devConfig {
	c := devConfig{Controller: controller.DefaultConfig(), Broker: broker.DefaultConfig()}
	// Nobody but this process needs these ports.
	const anyPort = "127.0.0.1:0"
	c.Controller.Listen.Controller, c.Controller.Listen.Admin = anyPort, ""
	c.Controller.Etcd.Client, c.Controller.Etcd.Peer = anyPort, anyPort
	c.Controller.Logging.Level, c.Controller.Logging.Format = "warn", "text"
	c.Broker.ID = devBroker
	c.Broker.Listen.Internal = anyPort
	c.Broker.Logging.Level, c.Broker.Logging.Format = "warn", "text"
	return c
}

type devFlags struct {
	serverFlags

	data, listen, admin string
}

func (a *app) devCommand() *cobra.Command {
	var f devFlags
	c := &cobra.Command{
		Use:   "dev",
		Short: "Run a whole node on this machine: a controller and a broker",
		Long: `Runs a whole node in one process, a controller with its metadata store and a
broker, until it is told to stop (Ctrl-C or SIGTERM). Its data survives. A
second signal ends it at once.

The configuration is, each over the one before: the defaults, the file of
--config, environment variables that begin with RUNNEL_DEV_, --set, and the
other flags. Its keys are those of "runnel controller" and "runnel broker" with
"controller." and "broker." before them.`,
		Example: `  runnel dev
  runnel dev --data /var/lib/runnel --listen 127.0.0.1:9000 --admin 127.0.0.1:9001
  runnel dev --set broker.logging.level=info`,
		Args: args(),
		RunE: func(c *cobra.Command, _ []string) error {
			cfg := defaultDevConfig()
			set := c.Flags().Changed
			done, err := load(a, f.serverFlags, "RUNNEL_DEV_", &cfg, func(cfg *devConfig) error { return f.adjust(cfg, set) })
			if done || err != nil {
				return err
			}
			return a.dev(c.Context(), cfg, f.data)
		},
	}
	f.add(c)
	fs := c.Flags()
	fs.StringVar(&f.data, "data", "./runnel-data", "`folder` to keep the data in")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:7420", "`address` for clients")
	fs.StringVar(&f.admin, "admin", "127.0.0.1:7424", "`address` of the admin HTTP port: metrics, health, profiles; empty for none")
	_ = c.MarkFlagDirname("data")
	return c
}

// adjust lays the flags that were given over the configuration, and refuses
// what would not be in force.
func (f *devFlags) adjust(c *devConfig, set func(flag string) bool) error {
	defaults := defaultDevConfig()
	var errs []error
	for _, dir := range []struct {
		option, name, usual string
		dir                 *string
	}{
		{"controller.data_dir", "controller", defaults.Controller.DataDir, &c.Controller.DataDir},
		{"broker.data_dir", "broker", defaults.Broker.DataDir, &c.Broker.DataDir},
	} {
		at := filepath.Join(f.data, dir.name)
		if *dir.dir != dir.usual && *dir.dir != at {
			errs = append(errs, fmt.Errorf("%s %q: a node keeps all its data in one folder, here %s: name another with --data", dir.option, *dir.dir, f.data))
		}
		*dir.dir = at
	}
	if !slices.Equal(c.Broker.Controllers, defaults.Broker.Controllers) {
		errs = append(errs, errors.New(`broker.controllers: a node's broker follows the node's own controller: leave it out, or run a broker by itself with "runnel broker"`))
	}
	if set("listen") {
		c.Broker.Listen.Client = f.listen
	}
	if set("admin") {
		c.Broker.Listen.Admin = f.admin
	}
	return errors.Join(errs...)
}

// dev runs a controller and a broker until ctx ends or a signal comes.
func (a *app) dev(ctx context.Context, cfg devConfig, data string) error {
	log, err := a.logger(cfg.Broker.Logging.Level, cfg.Broker.Logging.Format)
	if err != nil {
		return err
	}
	ctx, stop := serving(ctx)
	defer stop()
	// A folder or a port that is taken is found out before anything is started.
	lock, err := lockData(data)
	if err != nil {
		return err
	}
	defer lock.Close()
	early, err := bindEarly(ctx, map[string]string{"--listen": cfg.Broker.Listen.Client, "--admin": cfg.Broker.Listen.Admin})
	if err != nil {
		return err
	}
	defer early.close()
	n := &devNode{app: a, cfg: cfg, log: log, early: early, data: data, registry: telemetry.NewRegistry()}
	return n.run(ctx)
}

// lockData keeps a second node off the same folder.
func lockData(dir string) (io.Closer, error) {
	fsys := vfs.OS()
	unusable := func(err error) error {
		return fmt.Errorf("data folder: %w\nThe user that runs this (uid %d) must be able to write there; or choose another folder with --data", err, os.Getuid())
	}
	if err := fsys.MkdirAll(dir); err != nil {
		return nil, unusable(err)
	}
	lock, err := fsys.Lock(filepath.Join(dir, "lock"))
	if errors.Is(err, vfs.ErrLocked) {
		return nil, fmt.Errorf("the data folder %s is in use by another node: stop that, or choose another folder with --data", dir)
	}
	if err != nil {
		return nil, unusable(err)
	}
	return lock, nil
}

// A devNode is what `runnel dev` runs.
type devNode struct {
	app      *app
	cfg      devConfig
	log      zerolog.Logger
	early    *earlyPorts
	data     string
	registry *prometheus.Registry
}

// run starts the controller, then the broker, and stops them the other way
// round: a broker that leaves tells the controller.
func (n *devNode) run(ctx context.Context) error {
	ctl, err := controller.New(n.cfg.Controller, controller.Deps{Log: n.log, Registry: n.registry, Dev: true})
	if err != nil {
		return err
	}
	// The controller outlives the broker.
	controllerCtx, stopController := context.WithCancel(context.WithoutCancel(ctx))
	defer stopController()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return ctl.Run(controllerCtx) })
	g.Go(func() error {
		defer stopController()
		select {
		case <-ctl.Bound():
		case <-ctx.Done():
			return nil
		}
		return n.runBroker(ctx, ctl.Addr())
	})
	return g.Wait()
}

func (n *devNode) runBroker(ctx context.Context, controllerAddr string) error {
	cfg := n.cfg.Broker
	cfg.Controllers = []string{controllerAddr}
	b, err := broker.New(cfg, broker.Deps{Log: n.log, Registry: n.registry, Listen: n.early.listen, Version: version()})
	if err != nil {
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		err := b.Run(gctx)
		if err == nil && ctx.Err() == nil {
			return errors.New("the broker ended by itself")
		}
		return err
	})
	g.Go(func() error {
		select {
		case <-b.Ready():
			n.welcome(b.Addrs())
		case <-gctx.Done():
		}
		return nil
	})
	return g.Wait()
}

// welcome says that the node is ready, and what to type next.
func (n *devNode) welcome(at broker.Addrs) {
	flag := ""
	if at.Client != defaultBrokers {
		flag = " --brokers " + at.Client
	}
	admin := "none"
	if at.Admin != "" {
		admin = "http://" + at.Admin + "  (metrics, health)"
	}
	fmt.Fprintf(n.app.out, `Runnel %[1]s is ready.

  clients  %[2]s
  admin    %[3]s
  data     %[4]s

Try in another shell:

  %[6]s topic create hello --partitions 4%[5]s
  echo world | %[6]s produce hello%[5]s
  %[6]s consume hello --exit-at-end%[5]s

Ctrl-C stops the node; its data stays.
`, version(), at.Client, admin, n.data, flag, n.app.program())
}

// earlyPorts are listeners that were opened before what will serve on them.
type earlyPorts struct{ byAddr map[string]net.Listener }

func bindEarly(ctx context.Context, flags map[string]string) (*earlyPorts, error) {
	e := &earlyPorts{byAddr: map[string]net.Listener{}}
	for flag, addr := range flags {
		if addr == "" {
			continue
		}
		var lc net.ListenConfig
		lis, err := lc.Listen(ctx, "tcp", addr)
		if err != nil {
			e.close()
			return nil, fmt.Errorf("%w\nChoose another address with %s, or stop what uses this one (another runnel dev?)", err, flag)
		}
		e.byAddr[addr] = lis
	}
	return e, nil
}

// listen hands an early listener over, once, and opens others.
func (e *earlyPorts) listen(ctx context.Context, addr string) (net.Listener, error) {
	if lis := e.byAddr[addr]; lis != nil {
		delete(e.byAddr, addr)
		return lis, nil
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

func (e *earlyPorts) close() {
	for _, lis := range e.byAddr {
		_ = lis.Close()
	}
}
