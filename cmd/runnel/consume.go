package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

type consumeFlags struct {
	group     string
	from      string
	partition int32
	count     int64
	exitAtEnd bool
	print     string
	null      string
	session   time.Duration
}

func (a *app) consumeCommand() *cobra.Command {
	var f consumeFlags
	c := &cobra.Command{
		Use:   "consume TOPIC",
		Short: "Read records and print them",
		Long: `Prints the records of a topic, one a line, and goes on with those that arrive
until it is interrupted; with --exit-at-end it stops at the end as it was at the
start. Records of a partition come in order.

--from says where to begin: earliest, latest, an offset, a time such as
@2026-01-31T12:00:00Z, or -10 for the last ten records of each partition.

With --group the topic is read as a member of a consumer group: the group's
members divide the partitions, and each goes on where the group stood. What was
printed is committed. --from, which is earliest or latest then, is for partitions
for which the group has committed nothing; see "runnel group seek" to move it.
--exit-at-end stops when the group has come to the end as it was at the start,
whichever members read it.

--print says what to print of each:
` + templateHelp + `.`,
		Example: `  runnel consume orders --exit-at-end
  runnel consume orders --from -10 --print '%T %p/%o %k: %v'
  runnel consume orders --from latest --count 1 --format json
  runnel consume orders --group billing`,
		Args: args("TOPIC"), ValidArgsFunction: a.topics,
		RunE: func(c *cobra.Command, names []string) error {
			if c.Flags().Changed("partition") && f.partition < 0 {
				return usagef("--partition %d: the first is 0", f.partition)
			}
			if c.Flags().Changed("count") && f.count < 1 {
				return usagef("--count %d: want 1 or more", f.count)
			}
			if c.Flags().Changed("group") {
				return a.consumeGroup(c, names[0], f)
			}
			return a.consume(c.Context(), names[0], f)
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.group, "group", "", "read as a member of this consumer `group`, from where it stood")
	fs.StringVar(&f.from, "from", "earliest", "where to begin: `earliest|latest|OFFSET|@TIME|-N`")
	fs.Int32Var(&f.partition, "partition", client.AnyPartition, "read only partition `N` (default: all)")
	hideDefault(c, "partition")
	fs.Int64Var(&f.count, "count", 0, "stop after `N` records (default: go on)")
	fs.BoolVar(&f.exitAtEnd, "exit-at-end", false, "stop at the end, as it is at the start")
	fs.StringVar(&f.print, "print", "%v", "what to print of each record: a `format`, see above")
	fs.StringVar(&f.null, "null", "", "`text` to print for a key or value that is absent (default: nothing)")
	fs.DurationVar(&f.session, "session-timeout", 10*time.Second, "with --group: how long a member that has died keeps its partitions")
	complete(c, "from", "earliest", "latest")
	return c
}

// parseFrom reads --from.
func parseFrom(s string) (client.Start, error) {
	switch {
	case s == "earliest":
		return client.Earliest(), nil
	case s == "latest":
		return client.Latest(), nil
	case strings.HasPrefix(s, "@"):
		t, err := time.Parse(time.RFC3339Nano, s[1:])
		if err != nil {
			return client.Start{}, usagef("--from %q: want a time such as @2026-01-31T12:00:00Z", s)
		}
		return client.AtTime(t), nil
	}
	n, err := strconv.ParseInt(s, 10, 64)
	switch {
	case err != nil:
		return client.Start{}, usagef("--from %q: want earliest, latest, an offset, @TIME, or -N for the last N records", s)
	case strings.HasPrefix(s, "-"):
		return client.BeforeEnd(-n), nil
	}
	return client.AtOffset(n), nil
}

func (a *app) consume(ctx context.Context, topic string, f consumeFlags) error {
	start, err := parseFrom(f.from)
	if err != nil {
		return err
	}
	t, err := parseTemplate(f.print, f.null)
	if err != nil {
		return usagef("--print: %w", err)
	}
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	if err := a.look(ctx, c, topic); err != nil {
		return err
	}
	r, err := c.NewReader(client.RetryTimeout(a.timeout))
	if err != nil {
		return err
	}
	defer r.Close()
	watch := &waitWatch{a: a, topic: topic, admin: c.NewAdmin(), reads: func(n int32) bool { return f.partition == client.AnyPartition || n == f.partition }}
	defer watch.start(ctx)()
	assign, cancel := context.WithTimeout(ctx, a.timeout)
	err = r.Assign(assign, client.Assignment{Topic: topic, Partition: f.partition, Start: start, AtEnd: f.exitAtEnd})
	cancel()
	if err != nil {
		if ctx.Err() != nil {
			return errInterrupted
		}
		return err
	}
	err = a.newPrinter(t, f.count).run(ctx, a.screen(), r)
	if err != nil && ctx.Err() != nil {
		if f.exitAtEnd || f.count > 0 {
			return errInterrupted
		}
		return nil // it is how one stops following
	}
	return err
}

func (a *app) newPrinter(t template, count int64) *printer {
	return &printer{w: bufio.NewWriterSize(a.out, 256<<10), template: t, json: a.format == "json", left: count}
}

// screen is where progress is shown.
func (a *app) screen() io.Writer {
	if interactive(a.out) {
		return io.Discard // the records themselves show how far it has come
	}
	return a.err
}

// run prints what r has, with a bar on screen.
func (p *printer) run(ctx context.Context, screen io.Writer, r poller) error {
	bar := startProgress(screen, 0, func() (int64, int64) { return p.bytes.Load(), p.records.Load() })
	err := p.all(ctx, r)
	bar.close()
	if ferr := p.w.Flush(); err == nil {
		err = ferr
	}
	return err
}

// A poller is a Reader or a Group.
type poller interface {
	Poll(ctx context.Context) (*client.Batch, error)
}

// A printer prints records.
type printer struct {
	w        *bufio.Writer
	template template
	json     bool
	left     int64 // records to print; 0 at first: no bound
	line     []byte
	last     func(client.Record) error // is called with the last one of a count; may be nil
	// What was printed, for whoever watches.
	bytes, records atomic.Int64
}

var errCount = errors.New("printed enough")

func (p *printer) all(ctx context.Context, r poller) error {
	for {
		b, err := r.Poll(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		err = p.batch(b)
		switch {
		case errors.Is(err, errCount):
			return nil
		case err != nil:
			return err
		}
		// Whoever follows sees a record when it is there.
		if err := p.w.Flush(); err != nil {
			return fmt.Errorf("print: %w", err)
		}
	}
}

func (p *printer) batch(b *client.Batch) error {
	for b.Next() {
		r := b.Record()
		var err error
		if p.json {
			p.line, err = appendJSON(p.line[:0], &r)
		} else {
			p.line = p.template.append(p.line[:0], &r)
		}
		if err != nil {
			return err
		}
		if _, err := p.w.Write(p.line); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		p.bytes.Add(int64(len(p.line)))
		p.records.Add(1)
		if p.left > 0 {
			if p.left--; p.left == 0 {
				return p.enough(r)
			}
		}
	}
	return b.Err()
}

// enough ends the printing with r.
func (p *printer) enough(r client.Record) error {
	if p.last != nil {
		if err := p.w.Flush(); err != nil {
			return fmt.Errorf("print: %w", err)
		}
		if err := p.last(r); err != nil {
			return err
		}
	}
	return errCount
}
