package commitlog_test

import (
	"errors"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// What a start says of the process before it.
func TestOpenRoot_judgesTheLastEnd(t *testing.T) {
	distrust := func(o *commitlog.RootOptions) { o.DistrustPageCache = true }
	otherDirectory := func(t *testing.T, m *vfs.Mem) {
		t.Helper()
		other := vfs.NewMem()
		closeRoot(t, openRoot(t, other, rootOptions()), 7)
		marker, err := vfs.ReadFile(other, rootDir+"/runnel.clean")
		rootMust(t, err, vfs.WriteFileAtomic(m, rootDir+"/runnel.clean", marker))
	}
	damage := func(name string) func(t *testing.T, m *vfs.Mem) {
		return func(t *testing.T, m *vfs.Mem) {
			t.Helper()
			rewrite(t, m, rootDir+"/"+name, func(b []byte) []byte { b[3] ^= 1; return b })
		}
	}
	failed := func(t *testing.T, m *vfs.Mem) {
		t.Helper()
		rootMust(t, vfs.WriteFileAtomic(m, rootDir+"/runnel.failed", []byte("anything")))
	}
	tests := map[string]struct {
		clean    bool // the last one was closed
		between  func(*testing.T, *vfs.Mem)
		opts     commitlog.RootOptions
		want     commitlog.Start // Clean, BrokerEpoch, SameBoot
		why      string
		problems int
	}{
		"closed":                     {clean: true, opts: rootOptions(), want: commitlog.Start{Clean: true, BrokerEpoch: 7, SameBoot: true}},
		"closed, then a reboot":      {clean: true, opts: rootOptions(inBoot("boot-2")), want: commitlog.Start{Clean: true, BrokerEpoch: 7}},
		"killed":                     {opts: rootOptions(), want: commitlog.Start{SameBoot: true}, why: "not shut down in order"},
		"killed, then a reboot":      {opts: rootOptions(inBoot("boot-2")), why: "restarted"},
		"killed, cache not trusted":  {opts: rootOptions(distrust), why: "trust.page.cache"},
		"closed, cache not trusted":  {clean: true, opts: rootOptions(distrust), want: commitlog.Start{Clean: true, BrokerEpoch: 7}},
		"killed, boot not known":     {opts: rootOptions(inBoot("")), why: "does not say"},
		"another directory's marker": {between: otherDirectory, opts: rootOptions(inBoot("boot-2")), why: "restarted"},
		"a damaged marker": {
			clean: true, between: damage("runnel.clean"), opts: rootOptions(),
			want: commitlog.Start{SameBoot: true}, why: "not shut down", problems: 1,
		},
		"a failed disk":              {between: failed, opts: rootOptions(), why: "disk failed"},
		"a failed disk, yet closed?": {clean: true, between: failed, opts: rootOptions(), why: "disk failed"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			r := openRoot(t, m, rootOptions())
			if test.clean {
				closeRoot(t, r, 7)
			}
			m.Kill()
			if test.between != nil {
				test.between(t, m)
			}
			got := openRoot(t, m, test.opts).Start()
			want := test.want
			if got.Fresh || got.Clean != want.Clean || got.BrokerEpoch != want.BrokerEpoch || got.SameBoot != want.SameBoot {
				t.Errorf("start %+v, want %+v", got, want)
			}
			if (test.why == "") != (got.Why == "") || !strings.Contains(got.Why, test.why) {
				t.Errorf("why %q, want %q in it", got.Why, test.why)
			}
			if len(got.Problems) != test.problems {
				t.Errorf("problems %v, want %d", got.Problems, test.problems)
			}
			for _, p := range got.Problems {
				if !errors.Is(p, commitlog.ErrDamaged) || !strings.Contains(p.Error(), rootDir+"/runnel.clean") {
					t.Errorf("problem %v does not name the file", p)
				}
			}
		})
	}
}

func TestOpenRoot_unknownBootIsAProblemNotAnError(t *testing.T) {
	m := vfs.NewMem()
	broken := func(o *commitlog.RootOptions) { o.BootID = func() (string, error) { return "", errDisk } }
	r := openRoot(t, m, rootOptions(broken))
	if p := r.Start().Problems; len(p) != 1 || !errors.Is(p[0], errDisk) {
		t.Errorf("problems %v", p)
	}
	m.Kill()
	if openRoot(t, m, rootOptions()).Start().SameBoot {
		t.Error("an unknown boot is taken for the same")
	}
}

// The marker must not outlive the start that it was for: a second crash would
// find it.
func TestOpenRoot_takesTheMarkerAwayDurably(t *testing.T) {
	m := vfs.NewMem()
	closeRoot(t, openRoot(t, m, rootOptions()), 7)
	openRoot(t, m, rootOptions())
	for seed := range uint64(20) {
		if s := openRoot(t, powerCut(m, seed, 50), rootOptions(inBoot("boot-2"))).Start(); s.Trusted() {
			t.Fatalf("after a power cut the start is %+v", s)
		}
	}
}

func TestRoot_Close_marker(t *testing.T) {
	t.Run("is durable", func(t *testing.T) {
		m := vfs.NewMem()
		r := openRoot(t, m, rootOptions())
		log, _ := openPartition(t, r, topicA, 0, true)
		mustAppend(t, log, "a", "b")
		closeRoot(t, r, 3)
		r = openRoot(t, powerCut(m, 1, 0), rootOptions(inBoot("boot-2")))
		log, rec := openPartition(t, r, topicA, 0, false)
		if got := mustRead(t, log); !r.Start().Clean || !rec.Clean || !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("start %+v, recovery %+v, records %q", r.Start(), rec, got)
		}
	})
	t.Run("keeps the epoch when there was no session", func(t *testing.T) {
		m := vfs.NewMem()
		closeRoot(t, openRoot(t, m, rootOptions()), 7)
		closeRoot(t, openRoot(t, m, rootOptions()), 0)
		if s := openRoot(t, m, rootOptions()).Start(); !s.Clean || s.BrokerEpoch != 7 {
			t.Errorf("start %+v, want clean of epoch 7", s)
		}
	})
	t.Run("is not written when something is not synced", func(t *testing.T) {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r := openRoot(t, fault, rootOptions())
		log, _ := openPartition(t, r, topicA, 0, true)
		mustAppend(t, log, "a")
		fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "*.log", Err: errDisk})
		if err := r.Close(7); !errors.Is(err, errDisk) || !errors.Is(err, commitlog.ErrFailed) {
			t.Errorf("Close: %v, want what went wrong", err)
		}
		r = openRoot(t, m, rootOptions())
		if s := r.Start(); s.Trusted() || !strings.Contains(s.Why, errDisk.Error()) {
			t.Errorf("start %+v, want one that trusts nothing and says what failed", s)
		}
	})
	t.Run("is not written when a log could not be closed for lack of room", func(t *testing.T) {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r := openRoot(t, fault, rootOptions())
		openPartition(t, r, topicA, 0, true)
		log, _ := openPartition(t, r, topicB, 0, true)
		mustAppend(t, log, "a")
		fault.Inject(vfs.Rule{Ops: vfs.OpCreate, Path: "leader-epochs*", Err: syscall.ENOSPC})
		if err := r.Close(7); !errors.Is(err, syscall.ENOSPC) || errors.Is(err, commitlog.ErrFailed) {
			t.Errorf("Close: %v, want ENOSPC alone", err)
		}
		if s := openRoot(t, m, rootOptions()).Start(); s.Clean || !s.SameBoot {
			t.Errorf("start %+v, want one of the same boot", s)
		}
	})
	t.Run("does not speak for a log that could not be closed before", func(t *testing.T) {
		m := vfs.NewMem()
		fault := vfs.NewFault(m)
		r := openRoot(t, fault, rootOptions())
		openPartition(t, r, topicA, 0, true)
		log, _ := openPartition(t, r, topicB, 0, true)
		mustAppend(t, log, "a")
		fault.Inject(vfs.Rule{Ops: vfs.OpCreate, Path: "leader-epochs*", Err: syscall.ENOSPC})
		b := commitlog.PartitionID{Topic: topicB}
		if err := r.ClosePartition(b); !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("ClosePartition: %v, want ENOSPC", err)
		}
		closeRoot(t, r, 7)
		r = openRoot(t, m, rootOptions())
		if s := r.StartOf(b); !r.Start().Clean || s.Clean || !s.SameBoot {
			t.Errorf("start %+v, of the log %+v", r.Start(), s)
		}
	})
	t.Run("is written once", func(t *testing.T) {
		r := openRoot(t, vfs.NewMem(), rootOptions())
		closeRoot(t, r, 7)
		if err := r.Close(8); !errors.Is(err, commitlog.ErrClosed) {
			t.Errorf("second Close: %v, want ErrClosed", err)
		}
	})
}

// A partition that was opened, and has caught up since, does not depend any more on
// how an earlier process ended.
func TestRoot_Opened_endsThePast(t *testing.T) {
	for _, told := range []bool{false, true} {
		m := vfs.NewMem()
		r := openRoot(t, m, rootOptions(inBoot("1")))
		openPartition(t, r, topicA, 0, true)
		m.Kill()
		r = openRoot(t, m, rootOptions(inBoot("2"))) // the power was cut
		log, rec := openPartition(t, r, topicA, 0, false)
		if rec.Suspicion == commitlog.NotSuspect {
			t.Fatal("it is not suspect")
		}
		if told {
			if err := r.Opened(); err != nil {
				t.Fatal(err)
			}
		}
		if err := log.SetSuspicion(commitlog.NotSuspect); err != nil { // it has caught up
			t.Fatal(err)
		}
		m.Kill()
		r = openRoot(t, m, rootOptions(inBoot("2")))
		if _, rec = openPartition(t, r, topicA, 0, false); (rec.Suspicion == commitlog.NotSuspect) != told {
			t.Errorf("killed after a power cut, opened %v: %s", told, rec.Suspicion)
		}
	}
}

// The story of a partition that nobody opened: what was known of the process
// that wrote it last must not be forgotten over starts that know nothing of
// it.
func TestRoot_unopenedPartitionsKeepTheirPast(t *testing.T) {
	type step struct {
		boot  string
		open  []uuid.UUID // topics whose partition 0 is opened
		crash bool
	}
	tests := map[string]struct {
		steps []step
		boot  string // of the last start
		// What it says of each.
		a, b commitlog.Start
	}{
		"clean all the way": {
			steps: []step{{boot: "1"}, {boot: "2"}}, boot: "3",
			a: commitlog.Start{Clean: true, BrokerEpoch: 7}, b: commitlog.Start{Clean: true, BrokerEpoch: 7},
		},
		"killed, one opened, closed": {
			steps: []step{{boot: "1", crash: true}, {boot: "1", open: []uuid.UUID{topicA}}}, boot: "1",
			a: commitlog.Start{Clean: true, BrokerEpoch: 7, SameBoot: true}, b: commitlog.Start{SameBoot: true},
		},
		"killed, one opened, closed, reboot": {
			steps: []step{{boot: "1", crash: true}, {boot: "1", open: []uuid.UUID{topicA}}}, boot: "2",
			a: commitlog.Start{Clean: true, BrokerEpoch: 7}, b: commitlog.Start{},
		},
		"power cut, one opened, closed": {
			steps: []step{{boot: "1", crash: true}, {boot: "2", open: []uuid.UUID{topicA}}}, boot: "2",
			a: commitlog.Start{Clean: true, BrokerEpoch: 7, SameBoot: true}, b: commitlog.Start{},
		},
		"power cut, none opened, killed": {
			steps: []step{{boot: "1", crash: true}, {boot: "2", crash: true}}, boot: "2",
			a: commitlog.Start{}, b: commitlog.Start{},
		},
		"power cut, both opened, closed": {
			steps: []step{{boot: "1", crash: true}, {boot: "2", open: []uuid.UUID{topicA, topicB}}}, boot: "3",
			a: commitlog.Start{Clean: true, BrokerEpoch: 7}, b: commitlog.Start{Clean: true, BrokerEpoch: 7},
		},
		"power cut, none opened, closed twice": {
			steps: []step{{boot: "1", crash: true}, {boot: "2"}, {boot: "2"}}, boot: "2",
			a: commitlog.Start{}, b: commitlog.Start{},
		},
		"power cut, then opened late": {
			steps: []step{{boot: "1", crash: true}, {boot: "2"}, {boot: "2", open: []uuid.UUID{topicB}}}, boot: "2",
			a: commitlog.Start{}, b: commitlog.Start{Clean: true, BrokerEpoch: 7, SameBoot: true},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			r := openRoot(t, m, rootOptions(inBoot("1")))
			openPartition(t, r, topicA, 0, true)
			openPartition(t, r, topicB, 0, true)
			for i, s := range test.steps {
				if i > 0 {
					r = openRoot(t, m, rootOptions(inBoot(s.boot)))
					for _, topic := range s.open {
						openPartition(t, r, topic, 0, false)
					}
				}
				if s.crash {
					m.Kill()
				} else {
					closeRoot(t, r, 7)
				}
			}
			r = openRoot(t, m, rootOptions(inBoot(test.boot)))
			for topic, want := range map[uuid.UUID]commitlog.Start{topicA: test.a, topicB: test.b} {
				got := r.StartOf(commitlog.PartitionID{Topic: topic})
				if got.Clean != want.Clean || got.SameBoot != want.SameBoot || got.BrokerEpoch != want.BrokerEpoch {
					t.Errorf("of %.1s: %+v, want %+v", topic, got, want)
				}
				if !got.Trusted() && got.Why == "" {
					t.Errorf("of %.1s: it is not said why", topic)
				}
			}
		})
	}
}

// Suspicion is put into the log itself, so that it outlives what it came from.
func TestRoot_OpenPartition_makesSuspect(t *testing.T) {
	sync := commitlog.Config{Flush: commitlog.FlushSync}
	tests := map[string]struct {
		boot       string
		first, cfg commitlog.Config
		want       commitlog.Suspicion
	}{
		"the same boot":                         {"boot-1", commitlog.Config{}, commitlog.Config{}, commitlog.NotSuspect},
		"another boot":                          {"boot-2", commitlog.Config{}, commitlog.Config{}, commitlog.SuspectOther},
		"another boot, flush=sync":              {"boot-2", sync, sync, commitlog.NotSuspect},
		"another boot, flush=sync only by then": {"boot-2", commitlog.Config{}, sync, commitlog.SuspectOther},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := vfs.NewMem()
			r := openRoot(t, m, rootOptions())
			log, _, err := r.OpenPartition(topicA, "topic-a", 0, test.first, true)
			rootMust(t, err)
			mustAppend(t, log, "a")
			m.Kill()
			r = openRoot(t, m, rootOptions(inBoot(test.boot)))
			log, rec, err := r.OpenPartition(topicA, "topic-a", 0, test.cfg, false)
			rootMust(t, err)
			if rec.Suspicion != test.want || log.Suspicion() != test.want || rec.Clean {
				t.Errorf("recovery %+v, log %s, want %s", rec, log.Suspicion(), test.want)
			}
			if got := mustRead(t, log); test.boot == "boot-1" && !slices.Equal(got, []string{"a"}) {
				t.Errorf("records %q", got)
			}
			// A crash right after it forgets nothing, nor does a clean end.
			for _, end := range []func() *vfs.Mem{
				func() *vfs.Mem { return powerCut(m, 1, 0) },
				func() *vfs.Mem { closeRoot(t, r, 7); return m },
			} {
				again := openRoot(t, end(), rootOptions(inBoot(test.boot)))
				log, rec, err := again.OpenPartition(topicA, "topic-a", 0, test.cfg, false)
				rootMust(t, err)
				if rec.Suspicion != test.want || log.Suspicion() != test.want {
					t.Errorf("opened again: %+v, log %s, want %s", rec, log.Suspicion(), test.want)
				}
			}
		})
	}
}

func TestRoot_OpenPartition_newOnesAreNotSuspect(t *testing.T) {
	m := vfs.NewMem()
	openRoot(t, m, rootOptions())
	m.Kill()
	r := openRoot(t, m, rootOptions(inBoot("boot-2")))
	if _, rec := openPartition(t, r, topicA, 0, true); rec.Suspicion != commitlog.NotSuspect {
		t.Errorf("a new partition is suspect: %s", rec.Suspicion)
	}
}

func TestOpenRoot_damagedListTrustsNothing(t *testing.T) {
	m := vfs.NewMem()
	r := openRoot(t, m, rootOptions())
	openPartition(t, r, topicA, 0, true)
	openPartition(t, r, topicB, 0, true)
	m.Kill()
	closeRoot(t, openRoot(t, m, rootOptions()), 7)
	rewrite(t, m, rootDir+"/runnel.unverified", func(b []byte) []byte { b[5] ^= 1; return b })
	for range 2 { // and the next start neither
		r = openRoot(t, m, rootOptions())
		for _, topic := range []uuid.UUID{topicA, topicB} {
			if s := r.StartOf(commitlog.PartitionID{Topic: topic}); s.Trusted() {
				t.Errorf("%+v", s)
			}
		}
		closeRoot(t, r, 7)
	}
}
