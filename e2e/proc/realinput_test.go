package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/runnelmq/runnel/client"
)

// fraction says which part of the real input to take: one nth.
func fraction(part int) int {
	if whole() {
		return 1
	}
	return part
}

// Every line of every .go file goes in by the command line, keyed by the path
// of its file, and comes back as it was and in order, also after a restart.
func TestRealInput(t *testing.T) {
	docs := corpus(t, fraction(20))
	node := dev(t, Dev{})
	node.cli(t, "topic", "create", "source", "--partitions", "8")

	in := must[*os.File](t)(os.Open(writeInput(t, docs)))
	defer in.Close()
	produce := node.command(t, "produce", "source", "--key-separator", "\t")
	produce.Stdin = in
	begin := time.Now()
	if r := node.try(t, produce); r.Code != 0 {
		t.Fatalf("produce: exit code %d\n%s", r.Code, r.Stderr)
	}
	t.Logf("produced %d records of %d files in %v", records(docs), len(docs), time.Since(begin).Round(time.Millisecond))

	readBack := func() {
		t.Helper()
		got := newReader()
		consume := node.command(t, "consume", "source", "--exit-at-end", "--print", consumedFormat)
		consume.Stdout = got
		begin := time.Now()
		if r := node.try(t, consume); r.Code != 0 {
			t.Fatalf("consume: exit code %d\n%s", r.Code, r.Stderr)
		}
		t.Logf("consumed %d records in %v", got.records, time.Since(begin).Round(time.Millisecond))
		got.compare(t, docs)
	}
	readBack()
	node.kill9AndRestart(t)
	readBack()
}

// kill9AndRestart ends the node as a crash would, and starts it again.
func (n *Node) kill9AndRestart(t *testing.T) {
	t.Helper()
	n.Kill()
	n.restart(t)
}

func (n *Node) restart(t *testing.T) {
	t.Helper()
	if err := n.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// The outcomes of the records of one document, by line.
type outcomes struct {
	offset []int64 // -1 unless acknowledged
	known  []bool  // whether the outcome is known: acknowledged, or failed for certain
}

// A node that is killed while records stream in loses none that it had
// acknowledged, stores none twice, and keeps the order of each key.
func TestRealInputThroughKill9(t *testing.T) {
	docs := corpus(t, fraction(20))
	node := dev(t, Dev{})
	node.cli(t, "topic", "create", "source", "--partitions", "8")

	c := must[*client.Client](t)(client.New([]string{node.Client}))
	defer c.Close()
	p := must[*client.Producer](t)(c.NewProducer())
	var (
		mu      sync.Mutex
		acked   int
		unknown int
		failed  int
		byPath  = map[string]*outcomes{}
		halfway = make(chan struct{})
		half    = records(docs) / 2
	)
	for _, d := range docs {
		byPath[d.path] = &outcomes{offset: make([]int64, len(d.lines)), known: make([]bool, len(d.lines))}
	}
	var g errgroup.Group
	g.Go(func() error {
		err := interleaved(docs, func(d *document, i int) error {
			o := byPath[d.path]
			// The number of the line makes lines that are alike different.
			r := client.Record{Topic: "source", Key: []byte(d.path), Value: []byte(strconv.Itoa(i) + "\t" + d.lines[i])}
			p.Produce(t.Context(), r, func(res client.Result) {
				mu.Lock()
				defer mu.Unlock()
				o.offset[i] = -1
				o.known[i] = res.Outcome() != client.Unknown
				switch res.Outcome() {
				case client.Acknowledged:
					o.offset[i] = res.Offset
					if acked++; acked == half {
						close(halfway)
					}
				case client.Failed:
					failed++
				case client.Unknown:
					unknown++
				}
			})
			return nil
		})
		ctx, cancel := context.WithTimeout(t.Context(), commandWithin)
		defer cancel()
		return errors.Join(err, p.Close(ctx))
	})
	select {
	case <-halfway:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
	node.kill9AndRestart(t)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d records acknowledged, %d failed, %d unknown", acked, failed, unknown)
	if acked+failed+unknown != records(docs) {
		t.Errorf("%d records have an outcome, want %d", acked+failed+unknown, records(docs))
	}
	if failed > 0 {
		t.Errorf("%d records failed: a restart within the delivery timeout must not fail any for certain", failed)
	}

	lines := map[string]*document{}
	for i := range docs {
		lines[docs[i].path] = &docs[i]
	}
	last := map[string]int{} // document → its last line that was read
	seen := map[string]int{} // document → how many acknowledged lines were read
	got := newReader()
	got.each = func(key string, offset int64, value []byte) error {
		number, line, _ := strings.Cut(string(value), "\t")
		i, err := strconv.Atoi(number)
		d := lines[key]
		if err != nil || d == nil || i >= len(d.lines) || d.lines[i] != line {
			return fmt.Errorf("%s: read %q, which was never written", key, value)
		}
		if before, ok := last[key]; ok && i <= before {
			return fmt.Errorf("%s: line %d comes after line %d", key, i, before)
		}
		last[key] = i
		o := byPath[key]
		switch {
		case o.offset[i] >= 0 && o.offset[i] != offset:
			return fmt.Errorf("%s: line %d was acknowledged at offset %d and is at %d", key, i, o.offset[i], offset)
		case o.offset[i] >= 0:
			seen[key]++
		case o.known[i]:
			return fmt.Errorf("%s: line %d failed for certain, and is in the log at offset %d", key, i, offset)
		}
		return nil
	}
	consume := node.command(t, "consume", "source", "--exit-at-end", "--print", consumedFormat)
	consume.Stdout = got
	if r := node.try(t, consume); r.Code != 0 {
		t.Fatalf("consume: exit code %d\n%s", r.Code, r.Stderr)
	}
	for path, o := range byPath {
		want := 0
		for _, offset := range o.offset {
			if offset >= 0 {
				want++
			}
		}
		if seen[path] != want {
			t.Errorf("%s: %d lines were acknowledged and %d of them are there", path, want, seen[path])
		}
	}
}
