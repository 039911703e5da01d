package sim

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/runnelmq/runnel/e2e/history"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// Bounds of a run.
const (
	faultTime   = 30 * time.Second
	settleTime  = 60 * time.Second
	defaultRuns = 2
)

// seeds returns which runs to make.
func seeds(t *testing.T) []uint64 {
	t.Helper()
	if s := os.Getenv("RUNNEL_SIM_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("RUNNEL_SIM_SEED: %v", err)
		}
		return []uint64{n}
	}
	n := defaultRuns
	if s := os.Getenv("RUNNEL_SOAK_SEEDS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("RUNNEL_SOAK_SEEDS: %v", err)
		}
	}
	first := uint64(1)
	if s := os.Getenv("RUNNEL_SOAK_FROM"); s != "" {
		var err error
		if first, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatalf("RUNNEL_SOAK_FROM: %v", err)
		}
	}
	out := make([]uint64, n)
	for i := range out {
		out[i] = first + uint64(i)
	}
	return out
}

// Whole clusters under faults lose nothing, say nothing false, and come back.
func TestClusters(t *testing.T) {
	for _, seed := range seeds(t) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			start := time.Now()
			synctest.Test(t, func(t *testing.T) { run(t, seed) })
			t.Logf("took %v", time.Since(start))
		})
	}
}

// run is one cluster's life.
func run(t *testing.T, seed uint64) {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 2))
	s := shape{controllers: 1 + 2*rng.IntN(2), brokers: 3 + rng.IntN(3), lag: time.Duration(2+rng.IntN(9)) * time.Second}
	s.latency = []time.Duration{0, 3 * time.Millisecond, 25 * time.Millisecond}[rng.IntN(3)]
	c := newCluster(t, seed, s)
	c.logs.note("seed %d: %+v", seed, s)
	defer c.report()
	l := c.newLoad()
	if !c.begin(l, rng) {
		l.end()
		c.close()
		return
	}
	sched := newSchedule(c)
	for end := time.Now().Add(faultTime); time.Now().Before(end); {
		c.pass()
		sched.step(time.Now())
	}
	c.logs.note("healing")
	sched.healAll()
	c.settle(sched, l)
	t.Logf("%+v, faults: %v", s, sched.counts)
	c.finish(l)
}

// finish reads all, ends all, and judges what is left.
func (c *cluster) finish(l *load) {
	c.readAll(l)
	if c.group != nil {
		c.group.finish(c.rng)
		// The group notes that its last member is gone once its session is over, and every copy has that before brokers end.
		time.Sleep(2 * longestSession)
	}
	for _, tp := range c.topics {
		r := tp.history.Check()
		for _, a := range r.Anomalies {
			c.judge.complain(string(a.Kind), "%s: %s", tp.name, a.Text)
		}
		c.t.Logf("%s: %v", tp.name, r)
	}
	c.close()
	c.compare()
}

// report tells what was violated, and keeps the journal for who wants it.
func (c *cluster) report() {
	c.t.Helper()
	for _, line := range c.judge.found() {
		c.t.Errorf("VIOLATED %s", line)
	}
	if path := os.Getenv("RUNNEL_SIM_LOG_FILE"); path != "" {
		if err := os.WriteFile(path, []byte(c.logs.text()), 0o600); err != nil {
			c.t.Error(err)
		}
	}
}

// pass lets time go by, until nothing moves, and looks.
func (c *cluster) pass() picture {
	time.Sleep(time.Duration(1 + c.rng.Int64N(int64(maxTick))))
	synctest.Wait()
	return c.judge.look()
}

// begin makes the topics and starts the clients.
func (c *cluster) begin(l *load, rng *rand.Rand) bool {
	c.topics = []*topic{
		{name: "async", partitions: 2, history: history.New(history.Options{})},
		{name: "sync", partitions: 1, history: history.New(history.Options{})},
		{name: "trimmed", partitions: 1, history: history.New(history.Options{})},
	}
	for i, configs := range []map[string]string{{"min.insync.replicas": "2"}, {"min.insync.replicas": "1"}, {"min.insync.replicas": "2", "segment.bytes": "1048576"}} {
		if err := c.create(c.topics[i], 30*time.Second, 3, configs); err != nil {
			c.judge.complain("I19", "a topic could not be created: %v", err)
			return false
		}
	}
	for _, t := range c.topics {
		for n := range t.partitions {
			l.write(t, n, rand.New(rand.NewPCG(rng.Uint64(), 3)))
			l.write(t, n, rand.New(rand.NewPCG(rng.Uint64(), 3)))
			r := l.read(t, n, rand.New(rand.NewPCG(rng.Uint64(), 4)))
			l.ask(t, n, rand.New(rand.NewPCG(rng.Uint64(), 6)))
			if t.name == "trimmed" {
				t.trimmed = append(t.trimmed, r)
				l.trim(r, rand.New(rand.NewPCG(rng.Uint64(), 7)))
			}
		}
	}
	l.alter(c.topics[0], rand.New(rand.NewPCG(rng.Uint64(), 8)), "2", "3")
	l.alter(c.topics[1], rand.New(rand.NewPCG(rng.Uint64(), 12)), "1", "1", "2") // and so whether a disk counts
	l.produce(c.topics[0], 1, 50*time.Millisecond)
	l.produce(c.topics[2], 0, 80*time.Millisecond)
	through := rand.New(rand.NewPCG(rng.Uint64(), 9))
	l.pump(c.topics[0], 0, 40*time.Millisecond, func() grpc.ClientConnInterface { return c.conns[through.IntN(len(c.conns))] })
	c.group = l.join("readers", 3, rand.New(rand.NewPCG(rng.Uint64(), 11)), c.topics[0], c.topics[1])
	l.churn(rand.New(rand.NewPCG(rng.Uint64(), 5)))
	return true
}

// settle waits until all is well, a bound after the last fault.
func (c *cluster) settle(sched *schedule, l *load) {
	deadline := time.Now().Add(settleTime)
	half := deadline.Add(-settleTime / 2)
	// Under load, and for longer when something is not yet healed: a broker that can't
	// hand over takes half a minute to stop, and is started again only here.
	for time.Now().Before(half) || (len(sched.heals) > 0 && time.Now().Before(deadline)) {
		pic := c.pass()
		sched.healAll()
		if len(sched.heals) == 0 && c.judge.serving(&pic) {
			break
		}
	}
	l.end()
	why := "?"
	for time.Now().Before(deadline) && why != "" {
		pic := c.pass()
		sched.healAll()
		why = c.judge.unsettled(&pic)
	}
	if why != "" || len(sched.heals) > 0 {
		c.judge.complain("I19", "%v after the last fault: %s %v", settleTime, why, sched.heals)
	}
	c.logs.note("settled")
}

// readAll reads every partition from its beginning to its end.
func (c *cluster) readAll(l *load) {
	for _, t := range c.topics {
		for n := range t.partitions {
			r := l.newReader(t, n)
			if t.trimmed != nil {
				r = t.trimmed[n] // it goes on where it is
			}
			var errs error
			for range 10 {
				errs = nil
				for _, conn := range c.conns {
					hw, err := r.whole(conn)
					if err == nil && r.next >= hw {
						errs = nil
						break
					}
					errs = errors.Join(errs, err)
				}
				if errs == nil {
					break
				}
				time.Sleep(time.Second) // connections come back
			}
			if errs != nil {
				c.judge.complain("I19", "%s/%d can't be read: %v", t.name, n, errs)
			}
		}
	}
}

// compare reads the logs from all disks: they must be equal, byte by byte, but
// for where they begin.
func (c *cluster) compare() {
	type copyOf struct {
		host string
		data []byte
	}
	first := map[commitlog.PartitionID]copyOf{}
	topics := c.picture().topics
	for _, h := range c.brokers {
		logs, err := readLogs(h.proc.disk.mem, "data", h.id)
		if err != nil {
			c.judge.complain("I18", "%s: %v", h.name, err)
			continue
		}
		for id, data := range logs {
			if topics[id.Topic] == nil {
				c.judge.complain("I19", "%s: an orphan, %v", h.name, id)
			}
			if f, ok := first[id]; !ok {
				first[id] = copyOf{h.name, data}
			} else if !bytes.HasSuffix(f.data, data) && !bytes.HasSuffix(data, f.data) {
				c.judge.complain("I11", "%v: %s has %d bytes, %s has %d others", id, f.host, len(f.data), h.name, len(data))
			}
		}
	}
}

func readLogs(fs vfs.FS, dir string, id int32) (map[commitlog.PartitionID][]byte, error) {
	root, err := commitlog.OpenRoot(fs, dir, commitlog.RootOptions{BrokerID: id, BootID: func() (string, error) { return "after", nil }})
	if err != nil {
		return nil, err
	}
	out := map[commitlog.PartitionID][]byte{}
	for _, p := range root.Partitions() {
		log, _, err := root.OpenPartition(p.ID.Topic, p.Topic, p.ID.Number, commitlog.Config{}, false)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", filepath.Join(dir, p.ID.String()), err)
		}
		data, err := readLog(log)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", log.Dir(), err)
		}
		out[p.ID] = data
	}
	return out, root.Close(0)
}

func readLog(log *commitlog.Log) ([]byte, error) {
	var all []byte
	buf := make([]byte, 4<<20)
	for at := log.Start(); at < log.End(); {
		n, err := log.Read(buf, at, log.End())
		if err != nil {
			return nil, err
		}
		all = append(all, buf[:n]...)
		for b := buf[:n]; len(b) > 0; {
			f, v := record.ParseFrame(b, int64(len(b)), len(buf))
			if v != record.OK {
				return nil, fmt.Errorf("at offset %d: verdict %v", at, v)
			}
			at, b = f.Header.NextOffset(), b[f.Size:]
		}
	}
	return all, nil
}
