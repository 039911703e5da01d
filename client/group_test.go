package client_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

const defaultSession = 10 * time.Second

func member(t *testing.T, c *client.Client, opts ...client.GroupOption) *client.Group {
	t.Helper()
	g, err := c.NewGroup("g", append([]client.GroupOption{client.Topics("t")}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Close() })
	return g
}

// readRecords reads n records, each with its loop's body ended.
func readRecords(t *testing.T, g *client.Group, n int) (recs []client.Record) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for rec, err := range g.Records(ctx) {
		if err != nil {
			if len(recs) >= n && errors.Is(err, context.Canceled) {
				return recs
			}
			t.Fatalf("after %d of %d records: %v", len(recs), n, err)
		}
		recs = append(recs, rec.Clone())
		if len(recs) == n {
			cancel() // and the walk ends after this body
		}
	}
	return recs
}

// What is processed is committed, by Close at the latest, and the next member
// goes on behind it.
func TestGroup_goesOnWhereItStood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 2})
		g.f.fill(t, "t", 0, 100, 10, record.CompressionNone)
		g.f.fill(t, "t", 1, 100, 10, record.CompressionNone)
		c := g.f.client(t)
		a := member(t, c)
		got := readRecords(t, a, 70)
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		if sum := max(g.committed("t", 0), 0) + max(g.committed("t", 1), 0); sum < 70 {
			t.Errorf("committed %d records, want 70", sum)
		}
		b := member(t, c)
		got = append(got, readRecords(t, b, 200-len(got))...)
		wantRun(t, got, 0, 0, 100)
		wantRun(t, got, 1, 0, 100)
		if g.leaves != 1 {
			t.Errorf("left %d times, want once", g.leaves)
		}
	})
}

// A record that a loop was left with is not processed; one whose body has ended is.
func TestGroup_commitsWhatIsProcessed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 100, 10, record.CompressionNone)
		a := member(t, g.f.client(t))
		for rec, err := range a.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if rec.Offset == 7 {
				time.Sleep(time.Minute) // longer than any timeout: it stays a member
				if at := g.committed("t", 0); at != 7 {
					t.Errorf("while record 7 is in hand %d is committed, want 7", at)
				}
			}
			if rec.Offset == 15 {
				break
			}
		}
		time.Sleep(time.Minute)
		if at := g.committed("t", 0); at != 15 {
			t.Errorf("after the loop was left with record 15, %d is committed", at)
		}
		b, err := a.Poll(t.Context()) // the rest of the batch
		if err != nil || !b.Next() || b.Record().Offset != 16 {
			t.Fatalf("poll: %v", err)
		}
		time.Sleep(time.Minute)
		if at := g.committed("t", 0); at != 16 {
			t.Errorf("with a batch from 16 in hand %d is committed", at)
		}
		end := b.NextOffset()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := a.Poll(ctx); err != nil && end < 100 {
			t.Fatal(err)
		}
		if at := g.committed("t", 0); at != end {
			t.Errorf("after the next poll %d is committed, want %d", at, end)
		}
		if g.streams != 1 {
			t.Errorf("%d streams, want one", g.streams)
		}
	})
}

// Members come and go while records are processed slowly: none is lost, and none
// is processed twice (CG-15).
func TestGroup_handsOverWithoutDuplicates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 4})
		for n := range 4 {
			g.f.fill(t, "t", int32(n), 300, 20, record.CompressionNone)
		}
		c := g.f.client(t)
		seen := make(chan client.Record, 10000)
		var workers sync.WaitGroup
		work := func(m *client.Group) chan error {
			done := make(chan error, 1)
			workers.Go(func() {
				done <- m.Run(t.Context(), func(ctx context.Context, r client.Record) error {
					time.Sleep(10 * time.Millisecond)
					if ctx.Err() != nil {
						t.Errorf("%s/%d %d was lost in hand", r.Topic, r.Partition, r.Offset)
					}
					seen <- r.Clone()
					return nil
				})
			})
			return done
		}
		a := member(t, c)
		worked := work(a)
		for i := range 10 {
			time.Sleep(200 * time.Millisecond)
			b := member(t, c)
			other := work(b)
			time.Sleep(200 * time.Millisecond)
			if i%2 == 0 {
				time.Sleep(3 * time.Millisecond) // in the middle of a record
			}
			_ = b.Close()
			if err := <-other; !errors.Is(err, client.ErrClosed) {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Second)
		_ = a.Close()
		<-worked
		workers.Wait()
		close(seen)
		count := map[string]int{}
		for r := range seen {
			count[fmt.Sprintf("%d/%d", r.Partition, r.Offset)]++
		}
		twice := 0
		for _, n := range count {
			twice += n - 1
		}
		// Only Close does not wait for the one record in hand.
		if len(count) != 1200 || twice > 10 {
			t.Errorf("%d records processed, %d of them again; want 1200, and at most one again for each Close", len(count), twice)
		}
		if g.epoch < 30 {
			t.Errorf("epoch %d: partitions hardly moved", g.epoch)
		}
	})
}

// A partition that is taken away is confirmed only when the record in hand is
// processed and its commit was answered.
func TestGroup_revokesAfterTheRecordInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 2})
		g.f.fill(t, "t", 1, 100, 100, record.CompressionNone)
		c := g.f.client(t)
		var log []string
		a := member(t, c, client.WithGroupHooks(client.GroupHooks{
			OnAssign: func(ps []client.PartitionID) { log = append(log, fmt.Sprint("assign ", ps)) },
			OnRevoke: func(ps []client.PartitionID) {
				log = append(log, fmt.Sprint("revoke ", ps, " at ", g.committed("t", 1)))
			},
			OnLost: func(ps []client.PartitionID, err error) { log = append(log, fmt.Sprint("lost ", ps, err)) },
		}))
		b := member(t, c)
		for rec, err := range a.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if rec.Offset < 4 {
				continue
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			_, _ = b.Poll(ctx) // it joins
			cancel()
			time.Sleep(20 * time.Second)
			g.with(func() {
				if p := g.parts[fakeKey{"t", 1}]; p.owner != a.MemberID() {
					t.Error("the partition was given up with a record in hand")
				}
			})
			break
		}
		// The loop was left: the next call says that the record is processed.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if b, err := a.Poll(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("poll: %v, %v: want nothing of a partition that is given up", b, err)
		}
		if at := g.committed("t", 1); at != 5 {
			t.Errorf("committed %d, want 5", at)
		}
		synctest.Wait()
		if len(log) < 2 || log[0] != "assign [{t 0} {t 1}]" || log[1] != "revoke [{t 1}] at 4" && log[1] != "revoke [{t 1}] at -1" {
			t.Errorf("hooks: %q", log)
		}
		rec := readRecords(t, b, 1)
		if rec[0].Offset != 5 {
			t.Errorf("the next owner begins at %d, want 5", rec[0].Offset)
		}
	})
}

// Streams break, brokers load: the member resumes with its epoch, and goes on with
// what it has.
// A coordinator that falls silent: after a session timeout, counted from sending,
// nothing is handed out any more, what is in hand is cancelled, and the member joins
// again (CG-16).
// One that is expelled drops what it has, and its late commits change nothing.
// Commits of one partition are answered in order, and never go back.
func TestGroup_commitAsync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 200, 10, record.CompressionNone)
		a := member(t, g.f.client(t), client.ManualCommit())
		g.onCommit = func(n int, _ *runnelv1.CommitRequest) (*runnelv1.ItemError, error) {
			if n%3 == 0 {
				return item(runnelv1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, codes.Unavailable), nil
			}
			return nil, nil
		}
		answered := 0
		for _, rec := range readRecords(t, a, 200) {
			a.CommitAsync([]client.Record{rec}, func(err error) {
				answered++
				if err != nil {
					t.Error(err)
				}
			})
		}
		if err := a.Commit(t.Context()); err != nil {
			t.Error(err)
		}
		if at := g.committed("t", 0); at != 200 || answered != 200 {
			t.Errorf("committed %d, %d answered; want 200", at, answered)
		}
		if g.commits > 20 {
			t.Errorf("%d requests for 200 commits: want them together", g.commits)
		}
	})
}

// Where nothing was committed, the policy says where to begin.
func TestGroup_onNoCommit(t *testing.T) {
	for name, c := range map[string]struct {
		policy client.ResetPolicy
		first  int64
	}{"earliest": {client.ResetEarliest, 0}, "latest": {client.ResetLatest, 100}, "fail": {client.ResetFail, -1}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newFakeGroup(t, map[string]int{"t": 1})
				g.f.fill(t, "t", 0, 100, 10, record.CompressionNone)
				a := member(t, g.f.client(t), client.OnNoCommit(c.policy))
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				if c.policy == client.ResetLatest {
					if _, err := a.Poll(ctx); !errors.Is(err, context.DeadlineExceeded) {
						t.Fatal(err)
					}
					if at := g.committed("t", 0); at != 100 {
						t.Errorf("where it begins is not committed: %d", at)
					}
					g.f.fill(t, "t", 0, 10, 10, record.CompressionNone)
				}
				b, err := a.Poll(t.Context())
				if c.first < 0 {
					var pe *client.PartitionError
					if !errors.Is(err, client.ErrNoCommit) || !errors.As(err, &pe) || pe.Topic != "t" {
						t.Errorf("poll: %v", err)
					}
					if err := a.Seek(t.Context(), "t", 0, client.AtOffset(42)); err != nil {
						t.Fatal(err)
					}
					c.first = 42
					b, err = a.Poll(t.Context())
				}
				if err != nil || !b.Next() || b.Record().Offset != c.first {
					t.Fatalf("%v, offset %d; want %d", err, b.Record().Offset, c.first)
				}
			})
		})
	}
}

// Records that were deleted before the group has read them are an error, with both
// ends of the log, and not a silent gap (CG-13).
// What cannot get better ends the group, and says so.
// A static member that is closed keeps its place; Leave gives it up.
func TestGroup_staticMember(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 100, 10, record.CompressionNone)
		c := g.f.client(t)
		a := member(t, c, client.InstanceID("one"))
		readRecords(t, a, 5)
		if err := a.Close(); err != nil || g.leaves != 0 || g.committed("t", 0) != 5 {
			t.Errorf("%v; left %d times, committed %d", err, g.leaves, g.committed("t", 0))
		}
		b := member(t, c, client.InstanceID("two"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, _ = b.Poll(ctx)
		if err := b.Leave(); err != nil || g.leaves != 1 {
			t.Errorf("%v; left %d times", err, g.leaves)
		}
	})
}

// Every way out ends what runs.
// What a handler cannot process is put aside after so many attempts, with its cause,
// and the group goes on, in order.
// Nothing is committed of a record that could not be put aside; a topic that does
// not exist is said at once.
