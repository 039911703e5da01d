package client_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/internal/record"
)

func TestGroup_resumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 2000, 10, record.CompressionNone)
		lost := 0
		a := member(t, g.f.client(t), client.WithGroupHooks(client.GroupHooks{OnLost: func([]client.PartitionID, error) { lost++ }}))
		g.onJoin = func(n int, _ *runnelv1.JoinGroup) (*runnelv1.ItemError, error) {
			switch n % 4 {
			case 1:
				return item(runnelv1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, codes.Unavailable), nil
			case 2:
				return nil, status.Error(codes.Unavailable, "the connection broke")
			}
			return nil, nil
		}
		next := int64(0)
		for rec, err := range a.Records(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if rec.Offset != next {
				t.Fatalf("record %d, want %d", rec.Offset, next)
			}
			if next++; next == 2000 {
				break
			}
			if next%100 == 0 { // the stream breaks
				g.with(func() {
					m := g.members[a.MemberID()]
					close(m.over)
					m.over = nil
				})
				time.Sleep(2 * time.Second)
			}
		}
		if lost > 0 || g.streams < 30 {
			t.Errorf("lost %d times, %d streams", lost, g.streams)
		}
		for _, j := range g.joins[3:] {
			if j.GetMemberEpoch() == 0 || j.GetMemberId() != a.MemberID() {
				t.Errorf("joined as %v, want to resume", j)
			}
		}
	})
}

func TestGroup_silenceIsLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 1000, 10, record.CompressionNone)
		var lostAt time.Time
		a := member(t, g.f.client(t), client.WithGroupHooks(client.GroupHooks{OnLost: func(_ []client.PartitionID, err error) {
			lostAt = time.Now()
			if !errors.Is(err, client.ErrPartitionLost) {
				t.Errorf("lost with %v", err)
			}
		}}))
		var muted, last time.Time
		cancelled := false
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		again := false
		err := a.Run(ctx, func(ctx context.Context, rec client.Record) error {
			last = time.Now()
			switch {
			case rec.Offset == 50 && muted.IsZero():
				time.Sleep(3 * time.Second)
				g.with(func() { g.mute = true })
				muted = time.Now()
			case !muted.IsZero() && !cancelled:
				if time.Since(muted) > defaultSession {
					t.Error("a record was handed out after a session timeout without an answer")
				}
				select {
				case <-ctx.Done():
					cancelled = errors.Is(context.Cause(ctx), client.ErrPartitionLost)
					time.AfterFunc(time.Second, func() {
						g.with(func() { g.mute = false })
						g.expel(a.MemberID(), true)
					})
					return ctx.Err()
				case <-time.NewTimer(time.Second).C:
				}
			case cancelled:
				again = true
				if rec.Offset > 60 {
					cancel()
				}
			}
			return nil
		})
		if !errors.Is(err, context.Canceled) || !cancelled || !again {
			t.Errorf("%v; cancelled %v, read again %v", err, cancelled, again)
		}
		if d := lostAt.Sub(muted); d > defaultSession || d < defaultSession/2 {
			t.Errorf("lost after %v", d)
		}
		_ = last
	})
}

// The broker that a member speaks through hangs: it goes on through another one,
// in time to keep what it has.
func TestGroup_brokerHangs(t *testing.T) {
	for name, c := range map[string]struct {
		session time.Duration
		routing client.Routing
	}{
		"default": {session: defaultSession}, "short": {session: 6 * time.Second},
		"proxied": {defaultSession, client.Proxy}, "proxied, short": {6 * time.Second, client.Proxy},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				session := c.session
				g := newFakeGroup(t, map[string]int{"t": 1})
				g.f.addNode(t, "other:7420", true)
				g.f.fill(t, "t", 0, 100, 10, record.CompressionNone)
				a := member(t, g.f.known(t, client.WithRouting(c.routing)), client.SessionTimeout(session), client.WithGroupHooks(client.GroupHooks{
					OnLost: func(_ []client.PartitionID, err error) { t.Errorf("lost: %v", err) },
				}))
				readRecords(t, a, 100)
				synctest.Wait()     // the other one is known
				for i := range 10 { // at any moment between two pings
					d := g.f.nodes[i%2]
					g.f.locked(func() { d.frozen = true })
					time.Sleep(2*session + session/35)
					g.f.locked(func() { d.frozen = false })
					time.Sleep(session + session/50)
					g.with(func() {
						if m := g.members[a.MemberID()]; m == nil || m.out == nil {
							t.Errorf("hang %d: the member is gone", i)
						}
					})
				}
			})
		})
	}
}

func TestGroup_expelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 1000, 10, record.CompressionNone)
		a := member(t, g.f.client(t), client.ManualCommit())
		b, err := a.Poll(t.Context())
		if err != nil || !b.Next() {
			t.Fatal(err)
		}
		old := b.Record().Clone()
		g.expel(a.MemberID(), true)
		g.with(func() { g.parts[fakeKey{"t", 0}].committed = 500 }) // by another one
		time.Sleep(time.Second)
		if b.Next() || !errors.Is(b.Err(), client.ErrPartitionLost) {
			t.Errorf("the batch in hand goes on: %v", b.Err())
		}
		if err := a.Commit(t.Context(), old); !errors.Is(err, client.ErrStaleAssignment) {
			t.Errorf("commit of a lost record: %v", err)
		}
		rec := readRecords(t, a, 1)
		if rec[0].Offset != 500 {
			t.Errorf("begins again at %d, want 500", rec[0].Offset)
		}
		if err := a.Commit(t.Context(), rec[0]); err != nil {
			t.Error(err)
		}
		if at := g.committed("t", 0); at != 501 {
			t.Errorf("committed %d", at)
		}
	})
}

// Who no longer waits for a commit that is refused again and again is told why.
func TestGroup_commitInVain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 100, 10, record.CompressionNone)
		a := member(t, g.f.client(t), client.ManualCommit())
		recs := readRecords(t, a, 5)
		full := item(runnelv1.ErrorReason_ERROR_REASON_STORAGE_FULL, codes.ResourceExhausted)
		g.with(func() {
			g.onCommit = func(int, *runnelv1.CommitRequest) (*runnelv1.ItemError, error) { return full, nil }
		})
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		err := a.Commit(ctx, recs...)
		for _, want := range []error{context.DeadlineExceeded, client.ErrOutcomeUnknown, client.ErrStorageFull} {
			if !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		}
		g.with(func() { full = nil })
		if err := a.Commit(t.Context(), recs...); err != nil {
			t.Error(err)
		}
	})
}

func TestGroup_commitErrors(t *testing.T) {
	for name, c := range map[string]struct {
		it   *runnelv1.ItemError
		fail error
		n    int // how often it is so; 0: always
		want error
	}{
		"loading":          {it: item(runnelv1.ErrorReason_ERROR_REASON_COORDINATOR_LOADING, codes.Unavailable), n: 3},
		"uncertain, once":  {it: item(runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN, codes.DeadlineExceeded), n: 1},
		"a broken stream":  {fail: status.Error(codes.Unavailable, "gone"), n: 2},
		"uncertain, ever":  {fail: status.Error(codes.Unavailable, "gone"), want: client.ErrOutcomeUnknown},
		"fenced":           {it: item(runnelv1.ErrorReason_ERROR_REASON_UNKNOWN_MEMBER, codes.NotFound), n: 1, want: client.ErrUnknownMember},
		"a wrong request":  {it: item(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, codes.InvalidArgument), want: client.ErrInvalidRequest},
		"another instance": {it: item(runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER, codes.FailedPrecondition), want: client.ErrFencedMember},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newFakeGroup(t, map[string]int{"t": 1})
				g.f.fill(t, "t", 0, 100, 10, record.CompressionNone)
				a := member(t, g.f.client(t), client.ManualCommit())
				rec := readRecords(t, a, 5)
				g.onCommit = func(n int, _ *runnelv1.CommitRequest) (*runnelv1.ItemError, error) {
					if c.n > 0 && n > c.n {
						return nil, nil
					}
					return c.it, c.fail
				}
				err := a.Commit(t.Context(), rec[4])
				if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
					t.Errorf("%v, want %v", err, c.want)
				}
				if at := g.committed("t", 0); c.want == nil && at != 5 {
					t.Errorf("committed %d, want 5", at)
				}
				g.with(func() { g.onCommit = nil })
			})
		})
	}
}

func TestGroup_outOfRange(t *testing.T) {
	for name, c := range map[string]struct {
		opts  []client.GroupOption
		first int64
	}{
		"fail":     {nil, -1},
		"earliest": {[]client.GroupOption{client.Reading(client.OnOutOfRange(client.ResetEarliest))}, 50},
		"latest":   {[]client.GroupOption{client.Reading(client.OnOutOfRange(client.ResetLatest))}, 100},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newFakeGroup(t, map[string]int{"t": 1})
				g.f.fill(t, "t", 0, 100, 10, record.CompressionNone)
				g.f.locked(func() {
					p := g.f.topics["t"].parts[0]
					p.start, p.frames, p.heads = 50, p.frames[5:], p.heads[5:]
				})
				g.with(func() { g.parts[fakeKey{"t", 0}].committed = 5 })
				a := member(t, g.f.client(t), c.opts...)
				time.AfterFunc(time.Second, func() { g.f.fill(t, "t", 0, 1, 1, record.CompressionNone) })
				b, err := a.Poll(t.Context())
				if c.first < 0 {
					e, ok := errors.AsType[*client.Error](err)
					if !ok || !errors.Is(err, client.ErrOffsetOutOfRange) {
						t.Fatalf("poll: %v", err)
					}
					start, _ := e.Int("logStartOffset")
					end, _ := e.Int("highWatermark")
					if start != 50 || end != 100 {
						t.Errorf("start %d, end %d", start, end)
					}
					_ = a.Close()
					if at := g.committed("t", 0); at != 5 {
						t.Errorf("committed %d, want 5 as it was", at)
					}
					return
				}
				if err != nil || !b.Next() || b.Record().Offset != c.first {
					t.Fatalf("%v, want offset %d", err, c.first)
				}
			})
		})
	}
}

// A stream that was given up, and arrives late, takes the member's place for as
// long as it takes to open another.
func TestGroup_overtakenByItsOwnStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1})
		g.f.fill(t, "t", 0, 10, 10, record.CompressionNone)
		g.onJoin = func(n int, _ *runnelv1.JoinGroup) (*runnelv1.ItemError, error) {
			if n == 1 {
				return item(runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER, codes.Aborted), nil
			}
			return nil, nil
		}
		readRecords(t, member(t, g.f.client(t)), 10)
	})
}

func TestGroup_finalErrors(t *testing.T) {
	for name, c := range map[string]struct {
		it   *runnelv1.ItemError
		fail error
		want error
		text string
	}{
		"another instance": {it: item(runnelv1.ErrorReason_ERROR_REASON_FENCED_MEMBER, codes.FailedPrecondition, "instanceId", "one"), want: client.ErrFencedMember, text: "instance id"},
		"a bad pattern":    {it: item(runnelv1.ErrorReason_ERROR_REASON_INVALID_SUBSCRIPTION, codes.InvalidArgument), want: client.ErrInvalidSubscription},
		"not allowed":      {fail: status.Error(codes.PermissionDenied, "no"), text: "PermissionDenied"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newFakeGroup(t, map[string]int{"t": 1})
				g.onJoin = func(int, *runnelv1.JoinGroup) (*runnelv1.ItemError, error) { return c.it, c.fail }
				a := member(t, g.f.client(t), client.InstanceID("one"))
				for range 2 {
					_, err := a.Poll(t.Context())
					if c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) || client.Retriable(err) {
						t.Errorf("poll: %v", err)
					}
				}
				if g.streams != 1 {
					t.Errorf("tried %d times", g.streams)
				}
			})
		})
	}
}

func TestGroup_leavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 2})
		c := g.f.client(t)
		for i := range 60 {
			g.f.fill(t, "t", 0, 10, 10, record.CompressionNone)
			m := member(t, c)
			switch i % 4 {
			case 0: // never begun
			case 1:
				for range m.Records(t.Context()) {
					break
				}
			case 2:
				closed := make(chan error, 1)
				time.AfterFunc(time.Millisecond, func() { closed <- m.Close() })
				for {
					if _, err := m.Poll(t.Context()); err != nil {
						break
					}
				}
				<-closed
			case 3:
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				for range m.Records(ctx) {
				}
			}
			if err := m.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Poll(t.Context()); !errors.Is(err, client.ErrClosed) {
				t.Errorf("poll after Close: %v", err)
			}
			if err := m.Commit(t.Context()); i%4 != 0 && err != nil && !errors.Is(err, client.ErrClosed) {
				t.Errorf("commit after Close: %v", err)
			}
		}
		synctest.Wait()
		g.f.locked(func() {
			if g.f.open != 0 {
				t.Errorf("%d streams are open", g.f.open)
			}
		})
		if len(g.members) != 0 {
			t.Errorf("%d members are left", len(g.members))
		}
	})
}

func TestNewGroup_refuses(t *testing.T) {
	g := newFakeGroup(t, map[string]int{"t": 1})
	c := g.f.client(t)
	for want, opts := range map[string][]client.GroupOption{
		"nothing to read":  {},
		"SessionTimeout":   {client.Topics("t"), client.SessionTimeout(time.Millisecond)},
		"RebalanceTimeout": {client.Topics("t"), client.RebalanceTimeout(time.Hour)},
		"CommitInterval":   {client.Topics("t"), client.CommitInterval(0)},
		"OnNoCommit":       {client.Topics("t"), client.OnNoCommit(client.ResetNearest)},
		"WithAssignor":     {client.Topics("t"), client.WithAssignor(9)},
		"Prefetch":         {client.Topics("t"), client.Reading(client.Prefetch(1))},
		"itself":           {client.Topics("t"), client.WithDeadLetter(client.DeadLetter{Topic: "t"})},
		`"t-dead" itself`:  {client.TopicPattern("t.*"), client.WithDeadLetter(client.DeadLetter{Topic: "t-dead"})},
		"syntax of RE2":    {client.TopicPattern("a)|(b")},
		"no topic":         {client.Topics("t"), client.WithDeadLetter(client.DeadLetter{})},
	} {
		if _, err := c.NewGroup("g", opts...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want one about %q", err, want)
		}
	}
	for _, pattern := range []string{"t", "t|u", "x-t-deadly"} { // whole names match, as at the brokers
		gr, err := c.NewGroup("g", client.TopicPattern(pattern), client.WithDeadLetter(client.DeadLetter{Topic: "t-dead"}))
		if err != nil {
			t.Errorf("pattern %q does not match the dead-letter topic: %v", pattern, err)
			continue
		}
		if err := gr.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := c.NewGroup("", client.Topics("t")); err == nil {
		t.Error("a group without a name was taken")
	}
}

// A topic that is deleted under a member is no error: the brokers take it away, and
// until then it is asked for once a second, not in a loop (CG-12).
func TestGroup_topicGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newFakeGroup(t, map[string]int{"t": 1, "u": 1})
		g.f.fill(t, "u", 0, 10, 10, record.CompressionNone)
		a := member(t, g.f.client(t), client.Topics("u"))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if _, err := a.Poll(ctx); err != nil {
			t.Fatal(err)
		}
		var gone *fakeTopic
		g.f.locked(func() {
			gone = g.f.topics["u"]
			delete(g.f.topics, "u")
		})
		asked := 0
		g.f.locked(func() { g.f.onFetch = func(int, int) error { asked++; return nil } })
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if b, err := a.Poll(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("poll: %v, %v", b, err)
		}
		g.f.locked(func() {
			if asked > 1000 {
				t.Errorf("asked %d times in a minute", asked)
			}
			// It was only forgotten for a while, by a broker that was behind.
			g.f.topics["u"] = gone
		})
		g.f.fill(t, "u", 0, 10, 10, record.CompressionNone)
		rec := readRecords(t, a, 1)
		if rec[0].Topic != "u" || rec[0].Offset != 10 {
			t.Errorf("goes on with %s %d, want u 10", rec[0].Topic, rec[0].Offset)
		}
	})
}
