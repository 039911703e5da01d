package rpc

import (
	"cmp"
	"context"
	"errors"
	"io"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

const (
	// stuckAfter is how long the transport may take for what it has before the
	// stream gives up the memory it holds for going on, and its share of the
	// budget to who reads.
	stuckAfter = time.Second
	// maxBacklog is how many small answers may wait before no more edits are
	// read: who edits must read too.
	maxBacklog = 1024
)

// A fetcher is one reading session. All of it but edits belongs to the handler's
// goroutine. That one never waits in SendMsg: it sends only when the transport
// has room, so edits, endings and time are heeded also while a client does not
// read.
type fetcher struct {
	svc     *LogService
	ss      grpc.ServerStream
	wrapped bool // answer as ReadResponse
	// forwarded is true for a session of another broker: it names topics by id,
	// and nothing of it goes anywhere else.
	forwarded bool
	// news are the partitions that wait for metadata their sender has.
	news fetchNews
	// feed reads what other brokers lead; nil until something is.
	feed     *router.Feed
	feedHold feedHold
	flow     *fetchFlow
	edits    chan fetchEdit
	stop     chan struct{} // closed when the handler returns

	opts   fetchOptions
	opened bool
	board  subBoard
	alls   map[string]*fetchAll // by topic name
	image  *metadata.Image      // that alls are up to
	// retryAt is when partitions without a leader are looked at; zero: never.
	retryAt time.Time
	credit  fetchCredit
	size    fetchSize
	left    int64 // of max_records
	// notes are small responses that wait to be sent; they need no credit.
	notes []wire.FetchResponse
	msg   wire.Message
	grant fetchGrant

	bye        farewell
	reason     runnelv1.GoawayReason
	halfClosed bool
	// heeded is true when the client half-closed after it was told to.
	heeded bool
	// full is true when max_records were sent.
	full     bool
	lastSent time.Time
	// blocked is since when the transport has had no room; zero: it has.
	blocked time.Time
	slow    bool // and that was noted
	stuck   bool // and that too
}

// A fetchEdit is what the reader's goroutine got.
type fetchEdit struct {
	req *runnelv1.FetchRequest // nil: the client half-closed, or err
	err error
}

func (s *LogService) newFetcher(ss grpc.ServerStream, wrapped bool) *fetcher {
	now := time.Now()
	return &fetcher{
		svc: s, ss: ss, wrapped: wrapped,
		flow:  newFetchFlow(s.opts.Pool, s.budget),
		edits: make(chan fetchEdit), stop: make(chan struct{}),
		board: newSubBoard(), alls: map[string]*fetchAll{},
		bye: s.farewell(now), lastSent: now,
	}
}

// fetch handles a Fetch stream.
func (s *LogService) fetch(ss grpc.ServerStream) error {
	f := s.newFetcher(ss, false)
	s.readers.Go(f.receive)
	return f.run(nil)
}

// receive reads edits until the stream ends or the client half-closes.
func (f *fetcher) receive() {
	var msg wire.Message
	for {
		var e fetchEdit
		if e.err = f.ss.RecvMsg(&msg); e.err == nil {
			e.req, e.err = f.parse(&msg)
		}
		select {
		case f.edits <- e:
		case <-f.stop:
			return
		}
		if e.req == nil {
			return
		}
	}
}

// parse reads a request, as clients or as other brokers send it.
func (f *fetcher) parse(msg *wire.Message) (*runnelv1.FetchRequest, error) {
	req := &runnelv1.FetchRequest{}
	var into proto.Message = req
	if f.forwarded {
		into = &replicav1.ForwardFetchRequest{Request: req}
	}
	if err := msg.Decode(f.svc.opts.Pool, into); err != nil {
		return nil, invalid("the message is no FetchRequest: %s", rpcerr.Clean(err.Error()))
	}
	if fwd, ok := into.(*replicav1.ForwardFetchRequest); ok {
		if req = fwd.GetRequest(); req == nil {
			return nil, invalid("the message has no request")
		}
	}
	return req, nil
}

// run is the session. With a request it is a Read: opened by that, and closed
// to edits.
func (f *fetcher) run(only *runnelv1.FetchRequest) error {
	defer f.flow.settle()
	defer f.closeFeed()
	defer f.board.removeAll()
	defer close(f.stop)
	defer f.dropGrant()
	ctx := f.ss.Context()
	// A client that sends gzip would get gzip back: a tenth of the speed.
	if grpc.SetSendCompressor(ctx, "identity") != nil {
		return cmp.Or(ctx.Err(), context.Canceled) // the client ended the stream as it began
	}
	if only != nil || f.wrapped && !f.forwarded {
		if err := f.apply(ctx, only); err != nil {
			return err
		}
		f.closeHalf()
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		if err := f.heed(ctx); err != nil {
			return err
		}
		now := time.Now()
		f.board.rouse(now)
		f.keepUp(now)
		f.lookAgain(ctx, now)
		f.remind(now)
		f.flow.setAside(now)
		if done, err := f.step(now); done || err != nil {
			return err
		}
		if f.busy() {
			if err := ctx.Err(); err != nil {
				return err
			}
			continue
		}
		if err := f.wait(ctx, timer); err != nil {
			return err
		}
	}
}

// heed applies the edits that are there.
func (f *fetcher) heed(ctx context.Context) error {
	for len(f.notes) < maxBacklog {
		select {
		case e := <-f.edits:
			if err := f.edit(ctx, e); err != nil {
				return err
			}
		default:
			return nil
		}
	}
	return nil
}

func (f *fetcher) edit(ctx context.Context, e fetchEdit) error {
	switch {
	case errors.Is(e.err, io.EOF):
		f.closeHalf()
		return nil
	case e.err != nil:
		return e.err
	}
	return f.apply(ctx, e.req)
}

func (f *fetcher) closeHalf() {
	f.halfClosed = true
	f.heeded = f.bye.said()
	f.credit.lift()
	f.board.pay()
}

// remind does what time asks for: goodbye, and news for idle clients.
func (f *fetcher) remind(now time.Time) {
	if reason, ok := f.bye.due(now); ok {
		f.reason = reason
		f.notes = append(f.notes, f.blank(f.bye.begin(reason, now)))
	}
	if f.opened && !now.Before(f.lastSent.Add(f.opts.progress)) {
		f.lastSent = now // once an interval, also when it cannot be sent
		if f.flow.clear() && len(f.notes) == 0 {
			f.progress()
		}
	}
}

// blank is a response about the stream.
func (f *fetcher) blank(bye *runnelv1.Goaway) wire.FetchResponse {
	return wire.FetchResponse{
		Partition: wire.None, NextOffset: wire.None, HighWatermark: wire.None, LogStart: wire.None,
		LastStable: wire.None, LeaderEpoch: wire.None, Goaway: bye,
	}
}

// step sends at most one response, and reports whether the session is over.
func (f *fetcher) step(now time.Time) (done bool, err error) {
	if f.bye.over(now) {
		if f.flow.clear() {
			last := f.blank(f.bye.last(f.reason))
			if _, err := f.send(&last, now); err != nil {
				return true, err
			}
		}
		return true, errStreamEnded
	}
	if !f.flow.clear() {
		f.stall(now)
		return false, nil
	}
	f.flows()
	servable := f.prepare()
	if len(f.notes) > 0 {
		note := f.notes[0]
		f.notes = f.notes[1:]
		if len(f.notes) == 0 {
			f.notes = nil
		}
		_, err := f.send(&note, now)
		return err != nil, err
	}
	if f.over() {
		return true, nil
	}
	if servable && f.allot(f.board.ready.front) {
		err := f.serve(f.board.ready.front, now)
		return err != nil, err
	}
	return false, nil
}

// over reports whether there is nothing left to send, ever.
func (f *fetcher) over() bool {
	switch {
	case f.full:
		return true
	case !f.halfClosed:
		return false
	case f.heeded && f.opts.follow:
		return true
	}
	return len(f.board.subs) == 0 && len(f.alls) == 0 && len(f.news.waiting) == 0
}

// busy reports whether another step may do something at once.
func (f *fetcher) busy() bool {
	if !f.flow.clear() {
		return false
	}
	servable := f.prepare()
	return len(f.notes) > 0 || f.over() || servable && f.allot(f.board.ready.front)
}

// stall notes that the transport has no room.
func (f *fetcher) stall(now time.Time) {
	if len(f.notes) == 0 && f.board.ready.front == nil {
		return // nothing to send: nobody waits
	}
	switch {
	case f.blocked.IsZero():
		f.blocked = now
	case !f.slow && now.Sub(f.blocked) >= slowAfter:
		f.slow = true
		f.size.blocked()
	case !f.stuck && now.Sub(f.blocked) >= stuckAfter:
		f.stuck = true
		for _, s := range f.board.subs {
			f.dropCursor(s)
		}
	}
}

// flows notes that the transport has room.
func (f *fetcher) flows() { f.blocked, f.slow, f.stuck = time.Time{}, false, false }

// stallNext returns when being blocked becomes worse; zero: never.
func (f *fetcher) stallNext() time.Time {
	switch {
	case f.blocked.IsZero() || f.stuck:
		return time.Time{}
	case f.slow:
		return f.blocked.Add(stuckAfter)
	}
	return f.blocked.Add(slowAfter)
}

// send sends one response and returns its size.
func (f *fetcher) send(r *wire.FetchResponse, now time.Time) (int, error) {
	size, err := r.Encode(&f.msg, f.flow, f.wrapped)
	if err != nil {
		return 0, err
	}
	f.lastSent = now
	if !f.forwarded { // the other broker counts
		f.svc.metrics.fetchedBytes.Add(float64(size))
	}
	return size, f.ss.SendMsg(&f.msg)
}

// wait waits for anything that another step would heed.
func (f *fetcher) wait(ctx context.Context, timer *time.Timer) error {
	if f.board.ready.front == nil || !f.flow.clear() {
		f.dropGrant() // memory is held only to be used next
	}
	next := earlier(earlier(f.board.next(), f.bye.next()), earlier(f.stallNext(), f.flow.stuckAt()))
	if f.opened {
		next = earlier(next, f.lastSent.Add(f.opts.progress))
	}
	if f.feed != nil {
		f.holdFeed(time.Now())
		next = earlier(next, f.feedHold.next())
	}
	rearm(timer, time.Now(), earlier(earlier(next, f.retryAt), f.news.at))
	changed := f.changed()
	if changed != nil && f.svc.opts.Store.Load() != f.image {
		return nil
	}
	edits := f.edits
	if len(f.notes) >= maxBacklog {
		edits = nil
	}
	select {
	case e := <-edits:
		return f.edit(ctx, e)
	case <-f.board.woken.signal:
	case <-f.flow.drained:
	case <-f.grant.ready():
		f.grant.granted(f.flow)
	case <-changed:
	case <-timer.C:
	case <-f.bye.draining():
	case <-ctx.Done():
		return ctx.Err()
	}
	return nil
}

// progress queues news for an idle client: of the partitions of which there are
// any, else of one of them, else a sign of life.
func (f *fetcher) progress() {
	var some *fetchSub
	for _, s := range f.board.subs {
		if !s.placed {
			continue
		}
		some = s
		st := s.part.State()
		if st.Err == nil && (st.HighWatermark != s.reported.highWatermark || st.LogStart != s.reported.logStart || s.next != s.reported.next) {
			f.note(s)
		}
	}
	switch {
	case len(f.notes) > 0:
	case some != nil:
		f.note(some)
	default:
		f.notes = append(f.notes, f.blank(nil))
	}
}

// note queues a response that tells where s is.
func (f *fetcher) note(s *fetchSub) { f.notes = append(f.notes, f.about(s, s.part.State())) }
