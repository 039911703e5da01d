package store_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/encoding"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
)

// elected returns a store in which this controller is active.
func elected(t *testing.T, f *storetest.Fake, ttl time.Duration) (*store.Store, store.Tenure) {
	t.Helper()
	t.Helper()
	s := store.New(f, "test")
	tenure, won, err := s.Campaign(t.Context(), state.Controller{Address: "a:1", Incarnation: uuid.New()}, &state.Counters{}, ttl)
	if err != nil || !won {
		t.Fatalf("not elected: %v", err)
	}
	return s, tenure
}

func name(n string, topic uuid.UUID) state.Change {
	o := &state.Name{Name: n, Topic: topic}
	return state.Change{Key: o.Key(), Object: o}
}

func bubble(t *testing.T, test func(t *testing.T, f *storetest.Fake)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := storetest.New()
		defer f.Close()
		test(t, f)
	})
}

func TestCommit_finds_out_what_became_of_it(t *testing.T) {
	for what, tt := range map[string]struct {
		faults []storetest.Fault // of each attempt; none after them
		want   error
		made   bool
	}{
		"answered":                  {nil, nil, true},
		"made, answer lost":         {[]storetest.Fault{storetest.FaultAfter}, nil, true},
		"not made, answer lost":     {[]storetest.Fault{storetest.FaultBefore}, nil, true},
		"late, then made again":     {[]storetest.Fault{storetest.FaultDelayed}, nil, true},
		"several losses":            {slices.Repeat([]storetest.Fault{storetest.FaultBefore}, 5), nil, true},
		"full":                      {[]storetest.Fault{storetest.FaultFull}, store.ErrFull, false},
		"full and made":             {[]storetest.Fault{storetest.FaultFullApplied}, nil, true},
		"lost until the end":        {slices.Repeat([]storetest.Fault{storetest.FaultBefore}, 1000), store.ErrUnknown, false},
		"late until after the end":  {slices.Repeat([]storetest.Fault{storetest.FaultDelayed}, 1000), store.ErrUnknown, true},
		"lost, and once made, lost": {[]storetest.Fault{storetest.FaultBefore, storetest.FaultAfter}, nil, true},
	} {
		t.Run(what, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *storetest.Fake) {
				t.Helper()
				s, tenure := elected(t, f, time.Hour)
				n := 0
				f.Inject(func([]store.Write) storetest.Fault {
					n++
					if n <= len(tt.faults) {
						return tt.faults[n-1]
					}
					return storetest.FaultNone
				})
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				defer cancel()
				id := uuid.New()
				rev, err := s.Commit(ctx, tenure.Fence, []state.Change{name("x", id), name("y", id)})
				if !errors.Is(err, tt.want) {
					t.Errorf("Commit: %v, want %v", err, tt.want)
				}
				f.Release()
				x, made := f.Dump()["/runnel/test/names/x"]
				if made != tt.made || (err == nil && x.Mod != int64(rev)) {
					t.Errorf("made %v at %d, Commit says %d", made, x.Mod, rev)
				}
			})
		})
	}
}

// A transaction that makes an object, was given up, and was made again, comes late, when the object has been removed: it does not
// come back.
func TestCommit_late_creation_is_not_made(t *testing.T) {
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		s, tenure := elected(t, f, time.Hour)
		first := true
		f.Inject(func([]store.Write) storetest.Fault {
			if first {
				first = false
				return storetest.FaultDelayed
			}
			return storetest.FaultNone
		})
		made := name("x", uuid.New())
		rev, err := s.Commit(t.Context(), tenure.Fence, []state.Change{made})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Commit(t.Context(), tenure.Fence, []state.Change{{Key: made.Key, Base: rev}}); err != nil {
			t.Fatal(err)
		}
		f.Release()
		if _, there := f.Dump()["/runnel/test/names/x"]; there {
			t.Error("what was removed is there again")
		}
		if _, err := s.Commit(t.Context(), tenure.Fence, []state.Change{name("x", uuid.New())}); err != nil {
			t.Errorf("made once more: %v", err)
		}
	})
}

func TestCommit_is_fenced(t *testing.T) {
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		s, old := elected(t, f, time.Hour)
		f.ExpireLeases()
		counters := &state.Counters{ControllerEpoch: old.Epoch, Revision: state.Revision(f.Dump()["/runnel/test/counters"].Mod)}
		now, won, err := s.Campaign(t.Context(), state.Controller{Incarnation: uuid.New()}, counters, 3*time.Second)
		if err != nil || !won || now.Epoch != old.Epoch+1 {
			t.Fatalf("second election: %+v, %v, %v", now, won, err)
		}
		before := f.Dump()
		for what, fault := range map[string]storetest.Fault{"answered": storetest.FaultNone, "lost": storetest.FaultAfter} {
			f.Inject(func([]store.Write) storetest.Fault { return fault })
			if _, err := s.Commit(t.Context(), old.Fence, []state.Change{name("x", uuid.New())}); !errors.Is(err, store.ErrFenced) {
				t.Errorf("%s: a deposed controller's commit: %v, want ErrFenced", what, err)
			}
		}
		if diff := cmp.Diff(before, f.Dump()); diff != "" {
			t.Errorf("it wrote:\n%s", diff)
		}
		f.Inject(nil)
		if _, err := s.Commit(t.Context(), now.Fence, []state.Change{name("x", uuid.New())}); err != nil {
			t.Errorf("the active controller's commit: %v", err)
		}
	})
}

func TestCommit_conflicts_with_what_changed(t *testing.T) {
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		s, tenure := elected(t, f, time.Hour)
		id := uuid.New()
		rev, err := s.Commit(t.Context(), tenure.Fence, []state.Change{name("x", id)})
		if err != nil {
			t.Fatal(err)
		}
		// A transaction whose first part has come about by another one is not made.
		other := name("y", uuid.New())
		for what, changes := range map[string][]state.Change{
			"exists already":  {name("x", id)},
			"stale":           {{Key: state.NameKey("x"), Object: &state.Name{Name: "x", Topic: id}, Base: rev - 1}},
			"gone":            {{Key: state.NameKey("z"), Base: rev}},
			"one of two only": {other, name("x", uuid.New())},
			"half made by another, and the answer lost":     {name("x", id), other},
			"the other half made by another, and also lost": {other, name("x", id)},
		} {
			f.Inject(func([]store.Write) storetest.Fault {
				if strings.Contains(what, "lost") {
					return storetest.FaultAfter
				}
				return storetest.FaultNone
			})
			if _, err := s.Commit(t.Context(), tenure.Fence, changes); !errors.Is(err, store.ErrConflict) {
				t.Errorf("%s: %v, want ErrConflict", what, err)
			}
		}
		f.Inject(nil)
		if _, err := s.Commit(t.Context(), tenure.Fence, []state.Change{{Key: state.NameKey("x"), Base: rev}}); err != nil {
			t.Errorf("removal: %v", err)
		}
		if _, err := s.Commit(t.Context(), tenure.Fence, make([]state.Change, state.MaxChanges+1)); err == nil {
			t.Error("too many changes were taken")
		}
	})
}

func TestCampaign_has_one_winner(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.FaultNone, storetest.FaultAfter, storetest.FaultBefore} {
		bubble(t, func(t *testing.T, f *storetest.Fake) {
			t.Helper()
			s := store.New(f, "test")
			f.Inject(func([]store.Write) storetest.Fault { return fault })
			me := uuid.New()
			first, won, err := s.Campaign(t.Context(), state.Controller{Incarnation: me}, &state.Counters{}, 3*time.Second)
			if won != (fault != storetest.FaultBefore) {
				t.Fatalf("fault %d: won %v, %v", fault, won, err)
			}
			f.Inject(nil)
			if !won {
				return
			}
			counters := &state.Counters{ControllerEpoch: 1, Revision: state.Revision(f.Dump()["/runnel/test/counters"].Mod)}
			if _, won, err := s.Campaign(t.Context(), state.Controller{Incarnation: uuid.New()}, counters, 3*time.Second); won || err != nil {
				t.Errorf("a second winner: %v, %v", won, err)
			}
			if err := s.Depose(t.Context(), uuid.New()); err != nil || f.Dump()["/runnel/test/controller"].Mod == 0 {
				t.Errorf("another incarnation was deposed: %v", err)
			}
			if err := s.Depose(t.Context(), me); err != nil || f.Dump()["/runnel/test/controller"].Mod != 0 {
				t.Errorf("not deposed: %v", err)
			}
			if err := s.Hold(t.Context(), first); !errors.Is(err, store.ErrFenced) {
				t.Errorf("Hold of a lost tenure: %v", err)
			}
		})
	}
}

// A controller that cannot reach the store gives up before the store gives it up.
func TestHold_gives_up_before_the_lease_ends(t *testing.T) {
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		s, tenure := elected(t, f, 3*time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		result := make(chan error, 1)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer cancel()
		wg.Go(func() { result <- s.Hold(ctx, tenure) })
		time.Sleep(time.Minute)
		if len(result) > 0 {
			t.Fatalf("gave up in good weather: %v", <-result)
		}
		f.SetDown(true)
		start := time.Now()
		if err := <-result; !errors.Is(err, store.ErrFenced) {
			t.Errorf("Hold: %v", err)
		}
		if took := time.Since(start); took > 3*time.Second+750*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

func TestClusterID_is_made_once(t *testing.T) {
	for _, fault := range []storetest.Fault{storetest.FaultNone, storetest.FaultAfter} {
		bubble(t, func(t *testing.T, f *storetest.Fake) {
			t.Helper()
			s := store.New(f, "test")
			if _, err := s.ClusterID(t.Context(), uuid.New(), false, false); !errors.Is(err, store.ErrNoCluster) {
				t.Errorf("without bootstrap: %v", err)
			}
			f.Inject(func([]store.Write) storetest.Fault { return fault })
			first, err := s.ClusterID(t.Context(), uuid.New(), true, false)
			if err != nil {
				t.Fatal(err)
			}
			value := f.Dump()["/runnel/test/counters"].Value
			if o, err := encoding.Unmarshal(state.Key{Kind: state.KindCounters}, value, 1); err != nil || o.(*state.Counters).FeatureLevel != 1 {
				t.Errorf("a new cluster's counters: %+v, %v", o, err)
			}
			for _, bootstrap := range []bool{true, false} {
				if again, err := s.ClusterID(t.Context(), uuid.New(), bootstrap, false); err != nil || again != first {
					t.Errorf("second time: %v, %v; it was %v", again, err, first)
				}
			}
			if other, err := store.New(f, "other").ClusterID(t.Context(), uuid.New(), true, false); err != nil || other == first {
				t.Errorf("another cluster in the same store: %v, %v", other, err)
			}
		})
	}
}

// A wrong cluster.name is the likely reason why there is no cluster: the error says which there are, and in an etcd that is of one
// cluster alone no second one is made.
func TestClusterID_of_another_name(t *testing.T) {
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		ask := func(name string, bootstrap, sole bool) string {
			if _, err := store.New(f, name).ClusterID(t.Context(), uuid.New(), bootstrap, sole); err != nil {
				if !errors.Is(err, store.ErrNoCluster) {
					t.Errorf("%s: %v", name, err)
				}
				return err.Error()
			}
			return ""
		}
		if got := ask("a", false, true); !strings.Contains(got, "--bootstrap") {
			t.Errorf("an empty store: %q", got)
		}
		for _, name := range []string{"a", "a.b", "a1", "b"} {
			if got := ask(name, true, false); got != "" {
				t.Errorf("make %s: %s", name, got)
			}
		}
		if _, err := f.Txn(t.Context(), nil, []store.Write{{Key: "/runnel/a~creations", Value: []byte("1")}}); err != nil {
			t.Fatal(err)
		}
		const all = `named "c", but "a.b", "a", "a1", "b": set cluster.name`
		if got := ask("c", false, false); !strings.Contains(got, all) || !strings.Contains(got, "--bootstrap") {
			t.Errorf("a shared store: %q", got)
		}
		for _, bootstrap := range []bool{false, true} {
			if got := ask("c", bootstrap, true); !strings.Contains(got, all) || strings.Contains(got, "--bootstrap") {
				t.Errorf("a store of its own: %q", got)
			}
		}
		for key := range f.Dump() {
			if strings.HasPrefix(key, "/runnel/c/") {
				t.Errorf("%s was made", key)
			}
		}
		if _, err := store.New(f, "c").Backup(t.Context(), io.Discard); !errors.Is(err, store.ErrNoCluster) || !strings.Contains(err.Error(), all) {
			t.Errorf("backup: %v", err)
		}
	})
}

func TestClusterID_is_not_made_over_what_is_left_of_another(t *testing.T) {
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		s, _ := elected(t, f, time.Hour)
		if _, err := s.ClusterID(t.Context(), uuid.New(), true, false); !errors.Is(err, encoding.ErrUnreadable) {
			t.Errorf("counters without a cluster: %v", err)
		}
	})
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		path := "/runnel/test/" + encoding.Path(state.Key{Kind: state.KindProducerIDs})
		if _, err := f.Txn(t.Context(), nil, []store.Write{{Key: path, Value: []byte("given away")}}); err != nil {
			t.Fatal(err)
		}
		if _, err := store.New(f, "test").ClusterID(t.Context(), uuid.New(), true, false); !errors.Is(err, encoding.ErrUnreadable) {
			t.Errorf("producer ids without a cluster: %v", err)
		}
		if got := string(f.Dump()[path].Value); got != "given away" {
			t.Errorf("producer ids became %q: they would be given away again", got)
		}
	})
}

// Whatever breaks, the picture that Follow tells equals the store in the end, and revisions only rise (OP-15).
func TestFollow_misses_nothing(t *testing.T) {
	for seed := range uint64(200) {
		bubble(t, func(t *testing.T, f *storetest.Fake) {
			t.Helper()
			rng := rand.New(rand.NewPCG(seed, 1))
			s, tenure := elected(t, f, time.Hour)
			told := map[string]string{}
			last := state.Revision(0)
			compactions := 0
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			wg.Go(func() {
				err := s.Follow(ctx, func(rev state.Revision, updates []state.Update) {
					if rev <= last {
						t.Errorf("seed %d: revision %d after %d", seed, rev, last)
					}
					last = rev
					for _, u := range updates {
						path := "/runnel/test/" + encoding.Path(u.Key)
						if u.Object == nil {
							delete(told, path)
							continue
						}
						value, err := encoding.Marshal(u.Object)
						if err != nil {
							t.Error(err)
						}
						told[path] = fmt.Sprint(u.Object.Modified(), string(value))
					}
				})
				if err != nil {
					t.Errorf("seed %d: Follow: %v", seed, err)
				}
			})
			for range 60 {
				key := fmt.Sprintf("n%d", rng.IntN(8))
				switch rng.IntN(10) {
				case 0:
					f.BreakWatches()
				case 1:
					f.SetDown(true)
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Millisecond)
					f.SetDown(false)
				case 2:
					f.Compact()
					compactions++
				case 3:
					time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
				default:
					p := f.Dump()["/runnel/test/names/"+key]
					c := state.Change{Key: state.NameKey(key), Base: state.Revision(p.Mod)}
					if p.Mod == 0 || rng.IntN(2) == 0 {
						c.Object = &state.Name{Name: key, Topic: uuid.New()}
					}
					if _, err := s.Commit(t.Context(), tenure.Fence, []state.Change{c}); err != nil && !errors.Is(err, store.ErrFenced) {
						t.Errorf("seed %d: %v", seed, err)
					}
				}
			}
			time.Sleep(5 * time.Second)
			if n := f.Watches(); n != 1 {
				t.Errorf("seed %d: %d watches", seed, n)
			}
			cancel()
			wg.Wait()
			want := map[string]string{}
			for path, p := range f.Dump() {
				if strings.HasPrefix(path, "/runnel/test/") {
					want[path] = fmt.Sprint(p.Mod, string(p.Value))
				}
			}
			if diff := cmp.Diff(want, told); diff != "" {
				t.Errorf("seed %d: (-store +told):\n%s", seed, diff)
			}
			if n := s.Resyncs(); n > int64(compactions) {
				t.Errorf("seed %d: %d resyncs after %d compactions", seed, n, compactions)
			}
		})
	}
}

// Metadata of a newer version is not skipped.
func TestFollow_ends_at_what_it_cannot_read(t *testing.T) {
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		s := store.New(f, "test")
		if _, err := f.Txn(t.Context(), nil, []store.Write{{Key: "/runnel/test/groups/x", Value: []byte("y")}, {Key: "/runnel/testing/z"}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Follow(t.Context(), func(state.Revision, []state.Update) {}); !errors.Is(err, encoding.ErrUnreadable) || !strings.Contains(err.Error(), "groups/x") {
			t.Errorf("Follow: %v", err)
		}
	})
}

// A listing of many pages is of one revision, and begins anew when that is compacted away under it.
func TestFollow_lists_pages_of_one_revision(t *testing.T) {
	bubble(t, func(t *testing.T, f *storetest.Fake) {
		t.Helper()
		s, tenure := elected(t, f, time.Hour)
		for n := range 25 {
			var changes []state.Change
			for m := range 100 {
				changes = append(changes, name(fmt.Sprintf("n%04d", 100*n+m), uuid.New()))
			}
			if _, err := s.Commit(t.Context(), tenure.Fence, changes); err != nil {
				t.Fatal(err)
			}
		}
		kv := &racing{Fake: f}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var first []state.Update
		err := store.New(kv, "test").Follow(ctx, func(_ state.Revision, updates []state.Update) {
			first = updates
			cancel()
		})
		if err != nil || len(first) != 2502 {
			t.Errorf("%d updates, %v", len(first), err)
		}
		if kv.calls < 4 {
			t.Errorf("%d pages", kv.calls)
		}
		keys := map[state.Key]bool{}
		for _, u := range first {
			keys[u.Key] = true
		}
		if len(keys) != len(first) {
			t.Errorf("%d updates of %d keys: %v", len(first), len(keys), slices.Collect(maps.Keys(keys))[:1])
		}
	})
}

// A racing store is compacted once between two pages.
type racing struct {
	*storetest.Fake

	calls int
}

// Range implements store.KV.
func (r *racing) Range(ctx context.Context, from, to string, limit int, rev int64) (store.Page, error) {
	r.calls++
	if r.calls == 2 {
		if _, err := r.Txn(ctx, nil, []store.Write{{Key: "/elsewhere", Value: []byte("x")}}); err != nil {
			return store.Page{}, err
		}
		r.Compact()
	}
	return r.Fake.Range(ctx, from, to, limit, rev)
}
