package sim

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/e2e/history"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// maxUnanswered is how many writes of a stream wait for their answers.
const maxUnanswered = 64

// A pump is a client that writes records to one partition over one stream after
// another, through a broker that need not lead, without waiting for answers.
type pump struct {
	l         *load
	topic     *topic
	partition int32
	pause     time.Duration
	conn      func() grpc.ClientConnInterface // to write through next

	// mu guards the fields below
	mu sync.Mutex

	producer int
	open     map[uint64]int64 // records without an answer, by request
	room     chan struct{}    // closed and replaced when there is room for more
	// What came of all of them.
	acked, refused, uncertain int
}

// pump has a client write to a partition until the load ends.
func (l *load) pump(t *topic, partition int32, pause time.Duration, conn func() grpc.ClientConnInterface) *pump {
	p := &pump{l: l, topic: t, partition: partition, pause: pause, conn: conn, producer: t.history.Producer(), room: make(chan struct{})}
	l.wg.Go(func() {
		for l.ctx.Err() == nil {
			p.stream(conn())
			lifecycle.Wait(l.ctx, 50*time.Millisecond)
		}
	})
	return p
}

// stream writes over one stream until it breaks, or the load ends.
func (p *pump) stream(conn grpc.ClientConnInterface) {
	// What was sent is answered after the end of the load.
	ctx, cancel := context.WithCancel(context.WithoutCancel(p.l.ctx))
	defer cancel()
	stream, err := runnelv1.NewLogServiceClient(conn).Produce(ctx)
	if err != nil {
		return
	}
	p.mu.Lock()
	p.open = map[uint64]int64{}
	p.mu.Unlock()
	ended := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(ended)
		for {
			resp, err := stream.Recv()
			if err != nil {
				return
			}
			p.answer(resp)
		}
	})
	for id := uint64(1); p.l.ctx.Err() == nil && p.write(stream, id, ended); id++ {
		lifecycle.Wait(p.l.ctx, p.pause)
	}
	_ = stream.CloseSend()
	giveUp := time.AfterFunc(10*time.Second, cancel)
	wg.Wait()
	giveUp.Stop()
	p.lost()
}

// write sends the next record when there is room; false: the stream has ended.
func (p *pump) write(stream grpc.BidiStreamingClient[runnelv1.ProduceRequest, runnelv1.ProduceResponse], id uint64, ended <-chan struct{}) bool {
	for {
		p.mu.Lock()
		full, room := len(p.open) >= maxUnanswered, p.room
		p.mu.Unlock()
		if !full {
			break
		}
		select {
		case <-room:
		case <-ended:
			return false
		case <-p.l.ctx.Done():
			return false
		}
	}
	select {
	case <-ended:
		return false
	default:
	}
	p.mu.Lock()
	n := p.topic.history.Next(p.producer)
	p.open[id] = n
	value := history.Value(p.producer, n, 0)
	p.mu.Unlock()
	topicID := p.topic.id
	return stream.Send(&runnelv1.ProduceRequest{
		RequestId: id, Topic: p.topic.name, TopicId: &topicID, Partition: &p.partition, Acks: runnelv1.Acks_ACKS_ALL,
		Timeout: durationpb.New(5 * time.Second), Records: []*runnelv1.ProduceRecord{{Value: value}},
	}) == nil
}

// answer takes an answer.
func (p *pump) answer(resp *runnelv1.ProduceResponse) {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, ok := p.open[resp.GetRequestId()]
	if !ok {
		return // a goaway
	}
	delete(p.open, resp.GetRequestId())
	close(p.room)
	p.room = make(chan struct{})
	item := resp.GetError()
	if item == nil && len(resp.GetResults()) > 0 {
		item = resp.GetResults()[0].GetError()
	}
	h := p.topic.history
	switch {
	case item == nil:
		offset := resp.GetResults()[0].GetOffset()
		p.acked++
		h.Outcome(p.producer, n, history.Acknowledged, p.partition, offset)
		p.l.c.judge.acknowledged(p.topic, p.partition, offset)
	case definite(rpcerr.ItemStatus(item).Err()):
		p.refused++
		h.Outcome(p.producer, n, history.Failed, 0, 0)
	default:
		p.uncertain++
		h.Outcome(p.producer, n, history.Unknown, 0, 0)
	}
}

// lost takes what will not be answered any more. What comes next is another
// producer's: it may come to the log before.
func (p *pump) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, n := range p.open {
		p.uncertain++
		p.topic.history.Outcome(p.producer, n, history.Unknown, 0, 0)
	}
	p.open = nil
	p.producer = p.topic.history.Producer()
}

// counts returns what came of the records.
func (p *pump) counts() (acked, refused, uncertain int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.acked, p.refused, p.uncertain
}
