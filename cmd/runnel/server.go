package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/rs/zerolog"
	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/internal/config"
	"github.com/runnelmq/runnel/internal/telemetry"
)

func (a *app) addServers(root *cobra.Command) {
	add(root, "server", a.devCommand(), a.controllerCommand(), a.brokerCommand())
}

// serverFlags are the flags of every server.
type serverFlags struct {
	file  string
	set   []string
	print bool
	check bool
}

func (f *serverFlags) add(c *cobra.Command) {
	c.Version = version()
	c.SetVersionTemplate("runnel {{.Version}}\n")
	fs := c.Flags()
	fs.StringVar(&f.file, "config", "", "YAML `file` with the configuration")
	fs.StringArrayVar(&f.set, "set", nil, "`key=value` of the configuration, over file and environment; may be repeated")
	fs.BoolVar(&f.print, "print-config", false, "print the configuration as it is in force, and end")
	fs.BoolVar(&f.check, "check-config", false, "tell what is wrong with the configuration, and end")
	_ = c.MarkFlagFilename("config", "yaml", "yml")
}

// A validator is a configuration that can tell what is wrong with it.
type validator interface{ Validate() error }

// load lays file, environment and --set over the defaults in *c, and adjust's
// changes, which stand for flags, over all that. It is true when that was all
// that was asked for.
func load[C validator](a *app, f serverFlags, prefix string, c *C, adjust func(*C) error) (done bool, err error) {
	if err := config.Load(c, config.Source{File: f.file, Prefix: prefix, Set: f.set}); err != nil {
		return false, usageError{fmt.Errorf("configuration:\n%s", indent(err))}
	}
	if err := adjust(c); err != nil {
		return false, usageError{fmt.Errorf("configuration:\n%s", indent(err))}
	}
	if f.print {
		return true, config.Print(a.out, *c)
	}
	if err := (*c).Validate(); err != nil {
		return false, usageError{fmt.Errorf("configuration:\n%s", indent(err))}
	}
	if f.check {
		fmt.Fprintln(a.out, "the configuration is fine")
	}
	return f.check, nil
}

// indent sets each line of an error off.
func indent(err error) string {
	return "  " + strings.ReplaceAll(err.Error(), "\n", "\n  ")
}

// serving ends ctx at the first SIGINT or SIGTERM. A second one kills the
// process: nothing catches it any more.
func serving(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	return ctx, stop
}

// logger returns a server's log, which goes to standard error.
func (a *app) logger(level, format string) (zerolog.Logger, error) {
	log, err := telemetry.NewLogger(a.err, level, format)
	if err != nil {
		return log, usageError{err}
	}
	return log, nil
}
