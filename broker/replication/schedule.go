package replication

import (
	"container/list"
	"time"

	"github.com/runnelmq/runnel/internal/record"
)

// A schedule decides what a leader's stream sends next. It is pure and belongs
// to the stream's sender.
//
// The order is: news of partitions that no data frame carried in time; in-sync
// partitions, a turn each; then those that catch up. Control messages come
// before all of it and need no schedule.
type schedule struct {
	credit  int64 // of the stream; negative when the last batch overdrew it
	granted int64 // what credit began with
	lanes   map[int64]*lane
	inSync  list.List // of *lane: may send now, in turn
	catchUp list.List // of *lane: as above, behind them
	// lagging is what lanes that catch up have sent and the follower has not
	// appended.
	lagging int64
	news    list.List // of *lane, by the time their news is due
	// appended are bytes that came to partitions since somebody last looked, in
	// all; missed are those of them that came to partitions that catch up.
	appended, missed int64

	// touched are lanes whose credit, or need of it, may have changed; crossed
	// says that all may be concerned, because the stream's has.
	touched []*lane
	crossed bool
}

// A lane is one subscription in the schedule.
type lane struct {
	number int64
	sub    *subscription

	next record.Offset // of what is to be sent next
	end  record.Offset // there is something to send below it
	// news is what the follower should know, told what it does.
	news, told standing

	credit  int64
	unacked int64 // bytes sent whose credit has not come back
	inSync  bool
	// reading: the next bytes are being read elsewhere; nothing else may be
	// sent meanwhile.
	reading bool
	// gone: it ended. The lane stays until its credit has come back.
	gone bool
	// stuck: an earlier one could not be sent something, which may come yet.
	stuck bool
	// credited is what the partition believes of the credit.
	credited bool
	// fed is what the partition was fed when it was last looked at, if it was.
	fed    int64
	looked bool

	size int // of the next buffer

	at    *list.Element // in queue, or nil
	queue *list.List
	due   *list.Element // in the schedule's news, or nil
	dueAt time.Time
}

// A standing is what a follower is told of a partition beside its bytes.
type standing struct {
	highWatermark, logStart record.Offset
}

const firstRead = 16 << 10

func newSchedule(credit int64) *schedule {
	return &schedule{credit: credit, granted: credit, lanes: map[int64]*lane{}}
}

// add begins a lane. What its follower knows is what its accepted answer said.
func (s *schedule) add(l *lane) {
	l.credited, l.size = true, firstRead
	l.news = l.told
	s.lanes[l.number] = l
}

// remove ends a lane.
func (s *schedule) remove(l *lane) {
	l.gone = true
	s.place(l)
	s.calm(l)
	s.forget(l)
}

func (s *schedule) forget(l *lane) {
	if l.gone && l.unacked <= 0 {
		delete(s.lanes, l.number)
	}
}

// look takes what the partition says of a lane now.
func (s *schedule) look(l *lane, now standing, end record.Offset, inSync bool, at time.Time) {
	if l.gone {
		return
	}
	l.end = max(end, l.end)
	if inSync != l.inSync {
		l.inSync = inSync
		if inSync {
			s.lagging -= l.unacked
		} else {
			s.lagging += l.unacked
		}
	}
	l.news = now
	if l.news != l.told && l.due == nil {
		l.dueAt = at.Add(progressDelay)
		l.due = s.news.PushBack(l)
	}
	s.place(l)
}

// grow takes how many bytes a lane's partition was fed, of which those do not
// count that came before the lane.
func (s *schedule) grow(l *lane, fed int64, inSync bool) {
	if n := fed - l.fed; n > 0 && l.looked {
		s.appended += n
		if !inSync {
			s.missed += n
		}
	}
	l.fed, l.looked = fed, true
}

// returned takes credit back that came for a subscription.
func (s *schedule) returned(number, bytes int64) {
	s.spend(-bytes)
	l := s.lanes[number]
	if l == nil {
		return
	}
	bytes = min(bytes, l.unacked)
	l.credit += bytes
	l.unacked -= bytes
	if !l.inSync {
		s.lagging -= bytes
	}
	s.place(l)
	s.forget(l)
}

// spend takes bytes of the stream's credit; negative ones come back.
func (s *schedule) spend(bytes int64) {
	had := s.credit > 0
	s.credit = min(s.credit-bytes, s.granted)
	if had != (s.credit > 0) {
		s.crossed = true
	}
}

// sent notes a data frame of a lane: the bytes up to next, and what it told.
func (s *schedule) sent(l *lane, bytes int64, next record.Offset, told standing) {
	s.spend(bytes)
	l.credit -= bytes
	l.unacked += bytes
	if !l.inSync {
		s.lagging += bytes
	}
	l.next, l.end = next, max(l.end, next)
	l.reading = false
	s.tell(l, told)
	s.requeue(l)
}

// tell notes what the follower was told.
func (s *schedule) tell(l *lane, told standing) {
	l.told = told
	// What was read is newer than what was looked at before.
	l.news = standing{max(l.news.highWatermark, told.highWatermark), max(l.news.logStart, told.logStart)}
	if l.news == l.told {
		s.calm(l)
	}
}

func (s *schedule) calm(l *lane) {
	if l.due != nil {
		s.news.Remove(l.due)
		l.due = nil
	}
}

// drained notes that there was nothing to read after all.
func (s *schedule) drained(l *lane) {
	l.reading, l.end = false, l.next
	s.place(l)
}

// requeue puts a lane behind the others.
func (s *schedule) requeue(l *lane) {
	if l.at != nil {
		l.queue.Remove(l.at)
		l.at, l.queue = nil, nil
	}
	s.place(l)
}

// place puts a lane into the queue it belongs to, if any, and leaves it where it
// is there.
func (s *schedule) place(l *lane) {
	s.touched = append(s.touched, l)
	var want *list.List
	switch {
	case l.gone || l.reading || l.next >= l.end || l.credit <= 0:
	case l.inSync:
		want = &s.inSync
	default:
		want = &s.catchUp
	}
	if l.queue == want {
		return
	}
	if l.at != nil {
		l.queue.Remove(l.at)
	}
	l.queue, l.at = want, nil
	if want != nil {
		l.at = want.PushBack(l)
	}
}

// dueNews returns the lanes with news when the first of it is due: all of them,
// since they travel together.
func (s *schedule) dueNews(now time.Time) []*lane {
	first := s.news.Front()
	if first == nil || laneOf(first).dueAt.After(now) {
		return nil
	}
	out := make([]*lane, 0, s.news.Len())
	for e := first; e != nil; e = e.Next() {
		out = append(out, laneOf(e))
	}
	for _, l := range out {
		s.calm(l)
		l.told = l.news
	}
	return out
}

// newsAt returns when news is due; ok is false when there is none.
func (s *schedule) newsAt() (at time.Time, ok bool) {
	if first := s.news.Front(); first != nil {
		return laneOf(first).dueAt, true
	}
	return time.Time{}, false
}

// turn returns the in-sync lane whose turn it is, and how much it may send;
// nil when none may.
func (s *schedule) turn() (l *lane, limit int64) {
	front := s.inSync.Front()
	if front == nil || s.credit <= 0 {
		return nil, 0
	}
	l = laneOf(front)
	return l, min(turnBytes, l.credit, s.credit)
}

// catchUpTurn is turn for those that catch up.
func (s *schedule) catchUpTurn() (l *lane, limit int64) {
	front := s.catchUp.Front()
	room := catchUpInFlight - s.lagging
	if front == nil || s.credit <= 0 || room <= 0 {
		return nil, 0
	}
	l = laneOf(front)
	return l, min(turnBytes, l.credit, s.credit, room)
}

// hold takes a lane out of its queue while its next bytes are read elsewhere.
func (s *schedule) hold(l *lane) {
	l.reading = true
	s.place(l)
}

// release is for a lane whose bytes were read elsewhere and are not sent.
func (s *schedule) release(l *lane) {
	l.reading = false
	s.place(l)
}

// creditChanges yields the lanes whose partitions should hear that there is, or
// is no longer, credit for the bytes they hold.
func (s *schedule) creditChanges(yield func(l *lane, some bool)) {
	judge := func(l *lane) {
		some := l.credit > 0 && s.credit > 0 || l.next >= l.end
		if !l.gone && some != l.credited {
			l.credited = some
			yield(l, some)
		}
	}
	if s.crossed {
		for _, l := range s.lanes {
			judge(l)
		}
	} else {
		for _, l := range s.touched {
			judge(l)
		}
	}
	clear(s.touched)
	s.touched, s.crossed = s.touched[:0], false
}

func laneOf(e *list.Element) *lane {
	l, _ := e.Value.(*lane)
	return l
}
