package replication

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/runnelmq/runnel/internal/record"
)

var epoch = time.Unix(1, 0)

// lanes adds lanes with bytes to send; those of sync are in sync.
func lanes(s *schedule, now time.Time, sync ...bool) []*lane {
	var out []*lane
	for i, in := range sync {
		l := &lane{number: int64(i + 1), credit: partitionCredit}
		s.add(l)
		s.look(l, standing{}, 1_000_000, in, now)
		out = append(out, l)
	}
	return out
}

func TestSchedule_inSyncGoesRoundBeforeCatchUp(t *testing.T) {
	s := newSchedule(streamCredit)
	lanes(s, epoch, true, false, true)
	var order []int64
	for range 4 {
		l, limit := s.turn()
		if l == nil || limit != turnBytes {
			t.Fatalf("turn: %v, %d", l, limit)
		}
		order = append(order, l.number)
		s.sent(l, limit, l.next+1, l.told)
	}
	if fmt.Sprint(order) != "[1 3 1 3]" {
		t.Errorf("order %v", order)
	}
	if l, limit := s.catchUpTurn(); l == nil || l.number != 2 || limit != turnBytes {
		t.Errorf("catching up: %v, %d", l, limit)
	}
}

func TestSchedule_whoCatchesUpHasLittleOnItsWay(t *testing.T) {
	s := newSchedule(streamCredit)
	ls := lanes(s, epoch, false, false)
	sent := int64(0)
	for {
		l, limit := s.catchUpTurn()
		if l == nil {
			break
		}
		sent += limit
		s.sent(l, limit, l.next+1, l.told)
	}
	if sent != catchUpInFlight {
		t.Errorf("%d bytes on their way", sent)
	}
	s.returned(1, 1000)
	if l, limit := s.catchUpTurn(); l == nil || limit != 1000 {
		t.Errorf("after some came back: %v, %d", l, limit)
	}
	// A member of the ISR is never slowed down by that.
	s.look(ls[0], standing{}, 1_000_000, true, epoch)
	if l, limit := s.turn(); l != ls[0] || limit != turnBytes {
		t.Errorf("in sync now: %v, %d", l, limit)
	}
	if s.lagging != ls[1].unacked {
		t.Errorf("%d bytes count as catching up, want %d", s.lagging, ls[1].unacked)
	}
}

func TestSchedule_oneBatchOverdrawsAndNoMore(t *testing.T) {
	s := newSchedule(100)
	ls := lanes(s, epoch, true, true)
	ls[0].credit, ls[1].credit = 10, 1000
	if l, limit := s.turn(); l != ls[0] || limit != 10 {
		t.Fatalf("%v, %d", l, limit)
	}
	s.sent(ls[0], 50, 1, standing{}) // a batch larger than what was left
	if l, limit := s.turn(); l != ls[1] || limit != 50 {
		t.Fatalf("the other: %v, %d", l, limit)
	}
	s.sent(ls[1], 60, 1, standing{})
	if l, _ := s.turn(); l != nil {
		t.Fatalf("the stream is overdrawn by 10, and %d may send", l.number)
	}
	s.returned(1, 30)
	if l, limit := s.turn(); l != ls[1] || limit != 20 {
		t.Fatalf("lane 1 is overdrawn by 10, lane 2 may send 20: %v, %d", l, limit)
	}
	s.returned(1, 20)
	if l, limit := s.turn(); l != ls[1] || limit != 40 {
		t.Fatalf("%v, %d", l, limit)
	}
}

func TestSchedule_saysWhenCreditRunsOut(t *testing.T) {
	s := newSchedule(100)
	ls := lanes(s, epoch, true, true)
	heard := func() string {
		out := ""
		s.creditChanges(func(l *lane, some bool) { out += fmt.Sprintf("%d:%v ", l.number, some) })
		return out
	}
	if h := heard(); h != "" {
		t.Errorf("at first: %s", h)
	}
	s.sent(ls[0], 100, 1, standing{})
	if h := heard(); h != "1:false 2:false " && h != "2:false 1:false " {
		t.Errorf("the stream's ran out: %q", h)
	}
	s.returned(1, 100)
	if h := heard(); h != "1:true 2:true " && h != "2:true 1:true " {
		t.Errorf("it came back: %q", h)
	}
	ls[0].credit = 5
	s.sent(ls[0], 5, 2, standing{})
	if h := heard(); h != "1:false " {
		t.Errorf("lane 1 ran out: %q", h)
	}
	s.sent(ls[0], 0, 1_000_000, standing{})
	if h := heard(); h != "1:true " {
		t.Errorf("lane 1 has nothing to send: %q", h)
	}
}

func TestSchedule_newsTravelsTogetherAndWithData(t *testing.T) {
	s := newSchedule(streamCredit)
	ls := lanes(s, epoch, true, true, true)
	for i, l := range ls {
		s.look(l, standing{highWatermark: 5}, 1_000_000, true, epoch.Add(time.Duration(i)*time.Millisecond))
	}
	if n := s.dueNews(epoch.Add(progressDelay - 1)); n != nil {
		t.Fatalf("%d before the time", len(n))
	}
	if at, ok := s.newsAt(); !ok || at != epoch.Add(progressDelay) {
		t.Fatalf("due at %v, %v", at, ok)
	}
	s.sent(ls[1], 10, 1, standing{highWatermark: 5})
	n := s.dueNews(epoch.Add(progressDelay))
	if len(n) != 2 || n[0] != ls[0] || n[1] != ls[2] || ls[0].told.highWatermark != 5 {
		t.Fatalf("%d with news", len(n))
	}
	if _, ok := s.newsAt(); ok {
		t.Error("it is told twice")
	}
	// A frame that was read before the news leaves it to be told.
	s.look(ls[0], standing{highWatermark: 9}, 1_000_000, true, epoch)
	s.sent(ls[0], 10, 1, standing{highWatermark: 7})
	if n := s.dueNews(epoch.Add(time.Second)); len(n) != 1 || n[0].told.highWatermark != 9 {
		t.Errorf("%d with news", len(n))
	}
}

func TestSchedule_whatEndedStillGivesItsCreditBack(t *testing.T) {
	s := newSchedule(1000)
	ls := lanes(s, epoch, false)
	s.sent(ls[0], 600, 1, standing{})
	s.look(ls[0], standing{highWatermark: 1}, 1_000_000, false, epoch)
	s.remove(ls[0])
	if _, ok := s.newsAt(); ok || s.catchUp.Len() > 0 {
		t.Error("it is still served")
	}
	s.returned(1, 200)
	if s.credit != 600 || s.lagging != 400 || len(s.lanes) != 1 {
		t.Errorf("credit %d, lagging %d, %d lanes", s.credit, s.lagging, len(s.lanes))
	}
	s.returned(1, 400)
	if s.credit != 1000 || s.lagging != 0 || len(s.lanes) != 0 {
		t.Errorf("credit %d, lagging %d, %d lanes", s.credit, s.lagging, len(s.lanes))
	}
	s.returned(1, 400)
	if s.credit != 1000 {
		t.Errorf("credit %d is more than was given", s.credit)
	}
}

// Whatever happens, nothing is lost of the credit, and who may send is in the
// queue it belongs to.
func TestSchedule_keepsItsBooks(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const granted = 10_000
		s := newSchedule(granted)
		all := map[int64]*lane{}
		out := map[int64]int64{} // by subscription: bytes that have not come back
		now, next := epoch, int64(0)
		var held *lane
		pick := func() *lane {
			if next == 0 {
				return nil
			}
			return all[rapid.Int64Range(1, next).Draw(t, "lane")]
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(*rapid.T) {
				next++
				l := &lane{number: next, credit: 2000}
				all[next] = l
				s.add(l)
			},
			"look": func(t *rapid.T) {
				if l := pick(); l != nil {
					now = now.Add(time.Millisecond)
					s.look(l, standing{highWatermark: record.Offset(rapid.IntRange(0, 5).Draw(t, "hw"))},
						l.next+record.Offset(rapid.IntRange(0, 3).Draw(t, "more")), rapid.Bool().Draw(t, "sync"), now)
				}
			},
			"turn": func(t *rapid.T) {
				l, limit := s.turn()
				if l == nil {
					if l, limit = s.catchUpTurn(); l == nil {
						return
					}
					if held == nil && rapid.Bool().Draw(t, "elsewhere") {
						s.hold(l)
						held = l
						return
					}
				}
				if limit <= 0 || l.reading || l.gone {
					t.Fatalf("lane %+v may send %d", l, limit)
				}
				n := rapid.Int64Range(1, 3000).Draw(t, "bytes")
				out[l.number] += n
				s.sent(l, n, l.next+1, l.news)
			},
			"arrive": func(t *rapid.T) {
				if held == nil {
					return
				}
				s.release(held)
				if !held.gone {
					n := rapid.Int64Range(1, 3000).Draw(t, "bytes")
					out[held.number] += n
					s.sent(held, n, held.next+1, held.news)
				}
				held = nil
			},
			"return": func(t *rapid.T) {
				if l := pick(); l != nil && out[l.number] > 0 {
					n := rapid.Int64Range(1, out[l.number]).Draw(t, "bytes")
					out[l.number] -= n
					s.returned(l.number, n)
				}
			},
			"remove": func(*rapid.T) {
				if l := pick(); l != nil && !l.gone {
					s.remove(l)
				}
			},
			"news": func(t *rapid.T) {
				for _, l := range s.dueNews(now) {
					if l.gone || l.told != l.news {
						t.Fatalf("news of %+v", l)
					}
				}
			},
			"": func(t *rapid.T) {
				var total, lagging int64
				for n, b := range out {
					total += b
					if l := all[n]; !l.inSync {
						lagging += b
					}
				}
				if s.credit != granted-total || s.lagging != lagging {
					t.Fatalf("credit %d, lagging %d; want %d, %d", s.credit, s.lagging, granted-total, lagging)
				}
				for _, l := range s.lanes {
					may := !l.gone && !l.reading && l.next < l.end && l.credit > 0
					if may != (l.queue != nil) || may && (l.queue == &s.inSync) != l.inSync {
						t.Fatalf("lane %+v is in the wrong queue", l)
					}
					if l.news != l.told && l.due == nil && !l.gone {
						t.Fatalf("lane %+v has news nobody tells", l)
					}
				}
			},
		})
	})
}

func TestBucket(t *testing.T) {
	b := newBucket(1 << 20)
	if d := b.wait(epoch); d != 0 {
		t.Fatalf("at first: %s", d)
	}
	b.take(epoch, 1<<20) // of a tenth of that
	d := b.wait(epoch)
	if d < 850*time.Millisecond || d > 950*time.Millisecond {
		t.Errorf("overdrawn by nine tenths of a second: %s", d)
	}
	if d := b.wait(epoch.Add(d + time.Millisecond)); d != 0 {
		t.Errorf("afterwards: %s", d)
	}
	if d := newBucket(0).wait(epoch); d != 0 {
		t.Errorf("without a bound: %s", d)
	}
}
