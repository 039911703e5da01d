package proc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// createSource creates the topic of the real input. One file of the Go
// installation has a line of 1.3 MB.
func createSource(t *testing.T, n *Node) {
	t.Helper()
	n.cli(t, "topic", "create", "source", "--partitions", "8", "--config", "max.message.bytes=3670016")
}

// Every line of every .go file goes in by the command line, keyed by the path
// of its file, and comes back as it was and in order, also after a restart.
func TestRealInput(t *testing.T) {
	t.Parallel()
	docs := corpus(t, fraction(5))
	node := dev(t, Dev{})
	createSource(t, node)

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

// numbered is a record whose value begins with the number of its line, which
// makes lines that are alike different.
func numbered(d *document, i int) string { return strconv.Itoa(i) + "\t" + d.lines[i] }

// readNumbered reads the topic, whose records are numbered, and checks that
// each was written, none is there twice, and each document keeps its order.
// each is told of every record. It returns how many there are.
func readNumbered(t *testing.T, n *Node, topic string, docs []document, each func(key string, i int, offset int64) error) int {
	t.Helper()
	lines := map[string]*document{}
	for i := range docs {
		lines[docs[i].path] = &docs[i]
	}
	last := map[string]int{}
	got := newReader()
	got.each = func(key string, offset int64, value []byte) error {
		number, _, _ := strings.Cut(string(value), "\t")
		i, err := strconv.Atoi(number)
		d := lines[key]
		if err != nil || d == nil || i < 0 || i >= len(d.lines) || numbered(d, i) != string(value) {
			return fmt.Errorf("%s: read %q, which was never written", key, value)
		}
		if before, ok := last[key]; ok && i <= before {
			return fmt.Errorf("%s: line %d comes after line %d", key, i, before)
		}
		last[key] = i
		return each(key, i, offset)
	}
	consume := n.command(t, "consume", topic, "--exit-at-end", "--print", consumedFormat)
	consume.Stdout = got
	if r := n.try(t, consume); r.Code != 0 {
		t.Fatalf("consume: exit code %d\n%s", r.Code, r.Stderr)
	}
	return got.records
}

// fate is what became of the lines of one document.
type fate struct {
	offset []int64 // -1 unless acknowledged
	known  []bool  // whether the outcome is known: acknowledged, or failed for certain
}

// A node that is killed while records stream in loses none that it had
// acknowledged, stores none twice, and keeps the order of each key.
func TestRealInputThroughKill9(t *testing.T) {
	t.Parallel()
	docs := corpus(t, fraction(5))
	node := dev(t, Dev{})
	createSource(t, node)

	c := must[*client.Client](t)(client.New([]string{node.Client}))
	defer c.Close()
	p := must[*client.Producer](t)(c.NewProducer())
	var (
		mu      sync.Mutex
		acked   int
		unknown int
		failed  int
		fates   = map[string]*fate{}
		halfway = make(chan struct{})
		half    = records(docs) / 2
	)
	for _, d := range docs {
		fates[d.path] = &fate{offset: make([]int64, len(d.lines)), known: make([]bool, len(d.lines))}
	}
	var g errgroup.Group
	g.Go(func() error {
		err := interleaved(docs, func(d *document, i int) error {
			f := fates[d.path]
			p.Produce(t.Context(), client.Record{Topic: "source", Key: []byte(d.path), Value: []byte(numbered(d, i))}, func(res client.Result) {
				mu.Lock()
				defer mu.Unlock()
				f.offset[i] = -1
				f.known[i] = res.Outcome() != client.Unknown
				switch res.Outcome() {
				case client.Acknowledged:
					f.offset[i] = res.Offset
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

	found := 0 // acknowledged and there
	readNumbered(t, node, "source", docs, func(key string, i int, offset int64) error {
		f := fates[key]
		switch {
		case f.offset[i] >= 0 && f.offset[i] != offset:
			return fmt.Errorf("%s: line %d was acknowledged at offset %d and is at %d", key, i, f.offset[i], offset)
		case f.offset[i] >= 0:
			found++
		case f.known[i]:
			return fmt.Errorf("%s: line %d failed for certain, and is in the log at offset %d", key, i, offset)
		}
		return nil
	})
	if found != acked {
		t.Errorf("%d records were acknowledged and %d of them are there", acked, found)
	}
}

// The same by the command line, which says how many were acknowledged and how
// many may or may not be stored.
func TestProduceCommandThroughKill9(t *testing.T) {
	t.Parallel()
	docs := corpus(t, fraction(10))
	total := records(docs)
	node := dev(t, Dev{})
	createSource(t, node)
	numberedDocs := make([]document, len(docs))
	for i := range docs {
		numberedDocs[i] = document{path: docs[i].path, lines: make([]string, len(docs[i].lines))}
		for j := range docs[i].lines {
			numberedDocs[i].lines[j] = numbered(&docs[i], j)
		}
	}
	in := must[*os.File](t)(os.Open(writeInput(t, numberedDocs)))
	defer in.Close()
	size := must[os.FileInfo](t)(in.Stat()).Size()
	halfway := make(chan struct{})
	produce := node.command(t, "produce", "source", "--key-separator", `\t`, "--acks", "all", "--format", "json")
	produce.Stdin = &signalReader{r: in, after: size / 2, signal: halfway}
	var g errgroup.Group
	var result Result
	g.Go(func() (err error) {
		result, err = Do(produce)
		return err
	})
	<-halfway
	node.kill9AndRestart(t)
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	var count produced
	if err := json.Unmarshal([]byte(result.Stdout), &count); err != nil {
		t.Fatalf("produce: %v in %q\n%s", err, result.Stdout, result.Stderr)
	}
	t.Logf("%+v of %d", count, total)
	if count.Acknowledged+count.Failed+count.Unknown != total || count.Failed != 0 || (result.Code == 0) != (count.Unknown == 0) {
		t.Errorf("produce says %+v of %d records, with exit code %d\n%s", count, total, result.Code, result.Stderr)
	}
	got := readNumbered(t, node, "source", docs, func(string, int, int64) error { return nil })
	if got < count.Acknowledged || got > count.Acknowledged+count.Unknown {
		t.Errorf("read %d records; %d were acknowledged and %d are unknown", got, count.Acknowledged, count.Unknown)
	}
}

// A signalReader closes signal once so many bytes were read.
type signalReader struct {
	r      io.Reader
	after  int64
	signal chan struct{}
}

func (s *signalReader) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	before := s.after
	if s.after -= int64(n); before > 0 && s.after <= 0 {
		close(s.signal)
	}
	return n, err
}
