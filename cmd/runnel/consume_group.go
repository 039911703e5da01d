package main

import (
	"context"
	"errors"
	"fmt"
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
	case f.exitAtEnd:
		return usagef("--exit-at-end: a group has no end, as others may be reading, too; use --count, or leave out --group")
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
	err = a.groupHint(out.run(ctx, a.screen(), g), f.group, topic)
	cerr := g.Close()
	switch {
	case err != nil && ctx.Err() != nil && f.count > 0:
		return errInterrupted
	case err != nil && ctx.Err() == nil:
		return err
	case cerr != nil:
		return fmt.Errorf("what was printed last may be printed again: %w", cerr)
	}
	return nil
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
