package proc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/runnelmq/runnel/client"
)

// What happens to a member of a group, as its program sees it.
const (
	evAssigned = "assigned"
	evGiving   = "giving" // it is to give a partition up
	evGiven    = "given"
	evLost     = "lost"
	evRecord   = "record"
	// evEnded is that the member was killed or stopped: it has nothing any more.
	evEnded = "ended"
)

// handOver is how long members take to give partitions up, where that is watched.
const handOver = 600 * time.Millisecond

// A groupEvent is one such thing. All processes have the clock of the machine.
type groupEvent struct {
	at        int64 // Unix nanoseconds
	member    string
	kind      string
	partition int32
	offset    int64
	stored    int64 // append time, Unix milliseconds
}

// A groupLog collects events of members in this process, or writes down those of a
// member that is a process of its own.
type groupLog struct {
	out    io.Writer     // nil: they are collected
	giveUp time.Duration // how long members take to give partitions up

	// mu guards the fields below
	mu sync.Mutex

	events []groupEvent
}

func (l *groupLog) note(e groupEvent) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.at = time.Now().UnixNano()
	if l.out == nil {
		l.events = append(l.events, e)
		return
	}
	_, _ = fmt.Fprintln(l.out, e.at, e.kind, e.partition, e.offset, e.stored)
}

// all returns what was collected so far.
func (l *groupLog) all() []groupEvent {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.events)
}

// read adds what a member wrote down, but for a line that was cut off.
func (l *groupLog) read(member, text string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break
		}
		e := groupEvent{member: member}
		if _, err := fmt.Sscan(line, &e.at, &e.kind, &e.partition, &e.offset, &e.stored); err != nil {
			return fmt.Errorf("member %s wrote %q: %w", member, line, err)
		}
		l.events = append(l.events, e)
	}
	return nil
}

// work is a member until ctx ends.
func (l *groupLog) work(ctx context.Context, c *client.Client, name string, more ...client.GroupOption) error {
	all := func(kind string, ps []client.PartitionID) {
		for _, p := range ps {
			l.note(groupEvent{member: name, kind: kind, partition: p.Partition})
		}
	}
	opts := append([]client.GroupOption{
		client.Topics("work"), client.CommitInterval(200 * time.Millisecond), client.SessionTimeout(3 * time.Second),
		client.WithGroupHooks(client.GroupHooks{
			OnAssign: func(ps []client.PartitionID) { all(evAssigned, ps) },
			OnRevoke: func(ps []client.PartitionID) {
				all(evGiving, ps)
				sleep(context.WithoutCancel(ctx), l.giveUp)
				all(evGiven, ps)
			},
			OnLost: func(ps []client.PartitionID, _ error) { all(evLost, ps) },
		}),
	}, more...)
	g, err := c.NewGroup("workers", opts...)
	if err != nil {
		return err
	}
	err = g.Run(ctx, func(_ context.Context, r client.Record) error {
		l.note(groupEvent{member: name, kind: evRecord, partition: r.Partition, offset: r.Offset, stored: r.Timestamp.UnixMilli()})
		return nil
	})
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, g.Close())
}

// memberSeeds is set in a process that is to be a member of the group: where the
// cluster is.
const memberSeeds = "RUNNEL_E2E_GROUP_MEMBER"

// beMember is the whole of such a process, until SIGTERM.
func beMember(seeds string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	c, err := client.New(strings.Split(seeds, ","))
	if err != nil {
		return err
	}
	l := &groupLog{out: os.Stdout, giveUp: handOver}
	return errors.Join(l.work(ctx, c, "outsider"), c.Close())
}

// A span is the time in which a member owned a partition.
type span struct {
	member   string
	from, to int64 // to: 0 while it does
	giving   int64 // since when it is giving it up; 0: it is not
	next     int64 // offset; -1 before the first record
}

// A hole is a time that does not count.
type hole struct{ from, to int64 }

// A groupStory is what the events come to.
type groupStory struct {
	spans      map[int32][]*span
	records    map[int32][]groupEvent
	hands      []hole // hand-overs
	seen       map[string]int
	again      int            // partitions that came back to who had them before
	late       map[string]int // records of what a member did not own
	violations []string
}

func (h *groupStory) complain(format string, args ...any) {
	h.violations = append(h.violations, fmt.Sprintf(format, args...))
}

// tell goes through the events in their order. No partition has two owners, nobody
// is given a record of one that it does not own, and an owner is given all records
// in turn.
func tell(events []groupEvent) *groupStory {
	h := &groupStory{spans: map[int32][]*span{}, records: map[int32][]groupEvent{}, seen: map[string]int{}, late: map[string]int{}}
	slices.SortStableFunc(events, func(a, b groupEvent) int { return cmp.Compare(a.at, b.at) })
	for i := range events {
		e := &events[i]
		if e.kind == evEnded {
			for _, ss := range h.spans {
				if s := ss[len(ss)-1]; s.member == e.member && s.to == 0 {
					s.to = e.at
				}
			}
			continue
		}
		h.one(e)
	}
	return h
}

func (h *groupStory) one(e *groupEvent) {
	var s *span // of the owner
	ss := h.spans[e.partition]
	if len(ss) > 0 && ss[len(ss)-1].to == 0 {
		s = ss[len(ss)-1]
	}
	mine := s != nil && s.member == e.member
	switch e.kind {
	case evAssigned:
		if s != nil {
			h.complain("partition %d: %s has it, and %s is given it", e.partition, s.member, e.member)
			s.to = e.at
		}
		if len(ss) > 0 && ss[len(ss)-1].member == e.member {
			h.again++
		}
		h.spans[e.partition] = append(ss, &span{member: e.member, from: e.at, next: -1})
	case evGiving:
		if mine {
			s.giving = e.at
			if n := len(h.hands); n == 0 || e.at > h.hands[n-1].from+time.Millisecond.Nanoseconds() { // several partitions are one
				h.hands = append(h.hands, hole{e.at, e.at + handOver.Nanoseconds()})
			}
		}
	case evGiven, evLost:
		if mine {
			s.to = e.at
		}
	case evRecord:
		h.seen[fmt.Sprintf("%d/%d", e.partition, e.offset)]++
		if !mine || s.giving > 0 {
			h.late[e.member]++
			return
		}
		if s.next >= 0 && e.offset != s.next {
			h.complain("partition %d: %s was given record %d, want %d", e.partition, e.member, e.offset, s.next)
		}
		s.next = e.offset + 1
		h.records[e.partition] = append(h.records[e.partition], *e)
	}
}

// kept returns who owned a partition through all of a time.
func (h *groupStory) kept(p int32, t hole) *span {
	for _, s := range h.spans[p] {
		if s.from <= t.from && (s.giving == 0 || s.giving >= t.to) && (s.to == 0 || s.to >= t.to) {
			return s
		}
	}
	return nil
}

// A pauses is how long records of partitions that stayed where they were waited.
type pauses struct {
	handOvers  int           // that were looked at, times the partitions
	calm, over time.Duration // most from append to hand-out: in calm times, and while others moved
	gap, moved time.Duration // most between two records
}

// pauses wants every partition that stays with its owner while others are handed
// over to go on meanwhile. Times in holes do not count.
func (h *groupStory) pauses(holes []hole) pauses {
	var out pauses
	overlaps := func(list []hole, from, to int64) bool {
		return slices.ContainsFunc(list, func(x hole) bool { return from < x.to && to > x.from })
	}
	for p, recs := range h.records {
		for i := range recs {
			r := &recs[i]
			stored := r.stored * 1e6
			if overlaps(holes, stored, r.at) || h.kept(p, hole{stored - 1e9, r.at}) == nil {
				continue
			}
			waited, gap := time.Duration(r.at-stored), time.Duration(0)
			if i > 0 && !overlaps(holes, recs[i-1].at, r.at) && h.kept(p, hole{recs[i-1].at, r.at}) != nil {
				gap = time.Duration(r.at - recs[i-1].at)
			}
			if overlaps(h.hands, stored, r.at) {
				out.over, out.moved = max(out.over, waited), max(out.moved, gap)
			} else {
				out.calm, out.gap = max(out.calm, waited), max(out.gap, gap)
			}
		}
		for _, t := range h.hands {
			if overlaps(holes, t.from, t.to) || h.kept(p, t) == nil {
				continue
			}
			// Stored early in the hand-over, and so to be handed out before its end.
			early := func(r groupEvent) bool {
				return r.stored*1e6 >= t.from && r.stored*1e6 < t.from+handOver.Nanoseconds()/3
			}
			i := slices.IndexFunc(recs, early)
			if i < 0 {
				continue
			}
			out.handOvers++
			if recs[i].at > t.to {
				h.complain("partition %d stayed where it was, and its record %d waited for %v while others were handed over", p, recs[i].offset, time.Duration(recs[i].at-recs[i].stored*1e6))
			}
		}
	}
	return out
}
