package wire

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"pgregory.net/rapid"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// What is written by hand is what the generated code reads, and back.
func TestForwardProduce_isTheGeneratedMessage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		batch, err := proto.Marshal(&runnelv1.RecordBatch{RecordCount: new(rapid.Uint32().Draw(t, "count")), CompressedRecords: rapid.SliceOf(rapid.Byte()).Draw(t, "payload")})
		if err != nil {
			t.Fatal(err)
		}
		r := ForwardProduce{
			Sequence: rapid.Uint64().Draw(t, "sequence"), TopicID: rapid.String().Draw(t, "topic"), Partition: rapid.Int32().Draw(t, "partition"),
			LeaderEpoch: rapid.Int64().Draw(t, "epoch"), Pipeline: rapid.Uint64().Draw(t, "pipeline"), PipelineNumber: rapid.Uint64().Draw(t, "number"),
			Acks: rapid.Int32Range(0, 3).Draw(t, "acks"), Timeout: time.Duration(rapid.Int64Range(0, 1<<50).Draw(t, "timeout")),
			Principal: rapid.String().Draw(t, "principal"), Batch: mem.SliceBuffer(batch),
		}
		want := &replicav1.ForwardProduceRequest{
			Sequence: r.Sequence, TopicId: r.TopicID, Partition: r.Partition, LeaderEpoch: r.LeaderEpoch, Pipeline: r.Pipeline,
			PipelineNumber: r.PipelineNumber, Acks: runnelv1.Acks(r.Acks), Timeout: durationpb.New(r.Timeout), Principal: r.Principal,
		}
		want.Batch = &runnelv1.RecordBatch{}
		if err := proto.Unmarshal(batch, want.GetBatch()); err != nil {
			t.Fatal(err)
		}
		sent := r
		bufs, err := sent.marshal(NewPool())
		if err != nil {
			t.Fatal(err)
		}
		b := bufs.Materialize()
		got := &replicav1.ForwardProduceRequest{}
		if err := proto.Unmarshal(b, got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
		var back ForwardProduce
		if err := back.Parse(b, 0, len(b)); err != nil {
			t.Fatal(err)
		}
		if string(b[back.BatchStart:back.BatchEnd]) != string(batch) {
			t.Fatal("the batch is another one")
		}
		r.Batch, r.BatchStart, r.BatchEnd = nil, back.BatchStart, back.BatchEnd
		if back != r {
			t.Fatalf("got %+v, want %+v", back, r)
		}
	})
}

func TestForwardProduced_isTheGeneratedMessage(t *testing.T) {
	for _, want := range []*replicav1.ForwardProduceResponse{
		{},
		{Sequence: 7, BaseOffset: new(int64(0)), LastOffset: new(int64(3)), AppendTimeMs: 12345, LogStartOffset: 1, Duplicate: true},
		{Sequence: 8, Error: &runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_MOVING, Code: 14, Message: "x", Metadata: map[string]string{"a": "b"}, OutcomeUnknown: true}},
	} {
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var r ForwardProduced
		if err := r.Parse(b, 0, len(b)); err != nil {
			t.Fatal(err)
		}
		bufs, err := r.marshal(NewPool())
		if err != nil {
			t.Fatal(err)
		}
		got := &replicav1.ForwardProduceResponse{}
		if err := proto.Unmarshal(bufs.Materialize(), got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// Whatever comes, parsing does not panic, and says so when something is missing.
func FuzzForward(f *testing.F) {
	f.Add([]byte{0x82, 0x01, 0x00})
	f.Add([]byte{0x0a, 0x02, 0x08, 0x01})
	f.Fuzz(func(t *testing.T, b []byte) {
		var p ForwardProduce
		if err := p.Parse(b, 0, len(b)); err == nil && (p.BatchStart > p.BatchEnd || p.BatchEnd > len(b) || p.BatchEnd == 0) {
			t.Errorf("a batch at [%d, %d) of %d", p.BatchStart, p.BatchEnd, len(b))
		}
		var d ForwardProduced
		_ = d.Parse(b, 0, len(b))
		var r FetchedBatches
		if _, err := r.ParseWrapped(b, 0, len(b)); err == nil {
			if start, end, ok := r.Place(); ok && (start > end || end > len(b)) {
				t.Errorf("batches at [%d, %d) of %d", start, end, len(b))
			}
		}
	})
}
