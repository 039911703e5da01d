package client

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

const (
	// pollInterval is how often a broker that cannot push is asked.
	pollInterval = 5 * time.Second
	// awaitFor bounds await.
	awaitFor = 200 * time.Millisecond
	// doubtAfter is how long an answer may be due before others are asked,
	// askTimeout how long those have, and mostAsked how many there are.
	doubtAfter = 2 * time.Second
	askTimeout = time.Second
	mostAsked  = 8
	// mostNamed is how many topics brokers tell of by name.
	mostNamed = 10_000
)

// A cluster is what a client knows of the brokers, and of who leads what. A
// watch keeps it fresh from the first question on.
type cluster struct {
	c *Client
	// view is replaced whole, under mu only.
	view atomic.Pointer[clusterView]
	// asked tells the watch that there is a new name, and doubted, that its
	// broker may have fallen silent.
	asked, doubted chan struct{}
	// moves counts how often the seeds were made to begin with another broker, and
	// asking holds a token while a call asks around.
	moves  atomic.Int64
	asking chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	names     map[string]bool
	begun     bool
	listeners map[int]func()
	lastKey   int
}

// A clusterView is a picture of the cluster; it is never changed.
type clusterView struct {
	id      string
	brokers map[int32]string // addresses
	topics  map[string]*topicLeaders
}

// topicLeaders says who leads the partitions of a topic.
type topicLeaders struct {
	id    string
	parts []leadership
}

// A leadership is of one partition; the broker is noBroker while nobody leads.
type leadership struct {
	broker int32
	epoch  int64
}

const noBroker int32 = -1

func newCluster(c *Client) *cluster {
	k := &cluster{
		c: c, asked: make(chan struct{}, 1), doubted: make(chan struct{}, 1), asking: make(chan struct{}, 1),
		names: map[string]bool{}, listeners: map[int]func(){},
	}
	k.view.Store(&clusterView{})
	return k
}

// leader returns who leads a partition, and where to reach it; "" when that is
// not known, or nobody does.
func (v *clusterView) leader(topic, id string, n int32) (addr string, epoch int64) {
	t := v.topics[topic]
	if t == nil || id != "" && t.id != id || int(n) >= len(t.parts) {
		return "", 0
	}
	l := t.parts[n]
	if l.broker == noBroker {
		return "", l.epoch
	}
	return v.brokers[l.broker], l.epoch
}

// has reports whether a member is reached at an address.
func (v *clusterView) has(addr string) bool {
	for _, a := range v.brokers {
		if a == addr {
			return true
		}
	}
	return false
}

// want makes the watch tell of a topic from now on.
func (k *cluster) want(topic string) {
	if k.c.opts.routing == Proxy {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.names[topic] {
		return
	}
	k.names[topic] = true
	if !k.begun {
		k.begun = k.c.start(k.run)
		return
	}
	poke(k.asked)
}

// await waits until it is known who leads a topic, at most for a moment: it
// saves a detour, and nothing more.
func (k *cluster) await(ctx context.Context, topic string) {
	if k.c.opts.routing == Proxy {
		return
	}
	news := make(chan struct{}, 1)
	stop := k.listen(func() { poke(news) })
	defer stop()
	timer := time.NewTimer(awaitFor)
	defer timer.Stop()
	for k.view.Load().topics[topic] == nil {
		select {
		case <-news:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// listen calls f after every change of the view, until the returned function is
// called. f must not block.
func (k *cluster) listen(f func()) (stop func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lastKey++
	key := k.lastKey
	k.listeners[key] = f
	return func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		delete(k.listeners, key)
	}
}

// change replaces the view by what f makes of a copy, and tells the listeners.
// f returns false when nothing has changed.
func (k *cluster) change(f func(*clusterView) bool) {
	k.mu.Lock()
	old := k.view.Load()
	next := &clusterView{id: old.id, brokers: maps.Clone(old.brokers), topics: maps.Clone(old.topics)}
	if next.brokers == nil {
		next.brokers, next.topics = map[int32]string{}, map[string]*topicLeaders{}
	}
	if !f(next) {
		k.mu.Unlock()
		return
	}
	k.view.Store(next)
	fs := slices.Collect(maps.Values(k.listeners))
	k.mu.Unlock()
	for _, f := range fs {
		f()
	}
	k.c.prune()
}

// hint takes in what a broker said that does not lead a partition any more: it
// may know better than the watch. It is true when that was news.
func (k *cluster) hint(topic, id string, n int32, err error) (news bool) {
	e, ok := asError(err)
	if !ok || k.c.opts.routing == Proxy {
		return false
	}
	broker, hasBroker := e.Int("leader")
	epoch, hasEpoch := e.Int("leaderEpoch")
	if !hasBroker || !hasEpoch || broker < 0 {
		return false
	}
	k.change(func(v *clusterView) bool {
		t := v.topics[topic]
		if t == nil || id != "" && t.id != id || int(n) >= len(t.parts) || t.parts[n].epoch >= epoch {
			return false
		}
		next := &topicLeaders{id: t.id, parts: slices.Clone(t.parts)}
		next.parts[n] = leadership{broker: int32(broker), epoch: epoch} //nolint:gosec // a broker id
		v.topics[topic] = next
		if addr := e.Metadata["address"]; addr != "" {
			v.brokers[int32(broker)] = addr //nolint:gosec // a broker id
		}
		news = true
		return true
	})
	return news
}

// run watches until ctx ends: by push where the broker can, else by asking.
func (k *cluster) run(ctx context.Context) {
	for failures := 0; ctx.Err() == nil; {
		told, err := k.watch(ctx)
		if hasCode(err, codes.Unimplemented) {
			err = k.poll(ctx)
			if err == nil {
				failures = 0
				k.idle(ctx, pollInterval)
				continue
			}
		}
		if told {
			failures = 0
		}
		if err != nil {
			failures++
			// Those it has told of can tell, too, if no seed is left, or if this one knows
			// nothing of the cluster itself. That the seeds are others now does not say that
			// they can be reached.
			if !errors.Is(err, ErrUnreachable) && !errors.Is(err, ErrStaleMetadata) || k.askAround(ctx) || failures > 1 {
				k.idle(ctx, backoffFor(failures))
			}
		}
	}
}

// idle waits for d, or for a new name.
func (k *cluster) idle(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-k.asked:
	case <-ctx.Done():
	}
}

// wanted returns the topics to ask about, none for all: brokers refuse a question
// about more than so many.
func (k *cluster) wanted() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.names) > mostNamed {
		return nil
	}
	return slices.Sorted(maps.Keys(k.names))
}

// watch opens one watch and takes in what it tells, until it ends or another
// topic is wanted. told is true when it has told anything.
func (k *cluster) watch(ctx context.Context) (told bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	select {
	case <-k.asked: // it is among the names
	default:
	}
	stream, err := runnelv1.NewMetadataServiceClient(k.c.conn).WatchMetadata(ctx, &runnelv1.WatchMetadataRequest{Topics: k.wanted()})
	if err != nil {
		return false, rpcError(err)
	}
	over := make(chan struct{})
	var receiver sync.WaitGroup
	receiver.Go(func() {
		defer close(over)
		for {
			var m *runnelv1.WatchMetadataResponse
			if m, err = stream.Recv(); err != nil {
				return
			}
			told = true
			k.take(m.GetClusterId(), m.GetBrokers(), m.GetTopics(), m.GetDeletedTopicIds())
		}
	})
	for {
		select {
		case <-over:
			receiver.Wait()
			return told, rpcError(err)
		case <-k.asked:
		case <-k.doubted:
			if k.askAround(ctx) {
				continue
			}
		}
		cancel()
		receiver.Wait()
		return told, nil
	}
}

// doubt makes other brokers be asked, because one that is waited for is silent:
// if it is the one that should tell of its own end, nobody does. Where nothing is
// watched, nobody asks but who doubts.
func (k *cluster) doubt() {
	if k.c.opts.routing != Proxy {
		poke(k.doubted)
		return
	}
	select {
	case k.asking <- struct{}{}:
	default:
		return // somebody asks
	}
	begun := k.c.start(func(ctx context.Context) {
		k.askAround(ctx)
		<-k.asking
	})
	if !begun {
		<-k.asking
	}
}

// leftSilent reports whether a stream to p that began when the seeds had moved so
// often leads to a broker that has fallen silent, while they begin with another one.
// Its connection would be found dead long after.
func (k *cluster) leftSilent(p place, moves int64) bool {
	return p == viaSeed && k.moves.Load() != moves
}

// askAround asks all brokers that are known. It is false when the one that is
// watched does not answer and another one does: then the seeds begin with that.
func (k *cluster) askAround(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var watching sync.WaitGroup
	var watched error
	watching.Go(func() { watched = k.ask(ctx, k.c.conn) })
	good := k.among(func(conn *grpc.ClientConn) error { return k.ask(ctx, conn) })
	watching.Wait()
	if watched == nil || len(good) == 0 {
		return true
	}
	k.c.reseed(good)
	k.moves.Add(1)
	return false
}

// among asks all brokers that are known at once, and returns those that gave a good answer.
func (k *cluster) among(ask func(conn *grpc.ClientConn) error) (good []string) {
	var (
		asking sync.WaitGroup
		mu     sync.Mutex
	)
	for _, addr := range k.around() {
		asking.Go(func() {
			d, err := k.c.directTo(addr)
			if err == nil {
				err = ask(d.conn)
			}
			if err == nil {
				mu.Lock()
				defer mu.Unlock()
				good = append(good, addr)
			}
		})
	}
	asking.Wait()
	return good
}

// elsewhere looks for brokers that are with a controller. The seeds begin with
// those; false when there are none.
func (k *cluster) elsewhere(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	good := k.among(func(conn *grpc.ClientConn) error {
		resp, err := runnelv1.NewAdminServiceClient(conn).DescribeCluster(ctx, &runnelv1.DescribeClusterRequest{})
		if id := k.view.Load().id; err == nil && (resp.GetController() == "" || id != "" && id != resp.GetClusterId()) {
			return errForeign
		}
		return err
	})
	if len(good) == 0 {
		return false
	}
	k.c.reseed(good)
	k.moves.Add(1)
	return true
}

// ask asks one broker, once, for all that fits into its first page.
func (k *cluster) ask(ctx context.Context, conn *grpc.ClientConn) error {
	k.mu.Lock()
	begun := k.begun
	k.mu.Unlock()
	names := []string{noTopic}
	if begun {
		names = k.wanted()
	}
	resp, err := runnelv1.NewMetadataServiceClient(conn).GetMetadata(ctx, &runnelv1.GetMetadataRequest{Topics: names})
	if err != nil {
		return rpcError(err)
	}
	if id := k.view.Load().id; id != "" && id != resp.GetClusterId() {
		return errForeign
	}
	k.take(resp.GetClusterId(), resp.GetBrokers(), resp.GetTopics(), nil)
	return nil
}

// poll asks once.
func (k *cluster) poll(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	api := runnelv1.NewMetadataServiceClient(k.c.conn)
	for token := ""; ; {
		resp, err := api.GetMetadata(ctx, &runnelv1.GetMetadataRequest{Topics: k.wanted(), PageToken: token})
		if err != nil {
			return rpcError(err)
		}
		k.take(resp.GetClusterId(), resp.GetBrokers(), resp.GetTopics(), nil)
		if token = resp.GetNextPageToken(); token == "" {
			return nil
		}
	}
}

// take takes a piece of news in. A leadership that is older than what is known
// is no news.
func (k *cluster) take(id string, brokers []*runnelv1.BrokerMetadata, topics []*runnelv1.TopicMetadata, deleted []string) {
	if len(brokers)+len(topics)+len(deleted) == 0 {
		return
	}
	k.change(func(v *clusterView) bool {
		v.id = id
		if len(brokers) > 0 {
			clear(v.brokers)
		}
		for _, b := range brokers {
			v.brokers[b.GetBrokerId()] = b.GetAddress()
		}
		maps.DeleteFunc(v.topics, func(_ string, t *topicLeaders) bool { return slices.Contains(deleted, t.id) })
		for _, m := range topics {
			if m.GetError() == nil {
				v.topics[m.GetName()] = newTopicLeaders(m, v.topics[m.GetName()])
			}
		}
		return true
	})
}

func newTopicLeaders(m *runnelv1.TopicMetadata, old *topicLeaders) *topicLeaders {
	t := &topicLeaders{id: m.GetTopicId()}
	for i, p := range m.GetPartitions() {
		l := leadership{broker: noBroker, epoch: p.GetLeaderEpoch()}
		if p.Leader != nil {
			l.broker = p.GetLeader()
		}
		if old != nil && old.id == t.id && i < len(old.parts) && old.parts[i].epoch > l.epoch {
			l = old.parts[i]
		}
		t.parts = append(t.parts, l)
	}
	return t
}
