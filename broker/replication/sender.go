package replication

import (
	"context"
	"errors"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/mem"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// A sender sends what the schedule says. All of it belongs to one goroutine, but
// for jobs, from which the fetcher takes.
type sender struct {
	stream *leaderStream
	sched  *schedule
	spare  incoming

	beats  uint64
	beatAt time.Time // of the next heartbeat

	// jobs holds at most one read for a follower that catches up: its disk may
	// be slow, and nobody else is to wait for it.
	jobs     chan job
	fetching bool
	ready    *frame // came from the fetcher
	throttle time.Duration
	pace     pace

	msg wire.Message
}

// A job is one read.
type job struct {
	lane  *lane
	sub   *subscription
	from  record.Offset
	size  int
	limit int64
}

// A frame is what a job found.
type frame struct {
	job

	buf  *[]byte
	read partition.ReplicaRead
	err  error
}

func newSender(s *leaderStream) *sender {
	return &sender{stream: s, sched: newSchedule(s.credit), jobs: make(chan job, 1), pace: pace{share: s.srv.cfg.CatchUpShare, judged: time.Now()}}
}

// run sends until ctx is done or sending fails.
func (q *sender) run(ctx context.Context) error {
	if err := q.stream.ss.Send(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Opened{Opened: &replicav1.Opened{}}}); err != nil {
		return err
	}
	q.beatAt = time.Now()
	timer := time.NewTimer(heartbeatEvery)
	defer timer.Stop()
	for {
		now := time.Now()
		if err := q.listen(now); err != nil {
			return err
		}
		more, err := q.step(now)
		if err != nil {
			return err
		}
		q.sched.creditChanges(q.credit)
		if more {
			continue
		}
		timer.Reset(q.rest(time.Now()))
		select {
		case <-q.stream.inbox.wake:
		case <-timer.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// listen takes in what others told, and sends what goes before all else.
func (q *sender) listen(now time.Time) error {
	in := q.stream.inbox.take(q.spare)
	for _, r := range in.returned {
		q.sched.returned(r.number, r.bytes)
	}
	for _, c := range in.controls {
		if c.msg != nil {
			if err := q.stream.ss.Send(c.msg); err != nil {
				return err
			}
		}
		if c.begin != nil {
			c.begin.stuck = q.stream.srv.stuck.has(q.place(c.begin))
			q.sched.add(c.begin)
			if err := q.look(c.begin, now); err != nil {
				return err
			}
		}
		if l := q.sched.lanes[c.end]; l != nil {
			q.sched.remove(l)
		}
	}
	for _, sub := range in.poked {
		sub.poked.Store(false) // before looking: what comes now pokes again
		if l := q.sched.lanes[sub.number]; l != nil && !l.gone {
			if err := q.look(l, now); err != nil {
				return err
			}
		}
	}
	if in.fetched != nil {
		q.fetching, q.ready = false, in.fetched
	}
	q.spare = in.emptied()
	q.keepPace(now)
	if now.Before(q.beatAt) {
		return nil
	}
	q.beats++
	q.beatAt = now.Add(heartbeatEvery)
	q.stream.beat(q.beats, now)
	return q.stream.ss.Send(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Heartbeat{Heartbeat: &replicav1.Heartbeat{Number: q.beats}}})
}

// keepPace tells the pace what has become of those that catch up.
func (q *sender) keepPace(now time.Time) {
	if q.sched.appended > 0 {
		q.stream.srv.wrote(now)
	}
	q.pace.appended(q.sched.missed)
	q.sched.appended, q.sched.missed = 0, 0
	if q.sched.lagging <= 0 && !q.fetching && q.ready == nil {
		q.pace.appendedAll(now)
	}
	q.pace.judge(now)
}

// look asks the partition how a subscription stands.
func (q *sender) look(l *lane, now time.Time) error {
	p, ok := l.sub.part.ReplicaProgress(q.stream.follower, l.number)
	if !ok {
		return q.end(l)
	}
	q.sched.grow(l, p.Fed, p.InSync)
	q.sched.look(l, standing{p.HighWatermark, p.LogStart}, p.LogEnd, p.InSync, now)
	return nil
}

// end tells the follower that a subscription ended.
func (q *sender) end(l *lane) error {
	q.sched.remove(l)
	if q.stream.forget(l.number) == nil {
		return nil // the follower gave it up meanwhile
	}
	l.sub.part.FollowerGone(q.stream.follower, l.number)
	return q.stream.ss.Send(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Ended{
		Ended: &replicav1.Ended{Subscription: l.number, LeaderEpoch: int64(l.sub.part.State().Epoch)},
	}})
}

// step does the one thing that comes next, and reports whether it did any.
func (q *sender) step(now time.Time) (did bool, err error) {
	if news := q.sched.dueNews(now); len(news) > 0 {
		return true, q.tell(news)
	}
	if l, limit := q.sched.turn(); l != nil {
		f := q.stream.read(job{lane: l, sub: l.sub, from: l.next, size: l.size, limit: limit})
		return true, q.send(&f)
	}
	if f := q.ready; f != nil {
		q.ready = nil
		q.sched.release(f.lane)
		if f.lane.gone {
			q.stream.free(f)
			return true, nil
		}
		q.stream.srv.catchUp.take(now, int64(f.read.N))
		return true, q.send(f)
	}
	q.throttle = 0
	if q.fetching {
		return false, nil
	}
	if l, limit := q.sched.catchUpTurn(); l != nil {
		busy := q.stream.srv.busy(now)
		if q.throttle = max(q.stream.srv.catchUp.wait(now), q.pace.wait(now, busy)); q.throttle > 0 {
			return false, nil
		}
		limit = min(limit, q.pace.begin(now, busy))
		q.fetching = true
		q.sched.hold(l)
		q.jobs <- job{lane: l, sub: l.sub, from: l.next, size: l.size, limit: limit} // there is room: one at a time
	}
	return false, nil
}

// rest returns how long there is nothing to do unless the inbox says so.
func (q *sender) rest(now time.Time) time.Duration {
	d := q.beatAt.Sub(now)
	if at, ok := q.sched.newsAt(); ok {
		d = min(d, at.Sub(now))
	}
	if q.throttle > 0 {
		d = min(d, q.throttle)
	}
	return max(d, 0)
}

// fetch reads for those that catch up until ctx is done.
func (q *sender) fetch(ctx context.Context) {
	for {
		select {
		case j := <-q.jobs:
			f := q.stream.read(j)
			q.stream.inbox.fetched(&f)
		case <-ctx.Done():
			return
		}
	}
}

// credit tells a partition whether its follower takes more.
func (q *sender) credit(l *lane, some bool) {
	if !some {
		q.stream.srv.deps.Metrics.stalls.Inc()
	}
	l.sub.part.Credit(q.stream.follower, l.number, some)
}

// newsFrame bounds the partitions of one progress frame.
const newsFrame = 1000

// tell sends news of partitions.
func (q *sender) tell(news []*lane) error {
	for len(news) > 0 {
		n := min(len(news), newsFrame)
		p := &replicav1.Progress{Partitions: make([]*replicav1.PartitionProgress, 0, n)}
		for _, l := range news[:n] {
			p.Partitions = append(p.Partitions, &replicav1.PartitionProgress{
				Subscription: l.number, HighWatermark: int64(l.told.highWatermark), LogStartOffset: int64(l.told.logStart),
			})
		}
		if err := q.stream.ss.Send(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Progress{Progress: p}}); err != nil {
			return err
		}
		news = news[n:]
	}
	return nil
}

// send sends what was read.
func (q *sender) send(f *frame) error {
	l := f.lane
	switch {
	case f.err != nil:
		if !errors.Is(f.err, partition.ErrNotSubscribed) {
			q.stuck(l, f)
		}
		return q.end(l)
	case f.read.N == 0 || f.read.Next <= f.from:
		q.stream.free(f)
		q.sched.drained(l)
		return nil
	}
	*f.buf = (*f.buf)[:f.read.N]
	d := wire.ReplicaData{
		TopicID: l.sub.topicID, Partition: l.sub.part.Number(), LeaderEpoch: int64(l.sub.epoch), Subscription: l.number,
		StartOffset: int64(f.from), NextOffset: int64(f.read.Next), PrevEpoch: int64(f.read.PrevEpoch), HasPrevEpoch: f.read.HasPrevEpoch,
		HighWatermark: int64(f.read.HighWatermark), LogStart: int64(f.read.LogStart),
	}
	d.Encode(&q.msg, q.stream.srv.deps.Pool, mem.NewBuffer(f.buf, q.stream.srv.deps.Pool))
	if err := q.stream.ss.SendMsg(&q.msg); err != nil {
		return err
	}
	q.stream.srv.deps.Metrics.sentBytes.Add(float64(f.read.N))
	if !l.inSync {
		q.pace.sent(int64(f.read.N))
	}
	if l.stuck {
		q.passed(l, f.read.Next)
	}
	q.sched.sent(l, int64(f.read.N), f.read.Next, standing{f.read.HighWatermark, f.read.LogStart})
	switch { // the next buffer is as large as it seems to be worth
	case f.read.N > l.size/2:
		l.size = min(2*l.size, turnBytes)
	case f.read.N < l.size/8:
		l.size = max(l.size/2, firstRead)
	}
	return nil
}

// place names a lane's follower and partition.
func (q *sender) place(l *lane) stuckPlace {
	return stuckPlace{q.stream.follower, place{l.sub.part.Topic().ID, l.sub.part.Number()}}
}

// stuck tells that a follower can't be sent what comes next. It subscribes again
// within a second, for as long as it takes, and so this is told once in a while.
func (q *sender) stuck(l *lane, f *frame) {
	level := zerolog.DebugLevel
	tell, before := q.stream.srv.stuck.again(q.place(l), f.from, time.Now())
	if tell {
		level = zerolog.WarnLevel
	}
	q.stream.srv.deps.Log.WithLevel(level).Stringer("partition_id", l.sub.part).Int32("follower", int32(q.stream.follower)).
		Int64("offset", int64(f.from)).Int("times_before", before).Err(f.err).
		Msg("a follower can't be sent what comes next: it subscribes again until it can; see cluster health")
}

// passed tells, once, that a follower got past what it could not be sent.
func (q *sender) passed(l *lane, next record.Offset) {
	since, over := q.stream.srv.stuck.passed(q.place(l), next)
	if over {
		l.stuck = false
		q.stream.srv.deps.Log.Info().Stringer("partition_id", l.sub.part).Int32("follower", int32(q.stream.follower)).
			Dur("after", time.Since(since)).Msg("a follower was sent what it could not be sent before")
	}
}

// read does a job. The frame owns its buffer unless there is an error.
func (s *leaderStream) read(j job) frame {
	f := frame{job: j}
	size := int(min(int64(j.size), j.limit))
	for range 2 {
		f.buf = s.srv.deps.Pool.Get(size)
		f.read, f.err = j.sub.part.ReadReplica(*f.buf, s.follower, j.sub.number, j.from)
		if f.err == nil {
			return f
		}
		s.free(&f)
		short, ok := errors.AsType[*commitlog.ShortBufferError](f.err)
		if !ok {
			return f
		}
		size = short.Need // one batch always passes
	}
	return f
}

// free gives a frame's buffer back.
func (s *leaderStream) free(f *frame) {
	if f.buf != nil {
		s.srv.deps.Pool.Put(f.buf)
		f.buf = nil
	}
}
