package router

import (
	"context"
	"slices"
	"sync"

	"google.golang.org/grpc"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/wire"
)

// A feedLink is the ForwardFetch stream of one feed to one leader.
type feedLink struct {
	feed *Feed
	peer *peer
	wake chan struct{} // there is something to send
	// ended is closed when the link is broken.
	ended chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	err    error
	cancel context.CancelFunc
	subs   map[uint64]*Source // by tag
	add    []*runnelv1.FetchPartition
	remove []*runnelv1.PartitionRef
	credit int64 // to be given back
}

func newFeedLink(f *Feed, p *peer) *feedLink {
	return &feedLink{feed: f, peer: p, wake: make(chan struct{}, 1), ended: make(chan struct{}), subs: map[uint64]*Source{}}
}

func (l *feedLink) broken() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

func (l *feedLink) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// subscribe reads s over this link. A source's mu may be held while a link's is
// taken, never the other way round.
func (l *feedLink) subscribe(s *Source, v view) {
	l.feed.mu.Lock()
	l.feed.tags++
	tag := l.feed.tags
	l.feed.mu.Unlock()
	s.mu.Lock()
	if s.closed || s.link != nil {
		s.mu.Unlock()
		return
	}
	s.link, s.tag, s.at = l, tag, v
	added := l.register(tag, s, s.requestLocked(v))
	s.mu.Unlock()
	if !added {
		s.detach(tag, errUnreachable, view{})
		return
	}
	l.feed.r.forwarded.WithLabelValues("fetch").Inc()
	l.signal()
}

// register is false when the link is broken.
func (l *feedLink) register(tag uint64, s *Source, want *runnelv1.FetchPartition) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.err != nil {
		return false
	}
	l.subs[tag] = s
	l.add = append(l.add, want)
	return true
}

// unsubscribe ends a subscription; nothing on no link. The leader is told by the
// partition's name, so the source's mu must be held: nobody may subscribe it
// anew before. The link is then to be told by settle.
func (l *feedLink) unsubscribe(s *Source, tag uint64) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()

	if _, ok := l.subs[tag]; !ok {
		return
	}
	delete(l.subs, tag)
	queued := len(l.add)
	l.add = slices.DeleteFunc(l.add, func(p *runnelv1.FetchPartition) bool { return p.GetTag() == tag })
	if len(l.add) == queued {
		l.remove = append(l.remove, &runnelv1.PartitionRef{Topic: s.name, Partition: &s.n})
	}
}

// settle gives credit back, sends what there is to send, and ends a link that
// nobody uses. It must be called without locks.
func (l *feedLink) settle(freed int64) {
	if l == nil {
		return
	}
	l.giveCredit(freed)
	l.mu.Lock()
	unused, pending := len(l.subs) == 0, len(l.remove) > 0
	l.mu.Unlock()
	if unused {
		l.fail(errUnneeded)
	} else if pending {
		l.signal()
	}
}

// giveCredit lets the leader send as much again; nothing on no link.
func (l *feedLink) giveCredit(bytes int64) {
	if l == nil || bytes == 0 {
		return
	}
	l.mu.Lock()
	l.credit += bytes
	due := l.credit >= l.feed.opts.Ahead/4
	l.mu.Unlock()
	if due {
		l.signal()
	}
}

// fail breaks the link: its sources look for their leaders anew.
func (l *feedLink) fail(why error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = why
	subs, cancel := l.subs, l.cancel
	l.subs = map[uint64]*Source{}
	l.mu.Unlock()
	close(l.ended)
	if cancel != nil {
		cancel()
	}
	for tag, s := range subs {
		s.detach(tag, errUnreachable, view{})
	}
}

// run opens the stream and sends edits until it breaks.
func (l *feedLink) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l.mu.Lock()
	l.cancel = cancel
	broken := l.err != nil
	l.mu.Unlock()
	if broken {
		return
	}
	conn, done, err := l.peer.reading(1)
	if err != nil {
		l.fail(err)
		return
	}
	defer done()
	desc := &grpc.StreamDesc{StreamName: "ForwardFetch", ClientStreams: true, ServerStreams: true}
	stream, err := conn.NewStream(ctx, desc, replicav1.ForwardService_ForwardFetch_FullMethodName, grpc.ForceCodecV2(l.feed.r.codec))
	if err != nil {
		l.fail(err)
		return
	}
	var receiver sync.WaitGroup
	receiver.Go(func() { l.receive(stream) })
	l.fail(l.send(stream))
	receiver.Wait()
}

func (l *feedLink) send(stream grpc.ClientStream) error {
	options := l.feed.options()
	for {
		l.mu.Lock()
		req := &runnelv1.FetchRequest{Options: options, Remove: l.remove, Partitions: l.add}
		if l.credit >= l.feed.opts.Ahead/4 {
			req.CreditBytes, l.credit = l.credit, 0
		}
		l.add, l.remove = nil, nil
		l.mu.Unlock()
		if len(req.GetRemove())+len(req.GetPartitions()) > 0 || req.GetCreditBytes() > 0 {
			options = nil
			if err := stream.SendMsg(&replicav1.ForwardFetchRequest{Request: req, Principal: l.feed.opts.Principal}); err != nil {
				return err
			}
			continue
		}
		select {
		case <-l.wake:
		case <-l.ended:
			return errUnneeded
		}
	}
}

func (l *feedLink) receive(stream grpc.ClientStream) {
	var msg wire.Message
	var r wire.FetchedBatches
	for {
		if err := stream.RecvMsg(&msg); err != nil {
			l.fail(err)
			return
		}
		buf := msg.Copy(l.feed.r.opts.Pool, 0)
		size, err := r.ParseWrapped(*buf, 0, len(*buf))
		if err == nil && r.Goaway != nil {
			err = errPeerGone
		}
		if err != nil {
			l.feed.r.opts.Pool.Put(buf)
			l.fail(err)
			return
		}
		l.deliver(&r, buf, int64(size))
	}
}

// deliver gives a response to its source. What nobody wants any more is paid
// back at once.
func (l *feedLink) deliver(r *wire.FetchedBatches, buf *[]byte, size int64) {
	l.mu.Lock()
	s := l.subs[r.Tag]
	l.mu.Unlock()
	if s != nil && s.deliver(r, buf, size) {
		return
	}
	l.feed.r.opts.Pool.Put(buf)
	if r.Batches > 0 {
		l.giveCredit(size)
	}
}
