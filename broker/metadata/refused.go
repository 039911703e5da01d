package metadata

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/telemetry"
	"github.com/runnelmq/runnel/internal/wire"
)

// An answered error is what a controller ended a session with, in its own words:
// without what gRPC writes before them.
type answeredError struct {
	err    error
	status *status.Status
}

func (a *answeredError) Error() string {
	if a.status.Code() == codes.Unimplemented {
		return "no controller answers there, but something else that speaks gRPC: is it the port of a broker?"
	}
	return wire.DialText(a.status.Message())
}

func (a *answeredError) Unwrap() error { return a.err }

// inItsWords returns err with the text of the status in it, if there is one.
func inItsWords(err error) error {
	if st, ok := statusIn(err); ok {
		return &answeredError{err, st}
	}
	return err
}

// statusIn finds the status that err came with, whatever is around it.
func statusIn(err error) (*status.Status, bool) {
	type holder interface {
		error
		GRPCStatus() *status.Status
	}
	h, ok := errors.AsType[holder](err)
	if !ok {
		return nil, false
	}
	return h.GRPCStatus(), true
}

// refused says whether a controller that can be reached does not take this
// broker, which stays so until somebody changes a configuration.
func refused(err error) bool {
	if errors.Is(err, ErrClusterMismatch) {
		return true
	}
	st, ok := statusIn(err)
	if !ok {
		return false
	}
	switch st.Code() {
	case codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented, codes.AlreadyExists:
		return true
	default:
		return false
	}
}

// attempts are what came of trying to register, while this broker is not.
type attempts struct {
	told map[attempt]*telemetry.Recurrence // of Run alone

	// mu guards the fields below
	mu sync.Mutex

	refusals map[string]string // by address, what the controller there said last
}

// An attempt is a way in which a controller does not take this broker. Texts
// differ from one time to the next.
type attempt struct {
	addr   string
	code   codes.Code
	reason runnelv1.ErrorReason
}

// failed notes that there is no session with the controller at addr, and says
// whether the log should tell: each way of it once in a while only.
func (a *attempts) failed(addr string, err error) zerolog.Level {
	st, _ := statusIn(err)
	way := attempt{addr, st.Code(), rpcerr.Reason(err)}
	if a.told == nil {
		a.told = map[attempt]*telemetry.Recurrence{}
	}
	if a.told[way] == nil {
		a.told[way] = &telemetry.Recurrence{}
	}
	a.mu.Lock()
	if a.refusals == nil {
		a.refusals = map[string]string{}
	}
	delete(a.refusals, addr)
	if refused(err) {
		a.refusals[addr] = err.Error()
	}
	a.mu.Unlock()
	if tell, _ := a.told[way].Again(time.Now(), complainEvery); tell {
		return zerolog.WarnLevel
	}
	return zerolog.DebugLevel
}

// referred notes that the controller at addr names another one to go to.
func (a *attempts) referred(addr string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	delete(a.refusals, addr)
}

// succeeded forgets who refused this broker.
func (a *attempts) succeeded() {
	a.mu.Lock()
	defer a.mu.Unlock()

	clear(a.refusals)
}

// at returns what the controller at addr refuses this broker for; "" when it
// does not.
func (a *attempts) at(addr string) string {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.refusals[addr]
}

// Refusal says why controllers that can be reached do not take this broker, for
// people; "" while none of them refuses it.
func (s *Session) Refusal() string {
	s.attempts.mu.Lock()
	defer s.attempts.mu.Unlock()

	// Controllers that say the same are one.
	return strings.Join(slices.Compact(slices.Sorted(maps.Values(s.attempts.refusals))), "; ")
}

// Refused is what is to be added to an error of a broker that no controller is
// there for, of what [Session.Refusal] says.
func Refused(why string) string {
	if why == "" {
		return ""
	}
	return "; the controllers refuse this broker: " + why
}
