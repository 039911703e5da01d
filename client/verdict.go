package client

import (
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/runnelmq/runnel/internal/wire"
)

var errLeaderMoved = errors.New("another broker leads the partition, and the former one did not answer")

// A verdict is what a broker, or the end of a stream, said about a batch.
type verdict struct {
	err       error
	base      int64
	stampMs   int64
	duplicate bool // it was stored before
	// again: nothing was stored, and it may be sent again.
	again bool
	// moved: and at once, since it is known where to.
	moved bool
	// split: it is too large, or a record in it is bad, and it may be sent in parts.
	split bool
	// lost: there will be no answer.
	lost bool
	// uncertain: the broker cannot say whether it stays.
	uncertain bool
	// outOfOrder: it was not stored this time, for its number is not the next.
	outOfOrder bool
	pause      time.Duration
}

// doubt reports whether the batch may be stored.
func (v *verdict) doubt() bool { return v.lost || v.uncertain }

// judge turns an answer into what it means for the batch.
func judge(r *wire.ProduceResponse, pt *partition) verdict {
	if r.Error == nil {
		v := verdict{base: r.BaseOffset, duplicate: r.Duplicate}
		if r.AppendTimeMs != wire.None {
			v.stampMs = r.AppendTimeMs
		}
		return v
	}
	err := itemError(r.Error)
	v := verdict{err: err, base: -1, pause: r.Error.GetRetryAfter().AsDuration()}
	switch {
	case misplaced(err):
		v.outOfOrder = true
		return v
	case errors.Is(err, ErrNotLeader):
		v.moved = pt.p.c.cluster.hint(pt.topic.name, pt.id, pt.number, err)
	}
	switch {
	case errors.Is(err, ErrOutcomeUnknown):
		v.uncertain = true
	case errors.Is(err, ErrRecordTooLarge):
		v.split = true
		pt.topic.stale()
	case errors.Is(err, ErrInvalidTimestamp), errors.Is(err, ErrInvalidRecord):
		v.split = true
	case errors.Is(err, ErrTopicNotFound), errors.Is(err, ErrPartitionNotFound):
		pt.topic.stale()
	case errors.Is(err, ErrTopicIDMismatch):
		pt.topic.replaced(pt.id)
	default:
		v.again = Retriable(err)
	}
	return v
}

// refusesStream reports whether err is about the caller and not about what was
// sent: nothing of a stream that begins with it is read.
func refusesStream(err error) bool {
	if u, ok := errors.AsType[*unreachableError](err); ok && u.distrust {
		return true
	}
	e, ok := asError(err)
	return ok && slices.Contains([]codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented}, e.Code)
}
