package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A stub is an idempotent producer of one partition with nothing but generated
// code: it writes numbered records, and sends again what it has no answer for,
// now through this broker, now through that one.
type stub struct {
	t     *testing.T
	g     *Group
	conns []*grpc.ClientConn
	id    int64
	turn  int

	// acked has the offset of each record that was acknowledged, by its number.
	acked []int64
	// answers counts them; duplicates those that said so.
	answers, duplicates, breaks int
}

const inFlight = 5

func newStub(t *testing.T, g *Group) *stub {
	t.Helper()
	s := &stub{t: t, g: g}
	for _, b := range g.Brokers {
		conn := must[*grpc.ClientConn](t)(grpc.NewClient(b.Client, grpc.WithTransportCredentials(insecure.NewCredentials())))
		t.Cleanup(func() { _ = conn.Close() })
		s.conns = append(s.conns, conn)
	}
	resp := must[*runnelv1.InitProducerResponse](t)(runnelv1.NewProducerServiceClient(s.conns[0]).InitProducer(t.Context(), &runnelv1.InitProducerRequest{}))
	s.id = resp.GetProducerId()
	return s
}

func (s *stub) request(n int64) *runnelv1.ProduceRequest {
	return &runnelv1.ProduceRequest{
		RequestId: uint64(n), Topic: txns, Partition: new(int32(0)), //nolint:gosec // small
		Producer:    &runnelv1.ProducerSequence{ProducerId: s.id, BaseSequence: n},
		TextRecords: []*runnelv1.ProduceTextRecord{{Value: new(fmt.Sprint(n))}},
	}
}

// write writes records until so many are acknowledged.
func (s *stub) write(total int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	for len(s.acked) < total {
		if ctx.Err() != nil {
			s.t.Fatalf("only %d of %d records are acknowledged", len(s.acked), total)
		}
		s.turn++
		s.stream(ctx, s.conns[s.turn%len(s.conns)], total)
	}
}

// stream writes over one stream, until it breaks or an answer is an error. Every
// now and then it breaks it itself, with answers due.
func (s *stub) stream(ctx context.Context, conn *grpc.ClientConn, total int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // a broker that died silently
	defer cancel()
	stream, err := runnelv1.NewLogServiceClient(conn).Produce(ctx)
	if err != nil {
		return
	}
	first := int64(len(s.acked))
	sent := first
	for ; len(s.acked) < total; s.answers++ {
		for sent < int64(len(s.acked))+inFlight {
			if stream.Send(s.request(sent)) != nil {
				break // the reading end tells why
			}
			sent++
		}
		if s.answers%37 == 36 {
			s.breaks++
			s.answers++
			return
		}
		resp, err := stream.Recv()
		if err != nil {
			return
		}
		if resp.GetGoaway() != nil {
			continue
		}
		n := int64(len(s.acked))
		if resp.GetRequestId() != uint64(n) { //nolint:gosec // small
			s.t.Fatalf("the answer to %d came when that to %d was due", resp.GetRequestId(), n)
		}
		if e := s.failure(resp); e != nil {
			switch e.GetReason() {
			case runnelv1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, runnelv1.ErrorReason_ERROR_REASON_PRODUCER_STATE_LOST,
				runnelv1.ErrorReason_ERROR_REASON_FENCED_PRODUCER, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST:
				s.t.Fatalf("record %d, of which all before are stored: %v", n, e)
			default:
				return // from this one on, again
			}
		}
		if resp.GetDuplicate() {
			s.duplicates++
		}
		s.acked = append(s.acked, resp.GetBaseOffset())
	}
}

// failure returns the error of an answer to one record.
func (s *stub) failure(resp *runnelv1.ProduceResponse) *runnelv1.ItemError {
	if resp.GetError() != nil {
		return resp.GetError()
	}
	for _, r := range resp.GetResults() {
		if r.GetError() != nil {
			return r.GetError()
		}
	}
	return nil
}

// leader waits for a leader of the partition and returns it.
func (s *stub) leader() *Node {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		resp, err := runnelv1.NewMetadataServiceClient(s.conns[i%len(s.conns)]).GetMetadata(ctx, &runnelv1.GetMetadataRequest{Topics: []string{txns}})
		if err == nil && len(resp.GetTopics()) == 1 && resp.GetTopics()[0].GetPartitions()[0].Leader != nil {
			return s.g.Brokers[resp.GetTopics()[0].GetPartitions()[0].GetLeader()-s.firstBroker(resp)]
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.t.Fatal("no leader")
		}
	}
}

func (s *stub) firstBroker(resp *runnelv1.GetMetadataResponse) int32 {
	first := resp.GetBrokers()[0].GetBrokerId()
	for _, b := range resp.GetBrokers() {
		first = min(first, b.GetBrokerId())
	}
	return first
}

// check reads the partition: each record is there once, in order, and where its
// answer said.
func (s *stub) check() {
	s.t.Helper()
	stream := must[grpc.ServerStreamingClient[runnelv1.ReadResponse]](s.t)(runnelv1.NewLogServiceClient(s.conns[0]).Read(s.t.Context(), &runnelv1.ReadRequest{
		Request: &runnelv1.FetchRequest{
			Options:    &runnelv1.FetchOptions{Format: runnelv1.FetchFormat_FETCH_FORMAT_TEXT},
			Partitions: []*runnelv1.FetchPartition{{Topic: txns, Partition: new(int32(0))}},
		},
	}, grpc.WaitForReady(true)))
	next := 0
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			s.t.Fatal(err)
		}
		for _, r := range resp.GetResponse().GetTextRecords() {
			if r.GetValue() != fmt.Sprint(next) || next < len(s.acked) && r.GetOffset() != s.acked[next] {
				s.t.Fatalf("at offset %d is record %s, want %d", r.GetOffset(), r.GetValue(), next)
			}
			next++
		}
	}
	if next < len(s.acked) || next > len(s.acked)+inFlight {
		s.t.Errorf("%d records are stored, %d were acknowledged", next, len(s.acked))
	}
}

// A producer with nothing but generated stubs, whose streams break with answers
// due, and whose leader is killed again and again, finds each record stored
// exactly once, in order, and where it was told.
func TestIdempotentStub_leadersKilled(t *testing.T) {
	t.Parallel()
	g := cluster(t, Cluster{Controllers: 1, Brokers: 3})
	createTxns(t, g)
	settled(t, g)
	s := newStub(t, g)
	s.write(200)
	for round := range 3 {
		dead := s.leader()
		dead.Kill()
		s.write(200 * (round + 2))
		dead.restart(t)
		settled(t, g)
		s.write(len(s.acked) + 50)
	}
	s.check()
	t.Logf("%d records, %d answers said duplicate, %d streams broken on purpose", len(s.acked), s.duplicates, s.breaks)
	if s.duplicates == 0 {
		t.Error("nothing was ever sent twice: this test tests nothing")
	}
}
