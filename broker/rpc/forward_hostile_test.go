package rpc

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// sendRaw sends bytes in place of a request.
func (s *forwardStream) sendRaw(b []byte) {
	s.t.Helper()
	if err := s.stream.SendMsg(wire.NewMessage(b)); err != nil {
		s.t.Fatal(err)
	}
}

// forwardBytes is a ForwardProduceRequest with any bytes for its batch.
func forwardBytes(t *testing.T, req *replicav1.ForwardProduceRequest, batch []byte) []byte {
	t.Helper()
	b := marshal(t, req)
	if batch != nil {
		b = protowire.AppendBytes(protowire.AppendTag(b, 16, protowire.BytesType), batch)
	}
	return b
}

// Whatever another broker sends in place of a write is refused by itself, with
// nothing stored, and the stream goes on.
func TestForward_produceSurvivesHostileInput(t *testing.T) {
	const (
		invalid = runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST
		corrupt = runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH
		stale   = runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA
		none    = runnelv1.ErrorReason_ERROR_REASON_UNSPECIFIED
	)
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, nil, LogOptions{})
		id := w.topic("t", 1).String()
		good := buildBatch(t, record.CompressionNone, time.Now().UnixMilli(), []byte("v"))
		wrong := bytes.Clone(good)
		wrong[len(wrong)-1]++ // of the payload
		pipeline := uint64(0)
		ask := func(change func(*replicav1.ForwardProduceRequest)) *replicav1.ForwardProduceRequest {
			pipeline++
			r := &replicav1.ForwardProduceRequest{
				Sequence: 1, TopicId: id, LeaderEpoch: 1, Pipeline: pipeline, PipelineNumber: 1, Timeout: durationpb.New(30 * time.Second),
			}
			if change != nil {
				change(r)
			}
			return r
		}
		s := w.forwardStream(1)
		defer s.end()
		for name, c := range map[string]struct {
			raw   []byte
			want  runnelv1.ErrorReason
			waits time.Duration
		}{
			"nothing":            {[]byte{}, invalid, 0},
			"garbage":            {[]byte{0xff, 0xff, 0xff, 0xff}, invalid, 0},
			"no batch":           {forwardBytes(t, ask(nil), nil), invalid, 0},
			"two batches":        {append(forwardBytes(t, ask(nil), good), forwardBytes(t, ask(nil), good)...), invalid, 0},
			"an absurd length":   {protowire.AppendVarint(protowire.AppendTag(marshal(t, ask(nil)), 16, protowire.BytesType), 1<<40), invalid, 0},
			"a length of 2^64-1": {protowire.AppendVarint(protowire.AppendTag(marshal(t, ask(nil)), 16, protowire.BytesType), 1<<64-1), invalid, 0},
			"an empty batch":     {forwardBytes(t, ask(nil), []byte{}), corrupt, 0},
			"a garbage batch":    {forwardBytes(t, ask(nil), []byte("garbage")), corrupt, 0},
			"a wrong checksum":   {forwardBytes(t, ask(nil), wrong), corrupt, 0},
			"half a batch":       {forwardBytes(t, ask(nil), good[:len(good)/2]), corrupt, 0},
			"no topic":           {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.TopicId = "" }), good), invalid, 0},
			"a topic's name":     {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.TopicId = "t" }), good), invalid, 0},
			"the topic of zeros": {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.TopicId = uuid.Nil.String() }), good), invalid, 0},
			"another topic":      {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.TopicId = uuid.NewString() }), good), stale, newsWait},
			"no such partition":  {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.Partition = 7 }), good), stale, newsWait},
			"partition -1":       {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.Partition = -1 }), good), stale, newsWait},
			"an epoch to come":   {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.LeaderEpoch = 1 << 60 }), good), stale, newsWait},
			"a negative epoch":   {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.LeaderEpoch = -1 }), good), none, 0},
			"an absurd timeout": {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) {
				r.Timeout = &durationpb.Duration{Seconds: 1 << 62, Nanos: -5}
			}), good), none, 0},
			"acks of the future":  {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.Acks = 77 }), good), none, 0},
			"a principal of 1 MB": {forwardBytes(t, ask(func(r *replicav1.ForwardProduceRequest) { r.Principal = string(make([]byte, 1<<20)) }), good), none, 0},
		} {
			before, start := w.brokers[1].ends()["t/0"], time.Now()
			s.sendRaw(c.raw)
			r := s.recv()
			if r.Error.GetReason() != c.want || r.Error.GetOutcomeUnknown() {
				t.Errorf("%s: %v, want %v", name, r.Error, c.want)
			}
			if took := time.Since(start); took < c.waits || took > c.waits+100*time.Millisecond {
				t.Errorf("%s: answered after %s, want %s", name, took, c.waits)
			}
			stored := w.brokers[1].ends()["t/0"] - before
			if ok := c.want == none; ok != (stored == 1) {
				t.Errorf("%s: %d records were stored", name, stored)
			}
		}
		// Of a pipeline, nothing is taken behind a refusal, nor of an older number.
		for _, c := range []struct {
			name   string
			number uint64
			batch  []byte
			want   runnelv1.ErrorReason
		}{
			{"the first", 5, good, none},
			{"a bad one", 5, []byte("garbage"), corrupt},
			{"one behind the bad one", 5, good, stale},
			{"the next number", 6, good, none},
			{"the number before", 5, good, stale},
			{"the highest number", 1<<64 - 1, good, none},
			{"number 0", 0, good, stale},
		} {
			r := &replicav1.ForwardProduceRequest{TopicId: id, LeaderEpoch: 1, Pipeline: 1 << 63, PipelineNumber: c.number, Timeout: durationpb.New(time.Second)}
			s.sendRaw(forwardBytes(t, r, c.batch))
			if got := s.recv(); got.Error.GetReason() != c.want {
				t.Errorf("of a pipeline, %s: %v, want %v", c.name, got.Error, c.want)
			}
		}
	})
}

// Any damage to a request is answered once, and what is stored of it is a whole
// good batch.
func TestForward_produceAnswersWhateverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, nil, LogOptions{})
		id := w.topic("t", 1).String()
		good := buildBatch(t, record.CompressionZstd, time.Now().UnixMilli(), []byte("v"), []byte("w"))
		s := w.forwardStream(1)
		defer s.end()
		rng := rand.New(rand.NewPCG(1, 2))
		const rounds = 2000
		for i := range rounds {
			b := forwardBytes(t, &replicav1.ForwardProduceRequest{
				Sequence: uint64(i), TopicId: id, LeaderEpoch: 1, Pipeline: uint64(i), PipelineNumber: 1, Timeout: durationpb.New(time.Second),
			}, good)
			switch rng.IntN(3) {
			case 0:
				b = b[:rng.IntN(len(b))]
			case 1:
				b[rng.IntN(len(b))] ^= 1 << rng.IntN(8)
			case 2:
				at := rng.IntN(len(b))
				b = append(b[:at:at], append([]byte{byte(rng.Uint32()), byte(rng.Uint32())}, b[at:]...)...)
			}
			s.sendRaw(b)
			s.recv()
		}
		for _, got := range w.contents("t", 0) {
			if got.value != "v" && got.value != "w" {
				t.Errorf("stored %q", got.value)
			}
		}
	})
}

// forwardClient is what other brokers use.
func (w *testTown) forwardClient(id int32) (replicav1.ForwardServiceClient, *grpc.ClientConn) {
	w.t.Helper()
	conn := w.brokers[id].dial(func(ctx context.Context, _ string) (net.Conn, error) { return w.dial(ctx, internalAddress(id)) })
	return replicav1.NewForwardServiceClient(conn), conn
}

// What ends a reading session of another broker says so, and what is wrong with
// one partition ends that one only.
func TestForward_fetchSurvivesHostileInput(t *testing.T) {
	const (
		invalid = runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST
		stale   = runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA
		outside = runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE
	)
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, nil, LogOptions{})
		id := w.topic("t", 1).String()
		w.brokers[1].text("t", 0, "v")
		for name, raw := range map[string][]byte{
			"garbage":           {0xff, 0xff, 0xff},
			"nothing":           {},
			"a wrong field":     {0x08, 0x01},
			"an absurd length":  protowire.AppendVarint([]byte{0x0a}, 1<<50),
			"a negative credit": marshal(t, &replicav1.ForwardFetchRequest{Request: &runnelv1.FetchRequest{CreditBytes: -1}}),
			"a strange format":  marshal(t, &replicav1.ForwardFetchRequest{Request: &runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Format: 99}}}),
		} {
			conn := w.brokers[1].dial(func(ctx context.Context, _ string) (net.Conn, error) { return w.dial(ctx, internalAddress(1)) })
			desc := &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}
			stream, err := conn.NewStream(t.Context(), desc, replicav1.ForwardService_ForwardFetch_FullMethodName)
			if err != nil {
				t.Fatal(err)
			}
			if err := stream.SendMsg(wire.NewMessage(raw)); err != nil {
				t.Fatal(err)
			}
			var msg wire.Message
			if err := stream.RecvMsg(&msg); status.Code(err) != codes.InvalidArgument || reasonOf(err) != invalid {
				t.Errorf("%s: %v", name, err)
			}
			_ = conn.Close()
		}

		c, conn := w.forwardClient(1)
		defer func() { _ = conn.Close() }()
		stream, err := c.ForwardFetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		options := &runnelv1.FetchOptions{Format: runnelv1.FetchFormat_FETCH_FORMAT_BATCHES}
		for name, p := range map[string]struct {
			want   *runnelv1.FetchPartition
			reason runnelv1.ErrorReason
			waits  time.Duration
		}{
			"no topic":               {&runnelv1.FetchPartition{Partition: new(int32(0))}, invalid, 0},
			"a name alone":           {&runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0))}, invalid, 0},
			"no uuid":                {&runnelv1.FetchPartition{TopicId: new("t"), Partition: new(int32(0))}, invalid, 0},
			"another topic":          {&runnelv1.FetchPartition{TopicId: new(uuid.NewString()), Partition: new(int32(0))}, stale, newsWait},
			"no such partition":      {&runnelv1.FetchPartition{TopicId: &id, Partition: new(int32(99))}, stale, newsWait},
			"partition -1":           {&runnelv1.FetchPartition{TopicId: &id, Partition: new(int32(-1))}, invalid, 0},
			"an epoch to come":       {&runnelv1.FetchPartition{TopicId: &id, Partition: new(int32(0)), LeaderEpoch: new(int64(1 << 60))}, stale, newsWait},
			"offset -1":              {&runnelv1.FetchPartition{TopicId: &id, Partition: new(int32(0)), LeaderEpoch: new(int64(1)), Start: offsetOf(-1)}, invalid, 0},
			"an offset never there":  {&runnelv1.FetchPartition{TopicId: &id, Partition: new(int32(0)), LeaderEpoch: new(int64(1)), Start: offsetOf(1 << 62)}, outside, 0},
			"a position of the moon": {&runnelv1.FetchPartition{TopicId: &id, Partition: new(int32(0)), Start: &runnelv1.FetchPartition_Position{Position: 50}}, invalid, 0},
		} {
			start := time.Now()
			if err := stream.Send(&replicav1.ForwardFetchRequest{Request: &runnelv1.FetchRequest{Options: options, Partitions: []*runnelv1.FetchPartition{p.want}}}); err != nil {
				t.Fatal(err)
			}
			options = nil
			r := recv(t, stream).GetResponse()
			if took := time.Since(start); r.GetError().GetReason() != p.reason || took < p.waits || took > p.waits+100*time.Millisecond {
				t.Errorf("%s: after %s: %v", name, took, r)
			}
		}
		if err := stream.Send(&replicav1.ForwardFetchRequest{Request: &runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{
			{TopicId: &id, Partition: new(int32(0)), LeaderEpoch: new(int64(1))},
		}}}); err != nil {
			t.Fatal(err)
		}
		for r := recv(t, stream).GetResponse(); len(r.GetBatches()) == 0; r = recv(t, stream).GetResponse() {
			if r.GetError() != nil {
				t.Fatal(r)
			}
		}
	})
}

// A reader that another broker sends here, with newer metadata than this broker
// has, waits for them; one that is taken back meanwhile is forgotten.
func TestForward_fetchWaitsForNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		id := w.topic("t", 1, 1).String()
		w.move("t", 0, 2, 1) // broker 2 does not know yet that it leads, nor of the second's move
		w.move("t", 1, 2, 1)
		c, conn := w.forwardClient(2)
		defer func() { _ = conn.Close() }()
		stream, err := c.ForwardFetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		want := func(n int32) *runnelv1.FetchPartition {
			return &runnelv1.FetchPartition{Topic: "t", TopicId: &id, Partition: &n, LeaderEpoch: new(int64(2)), Tag: uint64(n + 1)}
		}
		for _, req := range []*runnelv1.FetchRequest{
			{
				Options:    &runnelv1.FetchOptions{Format: runnelv1.FetchFormat_FETCH_FORMAT_BATCHES, Follow: true},
				Partitions: []*runnelv1.FetchPartition{want(0), want(1)},
			},
			{Remove: []*runnelv1.PartitionRef{{Topic: "t", Partition: new(int32(1))}}},
		} {
			if err := stream.Send(&replicav1.ForwardFetchRequest{Request: req}); err != nil {
				t.Fatal(err)
			}
		}
		var news sync.WaitGroup
		defer news.Wait()
		news.Go(func() {
			time.Sleep(600 * time.Millisecond)
			w.tell("t", 0, 2)
			w.tell("t", 1, 2)
		})
		start := time.Now()
		r := recv(t, stream).GetResponse()
		if took := time.Since(start); r.GetError() != nil || r.GetTag() != 1 || took < 600*time.Millisecond || took > 650*time.Millisecond {
			t.Errorf("after %s: %v", took, r)
		}
		w.brokers[2].text("t", 1, "not wanted")
		w.brokers[2].text("t", 0, "wanted")
		for {
			r := recv(t, stream).GetResponse()
			if r.GetError() != nil || r.GetTag() == 2 {
				t.Fatal(r)
			}
			if len(r.GetBatches()) > 0 {
				break
			}
		}
	})
}

// Questions of other brokers that make no sense are refused, one by one where
// they come in numbers.
func TestForward_questionsSurviveHostileInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 1, nil, LogOptions{})
		id := w.topic("t", 1).String()
		w.brokers[1].text("t", 0, "v")
		c, conn := w.forwardClient(1)
		defer func() { _ = conn.Close() }()
		ctx := t.Context()
		for name, call := range map[string]func() (proto.Message, error){
			"offsets": func() (proto.Message, error) {
				return c.ForwardListOffsets(ctx, &replicav1.ForwardListOffsetsRequest{})
			},
			"describe": func() (proto.Message, error) {
				return c.ForwardDescribePartitions(ctx, &replicav1.ForwardDescribePartitionsRequest{})
			},
			"delete": func() (proto.Message, error) {
				return c.ForwardDeleteRecords(ctx, &replicav1.ForwardDeleteRecordsRequest{})
			},
		} {
			if _, err := call(); err != nil {
				t.Errorf("%s of nothing: %v", name, err)
			}
		}
		offsets, err := c.ForwardListOffsets(ctx, &replicav1.ForwardListOffsetsRequest{Request: &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{
			{Topic: "t", Partition: new(int32(0))}, {TopicId: new(uuid.NewString())}, {TopicId: &id, Partition: new(int32(-1))}, {TopicId: &id, Partition: new(int32(0))},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []runnelv1.ErrorReason{
			runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA, runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND, 0,
		} {
			if got := offsets.GetResponse().GetOffsets()[i].GetError().GetReason(); got != want {
				t.Errorf("offsets, query %d: %v, want %v", i, got, want)
			}
		}
		for name, d := range map[string]struct {
			req  *runnelv1.DeleteRecordsRequest
			want runnelv1.ErrorReason
		}{
			"a negative timeout": {&runnelv1.DeleteRecordsRequest{TopicId: &id, Timeout: durationpb.New(-time.Second)}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"an absurd timeout":  {&runnelv1.DeleteRecordsRequest{TopicId: &id, Timeout: &durationpb.Duration{Seconds: 1 << 60}}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"offset -7": {&runnelv1.DeleteRecordsRequest{
				TopicId: &id, Partitions: []*runnelv1.DeleteRecordsPartition{{BeforeOffset: -7}},
			}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"an offset beyond the end": {&runnelv1.DeleteRecordsRequest{
				TopicId: &id, Partitions: []*runnelv1.DeleteRecordsPartition{{BeforeOffset: 1 << 62}},
			}, runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE},
			"no topic": {&runnelv1.DeleteRecordsRequest{Partitions: []*runnelv1.DeleteRecordsPartition{{}}}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		} {
			resp, err := c.ForwardDeleteRecords(ctx, &replicav1.ForwardDeleteRecordsRequest{Request: d.req})
			got := reasonOf(err)
			if err == nil {
				got = resp.GetResponse().GetResults()[0].GetError().GetReason()
			}
			if got != d.want {
				t.Errorf("deletion, %s: %v, %v, want %v", name, resp, err, d.want)
			}
		}
		if st := w.brokers[1].part("t", 0).State(); st.LogStart != 0 {
			t.Errorf("log start %d", st.LogStart)
		}
	})
}
