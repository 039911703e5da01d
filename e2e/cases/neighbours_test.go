package cases

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

// What no retry would help with fails at once, by itself, and says why; the
// records around it are written (PD-06). A time too far in the future is such
// (ST-10), and a record without a key on a compacted topic (ST-19).
func TestPD06_badRecordsFailAlone(t *testing.T) {
	for name, c := range map[string]struct {
		bad  client.Record
		want error
	}{
		"too large":           {client.Record{Topic: "t", Key: []byte("k"), Value: make([]byte, 5000)}, client.ErrRecordTooLarge},
		"no such topic":       {client.Record{Topic: "none", Value: []byte("v")}, client.ErrTopicNotFound},
		"a bad name":          {client.Record{Topic: "a/b", Value: []byte("v")}, client.ErrInvalidTopicName},
		"no UTF-8":            {client.Record{Topic: "\xff\xfe\x80", Value: []byte("v")}, client.ErrInvalidTopicName},
		"a header without":    {client.Record{Topic: "t", Key: []byte("k"), Headers: []client.Header{{Key: "\xff\xfe\x80"}}}, client.ErrInvalidRecord},
		"of ten years on":     {client.Record{Topic: "t", Key: []byte("k"), Timestamp: time.Date(2010, 1, 1, 0, 0, 0, 0, time.UTC)}, client.ErrInvalidTimestamp},
		"of ten years before": {client.Record{Topic: "t", Key: []byte("k"), Timestamp: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC)}, client.ErrInvalidTimestamp},
		"without a key":       {client.Record{Topic: "t", Value: []byte("v")}, client.ErrInvalidRecord},
		"a system's topic":    {client.Record{Topic: "__consumer_offsets", Value: []byte("v")}, client.ErrTopicInternal},
	} {
		for _, idempotent := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/idempotent %t", name, idempotent), func(t *testing.T) {
				inTown(t, nil, func(w *town) { badAmongGood(w, c.bad, c.want, idempotent) })
			})
		}
	}
}

func badAmongGood(w *town, bad client.Record, want error, idempotent bool) {
	t := w.t
	c := w.client(brokerAddr)
	defer c.Close()
	configs := compacts()
	configs["message.timestamp.before.max.ms"] = "86400000"
	w.topic(c, "t", 1, configs)
	if _, _, err := c.NewAdmin().ResetOffsets(t.Context(), "any", []client.OffsetReset{{Topic: "t", To: client.Latest()}}); err != nil { // it makes the system's topic
		t.Fatal(err)
	}
	opts := []client.ProducerOption{client.Linger(20 * time.Millisecond), client.DeliveryTimeout(time.Minute)}
	if !idempotent {
		opts = append(opts, client.WithoutIdempotence())
	}
	p, err := c.NewProducer(opts...)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var failed error
	var after time.Duration
	b := &burst{}
	begun := time.Now()
	var values []string
	for i := range 100 {
		if i == 37 {
			p.Produce(t.Context(), bad, func(r client.Result) {
				mu.Lock()
				defer mu.Unlock()
				failed, after = r.Err, time.Since(begun)
			})
		}
		values = append(values, number(i))
		p.Produce(t.Context(), client.Record{Topic: "t", Key: []byte(number(i)), Value: []byte(number(i))}, b.done)
	}
	if err := p.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := time.Since(begun)
	mu.Lock()
	defer mu.Unlock()
	if !errors.Is(failed, want) || client.Retriable(failed) || after > time.Second {
		t.Errorf("after %s: %v, want %v", after, failed, want)
	}
	if b.acked != 100 || took > 2*time.Second {
		t.Errorf("%d were written in %s, and %d failed: %v", b.acked, took, len(b.failed), b.failed)
	}
	// The producer goes on, in order.
	values = append(values, "end")
	w.put(p, "t", client.Record{Key: []byte("end"), Value: []byte("end")})
	r := w.reader(c, "t")
	defer r.Close()
	if diff := cmp.Diff(values, w.next(r, 101, time.Second)); diff != "" {
		t.Errorf("%.500s", diff)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Bytes that are no text are data where data may stand, and a clear error where
// a name must (GR-03).
func TestGR03_bytesThatAreNoText(t *testing.T) {
	const bad = "\xff\xfe\x80"
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 1, nil)
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		w.put(p, "t", client.Record{Value: []byte("before")},
			client.Record{Key: []byte(bad), Value: []byte(bad), Headers: []client.Header{{Key: "h", Value: []byte(bad)}}}, client.Record{Value: []byte("after")})
		g, err := c.NewGroup("g", client.Topics("t"), client.ManualCommit())
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		if diff := cmp.Diff([]string{"t/0/0=before", "t/0/1=" + bad, "t/0/2=after"}, w.groupNext(g, 3, time.Minute)); diff != "" {
			t.Error(diff)
		}
		admin := c.NewAdmin()
		r, err := c.NewReader()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		group := func(name string, opts ...client.GroupOption) error {
			g, err := c.NewGroup(name, opts...)
			if err != nil {
				return err
			}
			defer g.Close()
			_, err = groupRead(t.Context(), g, 1, 20*time.Second)
			return err
		}
		for name, call := range map[string]func() error{
			"create": func() error {
				return first(admin.CreateTopics(t.Context(), []client.NewTopic{{Name: bad, Partitions: 1}}))
			},
			"delete": func() error { return first(admin.DeleteTopics(t.Context(), []string{bad})) },
			"a config key": func() error {
				return first(admin.CreateTopics(t.Context(), []client.NewTopic{{Name: "u", Configs: map[string]string{bad: "1"}}}))
			},
			"a config": func() error {
				return first(admin.CreateTopics(t.Context(), []client.NewTopic{{Name: "u", Configs: map[string]string{"retention.ms": bad}}}))
			},
			"alter": func() error {
				_, _, err := admin.AlterTopicConfig(t.Context(), bad, nil, []string{"retention.ms"})
				return err
			},
			"describe":     func() error { _, err := admin.DescribeTopics(t.Context(), []string{bad}); return err },
			"offsets":      func() error { _, err := admin.ListOffsets(t.Context(), bad, client.Latest()); return err },
			"deletion":     func() error { _, err := admin.DeleteRecords(t.Context(), bad, map[int32]int64{0: 0}); return err },
			"list":         func() error { _, err := admin.ListTopics(t.Context(), bad, false); return err },
			"list groups":  func() error { _, err := admin.ListGroups(t.Context(), bad); return err },
			"group":        func() error { _, err := admin.DescribeGroup(t.Context(), bad); return err },
			"delete group": func() error { return admin.DeleteGroup(t.Context(), bad) },
			"reset": func() error {
				_, _, err := admin.ResetOffsets(t.Context(), bad, []client.OffsetReset{{Topic: "t"}})
				return err
			},
			"reset a topic": func() error {
				rs, _, err := admin.ResetOffsets(t.Context(), "g2", []client.OffsetReset{{Topic: bad}})
				if err == nil {
					err = rs[0].Err
				}
				return err
			},
			"assign":      func() error { return r.Assign(t.Context(), client.Assignment{Topic: bad}) },
			"a member":    func() error { return group(bad, client.Topics("t")) },
			"a topic":     func() error { return group("g3", client.Topics(bad)) },
			"no topic":    func() error { return group("g3", client.Topics("a/b")) },
			"a pattern":   func() error { return group("g4", client.TopicPattern(bad)) },
			"an instance": func() error { return group("g5", client.Topics("t"), client.InstanceID(bad)) },
			"a rack":      func() error { return group("g6", client.Topics("t"), client.Rack(bad)) },
			"the metadata": func() error {
				return g.CommitOffsets(t.Context(), client.OffsetCommit{Topic: "t", Offset: 1, Metadata: bad})
			},
		} {
			begun := time.Now()
			err := call()
			if err == nil || client.Retriable(err) || strings.Contains(err.Error(), "INTERNAL") || strings.Contains(err.Error(), "marshal") || client.Reason(err) == "" && !strings.Contains(err.Error(), "UTF-8") {
				t.Errorf("%s: %v (%s)", name, err, client.Reason(err))
			}
			if took := time.Since(begun); took > time.Second {
				t.Errorf("%s: after %s", name, took)
			}
		}
		// The group goes on.
		w.put(p, "t", client.Record{Value: []byte("more")})
		if diff := cmp.Diff([]string{"t/0/3=more"}, w.groupNext(g, 1, time.Minute)); diff != "" {
			t.Error(diff)
		}
		if err := g.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func first(rs []client.TopicResult, err error) error {
	if err == nil && len(rs) > 0 {
		err = rs[0].Err
	}
	return err
}
