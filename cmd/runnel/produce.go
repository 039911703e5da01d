package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

// maxLine is the longest record that any topic takes, and some room for what
// is around it.
const maxLine = 3584 << 10

// closeGrace is for what is on its way when the time of records is up.
const closeGrace = 250 * time.Millisecond

// shownErrors bounds how many lines are reported one by one.
const shownErrors = 10

type produceFlags struct {
	separator   string
	partition   int32
	acks        string
	compression string
	level       int
	file        string
}

func (a *app) produceCommand() *cobra.Command {
	var f produceFlags
	c := &cobra.Command{
		Use:   "produce TOPIC",
		Short: "Write records, one a line",
		Long: `Writes a record for each line that is read. With --key-separator, what comes
before the first separator of a line is the key; a line without one has no key.

It succeeds only when every record was acknowledged. Lines that were refused
are reported by number, and the others are written all the same. An interrupt
(Ctrl-C) stops reading and waits for what is under way; a second one does not.`,
		Example: `  echo hello | runnel produce greetings
  runnel produce orders --key-separator '\t' --file orders.tsv --compression zstd`,
		Args: args("TOPIC"), ValidArgsFunction: a.topics,
		RunE: func(c *cobra.Command, names []string) error {
			if c.Flags().Changed("partition") && f.partition < 0 {
				return usagef("--partition %d: the first is 0", f.partition)
			}
			return a.produce(c.Context(), names[0], f)
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.separator, "key-separator", "", "`text` between key and value; \\t is a tab")
	fs.Int32Var(&f.partition, "partition", client.AnyPartition, "write to partition `N` (default: by key; records without one are spread)")
	hideDefault(c, "partition")
	fs.StringVar(&f.acks, "acks", "all", "wait for `all|leader|none`")
	fs.StringVar(&f.compression, "compression", "none", "compress batches: `zstd|lz4|snappy|gzip|none`")
	fs.IntVar(&f.level, "compression-level", 0, "the compression's own level, `N`; 0: its default")
	fs.StringVar(&f.file, "file", "", "read this `file` instead of standard input")
	complete(c, "acks", "all", "leader", "none")
	complete(c, "compression", "zstd", "lz4", "snappy", "gzip", "none")
	_ = c.MarkFlagFilename("file")
	return c
}

// hideDefault keeps a default out of the help that stands for none.
func hideDefault(c *cobra.Command, flags ...string) {
	for _, name := range flags {
		c.Flags().Lookup(name).DefValue = "0" // which is not shown
	}
}

func complete(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // there is no such flag
	}
}

func parseAcks(s string) (client.Acks, error) {
	switch s {
	case "all":
		return client.AcksAll, nil
	case "leader":
		return client.AcksLeader, nil
	case "none":
		return client.AcksNone, nil
	}
	return 0, usagef("--acks %q: want all, leader or none", s)
}

func parseCompression(s string) (client.Compression, error) {
	switch s {
	case "none":
		return client.NoCompression, nil
	case "gzip":
		return client.Gzip, nil
	case "snappy":
		return client.Snappy, nil
	case "lz4":
		return client.LZ4, nil
	case "zstd":
		return client.Zstd, nil
	}
	return 0, usagef("--compression %q: want zstd, lz4, snappy, gzip or none", s)
}

// producer returns a producer as the flags say.
func (a *app) producer(c *client.Client, f produceFlags, more ...client.ProducerOption) (*client.Producer, error) {
	acks, err := parseAcks(f.acks)
	if err != nil {
		return nil, err
	}
	compression, err := parseCompression(f.compression)
	if err != nil {
		return nil, err
	}
	opts := append([]client.ProducerOption{
		client.RequireAcks(acks), client.Compress(compression, f.level), client.DeliveryTimeout(a.timeout),
	}, more...)
	if f.partition >= 0 {
		opts = append(opts, client.PartitionBy(client.Manual))
	}
	p, err := c.NewProducer(opts...)
	if err != nil {
		return nil, usageError{err}
	}
	return p, nil
}

func (a *app) produce(ctx context.Context, topic string, f produceFlags) error {
	separator, err := unescape(f.separator)
	if err != nil {
		return usagef("--key-separator: %w", err)
	}
	in, size, err := a.input(f.file)
	if err != nil {
		return err
	}
	if f.file != "" {
		defer in.Close()
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	p, err := a.producer(c, f)
	if err != nil {
		return err
	}
	if err := a.look(ctx, c, topic); err != nil {
		return err
	}
	ctx, release := interruptible(ctx)
	defer release()
	l := &loader{
		app: a, topic: topic, separator: []byte(separator), partition: f.partition, producer: p,
		lines: newLines(breakable{ctx, in}, maxLine),
	}
	screen := a.err
	if f.file == "" && interactive(a.in) {
		screen = io.Discard // a bar would write over what is typed
		fmt.Fprintln(a.err, "A record a line; Ctrl-D ends.")
	}
	bar := startProgress(screen, size, func() (int64, int64) { return l.bytes.Load(), l.acked.Load() })
	readErr := l.read(ctx)
	// What was read is delivered, also after an interrupt; another one ends
	// that.
	release()
	// A little more than the records have: each then says what was in its way.
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), a.timeout+closeGrace)
	closing, again := interruptible(closing)
	_ = p.Close(closing) // what it means shows in the outcomes
	again()
	cancel()
	bar.close()
	return l.report(readErr)
}

// interruptible ends ctx at SIGINT, or the SIGTERM of whatever runs the command,
// because of errInterrupted.
func interruptible(ctx context.Context) (context.Context, context.CancelFunc) {
	signalled, release := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(ctx)
	unhook := context.AfterFunc(signalled, func() { cancel(errInterrupted) })
	return ctx, func() {
		unhook()
		release()
		cancel(nil)
	}
}

// input opens what to read, and returns its size, 0 when that is not known.
// The caller closes what is not standard input.
func (a *app) input(file string) (io.ReadCloser, int64, error) {
	if file == "" {
		if in, ok := a.in.(*os.File); ok {
			return in, 0, nil
		}
		return io.NopCloser(a.in), 0, nil
	}
	in, err := os.Open(file)
	if err != nil {
		return nil, 0, err
	}
	info, err := in.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return in, 0, nil //nolint:nilerr // the size is for the progress bar only
	}
	return in, info.Size(), nil
}

// A loader writes lines as records and counts what became of them.
type loader struct {
	app       *app
	topic     string
	separator []byte
	partition int32
	producer  *client.Producer
	lines     *lines
	bytes     atomic.Int64
	acked     atomic.Int64

	// mu guards the fields below
	mu sync.Mutex

	failed, unknown int64
	first           error // of those that were not acknowledged
}

// read reads to the end, or until ctx ends.
func (l *loader) read(ctx context.Context) error {
	for ctx.Err() == nil {
		line, err := l.lines.next()
		l.bytes.Store(l.lines.read)
		number := l.lines.n
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, errLineTooLong):
			l.outcome(number, fmt.Errorf("it is over %d bytes, more than any topic takes", maxLine))
			continue
		case errors.Is(err, errInterrupted):
			return err
		case err != nil:
			return fmt.Errorf("read line %d: %w", number+1, err)
		}
		r := client.Record{Topic: l.topic, Partition: l.partition, Value: line}
		if len(l.separator) > 0 {
			if key, value, found := bytes.Cut(line, l.separator); found {
				r.Key, r.Value = key, value
			}
		}
		l.producer.Produce(ctx, r, func(res client.Result) {
			if res.Err == nil {
				l.acked.Add(1)
				return
			}
			l.outcome(number, res.Err)
		})
	}
	return errInterrupted
}

// outcome takes note of a record that was not acknowledged.
func (l *loader) outcome(line int64, err error) {
	if errors.Is(err, errInterrupted) {
		return // it was read, and waited for its turn until the interrupt
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if errors.Is(err, client.ErrOutcomeUnknown) {
		l.unknown++
	} else {
		l.failed++
	}
	if l.first == nil {
		l.first = err
	}
	if l.failed+l.unknown <= shownErrors {
		fmt.Fprintf(l.app.err, "runnel: line %d: %v\n", line, err)
	}
}

// report says how it went, and fails unless every line was acknowledged.
func (l *loader) report(readErr error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	acked, bad := l.acked.Load(), l.failed+l.unknown
	if bad > shownErrors {
		fmt.Fprintf(l.app.err, "runnel: and %s more\n", counted(bad-shownErrors, "line"))
	}
	if readErr == nil && bad == 0 {
		if l.app.format == "json" {
			return l.app.printJSON(map[string]int64{"acknowledged": acked, "failed": 0, "unknown": 0})
		}
		if interactive(l.app.err) {
			fmt.Fprintf(l.app.err, "%s acknowledged\n", counted(acked, "record"))
		}
		return nil
	}
	if l.app.format == "json" {
		if err := l.app.printJSON(map[string]int64{"acknowledged": acked, "failed": l.failed, "unknown": l.unknown}); err != nil {
			return err
		}
	}
	text := fmt.Sprintf("records acknowledged: %d; failed, and not stored: %d; of unknown outcome, maybe stored: %d", acked, l.failed, l.unknown)
	switch {
	case readErr != nil:
		return fmt.Errorf("%w: %s", readErr, text)
	default:
		return fmt.Errorf("%s; the first: %w", text, l.first)
	}
}
