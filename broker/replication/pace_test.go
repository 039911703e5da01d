package replication

import (
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/vfs"
)

func at(d time.Duration) time.Time { return epoch.Add(d) }

const ms = time.Millisecond

func TestPace_restsInProportion(t *testing.T) {
	for _, c := range []struct {
		name  string
		share int
		busy  bool
		took  time.Duration
		want  time.Duration
	}{
		{"a quarter of the time", 25, true, 10 * ms, 30 * ms},
		{"half of the time", 50, true, 10 * ms, 10 * ms},
		{"all of the time", 100, true, 10 * ms, 0},
		{"nobody writes", 25, false, 10 * ms, 0},
		{"a follower that was stuck", 25, true, time.Minute, 3 * roundMax},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pace{share: c.share, judged: epoch}
			if d := p.wait(epoch, c.busy); d != 0 {
				t.Fatalf("it waits %s before it begins", d)
			}
			p.begin(epoch, c.busy)
			p.sent(1000)
			p.appendedAll(at(c.took))
			if d := p.wait(at(c.took), c.busy); d != c.want {
				t.Errorf("a rest of %s, want %s", d, c.want)
			}
			if d := p.wait(at(c.took+c.want), c.busy); d != 0 {
				t.Errorf("%s more after the rest", d)
			}
		})
	}
}

func TestPace_aRoundIsSmall(t *testing.T) {
	p := pace{share: 25, judged: epoch}
	if n := p.begin(epoch, true); n != roundBytes {
		t.Fatalf("the first piece may be %d bytes", n)
	}
	p.sent(roundBytes - 100)
	if n := p.begin(at(ms), true); n != 100 || p.wait(at(ms), true) != 0 {
		t.Errorf("then %d more, after %s", n, p.wait(at(ms), true))
	}
	p.sent(5000) // a batch goes whole
	if d := p.wait(at(2*ms), true); d != roundMax-2*ms {
		t.Errorf("the next round waits %s for this one", d)
	}
	if n := p.begin(at(2*ms), false); n != catchUpInFlight || p.wait(at(2*ms), false) != 0 {
		t.Errorf("while nobody writes: %d bytes, after %s", n, p.wait(at(2*ms), false))
	}
	// What the follower does not finish keeps nobody waiting for long.
	if d := p.wait(at(roundMax), true); d != 0 {
		t.Errorf("a round that is not over holds up the next one: %s", d)
	}
	if n := p.begin(at(roundMax), true); n != roundBytes {
		t.Errorf("the next one may send %d", n)
	}
}

func TestPace_whoLosesGroundIsGivenNoRest(t *testing.T) {
	p := pace{share: 25, judged: epoch}
	from := epoch
	for i, second := range []struct {
		sent, appended int64 // bytes
		rest           time.Duration
	}{
		{10, 9, 30 * ms},
		{10, 10, 30 * ms}, // what comes of it is seen after it
		{39, 10, 0},       // with rests it would have been 9
		{44, 10, 0},
		{10, 0, 30 * ms},
	} {
		p.judge(from.Add(-ms)) // too early
		p.judge(from)
		p.begin(from, true)
		p.sent(second.sent)
		p.appended(second.appended)
		p.appendedAll(from.Add(10 * ms))
		if d := p.wait(from.Add(10*ms), true); d != second.rest {
			t.Errorf("second %d: a rest of %s, want %s", i, d, second.rest)
		}
		from = from.Add(gainEvery)
	}
}

func TestSchedule_countsWhatIsAppended(t *testing.T) {
	s := newSchedule(streamCredit)
	ls := lanes(s, epoch, true, false)
	s.grow(ls[0], 3_000_000, true) // what they were fed before does not count
	s.grow(ls[1], 2_000_000, false)
	s.grow(ls[0], 3_000_007, true)
	s.grow(ls[1], 2_000_005, false)
	s.grow(ls[1], 2_000_005, false)
	if s.appended != 12 || s.missed != 5 {
		t.Errorf("%d bytes were appended, %d of them to who catches up: want 12, 5", s.appended, s.missed)
	}
}

// writes is what clients write while somebody catches up.
type writes struct {
	to    int32 // the partition
	bytes int
	every time.Duration // 0: nothing
}

// catchUp lets broker 3 come back to 8 MB of partition 0, with a disk that takes
// 5 ms for each write. It returns how long it takes until that is in sync.
func catchUp(t *testing.T, share int, beside writes) time.Duration {
	t.Helper()
	var took time.Duration
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		w.cfg = Config{CatchUpShare: share}
		for _, id := range []int32{1, 2, 3} {
			w.start(id, newDisk())
		}
		defer w.end()
		w.net.isolate(3, 1, 2)
		id := w.topic(async, 2, 2, 1, 2, 3)
		for n := range int32(2) {
			w.change(id, n, func(p *controllerv1.PartitionRecord) { p.Isr = []int32{1, 2} })
		}
		synctest.Wait()
		for range 160 {
			w.nodes[1].append(id, 0, 1, 50_000)
			synctest.Wait()
		}
		time.Sleep(busyFor)
		w.nodes[3].fault.Before(vfs.OpWrite, func(vfs.Op, string) { time.Sleep(5 * time.Millisecond) })
		start := time.Now()
		w.net.heal()
		next := start
		for len(w.isr(id, 0)) < 3 {
			if now := time.Now(); beside.every > 0 && !now.Before(next) {
				_, committed := w.nodes[1].append(id, beside.to, 1, beside.bytes)
				w.within(50*time.Millisecond, "who is in sync is not slowed down", w.done(committed))
				next = now.Add(beside.every)
			}
			time.Sleep(5 * time.Millisecond)
			if time.Since(start) > time.Minute {
				t.Fatal("it never catches up")
			}
		}
		took = time.Since(start)
		w.same(id, 0)
	})
	return took
}

func TestCatchUp_restsWhileClientsWrite(t *testing.T) {
	some := writes{to: 1, bytes: 100, every: 100 * time.Millisecond}
	idle, busy, all := catchUp(t, 25, writes{}), catchUp(t, 25, some), catchUp(t, 100, some)
	t.Logf("nobody writes: %s; clients write: %s, without rests %s", idle, busy, all)
	if busy < 3*idle || busy < 3*all {
		t.Errorf("it took %s while clients wrote; %s while nobody did, %s without rests", busy, idle, all)
	}
}

// It is sent fewer records than clients write, which are much smaller.
func TestCatchUp_goesOnRestingBesideSmallRecords(t *testing.T) {
	small := writes{to: 0, bytes: 100, every: 10 * time.Millisecond}
	took, all := catchUp(t, 25, small), catchUp(t, 100, small)
	t.Logf("it took %s, without rests %s", took, all)
	if took < 3*all {
		t.Errorf("it took %s, without rests %s: none were made", took, all)
	}
}

// With its rests it would be sent less than what clients write.
func TestCatchUp_isDoneBesideAFullLoad(t *testing.T) {
	took := catchUp(t, 25, writes{to: 0, bytes: 50_000, every: 15 * time.Millisecond})
	t.Logf("it took %s", took)
}
