package partition

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/topicconfig"
	"github.com/runnelmq/runnel/internal/vfs"
)

// compacted makes a trio's topic one that is compacted as soon as may be:
// segments are rolled after a minute, tombstones go an hour later.
func (r *trio) compacted() {
	r.t.Helper()
	r.configs = map[string]string{
		topicconfig.CleanupPolicyKey: "compact", topicconfig.MinCleanableKey: "0",
		topicconfig.MaxCompactionKey: "60000", topicconfig.DeleteRetentionKey: "3600000",
	}
	r.tell()
}

// put appends a record at a broker; a value of "" is a tombstone.
func (r *trio) put(id int, key, value string) Appended {
	r.t.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	var v []byte
	if value != "" {
		v = []byte(value)
	}
	if err := b.Add([]byte(key), v, nil, 0); err != nil {
		r.t.Fatal(err)
	}
	batch, err := b.Finish(record.CompressionNone, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	a, err := r.nodes[id].p.Append(&batch, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

// latest returns the last record of each key below offset to, tombstones aside.
func (n *trioNode) latest(t *testing.T, to record.Offset) map[string]string {
	t.Helper()
	out := map[string]string{}
	for b := n.bytes(t); len(b) > 0; {
		f, v := record.CheckFrame(b, record.MaxFrameSize)
		if v != record.OK {
			t.Fatalf("a frame is %s", v)
		}
		var it record.Iterator
		for it.Reset(f.Header, f.Payload(b)); it.Next(); {
			switch r := it.Record(); {
			case r.Offset >= to:
			case r.Value == nil:
				delete(out, string(r.Key))
			default:
				out[string(r.Key)] = fmt.Sprintf("%d:%s", r.Offset, r.Value)
			}
		}
		b = b[f.Size:]
	}
	return out
}

// digest sums up the batches that begin at offset from or after it.
func (n *trioNode) digest(t *testing.T, from record.Offset) *big.Int {
	t.Helper()
	sum := new(big.Int)
	for b := n.bytes(t); len(b) > 0; {
		f, _ := record.CheckFrame(b, record.MaxFrameSize)
		if f.Header.BaseOffset >= from {
			h := sha256.Sum256(b[:f.Size])
			sum.Add(sum, new(big.Int).SetBytes(h[:]))
		}
		b = b[f.Size:]
	}
	return sum.Mod(sum, new(big.Int).Lsh(big.NewInt(1), 256))
}

// wantSame compares replicas as far as they must agree: batch by batch where
// neither was compacted, and the last record of each key below.
func (r *trio) wantSame(a, b int) {
	r.t.Helper()
	one, two := r.nodes[a], r.nodes[b]
	cleaned := max(one.p.log.CleanedTo(), two.p.log.CleanedTo())
	if one.digest(r.t, cleaned).Cmp(two.digest(r.t, cleaned)) != 0 {
		r.t.Errorf("brokers %d and %d differ from offset %d on, where neither was compacted", a, b, cleaned)
	}
	if x, y := one.latest(r.t, cleaned), two.latest(r.t, cleaned); fmt.Sprint(x) != fmt.Sprint(y) {
		r.t.Errorf("below offset %d broker %d has %v, broker %d has %v", cleaned, a, x, b, y)
	}
}

// leaves takes broker 3, which has caught up, out of the ISR.
func (r *trio) leaves() {
	r.t.Helper()
	r.settle(1)
	r.part.Isr = []int32{1, 2}
	r.part.PartitionEpoch++
	r.tell()
}

// pass lets time pass.
func (r *trio) pass(d time.Duration) {
	r.t.Helper()
	time.Sleep(d)
	synctest.Wait()
}

// Fault 70: a follower that was away for so long that tombstones are gone does
// not bring back what they deleted, also when it comes to lead.
func TestClean_followerAwayTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
		r.compacted()
		r.put(1, "kept", "1")
		r.put(1, "deleted", "1")
		r.pull(2, 3)
		r.leaves()
		r.put(1, "deleted", "")
		r.put(1, "other", "1")
		r.pull(2)
		r.pass(3 * time.Minute)
		if got := r.nodes[1].latest(t, 99); len(got) != 2 || r.nodes[1].p.log.PurgedTo() != 0 {
			t.Fatalf("broker 1 has %v, purged to %d", got, r.nodes[1].p.log.PurgedTo())
		}
		r.pass(2 * time.Hour)
		if to := r.nodes[1].p.log.PurgedTo(); to != 3 {
			t.Fatalf("purged to %d, want 3", to)
		}
		r.lead(1) // 3 hears of it, and subscribes again
		kinds, err := r.follow(r.nodes[3])
		if err != nil || !slices.Equal(kinds, []AnswerKind{Reset, Accepted}) {
			t.Fatalf("answers %v, %v, want a reset", kinds, err)
		}
		r.pull(2, 3)
		r.part.Isr = []int32{1, 2, 3}
		r.lead(3)
		r.pull(1, 2)
		want := map[string]string{"kept": "0:1", "other": "3:1"}
		for id := 1; id <= 3; id++ {
			if got := r.nodes[id].latest(t, 99); fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("broker %d has %v, want %v", id, got, want)
			}
		}
		r.wantSame(1, 3)
		r.wantSame(1, 2)
	})
}

// A follower that is overtaken by the removal of tombstones while it is
// subscribed is not sent what comes after them.
func TestClean_followerOvertaken(t *testing.T) {
	for _, fresh := range []bool{false, true} {
		t.Run(fmt.Sprintf("fresh=%v", fresh), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
				r.compacted()
				r.put(1, "deleted", "1")
				if r.pull(2); !fresh {
					r.pull(3)
					r.leaves()
				}
				r.put(1, "deleted", "")
				r.put(1, "other", "1")
				r.pull(2)
				r.pass(3 * time.Minute) // what the tombstone deletes goes
				r.pass(40 * time.Minute)
				if _, err := r.follow(r.nodes[3]); err != nil { // from 0 or 1 on
					t.Fatal(err)
				}
				wait := 20 * time.Minute
				if fresh {
					wait = time.Hour
				}
				r.pass(wait) // the tombstone goes
				if to := r.nodes[1].p.log.PurgedTo(); to != 2 {
					t.Fatalf("purged to %d, want 2", to)
				}
				f := r.nodes[3]
				_, err := f.leader.p.ReadReplica(make([]byte, 1<<16), f.id, f.sub, f.next)
				if !errors.Is(err, ErrNotSubscribed) {
					t.Fatalf("read %v, want that the subscription has ended", err)
				}
				want := []AnswerKind{Reset, Accepted}
				if fresh {
					want = want[1:] // it has nothing to lose
				}
				if kinds, err := r.follow(f); err != nil || !slices.Equal(kinds, want) {
					t.Fatalf("answers %v, %v, want %v", kinds, err, want)
				}
				r.pull(3)
				r.wantSame(1, 3)
			})
		})
	}
}

// One that began with nothing, after what a tombstone deletes had gone, need not
// begin again when the tombstone goes.
func TestClean_followerFromScratch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
		r.compacted()
		r.put(1, "kept", "1")
		r.put(1, "deleted", "1")
		r.put(1, "deleted", "")
		r.put(1, "other", "1")
		r.pull(2)
		r.pass(50 * time.Minute)
		f := r.nodes[3]
		if _, err := r.follow(f); err != nil {
			t.Fatal(err)
		}
		r.pass(20 * time.Minute)
		if to := r.nodes[1].p.log.PurgedTo(); to != 3 {
			t.Fatalf("purged to %d, want 3", to)
		}
		r.pull(3)
		if f.subs != 1 {
			t.Errorf("it had to subscribe %d times", f.subs)
		}
		r.wantSame(1, 3)
	})
}

// Damage keeps a partition from being compacted, is told of, and keeps no other
// from it.
func TestClean_damage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.compacted()
		for i := range 10 {
			r.put(1, "k", fmt.Sprint(i))
		}
		r.pull(2, 3)
		files, err := r.nodes[2].mem.ReadDir(r.nodes[2].p.log.Dir())
		if err != nil {
			t.Fatal(err)
		}
		name := r.nodes[2].p.log.Dir() + "/" + files[slices.IndexFunc(files, func(e vfs.DirEntry) bool { return strings.HasSuffix(e.Name, ".log") })].Name
		f, err := r.nodes[2].mem.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte{0xFF}, 130); err != nil {
			t.Fatal(err)
		}
		r.pass(5 * time.Minute)
		if got := r.nodes[2].gauge(t, "log_cleaner_uncleanable_partitions"); got != 1 {
			t.Errorf("uncleanable partitions: %v, want 1", got)
		}
		if r.nodes[2].p.Damage() == nil || r.nodes[2].count(t, "corrupt_batches_total") != 1 {
			t.Errorf("damage %v, counted %v times", r.nodes[2].p.Damage(), r.nodes[2].count(t, "corrupt_batches_total"))
		}
		if got := r.nodes[1].count(t, "log_cleaner_passes_total"); got < 1 || r.nodes[1].p.log.CleanedTo() == 0 {
			t.Errorf("broker 1 made %v passes, cleaned to %d", got, r.nodes[1].p.log.CleanedTo())
		}
		if got := r.nodes[1].latest(t, 99)["k"]; got != "9:9" {
			t.Errorf("broker 1 has %q", got)
		}
	})
}

// On a disk that is all but full nothing is compacted: what a pass writes comes
// before what it frees.
func TestClean_hardMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		r.compacted()
		synctest.Wait()
		r.nodes[1].disk.Store(&commitlog.DiskState{Hard: true, Soft: true})
		for i := range 5 {
			b := batch(t, 1, int64(i))
			if _, err := r.nodes[1].p.log.Append(b, 1, record.CreateTime); err != nil {
				t.Fatal(err)
			}
		}
		r.nodes[1].p.mu.Lock()
		r.nodes[1].p.core.hw = 5
		r.nodes[1].p.core.own.written = 5
		r.nodes[1].p.publishLocked()
		r.nodes[1].p.mu.Unlock()
		r.pass(5 * time.Minute)
		if to := r.nodes[1].p.log.CleanedTo(); to != 0 {
			t.Errorf("cleaned to %d on a full disk", to)
		}
		r.nodes[1].disk.Store(nil)
		r.pass(time.Minute)
		if to := r.nodes[1].p.log.CleanedTo(); to == 0 {
			t.Error("not cleaned, and there is room again")
		}
	})
}

// Retention and compaction go by the policy.
func TestLogConfig_cleanupPolicy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newTrio(t, nil)
		get := func(policy string) commitlog.Config {
			r.configs = map[string]string{topicconfig.CleanupPolicyKey: policy, topicconfig.RetentionTimeKey: "1000", topicconfig.RetentionBytesKey: "5000"}
			r.tell()
			return r.nodes[1].p.log.Config()
		}
		for policy, want := range map[string][2]bool{"delete": {false, true}, "compact": {true, false}, "compact,delete": {true, true}} {
			c := get(policy)
			if got := [2]bool{c.Compact, c.RetentionTime == time.Second && c.RetentionBytes == 5000}; got != want {
				t.Errorf("%s: compact and delete are %v, want %v: %+v", policy, got, want, c)
			}
			if policy == "compact" && (c.RetentionTime >= 0 || c.RetentionBytes >= 0) {
				t.Errorf("compact deletes: %+v", c)
			}
		}
	})
}

// What is due may have to be learnt from a slow disk: nobody waits for that.
func TestClean_looksWithoutTheMutex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem, id := vfs.NewMem(), uuid.New()
		configs := map[string]string{
			topicconfig.CleanupPolicyKey: "compact", topicconfig.MinCleanableKey: "0", topicconfig.SegmentBytesKey: "1048576",
		}
		r := newRig(t, mem)
		p := r.topicOf(id, "t", bySync, configs, 1)
		for range 3 {
			b := record.NewBuilder(record.NewCodec(), record.Limits{})
			if err := b.Add([]byte("k"), make([]byte, 600_000), nil, 0); err != nil {
				t.Fatal(err)
			}
			batch, err := b.Finish(record.CompressionNone, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Append(&batch, nil); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		r.end(false)

		r = newRig(t, mem)
		var reads atomic.Int64
		r.fault.Before(vfs.OpRead, func(_ vfs.Op, name string) {
			reads.Add(1)
			if !r.clean.mu.TryLock() {
				t.Errorf("%s is read while the mutex is held", name)
				return
			}
			r.clean.mu.Unlock()
		})
		p = r.topicOf(id, "t", bySync, configs, 2)
		time.Sleep(time.Minute)
		if reads.Load() == 0 || p.log.CleanedTo() == 0 {
			t.Errorf("cleaned to %d after %d reads", p.log.CleanedTo(), reads.Load())
		}
		r.end(false)
	})
}

func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pacer{rate: 1 << 20}
		start := time.Now()
		for range 32 {
			if err := p.wait(t.Context(), 256<<10); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took < 7*time.Second || took > 8*time.Second {
			t.Errorf("8 MiB took %s at 1 MiB/s", took)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := p.wait(ctx, 1); !errors.Is(err, context.Canceled) {
			t.Errorf("error %v after the end", err)
		}
		free := pacer{}
		start = time.Now()
		for range 1000 {
			if err := free.wait(t.Context(), 1<<30); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("without a bound it took %s", took)
		}
	})
}
