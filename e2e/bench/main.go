// Command bench measures one node beside the raw ceiling of the machine: the
// same bytes through a bare gRPC stream with the same options. Servers run in
// processes of their own, so that their processor time can be told from that
// of the load.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
)

// options are the flags.
type options struct {
	runnel string         // the binary under test
	data   string         // where its data goes; "" for a temporary folder
	json   string         // file for the result as JSON; "" for none
	rounds int            // runs of each measurement, interleaved; the median counts
	bytes  int64          // of messages in one run
	batch  int            // bytes of one ready batch, about
	flush  string         // of the topics
	only   *regexp.Regexp // which shapes and paces
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 1 && args[0] == rawServerCommand {
		return serveRaw(ctx, os.Stdin, stdout)
	}
	o := options{}
	fs := flag.NewFlagSet("bench", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.StringVar(&o.runnel, "runnel", "bin/runnel", "the binary to measure")
	fs.StringVar(&o.data, "data", "", "folder for its data, on the disk to measure (default a temporary one)")
	fs.StringVar(&o.json, "json", "", "also write the result as JSON to this file")
	fs.IntVar(&o.rounds, "rounds", 5, "runs of each measurement, interleaved; medians are shown")
	fs.Int64Var(&o.bytes, "bytes", 512<<20, "bytes of messages in one run")
	fs.IntVar(&o.batch, "batch", 256<<10, "bytes of one ready batch, about")
	fs.StringVar(&o.flush, "flush", "async", "the topics' flush: async or sync")
	only := fs.String("only", "", "measure nothing but what has a title that this regular expression matches")
	if err := fs.Parse(args); err != nil {
		return err
	}
	var err error
	if o.only, err = regexp.Compile(*only); err != nil {
		return fmt.Errorf("--only: %w", err)
	}
	if fs.NArg() > 0 || o.rounds < 1 || o.batch < 64<<10 || o.batch > 3<<20 || o.bytes < int64(o.batch) {
		return fmt.Errorf("want no arguments, rounds ≥ 1, batch from 65536 to 3145728, bytes ≥ batch; see --help")
	}
	report, err := measure(ctx, o, stderr)
	if err != nil {
		return err
	}
	report.print(stdout)
	if o.json == "" {
		return nil
	}
	b, err := json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(o.json), 0o750); err != nil {
		return err
	}
	return os.WriteFile(o.json, append(b, '\n'), 0o600)
}
