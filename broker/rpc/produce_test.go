package rpc

import (
	"errors"
	"io"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/partitioner"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/wire"
)

// textRequest is a request of strings for one partition.
func textRequest(id uint64, topic string, n int32, values ...string) *runnelv1.ProduceRequest {
	r := &runnelv1.ProduceRequest{RequestId: id, Topic: topic, Partition: &n}
	for _, v := range values {
		r.TextRecords = append(r.TextRecords, &runnelv1.ProduceTextRecord{Value: &v})
	}
	return r
}

func (b *testBroker) open() runnelv1.LogService_ProduceClient {
	b.t.Helper()
	stream, err := b.log.Produce(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	return stream
}

func send[M any](tb testing.TB, stream interface{ Send(M) error }, ms ...M) {
	tb.Helper()
	for _, m := range ms {
		if err := stream.Send(m); err != nil {
			tb.Fatal(err)
		}
	}
}

func recv[M any](tb testing.TB, stream interface{ Recv() (M, error) }) M {
	tb.Helper()
	m, err := stream.Recv()
	if err != nil {
		tb.Fatalf("recv: %v", err)
	}
	return m
}

// ended checks how a stream ends.
func ended[M any](tb testing.TB, stream interface{ Recv() (M, error) }, code codes.Code, reason runnelv1.ErrorReason) {
	tb.Helper()
	m, err := stream.Recv()
	if code == codes.OK {
		if !errors.Is(err, io.EOF) {
			tb.Errorf("got %v, %v, want the end of the stream", m, err)
		}
		return
	}
	if status.Code(err) != code || rpcerr.Reason(err) != reason {
		tb.Errorf("got %v, %v, want %v %v", m, err, code, reason)
	}
}

func TestProduce_batchKeepsItsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		id := b.topic("t", 2)
		for i, c := range []record.Compression{1, 2, 3, 4, 5} {
			msg := buildBatch(t, c, time.Now().UnixMilli(), make([]byte, 5000), []byte("b"))
			resp, err := b.oneOf(rawRequest("t", 1, msg))
			if err != nil {
				t.Fatal(err)
			}
			want := &runnelv1.ProduceResponse{RequestId: 77, Partition: new(int32(1)), BaseOffset: new(int64(i * 2)), LogStartOffset: new(int64(0))}
			if diff := cmp.Diff(want, resp, protocmp.Transform()); diff != "" {
				t.Errorf("%v: -want +got:\n%s", c, diff)
			}
		}
		_ = id
		got := b.fetchAll(&runnelv1.FetchRequest{
			Options: &runnelv1.FetchOptions{Format: batches}, Partitions: []*runnelv1.FetchPartition{{Topic: "t", Partition: new(int32(1))}},
		})
		for i, batch := range got.batches {
			if int(batch.GetCompression()) != i+1 || batch.GetBaseOffset() != int64(i*2) || batch.GetRecordCount() != 2 {
				t.Errorf("batch %d: %v", i, batch.GetCompression())
			}
		}
		if len(got.batches) != 5 {
			t.Errorf("%d batches", len(got.batches))
		}
	})
}

// Records go where Kafka's clients would put them, keyless ones of a request
// stay together, and results come in input order.
func TestProduce_recordsFindTheirPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 5)
		req := &runnelv1.ProduceRequest{RequestId: 4, Topic: "t"}
		for i := range 40 {
			r := &runnelv1.ProduceRecord{Value: []byte(strconv.Itoa(i))}
			if i%4 != 0 {
				r.Key = []byte(strconv.Itoa(i % 7))
			}
			if i == 13 {
				r.Key = []byte{} // an empty key is a key
			}
			req.Records = append(req.Records, r)
		}
		resp := b.produce(req)
		if resp.GetError() != nil || len(resp.GetResults()) != 40 || resp.Partition != nil || resp.GetRequestId() != 4 {
			t.Fatal(resp)
		}
		keyless := resp.GetResults()[0].GetPartition()
		next := map[int32]int64{}
		for i, res := range resp.GetResults() {
			want := keyless
			if key := req.GetRecords()[i].GetKey(); key != nil {
				want = partitioner.ForKey(key, 5)
			}
			if res.GetError() != nil || res.Partition == nil || res.GetPartition() != want || res.Offset == nil || res.GetOffset() != next[want] {
				t.Errorf("record %d: %v, want partition %d offset %d", i, res, want, next[want])
			}
			next[want]++
		}
		got := b.fetchAll(&runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{{Topic: "t"}}})
		for n, records := range got.records {
			for off, r := range records {
				i, _ := strconv.Atoi(string(r.GetValue()))
				if res := resp.GetResults()[i]; res.GetPartition() != n || res.GetOffset() != int64(off) || !slices.Equal(r.GetKey(), req.GetRecords()[i].GetKey()) || (r.Key == nil) != (req.GetRecords()[i].Key == nil) {
					t.Errorf("partition %d offset %d: %v, want %v", n, off, r, req.GetRecords()[i])
				}
			}
		}
	})
}

// An empty key is a key: it has one partition, while absent ones are spread.
func TestProduce_anEmptyKeyIsHashed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 64)
		spread := map[int32]bool{}
		for range 20 {
			resp := b.produce(&runnelv1.ProduceRequest{Topic: "t", Records: []*runnelv1.ProduceRecord{{Key: []byte{}}, {}}})
			if got, want := resp.GetResults()[0].GetPartition(), partitioner.ForKey(nil, 64); got != want {
				t.Errorf("an empty key went to %d, want %d", got, want)
			}
			spread[resp.GetResults()[1].GetPartition()] = true
		}
		if len(spread) < 3 {
			t.Errorf("absent keys went to %d of 64 partitions in 20 requests", len(spread))
		}
	})
}

// All records of a request for one partition are stored or none; the others go
// on.
func TestProduce_oneBadRecordFailsItsPartitionOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 2, "max.message.bytes", "1000")
		key := func(n int32) []byte {
			for i := 0; ; i++ {
				if k := []byte(strconv.Itoa(i)); partitioner.ForKey(k, 2) == n {
					return k
				}
			}
		}
		resp := b.produce(&runnelv1.ProduceRequest{Topic: "t", Records: []*runnelv1.ProduceRecord{
			{Key: key(0), Value: []byte("fine")},
			{Key: key(1), Value: []byte("neighbour")},
			{Key: key(1), Value: make([]byte, 2000)},
			{Key: key(0), Value: []byte("fine too")},
		}})
		res := resp.GetResults()
		if len(res) != 4 || resp.GetError() != nil || res[0].GetError() != nil || res[3].GetOffset() != 1 {
			t.Fatal(resp)
		}
		for _, i := range []int{1, 2} {
			e := res[i].GetError()
			if e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE || e.GetMetadata()["recordIndex"] != "2" || res[i].Offset != nil {
				t.Errorf("record %d: %v, want that record 2 is too large", i, res[i])
			}
		}
		if diff := cmp.Diff(map[string]int64{"t/0": 2}, b.ends()); diff != "" {
			t.Errorf("stored: -want +got:\n%s", diff)
		}
	})
}

// Absence and emptiness are distinct end to end (ST-19), and bytes that are not
// text pass through (GR-03).
func TestProduce_absentEmptyAndBinary(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		odd := []byte{0xff, 0xfe, 0x80}
		in := []*runnelv1.ProduceRecord{
			{Key: []byte("k1")},
			{Key: []byte("k2"), Value: []byte{}},
			{Value: []byte("v")},
			{Key: []byte{}, Value: []byte("v")},
			{Key: odd, Value: odd, Headers: []*runnelv1.Header{{Key: "h", Value: odd}, {Key: "absent"}, {Key: "empty", Value: []byte{}}, {Key: "h"}}},
			{Value: []byte("after"), Timestamp: &timestamppb.Timestamp{Seconds: -3, Nanos: 5_000_000}},
		}
		if resp := b.produce(&runnelv1.ProduceRequest{Topic: "t", Records: in}); resp.GetError() != nil {
			t.Fatal(resp)
		}
		got := b.fetchAll(&runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{{Topic: "t"}}}).records[0]
		var want []*runnelv1.ConsumedRecord
		for i, r := range in {
			ms := time.Now().UnixMilli()
			if r.GetTimestamp() != nil {
				ms = -2995
			}
			want = append(want, &runnelv1.ConsumedRecord{Offset: new(int64(i)), TimestampMs: &ms, Key: r.Key, Value: r.Value, Headers: r.Headers})
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
		texts := b.fetchAll(&runnelv1.FetchRequest{
			Options: &runnelv1.FetchOptions{Format: text}, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}},
		}).texts[0]
		if r := texts[4]; r.Key != nil || string(r.GetKeyBytes()) != string(odd) || string(r.GetValueBytes()) != string(odd) || len(r.GetHeaders()) != 3 {
			t.Errorf("binary as text: %v", r)
		}
		if r := texts[0]; r.Value != nil || r.ValueBytes != nil || r.GetKey() != "k1" {
			t.Errorf("a tombstone as text: %v", r)
		}
		if r := texts[1]; r.Value == nil || r.GetValue() != "" {
			t.Errorf("an empty value as text: %v", r)
		}
	})
}

func TestProduce_acks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		// With a second member in the ISR that never acks, nothing is committed.
		b.isr("t", 1, 2, 1, 1, 2)
		stream := b.open()
		req := textRequest(1, "t", 0, "all")
		req.Timeout = durationpb.New(20 * time.Second)
		leader := textRequest(2, "t", 0, "leader")
		leader.Acks = runnelv1.Acks_ACKS_LEADER
		none := textRequest(3, "t", 0, "none")
		none.Acks = runnelv1.Acks_ACKS_NONE
		start := time.Now()
		send(t, stream, req, leader, none)

		first := recv(t, stream)
		if want := (&runnelv1.ProduceResponse{RequestId: 3}); !cmp.Equal(want, first, protocmp.Transform()) {
			t.Errorf("acks NONE: %v, want an empty answer", first)
		}
		// One partition is answered in the order sent: LEADER waits for ALL.
		second := recv(t, stream)
		res := second.GetResults()
		if second.GetRequestId() != 1 || second.GetError() != nil || len(res) != 1 || time.Since(start) != 20*time.Second {
			t.Fatalf("after %s: %v", time.Since(start), second)
		}
		e := res[0].GetError()
		if e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || !e.GetOutcomeUnknown() || e.GetMetadata()["baseOffset"] != "0" || codes.Code(e.GetCode()) != codes.DeadlineExceeded {
			t.Errorf("acks ALL: %v", e)
		}
		if third := recv(t, stream); third.GetRequestId() != 2 || third.GetBaseOffset() != 1 || third.GetResults()[0].GetOffset() != 1 {
			t.Errorf("acks LEADER: %v", third)
		}
		if got := b.ends()["t/0"]; got != 3 {
			t.Errorf("%d records were stored, want 3", got)
		}
		// Its commit later is nobody's news any more.
		b.isr("t", 1, 3, 1, 1)
		send(t, stream, textRequest(4, "t", 0, "x"))
		if got := recv(t, stream); got.GetRequestId() != 4 || got.GetBaseOffset() != 3 {
			t.Error(got)
		}
		_ = stream.CloseSend()
		ended(t, stream, codes.OK, 0)
	})
}

func TestProduce_timeoutHasADefaultAndACap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		b.isr("t", 1, 2, 1, 1, 2)
		for asked, want := range map[time.Duration]time.Duration{0: 30 * time.Second, time.Second: time.Second, 1 << 60: 5 * time.Minute} {
			stream := b.open()
			msg := buildBatch(t, record.CompressionNone, time.Now().UnixMilli(), []byte("v"))
			raw := rawRequest("t", 0, msg)
			if asked > 0 {
				raw = append(raw, marshal(t, &runnelv1.ProduceRequest{Timeout: durationpb.New(asked)})...)
			}
			start := time.Now()
			if err := stream.SendMsg(wire.NewMessage(raw)); err != nil {
				t.Fatal(err)
			}
			// A batch has no results: its outcome is the request's.
			if e := recv(t, stream).GetError(); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || !e.GetOutcomeUnknown() {
				t.Error(e)
			}
			if got := time.Since(start); got != want {
				t.Errorf("timeout %s: answered after %s, want %s", asked, got, want)
			}
			_ = stream.CloseSend()
			ended(t, stream, codes.OK, 0)
		}
	})
}

// Answers for one partition keep their order; other partitions do not wait.
func TestProduce_orderWithinAPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("stuck", 1)
		b.topic("free", 1)
		b.isr("stuck", 1, 2, 1, 1, 2)
		stream := b.open()
		bad := textRequest(3, "stuck", 0, "x")
		bad.TextRecords[0].Timestamp = timestamppb.New(time.Now().Add(48 * time.Hour))
		send(t, stream, textRequest(1, "stuck", 0, "a"), textRequest(2, "stuck", 0, "b"), bad, textRequest(4, "free", 0, "c"), textRequest(5, "free", 0, "d"))
		for _, want := range []uint64{4, 5} {
			if got := recv(t, stream).GetRequestId(); got != want {
				t.Errorf("answer to %d, want to %d", got, want)
			}
		}
		synctest.Wait()
		b.isr("stuck", 1, 3, 1, 1) // and all is committed
		for _, want := range []uint64{1, 2, 3} {
			got := recv(t, stream)
			if got.GetRequestId() != want || (got.GetError() != nil) != (want == 3) {
				t.Errorf("answer %v, want to %d", got, want)
			}
		}
		_ = stream.CloseSend()
		ended(t, stream, codes.OK, 0)
	})
}

// A request that spans partitions waits for those before it in all of them.
func TestProduce_orderAcrossARequestOfManyPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("stuck", 1)
		b.topic("t", 8)
		b.isr("stuck", 1, 2, 1, 1, 2)
		stream := b.open()
		many := &runnelv1.ProduceRequest{RequestId: 2, Topic: "t"}
		for i := range 50 {
			many.TextRecords = append(many.TextRecords, &runnelv1.ProduceTextRecord{Key: new(strconv.Itoa(i))})
		}
		send(t, stream, textRequest(1, "stuck", 0, "a"), many, textRequest(3, "t", 0, "b"), textRequest(4, "t", 7, "c"))
		for _, want := range []uint64{2, 3, 4} {
			if got := recv(t, stream).GetRequestId(); got != want {
				t.Errorf("answer to %d, want to %d", got, want)
			}
		}
		_ = stream.CloseSend()
		if got := recv(t, stream); got.GetRequestId() != 1 || !got.GetResults()[0].GetError().GetOutcomeUnknown() {
			t.Error(got) // half-closed: what was read is still answered
		}
		ended(t, stream, codes.OK, 0)
	})
}

func TestProduce_lostLeadershipIsUncertain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		b.isr("t", 1, 2, 1, 1, 2)
		stream := b.open()
		send(t, stream, textRequest(1, "t", 0, "a"))
		synctest.Wait()
		b.remove("t", 1)
		if e := recv(t, stream).GetResults()[0].GetError(); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN || !e.GetOutcomeUnknown() || e.GetMetadata()["baseOffset"] != "0" {
			t.Errorf("parked: %v", e)
		}
		send(t, stream, textRequest(2, "t", 0, "b"))
		if e := recv(t, stream).GetError(); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND || e.GetOutcomeUnknown() {
			t.Errorf("afterwards: %v", e)
		}
	})
}

func TestProduce_notEnoughReplicasIsDefinite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		b.isr("t", 1, 2, 2, 1)
		e := b.produce(textRequest(1, "t", 0, "a")).GetError()
		if e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_NOT_ENOUGH_REPLICAS || e.GetOutcomeUnknown() || e.GetMetadata()["minIsr"] != "2" {
			t.Error(e)
		}
		// It is the promise of ALL alone that needs them.
		for i, acks := range []runnelv1.Acks{runnelv1.Acks_ACKS_LEADER, runnelv1.Acks_ACKS_NONE} {
			req := textRequest(1, "t", 0, "a")
			req.Acks = acks
			if r := b.produce(req); problem(r) != nil || b.ends()["t/0"] != int64(i+1) {
				t.Errorf("%s: %v", acks, r)
			}
		}
	})
}

// The broker stops reading a stream whose client does not wait for answers.
func TestProduce_stopsReadingAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{opts: LogOptions{MaxInflight: 5}})
		b.topic("t", 1)
		b.isr("t", 1, 2, 1, 1, 2)
		stream := b.open()
		for i := range 20 {
			send(t, stream, textRequest(uint64(i), "t", 0, "v"))
		}
		synctest.Wait()
		if got := b.ends()["t/0"]; got != 5 {
			t.Errorf("%d requests were read, want 5", got)
		}
		b.isr("t", 1, 3, 1, 1)
		for i := range 20 {
			if got := recv(t, stream); got.GetRequestId() != uint64(i) || got.GetBaseOffset() != int64(i) {
				t.Errorf("answer %d: %v", i, got)
			}
		}
		_ = stream.CloseSend()
		ended(t, stream, codes.OK, 0)
	})
}

func TestProduce_logAppendTimeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1, "message.timestamp.type", "LogAppendTime")
		req := textRequest(1, "t", 0, "a")
		req.TextRecords[0].Timestamp = &timestamppb.Timestamp{Seconds: 1} // no bounds: it is not used
		resp := b.produce(req)
		if !resp.GetAppendTime().AsTime().Equal(time.Now()) {
			t.Error(resp)
		}
		got := b.fetchAll(&runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{{Topic: "t"}}}).records[0]
		if got[0].GetTimestampMs() != time.Now().UnixMilli() {
			t.Error(got)
		}
	})
}
