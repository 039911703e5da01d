package cases

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/runnelmq/runnel/client"
)

// A line is the network as one client has it, which can be lost by itself.
type line struct {
	w *town

	// mu guards the fields below
	mu    sync.Mutex
	down  bool
	links []*link
}

func (l *line) dial(ctx context.Context, addr string) (net.Conn, error) {
	l.mu.Lock()
	down := l.down
	l.mu.Unlock()
	if down {
		<-ctx.Done() // there is nobody to say no
		return nil, context.Cause(ctx)
	}
	c, err := l.w.net.dial(ctx, addr)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.links = append(l.links, c.(*link))
	return c, nil
}

// cut loses all that is connected, without a word, and whatever is dialled.
func (l *line) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = true
	for _, k := range l.links {
		if !k.gone() {
			close(k.lost)
		}
	}
	l.links = nil
}

func (l *line) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.down = false
}

// apart returns a client with a line of its own.
func (w *town) apart() (*client.Client, *line) {
	w.t.Helper()
	l := &line{w: w}
	return w.client(brokerAddr, client.Dialer(l.dial)), l
}

// counts says how often each value is there, when not once.
func counts(values []string) (again, total int) {
	seen := map[string]int{}
	for _, v := range values {
		if seen[v]++; seen[v] > 1 {
			again++
		}
	}
	return again, len(seen)
}

// Partitions change hands fifty times while records are processed slowly: what is
// handed over in good order is neither lost nor processed twice (CG-15).
func TestCG15_handOversCostNothing(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 4, nil)
		f := w.feed(c, "t", "", 10*time.Millisecond)
		defer f.stop()
		var mu sync.Mutex
		var got []string
		work := func() (stop func()) {
			g, err := c.NewGroup("g", client.Topics("t"))
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				for rec, err := range g.Records(ctx) {
					if err != nil {
						if ctx.Err() == nil {
							t.Error(err)
						}
						continue
					}
					time.Sleep(8 * time.Millisecond) // it is slow
					mu.Lock()
					got = append(got, string(rec.Value))
					mu.Unlock()
				}
				if err := g.Close(); err != nil {
					t.Error(err)
				}
			})
			return func() { cancel(); wg.Wait() }
		}
		stay := work()
		for range 25 {
			time.Sleep(3 * time.Second)
			leave := work()
			time.Sleep(3 * time.Second)
			leave()
		}
		f.stop()
		time.Sleep(20 * time.Second)
		stay()
		acked, failed := f.account()
		again, total := counts(got)
		if again > 0 || total != len(acked) || len(failed) > 0 || total < 10000 {
			t.Errorf("of %d records %d were processed, %d of them again; failed: %v", len(acked), total, again, failed)
		}
	})
}

// A member that leaves is replaced at once, one that vanishes after its session
// timeout; when all have vanished the group is empty, and whoever comes next has
// everything (CG-01). The one that vanished finds out by itself, processes nothing
// more meanwhile, and is a member again when it is back (CG-16).
func TestCG01_CG16_membersLeaveAndVanish(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		admin := c.NewAdmin()
		w.topic(c, "t", 6, nil)
		near := func(within time.Duration, members, partitions int) {
			t.Helper()
			for begun := time.Now(); ; time.Sleep(50 * time.Millisecond) {
				d, err := admin.DescribeGroup(t.Context(), "g")
				owned := 0
				for _, m := range d.Members {
					owned += int(m.Owned)
				}
				if err == nil && len(d.Members) == members && owned == partitions && (d.State == client.GroupStable || members == 0 && d.State == client.GroupEmpty) {
					return
				}
				if time.Since(begun) > within {
					t.Fatalf("after %s: %+v, %v", within, d, err)
				}
			}
		}
		stay := w.member(c, "g", client.Topics("t"))
		far, line := w.apart()
		defer far.Close()
		var mu sync.Mutex
		var lost []client.PartitionID
		away := w.member(far, "g", client.Topics("t"), client.WithGroupHooks(client.GroupHooks{OnLost: func(ps []client.PartitionID, _ error) {
			mu.Lock()
			defer mu.Unlock()
			lost = append(lost, ps...)
		}}))
		leaver := w.member(c, "g", client.Topics("t"))
		near(5*time.Second, 3, 6)
		if _, errs := leaver(); len(errs) > 0 {
			t.Error(errs)
		}
		near(500*time.Millisecond, 2, 6)
		f := w.feed(c, "t", "", 10*time.Millisecond)
		defer f.stop()
		time.Sleep(5 * time.Second)
		line.cut()
		near(11*time.Second, 1, 6)
		time.Sleep(15 * time.Second)
		mu.Lock()
		if len(lost) != 3 {
			t.Errorf("%v were lost", lost)
		}
		mu.Unlock()
		line.mend()
		near(20*time.Second, 2, 6)
		time.Sleep(5 * time.Second)
		f.stop()
		time.Sleep(5 * time.Second)
		acked, _ := f.account()
		late, errs := away()
		got, more := stay()
		if len(errs)+len(more) > 0 {
			t.Error(errs, more)
		}
		again, total := counts(slices.Concat(got, late))
		if total != len(acked) || again > 600 || len(late) == 0 {
			t.Errorf("of %d records %d were processed, %d again", len(acked), total, again)
		}
		// All vanish.
		for range 3 {
			other, line := w.apart()
			defer other.Close()
			m := w.member(other, "g", client.Topics("t"))
			defer m()
			defer line.mend()
			time.AfterFunc(5*time.Second, line.cut)
		}
		time.Sleep(4 * time.Second)
		near(time.Second, 3, 6)
		near(15*time.Second, 0, 0)
		next := w.member(c, "g", client.Topics("t"))
		near(5*time.Second, 1, 6)
		if _, errs := next(); len(errs) > 0 {
			t.Error(errs)
		}
	})
}

// A static member whose joining is not answered goes on by itself; of two processes
// with one id the older one ends, once, and the younger one is left alone
// (CG-04).
func TestCG04_staticMembers(t *testing.T) {
	inTown(t, nil, func(w *town) {
		t := w.t
		c := w.client(brokerAddr)
		defer c.Close()
		w.topic(c, "t", 2, nil)
		w.numbered(c, "t", 2, 0, 10)
		far, line := w.apart()
		defer far.Close()
		if err := far.Ping(t.Context()); err != nil {
			t.Fatal(err)
		}
		first := w.member(far, "g", client.Topics("t"), client.InstanceID("one"))
		line.cut() // before the answer comes
		time.Sleep(2 * time.Second)
		line.mend()
		time.Sleep(40 * time.Second)
		if got := w.committed(c, "g"); !cmp.Equal(got, map[string]int64{"t/0": 10, "t/1": 10}) {
			t.Errorf("committed %v", got)
		}
		// The same process subscribes anew.
		if got, errs := first(); len(got) != 20 || len(errs) > 0 {
			t.Errorf("read %d, %v", len(got), errs)
		}
		older := w.member(far, "g", client.Topics("t"), client.InstanceID("one"))
		time.Sleep(5 * time.Second)
		younger := w.member(c, "g", client.Topics("t"), client.InstanceID("one"))
		time.Sleep(5 * time.Second)
		d, err := c.NewAdmin().DescribeGroup(t.Context(), "g")
		if err != nil || len(d.Members) != 1 || d.Members[0].Owned != 2 {
			t.Errorf("%+v, %v", d, err)
		}
		w.numbered(c, "t", 2, 10, 20)
		time.Sleep(time.Minute)
		after, err := c.NewAdmin().DescribeGroup(t.Context(), "g")
		if err != nil || after.Epoch != d.Epoch || len(after.Members) != 1 || after.Members[0].MemberID != d.Members[0].MemberID {
			t.Errorf("%+v, %v, before: %+v", after, err, d)
		}
		got, errs := younger()
		if len(got) != 20 || len(errs) > 0 {
			t.Errorf("the younger read %d, %v", len(got), errs)
		}
		got, errs = older()
		if len(got) != 0 || len(errs) == 0 || !errors.Is(errs[0], client.ErrFencedMember) {
			t.Errorf("the older one read %d, %v", len(got), errs)
		}
	})
}
