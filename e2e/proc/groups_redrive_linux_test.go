package proc

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
)

// Redriving that is interrupted, and then killed, goes on where it stood: what was
// interrupted is written back once, and nothing is missing when it was killed.
func TestGroups_redriveGoesOn(t *testing.T) {
	t.Parallel()
	const batches, batch = 400, 50
	total := 0
	n := dev(t, Dev{})
	n.cli(t, "topic", "create", "orders")
	n.cli(t, "topic", "create", "orders-dead")
	c := must[*client.Client](t)(client.New([]string{n.Client}))
	t.Cleanup(func() { _ = c.Close() })
	p := must[*client.Producer](t)(c.NewProducer())
	defer p.Close(t.Context())
	die := func() {
		for range batches {
			recs := make([]client.Record, batch)
			for j := range recs {
				recs[j] = client.Record{
					Topic: "orders-dead", Key: fmt.Append(nil, total), Value: []byte("v"),
					Headers: []client.Header{{Key: "mine", Value: []byte("kept")}, {Key: client.DeadLetterTopic, Value: []byte("orders")}},
				}
				total++
			}
			_ = must[[]client.Result](t)(p.ProduceSync(t.Context(), recs...))
		}
	}
	die()
	// written returns how many records were written back so far.
	written := func() int64 {
		ds := must[[]client.TopicDescription](t)(c.NewAdmin().DescribeTopics(t.Context(), []string{"orders"}))
		return ds[0].Partitions[0].HighWatermark
	}
	var said strings.Builder // by the last command
	// begin redrives until so many more are written.
	begin := func(more int64) *exec.Cmd {
		cmd := n.command(t, "group", "dlq", "redrive", "orders-dead")
		said.Reset()
		cmd.Stdout = &said
		from := written()
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		for written() < from+more && ctx.Err() == nil {
			sleep(ctx, time.Millisecond)
		}
		return cmd
	}
	times := 0
	for i := 0; times == 0 || i < 10 && written() < int64(total)*3/4; i++ {
		if written() == int64(total) { // it was done before it was interrupted
			die()
		}
		before := written()
		cmd := begin(batch)
		sleep(t.Context(), time.Duration(i)*time.Millisecond/2) // in the middle of this or that
		_ = cmd.Process.Signal(syscall.SIGINT)
		if cmd.Wait() != nil {
			times++
		}
		if want := fmt.Sprintf("%d records redriven\n", written()-before); said.String() != want {
			t.Errorf("it said %q, want %q", said.String(), want)
		}
	}
	interrupted := written()
	out := n.cli(t, "group", "dlq", "redrive", "orders-dead", "--dry-run")
	if want := fmt.Sprintf("%d records", int64(total)-interrupted); !strings.HasPrefix(out, want) {
		t.Errorf("interrupted after %d records: %s, want %s", interrupted, out, want)
	}
	twice := 0
	if whole() { // the next one waits until the group has missed this one
		cmd := begin(batch)
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		twice = total // what was read at once
	}
	n.cli(t, "group", "dlq", "redrive", "orders-dead")
	seen := map[string]int{}
	r := must[*client.Reader](t)(c.NewReader())
	defer r.Close()
	if err := r.Assign(t.Context(), client.Assignment{Topic: "orders", Partition: client.AnyPartition, AtEnd: true}); err != nil {
		t.Fatal(err)
	}
	again := 0
	for rec, err := range r.Records(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if seen[string(rec.Key)]++; seen[string(rec.Key)] > 1 {
			again++
		}
		if len(rec.Headers) != 1 || rec.Headers[0].Key != "mine" {
			t.Fatalf("record %s has the headers %v", rec.Key, rec.Headers)
		}
	}
	t.Logf("%d records, %d of them written back when it was interrupted %d times, %d twice", len(seen), interrupted, times, again)
	if len(seen) != total || again > twice {
		t.Errorf("%d of %d records were written back, %d of them twice", len(seen), total, again)
	}
}
