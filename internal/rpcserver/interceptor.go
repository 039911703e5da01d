package rpcserver

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/telemetry"
)

// interceptors turn domain errors into statuses at the edge, where they are
// logged and counted too.
type interceptors struct {
	rules   []rpcerr.Rule
	log     zerolog.Logger
	metrics *metrics
	secret  string

	// mu guards the fields below
	mu sync.Mutex

	strangers telemetry.Recurrence
}

// strangersEvery is how often the log tells of callers without the secret: one
// that is configured wrongly tries again every second.
const strangersEvery = time.Minute

func newInterceptors(o Options) *interceptors {
	rules := append([]rpcerr.Rule{
		{Err: ErrMalformed, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		{Err: ErrTooLarge, Code: codes.InvalidArgument, Reason: runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE},
		{Err: ErrIdentity, Code: codes.PermissionDenied},
		{Err: errStranger, Code: codes.Unauthenticated, Reason: runnelv1.ErrorReason_ERROR_REASON_UNAUTHENTICATED},
	}, o.Rules...)
	return &interceptors{rules: rules, log: o.Log, metrics: newMetrics(o), secret: o.Secret}
}

func (ic *interceptors) unary(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	start := time.Now()
	var resp any
	err := ic.authenticate(ctx, info.FullMethod)
	if err == nil {
		err = refused(req)
	}
	if err == nil {
		resp, err = handler(ctx, req)
	}
	st := ic.status(ctx, info.FullMethod, err)
	ic.metrics.handled(info.FullMethod, st.Code(), time.Since(start))
	return resp, st.Err()
}

func (ic *interceptors) stream(
	srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler,
) error {
	done := ic.metrics.stream(info.FullMethod)
	err := ic.authenticate(ss.Context(), info.FullMethod)
	if err == nil {
		err = handler(srv, marked{ss})
	}
	st := ic.status(ss.Context(), info.FullMethod, err)
	done(st.Code())
	return st.Err()
}

// status translates err, and logs what no rule knows under an id that the
// caller gets to see.
func (ic *interceptors) status(ctx context.Context, method string, err error) *status.Status {
	if ours(method) && !errors.Is(err, errStranger) {
		return status.Convert(err) // gRPC's own services speak statuses
	}
	st, known := rpcerr.Status(ic.rules, err)
	if known {
		return st
	}
	traced := &rpcerr.TracedError{RequestID: rand.Text(), Err: err}
	ev := ic.log.Error().Str("method", method).Str("request_id", traced.RequestID).Err(err)
	if p, ok := peer.FromContext(ctx); ok {
		ev = ev.Str("peer", p.Addr.String())
	}
	ev.Msg("request failed with an unexpected error")
	st, _ = rpcerr.Status(ic.rules, traced)
	return st
}

// ours tells the services that come with gRPC, such as health and reflection.
func ours(method string) bool { return strings.HasPrefix(method, "/grpc.") }

// secretKey is the metadata key of the cluster secret.
const secretKey = "authorization"

// secretScheme begins its value.
const secretScheme = "Runnel-Cluster "

// errStranger refuses who does not know the cluster secret.
var errStranger = errors.New("this port is for brokers and controllers, and takes only calls that carry the cluster secret")

// authenticate lets pass who knows the cluster secret. Health checks need none:
// orchestrators have no secrets, and the answer tells nothing.
func (ic *interceptors) authenticate(ctx context.Context, method string) error {
	if ic.secret == "" || strings.HasPrefix(method, "/grpc.health.v1.") {
		return nil
	}
	carries := "none"
	md, _ := metadata.FromIncomingContext(ctx)
	for _, v := range md.Get(secretKey) {
		given, ok := strings.CutPrefix(v, secretScheme)
		if ok && subtle.ConstantTimeCompare([]byte(given), []byte(ic.secret)) == 1 {
			return nil
		}
		if ok {
			carries = "another one"
		}
	}
	ic.stranger(ctx, method, carries)
	return fmt.Errorf("%w, this one carries %s: set the same security.cluster_secret on every broker and controller; clients have another port", errStranger, carries)
}

// stranger tells the operator of a caller who was refused, once in a while.
func (ic *interceptors) stranger(ctx context.Context, method, carries string) {
	ic.mu.Lock()
	tell, before := ic.strangers.Again(time.Now(), strangersEvery)
	ic.mu.Unlock()
	if !tell {
		return
	}
	ev := ic.log.Warn().Str("method", method).Str("secret", carries).Int("times_before", before)
	if p, ok := peer.FromContext(ctx); ok {
		ev = ev.Str("peer", p.Addr.String())
	}
	ev.Msg("a caller without the cluster secret was refused: set the same security.cluster_secret on every broker and controller")
}

// marked is a server stream whose transport errors can be told from statuses
// of other servers, and which refuses malformed requests.
type marked struct {
	grpc.ServerStream
}

// SendMsg implements grpc.ServerStream.
func (s marked) SendMsg(m any) error { return rpcerr.Transport(s.ServerStream.SendMsg(m)) }

// RecvMsg implements grpc.ServerStream.
func (s marked) RecvMsg(m any) error {
	if err := s.ServerStream.RecvMsg(m); err != nil {
		return rpcerr.Transport(err)
	}
	return refused(m)
}
