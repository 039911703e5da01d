package client

import (
	"context"
	"strings"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runnelmq/runnel/internal/wire"
)

// A door tells a client that was never let in, for its certificate or the
// broker's, from one that will be let in again: nothing mends the first, and it is
// to be told at once. Once it was in, it waits for others to mend theirs.
type door struct{ in atomic.Bool }

func (d *door) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	return d.judge(invoke(ctx, method, req, reply, cc, opts...))
}

func (d *door) stream(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	return s, d.judge(err)
}

func (d *door) judge(err error) error {
	switch st, ok := status.FromError(err); {
	case err == nil:
		d.in.Store(true)
	case ok && st.Code() == codes.Unavailable && !d.in.Load() && distrusts(st.Message()):
		return &unreachableError{text: wire.DialText(st.Message()), distrust: true}
	case ok && st.Code() == codes.Unavailable && neverConnected(st.Message()):
		return err // it says all there is to say by itself
	case ok && st.Code() == codes.Unavailable && !d.in.Load() && len(st.Details()) == 0 && slammed(st.Message()):
		return &unreachableError{text: wire.DialText(st.Message()) + ", and nothing was ever answered on one: " + wire.NoGRPC, lost: true}
	}
	return err
}

// slammed reports whether gRPC's text is about a connection that the other side
// closed while it was written to, as a port with TLS does to who speaks without.
func slammed(s string) bool {
	for _, part := range []string{"broken pipe", "connection reset by peer", "closed pipe"} {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}

// distrusts reports whether gRPC's text is about a handshake that was refused.
func distrusts(s string) bool {
	for _, part := range []string{"tls: failed to verify certificate", "x509: ", "tls: first record does not look like a TLS handshake", "remote error: tls: "} {
		if strings.Contains(s, part) {
			return true
		}
	}
	return false
}
