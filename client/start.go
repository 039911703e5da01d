package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A Start is a place in a partition to begin reading at. The zero Start is
// [Earliest].
type Start struct {
	kind startKind
	n    int64
	at   time.Time
}

type startKind uint8

const (
	startEarliest startKind = iota
	startLatest
	startOffset
	startTime
	startBeforeEnd
)

// Earliest begins with the first record there is.
func Earliest() Start { return Start{} }

// Latest begins with the first record stored after Assign, or Seek, was called.
func Latest() Start { return Start{kind: startLatest} }

// AtOffset begins at an offset.
func AtOffset(offset int64) Start { return Start{kind: startOffset, n: offset} }

// AtTime begins with the first record whose time is t or later; when there is
// none, with the next one to be stored.
func AtTime(t time.Time) Start { return Start{kind: startTime, at: t} }

// BeforeEnd begins n records before the present end of each partition, or with
// the first one when there are fewer. Records that were compacted away count.
func BeforeEnd(n int64) Start { return Start{kind: startBeforeEnd, n: n} }

func (s Start) check() error {
	switch {
	case s.kind == startOffset && s.n < 0:
		return localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "offset %d: the first is 0", s.n)
	case s.kind == startBeforeEnd && s.n < 0:
		return localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "%d records before the end: want 0 or more", s.n)
	}
	return nil
}

// noOffset stands for a place that is not known.
const noOffset = -1

// A lookup finds out the offsets that a start and an end stand for.
type lookup struct {
	topic     string
	id        string
	partition int32
	start     Start
	atEnd     bool

	from, end int64 // the result: noOffset where nothing was asked
}

// queries returns what must be asked, in the order resolve wants the answers.
func (l *lookup) queries(iso runnelv1.Isolation) []*runnelv1.OffsetQuery {
	query := func() *runnelv1.OffsetQuery {
		q := &runnelv1.OffsetQuery{Topic: l.topic, Partition: &l.partition, Isolation: iso}
		if l.id != "" {
			q.TopicId = &l.id
		}
		return q
	}
	position := func(p runnelv1.Position) *runnelv1.OffsetQuery {
		q := query()
		q.Place = &runnelv1.OffsetQuery_Position{Position: p}
		return q
	}
	var qs []*runnelv1.OffsetQuery
	if l.atEnd || l.start.kind == startLatest || l.start.kind == startTime || l.start.kind == startBeforeEnd {
		qs = append(qs, position(runnelv1.Position_POSITION_LATEST))
	}
	if l.start.kind == startBeforeEnd {
		qs = append(qs, position(runnelv1.Position_POSITION_EARLIEST))
	}
	if l.start.kind == startTime {
		q := query()
		q.Place = &runnelv1.OffsetQuery_Timestamp{Timestamp: timestamppb.New(l.start.at)}
		qs = append(qs, q)
	}
	return qs
}

// resolve takes the answers to queries. EARLIEST stays open: it is for the
// broker to say when reading begins, because records may expire until then.
func (l *lookup) resolve(answers []*runnelv1.OffsetAnswer) error {
	for _, a := range answers {
		if err := itemError(a.GetError()); err != nil {
			return &PartitionError{Topic: l.topic, Partition: l.partition, Err: err}
		}
	}
	l.from, l.end = noOffset, noOffset
	latest := int64(noOffset)
	if len(answers) > 0 {
		latest = answers[0].GetOffset()
		l.id = answers[0].GetTopicId()
	}
	if l.atEnd {
		l.end = latest
	}
	switch l.start.kind {
	case startEarliest:
	case startOffset:
		l.from = l.start.n
		if l.atEnd && l.from > latest { // nothing would be fetched, and no broker would say so
			return &PartitionError{Topic: l.topic, Partition: l.partition, Err: localError(
				runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE, "offset %d is beyond the end, which is at %d", l.from, latest)}
		}
	case startLatest:
		l.from = latest
	case startBeforeEnd:
		l.from = max(latest-l.start.n, answers[1].GetOffset())
	case startTime:
		l.from = latest
		if answers[1].Offset != nil {
			l.from = answers[1].GetOffset()
		}
	}
	return nil
}

// maxQueries bounds one ListOffsets call.
const maxQueries = 1000

// resolveAll asks the brokers for all that ls need to know.
func (c *Client) resolveAll(ctx context.Context, ls []*lookup, iso runnelv1.Isolation) error {
	for len(ls) > 0 {
		var qs []*runnelv1.OffsetQuery
		n := 0
		for n < len(ls) && len(qs) < maxQueries {
			qs = append(qs, ls[n].queries(iso)...)
			n++
		}
		if err := c.resolveSome(ctx, ls[:n], qs); err != nil {
			return err
		}
		ls = ls[n:]
	}
	return nil
}

func (c *Client) resolveSome(ctx context.Context, ls []*lookup, qs []*runnelv1.OffsetQuery) error {
	if len(qs) == 0 {
		for _, l := range ls {
			if err := l.resolve(nil); err != nil {
				return err
			}
		}
		return nil
	}
	return persist(ctx, func(ctx context.Context) error {
		resp, err := runnelv1.NewAdminServiceClient(questions{c}).ListOffsets(ctx, &runnelv1.ListOffsetsRequest{Queries: qs})
		if err != nil {
			return rpcError(err)
		}
		answers := resp.GetOffsets()
		if len(answers) != len(qs) {
			return fmt.Errorf("list offsets: %d answers for %d questions", len(answers), len(qs))
		}
		for _, l := range ls {
			n := len(l.queries(runnelv1.Isolation_ISOLATION_UNSPECIFIED))
			if err := l.resolve(answers[:n]); err != nil {
				return err
			}
			answers = answers[n:]
		}
		return nil
	})
}

// persist calls f until it succeeds, fails for good, or ctx ends; then the
// error says what stood in the way.
func persist(ctx context.Context, f func(context.Context) error) error {
	var last error // of the tries that were answered
	for attempt := 1; ; attempt++ {
		one, cancel := context.WithTimeout(ctx, callTimeout)
		err := f(one)
		cancel()
		late := errors.Is(err, context.DeadlineExceeded)
		switch {
		case late && ctx.Err() != nil && last != nil:
			return fmt.Errorf("%w; the try before: %w", err, last)
		case err == nil, !Retriable(err) && !late, late && ctx.Err() != nil:
			return err
		case !late:
			last = err
		}
		pause(ctx, backoffFor(attempt))
		switch cause := context.Cause(ctx); {
		case cause == nil:
		case errors.Is(err, cause): // and it says so
			return err
		default:
			return fmt.Errorf("%w: %w", cause, err)
		}
	}
}
