package proc

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// failing runs a command that is to fail, and returns what it said.
func (n *Node) failing(t *testing.T, args ...string) string {
	t.Helper()
	r := n.try(t, n.command(t, args...))
	if r.Code == 0 {
		t.Fatalf("runnel %s: exit code 0\n%s%s", strings.Join(args, " "), r.Stdout, r.Stderr)
	}
	return r.Stdout + r.Stderr
}

// Whoever mistypes a group, or redrives what can't be redriven, is told so, and nothing
// is left behind.
func TestGroups_commands(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "orders", "--partitions", "4")
	n.cli(t, "topic", "create", "stray")
	n.cli(t, "topic", "create", "dead")
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	groups := func() string { return n.cli(t, "group", "list") }
	contains := func(text string, wants ...string) {
		t.Helper()
		for _, want := range wants {
			if !strings.Contains(text, want) {
				t.Errorf("want %q in\n%s", want, text)
			}
		}
	}

	contains(n.failing(t, "group", "seek", "biling", "--topic", "orders", "--to", "latest"), `"biling" does not exist`, "--create", "group list")
	if got := groups(); strings.Contains(got, "biling") {
		t.Errorf("seek has made a group:\n%s", got)
	}
	n.cli(t, "group", "seek", "billing", "--topic", "orders", "--to", "latest", "--create")
	n.cli(t, "group", "seek", "billing", "--topic", "orders", "--to", "earliest")
	contains(groups(), "billing")

	p := must[*client.Producer](t)(c.NewProducer(client.PartitionBy(client.Manual)))
	put := func(topic, value string, headers ...string) {
		t.Helper()
		rec := client.Record{Topic: topic, Value: []byte(value)}
		for i := 0; i < len(headers); i += 2 {
			rec.Headers = append(rec.Headers, client.Header{Key: headers[i], Value: []byte(headers[i+1])})
		}
		_ = must[[]client.Result](t)(p.ProduceSync(t.Context(), rec))
	}
	put("stray", "v")
	said := n.failing(t, "group", "dlq", "redrive", "stray")
	contains(said, "record 0/0 of stray does not say where it came from", "--to")
	if strings.Contains(said, "redriven") || strings.Contains(groups(), "dlq-redrive") {
		t.Errorf("a refused redrive said\n%s\nand left\n%s", said, groups())
	}
	contains(n.failing(t, "group", "dlq", "redrive", "stray", "--to", "nowhere"), "topic create nowhere")
	for i := range 4 {
		put("dead", fmt.Sprint("v", i), client.DeadLetterTopic, "orders", client.DeadLetterPartition, fmt.Sprint(3-i))
	}
	put("dead", "beyond", client.DeadLetterTopic, "orders", client.DeadLetterPartition, "4")
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"4 records redriven", ""} { // once, however often it is tried
		said = n.failing(t, "group", "dlq", "redrive", "dead")
		contains(said, want, "record 0/4 of dead came from partition 4 of orders, which has 4", "--to orders")
		if want == "" && strings.Contains(said, "redriven") {
			t.Errorf("nothing was redriven, and it says\n%s", said)
		}
	}
	got := strings.Fields(n.cli(t, "consume", "orders", "--exit-at-end", "--print", "%p:%v"))
	slices.Sort(got)
	if want := []string{"0:v3", "1:v2", "2:v1", "3:v0"}; !slices.Equal(got, want) {
		t.Errorf("written back as %q, want %q", got, want)
	}
}

// A partition that a group reads and has not committed anything of is told of, as that.
func TestGroups_noCommit(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "orders", "--partitions", "2")
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	fillTopic(t, c, "orders", 10)
	g := must[*client.Group](t)(c.NewGroup("billing", client.Topics("orders"), client.ManualCommit()))
	defer g.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := g.Poll(ctx); err != nil {
		t.Fatal(err)
	}
	out := n.cli(t, "group", "describe", "billing")
	for _, want := range []string{"no commit    of 2 partitions, which hold 10 records", "none"} {
		if !strings.Contains(out, want) {
			t.Errorf("want %q in\n%s", want, out)
		}
	}
	eventually(t, "the metric says so", func() bool {
		_, body := get(t, n, "/metrics")
		return strings.Contains(body, `runnel_consumer_group_uncommitted_partitions{group="billing"} 2`)
	})
}

// Whoever reads a partition without a leader, alone or as a group, is told what is
// waited for, once, and when that is over.
func TestConsume_saysWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 2})
	n := g.Brokers[0]
	n.cli(t, "topic", "create", "orders", "--partitions", "2", "--replication-factor", "1")
	c := must[*client.Client](t)(client.New(g.Seeds()))
	t.Cleanup(func() { _ = c.Close() })
	p := must[*client.Producer](t)(c.NewProducer(client.PartitionBy(client.Manual)))
	for i := range int32(2) {
		_ = must[[]client.Result](t)(p.ProduceSync(t.Context(), client.Record{Topic: "orders", Partition: i, Value: []byte("v")}))
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	led := must[[]client.PartitionListing](t)(c.NewAdmin().ListPartitions(t.Context(), "orders"))
	dead := int32(-1)
	for i := range led {
		if led[i].Leader == 2 {
			dead = led[i].Partition
		}
	}
	if dead < 0 {
		t.Fatalf("broker 2 leads nothing: %v", led)
	}
	g.Brokers[1].Kill()
	var said [3]*lockedText
	for i, args := range [][]string{{"consume", "orders"}, {"consume", "orders", "--group", "g"}, {"consume", "orders", "--partition", fmt.Sprint(1 - dead)}} {
		said[i] = &lockedText{}
		cmd := n.command(t, args...)
		cmd.Stderr = said[i]
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}
	want := fmt.Sprintf("waiting for partition %d of orders: no leader until broker 2 is back", dead)
	eventually(t, "what is waited for is said", func() bool {
		return strings.Contains(said[0].String(), want) && strings.Contains(said[1].String(), want)
	})
	g.Brokers[1].restart(t)
	const over = "all that is read of orders is there again\n"
	eventually(t, "it is said that it is over", func() bool {
		return strings.Contains(said[0].String(), over) && strings.Contains(said[1].String(), over)
	})
	for _, s := range said[:2] {
		if strings.Count(s.String(), want) != 1 || strings.Count(s.String(), over) != 1 {
			t.Errorf("said\n%s", s)
		}
	}
	if said[2].String() != "" {
		t.Errorf("a reader of the other partition is told\n%s", said[2])
	}
}

// A lockedText gathers what a process says while it is read.
type lockedText struct {
	// mu guards the field below
	mu sync.Mutex

	b strings.Builder
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
