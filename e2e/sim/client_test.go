package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/e2e/history"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// A topic under load.
type topic struct {
	name       string
	id         string
	partitions int32
	history    *history.History
	// trimmed are the readers of a topic whose beginning is deleted, by
	// partition; nil: it is not.
	trimmed []*reader
}

// admin calls fn with each broker in turn until one answers.
func (c *cluster) admin(ctx context.Context, fn func(runnelv1.AdminServiceClient) error) error {
	var err error
	for i := 0; ctx.Err() == nil; i++ {
		if err = fn(runnelv1.NewAdminServiceClient(c.conns[i%len(c.conns)])); err == nil {
			return nil
		}
		lifecycle.Wait(ctx, 200*time.Millisecond)
	}
	return errors.Join(err, ctx.Err())
}

// create makes a topic, within a time.
func (c *cluster) create(t *topic, within time.Duration, rf int32, configs map[string]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return c.admin(ctx, func(a runnelv1.AdminServiceClient) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		resp, err := a.CreateTopics(ctx, &runnelv1.CreateTopicsRequest{Topics: []*runnelv1.NewTopic{{
			Name: t.name, Partitions: &t.partitions, ReplicationFactor: &rf, Configs: configs, IfNotExists: true,
		}}})
		if err != nil {
			return err
		}
		r := resp.GetResults()[0]
		if r.GetError() != nil {
			return rpcerr.ItemStatus(r.GetError()).Err()
		}
		t.id = r.GetTopicId()
		return nil
	})
}

// remove deletes a topic, within a time.
func (c *cluster) remove(t *topic, within time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	return c.admin(ctx, func(a runnelv1.AdminServiceClient) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		resp, err := a.DeleteTopics(ctx, &runnelv1.DeleteTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: t.name}}})
		if err != nil {
			return err
		}
		item := resp.GetResults()[0].GetError()
		if item == nil || item.GetReason() == runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND {
			return nil
		}
		return rpcerr.ItemStatus(item).Err()
	})
}

// A load is the clients of a run.
type load struct {
	c    *cluster
	ctx  context.Context
	stop context.CancelCauseFunc
	wg   sync.WaitGroup

	// mu guards the fields below
	mu      sync.Mutex
	readers int
}

func (c *cluster) newLoad() *load {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &load{c: c, ctx: ctx, stop: cancel}
}

// end stops the clients and waits for them.
func (l *load) end() {
	l.stop(errStopped)
	l.wg.Wait()
}

// write has one client write to one partition of a topic, one record at a time.
func (l *load) write(t *topic, partition int32, rng *rand.Rand) {
	w := &writer{l: l, topic: t, partition: partition, rng: rng, at: rng.IntN(len(l.c.conns)), producer: t.history.Producer()}
	l.wg.Go(w.run)
}

type writer struct {
	l         *load
	topic     *topic
	partition int32
	rng       *rand.Rand
	at        int // the broker it writes to
	producer  int
}

func (w *writer) run() {
	for w.l.ctx.Err() == nil {
		w.one()
		lifecycle.Wait(w.l.ctx, time.Duration(w.rng.IntN(120))*time.Millisecond)
	}
}

func (w *writer) one() {
	h := w.topic.history
	n := h.Next(w.producer)
	offset, err := w.send(history.Value(w.producer, n, 0))
	switch {
	case err == nil:
		h.Outcome(w.producer, n, history.Acknowledged, w.partition, offset)
		w.l.c.judge.acknowledged(w.topic, w.partition, offset)
		return
	case definite(err):
		h.Outcome(w.producer, n, history.Failed, 0, 0)
	default:
		// It may come to the log later than what is sent after it.
		h.Outcome(w.producer, n, history.Unknown, 0, 0)
		w.producer = h.Producer()
	}
	w.at = w.rng.IntN(len(w.l.c.conns))
	lifecycle.Wait(w.l.ctx, 20*time.Millisecond)
}

func (w *writer) send(value []byte) (int64, error) {
	// The call outlives the end of the run, so that its outcome is known.
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Second)
	defer cancel()
	return w.l.c.appendTo(ctx, w.l.c.conns[w.at], w.topic, w.partition, w.rng.IntN(2) == 0, value, 3*time.Second)
}

// appendTo writes one record, directly or through a broker that need not lead.
func (c *cluster) appendTo(ctx context.Context, conn grpc.ClientConnInterface, t *topic, n int32, proxy bool, value []byte, timeout time.Duration) (int64, error) {
	id := t.id
	routing := runnelv1.Routing_ROUTING_DIRECT
	if proxy {
		routing = runnelv1.Routing_ROUTING_PROXY
	}
	resp, err := runnelv1.NewLogServiceClient(conn).Append(ctx, &runnelv1.AppendRequest{Request: &runnelv1.ProduceRequest{
		Topic: t.name, TopicId: &id, Partition: &n, Acks: runnelv1.Acks_ACKS_ALL, Timeout: durationpb.New(timeout),
		Routing: routing, Records: []*runnelv1.ProduceRecord{{Value: value}},
	}})
	if err != nil {
		return 0, err
	}
	r := resp.GetResponse().GetResults()[0]
	if r.GetError() != nil {
		return 0, rpcerr.ItemStatus(r.GetError()).Err()
	}
	return r.GetOffset(), nil
}

// definite says whether an error promises that nothing was stored.
func definite(err error) bool {
	r := rpcerr.Reason(err)
	return r != runnelv1.ErrorReason_ERROR_REASON_UNSPECIFIED && r != runnelv1.ErrorReason_ERROR_REASON_INTERNAL &&
		r != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN
}

// read has one client read a partition from its beginning on, again and again
// from where it was.
func (l *load) read(t *topic, partition int32, rng *rand.Rand) *reader {
	r := l.newReader(t, partition)
	l.wg.Go(func() {
		for l.ctx.Err() == nil {
			ctx, cancel := context.WithTimeout(l.ctx, 3*time.Second)
			_, _ = r.some(ctx, l.c.conns[rng.IntN(len(l.c.conns))])
			cancel()
			lifecycle.Wait(l.ctx, time.Duration(rng.IntN(500))*time.Millisecond)
		}
	})
	return r
}

func (l *load) newReader(t *topic, partition int32) *reader {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers++
	return &reader{c: l.c, topic: t, partition: partition, number: l.readers}
}

type reader struct {
	c         *cluster
	topic     *topic
	partition int32
	number    int
	next      int64
	// at is next, for others.
	at atomic.Int64
}

// some reads what a broker has to give, up to the end it tells. It returns the
// high watermark.
func (r *reader) some(ctx context.Context, conn grpc.ClientConnInterface) (hw int64, err error) {
	id := r.topic.id
	stream, err := runnelv1.NewLogServiceClient(conn).Read(ctx, &runnelv1.ReadRequest{Request: &runnelv1.FetchRequest{
		Options: &runnelv1.FetchOptions{Format: runnelv1.FetchFormat_FETCH_FORMAT_RECORDS},
		Partitions: []*runnelv1.FetchPartition{{
			Topic: r.topic.name, TopicId: &id, Partition: &r.partition, Start: &runnelv1.FetchPartition_Offset{Offset: r.next},
		}},
	}})
	if err != nil {
		return 0, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return hw, nil
		}
		if err != nil {
			return hw, err
		}
		resp := m.GetResponse()
		for _, rec := range resp.GetRecords() {
			r.topic.history.Read(r.number, r.partition, rec.GetOffset(), rec.GetValue())
			r.next = rec.GetOffset() + 1
			r.at.Store(r.next)
		}
		if item := resp.GetError(); item != nil {
			if item.GetReason() == runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE || item.GetReason() == runnelv1.ErrorReason_ERROR_REASON_LOG_TRUNCATED {
				r.c.judge.complain("I5", "%s/%d: a reader at offset %d: %s", r.topic.name, r.partition, r.next, item.GetMessage())
			}
			return hw, fmt.Errorf("%w", rpcerr.ItemStatus(item).Err())
		}
		hw = resp.GetHighWatermark()
	}
}

// whole reads on to the end.
func (r *reader) whole(conn grpc.ClientConnInterface) (hw int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return r.some(ctx, conn)
}
