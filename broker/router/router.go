// Package router finds the leader of a partition for a request that came to
// another broker, and takes the request there: one hop, payload bytes untouched.
package router

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"

	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

// Defaults of Options, in bytes.
const (
	DefaultPeerBytes      = 16 << 20
	DefaultStreamBytes    = 16 << 20
	DefaultPartitionBytes = 4 << 20
	// detachedBytes bounds what is kept of streams that have ended: writes with
	// acks NONE, which were answered and wait for a leader.
	detachedBytes = 64 << 20
)

// Options are what a Router needs. Zero bounds have defaults.
type Options struct {
	Store *metadata.Store
	// Dial returns a connection to a broker's internal address. It does no I/O,
	// and gRPC's own retries must be off: a write is never sent twice.
	Dial func(addr string) (*grpc.ClientConn, error)
	// Rules read the errors of other brokers back.
	Rules   []rpcerr.Rule
	Pool    *wire.Pool
	Metrics prometheus.Registerer // may be nil
	// PeerBytes is how much may be sent to one broker and not answered.
	PeerBytes int64
	// StreamBytes and PartitionBytes are how much of one client stream, and of
	// one partition of it, may wait or be unanswered before that stream is read
	// no further.
	StreamBytes, PartitionBytes int64
	// StreamsPerPeer is over how many streams the writes to one broker are
	// spread. 0: 2.
	StreamsPerPeer int
}

func (o Options) withDefaults() Options {
	if o.PeerBytes <= 0 {
		o.PeerBytes = DefaultPeerBytes
	}
	if o.StreamBytes <= 0 {
		o.StreamBytes = DefaultStreamBytes
	}
	if o.PartitionBytes <= 0 {
		o.PartitionBytes = DefaultPartitionBytes
	}
	if o.StreamsPerPeer <= 0 {
		o.StreamsPerPeer = 2
	}
	if o.Pool == nil {
		o.Pool = wire.NewPool()
	}
	return o
}

// A Router takes requests to the brokers that lead. New, then Run.
type Router struct {
	opts      Options
	self      metadata.BrokerID
	codec     *wire.Codec
	forwarded *prometheus.CounterVec
	dropped   prometheus.Counter
	// wake receives when parked has something that is due earlier than known.
	wake chan struct{}
	// routines are links and local appends; Run joins them.
	routines sync.WaitGroup

	// ahead counts the bytes that sources hold.
	ahead  atomic.Int64
	closed atomic.Bool
	// mu guards the fields below
	mu sync.Mutex

	peers map[string]*peer // by internal address
	// parked holds pipelines that wait for a time or for another image.
	parked   map[*Pipeline]time.Time
	detached int64 // bytes
}

// New returns a router that starts nothing before Run.
func New(o Options) *Router {
	o = o.withDefaults()
	auto := promauto.With(o.Metrics)
	r := &Router{
		opts: o, self: o.Store.Load().Self, codec: wire.NewCodec(o.Pool), wake: make(chan struct{}, 1),
		peers: map[string]*peer{}, parked: map[*Pipeline]time.Time{},
		forwarded: auto.NewCounterVec(prometheus.CounterOpts{
			Name: "forwarded_requests_total", Help: "Requests that were taken to the broker that leads the partition.",
		}, []string{"method"}),
		dropped: auto.NewCounter(prometheus.CounterOpts{
			Name: "forward_dropped_total", Help: "Writes with acks NONE that were given up, because no leader took them in time.",
		}),
	}
	for _, method := range []string{"produce", "fetch", "list_offsets", "delete_records", "describe_partitions", "join", "group", "measure", "health"} {
		r.forwarded.WithLabelValues(method) // shown from the start
	}
	return r
}

// Run wakes what waits for leaders, until ctx is done. Then it closes all
// connections: what is unanswered becomes uncertain.
func (r *Router) Run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	image := r.opts.Store.Load()
	r.survey(image)
	for {
		changed := r.opts.Store.Changed()
		img := r.opts.Store.Load()
		if img != image {
			r.survey(img)
		}
		timer.Reset(r.kickDue(time.Now(), img != image))
		image = img
		select {
		case <-changed:
		case <-timer.C:
		case <-r.wake:
		case <-ctx.Done():
			r.close()
			r.routines.Wait()
			return nil
		}
	}
}

// kickDue gives the pipelines a try whose time has come, or all of them, and
// returns how long until the next one's comes.
func (r *Router) kickDue(now time.Time, all bool) time.Duration {
	var due []*Pipeline
	r.mu.Lock()
	for p, at := range r.parked {
		if all || !now.Before(at) {
			due = append(due, p)
			delete(r.parked, p)
		}
	}
	r.mu.Unlock()
	for _, p := range due {
		p.kick(now)
	}
	wait := time.Hour
	r.mu.Lock()
	defer r.mu.Unlock()

	for _, at := range r.parked {
		wait = min(wait, max(at.Sub(now), 0))
	}
	return wait
}

// park lets p be kicked at a time, or with the next image.
func (r *Router) park(p *Pipeline, at time.Time) {
	r.mu.Lock()
	old, ok := r.parked[p]
	if !ok || at.Before(old) {
		r.parked[p] = at
	}
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *Router) unpark(p *Pipeline) {
	r.mu.Lock()
	defer r.mu.Unlock()

	delete(r.parked, p)
}

// spawn runs fn in a goroutine that Run joins; false when Run has ended.
func (r *Router) spawn(fn func()) bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.closed.Load() {
		return false
	}
	r.routines.Go(fn)
	return true
}

// survey gives up on brokers that img shows gone, fenced, elsewhere or started
// anew: they may be silent for long, and what they had is decided without them.
func (r *Router) survey(img *metadata.Image) {
	alive := map[string]string{}
	for _, b := range img.Brokers() {
		if b.Phase != metadata.BrokerFenced {
			alive[b.InternalAddress] = b.Incarnation
		}
	}
	var gone []*peer
	r.mu.Lock()
	for addr, p := range r.peers {
		if alive[addr] != p.incarnation {
			gone = append(gone, p)
			delete(r.peers, addr)
		}
	}
	r.mu.Unlock()
	for _, p := range gone {
		p.close(errPeerGone)
	}
}

// close ends all connections.
func (r *Router) close() {
	r.mu.Lock()
	r.closed.Store(true) // under mu: see spawn
	peers := r.peers
	r.peers = map[string]*peer{}
	parked := r.parked
	r.parked = map[*Pipeline]time.Time{}
	r.mu.Unlock()
	for _, p := range peers {
		p.close(partition.ErrShuttingDown)
	}
	for p := range parked {
		p.kick(time.Now())
	}
}

// A view is who leads a partition, and since which epoch.
type view struct {
	leader metadata.BrokerID
	epoch  record.Epoch
}

// leader returns who leads, as the image or a newer hint says. Without a leader
// the error is ErrNoLeader; all others are final.
func (r *Router) leader(topic uuid.UUID, n int32, hint view) (view, error) {
	img := r.opts.Store.Load()
	t, ok := img.TopicByID(topic)
	if !ok || t.Phase == metadata.TopicDeleting {
		return view{}, fmt.Errorf("topic %s: %w", topic, partition.ErrDeleted)
	}
	mp, err := t.Find(n)
	if err != nil {
		return view{}, err
	}
	v := view{mp.Leader, mp.LeaderEpoch}
	if hint.epoch > v.epoch {
		v = hint
	}
	if v.leader == metadata.NoBroker {
		return v, partition.NoLeader(t, n, mp)
	}
	return v, nil
}

// Leader returns who leads partition n as this broker knows it, and whether
// that is this broker itself.
func (r *Router) Leader(topic uuid.UUID, n int32) (id metadata.BrokerID, here bool, err error) {
	v, err := r.leader(topic, n, view{})
	return v.leader, v.leader == r.self, err
}

// peer returns the connections to a broker.
func (r *Router) peer(id metadata.BrokerID) (*peer, error) {
	b, ok := r.opts.Store.Load().Broker(id)
	if !ok {
		return nil, fmt.Errorf("broker %d: %w", id, errUnreachable)
	}
	r.mu.Lock()
	defer r.mu.Unlock()

	if r.closed.Load() {
		return nil, errClosed
	}
	if p := r.peers[b.InternalAddress]; p != nil && p.incarnation == b.Incarnation {
		return p, nil
	}
	p := newPeer(r, b)
	// One that was here is of an earlier image: survey closes it, by comparing.
	if old := r.peers[b.InternalAddress]; old != nil {
		r.routines.Go(func() { old.close(errPeerGone) })
	}
	r.peers[b.InternalAddress] = p
	return p, nil
}

// routable says whether a definite failure may pass with another try, at the
// same broker or another one.
func routable(err error) bool {
	for _, kind := range []error{
		partition.ErrNotLeader, partition.ErrNoLeader, partition.ErrMoving, partition.ErrUnknownEpoch,
		partition.ErrFencedEpoch, partition.ErrShuttingDown, metadata.ErrStale, errUnreachable, errFenced, group.ErrLoading,
	} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Routable says whether a failure to write or read says only that somebody else
// has to be asked, now or a little later.
func Routable(err error) bool { return !errors.Is(err, partition.ErrCommitUncertain) && routable(err) }

// Backoff between tries.
const (
	firstBackoff = 5 * time.Millisecond
	lastBackoff  = 250 * time.Millisecond
)

func nextBackoff(d time.Duration) time.Duration {
	if d == 0 {
		return firstBackoff
	}
	return min(2*d, lastBackoff)
}

// Held is what a router keeps for requests that are not done.
type Held struct {
	// Unanswered is how many bytes were sent and not answered.
	Unanswered int64
	// Waiting is how many pipelines wait for a leader.
	Waiting int
	// Detached is how many bytes of ended streams wait.
	Detached int64
	// Ahead is how many bytes were read ahead for readers.
	Ahead int64
}

// Held returns what is kept at present.
func (r *Router) Held() Held {
	r.mu.Lock()
	h := Held{Waiting: len(r.parked), Detached: r.detached, Ahead: r.ahead.Load()}
	peers := slices.Collect(maps.Values(r.peers))
	r.mu.Unlock()
	for _, p := range peers {
		p.mu.Lock()
		h.Unanswered += p.unanswered
		p.mu.Unlock()
	}
	return h
}
