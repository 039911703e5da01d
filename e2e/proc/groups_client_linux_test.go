package proc

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// forward returns which committed offsets went back, until ctx ends.
func forward(ctx context.Context, c *client.Client) (back []string) {
	most := map[int32]int64{}
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return back
		case <-tick.C:
		}
		one, cancel := context.WithTimeout(ctx, time.Second)
		d, err := c.NewAdmin().DescribeGroup(one, "workers")
		cancel()
		if err != nil {
			continue // the coordinator is away
		}
		for i := range d.Partitions {
			p := &d.Partitions[i]
			if was, ok := most[p.Partition]; ok && p.Committed < was {
				back = append(back, fmt.Sprintf("partition %d: %d is committed after %d", p.Partition, p.Committed, was))
				continue
			}
			most[p.Partition] = p.Committed
		}
	}
}

// Members come, leave, are killed and stopped for a while, and the coordinator is
// killed twice, under load: no partition has two owners, no committed offset goes
// back, every record is processed, and partitions that stay where they are do not
// wait for those that move.
func TestGroups_membersComeAndGo(t *testing.T) {
	if !whole() {
		t.Skip("it takes long: make e2e")
	}
	long := 6 * time.Second
	if whole() {
		long = time.Minute
	}
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	c := must[*client.Client](t)(client.New(g.Seeds()))
	t.Cleanup(func() { _ = c.Close() })
	g.Brokers[0].cli(t, "topic", "create", "work", "--partitions", "12", "--replication-factor", "3", "--config", "message.timestamp.type=LogAppendTime")
	l := &groupLog{giveUp: handOver}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var all sync.WaitGroup
	defer all.Wait()
	defer stop()
	var back []string
	all.Go(func() { back = forward(ctx, c) })
	member := func(name string) (leave func()) {
		mine, leave := context.WithCancel(ctx)
		all.Go(func() {
			if err := l.work(mine, c, name); err != nil {
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
	killed, paused := outsider(t, g), outsider(t, g)
	var holes []hole
	for round := 0; loaded.Err() == nil; round++ {
		leave := member(fmt.Sprint("c", round))
		sleep(loaded, long/6)
		from := time.Now().UnixNano()
		if round == 0 {
			_ = killed.Process.Kill()
			_ = killed.Wait()
			l.note(groupEvent{member: "killed", kind: evEnded})
			_ = paused.Process.Signal(syscall.SIGSTOP)
			l.note(groupEvent{member: "paused", kind: evEnded})
		}
		if round < 2 {
			d := must[client.GroupDescription](t)(c.NewAdmin().DescribeGroup(ctx, "workers"))
			n := g.Brokers[d.Coordinator-1]
			n.Kill()
			n.restart(t)
			// The leaders of some partitions are away.
			holes = append(holes, hole{from, time.Now().Add(time.Second).UnixNano()})
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
	for name, cmd := range map[string]*exec.Cmd{"killed": killed, "paused": paused} {
		if err := l.read(name, cmd.Stdout.(*bytes.Buffer).String()); err != nil {
			t.Fatal(err)
		}
	}
	h := tell(l.events)
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
	p := h.pauses(holes)
	t.Logf("%d hand-overs of %v; %d times a partition stayed meanwhile; %d came back to who had them before", len(h.hands), handOver, p.handOvers, h.again)
	t.Logf("partitions that stayed: a record waited for %v at most in calm times, %v while others moved; between two records %v and %v",
		p.calm.Round(time.Millisecond), p.over.Round(time.Millisecond), p.gap.Round(time.Millisecond), p.moved.Round(time.Millisecond))
	if p.handOvers == 0 {
		t.Error("no partition stayed while others were handed over: that shows nothing")
	}
	for name, n := range h.late {
		if name != "paused" || n > 1 { // what was in hand when it was stopped
			t.Errorf("%s was given %d records of partitions that it did not own", name, n)
		}
	}
	for _, v := range slices.Concat(h.violations, back) {
		t.Error(v)
	}
}

// outsider starts a member that is a process of its own; its Stdout is what it
// writes down.
func outsider(t *testing.T, g *Group) *exec.Cmd {
	t.Helper()
	self := must[string](t)(os.Executable())
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), memberSeeds+"="+strings.Join(g.Seeds(), ","))
	cmd.Stdout, cmd.Stderr = &bytes.Buffer{}, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
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
