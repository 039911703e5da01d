package main

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// The methods of a node under load.
const (
	produceMethod = runnelv1.LogService_Produce_FullMethodName
	fetchMethod   = runnelv1.LogService_Fetch_FullMethodName
)

// A ready is a produce request as it goes over the wire, made once.
type ready struct {
	bytes   []byte
	records int
}

// readyBatch makes a request with one batch of about size bytes of records
// with random values of valueSize bytes, which do not compress.
func readyBatch(topic string, partition int32, valueSize, size int) (ready, error) {
	rng := rand.New(rand.NewPCG(uint64(valueSize), uint64(partition)))
	set := &runnelv1.RecordSet{}
	for n := 0; n < size; {
		value := make([]byte, valueSize)
		for i := range value {
			value[i] = byte(rng.Uint32())
		}
		r := &runnelv1.Record{Value: value}
		set.Records = append(set.Records, r)
		n += proto.Size(r) + 2 // its tag and length, at least
	}
	payload, err := proto.MarshalOptions{Deterministic: true}.Marshal(set)
	if err != nil {
		return ready{}, err
	}
	now := time.Now().UnixMilli()
	count := uint32(len(set.GetRecords()))
	batch := &runnelv1.RecordBatch{
		PayloadCrc32C:   new(crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))),
		LastOffsetDelta: new(count - 1),
		RecordCount:     new(count),
		BaseTimestampMs: new(now),
		MaxTimestampMs:  new(now),
		Compression:     runnelv1.Compression_COMPRESSION_NONE.Enum(),
		Records:         set,
	}
	b, err := proto.Marshal(&runnelv1.ProduceRequest{
		Topic: topic, Partition: &partition, Acks: runnelv1.Acks_ACKS_ALL, Batch: batch,
	})
	return ready{bytes: b, records: len(set.GetRecords())}, err
}

// A took is what one run moved, and how long it took.
type took struct {
	bytes   int64
	records int64
	time    time.Duration
}

// push sends messages in turn until at least total bytes were answered. Each
// message gets one answer, which check may refuse.
func push(ctx context.Context, conn *grpc.ClientConn, method string, messages []ready, total int64, check func([]byte) error) (took, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return took{}, err
	}
	buffers := make([]mem.BufferSlice, len(messages))
	for i, m := range messages {
		buffers[i] = mem.BufferSlice{mem.SliceBuffer(m.bytes)}
	}
	count := int((total + int64(len(messages[0].bytes)) - 1) / int64(len(messages[0].bytes)))
	var out took
	begin := time.Now()
	g, _ := errgroup.WithContext(ctx)
	g.Go(func() error {
		for i := range count {
			if err := stream.SendMsg(&frame{data: buffers[i%len(buffers)]}); err != nil {
				return ignoreEOF(err) // RecvMsg tells why
			}
		}
		return stream.CloseSend()
	})
	g.Go(func() error {
		defer cancel() // a failed check must not leave the sender behind
		for i := range count {
			var f frame
			if err := stream.RecvMsg(&f); err != nil {
				return fmt.Errorf("answer %d of %d: %w", i+1, count, err)
			}
			b := f.data.Materialize()
			f.free()
			if err := check(b); err != nil {
				return fmt.Errorf("answer %d of %d: %w", i+1, count, err)
			}
			out.bytes += int64(len(messages[i%len(messages)].bytes))
			out.records += int64(messages[i%len(messages)].records)
		}
		out.time = time.Since(begin)
		return nil
	})
	return out, g.Wait()
}

// pull sends one request, half-closes, and reads messages to the end. Messages
// below checkBelow bytes are checked: they carry ends and errors.
func pull(ctx context.Context, conn *grpc.ClientConn, method string, request []byte, check func([]byte) error) (took, error) {
	const checkBelow = 1024
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return took{}, err
	}
	begin := time.Now()
	if err := stream.SendMsg(&frame{data: mem.BufferSlice{mem.SliceBuffer(request)}}); err != nil {
		return took{}, err
	}
	if err := stream.CloseSend(); err != nil {
		return took{}, err
	}
	var out took
	for {
		var f frame
		if err := stream.RecvMsg(&f); errors.Is(err, io.EOF) {
			out.time = time.Since(begin)
			return out, nil
		} else if err != nil {
			return out, err
		}
		n := f.data.Len()
		out.bytes += int64(n)
		if n < checkBelow {
			if err := check(f.data.Materialize()); err != nil {
				return out, err
			}
		}
		f.free()
	}
}

func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func checkNothing([]byte) error { return nil }

// checkProduce refuses an answer with an error in it.
func checkProduce(b []byte) error {
	var r runnelv1.ProduceResponse
	if err := proto.Unmarshal(b, &r); err != nil {
		return err
	}
	if e := r.GetError(); e != nil {
		return fmt.Errorf("%s: %s", e.GetReason(), e.GetMessage())
	}
	return nil
}

// checkFetch refuses an answer with an error in it.
func checkFetch(b []byte) error {
	var r runnelv1.FetchResponse
	if err := proto.Unmarshal(b, &r); err != nil {
		return err
	}
	if e := r.GetError(); e != nil {
		return fmt.Errorf("%s/%d: %s: %s", r.GetTopic(), r.GetPartition(), e.GetReason(), e.GetMessage())
	}
	return nil
}

// fetchAll asks for every record of every partition.
func fetchAll(topic string, format runnelv1.FetchFormat) ([]byte, error) {
	return proto.Marshal(&runnelv1.FetchRequest{
		Options:    &runnelv1.FetchOptions{Format: format},
		Partitions: []*runnelv1.FetchPartition{{Topic: topic}},
	})
}
