package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

func (a *app) groupDLQ() *cobra.Command {
	return noun("dlq", "List and redrive the dead letters of groups", a.dlqList(), a.dlqRedrive())
}

// A letterView is a record of a dead-letter topic, and why it is there.
type letterView struct {
	Partition       int32  `json:"partition"`
	Offset          int64  `json:"offset"`
	Group           string `json:"group"`
	SourceTopic     string `json:"source_topic"`
	SourcePartition string `json:"source_partition"`
	SourceOffset    string `json:"source_offset"`
	Attempts        string `json:"attempts"`
	Time            string `json:"time"`
	Error           string `json:"error"`
}

func letter(r *client.Record) letterView {
	fact := func(name string) string {
		for _, h := range slices.Backward(r.Headers) { // the newest: it may have been here before
			if h.Key == name {
				return string(h.Value)
			}
		}
		return ""
	}
	return letterView{
		Partition: r.Partition, Offset: r.Offset, Group: fact(client.DeadLetterGroup), SourceTopic: fact(client.DeadLetterTopic),
		SourcePartition: fact(client.DeadLetterPartition), SourceOffset: fact(client.DeadLetterOffset),
		Attempts: fact(client.DeadLetterAttempts), Time: fact(client.DeadLetterTime), Error: fact(client.DeadLetterError),
	}
}

func (a *app) dlqList() *cobra.Command {
	return &cobra.Command{
		Use: "list TOPIC", Short: "List the records of a dead-letter topic, and why they are there", Args: args("TOPIC"), ValidArgsFunction: a.topics,
		Long: `Lists the records of a dead-letter topic: where each was, how often it was tried,
when it was given up, and the last error. With --format json, one object a line. See
the records themselves with "runnel consume TOPIC --format json".`,
		Example: "  runnel group dlq list orders-dead",
		RunE: func(c *cobra.Command, names []string) error {
			return a.listLetters(c.Context(), names[0])
		},
	}
}

func (a *app) listLetters(ctx context.Context, topic string) error {
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
	if err := r.Assign(ctx, client.Assignment{Topic: topic, Partition: client.AnyPartition, AtEnd: true}); err != nil {
		return err
	}
	w := bufio.NewWriter(a.out)
	n := 0
	for rec, err := range r.Records(ctx) {
		if err != nil {
			return errors.Join(err, w.Flush())
		}
		v := letter(&rec)
		if a.format == "json" {
			err = jsonLine(w, v)
		} else {
			if n == 0 {
				fmt.Fprintln(w, "PLACE  SOURCE  GROUP  ATTEMPTS  TIME  ERROR")
			}
			_, err = fmt.Fprintf(w, "%d/%d  %s/%s/%s  %s  %s  %s  %s\n", v.Partition, v.Offset, orDash(v.SourceTopic), orDash(v.SourcePartition),
				orDash(v.SourceOffset), orDash(v.Group), orDash(v.Attempts), orDash(v.Time), oneLine(v.Error))
		}
		if err != nil {
			return err
		}
		n++
	}
	if n == 0 && a.format != "json" {
		fmt.Fprintf(a.err, "There are no dead letters in %s.\n", topic)
	}
	return w.Flush()
}

// oneLine is a text without line breaks, for a table.
func oneLine(s string) string { return orDash(strings.Join(strings.Fields(s), " ")) }

// redriveGroup is the group that a dead-letter topic is redriven by.
func redriveGroup(topic string) string { return "dlq-redrive." + topic }

func (a *app) dlqRedrive() *cobra.Command {
	var (
		to  string
		dry bool
	)
	c := &cobra.Command{
		Use: "redrive TOPIC", Short: "Write dead letters back to where they came from", Args: args("TOPIC"), ValidArgsFunction: a.topics,
		Long: `Writes the records of a dead-letter topic back to the topic and partition that each
came from, or to the topic that --to names, by their keys, without the headers that were added, and ends with the
last one there was at the start. The records stay in the dead-letter topic; a group
of its own, dlq-redrive.TOPIC, remembers how far it has come, so that each is redriven
once: when it is interrupted, run it again, and it goes on. Only what was written in
the moment before a crash may be written twice. To do it all over, delete that group.`,
		Example: `  runnel group dlq redrive orders-dead --dry-run
  runnel group dlq redrive orders-dead
  runnel group dlq redrive orders-dead --to orders-retry`,
		RunE: func(c *cobra.Command, names []string) error {
			if to == names[0] {
				return usagef("--to %s: the records are there already", to)
			}
			return a.redrive(c.Context(), names[0], to, dry)
		},
	}
	c.Flags().StringVar(&to, "to", "", "write to this `topic` instead")
	c.Flags().BoolVar(&dry, "dry-run", false, "say how many there are to redrive, write nothing")
	return c
}

// A redriver takes dead letters back.
type redriver struct {
	a         *app
	topic, to string
	admin     *client.Admin
	g         *client.Group
	// exact writes to the partitions that records name, keyed as their keys say.
	exact, keyed *client.Producer
	ends         map[int32]int64
	counts       map[string]int64 // partitions of topics
	fresh        bool             // nothing was ever redriven
	written      int64
}

func (a *app) redrive(ctx context.Context, topic, to string, dry bool) error {
	c, err := a.connect()
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, stop := interruptible(ctx)
	defer stop()
	if to != "" {
		if err := a.look(ctx, c, to); err != nil {
			return err
		}
	}
	r := &redriver{a: a, topic: topic, to: to, admin: c.NewAdmin(), ends: map[int32]int64{}, counts: map[string]int64{}}
	left, err := r.look(ctx)
	if err != nil {
		return err
	}
	if dry {
		return a.redriven(left, true)
	}
	if left > 0 {
		err = r.run(ctx, c)
	}
	if ctx.Err() != nil {
		return errors.Join(a.redriven(r.written, false), errInterrupted)
	}
	if err != nil && r.written == 0 {
		return err // and nothing was done
	}
	return errors.Join(a.redriven(r.written, false), err)
}

// run redrives. A group that came to nothing is not left behind.
func (r *redriver) run(ctx context.Context, c *client.Client) (err error) {
	name := redriveGroup(r.topic)
	if r.g, err = c.NewGroup(name, client.Topics(r.topic)); err != nil {
		return err
	}
	if r.exact, err = c.NewProducer(client.PartitionBy(client.Manual)); err != nil {
		return err
	}
	if r.keyed, err = c.NewProducer(); err != nil {
		return err
	}
	err = r.a.groupHint(r.all(ctx), name, r.topic)
	err = errors.Join(err, r.exact.Close(ctx), r.keyed.Close(ctx), r.g.Close())
	if err != nil && r.fresh && r.written == 0 {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.a.timeout)
		defer cancel()
		_ = r.admin.DeleteGroup(ctx, name) // it says no more than that there is nothing
	}
	return err
}

func (a *app) redriven(n int64, dry bool) error {
	if a.format == "json" {
		return a.printJSON(struct {
			Records int64 `json:"records"`
			DryRun  bool  `json:"dry_run"`
		}{n, dry})
	}
	if dry {
		fmt.Fprintf(a.out, "%d records are to be redriven\n", n)
		return nil
	}
	fmt.Fprintf(a.out, "%s redriven\n", counted(n, "record"))
	return nil
}

// look finds out where the topic ends, and how much of it is left to redrive.
func (r *redriver) look(ctx context.Context) (left int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.a.timeout)
	defer cancel()
	ds, err := r.admin.DescribeTopics(ctx, []string{r.topic})
	if err != nil {
		return 0, err
	}
	d, err := one(ds)
	if err != nil {
		return 0, err
	}
	if d.Err != nil {
		return 0, fmt.Errorf("describe topic %q: %w", r.topic, d.Err)
	}
	for i := range d.Partitions {
		p := &d.Partitions[i]
		if why := missing(p); why != "" {
			return 0, fmt.Errorf("partition %d of %s: %s", p.Partition, r.topic, why)
		}
		if p.HighWatermark > p.LogStart {
			r.ends[p.Partition] = p.HighWatermark
			left += p.HighWatermark - p.LogStart
		}
	}
	at, err := r.committed(ctx)
	for i := range d.Partitions {
		p := &d.Partitions[i]
		if from, ok := at[p.Partition]; ok && r.ends[p.Partition] > 0 {
			left -= min(max(from-p.LogStart, 0), p.HighWatermark-p.LogStart)
		}
	}
	return left, err
}

// committed returns how far the redriving has come.
func (r *redriver) committed(ctx context.Context) (map[int32]int64, error) {
	d, err := r.admin.DescribeGroup(ctx, redriveGroup(r.topic))
	if r.fresh = errors.Is(err, client.ErrGroupNotFound); r.fresh {
		return nil, nil
	}
	at := map[int32]int64{}
	for i := range d.Partitions {
		if p := &d.Partitions[i]; p.Topic == r.topic && p.Committed >= 0 {
			at[p.Partition] = p.Committed
		}
	}
	return at, err
}

// all redrives to the end as it was at the start.
func (r *redriver) all(ctx context.Context) error {
	for {
		one, cancel := context.WithTimeout(ctx, time.Second)
		b, err := r.g.Poll(one)
		cancel()
		switch {
		case err == nil:
			if err := r.batch(ctx, b); err != nil {
				return err
			}
		case ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded):
			return err
		}
		done, err := r.done(ctx)
		if done || err != nil {
			return err
		}
	}
}

// done reports whether all that there was at the start is redriven.
func (r *redriver) done(ctx context.Context) (bool, error) {
	at, err := r.committed(ctx)
	if err != nil {
		return false, err
	}
	for n, end := range r.ends {
		if at[n] < end {
			return false, nil
		}
	}
	return true, nil
}

// redriveGrace is how long an interruption waits for what is being written, so that
// it is not written again.
const redriveGrace = 5 * time.Second

// graced returns a context that ends a while after ctx does.
func graced(ctx context.Context, grace time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	unhook := context.AfterFunc(ctx, func() { time.AfterFunc(grace, func() { cancel(context.Cause(ctx)) }) })
	return later, func() {
		unhook()
		cancel(nil)
	}
}

// batch writes the records of b back, and commits them when they are acknowledged.
func (r *redriver) batch(ctx context.Context, b *client.Batch) error {
	ctx, cancel := graced(ctx, redriveGrace)
	defer cancel()
	var (
		back []client.Record
		last client.Record
	)
	for b.Next() {
		rec := b.Record()
		if rec.Offset >= r.ends[rec.Partition] {
			break // it came later
		}
		out, err := r.restore(ctx, &rec)
		if err != nil {
			err = fmt.Errorf("record %d/%d of %s %w", rec.Partition, rec.Offset, r.topic, err)
			if len(back) > 0 { // those before it are done
				err = errors.Join(err, r.write(ctx, back, last))
			}
			return err
		}
		back, last = append(back, out), rec
	}
	if err := b.Err(); err != nil {
		return err
	}
	if len(back) == 0 {
		return nil
	}
	return r.write(ctx, back, last)
}

// restore returns a record as it was before it was put aside. Its partition is that
// where it was, or AnyPartition when its key says.
func (r *redriver) restore(ctx context.Context, rec *client.Record) (client.Record, error) {
	from := letter(rec)
	out := rec.Clone()
	headers := out.Headers
	out.Topic, out.Partition, out.Headers = r.to, client.AnyPartition, nil
	for _, h := range headers {
		if !strings.HasPrefix(h.Key, client.DeadLetterPrefix) {
			out.Headers = append(out.Headers, h)
		}
	}
	if r.to != "" {
		return out, nil
	}
	if out.Topic = from.SourceTopic; out.Topic == "" {
		return out, errors.New("does not say where it came from: say where to with --to")
	}
	if from.SourcePartition != "" {
		n, err := strconv.ParseInt(from.SourcePartition, 10, 32)
		if err != nil || n < 0 {
			return out, fmt.Errorf("came from partition %.40q, which is none: say where to with --to", from.SourcePartition)
		}
		switch count, err := r.partitions(ctx, out.Topic); {
		case err != nil:
			return out, fmt.Errorf("can't go back: %w", err)
		case n >= count:
			return out, fmt.Errorf("came from partition %d of %s, which has %d by now: let its key say where to with --to %s", n, out.Topic, count, word(out.Topic))
		}
		out.Partition = int32(n)
	}
	return out, nil
}

// partitions returns how many partitions a topic has.
func (r *redriver) partitions(ctx context.Context, topic string) (int64, error) {
	if n, ok := r.counts[topic]; ok {
		return n, nil
	}
	ctx, cancel := context.WithTimeout(ctx, r.a.timeout)
	defer cancel()
	ds, err := r.admin.DescribeTopics(ctx, []string{topic})
	if err != nil {
		return 0, err
	}
	d, err := one(ds)
	if err == nil {
		err = d.Err
	}
	if err != nil {
		return 0, err
	}
	r.counts[topic] = int64(len(d.Partitions))
	return r.counts[topic], nil
}

// write writes records back, and commits that all up to last are.
func (r *redriver) write(ctx context.Context, recs []client.Record, last client.Record) error {
	one, cancel := context.WithTimeout(ctx, r.a.timeout)
	defer cancel()
	for len(recs) > 0 { // runs of the same kind, so that they stay in their order
		p, n := r.exact, 1
		keyed := recs[0].Partition == client.AnyPartition
		if keyed {
			p = r.keyed
		}
		for n < len(recs) && (recs[n].Partition == client.AnyPartition) == keyed {
			n++
		}
		if _, err := p.ProduceSync(one, recs[:n]...); err != nil {
			return fmt.Errorf("redrive: %w", err)
		}
		r.written += int64(n)
		recs = recs[n:]
	}
	return r.g.Commit(ctx, last)
}
