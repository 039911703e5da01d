package wire

import (
	"context"

	"google.golang.org/grpc"
)

// Placed is a grpc.StreamClientInterceptor: a stream on which a client sends as it
// likes ends with the connection that it was opened on, with UNAVAILABLE.
//
// Else gRPC opens it once more on the next connection, and sends again what was sent,
// when the other side has certainly not looked at it; grpc.WithDisableRetry does not
// change that. Whoever has seen the end, the sender or the receiver, then waits for
// that connection with a mutex of the stream held. The other one waits for the mutex,
// and so looks at no deadline of its own; and in a testing/synctest bubble a wait for
// a mutex stops the clock, so that the connection never comes. Who has such a stream
// opens the next one anyway, and perhaps elsewhere.
//
// What gRPC does until the stream is opened, it still does: there is one goroutine then.
func Placed(
	ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption,
) (grpc.ClientStream, error) {
	s, err := open(ctx, desc, cc, method, opts...)
	if err == nil && desc.ClientStreams {
		// Documented: "Once called, subsequent client-side retries are disabled."
		s.Context()
	}
	return s, err
}
