package cases

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/vfs"
)

// cutPower ends the broker at once, and starts it on what its disk held for
// certain.
func (w *town) cutPower() {
	w.t.Helper()
	disk := w.disk.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{})
	w.dead.Store(true)
	w.disk.Kill()
	w.stop()
	w.dead.Store(false)
	w.disk = disk
	w.start()
}

// ends returns where partition 0 begins and ends.
func (w *town) ends(c *client.Client, topic string) (first, next int64) {
	w.t.Helper()
	var out [2]int64
	for i, at := range []client.Start{client.Earliest(), client.Latest()} {
		os, err := c.NewAdmin().ListOffsets(w.t.Context(), topic, at)
		if err != nil || os[0].Err != nil {
			w.t.Fatalf("%+v, %v", os, err)
		}
		out[i] = os[0].Offset
	}
	return out[0], out[1]
}

// The numbers of a log go on where they were when all its records are gone, by
// retention or because they were deleted, and the power is cut: the next record is
// the one that a group waits for which had read all before (ST-07). The end is the
// next offset, however few records remain (ST-09).
func TestST07_numbersGoOn(t *testing.T) {
	for name, remove := range map[string]func(w *town, c *client.Client){
		"by retention": func(*town, *client.Client) { time.Sleep(10 * time.Minute) },
		"deleted": func(w *town, c *client.Client) {
			if rs, err := c.NewAdmin().DeleteRecords(w.t.Context(), "t", map[int32]int64{0: 10}); err != nil || rs[0].LogStart != 10 {
				w.t.Fatalf("%+v, %v", rs, err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			inTown(t, nil, func(w *town) {
				t := w.t
				c := w.client(brokerAddr)
				defer c.Close()
				w.topic(c, "t", 1, map[string]string{"retention.ms": "60000", "segment.ms": "30000"})
				w.numbered(c, "t", 1, 0, 10)
				if got, errs := w.processed(c, "g", 10); len(got) != 10 || len(errs) > 0 {
					t.Fatal(got, errs)
				}
				remove(w, c)
				if first, next := w.ends(c, "t"); first != 10 || next != 10 {
					t.Fatalf("the log is [%d, %d)", first, next)
				}
				for range 2 {
					w.cutPower()
					if first, next := w.ends(c, "t"); first != 10 || next != 10 {
						t.Errorf("after a power cut the log is [%d, %d)", first, next)
					}
				}
				d, err := c.NewAdmin().DescribeGroup(t.Context(), "g")
				if err != nil || d.LagRecords != 0 {
					t.Errorf("%+v, %v", d, err)
				}
				w.numbered(c, "t", 1, 10, 11)
				if got, errs := w.processed(c, "g", 1); !cmp.Equal(got, []string{number(10)}) || len(errs) > 0 {
					t.Errorf("the group reads %v, %v", got, errs)
				}
				if got := w.readFrom(c, "t", 10); fmt.Sprint(got) != `[10 -="000010"]` {
					t.Errorf("there is %v", got)
				}
			})
		})
	}
}

// processed returns what a member of a group processes until there are n records.
func (w *town) processed(c *client.Client, group string, n int) ([]string, []error) {
	w.t.Helper()
	stop := w.member(c, group, client.Topics("t"))
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		if got := w.committed(c, group)["t/0"]; got >= int64(n) {
			break
		}
	}
	return stop()
}

// A record that says it is of another time ages like those beside it: one too far
// ahead is refused, and where it is allowed its segment goes all the same (ST-10).
// A pass of retention leaves nothing for the next one (ST-12).
func TestST10_ageIsTheLogs(t *testing.T) {
	for name, at := range map[string]time.Duration{"ten years ahead": 10 * 365 * 24 * time.Hour, "ten years ago": -10 * 365 * 24 * time.Hour} {
		t.Run(name, func(t *testing.T) {
			inTown(t, nil, func(w *town) {
				t := w.t
				c := w.client(brokerAddr)
				defer c.Close()
				w.topic(c, "t", 1, map[string]string{
					"retention.ms": "60000", "segment.ms": "30000", "message.timestamp.after.max.ms": "9223372036854775807",
				})
				w.numbered(c, "t", 1, 0, 50)
				p, err := c.NewProducer()
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close(t.Context())
				w.put(p, "t", client.Record{Value: []byte("odd"), Timestamp: time.Now().Add(at)})
				w.numbered(c, "t", 1, 51, 100)
				time.Sleep(20 * time.Second)
				if first, next := w.ends(c, "t"); first != 0 || next != 100 {
					t.Errorf("while all are young the log is [%d, %d)", first, next)
				}
				time.Sleep(40 * time.Second)
				w.numbered(c, "t", 1, 100, 101)
				time.Sleep(time.Minute)
				if first, next := w.ends(c, "t"); first != 100 || next != 101 {
					t.Errorf("the log is [%d, %d)", first, next)
				}
			})
		})
	}
}

// More keys than the cleaner has memory for are compacted in several passes, each of
// which gets on (ST-24).
func TestST24_moreKeysThanMemory(t *testing.T) {
	const keys = 10000
	tune := func(c *broker.Config) {
		soonClean(c)
		c.Storage.Cleaner.DedupeBufferBytes = 64 << 10 // a fourth of what they need
	}
	inTown(t, tune, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		configs := compacts()
		configs["segment.bytes"] = "4194304"
		w.topic(c, "t", 1, configs)
		p, err := c.NewProducer()
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close(t.Context())
		var rs []client.Record
		for i := range keys {
			rs = append(rs, client.Record{Key: []byte(number(i)), Value: []byte("1")})
		}
		for i := 0; i < keys; i += 2 {
			rs = append(rs, client.Record{Key: []byte(number(i)), Value: []byte("2")})
		}
		w.put(p, "t", rs...)
		time.Sleep(5 * time.Minute)
		want := map[string]string{}
		for i := range keys {
			want[number(i)] = fmt.Sprint(2 - i%2)
		}
		r, err := c.NewReader()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if err := r.Assign(t.Context(), client.Assignment{Topic: "t", AtEnd: true}); err != nil {
			t.Fatal(err)
		}
		left := 0
		for rec, err := range r.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			left++
			if want[string(rec.Key)] != string(rec.Value) {
				t.Fatalf("%s=%s is left, or there twice", rec.Key, rec.Value)
			}
			delete(want, string(rec.Key))
		}
		if left != keys {
			t.Errorf("%d records are left of %d keys", left, keys)
		}
	})
}
