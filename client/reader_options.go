package client

import (
	"errors"
	"fmt"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A ResetPolicy says where a Reader goes on when the offset it wants is not, or
// no longer, in the log.
type ResetPolicy uint8

// The policies.
const (
	// ResetFail stops the partition with an error: no record is skipped, and
	// none read twice, without the program's knowing. The default.
	ResetFail ResetPolicy = iota
	// ResetEarliest goes on with the first record there is.
	ResetEarliest
	// ResetLatest goes on at the end.
	ResetLatest
	// ResetNearest goes on at whichever end of the log is nearer.
	ResetNearest
)

const (
	defaultPrefetch = 8 << 20
	minPrefetch     = 64 << 10
	maxPrefetch     = 1 << 30
	minResponse     = 64 << 10
	maxResponse     = 1 << 20
)

type readerOptions struct {
	prefetch     int
	isolation    runnelv1.Isolation
	reset        ResetPolicy
	retryTimeout time.Duration
}

// A ReaderOption changes how a Reader works. A nil one changes nothing.
type ReaderOption func(*readerOptions)

// Prefetch bounds the bytes of records that were received and not yet read; 8
// MiB by default, 64 KiB to 1 GiB. One response, of 1 MiB or of one large
// batch, may go over it.
func Prefetch(bytes int) ReaderOption { return func(o *readerOptions) { o.prefetch = bytes } }

// ReadUncommitted also reads records of transactions that are not committed.
func ReadUncommitted() ReaderOption {
	return func(o *readerOptions) { o.isolation = runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED }
}

// OnOutOfRange sets what happens when an offset is not in the log, or the log was
// cut below what had been read; [ResetFail] by default. Where the log was cut is
// then the end for [ResetLatest] and [ResetNearest]: what was stored there since
// is read.
func OnOutOfRange(p ResetPolicy) ReaderOption { return func(o *readerOptions) { o.reset = p } }

// RetryTimeout makes reading fail when it has been hindered for that long
// without a break, such as by a broker that cannot be reached. By default, 0,
// it goes on trying until the context of the caller ends.
func RetryTimeout(d time.Duration) ReaderOption {
	return func(o *readerOptions) { o.retryTimeout = d }
}

func newReaderOptions(opts []ReaderOption) (readerOptions, error) {
	o := readerOptions{prefetch: defaultPrefetch, isolation: runnelv1.Isolation_ISOLATION_READ_COMMITTED}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	var errs []error
	if o.prefetch < minPrefetch || o.prefetch > maxPrefetch {
		errs = append(errs, fmt.Errorf("Prefetch(%d): want %d to %d", o.prefetch, minPrefetch, maxPrefetch))
	}
	if o.reset > ResetNearest {
		errs = append(errs, fmt.Errorf("OnOutOfRange(%d): no such policy", o.reset))
	}
	if o.retryTimeout < 0 {
		errs = append(errs, fmt.Errorf("RetryTimeout(%v): want 0 or more", o.retryTimeout))
	}
	return o, errors.Join(errs...)
}
