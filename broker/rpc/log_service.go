package rpc

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

// Defaults of LogOptions.
const (
	DefaultMaxInflight     = 1000
	DefaultMaxStreamAge    = 30 * time.Minute
	DefaultGoawayGrace     = 10 * time.Second
	DefaultFetchBuffer     = 256 << 20
	minFetchBuffer         = 16 << 20 // two of the largest batches in each half
	defaultProduceTimeout  = 30 * time.Second
	longestProduceTimeout  = 5 * time.Minute
	parallelDecompressions = 4
)

// LogOptions are what LogService needs.
type LogOptions struct {
	Store      *metadata.Store
	Partitions *partition.Set
	// Rules spell every error that may reach an answer.
	Rules   []rpcerr.Rule
	Metrics prometheus.Registerer // may be nil
	// Pool is the one the server's codec uses too.
	Pool *wire.Pool

	// MaxInflight is how many unanswered requests a Produce stream may have
	// before the broker stops reading it. 0: DefaultMaxInflight.
	MaxInflight int
	// MaxStreamAge, ± 20 %, is after how long a stream is asked to move on.
	// 0: DefaultMaxStreamAge, negative: never.
	MaxStreamAge time.Duration
	// GoawayGrace is how long a client has to half-close after a Goaway.
	// 0: DefaultGoawayGrace.
	GoawayGrace time.Duration
	// FetchBuffer is how many bytes of responses on their way all Fetch streams
	// together may hold. Clients that do not read what they were sent may hold as
	// much again. 0: DefaultFetchBuffer; at least 16 MiB.
	FetchBuffer int64
	// Router takes what other brokers lead to them. nil: nobody does, and clients
	// are told who leads.
	Router *router.Router
	// Find catches up with the controller about a topic that the image does not
	// have. nil: the image is all there is.
	Find func(ctx context.Context, name, id string) (*metadata.Topic, error)
	// CatchUp is that of metadata.Session. nil: as with Find.
	CatchUp func(ctx context.Context) error
}

func (o LogOptions) withDefaults() LogOptions {
	if o.MaxInflight <= 0 {
		o.MaxInflight = DefaultMaxInflight
	}
	if o.MaxStreamAge == 0 {
		o.MaxStreamAge = DefaultMaxStreamAge
	}
	if o.GoawayGrace <= 0 {
		o.GoawayGrace = DefaultGoawayGrace
	}
	if o.FetchBuffer == 0 {
		o.FetchBuffer = DefaultFetchBuffer
	}
	o.FetchBuffer = max(o.FetchBuffer, minFetchBuffer)
	if o.Pool == nil {
		o.Pool = wire.NewPool()
	}
	return o
}

// A LogService serves runnel.v1.LogService. It reads and writes messages as
// bytes: its server needs a wire.Codec.
type LogService struct {
	opts      LogOptions
	metrics   *logMetrics
	codec     *record.Codec
	validator *record.Validator
	builders  sync.Pool // of *builder
	budget    *fetchBudget
	// groups keeps commits; nil: nobody does.
	groups *GroupService
	// unpacking holds one token for each batch that is being decompressed.
	unpacking chan struct{}

	// drain is closed by Drain.
	drain     chan struct{}
	drainOnce sync.Once
	// readers are the goroutines that receive for streams. gRPC lets go of a
	// blocked receive only after the handler returned, so they outlive their
	// handlers a little; Wait joins them.
	readers sync.WaitGroup
}

// NewLogService returns a service that starts nothing until it is called.
func NewLogService(o LogOptions) *LogService {
	o = o.withDefaults()
	codec := record.NewCodec()
	budget := newFetchBudget(o.FetchBuffer)
	return &LogService{
		opts:      o,
		metrics:   newLogMetrics(o.Metrics, budget),
		codec:     codec,
		validator: record.NewValidator(codec, parallelDecompressions),
		budget:    budget,
		unpacking: make(chan struct{}, parallelDecompressions),
		drain:     make(chan struct{}),
	}
}

// Register adds the service to a server. It registers handlers of its own
// instead of the generated ones, which would decode every message.
func (s *LogService) Register(r grpc.ServiceRegistrar) {
	stream := func(name string, clientStreams bool, h func(grpc.ServerStream) error) grpc.StreamDesc {
		return grpc.StreamDesc{
			StreamName: name, ServerStreams: true, ClientStreams: clientStreams,
			Handler: func(_ any, ss grpc.ServerStream) error { return h(ss) },
		}
	}
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: runnelv1.LogService_ServiceDesc.ServiceName,
		HandlerType: (*any)(nil),
		Methods:     []grpc.MethodDesc{{MethodName: "Append", Handler: s.appendHandler}},
		Streams: []grpc.StreamDesc{
			stream("Produce", true, s.produce),
			stream("Fetch", true, s.fetch),
			stream("Commit", true, s.commit),
			stream("Read", false, s.read),
		},
		Metadata: runnelv1.LogService_ServiceDesc.Metadata,
	}, s)
}

// Drain asks every stream to end: clients get a Goaway and have the grace
// period to half-close. It does not wait.
func (s *LogService) Drain() { s.drainOnce.Do(func() { close(s.drain) }) }

// Wait returns when no goroutine of the service runs any more. Call it when the
// server has stopped.
func (s *LogService) Wait() { s.readers.Wait() }

// farewell returns when and how a stream that begins now is to end.
func (s *LogService) farewell(now time.Time) farewell {
	f := farewell{drain: s.drain, grace: s.opts.GoawayGrace}
	if age := s.opts.MaxStreamAge; age > 0 {
		spread := time.Duration(float64(age) * 0.4 * (rand.Float64() - 0.5)) //nolint:gosec // spreading load needs no secret
		f.expires = now.Add(age + spread)
	}
	return f
}

// topic finds the active topic of that name.
func (s *LogService) topic(ctx context.Context, name, id string) (*metadata.Topic, error) {
	t, err := s.opts.Store.Load().Resolve(name, id)
	if err != nil && s.opts.Find != nil {
		return s.opts.Find(ctx, name, id)
	}
	return t, err
}

// item spells an error inside an answer.
func (s *LogService) item(err error) *runnelv1.ItemError { return rpcerr.Item(s.opts.Rules, err) }

// logMetrics count records and bytes.
type logMetrics struct {
	producedRecords, producedBytes, fetchedRecords, fetchedBytes prometheus.Counter
	// refused counts writes that were not stored although nobody waits for an
	// answer that says so.
	refused prometheus.Counter
	// parked counts writes between their append and their commit.
	parked prometheus.Gauge
}

func newLogMetrics(reg prometheus.Registerer, budget *fetchBudget) *logMetrics {
	auto := promauto.With(reg)
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fetch_waiting_streams", Help: "Readers' streams that wait for memory for their next response.",
	}, func() float64 { waiting, _ := budget.pressure(); return float64(waiting) })
	auto.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "fetch_stuck_bytes", Help: "Bytes that were sent to readers who have not read for a second.",
	}, func() float64 { _, aside := budget.pressure(); return float64(aside) })
	counter := func(name, help string) prometheus.Counter {
		return auto.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
	}
	return &logMetrics{
		producedRecords: counter("produce_records_total", "Records that were appended."),
		producedBytes:   counter("produce_bytes_total", "Bytes that were appended, as stored."),
		fetchedRecords:  counter("fetch_records_total", "Records that were sent to readers."),
		fetchedBytes:    counter("fetch_bytes_total", "Bytes that were sent to readers, serialized."),
		parked: auto.NewGauge(prometheus.GaugeOpts{
			Name: "produce_waiting_requests", Help: "Appended writes that wait to be committed.",
		}),
		refused: counter("produce_unacknowledged_failures_total", "Writes with acks NONE that were not stored."),
	}
}
