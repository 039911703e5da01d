package rpc

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// A fetchAll is a subscription to all partitions of a topic, also those that
// are added later.
type fetchAll struct {
	topic  *metadata.Topic
	seen   int32 // partitions below it were added
	want   *runnelv1.FetchPartition
	paused bool
	// leaderless are partitions below seen that have no leader yet, as new ones
	// for a moment. They are looked at again and again.
	leaderless []int32
}

// leaderlessEvery is how often partitions without a leader are looked at.
const leaderlessEvery = 20 * time.Millisecond

// apply does what one message asks for. Its errors are misuse of the protocol
// and end the stream; what is wrong with a partition is answered.
func (f *fetcher) apply(ctx context.Context, req *runnelv1.FetchRequest) error {
	if err := f.open(req); err != nil {
		return err
	}
	if c := req.GetCreditBytes(); c != 0 {
		switch {
		case c < 0:
			return invalid("credit_bytes is %d: want more than 0", c)
		case !f.credit.limited && !f.halfClosed:
			return invalid("credit_bytes without options.initial_credit_bytes: set that in the first message to use explicit credit")
		}
		f.credit.add(c)
		if f.credit.ok() {
			f.board.pay()
		}
	}
	for _, ref := range req.GetRemove() {
		f.each(ref, f.leave)
		if a := f.alls[ref.GetTopic()]; a != nil && ref.Partition == nil {
			delete(f.alls, ref.GetTopic())
		}
		f.news.remove(ref)
	}
	for _, want := range req.GetPartitions() {
		if f.forwarded {
			f.news.remove(&runnelv1.PartitionRef{Topic: want.GetTopic(), Partition: want.Partition})
		}
		f.subscribe(ctx, want)
	}
	for _, ref := range req.GetPause() {
		f.each(ref, f.pause)
		f.pauseAll(ref, true)
	}
	for _, ref := range req.GetResume() {
		f.each(ref, f.resume)
		f.pauseAll(ref, false)
	}
	return nil
}

// open takes the options of the first message.
func (f *fetcher) open(req *runnelv1.FetchRequest) error {
	if f.opened {
		if req.GetOptions() != nil {
			return invalid("options come in the first message only: open another stream for others")
		}
		return nil
	}
	opts, err := parseOptions(req.GetOptions())
	if err != nil {
		return err
	}
	f.opened, f.opts = true, opts
	f.size = newFetchSize(opts.maxResponse)
	f.left = opts.maxRecords
	if o := req.GetOptions(); o != nil && o.InitialCreditBytes != nil {
		f.credit.start(o.GetInitialCreditBytes())
	}
	return nil
}

// each calls do for the partitions that ref names and the session has.
func (f *fetcher) each(ref *runnelv1.PartitionRef, do func(*fetchSub)) {
	for _, s := range f.board.subs {
		if s.topic == ref.GetTopic() && (ref.Partition == nil || s.key.partition == ref.GetPartition()) {
			do(s)
		}
	}
}

func (f *fetcher) pauseAll(ref *runnelv1.PartitionRef, paused bool) {
	if a := f.alls[ref.GetTopic()]; a != nil && ref.Partition == nil {
		a.paused = paused
	}
}

// leave ends a partition without a word.
func (f *fetcher) leave(s *fetchSub) {
	f.dropCursor(s)
	f.board.remove(s)
	if s.away != nil {
		s.away.Close()
	}
}

// subscribe adds or moves what want names.
func (f *fetcher) subscribe(ctx context.Context, want *runnelv1.FetchPartition) {
	err := checkPartition(want)
	var t *metadata.Topic
	if err == nil {
		t, err = f.topic(ctx, want)
	}
	if err == nil && want.Partition != nil && !f.forwarded { // another broker may know of more than this one
		_, err = t.Find(want.GetPartition())
	}
	if err != nil {
		if !f.awaitNews(want, err) {
			f.refuse(want, t, err)
		}
		return
	}
	if want.Partition != nil {
		f.start(t, want.GetPartition(), want)
		return
	}
	a := &fetchAll{topic: t, want: want}
	if old := f.alls[t.Name]; old != nil {
		a.paused = old.paused
	}
	f.grow(a, t)
	if f.opts.follow {
		f.alls[t.Name] = a
	}
}

// grow adds the partitions of t that a has not seen.
func (f *fetcher) grow(a *fetchAll, t *metadata.Topic) {
	for ; int(a.seen) < len(t.Partitions); a.seen++ {
		a.leaderless = append(a.leaderless, a.seen)
	}
	again := a.leaderless[:0]
	for _, n := range a.leaderless {
		part, err := f.svc.opts.Partitions.Get(t.ID, n)
		if err == nil {
			err = part.State().Err
		}
		if f.opts.follow && errors.Is(err, partition.ErrNoLeader) {
			again = append(again, n)
		} else if s := f.start(t, n, a.want); s != nil && a.paused {
			f.pause(s)
		}
	}
	a.leaderless = again
	if len(again) > 0 && f.retryAt.IsZero() {
		f.retryAt = time.Now().Add(leaderlessEvery)
	}
}

// keepUp follows the topics of which all partitions are wanted: it adds those
// that are new, and those that have a leader by now.
func (f *fetcher) keepUp(now time.Time) {
	if len(f.alls) == 0 {
		return
	}
	if img := f.svc.opts.Store.Load(); img != f.image {
		f.image = img
		for name, a := range f.alls {
			t, ok := img.TopicByID(a.topic.ID)
			if !ok || t.Phase == metadata.TopicDeleting {
				delete(f.alls, name)
				continue
			}
			if t != a.topic {
				a.topic = t
				f.grow(a, t)
			}
		}
	}
	if f.retryAt.IsZero() || now.Before(f.retryAt) {
		return
	}
	f.retryAt = time.Time{}
	for _, a := range f.alls {
		if len(a.leaderless) > 0 {
			f.grow(a, a.topic)
		}
	}
}

// changed returns a channel that is closed when keepUp has something to do;
// nil when it never has.
func (f *fetcher) changed() <-chan struct{} {
	if len(f.alls) == 0 {
		return nil
	}
	return f.svc.opts.Store.Changed()
}

// checkPartition says what is wrong with want, whatever the topic is.
func checkPartition(want *runnelv1.FetchPartition) error {
	_, byOffset := want.GetStart().(*runnelv1.FetchPartition_Offset)
	switch {
	case want.Partition != nil && want.GetPartition() < 0:
		return invalid("partition is %d: partitions are counted from 0", want.GetPartition())
	case want.Partition == nil && byOffset:
		return invalid("all partitions cannot begin at one offset: name the partition, or begin at a position or a time")
	case want.Partition == nil && (want.LeaderEpoch != nil || want.LastEpoch != nil):
		return invalid("leader_epoch and last_epoch are those of one partition: name it")
	case byOffset && want.GetOffset() < 0:
		return invalid("offset is %d: offsets are counted from 0; for the first or the last one there is use position", want.GetOffset())
	case want.StopOffset != nil && want.GetStopOffset() < 0:
		return invalid("stop_offset is %d: offsets are counted from 0", want.GetStopOffset())
	case want.LastEpoch != nil && !byOffset:
		return invalid("last_epoch is that of the record before offset: give offset too")
	}
	switch start := want.GetStart().(type) {
	case *runnelv1.FetchPartition_Position:
		if _, ok := runnelv1.Position_name[int32(start.Position)]; !ok {
			return invalid("position %d is not known here: want POSITION_EARLIEST or POSITION_LATEST", start.Position)
		}
	case *runnelv1.FetchPartition_Timestamp:
		if !start.Timestamp.IsValid() {
			return invalid("timestamp is no valid time")
		}
	}
	return nil
}

// refuse answers that a partition cannot be read.
func (f *fetcher) refuse(want *runnelv1.FetchPartition, t *metadata.Topic, err error) {
	r := f.blank(nil)
	r.Tag, r.Topic, r.TopicID = want.GetTag(), rpcerr.Clean(want.GetTopic()), rpcerr.Clean(want.GetTopicId())
	if t != nil {
		r.TopicID = t.ID.String()
	}
	if want.Partition != nil {
		r.Partition = max(want.GetPartition(), 0)
		r.NextOffset = max(want.GetOffset(), 0)
	}
	r.Error = f.svc.item(err)
	f.notes = append(f.notes, r)
}

// start adds partition n of t, or moves it when it is there.
func (f *fetcher) start(t *metadata.Topic, n int32, want *runnelv1.FetchPartition) *fetchSub {
	s := &fetchSub{
		key: subKey{t.ID, n}, topic: t.Name, topicID: t.ID.String(),
		tag: want.GetTag(), stop: noStop, want: want,
	}
	err := f.locate(s, t, n, want)
	if err != nil && f.goesAway(err) {
		err = f.openAway(s, t, nil)
	}
	paused := false
	if old := f.board.subs[s.key]; old != nil {
		paused = old.state == subPaused // a seek does not resume
		f.leave(old)
	}
	if err != nil && f.awaitNews(want, err) {
		return nil
	}
	if err != nil {
		one := &runnelv1.FetchPartition{Topic: t.Name, Partition: &n, Start: want.GetStart(), Tag: want.GetTag()}
		f.refuse(one, t, err)
		return nil
	}
	f.board.add(s)
	if f.forwarded {
		f.note(s) // the other broker has to know where it begins
	}
	if paused {
		f.pause(s)
	}
	return s
}

// locate finds the partition, and where to begin and to stop.
func (f *fetcher) locate(s *fetchSub, t *metadata.Topic, n int32, want *runnelv1.FetchPartition) error {
	part, err := f.localPart(t, n, want)
	if err != nil {
		return err
	}
	st := part.State()
	if want.LeaderEpoch != nil && !f.forwarded {
		if err := checkEpoch(part, st, record.Epoch(want.GetLeaderEpoch())); err != nil {
			return err
		}
	}
	if s.next, err = f.begin(part, st, want); err != nil {
		return err
	}
	s.part, s.placed = part, true
	s.written = written{next: s.next, epoch: record.Epoch(want.GetLastEpoch()), hasEpoch: want.LastEpoch != nil}
	_, byOffset := want.GetStart().(*runnelv1.FetchPartition_Offset)
	_, byTime := want.GetStart().(*runnelv1.FetchPartition_Timestamp)
	s.earliest = !byOffset && !byTime && want.GetPosition() != runnelv1.Position_POSITION_LATEST
	if want.LastEpoch != nil {
		if err := f.checkLastEpoch(part, s.next, record.Epoch(want.GetLastEpoch())); err != nil {
			return err
		}
	}
	if want.StopOffset != nil {
		s.stop = record.Offset(want.GetStopOffset())
	}
	if !f.opts.follow {
		st, err := part.End()
		if err != nil {
			return err
		}
		s.stop = min(s.stop, f.visible(st))
	}
	return nil
}

// begin returns the first offset wanted.
func (f *fetcher) begin(part *partition.Partition, st partition.State, want *runnelv1.FetchPartition) (record.Offset, error) {
	switch start := want.GetStart().(type) {
	case *runnelv1.FetchPartition_Offset:
		off := record.Offset(start.Offset)
		if off > st.LogEnd && want.LastEpoch != nil {
			// Who has read up to there has read what is no more.
			return off, f.checkLastEpoch(part, off, record.Epoch(want.GetLastEpoch()))
		}
		return off, f.checkOffset(part, off)
	case *runnelv1.FetchPartition_Timestamp:
		off, _, found, err := part.OffsetForTime(ceilMillis(start.Timestamp))
		if err != nil || found {
			return off, err
		}
		return f.latest(part)
	case *runnelv1.FetchPartition_Position:
		if start.Position == runnelv1.Position_POSITION_LATEST {
			return f.latest(part)
		}
	}
	return st.LogStart, nil
}

func (f *fetcher) latest(part *partition.Partition) (record.Offset, error) {
	st, err := part.End()
	if err != nil {
		return 0, err
	}
	return f.visible(st), nil
}

// visible is the end of what the session's isolation shows.
func (f *fetcher) visible(st partition.State) record.Offset {
	if f.opts.committed {
		return st.LastStable
	}
	return st.HighWatermark
}

// ceilMillis rounds up: a record at or after a time is not before it.
func ceilMillis(ts *timestamppb.Timestamp) int64 {
	ms := ts.GetSeconds()*1000 + int64(ts.GetNanos())/1e6
	if ts.GetNanos()%1e6 != 0 {
		ms++
	}
	return ms
}

// checkEpoch compares the leader epoch a client knows.
func checkEpoch(part *partition.Partition, st partition.State, epoch record.Epoch) error {
	switch {
	case epoch < st.Epoch:
		return fencedEpoch(part.String(), st.Epoch, epoch)
	case epoch > st.Epoch:
		return fmt.Errorf("%s: leader epoch %d: %w: try again", part, epoch, partition.ErrUnknownEpoch)
	}
	return nil
}
