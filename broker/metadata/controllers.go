package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/runnelmq/runnel/internal/wire"
)

// askTimeout is how long a controller may take to say that it is there.
const askTimeout = time.Second

// errNotServing is of a controller that answers, and takes no part yet.
var errNotServing = errors.New("it answers and does not serve: it is starting, or has no vote in the cluster's etcd")

// A ControllerState is what became of asking a controller how it is.
type ControllerState struct {
	Address string
	// Active is true of the one that this broker has its session with.
	Active bool
	// Err says why it does not serve; nil when it does.
	Err error
	// Refused is true when it serves, but not this broker; Err is what it says.
	Refused bool
}

// AskControllers asks all controllers that this broker was told of whether they
// serve, which takes a second at most. Of those that wait to take over nobody
// hears before they are needed, unless they are asked.
func (s *Session) AskControllers(ctx context.Context) []ControllerState {
	_, active, _ := s.Controller() // none: no address is equal to it
	states := make([]ControllerState, len(s.cfg.Controllers))
	var wg sync.WaitGroup
	for n, addr := range s.cfg.Controllers {
		states[n] = ControllerState{Address: addr, Active: addr == active}
		wg.Go(func() {
			states[n].Err = s.askController(ctx, addr)
			if why := s.attempts.at(addr); why != "" && states[n].Err == nil {
				states[n].Err, states[n].Refused = errors.New(why), true
			}
		})
	}
	wg.Wait()
	return states
}

func (s *Session) askController(ctx context.Context, addr string) error {
	conn, err := s.cfg.Dial(addr)
	if err != nil {
		return fmt.Errorf("dial %s: %w", addr, err)
	}
	defer func() { _ = conn.Close() }() // it only fails when it was closed before
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	health, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{})
	switch status.Code(err) {
	case codes.OK:
		if health.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			return errNotServing
		}
		return nil
	case codes.DeadlineExceeded:
		return fmt.Errorf("no answer within %s", askTimeout)
	default:
		return errors.New(wire.DialText(status.Convert(err).Message()))
	}
}
