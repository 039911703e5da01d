package rpc

import (
	"time"

	"google.golang.org/grpc"
)

// fetch handles a ForwardFetch stream: a session of another broker, for one
// client of that.
func (s *ForwardService) fetch(ss grpc.ServerStream) error {
	f := s.logs.newFetcher(ss, true) // a ForwardFetchResponse has the shape of a ReadResponse
	f.forwarded = true
	f.bye.drain, f.bye.expires = s.drain, time.Time{}
	s.readers.Go(f.receive)
	return f.run(nil)
}
