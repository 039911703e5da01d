// Package rpcserver builds gRPC servers and client connections, with all
// their options in one place.
package rpcserver

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/runnelmq/runnel/internal/rpcerr"
)

// A Port says who calls, and so how much memory a connection may claim.
type Port uint8

// The ports.
const (
	ClientPort   Port = iota // clients: a stalled producer costs one stream window
	InternalPort             // brokers and controllers
)

const (
	ioBuffer = 256 << 10 // this, not the windows, is what buys a third of the throughput
	// MaxMessage is the largest message a server takes: the 4 MiB every gRPC
	// runtime takes, and room for the frame around a batch of that size.
	MaxMessage = 4<<20 + 64<<10
	// maxRead is what is read of a larger one, so that it can be refused with a
	// reason. Beyond it gRPC itself ends the call with RESOURCE_EXHAUSTED.
	maxRead    = 16 << 20
	maxStreams = 1000
)

// windows returns the static stream and connection windows of a port.
func (p Port) windows() (stream, conn int32) {
	if p == InternalPort {
		return 16 << 20, 64 << 20
	}
	return 2 << 20, 16 << 20
}

// Options say what a server needs beside what all servers have.
type Options struct {
	Port    Port
	Rules   []rpcerr.Rule
	Log     zerolog.Logger
	Metrics prometheus.Registerer            // may be nil
	Codec   encoding.CodecV2                 // nil: plain Protobuf
	TLS     credentials.TransportCredentials // nil: plaintext
	Secret  string                           // when set, every call but health checks must carry it
	// NoReflection leaves out the services that describe the others.
	NoReflection bool
}

// A Server is a gRPC server with health and, unless it is left out, reflection. Its services are not
// serving until SetReady says so: a broker accepts connections while it is
// still recovering.
type Server struct {
	*grpc.Server

	health *health.Server
	// mu guards the fields below
	mu sync.Mutex

	ready bool
}

// handshakeTimeout is how long a connection may take to become one: whoever
// connects and says nothing holds a shutdown up for that long.
const handshakeTimeout = 5 * time.Second

// New returns a server with everything set but its services.
func New(o Options) *Server {
	stream, conn := o.Port.windows()
	ic := newInterceptors(o)
	opts := []grpc.ServerOption{
		grpc.ReadBufferSize(ioBuffer),
		grpc.WriteBufferSize(ioBuffer),
		grpc.StaticStreamWindowSize(stream),
		grpc.StaticConnWindowSize(conn),
		grpc.MaxRecvMsgSize(maxRead),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 10 * time.Second}),
		grpc.ForceServerCodecV2(tolerant{codecOr(o.Codec)}),
		grpc.WaitForHandlers(true),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.ChainUnaryInterceptor(ic.unary),
		grpc.ChainStreamInterceptor(ic.stream),
	}
	if o.TLS != nil {
		opts = append(opts, grpc.Creds(o.TLS))
	}
	s := &Server{Server: grpc.NewServer(opts...), health: health.NewServer()}
	s.health.SetServingStatus("", healthpb.HealthCheckResponse_NOT_SERVING)
	healthpb.RegisterHealthServer(s.Server, s.health)
	if !o.NoReflection {
		reflection.Register(s.Server) // v1 and v1alpha
	}
	return s
}

// Recovering announces that all services registered so far exist and do not
// serve yet. Call it after registering them, before serving.
func (s *Server) Recovering() { s.set(healthpb.HealthCheckResponse_NOT_SERVING) }

// SetReady announces that all services serve, or that none does any more.
func (s *Server) SetReady(ready bool) {
	s.mu.Lock()
	changed := s.ready != ready
	s.ready = ready
	s.mu.Unlock()
	if !changed {
		return
	}
	if ready {
		s.set(healthpb.HealthCheckResponse_SERVING)
	} else {
		s.set(healthpb.HealthCheckResponse_NOT_SERVING)
	}
}

func (s *Server) set(st healthpb.HealthCheckResponse_ServingStatus) {
	s.health.SetServingStatus("", st)
	for name := range s.GetServiceInfo() {
		s.health.SetServingStatus(name, st)
	}
}
