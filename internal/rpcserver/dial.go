package rpcserver

import (
	"context"
	"net"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/keepalive"

	"github.com/runnelmq/runnel/internal/wire"
)

// DialOptions say what a connection inside the cluster needs beside what all
// of them have.
type DialOptions struct {
	TLS    credentials.TransportCredentials // nil: plaintext
	Secret string                           // the cluster secret, "" for none
	Codec  encoding.CodecV2                 // nil: plain Protobuf
	// Dial opens the transport; nil: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)
}

// Dial returns a connection to addr, host:port. It does no I/O: the first call
// connects, and calls fail fast while the other side can't be reached. It stays,
// however long nothing is called. gRPC's own retries are off, because a write
// whose outcome is unknown must not be sent twice behind our back; and a stream
// ends with the connection that it was opened on (wire.Placed).
func Dial(addr string, o DialOptions) (*grpc.ClientConn, error) {
	stream, conn := InternalPort.windows()
	opts := []grpc.DialOption{
		grpc.WithReadBufferSize(ioBuffer),
		grpc.WithWriteBufferSize(ioBuffer),
		grpc.WithStaticStreamWindowSize(stream),
		grpc.WithStaticConnWindowSize(conn),
		grpc.WithDisableRetry(),
		grpc.WithStreamInterceptor(wire.Placed),
		grpc.WithNoProxy(),
		grpc.WithIdleTimeout(0), // it is pinged, so it may as well be there for the next call
		// Twice the least the servers allow, so that they never see too many pings.
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 2 * time.Second,
		}),
		grpc.WithDefaultCallOptions(callOptions(o.Codec)...),
	}
	if o.TLS != nil {
		opts = append(opts, grpc.WithTransportCredentials(o.TLS))
	} else {
		opts = append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))
	}
	if o.Secret != "" {
		opts = append(opts, grpc.WithPerRPCCredentials(secretCredentials(o.Secret)))
	}
	if o.Dial != nil {
		opts = append(opts, grpc.WithContextDialer(o.Dial))
	}
	// passthrough: the dialer resolves the name at each attempt, so that a
	// broker that moved is found. Escaped: the % before the zone of an IPv6
	// address is one of a URL, else.
	return grpc.NewClient("passthrough:///"+url.PathEscape(addr), opts...)
}

func callOptions(codec encoding.CodecV2) []grpc.CallOption {
	opts := []grpc.CallOption{grpc.MaxCallRecvMsgSize(MaxMessage)}
	if codec != nil {
		opts = append(opts, grpc.ForceCodecV2(codec))
	}
	return opts
}

// secretCredentials carry the cluster secret.
type secretCredentials string

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (s secretCredentials) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{secretKey: secretScheme + string(s)}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials. Whether a
// network may see the secret is the operator's choice, made with the TLS
// options.
func (secretCredentials) RequireTransportSecurity() bool { return false }
