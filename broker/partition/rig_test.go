package partition

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/vfs"
)

// session notes what a set tells.
type session struct {
	// mu guards the fields below
	mu sync.Mutex

	reports   []metadata.ReplicaReport
	reported  bool
	removed   []uuid.UUID
	applied   int64
	confirmed bool
	handler   metadata.Handler
	proposals []metadata.Proposal
	asked     []metadata.LeadershipRequest
	released  []metadata.Released
}

func (s *session) Handle(h metadata.Handler) { s.handler = h }
func (s *session) Timeout() time.Duration    { return 3 * time.Second }

func (s *session) Propose(ps ...metadata.Proposal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.proposals = append(s.proposals, ps...)
}

func (s *session) AskLeader(r metadata.LeadershipRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, r)
}

func (s *session) Release(r metadata.Released) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = append(s.released, r)
}

// proposed returns the proposals so far, asks the requests.
func (s *session) proposed() []metadata.Proposal {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.proposals)
}

func (s *session) asks() []metadata.LeadershipRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

// answers takes the answers to hand-overs.
func (s *session) answers() []metadata.Released {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.released
	s.released = nil
	return out
}

func (s *session) Report(r []metadata.ReplicaReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reports, s.reported = r, true
}

func (s *session) Removed(id uuid.UUID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = append(s.removed, id)
}

func (s *session) Applied(rev int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.applied = rev
}

func (s *session) Confirmed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.confirmed
}

// rig is a set on a disk in memory, led by the images a test publishes.
type rig struct {
	*Set

	t       *testing.T
	mem     *vfs.Mem
	fault   *vfs.Fault
	root    *commitlog.Root
	store   *metadata.Store
	session *session
	reg     *prometheus.Registry
	image   *metadata.Image
	rev     int64
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	runErr  error
}

const me = 1

// newRig opens the data root on mem and starts the set. It must be called in a
// bubble, and ended.
func newRig(t *testing.T, mem *vfs.Mem) *rig {
	t.Helper()
	r := startRig(t, mem)
	r.session.mu.Lock()
	r.session.confirmed = true
	r.session.mu.Unlock()
	r.publish(broker(controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, "i"))
	return r
}

// startRig is newRig without an image, so that the first one finds the set in
// recovery, and without a confirmed session.
func startRig(t *testing.T, mem *vfs.Mem) *rig {
	t.Helper()
	r := &rig{t: t, mem: mem, fault: vfs.NewFault(mem), store: metadata.NewStore(me), session: &session{}, reg: prometheus.NewRegistry()}
	r.image = r.store.Load()
	root, err := commitlog.OpenRoot(r.fault, "data", commitlog.RootOptions{
		BrokerID: me, BootID: func() (string, error) { return "boot", nil }, ReserveBytes: -1, BallastBytes: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	r.root = root
	r.Set = NewSet(Config{Incarnation: "i"}, Deps{Root: root, Store: r.store, Session: r.session, Metrics: r.reg, Log: zerolog.Nop()})
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	r.wg.Go(func() { r.runErr = r.Run(ctx) })
	r.wg.Go(func() { _ = root.Run(ctx) })
	return r
}

// end stops all; crash leaves the disk as a kill would.
func (r *rig) end(crash bool) {
	r.t.Helper()
	r.cancel()
	r.wg.Wait()
	if crash {
		r.mem.Kill()
		return
	}
	r.Stop(ErrShuttingDown)
	if err := r.root.Close(1); err != nil {
		r.t.Errorf("close: %v", err)
	}
}

func broker(phase controllerv1.BrokerPhase, incarnation string) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
		BrokerId: me, Incarnation: incarnation, Phase: phase,
	}}}
}

// publish makes a new image and waits until the set acts on it.
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
	synctest.Wait()
	r.session.mu.Lock()
	defer r.session.mu.Unlock()
	if r.session.applied != r.rev && r.root.Failure().Err() == nil {
		r.t.Fatalf("revision %d is not applied, %d is", r.rev, r.session.applied)
	}
}

// topic publishes a topic of one partition led by this broker.
func (r *rig) topic(name string, flush controllerv1.FlushMode, configs map[string]string) *Partition {
	r.t.Helper()
	return r.topicOf(uuid.New(), name, flush, configs, 1)
}

func (r *rig) topicOf(id uuid.UUID, name string, flush controllerv1.FlushMode, configs map[string]string, epoch int64) *Partition {
	r.t.Helper()
	objects := metadatatest.TopicObjects(id, name, 1, me, epoch)
	objects[0].GetTopic().Configs = configs
	objects[1].GetPartition().Flush = flush
	r.publish(objects...)
	p, err := r.Get(id, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

func batch(t *testing.T, records int, ms int64) *record.Batch {
	t.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{})
	for i := range records {
		if err := b.Add([]byte("k"), fmt.Appendf(nil, "value-%d", i), nil, ms); err != nil {
			t.Fatal(err)
		}
	}
	out, err := b.Finish(record.CompressionNone, 0)
	if err != nil {
		t.Fatal(err)
	}
	return &out
}

func (r *rig) append(p *Partition, records int) Appended {
	r.t.Helper()
	a, err := p.Append(batch(r.t, records, time.Now().UnixMilli()), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return a
}

const (
	async  = controllerv1.FlushMode_FLUSH_MODE_ASYNC
	bySync = controllerv1.FlushMode_FLUSH_MODE_SYNC
)

func second[T any](_ T, err error) error { return err }

// series counts the series that name a topic.
func (r *rig) series(topic string) int {
	r.t.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.t.Fatal(err)
	}
	n := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "topic" && l.GetValue() == topic {
					n++
				}
			}
		}
	}
	return n
}
