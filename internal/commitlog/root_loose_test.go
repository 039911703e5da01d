package commitlog_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Whether a log can have lost what counted in a power cut depends on what counted
// then, not on what counts at the next start.
func TestRoot_powerCutWhereTheModeChanged(t *testing.T) {
	sync, async := commitlog.Config{Flush: commitlog.FlushSync}, commitlog.Config{}
	to := func(cfg commitlog.Config) func(*commitlog.Log) error {
		return func(l *commitlog.Log) error { return l.SetConfig(cfg) }
	}
	add := func(l *commitlog.Log) error { return appendValue(l, "a") }
	for name, c := range map[string]struct {
		first commitlog.Config
		do    []func(*commitlog.Log) error
		want  commitlog.Suspicion
	}{
		"always durable":                {sync, []func(*commitlog.Log) error{add}, commitlog.NotSuspect},
		"never until the start":         {async, []func(*commitlog.Log) error{add}, commitlog.SuspectOther},
		"not any more, and now again":   {sync, []func(*commitlog.Log) error{to(async), add}, commitlog.SuspectOther},
		"durable, without a checkpoint": {sync, []func(*commitlog.Log) error{add, (*commitlog.Log).Sync}, commitlog.NotSuspect},
		"from now on":                   {async, []func(*commitlog.Log) error{add, to(sync), add}, commitlog.NotSuspect},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			root := openRoot(t, mem, rootOptions())
			log, _, err := root.OpenPartition(topicA, "a", 0, c.first, true)
			if err != nil {
				t.Fatal(err)
			}
			for _, do := range c.do {
				rootMust(t, do(log))
			}
			for _, cut := range []int{1, 2} { // what is not lifted stays
				mem = powerCut(mem, 1, 0)
				boot := []string{"", "boot-2", "boot-3"}[cut]
				root = openRoot(t, mem, rootOptions(inBoot(boot)))
				log, rec, err := root.OpenPartition(topicA, "a", 0, sync, false)
				if err != nil {
					t.Fatal(err)
				}
				if rec.Suspicion != c.want || log.Suspicion() != c.want {
					t.Errorf("at start %d: %v, want %v", cut, rec.Suspicion, c.want)
				}
			}
		})
	}
}

// So it is where the mode changed after the directory was made, and before it was
// opened.
func TestRoot_modeChangedBetweenMakingAndOpening(t *testing.T) {
	sync, async := commitlog.Config{Flush: commitlog.FlushSync}, commitlog.Config{}
	mem := vfs.NewMem()
	root := openRoot(t, mem, rootOptions())
	id := commitlog.PartitionID{Topic: topicA}
	rootMust(t, root.MakePartitions([]commitlog.PartitionSpec{{ID: id, Topic: "a", Config: sync, Create: true}}))
	log, _, err := root.OpenPartition(topicA, "a", 0, async, true)
	rootMust(t, err, appendValue(log, "a"))
	_, rec, err := openRoot(t, powerCut(mem, 1, 0), rootOptions(inBoot("boot-2"))).OpenPartition(topicA, "a", 0, sync, false)
	rootMust(t, err)
	if rec.Suspicion != commitlog.SuspectOther {
		t.Errorf("%s, want %s", rec.Suspicion, commitlog.SuspectOther)
	}
}

// A log that is opened to count what is durable says so at once: the next power cut
// may come before the next checkpoint.
func TestRoot_modeChangedWhileItWasAway(t *testing.T) {
	sync, async := commitlog.Config{Flush: commitlog.FlushSync}, commitlog.Config{}
	mem := vfs.NewMem()
	root := openRoot(t, mem, rootOptions())
	log, _, err := root.OpenPartition(topicA, "a", 0, async, true)
	rootMust(t, err, appendValue(log, "a"))
	closeRoot(t, root, 1)
	log, _, err = openRoot(t, mem, rootOptions()).OpenPartition(topicA, "a", 0, sync, false)
	rootMust(t, err, appendValue(log, "a"), log.Sync())
	for _, cfg := range []commitlog.Config{sync, async} {
		log, rec, err := openRoot(t, powerCut(mem, 1, 0), rootOptions(inBoot("boot-2"))).OpenPartition(topicA, "a", 0, cfg, false)
		rootMust(t, err)
		if rec.Suspicion != commitlog.NotSuspect || log.End() != 2 {
			t.Errorf("%s: %s: %+v", cfg.Flush, rec.Suspicion, rec)
		}
	}
}

// Nor does it depend on a checkpoint that was never durable, when the disk failed.
func TestRoot_youngWhereTheDiskFailed(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  commitlog.Config
		want commitlog.Suspicion
	}{
		"sync":  {commitlog.Config{Flush: commitlog.FlushSync}, commitlog.NotSuspect},
		"async": {commitlog.Config{}, commitlog.SuspectOther},
	} {
		t.Run(name, func(t *testing.T) {
			mem := vfs.NewMem()
			fault := vfs.NewFault(mem)
			root := openRoot(t, fault, rootOptions())
			log, _, err := root.OpenPartition(topicA, "a", 0, c.cfg, true)
			rootMust(t, err, appendValue(log, "a"), log.Sync())
			fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "checkpoint", Err: syscall.EIO})
			if err := log.Checkpoint(); !errors.Is(err, commitlog.ErrFailed) {
				t.Fatal(err)
			}
			_ = root.Close(1)
			for _, boot := range []string{"boot-1", "boot-2"} {
				log, rec, err := openRoot(t, powerCut(mem, 1, 0), rootOptions(inBoot(boot))).OpenPartition(topicA, "a", 0, c.cfg, false)
				rootMust(t, err)
				if rec.Suspicion != c.want || log.End() != 1 || len(rec.Events) > 0 {
					t.Errorf("%s: %s, want %s: %+v", boot, rec.Suspicion, c.want, rec)
				}
			}
		})
	}
}
