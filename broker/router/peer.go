package router

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/wire"
)

// A peer is another incarnation of a broker, and the connections to it: one for
// writes, others for everything else, so that neither waits for the other's
// windows.
type peer struct {
	r           *Router
	id          metadata.BrokerID
	addr        string
	incarnation string
	// mu guards the fields below
	mu sync.Mutex

	closed     error // why, nil while it is not
	writes     *grpc.ClientConn
	reads      []*readConn
	links      []*link
	unanswered int64 // bytes handed over
}

func newPeer(r *Router, b *metadata.Broker) *peer {
	return &peer{r: r, id: b.ID, addr: b.InternalAddress, incarnation: b.Incarnation, links: make([]*link, r.opts.StreamsPerPeer)}
}

// A readConn is a connection for reading and asking.
type readConn struct {
	conn    *grpc.ClientConn
	streams int
}

// mostStreams is how many streams read over one connection. Servers take more;
// what is left is for questions.
const mostStreams = 500

// openLocked fails when the peer is closed.
func (p *peer) openLocked() error {
	if p.closed != nil {
		return fmt.Errorf("broker %d: %w", p.id, errUnreachable)
	}
	return nil
}

// dialLocked opens a connection.
func (p *peer) dialLocked() (*grpc.ClientConn, error) {
	c, err := p.r.opts.Dial(p.addr)
	if err != nil {
		return nil, fmt.Errorf("broker %d: %w: %w", p.id, errUnreachable, err)
	}
	return c, nil
}

// writing returns the connection for writes.
func (p *peer) writing() (*grpc.ClientConn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if err := p.openLocked(); err != nil {
		return nil, err
	}
	if p.writes == nil {
		c, err := p.dialLocked()
		if err != nil {
			return nil, err
		}
		p.writes = c
	}
	return p.writes, nil
}

// reading returns a connection that has room for the given number of streams
// more; done gives them back.
func (p *peer) reading(streams int) (c *grpc.ClientConn, done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if err := p.openLocked(); err != nil {
		return nil, nil, err
	}
	var rc *readConn
	for _, have := range p.reads {
		if have.streams+streams <= mostStreams {
			rc = have
			break
		}
	}
	if rc == nil {
		c, err := p.dialLocked()
		if err != nil {
			return nil, nil, err
		}
		rc = &readConn{conn: c}
		p.reads = append(p.reads, rc)
	}
	rc.streams += streams
	return rc.conn, func() {
		p.mu.Lock()
		defer p.mu.Unlock()

		rc.streams -= streams
	}, nil
}

// forward returns the service of the peer, for questions.
func (p *peer) forward() (replicav1.ForwardServiceClient, error) {
	c, _, err := p.reading(0)
	if err != nil {
		return nil, err
	}
	return replicav1.NewForwardServiceClient(c), nil
}

// close ends everything that goes to the peer.
func (p *peer) close(why error) {
	p.mu.Lock()
	first := p.closed == nil
	if first {
		p.closed = why
	}
	links := slices.Clone(p.links)
	conns := []*grpc.ClientConn{p.writes}
	for _, rc := range p.reads {
		conns = append(conns, rc.conn)
	}
	p.mu.Unlock()
	if !first {
		return
	}
	for _, l := range links {
		if l != nil {
			l.fail(why)
		}
	}
	for _, c := range conns {
		if c != nil {
			_ = c.Close()
		}
	}
}

// link returns the stream to a broker that a pipeline of that name uses.
func (r *Router) link(id metadata.BrokerID, name uint64) (*link, error) {
	p, err := r.peer(id)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()

	if err := p.openLocked(); err != nil {
		return nil, err
	}
	i := name % uint64(len(p.links))
	if l := p.links[i]; l != nil && !l.broken() {
		return l, nil
	}
	l := newLink(p)
	if !r.spawn(l.run) {
		return nil, errClosed
	}
	p.links[i] = l
	return l, nil
}

// take adds to what is unanswered, when there is room; one write always passes.
func (p *peer) take(size int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.unanswered > 0 && p.unanswered+size > p.r.opts.PeerBytes {
		return false
	}
	p.unanswered += size
	return true
}

// give takes from what is unanswered, and wakes the links.
func (p *peer) give(size int64) {
	p.mu.Lock()
	defer p.mu.Unlock()

	p.unanswered -= size
	for _, l := range p.links {
		if l != nil {
			l.signal() // never blocks
		}
	}
}

// A link is one ForwardProduce stream, shared by pipelines.
type link struct {
	peer *peer
	// wake receives when there is something to send, or room for it.
	wake chan struct{}
	// ended is closed when the link is broken.
	ended chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	err      error // why it is broken
	cancel   context.CancelFunc
	queue    []*Write
	pending  map[uint64]handed // by sequence
	sequence uint64
	// goaway is true when the peer has said that it reads no more.
	goaway bool
}

// A handed is a write that was given to gRPC.
type handed struct {
	w    *Write
	size int64
}

func newLink(p *peer) *link {
	return &link{peer: p, wake: make(chan struct{}, 1), ended: make(chan struct{}), pending: map[uint64]handed{}}
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (l *link) broken() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

// push queues a write; false when the link is broken.
func (l *link) push(w *Write) bool {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return false
	}
	l.queue = append(l.queue, w)
	l.mu.Unlock()
	l.signal()
	return true
}

// fail breaks the link. What was handed over is lost, unless the peer said that
// it had not read it; what was not goes back.
func (l *link) fail(why error) {
	l.mu.Lock()
	if l.err != nil {
		l.mu.Unlock()
		return
	}
	l.err = why
	queue, pending, goaway, cancel := l.queue, l.pending, l.goaway, l.cancel
	l.queue, l.pending = nil, nil
	l.mu.Unlock()
	close(l.ended)
	if cancel != nil {
		cancel()
	}
	for _, h := range pending {
		l.peer.give(h.size)
	}
	unreached := fmt.Errorf("broker %d: %w", l.peer.id, errUnreachable)
	for _, h := range pending {
		if goaway {
			h.w.p.returned(h.w, unreached)
		} else {
			h.w.p.lost(h.w, why)
		}
	}
	for _, w := range queue {
		w.p.returned(w, unreached)
	}
}

// run opens the stream, and sends until it breaks.
func (l *link) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	l.mu.Lock()
	l.cancel = cancel
	broken := l.err != nil
	l.mu.Unlock()
	if broken {
		return
	}
	conn, err := l.peer.writing()
	if err != nil {
		l.fail(err)
		return
	}
	desc := &grpc.StreamDesc{StreamName: "ForwardProduce", ClientStreams: true, ServerStreams: true}
	stream, err := conn.NewStream(ctx, desc, replicav1.ForwardService_ForwardProduce_FullMethodName, grpc.ForceCodecV2(l.peer.r.codec))
	if err != nil {
		l.fail(err)
		return
	}
	if !l.peer.r.spawn(func() { l.receive(stream) }) {
		l.fail(errClosed)
		return
	}
	l.fail(l.send(stream))
}

// send hands writes to gRPC.
func (l *link) send(stream grpc.ClientStream) error {
	for {
		w := l.next()
		if w == nil {
			select {
			case <-l.wake:
				continue
			case <-l.ended:
				return errPeerGone
			}
		}
		req := w.p.hand(w, time.Now())
		if req == nil {
			l.peer.give(w.Size())
			continue
		}
		if !l.expect(req, w) {
			// The link broke in between: nothing of it went out.
			req.Batch.Free()
			l.peer.give(w.Size())
			w.p.unhanded(w)
			return errPeerGone
		}
		if err := stream.SendMsg(req); err != nil {
			// What the peer said last counts; the receiver has it, or the reason.
			<-l.ended
			return err
		}
	}
}

// next takes the next write for which the peer has room.
func (l *link) next() *Write {
	l.mu.Lock()
	defer l.mu.Unlock()

	if len(l.queue) == 0 || l.goaway || !l.peer.take(l.queue[0].Size()) {
		return nil
	}
	w := l.queue[0]
	l.queue[0] = nil
	l.queue = l.queue[1:]
	return w
}

// expect notes that an answer is due; false when the link broke.
func (l *link) expect(req *wire.ForwardProduce, w *Write) bool {
	l.mu.Lock()
	defer l.mu.Unlock()

	if l.err != nil || l.goaway {
		return false
	}
	l.sequence++
	req.Sequence = l.sequence
	l.pending[l.sequence] = handed{w, w.Size()}
	return true
}

// receive takes answers in until the stream ends.
func (l *link) receive(stream grpc.ClientStream) {
	var msg wire.Message
	var res wire.ForwardProduced
	for {
		if err := stream.RecvMsg(&msg); err != nil {
			l.fail(err)
			return
		}
		buf := msg.Copy(l.peer.r.opts.Pool, 0)
		err := res.Parse(*buf, 0, len(*buf))
		l.peer.r.opts.Pool.Put(buf)
		if err == nil {
			err = l.answer(&res)
		}
		if err != nil {
			l.fail(err)
			return
		}
	}
}

var errUnasked = errors.New("an answer that nobody asked for")

func (l *link) answer(res *wire.ForwardProduced) error {
	l.mu.Lock()
	if res.Sequence == 0 {
		l.goaway = true
		l.mu.Unlock()
		return errPeerGone // and what is pending goes back
	}
	h, ok := l.pending[res.Sequence]
	delete(l.pending, res.Sequence)
	l.mu.Unlock()
	if !ok { // or the link broke, and its writes are lost
		return errUnasked
	}
	l.peer.give(h.size)
	h.w.p.answered(h.w, res)
	return nil
}
