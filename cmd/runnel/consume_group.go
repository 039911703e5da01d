package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/runnelmq/runnel/client"
)

// consumeGroup prints records as a member of a group.
func (a *app) consumeGroup(c *cobra.Command, topic string, f consumeFlags) (err error) {
	var begin client.ResetPolicy
	switch {
	case f.group == "":
		return usagef("--group: want the name of a group")
	case c.Flags().Changed("partition"):
		return usagef("--partition: a group's members are given their partitions; leave out --group to read one directly")
	case f.session < time.Second || f.session > 5*time.Minute:
		return usagef("--session-timeout %v: want 1s to 5m", f.session)
	case f.from == "earliest":
		begin = client.ResetEarliest
	case f.from == "latest":
		begin = client.ResetLatest
	default:
		return usagef("--from %q: with --group want earliest or latest; to move the group use: %s", f.from, a.typed("group seek "+word(f.group)+" --topic "+word(topic)+" --to "+word(f.from)))
	}
	t, err := parseTemplate(f.print, f.null)
	if err != nil {
		return usagef("--print: %w", err)
	}
	conn, err := a.connect()
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, stop := interruptible(c.Context())
	defer stop()
	if err := a.look(ctx, conn, topic); err != nil {
		return err
	}
	g, err := conn.NewGroup(f.group, client.Topics(topic), client.SessionTimeout(f.session), client.OnNoCommit(begin), client.Reading(client.RetryTimeout(a.timeout)))
	if err != nil {
		return usageError{err}
	}
	out := a.newPrinter(t, f.count)
	out.last = func(r client.Record) error { return a.commitLast(ctx, g, r) }
	defer a.awaited(ctx, conn, g, f.group, topic)()
	var from poller = g
	if f.exitAtEnd {
		if from, err = a.untilEnd(ctx, conn, g, f.group, topic); err != nil {
			_ = g.Close()
			return err
		}
	}
	err = a.groupHint(out.run(ctx, a.screen(), from), f.group, topic)
	cerr := g.Close()
	switch {
	case err != nil && ctx.Err() != nil && (f.count > 0 || f.exitAtEnd):
		return errInterrupted
	case err != nil && ctx.Err() == nil:
		return err
	case cerr != nil:
		return fmt.Errorf("what was printed last may be printed again: %w", cerr)
	}
	return nil
}

// A groupEnd is a member that reads until its group has come to the end as it was
// at the start, whichever members read it.
type groupEnd struct {
	*client.Group

	admin *client.Admin
	group string
	topic string
	ends  map[int32]int64 // of the partitions that are not empty
	timer *time.Timer     // for the next look
}

// lookEvery is how often a member looks whether its group has come to the end.
const lookEvery = 200 * time.Millisecond

func (a *app) untilEnd(ctx context.Context, c *client.Client, g *client.Group, group, topic string) (*groupEnd, error) {
	e := &groupEnd{Group: g, admin: c.NewAdmin(), group: group, topic: topic, ends: map[int32]int64{}, timer: time.NewTimer(0)}
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	ends, err := e.admin.ListOffsets(ctx, topic, client.Latest())
	if err != nil {
		return nil, err
	}
	starts, err := e.admin.ListOffsets(ctx, topic, client.Earliest())
	if err != nil {
		return nil, err
	}
	for _, p := range ends {
		if p.Err != nil {
			return nil, p.Err
		}
		e.ends[p.Partition] = p.Offset
	}
	for _, p := range starts {
		if p.Err == nil && p.Offset >= e.ends[p.Partition] {
			delete(e.ends, p.Partition)
		}
	}
	return e, nil
}

// Poll is as that of the group, and io.EOF at the end.
func (e *groupEnd) Poll(ctx context.Context) (*client.Batch, error) {
	for {
		select {
		case <-e.timer.C:
			e.timer.Reset(lookEvery)
			if there, err := e.there(ctx); there || err != nil {
				return nil, cmp.Or(err, io.EOF)
			}
		default:
		}
		short, cancel := context.WithTimeout(ctx, lookEvery)
		b, err := e.Group.Poll(short)
		over := short.Err() != nil
		cancel()
		if b != nil || !over || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return b, err
		}
	}
}

// there commits what was printed, and reports whether the group has come to the
// end.
func (e *groupEnd) there(ctx context.Context) (bool, error) {
	if len(e.ends) == 0 {
		return true, nil
	}
	if err := e.Commit(ctx); err != nil {
		return false, passing(err)
	}
	d, err := e.admin.DescribeGroup(ctx, e.group)
	if err != nil {
		return false, passing(err)
	}
	for i := range d.Partitions {
		p := &d.Partitions[i]
		if end, ok := e.ends[p.Partition]; ok && p.Topic == e.topic && p.Committed >= end {
			delete(e.ends, p.Partition)
		}
	}
	return len(e.ends) == 0, nil
}

// passing leaves out what another look may find to be over.
func passing(err error) error {
	if client.Retriable(err) || errors.Is(err, client.ErrGroupNotFound) || errors.Is(err, client.ErrOutcomeUnknown) || errors.Is(err, client.ErrStaleAssignment) {
		return nil
	}
	return err
}

// commitLast commits the record that a count ends with.
func (a *app) commitLast(ctx context.Context, g *client.Group, r client.Record) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	if err := g.Commit(ctx, r); err != nil {
		return fmt.Errorf("what was printed may be printed again: %w", err)
	}
	return nil
}

// groupHint says what to do when the records that a group wants are gone.
func (a *app) groupHint(err error, group, topic string) error {
	if errors.Is(err, client.ErrOffsetOutOfRange) {
		return fmt.Errorf("%w\nThe records that group %s was to read next are deleted. Go on with the first that there are with:\n%s",
			err, group, a.typed("group seek "+word(group)+" --topic "+word(topic)+" --to earliest"))
	}
	return err
}
