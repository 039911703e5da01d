package proc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// A handling is what the members of a group do, as their programs see it.
type handling struct {
	// mu guards the fields below
	mu sync.Mutex

	owner      map[int32]string
	seen       map[string]int // "partition/offset"
	violations []string
}

func (h *handling) complain(format string, args ...any) {
	h.violations = append(h.violations, fmt.Sprintf(format, args...))
}

// hooks keep note of what a member owns.
func (h *handling) hooks(name string) client.GroupHooks {
	drop := func(ps []client.PartitionID) {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, p := range ps {
			if h.owner[p.Partition] == name {
				delete(h.owner, p.Partition)
			}
		}
	}
	return client.GroupHooks{
		OnAssign: func(ps []client.PartitionID) {
			h.mu.Lock()
			defer h.mu.Unlock()
			for _, p := range ps {
				if was := h.owner[p.Partition]; was != "" && was != name {
					h.complain("partition %d: %s has it, and %s is given it", p.Partition, was, name)
				}
				h.owner[p.Partition] = name
			}
		},
		OnRevoke: drop,
		OnLost:   func(ps []client.PartitionID, _ error) { drop(ps) },
	}
}

// work is a member in this process until ctx ends.
func (h *handling) work(ctx context.Context, c *client.Client, name string) error {
	g, err := c.NewGroup("workers", client.Topics("work"), client.CommitInterval(200*time.Millisecond), client.SessionTimeout(3*time.Second),
		client.WithGroupHooks(h.hooks(name)))
	if err != nil {
		return err
	}
	err = g.Run(ctx, func(_ context.Context, r client.Record) error {
		h.mu.Lock()
		defer h.mu.Unlock()
		if was := h.owner[r.Partition]; was != name {
			h.complain("partition %d: %s was given record %d, and %q has it", r.Partition, name, r.Offset, was)
		}
		h.seen[fmt.Sprintf("%d/%d", r.Partition, r.Offset)]++
		return nil
	})
	if ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, g.Close())
}

// forward watches that no committed offset goes back, until ctx ends.
func (h *handling) forward(ctx context.Context, c *client.Client) {
	most := map[int32]int64{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		one, cancel := context.WithTimeout(ctx, time.Second)
		d, err := c.NewAdmin().DescribeGroup(one, "workers")
		cancel()
		if err != nil {
			continue // the coordinator is away
		}
		h.mu.Lock()
		for i := range d.Partitions {
			p := &d.Partitions[i]
			if was, ok := most[p.Partition]; ok && p.Committed < was {
				h.complain("partition %d: %d is committed after %d", p.Partition, p.Committed, was)
				continue
			}
			most[p.Partition] = p.Committed
		}
		h.mu.Unlock()
	}
}

// Members come, leave, are killed and stopped for a while, and the coordinator is
// killed twice, under load: no partition has two owners among the members that can
// tell, no committed offset goes back, and every record is processed.
func TestGroups_membersComeAndGo(t *testing.T) {
	long := 6 * time.Second
	if whole() {
		long = time.Minute
	}
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	c := must[*client.Client](t)(client.New(g.Seeds()))
	t.Cleanup(func() { _ = c.Close() })
	g.Brokers[0].cli(t, "topic", "create", "work", "--partitions", "12", "--replication-factor", "3")
	h := &handling{owner: map[int32]string{}, seen: map[string]int{}}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	all.Go(func() { h.forward(ctx, c) })
	member := func(name string) (leave func()) {
		mine, leave := context.WithCancel(ctx)
		all.Go(func() {
			if err := h.work(mine, c, name); err != nil {
				t.Errorf("member %s: %v", name, err)
			}
		})
		return leave
	}
	member("a")
	member("b")
	stored := map[string]bool{}
	produced := make(chan error, 1)
	loaded, unload := context.WithTimeout(ctx, long)
	defer unload()
	all.Go(func() { produced <- storeOn(loaded, c, stored) })
	var printed []*bytes.Buffer
	outsider := func() *exec.Cmd {
		cmd := g.Brokers[0].command(t, "--brokers", strings.Join(g.Seeds(), ","), "consume", "work", "--group", "workers", "--session-timeout", "3s", "--print", "%p/%o")
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, nil
		printed = append(printed, &out)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	killed, paused := outsider(), outsider()
	for round := 0; loaded.Err() == nil; round++ {
		leave := member(fmt.Sprint("c", round))
		sleep(loaded, long/6)
		if round == 0 {
			_ = killed.Process.Kill()
			_ = killed.Wait()
			_ = paused.Process.Signal(syscall.SIGSTOP)
		}
		if round < 2 {
			d := must[client.GroupDescription](t)(c.NewAdmin().DescribeGroup(ctx, "workers"))
			n := g.Brokers[d.Coordinator-1]
			n.Kill()
			n.restart(t)
		}
		leave()
		sleep(loaded, long/12)
	}
	if err := <-produced; err != nil {
		t.Fatal(err)
	}
	_ = paused.Process.Signal(syscall.SIGCONT)
	eventually(t, "all that was stored is committed", func() bool {
		d, err := c.NewAdmin().DescribeGroup(ctx, "workers")
		behind := slices.ContainsFunc(d.Partitions, func(p client.GroupPartition) bool { return p.Committed < 0 || p.Committed < p.HighWatermark })
		return err == nil && len(d.Partitions) == 12 && !behind
	})
	_ = paused.Process.Signal(syscall.SIGTERM)
	_ = paused.Wait()
	stop()
	all.Wait()
	for _, out := range printed {
		for line := range strings.Lines(out.String()) {
			if strings.HasSuffix(line, "\n") {
				h.seen[strings.TrimSpace(line)]++
			}
		}
	}
	missing, again := 0, 0
	for place := range stored {
		if h.seen[place] == 0 {
			missing++
		}
		again += max(h.seen[place]-1, 0)
	}
	t.Logf("%d records stored, %d of them processed again", len(stored), again)
	if missing > 0 || len(stored) < 1000 {
		t.Errorf("%d of %d records were never processed", missing, len(stored))
	}
	for _, v := range h.violations {
		t.Error(v)
	}
}

// storeOn stores records until ctx ends, and takes note of where.
func storeOn(ctx context.Context, c *client.Client, stored map[string]bool) error {
	p, err := c.NewProducer(client.DeliveryTimeout(time.Minute))
	if err != nil {
		return err
	}
	for i := 0; ctx.Err() == nil; i++ {
		recs := make([]client.Record, 100)
		for j := range recs {
			recs[j] = client.Record{Topic: "work", Key: fmt.Append(nil, i*100+j), Value: []byte("v")}
		}
		rs, err := p.ProduceSync(context.WithoutCancel(ctx), recs...)
		if err != nil {
			return err
		}
		for _, r := range rs {
			stored[fmt.Sprintf("%d/%d", r.Partition, r.Offset)] = true
		}
		sleep(ctx, 20*time.Millisecond)
	}
	return p.Close(context.WithoutCancel(ctx))
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}
