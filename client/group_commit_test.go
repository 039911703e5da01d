package client_test

import (
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

// committing returns a member that commits by hand, and has been handed 50 records of
// each partition.
func committing(t *testing.T, parts int, opts ...client.Option) (*fakeGroup, *client.Group, []client.Record) {
	t.Helper()
	g := newFakeGroup(t, map[string]int{"t": parts})
	for n := range parts {
		g.f.fill(t, "t", int32(n), 50, 10, record.CompressionNone)
	}
	a := member(t, g.f.client(t, opts...), client.ManualCommit())
	return g, a, readRecords(t, a, 50*parts)
}

// All commits of a member go over one stream, which ends with Close.
func TestCommit_oneStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, a, recs := committing(t, 2)
		for i := range recs {
			if err := a.Commit(t.Context(), recs[i]); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Minute) // idle
		if err := a.Commit(t.Context(), recs...); err != nil {
			t.Fatal(err)
		}
		if len(g.commitStreams) != 1 || g.signs < 20 || g.commits != len(recs)+1 {
			t.Errorf("%d streams, %d signs of life, %d requests, want one stream, and a request for each commit", len(g.commitStreams), g.signs, g.commits)
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if g.openCommits != 0 || g.committed("t", 0) != 50 || g.committed("t", 1) != 50 {
			t.Errorf("%d streams are open; %d and %d committed", g.openCommits, g.committed("t", 0), g.committed("t", 1))
		}
	})
}

// Commits do not wait for the answers of those before them, up to a bound, and each
// is told of its own outcome.
func TestCommit_pipelined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, a, recs := committing(t, 1)
		var held atomic.Int64
		g.withhold(func(int, *runnelv1.CommitResponse) (bool, error) {
			held.Add(1)
			return false, nil
		})
		outcomes := commitEach(t, a, recs[:20])
		if held.Load() != 4 || len(outcomes()) != 0 {
			t.Fatalf("%d requests are on their way and %d commits answered, want 4 and none", held.Load(), len(outcomes()))
		}
		// The stream is given up, and the newest commit is asked for once more.
		g.withhold(nil)
		time.Sleep(time.Minute)
		want := make([]int64, 20)
		for i := range want {
			want[i] = int64(i)
		}
		got := slices.Sorted(slices.Values(outcomes()))
		if !slices.Equal(got, want) || len(g.commitStreams) != 2 || g.commits != 5 || g.committed("t", 0) != 20 {
			t.Errorf("outcomes of %v over %d streams with %d requests, %d committed", got, len(g.commitStreams), g.commits, g.committed("t", 0))
		}
	})
}

// commitEach commits records one after another, without waiting for answers. It
// returns what returns the offsets of those that have one.
func commitEach(t *testing.T, a *client.Group, recs []client.Record) func() []int64 {
	t.Helper()
	var mu sync.Mutex
	var outcomes []int64
	for i := range recs {
		a.CommitAsync(recs[i:i+1], func(err error) {
			if err != nil {
				t.Errorf("commit of %d: %v", recs[i].Offset, err)
			}
			mu.Lock()
			defer mu.Unlock()
			outcomes = append(outcomes, recs[i].Offset)
		})
		time.Sleep(10 * time.Millisecond)
	}
	return func() []int64 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(outcomes)
	}
}

// What comes at once, goes at once: in the next request, not in many.
func TestCommit_gathers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parts = 16
		g, a, recs := committing(t, parts)
		g.withhold(func(int, *runnelv1.CommitResponse) (bool, error) {
			time.Sleep(time.Millisecond)
			return true, nil
		})
		var all sync.WaitGroup
		for i := range recs {
			if recs[i].Offset != 7 {
				continue
			}
			all.Go(func() {
				if err := a.Commit(t.Context(), recs[i]); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if g.commits > 2 {
			t.Errorf("%d requests for %d commits that came at once, want the first and the others", g.commits, parts)
		}
	})
}

// Who commits while others are under way hears of its own commit as soon as that has an
// answer, be there newer ones or not.
func TestCommit_answersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, a, recs := committing(t, 1)
		gate := make(chan bool)
		g.withhold(func(int, *runnelv1.CommitResponse) (bool, error) { return <-gate, nil })
		outcomes := commitEach(t, a, recs[:3])
		for i := range 3 {
			gate <- true
			synctest.Wait()
			if got := outcomes(); len(got) != i+1 || got[i] != int64(i) {
				t.Errorf("after %d answers: outcomes of %v", i+1, got)
			}
		}
	})
}

// A stream that breaks between a commit and its answer costs a repetition, and no
// commit its true outcome. Each request says that it comes after all before it, over
// whichever stream.
func TestCommit_streamBreaks(t *testing.T) {
	broke := status.Error(codes.Unavailable, "the connection broke")
	for name, end := range map[string]error{"before it is made": broke, "after it was made": broke, "in good order": io.EOF} {
		early := name == "before it is made"
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, a, recs := committing(t, 1)
				sequence := uint64(0)
				g.with(func() {
					g.onCommit = func(n int, req *runnelv1.CommitRequest) (*runnelv1.ItemError, error) {
						if req.GetSequence() <= sequence {
							t.Errorf("sequence %d after %d", req.GetSequence(), sequence)
						}
						sequence = req.GetSequence()
						if n%2 == 0 || !early {
							return nil, nil
						}
						return nil, end
					}
				})
				if !early {
					g.withhold(func(n int, _ *runnelv1.CommitResponse) (bool, error) { return n%2 == 0, endUnless(n%2 == 0, end) })
				}
				for i := range recs {
					if err := a.Commit(t.Context(), recs[i]); err != nil {
						t.Fatal(err)
					}
					if g.committed("t", 0) != recs[i].Offset+1 {
						t.Fatalf("committed %d after %d was", g.committed("t", 0), recs[i].Offset)
					}
				}
			})
		})
	}
}

func endUnless(not bool, end error) error {
	if not {
		return nil
	}
	return end
}

// A refusal that came before the stream broke stays one; what it broke under is lost
// with the membership.
func TestCommit_expelledUnderway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, a, recs := committing(t, 1)
		g.withhold(func(int, *runnelv1.CommitResponse) (bool, error) { return false, nil })
		outcome := make(chan error, 1)
		a.CommitAsync(recs[:1], func(err error) { outcome <- err })
		synctest.Wait()
		g.expel(a.MemberID(), true)
		time.Sleep(time.Minute)
		select {
		case err := <-outcome:
			if !errors.Is(err, client.ErrOutcomeUnknown) && !errors.Is(err, client.ErrStaleAssignment) {
				t.Errorf("the outcome is %v", err)
			}
		default:
			t.Error("there is no outcome")
		}
	})
}

// A broker that says goodbye is left in good order, for another stream.
func TestCommit_goaway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, a, recs := committing(t, 1)
		g.withhold(func(_ int, resp *runnelv1.CommitResponse) (bool, error) {
			resp.Goaway = &runnelv1.Goaway{}
			return true, nil
		})
		for i := range 10 {
			if err := a.Commit(t.Context(), recs[i]); err != nil {
				t.Fatal(err)
			}
		}
		if len(g.commitStreams) != 10 || g.commits != 10 {
			t.Errorf("%d streams and %d requests, want 10 each", len(g.commitStreams), g.commits)
		}
	})
}

// Commits go to the coordinator itself, wherever it moves.
func TestCommit_goesToTheCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		const other = "other:7420"
		g.f.addNode(t, other, true)
		g.f.fill(t, "t", 0, 50, 10, record.CompressionNone)
		g.coordinator = other
		a := member(t, g.f.client(t), client.ManualCommit())
		recs := readRecords(t, a, 50)
		time.Sleep(time.Second) // it has heard of the cluster
		commit := func(i int, want ...string) {
			t.Helper()
			if err := a.Commit(t.Context(), recs[i]); err != nil {
				t.Fatal(err)
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if !slices.Equal(g.commitStreams, want) {
				t.Errorf("streams to %v, want %v", g.commitStreams, want)
			}
		}
		first := g.f.nodes[0].addr
		commit(0, first, other)
		commit(1, first, other)
		g.with(func() { g.coordinator = first })
		commit(2, first, other, first)
		commit(3, first, other, first)
	})
}

// Where a client is to go through one broker, commits do, too.
func TestCommit_proxied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.coordinator = "other:7420"
		g.f.addNode(t, g.coordinator, true)
		g.f.fill(t, "t", 0, 50, 10, record.CompressionNone)
		a := member(t, g.f.client(t, client.WithRouting(client.Proxy)), client.ManualCommit())
		recs := readRecords(t, a, 50)
		if err := a.Commit(t.Context(), recs...); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(g.commitStreams, []string{g.f.nodes[0].addr}) {
			t.Errorf("streams to %v", g.commitStreams)
		}
	})
}

// Of several records of one partition, the last one counts, in any order.
func TestCommit_manyRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, a, recs := committing(t, 2)
		slices.Reverse(recs)
		if err := a.Commit(t.Context(), recs...); err != nil {
			t.Fatal(err)
		}
		if g.committed("t", 0) != 50 || g.committed("t", 1) != 50 || g.commits != 1 {
			t.Errorf("%d and %d committed, %d requests", g.committed("t", 0), g.committed("t", 1), g.commits)
		}
	})
}
