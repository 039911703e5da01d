package coordinator

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

const me = 1

// A fakeSession is the controller's side as far as a Set needs it.
type fakeSession struct {
	// mu guards the fields below
	mu sync.Mutex

	confirmed bool
	silent    bool // it confirmed a while ago, and answers nothing
}

func (s *fakeSession) Report([]metadata.ReplicaReport)      {}
func (s *fakeSession) Removed(uuid.UUID)                    {}
func (s *fakeSession) Applied(int64)                        {}
func (s *fakeSession) Handle(metadata.Handler)              {}
func (s *fakeSession) Propose(...metadata.Proposal)         {}
func (s *fakeSession) AskLeader(metadata.LeadershipRequest) {}
func (s *fakeSession) Release(metadata.Released)            {}
func (s *fakeSession) Timeout() time.Duration               { return 3 * time.Second }

func (s *fakeSession) Confirmed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

// CatchUp is that of metadata.Session.
func (s *fakeSession) CatchUp(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.silent || !s.confirmed {
		return metadata.ErrNoController
	}
	return nil
}

func (s *fakeSession) silence(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = on
}

func (s *fakeSession) confirm(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.confirmed = on
}

// A rig is a broker's partitions on a disk in memory, and a coordinator. Use it
// in a bubble, and end it.
type rig struct {
	*Coordinator

	t       testing.TB
	settle  func()              // lets everything come to rest, in a bubble
	pause   func(time.Duration) // lets time go by
	cfg     Config
	mem     *vfs.Mem
	fault   *vfs.Fault
	root    *commitlog.Root
	set     *partition.Set
	store   *metadata.Store
	session *fakeSession
	reg     *prometheus.Registry
	image   *metadata.Image
	rev     int64
	epoch   int64 // leader epoch of Topic
	offsets uuid.UUID
	shards  int32
	measure Measurer
	log     zerolog.Logger

	stop   context.CancelFunc // of the coordinator
	cancel context.CancelFunc
	runs   sync.WaitGroup // the coordinator
	wg     sync.WaitGroup
}

func newRig(t *testing.T, cfg Config, shards int32) *rig {
	t.Helper()
	mem := vfs.NewMem()
	fault := vfs.NewFault(mem)
	r := makeRig(t, cfg, shards, fault, "data", synctest.Wait, pause)
	r.mem, r.fault = mem, fault
	return r
}

// makeRig makes one that is on any disk, in a bubble or not.
func makeRig(tb testing.TB, cfg Config, shards int32, disk vfs.FS, dir string, settle func(), pause func(time.Duration)) *rig {
	tb.Helper()
	r := &rig{
		t: tb, settle: settle, pause: pause, cfg: cfg, store: metadata.NewStore(me), session: &fakeSession{confirmed: true},
		offsets: uuid.New(), shards: shards, log: zerolog.Nop(),
	}
	r.image = r.store.Load()
	root, err := commitlog.OpenRoot(disk, dir, commitlog.RootOptions{
		BrokerID: me, BootID: func() (string, error) { return "boot", nil }, ReserveBytes: -1, BallastBytes: -1,
	})
	if err != nil {
		tb.Fatal(err)
	}
	r.root = root
	r.set = partition.NewSet(partition.Config{Incarnation: "i"}, partition.Deps{Root: root, Store: r.store, Session: r.session, Log: zerolog.Nop()})
	ctx, cancel := context.WithCancel(context.Background())
	r.cancel = cancel
	r.wg.Go(func() { _ = r.set.Run(ctx) })
	r.wg.Go(func() { _ = root.Run(ctx) })
	r.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
		BrokerId: me, Incarnation: "i", Phase: controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE,
	}}})
	r.epoch = 1
	objects := metadatatest.TopicObjects(r.offsets, Topic, shards, me, r.epoch)
	objects[0].GetTopic().Internal = true
	objects[0].GetTopic().Configs = map[string]string{"max.message.bytes": "3670016"}
	r.publish(objects...)
	r.start()
	return r
}

// start starts a new coordinator on the same logs.
func (r *rig) start() {
	r.t.Helper()
	r.reg = prometheus.NewRegistry()
	r.Coordinator = New(r.cfg, Deps{Store: r.store, Local: r.set.Get, CatchUp: r.session.CatchUp, Measure: r.measure, Metrics: r.reg, Log: r.log})
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	c := r.Coordinator
	r.runs.Go(func() { _ = c.Run(ctx) })
	r.ready()
}

// ready waits until every shard serves.
func (r *rig) ready() {
	r.t.Helper()
	for range 1000 {
		r.settle()
		shards := r.all()
		serving := 0
		for _, s := range shards {
			if s.serving() == nil {
				serving++
			}
		}
		if serving == int(r.shards) {
			return
		}
		r.pause(100 * time.Millisecond)
	}
	r.t.Fatal("the coordinator does not serve")
}

// pause lets time go by in the bubble.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) end() {
	r.t.Helper()
	r.stop()
	r.runs.Wait()
	r.cancel()
	r.wg.Wait()
	r.set.Stop(partition.ErrShuttingDown)
	if err := r.root.Close(1); err != nil {
		r.t.Errorf("close: %v", err)
	}
}

func (r *rig) publish(objects ...*controllerv1.MetadataObject) {
	r.t.Helper()
	r.rev++
	for _, o := range objects {
		o.Revision = r.rev
	}
	img, err := r.image.Next(1, r.rev, objects)
	if err != nil {
		r.t.Fatal(err)
	}
	r.image = img
	r.store.Publish(img)
	r.settle()
}

// topic makes a topic that this broker leads.
func (r *rig) topic(name string, partitions int32) *group.Topic {
	r.t.Helper()
	id := uuid.New()
	r.publish(metadatatest.TopicObjects(id, name, partitions, me, 1)...)
	return &group.Topic{ID: id, Name: name, Partitions: partitions}
}

// lead gives all partitions of Topic another leader epoch, with the given ISR.
func (r *rig) lead(isr ...int32) {
	r.t.Helper()
	r.epoch++
	var objects []*controllerv1.MetadataObject
	for n := range r.shards {
		o := metadatatest.PartitionObject(r.offsets, n, me, r.epoch)
		o.GetPartition().Isr = isr
		o.GetPartition().Replicas = []int32{1, 2}
		if len(isr) == 0 { // nobody leads
			o.GetPartition().Leader = -1
			o.GetPartition().Isr = []int32{1}
		}
		objects = append(objects, o)
	}
	r.publish(objects...)
}

// A consumer is a member that carries out what it is told.
type consumer struct {
	r     *rig
	m     *Membership
	id    string
	n     int32
	group string
	terms group.Terms

	epoch  int64
	last   *Assignment
	joined *group.Joined
	err    error
	ended  bool
	pongs  []uint64
}

func (r *rig) consumer(id string, terms group.Terms) *consumer {
	r.t.Helper()
	c := &consumer{r: r, id: id, group: "g", n: Number("g", int(r.shards)), terms: terms}
	c.connect(0)
	return c
}

func (c *consumer) connect(epoch int64) {
	c.r.t.Helper()
	m, err := c.r.Open(c.n, c.group)
	if err != nil {
		c.r.t.Fatal(err)
	}
	c.m, c.err, c.ended = m, nil, false
	_ = m.Join(c.r.t.Context(), c.id, epoch, c.terms, 1)
	c.listen()
}

// listen takes all news in.
func (c *consumer) listen() {
	c.r.t.Helper()
	for {
		synctest.Wait()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		news, err := c.m.Next(ctx)
		if err != nil {
			return
		}
		if news.Joined != nil {
			c.joined, c.epoch = news.Joined, news.Joined.Epoch
		}
		if news.Pong != nil {
			c.pongs = append(c.pongs, *news.Pong)
		}
		if a := news.Assignment; a != nil {
			c.last, c.epoch = a, a.MemberEpoch
			c.report()
		}
		if news.Err != nil || news.End {
			c.err, c.ended = news.Err, true
			return
		}
	}
}

func (c *consumer) report() {
	owned := map[group.Part]bool{}
	for _, p := range c.last.Parts {
		owned[p.Part] = true
	}
	_ = c.m.Own(c.r.t.Context(), c.last.Revision, owned, 0)
}

func (c *consumer) commit(offset int64, parts ...group.Part) error {
	c.r.t.Helper()
	return c.r.commit(c.group, c.id, c.epoch, offset, parts...)
}

func (r *rig) commit(id, member string, epoch, offset int64, parts ...group.Part) error {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	var commits []group.Commit
	for _, p := range parts {
		commits = append(commits, group.Commit{Part: p, Offset: offset, LeaderEpoch: -1})
	}
	taken, err := r.Commit(ctx, Number(id, int(r.shards)), id, member, epoch, commits)
	for _, one := range taken {
		if err == nil {
			err = one.Err
		}
	}
	return err
}

// committed returns the durable offset of a partition; -1: none.
func (r *rig) committed(id string, p group.Part) int64 {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	all, err := r.Committed(ctx, Number(id, int(r.shards)), id)
	if err != nil {
		return -1
	}
	for _, o := range all {
		if o.Part == p {
			return o.Offset
		}
	}
	return -1
}

func (r *rig) describe(id string) *Description {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	d, err := r.Describe(ctx, Number(id, int(r.shards)), id)
	if err != nil {
		r.t.Fatalf("describe %s: %v", id, err)
	}
	return d
}

func reads(topics ...string) group.Terms {
	return group.Terms{Topics: topics, Assignor: group.Sticky, Session: 10 * time.Second, Rebalance: time.Minute}
}

func memberID(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func wantEqual[T any](tb testing.TB, what string, want, got T) {
	tb.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		tb.Errorf("%s (-want +got):\n%s", what, diff)
	}
}
