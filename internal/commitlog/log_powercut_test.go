package commitlog

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// soakSeeds is how many histories the power-cut sweep takes;
// RUNNEL_SOAK_SEEDS asks for more.
func soakSeeds(t *testing.T, normal int) int {
	t.Helper()
	env := os.Getenv("RUNNEL_SOAK_SEEDS")
	if env == "" {
		return normal
	}
	n, err := strconv.Atoi(env)
	if err != nil {
		t.Fatalf("RUNNEL_SOAK_SEEDS: %v", err)
	}
	return n
}

// The power fails before every sync of a random history, with random luck for
// what was not synced. What was acknowledged as durable is there afterwards,
// nothing else is, and the log says of itself what its batches say.
func TestLog_powerCutAtEverySyncPoint(t *testing.T) {
	for seed := range soakSeeds(t, 300) {
		if err := powerCutHistory(t, uint64(seed)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// A powerCut checks one history.
type powerCut struct {
	h     *harness
	rng   *rand.Rand
	err   error // the first violation
	stage string
	cuts  int
}

func powerCutHistory(t *testing.T, seed uint64) error {
	t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	cfg := testConfig()
	cfg.SegmentBytes = []int64{300, 1000, 4000}[rng.IntN(3)]
	cfg.RetentionBytes = []int64{-1, 1500}[rng.IntN(2)]
	cfg.DeleteRetention = time.Minute
	p := &powerCut{h: newHarness(cfg), rng: rng, stage: "open"}
	p.h.producers = rng.IntN(2) == 0
	h := p.h
	h.keys = []int{2, 9}[rng.IntN(2)]
	h.fault.Before(vfs.OpSyncPoints, func(op vfs.Op, name string) {
		if p.err == nil {
			p.cuts++
			p.err = p.cut(fmt.Sprintf("before %s of %s in %s", op, name, p.stage))
		}
	})
	h.mustOpen(t, false)
	h.startEpoch(t)
	for range 12 + rng.IntN(12) {
		p.step(t)
		if p.err == nil && rng.IntN(3) == 0 {
			p.err = p.cut("after " + p.stage)
		}
		if p.err != nil {
			return p.err
		}
		h.check(t)
	}
	p.stage = "close"
	must(t, h.log.Close())
	if p.cuts == 0 {
		return fmt.Errorf("no sync point in the whole history")
	}
	return p.err
}

// step does one random operation.
func (p *powerCut) step(t *testing.T) {
	t.Helper()
	h, rng := p.h, p.rng
	offset := func() record.Offset { return h.m.start + record.Offset(rng.Int64N(int64(h.m.end-h.m.start)+1)) }
	op := rng.IntN(23)
	p.stage = fmt.Sprintf("operation %d", op)
	switch op {
	case 0, 1, 2, 3, 4, 5, 6:
		times := make([]int64, 1+rng.IntN(4))
		for i := range times {
			times[i] = h.nowMs + rng.Int64N(100)
		}
		h.append(t, 8+rng.IntN(250), record.CreateTime, times...)
	case 7, 8:
		h.appendFrames(t, 40, 1+rng.IntN(6), record.Offset(rng.IntN(2)))
	case 9, 10:
		h.sync(t)
	case 11:
		must(t, h.log.Checkpoint())
	case 12:
		must(t, h.log.Roll())
	case 13, 14:
		h.truncate(t, offset())
	case 15:
		h.deleteBefore(t, offset())
	case 16:
		before := h.m.clone()
		h.before = &before
		h.nowMs += rng.Int64N(50 * 60 * 1000)
		h.retain(t, offset())
		h.done()
	case 17:
		h.startEpoch(t)
	case 18:
		h.reopen(t, rng.IntN(2) == 0)
	case 19, 20, 21:
		if rng.IntN(2) == 0 {
			must(t, h.log.Roll())
		}
		h.clean(t, []int64{100, 1 << 20}[rng.IntN(2)])
	default:
		if rng.IntN(3) == 0 {
			h.reset(t, record.Offset(rng.IntN(1000)))
		}
	}
}

// cut takes what a power cut leaves now, and opens it, now and then with a
// second power cut in the middle of the recovery.
func (p *powerCut) cut(when string) error {
	opts := vfs.CrashOptions{KeepUnsyncedPercent: p.rng.IntN(101), TornSectors: p.rng.IntN(2) == 0}
	if p.rng.IntN(4) == 0 {
		opts.KeepUnsyncedPercent = []int{0, 100}[p.rng.IntN(2)]
	}
	disk := p.h.mem.CrashClone(p.rng, opts)
	if p.rng.IntN(4) == 0 {
		second, err := p.cutRecovery(disk, opts)
		if err != nil {
			return fmt.Errorf("%s, %+v: %w", when, opts, err)
		}
		disk, when = second, when+", and again in the recovery"
	}
	if err := p.recovered(disk); err != nil {
		return fmt.Errorf("%s, %+v: %w", when, opts, err)
	}
	return nil
}

// cutRecovery opens the log on disk and returns what a power cut at one of the
// sync points leaves.
func (p *powerCut) cutRecovery(disk *vfs.Mem, opts vfs.CrashOptions) (*vfs.Mem, error) {
	fault := vfs.NewFault(disk)
	at, seen := p.rng.IntN(6), 0
	second := disk
	fault.Before(vfs.OpSyncPoints, func(vfs.Op, string) {
		if seen == at {
			second = disk.CrashClone(p.rng, opts)
		}
		seen++
	})
	_, _, err := OpenLog(fault, testDir, p.h.config(), OpenOptions{Now: p.h.now})
	if second == disk {
		disk.Kill()
	}
	return second, err
}

// recovered opens the log on disk and judges it.
func (p *powerCut) recovered(disk *vfs.Mem) error {
	h := p.h
	l, rec, err := OpenLog(disk, testDir, h.config(), OpenOptions{Now: h.now})
	if err != nil {
		return err
	}
	if rec.Suspicion != NotSuspect || len(rec.Damage) > 0 {
		return fmt.Errorf("a power cut looks like a loss: %+v", rec)
	}
	m, err := p.judge(l)
	if err != nil {
		return fmt.Errorf("%w\nrecovery: %+v", err, rec)
	}
	if err := checkIndexes(l, h.cfg.IndexIntervalBytes); err != nil {
		return fmt.Errorf("%w\nrecovery: %+v", err, rec)
	}
	if l.Durable() != l.End() {
		return fmt.Errorf("recovery left [%d,%d) unsynced", l.Durable(), l.End())
	}
	return p.goOn(disk, l, m)
}

// judge compares what a log recovered with what was there before and after
// the operation that was cut off, and returns the model of it.
func (p *powerCut) judge(l *Log) (model, error) {
	allowed := []model{p.h.m}
	if p.h.before != nil {
		allowed = append(allowed, *p.h.before)
	}
	durable := p.h.m.durable
	for _, m := range allowed {
		durable = min(durable, m.durable)
	}
	got, err := readAll(l, l.Start(), l.End())
	if err != nil {
		return model{}, err
	}
	var errs []error
	for _, m := range allowed {
		m = m.clone()
		m.deleteBefore(l.Start())
		prefix := 0
		for prefix < len(m.batches) && m.batches[prefix].last < l.End() {
			prefix++
		}
		want := m
		want.batches = m.batches[:prefix]
		for n := len(want.heads); n > 0 && want.heads[n-1].last >= l.End(); n = len(want.heads) {
			want.heads = want.heads[:n-1]
		}
		want.end, want.durable = l.End(), l.End()
		switch {
		case l.Start() != m.start, l.Start() < p.minStart():
			errs = append(errs, fmt.Errorf("log start %d, want %d", l.Start(), m.start))
		case l.End() < min(durable, m.durable):
			errs = append(errs, fmt.Errorf("log ends at %d, durable was %d", l.End(), m.durable))
		case l.End() > m.end:
			errs = append(errs, fmt.Errorf("log ends at %d, never was there more than %d", l.End(), m.end))
		case !bytes.Equal(got, want.from(l.Start(), l.End())):
			errs = append(errs, fmt.Errorf("log [%d,%d) has other bytes than were appended", l.Start(), l.End()))
		default:
			err := compare(l, &want)
			if err == nil {
				return want, nil
			}
			errs = append(errs, err)
		}
	}
	return model{}, fmt.Errorf("matches neither state: %v", errs)
}

// minStart is the log start that was acknowledged.
func (p *powerCut) minStart() record.Offset {
	if p.h.before != nil {
		return min(p.h.before.start, p.h.m.start)
	}
	return p.h.m.start
}

// goOn uses the recovered log: it takes appends, and a clean stop and start
// and one more power cut leave them.
func (p *powerCut) goOn(disk *vfs.Mem, l *Log, m model) error {
	h := *p.h
	h.builder = record.NewBuilder(record.NewCodec(), record.Limits{})
	h.seq += 1_000_000
	h.builder.Reset()
	if err := h.builder.Add(nil, fmt.Appendf(nil, "%d", h.seq), nil, h.nowMs); err != nil {
		return err
	}
	b, err := h.builder.Finish(record.CompressionNone, 0)
	if err != nil {
		return err
	}
	epoch := max(l.LastEpoch(), h.m.epoch) + 1
	if err := l.StartEpoch(epoch); err != nil {
		return err
	}
	got, err := l.Append(&b, epoch, record.CreateTime)
	if err != nil {
		return err
	}
	m.append(modelBatch{
		base: got.Base, last: got.Last, epoch: epoch, appendTime: got.AppendTimeMs,
		frame: bytes.Clone(b.Seal(got.Base, epoch, got.AppendTimeMs, record.CreateTime)),
	})
	if p.rng.IntN(2) == 0 {
		if err := l.Sync(); err != nil {
			return err
		}
		disk = disk.CrashClone(p.rng, vfs.CrashOptions{KeepUnsyncedPercent: p.rng.IntN(101), TornSectors: true})
		l, _, err = OpenLog(disk, testDir, h.config(), OpenOptions{Now: h.now})
	} else {
		if err := l.Close(); err != nil {
			return err
		}
		var rec Recovery
		l, rec, err = OpenLog(disk, testDir, h.config(), OpenOptions{Now: h.now, Clean: true})
		if err == nil && (!rec.Clean || rec.BytesRead > 3000) {
			return fmt.Errorf("a clean start read %d bytes: %+v", rec.BytesRead, rec)
		}
	}
	if err != nil {
		return err
	}
	if err := compare(l, &m); err != nil {
		return fmt.Errorf("after going on: %w", err)
	}
	return l.Close()
}

// Entries of a segment that was cut are right again by every check of their
// own, at the same places, and must not come back.
func TestTruncateTo_staleIndexEntriesStayAway(t *testing.T) {
	cfg := testConfig()
	cfg.SegmentBytes = 1 << 20
	h := newHarness(cfg)
	h.mustOpen(t, false)
	h.startEpoch(t)
	h.append(t, 100, record.CreateTime, h.nowMs)
	for range 20 {
		h.append(t, 100, record.CreateTime, h.nowMs+1_000_000)
	}
	h.reopen(t, false) // which makes the index durable
	h.truncate(t, 1)
	for range 20 {
		h.append(t, 100, record.CreateTime, h.nowMs)
	}
	h.sync(t)
	must(t, h.log.Checkpoint())
	disk := h.mem.CrashClone(rand.New(rand.NewPCG(1, 1)), vfs.CrashOptions{})
	l, _, err := OpenLog(disk, testDir, cfg, OpenOptions{Now: h.now})
	must(t, err)
	must(t, compare(l, &h.m))
	must(t, checkIndexes(l, cfg.IndexIntervalBytes))
}
