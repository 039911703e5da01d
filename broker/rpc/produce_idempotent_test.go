package rpc

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// sequenced makes a request one of producer 7.
func sequenced(req *runnelv1.ProduceRequest, seq int64) *runnelv1.ProduceRequest {
	req.Producer = &runnelv1.ProducerSequence{ProducerId: 7, BaseSequence: seq}
	return req
}

// sequencedBatch is a RecordBatch message of producer 7.
func sequencedBatch(t *testing.T, c record.Compression, seq record.Sequence, values ...[]byte) []byte {
	t.Helper()
	b := record.NewBuilder(record.NewCodec(), record.Limits{MaxRecordBytes: record.MaxRecordSize})
	for _, v := range values {
		if err := b.Add(nil, v, nil, time.Now().UnixMilli()); err != nil {
			t.Fatal(err)
		}
	}
	batch, err := b.Finish(c, 0)
	if err != nil {
		t.Fatal(err)
	}
	batch.ProducerID, batch.BaseSequence = 7, seq
	return batch.AppendMessage(nil)
}

// What is sent again is stored once, and answered as it was the first time, in
// whatever form it comes and whoever is asked.
func TestProduce_idempotent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		w.topics["t"].configs["message.timestamp.type"] = "LogAppendTime"
		leader, proxy := w.brokers[2], w.brokers[1]
		first := leader.produce(sequenced(textRequest(1, "t", 0, "a", "b"), 0))
		if first.GetError() != nil || first.GetDuplicate() || first.GetBaseOffset() != 0 || len(first.GetResults()) != 2 {
			t.Fatal(first)
		}
		time.Sleep(time.Minute)
		want, _ := proto.Clone(first).(*runnelv1.ProduceResponse)
		want.Duplicate = true
		for name, b := range map[string]*testBroker{"the leader": leader, "a proxy": proxy} {
			if diff := cmp.Diff(want, b.produce(sequenced(textRequest(1, "t", 0, "a", "b"), 0)), protocmp.Transform()); diff != "" {
				t.Errorf("%s, again (-want +got):\n%s", name, diff)
			}
			// acks LEADER hears it, too, and acks NONE hears nothing.
			for _, acks := range []runnelv1.Acks{runnelv1.Acks_ACKS_LEADER, runnelv1.Acks_ACKS_NONE} {
				req := sequenced(textRequest(1, "t", 0, "a", "b"), 0)
				req.Acks = acks
				if got := b.produce(req); got.GetError() != nil || got.GetDuplicate() != (acks == runnelv1.Acks_ACKS_LEADER) {
					t.Errorf("%s, %v: %v", name, acks, got)
				}
				synctest.Wait()
			}
		}
		// Batches, compressed or not: a batch of two and then one of one.
		for i, b := range []*testBroker{leader, proxy} {
			seq := record.Sequence(2 + 3*i)
			for n, c := range []record.Compression{record.CompressionNone, record.CompressionZstd} {
				msg := sequencedBatch(t, c, seq, make([]byte, 1000), []byte("x"))
				if n == 1 {
					seq += 2
					msg = sequencedBatch(t, c, seq, make([]byte, 1000))
				}
				for again := range 3 {
					resp, err := b.oneOf(rawRequest("t", 0, msg))
					if err != nil || resp.GetError() != nil || resp.GetDuplicate() != (again > 0) || resp.GetBaseOffset() != int64(seq) {
						t.Fatalf("sequence %d, time %d: %v, %v", seq, again, resp, err)
					}
				}
			}
		}
		if end := leader.ends()["t/0"]; end != 8 {
			t.Errorf("%d records are stored, want 8", end)
		}
	})
}

// A batch that is bad takes no sequence: the good one after it does (PD-12).
func TestProduce_badBatchesTakeNoSequence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		good := sequencedBatch(t, record.CompressionZstd, 0, make([]byte, 100))
		spoilt := append([]byte(nil), good...)
		spoilt[len(spoilt)-1] ^= 0x11
		// record_count 2 instead of 1, and a field after the payload: the last one of a number counts.
		count := append(append([]byte(nil), good...), 0x35, 2, 0, 0, 0)
		for name, bad := range map[string][]byte{"a wrong checksum": spoilt, "a cut payload": good[:len(good)-3], "a wrong count": count} {
			resp, err := b.oneOf(rawRequest("t", 0, bad))
			if err != nil || resp.GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH || len(b.ends()) > 0 {
				t.Errorf("%s: %v, %v; stored: %v", name, resp, err, b.ends())
			}
		}
		for again := range 2 {
			resp, err := b.oneOf(rawRequest("t", 0, good))
			if err != nil || resp.GetError() != nil || resp.GetBaseOffset() != 0 || resp.GetDuplicate() != (again > 0) {
				t.Errorf("the good one: %v, %v", resp, err)
			}
		}
	})
}

// A refusal says whether the batch may be stored, with the facts, also through a
// proxy; and what comes behind one of unknown outcome does not wait for it.
func TestProduce_refusedSequences(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		for seq := range int64(7) {
			if resp := w.brokers[1].produce(sequenced(textRequest(1, "t", 0, "v"), seq)); resp.GetError() != nil {
				t.Fatal(resp)
			}
		}
		facts := func(seq, expected string) map[string]string {
			return map[string]string{"producerId": "7", "producerEpoch": "0", "baseSequence": seq, "expectedSequence": expected}
		}
		for _, b := range []*testBroker{w.brokers[2], w.brokers[1]} {
			for name, c := range map[string]struct {
				req  *runnelv1.ProduceRequest
				want *runnelv1.ItemError
			}{
				"a gap": {sequenced(textRequest(1, "t", 0, "v"), 8), &runnelv1.ItemError{
					Reason: runnelv1.ErrorReason_ERROR_REASON_OUT_OF_ORDER_SEQUENCE, Code: 9, Metadata: facts("8", "7"),
				}},
				"an old one": {sequenced(textRequest(1, "t", 0, "v"), 1), &runnelv1.ItemError{
					Reason: runnelv1.ErrorReason_ERROR_REASON_PRODUCER_STATE_LOST, Code: 9, OutcomeUnknown: true, Metadata: facts("1", "7"),
				}},
				"other bounds": {sequenced(textRequest(1, "t", 0, "v", "w"), 5), &runnelv1.ItemError{
					Reason: runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, Code: 3, Metadata: facts("5", "7"),
				}},
			} {
				got := b.produce(c.req).GetError()
				if got.GetMessage() == "" {
					t.Errorf("%s: no text", name)
				}
				if diff := cmp.Diff(c.want, got, protocmp.Transform(), protocmp.IgnoreFields(c.want, "message")); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			if end := w.brokers[2].ends()["t/0"]; end != 7 {
				t.Fatalf("%d records are stored", end)
			}
		}
		start := time.Now()
		stream := w.brokers[1].open()
		send(t, stream, sequenced(textRequest(1, "t", 0, "v"), 1), sequenced(textRequest(2, "t", 0, "v"), 7), sequenced(textRequest(3, "t", 0, "v"), 8))
		for id := uint64(1); id <= 3; id++ {
			resp := recv(t, stream)
			if resp.GetRequestId() != id || (resp.GetError() != nil) != (id == 1) || time.Since(start) > 0 {
				t.Errorf("answer %d after %v: %v", id, time.Since(start), resp)
			}
		}
		_ = stream.CloseSend()
	})
}

// The next leader answers a retry through any broker with the first offset.
func TestProduce_idempotentOverAMove(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		for seq := range int64(3) {
			w.brokers[1].produce(sequenced(textRequest(1, "t", 0, "v"), seq))
		}
		w.copyLog("t", 0, 3)
		w.move("t", 0, 3)
		for seq := range int64(5) {
			resp := w.brokers[1].produce(sequenced(textRequest(1, "t", 0, "v"), seq))
			if resp.GetError() != nil || resp.GetDuplicate() != (seq < 3) || resp.GetBaseOffset() != seq || resp.GetResults()[0].GetOffset() != seq {
				t.Errorf("sequence %d: %v", seq, resp)
			}
		}
	})
}

// A batch that came in time is not too old when it comes again; a new one is.
func TestProduce_retriesDoNotAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1, "message.timestamp.before.max.ms", "60000")
		first, next := rawRequest("t", 0, sequencedBatch(t, 1, 0, []byte("v"))), rawRequest("t", 0, sequencedBatch(t, 1, 1, []byte("v")))
		if resp, err := b.oneOf(first); err != nil || resp.GetError() != nil {
			t.Fatal(resp, err)
		}
		time.Sleep(time.Hour) // of the bubble
		if resp, err := b.oneOf(first); err != nil || resp.GetError() != nil || !resp.GetDuplicate() || resp.GetBaseOffset() != 0 {
			t.Errorf("again: %v, %v", resp, err)
		}
		if resp, err := b.oneOf(next); err != nil || resp.GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_INVALID_TIMESTAMP {
			t.Errorf("a new one: %v, %v", resp, err)
		}
	})
}
