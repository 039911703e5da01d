package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/runnelmq/runnel/client"
)

// A waitWatch says on the error output why no records come, once for each reason:
// partitions without a leader are waited for in silence by whoever reads them.
type waitWatch struct {
	a     *app
	topic string
	admin *client.Admin
	// reads says whether a partition is read here.
	reads func(n int32) bool
	// beside says what else is waited for; may be nil.
	beside func(ctx context.Context) string
	before []string // what the last look has found
	said   []string
}

// watchEvery is how often is looked; what is seen twice is said.
const watchEvery = 2 * time.Second

// start looks until stop is called, which waits for the last look to end.
func (w *waitWatch) start(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var looking sync.WaitGroup
	looking.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				w.look(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
	return func() {
		cancel()
		looking.Wait()
	}
}

func (w *waitWatch) look(ctx context.Context) {
	call, cancel := context.WithTimeout(ctx, w.a.timeout)
	defer cancel()
	found := w.find(call)
	if ctx.Err() != nil {
		return
	}
	for _, why := range found {
		if slices.Contains(w.before, why) && !slices.Contains(w.said, why) {
			fmt.Fprintln(w.a.err, "runnel: "+why)
			w.said = append(w.said, why)
		}
	}
	if len(found) == 0 && len(w.before) == 0 && len(w.said) > 0 {
		fmt.Fprintf(w.a.err, "runnel: all that is read of %s is there again\n", w.topic)
		w.said = nil
	}
	w.before = found
}

// find returns what is waited for.
func (w *waitWatch) find(ctx context.Context) (found []string) {
	ps, err := w.admin.ListPartitions(ctx, w.topic, client.Offline)
	switch {
	case errors.Is(err, client.ErrUnreachable):
		return []string{fmt.Sprintf("no broker answers at %s: waiting for one", strings.Join(w.a.brokers, ", "))}
	case err != nil:
		return nil // it says nothing about the records
	}
	waits := map[string][]string{} // partitions, by the brokers that they wait for
	for i := range ps {
		p := &ps[i]
		if !w.reads(p.Partition) {
			continue
		}
		able := slices.Concat(p.ISR, p.ELR)
		slices.Sort(able)
		key := ids(slices.Compact(able))
		waits[key] = append(waits[key], fmt.Sprint(p.Partition))
	}
	for brokers, partitions := range waits {
		why := "no broker is known to have all records. See what can be done with"
		switch {
		case strings.Contains(brokers, ","):
			why = fmt.Sprintf("no leader until one of the brokers %s is back, which have all records. Start it, or see", brokers)
		case brokers != ids(nil):
			why = fmt.Sprintf("no leader until broker %s is back, which has all records. Start it, or see", brokers)
		}
		found = append(found, fmt.Sprintf("waiting for %s: %s: %s", partitionsOf(w.topic, partitions), why, w.a.typed("cluster health")))
	}
	slices.Sort(found)
	if w.beside != nil {
		if why := w.beside(ctx); why != "" {
			found = append(found, why)
		}
	}
	return found
}

// mostShown is how many partitions are named.
const mostShown = 10

func partitionsOf(topic string, numbers []string) string {
	more := ""
	if n := len(numbers) - mostShown; n > 0 {
		numbers, more = numbers[:mostShown], fmt.Sprintf(" and %d more", n)
	}
	what := "partition"
	if len(numbers) > 1 {
		what = "partitions"
	}
	return fmt.Sprintf("%s %s%s of %s", what, strings.Join(numbers, ", "), more, topic)
}

// awaited watches what a group's member waits for: the partitions that it owns, and
// the group's coordinator while it owns none.
func (a *app) awaited(ctx context.Context, c *client.Client, g *client.Group, group, topic string) (stop func()) {
	w := &waitWatch{a: a, topic: topic, admin: c.NewAdmin()}
	w.reads = func(n int32) bool {
		return slices.Contains(g.Owned(), client.PartitionID{Topic: topic, Partition: n})
	}
	w.beside = func(ctx context.Context) string {
		if len(g.Owned()) > 0 {
			return ""
		}
		_, err := w.admin.DescribeGroup(ctx, group)
		if err == nil || errors.Is(err, client.ErrGroupNotFound) {
			return ""
		}
		reason := client.Reason(err)
		if reason == "" {
			reason = err.Error()
		}
		return fmt.Sprintf("waiting for the coordinator of group %s (%s): see %s", group, reason, a.typed("cluster health"))
	}
	return w.start(ctx)
}
