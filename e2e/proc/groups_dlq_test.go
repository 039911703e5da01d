package proc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// Records that a handler cannot process are put aside, listed with their causes, and
// written back once, however often that is asked for.
func TestGroups_deadLetters(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "orders", "--partitions", "2")
	n.cli(t, "topic", "create", "orders-dead")
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	fillTopic(t, c, "orders", 20)
	g := must[*client.Group](t)(c.NewGroup("billing", client.Topics("orders"),
		client.WithDeadLetter(client.DeadLetter{Topic: "orders-dead", Attempts: 2, Backoff: time.Millisecond}),
		client.CommitInterval(50*time.Millisecond)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var watching sync.WaitGroup
	watching.Go(func() {
		defer cancel()
		for ctx.Err() == nil && committed(ctx, c, "billing") < 20 { // bad ones may come last
			sleep(ctx, 20*time.Millisecond)
		}
	})
	processed := 0
	err := g.Run(ctx, func(_ context.Context, r client.Record) error {
		if string(r.Key) == "7" || string(r.Key) == "11" {
			return errors.New("no such customer: " + string(r.Key))
		}
		processed++
		return nil
	})
	watching.Wait()
	if !errors.Is(err, context.Canceled) || processed != 18 {
		t.Fatalf("%d records were processed: %v", processed, err)
	}
	if err := g.Close(); err != nil {
		t.Fatal(err)
	}
	list := n.cli(t, "group", "dlq", "list", "orders-dead")
	for _, want := range []string{"no such customer: 7", "no such customer: 11", "billing", "orders/"} {
		if !strings.Contains(list, want) {
			t.Errorf("%q is not in\n%s", want, list)
		}
	}
	if out := n.cli(t, "group", "dlq", "redrive", "orders-dead", "--dry-run"); !strings.HasPrefix(out, "2 records") {
		t.Error(out)
	}
	for _, want := range []string{"2 records redriven", "0 records redriven"} {
		if out := n.cli(t, "group", "dlq", "redrive", "orders-dead"); strings.TrimSpace(out) != want {
			t.Errorf("%s, want %s", out, want)
		}
	}
	keys := strings.Fields(n.cli(t, "consume", "orders", "--group", "billing", "--count", "2", "--print", "%k"))
	slices.Sort(keys)
	if !slices.Equal(keys, []string{"11", "7"}) {
		t.Errorf("the group is given %q again", keys)
	}
}

// committed returns how many records a group is beyond, in all partitions.
func committed(ctx context.Context, c *client.Client, group string) (n int64) {
	d, err := c.NewAdmin().DescribeGroup(ctx, group)
	if err != nil {
		return 0 // it may not be there yet
	}
	for i := range d.Partitions {
		n += max(d.Partitions[i].Committed, 0)
	}
	return n
}

// The line that a person types to commit, after those that create the topic and
// write to it: the record is not in partition 0.
func TestGrpcurl_commit(t *testing.T) {
	t.Parallel()
	n := dev(t, Dev{})
	answers(t, grpcurl(t, n, "runnel.v1.AdminService/CreateTopics", `{"topics":[{"name":"txns","partitions":8}]}`))
	answers(t, grpcurl(t, n, "runnel.v1.LogService/Produce", `{"topic":"txns","partition":0,"text_records":[{"key":"acct-1","value":"hello"}]}`))
	as := answers(t, grpcurl(t, n, "runnel.v1.LogService/Commit", `{"group":"g","offsets":[{"topic":"txns","partition":0,"offset":1}]}`))
	if got := dig(t, as[0], "results", 0, "offset"); got != "1" {
		t.Errorf("answered %v", as)
	}
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	d := must[client.GroupDescription](t)(c.NewAdmin().DescribeGroup(t.Context(), "g"))
	if len(d.Partitions) != 1 || d.Partitions[0].Committed != 1 || d.LagRecords != 0 {
		t.Errorf("%+v", d)
	}
}
