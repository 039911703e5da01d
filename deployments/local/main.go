// Command local runs a whole cluster on this machine, controllers and brokers in
// processes of their own, until it is told to stop.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// options are the command line.
type options struct {
	runnel      string // the binary
	data        string // folder for data and logs
	basePort    int
	controllers int
	brokers     int
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends it at once
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		if !errors.Is(err, flag.ErrHelp) {
			fmt.Fprintln(os.Stderr, "local: "+err.Error())
		}
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func parse(args []string) (options, error) {
	var o options
	fs := flag.NewFlagSet("local", flag.ContinueOnError)
	fs.StringVar(&o.runnel, "runnel", "bin/runnel", "the binary, as make build leaves it")
	fs.StringVar(&o.data, "data", "runnel-cluster", "folder for data and logs")
	fs.IntVar(&o.basePort, "base-port", 7420, "first port; each broker and controller takes those of the next ten")
	fs.IntVar(&o.controllers, "controllers", defaultControllers, "how many controllers: 1, 3 or 5")
	fs.IntVar(&o.brokers, "brokers", 3, "how many brokers: 1 to 9")
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	switch {
	case fs.NArg() > 0:
		return o, fmt.Errorf("%q: want flags only; see --help", fs.Arg(0))
	case o.controllers != 1 && o.controllers != 3 && o.controllers != 5:
		return o, fmt.Errorf("--controllers %d: want 1, 3 or 5: a majority of them must be up", o.controllers)
	case o.brokers < 1 || o.brokers > 9:
		return o, fmt.Errorf("--brokers %d: want 1 to 9", o.brokers)
	case o.basePort < 1 || o.basePort+10*max(o.controllers, o.brokers) > 65_535:
		return o, fmt.Errorf("--base-port %d: want a port with %d more above it", o.basePort, 10*max(o.controllers, o.brokers))
	}
	var err error
	if o.data, err = filepath.Abs(o.data); err != nil {
		return o, err
	}
	if _, err := os.Stat(o.runnel); err != nil {
		return o, fmt.Errorf("%w: run make build first, or name the binary with --runnel", err)
	}
	return o, nil
}

// run starts all, tells what to type next, and stops all when ctx ends.
func run(ctx context.Context, args []string, out io.Writer) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	c := plan(o)
	if err := free(ctx, append(c.controllers, c.brokers...)); err != nil {
		return err
	}
	logs := filepath.Join(o.data, "logs")
	if err := os.MkdirAll(logs, 0o700); err != nil {
		return err
	}
	if err := remember(o); err != nil {
		return err
	}
	r := &runner{out: out, broken: make(chan error, 1)}
	for _, s := range append(c.controllers, c.brokers...) {
		s.log = filepath.Join(logs, s.name+".log")
		s.command = append([]string{o.runnel}, s.command...)
		r.servers = append(r.servers, s)
	}
	err = r.start(ctx)
	if err == nil {
		welcome(out, o, c)
		select {
		case <-ctx.Done():
		case err = <-r.broken:
		}
	}
	if ctx.Err() != nil {
		err = nil // it was told to stop, maybe before all was up
	}
	fmt.Fprintln(out, "Stopping. The data stays.")
	return errors.Join(err, r.stop())
}

// welcome says where everything is, and what to type next.
func welcome(out io.Writer, o options, c layout) {
	var rows strings.Builder
	for _, s := range append(c.controllers, c.brokers...) {
		fmt.Fprintf(&rows, "  %-14s %-22s http://%-22s pid %d\n", s.name, s.address, s.admin, s.pid())
	}
	flags := ""
	if o.basePort != defaultPort {
		flags = " --brokers " + c.brokers[0].address
	}
	victim := c.brokers[len(c.brokers)-1] // not the one that the other commands talk to
	fmt.Fprintf(out, `The cluster is ready: %[1]d controller(s) and %[2]d brokers.

  process        address                admin: metrics, health
%[3]s
  data and logs  %[4]s

Try in another shell:

  %[10]s cluster describe%[5]s
  %[10]s topic create txns --partitions 12 --replication-factor %[6]d%[5]s
  %[10]s bench produce --topic txns --acks all%[5]s
  kill -9 %[7]d        # %[8]s; it is started again after %[9]v
  %[10]s cluster health%[5]s

Ctrl-C stops all, one broker after the other; the data stays.
`, len(c.controllers), len(c.brokers), rows.String(), o.data, flags, min(3, len(c.brokers)), victim.pid(), victim.name, restartAfter, o.runnel)
}

const (
	// restartAfter leaves time to see what the others do without it.
	restartAfter = 5 * time.Second
	// readyWithin bounds the start of all; recovery after a crash of the
	// machine reads much.
	readyWithin = 3 * time.Minute
	// stopWithin bounds the end of one process, over its own shutdown.timeout.
	stopWithin = 30 * time.Second
)
