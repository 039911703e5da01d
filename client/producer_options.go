package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// Acks says how far a write must have come before it counts as acknowledged.
type Acks uint8

// The levels of acknowledgement.
const (
	// AcksAll waits until the record is committed: it survives the loss of any
	// broker that the topic's settings say it must. The default.
	AcksAll Acks = iota
	// AcksLeader waits for the leader alone.
	AcksLeader
	// AcksNone waits until a broker has read it. Results carry no offset, and a
	// record that is refused later is lost without a word.
	AcksNone
)

func (a Acks) proto() runnelv1.Acks {
	switch a {
	case AcksLeader:
		return runnelv1.Acks_ACKS_LEADER
	case AcksNone:
		return runnelv1.Acks_ACKS_NONE
	default:
		return runnelv1.Acks_ACKS_ALL
	}
}

// Compression says how batches are compressed on the wire and on disk.
type Compression uint8

// The compressions.
const (
	NoCompression Compression = iota
	Gzip
	Snappy
	LZ4
	Zstd
)

func (c Compression) record() record.Compression {
	switch c {
	case Gzip:
		return record.CompressionGzip
	case Snappy:
		return record.CompressionSnappy
	case LZ4:
		return record.CompressionLZ4
	case Zstd:
		return record.CompressionZstd
	default:
		return record.CompressionNone
	}
}

const (
	defaultBatchBytes      = 256 << 10
	defaultBufferedBytes   = 64 << 20
	defaultInFlight        = 5
	defaultDeliveryTimeout = 2 * time.Minute
	minBatchBytes          = 1 << 10
	maxBatchBytes          = record.MaxRecordSize
	// maxBatchRecords keeps the per-record bookkeeping of a batch small; it is
	// far below what brokers take.
	maxBatchRecords = 32 << 10
)

type producerOptions struct {
	acks        Acks
	compression Compression
	level       int
	partitioner Partitioner // nil: by key, keyless sticky
	batchBytes  int
	linger      time.Duration
	inFlight    int
	idempotent  bool
	buffered    int64
	failFull    bool
	delivery    time.Duration
	intercept   []Interceptor
}

// A ProducerOption changes how a Producer works. A nil one changes nothing.
type ProducerOption func(*producerOptions)

// RequireAcks sets the level of acknowledgement; [AcksAll] by default.
func RequireAcks(a Acks) ProducerOption { return func(o *producerOptions) { o.acks = a } }

// Compress sets the compression of batches, and its level: 0 is the
// compression's own default, and levels are those of the compression. By
// default batches are not compressed.
func Compress(c Compression, level int) ProducerOption {
	return func(o *producerOptions) { o.compression, o.level = c, level }
}

// PartitionBy sets what chooses partitions. By default records with a key go
// by its murmur2 hash, as with Kafka's clients; those without stay on one
// partition for a batch's worth of bytes and then move to another.
func PartitionBy(p Partitioner) ProducerOption { return func(o *producerOptions) { o.partitioner = p } }

// BatchBytes sets how many bytes of records a batch holds before it is sent,
// before compression; 256 KiB by default, 1 KiB to 3.5 MiB. A record larger
// than that has a batch of its own.
func BatchBytes(n int) ProducerOption { return func(o *producerOptions) { o.batchBytes = n } }

// Linger makes a batch that is not full wait up to d for more records. By
// default, 0, a batch is sent as soon as no other of its partition is
// unanswered: a lone record leaves at once, and under load batches fill by
// themselves. A full buffer and Flush end the wait.
func Linger(d time.Duration) ProducerOption { return func(o *producerOptions) { o.linger = d } }

// WithoutIdempotence makes the producer do without an identity, for brokers
// that give none. Then what is in doubt, such as when a connection broke before
// the answer, is never sent again, since that could store it twice: its outcome
// is unknown, and it may still be stored, after later records. And what was
// refused for a passing reason is sent again only while no later batch was
// stored, or else fails with [ErrOrder]. [AcksNone] implies it.
func WithoutIdempotence() ProducerOption { return func(o *producerOptions) { o.idempotent = false } }

// MaxInFlight sets how many batches of one partition may be unanswered; 5 by
// default, which is also the most with idempotence. Their order is kept
// whatever the number.
func MaxInFlight(n int) ProducerOption { return func(o *producerOptions) { o.inFlight = n } }

// MaxBufferedBytes bounds the memory of records whose outcome is not known
// yet; 64 MiB by default. When it is used up, Produce waits.
func MaxBufferedBytes(n int64) ProducerOption { return func(o *producerOptions) { o.buffered = n } }

// FailWhenFull makes Produce fail a record with [ErrBufferFull] instead of
// waiting for memory.
func FailWhenFull() ProducerOption { return func(o *producerOptions) { o.failFull = true } }

// DeliveryTimeout bounds the time from when Produce has taken a record, after
// any wait for memory, to its outcome, whatever happens; 2 minutes by default,
// at least 100 ms.
func DeliveryTimeout(d time.Duration) ProducerOption {
	return func(o *producerOptions) { o.delivery = d }
}

// An Interceptor sees every record that Produce is given, before its partition
// is chosen, in the goroutine of the caller: so it cannot change the order. It
// may change r, which is a copy, and add to r.Headers; what r points to belongs
// to the caller. What it returns, unless it is nil, is called with the record's
// outcome, before the record's own callback.
type Interceptor func(ctx context.Context, r *Record) func(Result)

// Intercept adds an interceptor. Several are called in the order they were
// added; their callbacks, in the opposite one.
func Intercept(i Interceptor) ProducerOption {
	return func(o *producerOptions) { o.intercept = append(o.intercept, i) }
}

func newProducerOptions(opts []ProducerOption) (producerOptions, error) {
	o := producerOptions{
		batchBytes: defaultBatchBytes,
		inFlight:   defaultInFlight,
		buffered:   defaultBufferedBytes,
		delivery:   defaultDeliveryTimeout,
		idempotent: true,
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	o.idempotent = o.idempotent && o.acks != AcksNone
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	check(o.acks <= AcksNone, "RequireAcks(%d): want AcksAll, AcksLeader or AcksNone", o.acks)
	check(o.compression <= Zstd, "Compress(%d): no such compression", o.compression)
	if o.compression <= Zstd {
		if err := record.CheckLevel(o.compression.record(), o.level); err != nil {
			errs = append(errs, fmt.Errorf("compress: %w", err))
		}
	}
	check(o.batchBytes >= minBatchBytes && o.batchBytes <= maxBatchBytes, "BatchBytes(%d): want %d to %d", o.batchBytes, minBatchBytes, maxBatchBytes)
	check(o.linger >= 0 && o.linger < o.delivery, "Linger(%v): want 0 or more, and less than the delivery timeout of %v", o.linger, o.delivery)
	check(o.inFlight >= 1 && o.inFlight <= 1000, "MaxInFlight(%d): want 1 to 1000", o.inFlight)
	check(!o.idempotent || o.inFlight <= defaultInFlight, "MaxInFlight(%d): want at most %d, or WithoutIdempotence", o.inFlight, defaultInFlight)
	check(o.buffered >= minBatchBytes, "MaxBufferedBytes(%d): want at least %d", o.buffered, minBatchBytes)
	check(!slices.ContainsFunc(o.intercept, func(i Interceptor) bool { return i == nil }), "Intercept(nil): want a function")
	check(o.delivery >= 100*time.Millisecond, "DeliveryTimeout(%v): want at least 100ms", o.delivery)
	return o, errors.Join(errs...)
}
