package wire

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func replicaHeads() []*replicav1.Data {
	return []*replicav1.Data{
		{},
		{TopicId: "6ba7b810-9dad-11d1-80b4-00c04fd430c8", Partition: 3, LeaderEpoch: 4, Subscription: 5, StartOffset: 6, NextOffset: 9, HighWatermark: 6, LogStartOffset: 1},
		{TopicId: "t", Partition: -1, LeaderEpoch: 1<<63 - 1, PrevEpoch: new(int64(0)), HighWatermark: -1},
		{TopicId: strings.Repeat("long", 1000), PrevEpoch: new(int64(-1))},
	}
}

func handMadeData(m *replicav1.Data) *ReplicaData {
	d := &ReplicaData{
		TopicID: []byte(m.GetTopicId()), Partition: m.GetPartition(), LeaderEpoch: m.GetLeaderEpoch(), Subscription: m.GetSubscription(),
		StartOffset: m.GetStartOffset(), NextOffset: m.GetNextOffset(), HighWatermark: m.GetHighWatermark(), LogStart: m.GetLogStartOffset(),
	}
	if m.PrevEpoch != nil {
		d.PrevEpoch, d.HasPrevEpoch = m.GetPrevEpoch(), true
	}
	return d
}

// generated is what the generated code makes of d, batches aside.
func generated(d *ReplicaData) *replicav1.Data {
	m := &replicav1.Data{
		TopicId: string(d.TopicID), Partition: d.Partition, LeaderEpoch: d.LeaderEpoch, Subscription: d.Subscription,
		StartOffset: d.StartOffset, NextOffset: d.NextOffset, HighWatermark: d.HighWatermark, LogStartOffset: d.LogStart,
	}
	if d.HasPrevEpoch {
		m.PrevEpoch = &d.PrevEpoch
	}
	return m
}

func TestReplicaData_bothWays(t *testing.T) {
	codec := NewCodec(NewPool())
	for _, frames := range [][]byte{nil, batchOf(t, 0), bytes.Repeat(batchOf(t, 3), 20_000)} {
		for _, want := range replicaHeads() {
			pool := &countingPool{Pool: NewPool()}
			var m Message
			var payload mem.Buffer
			if frames != nil {
				payload = mem.SliceBuffer(frames)
			}
			handMadeData(want).Encode(&m, pool, payload)
			out, err := codec.Marshal(&m)
			if err != nil {
				t.Fatal(err)
			}
			b := out.Materialize()
			out.Free()
			if pool.out != 0 {
				t.Errorf("%d buffers were not given back", pool.out)
			}
			got := &replicav1.ReplicateResponse{}
			if err := proto.Unmarshal(b, got); err != nil {
				t.Fatal(err)
			}
			var stored []byte
			for _, batch := range got.GetData().GetBatches() {
				one, _ := proto.MarshalOptions{Deterministic: true}.Marshal(&runnelv1.Segment{Batches: []*runnelv1.RecordBatch{batch}})
				stored = append(stored, one...)
			}
			if len(stored) != len(frames) {
				t.Errorf("%d bytes of batches, want %d", len(stored), len(frames))
			}
			got.GetData().Batches = nil
			if diff := cmp.Diff(want, got.GetData(), protocmp.Transform()); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			// What lies around the message must not matter.
			around := append(append([]byte{0xff, 0xff}, b...), 0xff)
			var d ReplicaData
			if ok, err := d.Parse(around, 2, 2+len(b)); !ok || err != nil {
				t.Fatalf("parse: %v, %v", ok, err)
			}
			if diff := cmp.Diff(want, generated(&d), protocmp.Transform()); diff != "" || !bytes.Equal(d.Frames, frames) {
				t.Errorf("%d bytes of %d; -want +got:\n%s", len(d.Frames), len(frames), diff)
			}
		}
	}
}

func TestReplicaData_leavesOtherEventsAlone(t *testing.T) {
	for _, m := range []*replicav1.ReplicateResponse{
		{},
		{Event: &replicav1.ReplicateResponse_Opened{Opened: &replicav1.Opened{}}},
		{Event: &replicav1.ReplicateResponse_Progress{Progress: &replicav1.Progress{Partitions: []*replicav1.PartitionProgress{{Subscription: 1}}}}},
		{Event: &replicav1.ReplicateResponse_Ended{Ended: &replicav1.Ended{Subscription: 1}}},
	} {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		var d ReplicaData
		if ok, err := d.Parse(b, 0, len(b)); ok || err != nil {
			t.Errorf("%v: %v, %v", m, ok, err)
		}
	}
}

func TestReplicaData_refuses(t *testing.T) {
	data := func(fields ...[]byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(nil, replicaDataEvent, protowire.BytesType), bytes.Join(fields, nil))
	}
	batch := protowire.AppendBytes(protowire.AppendTag(nil, replicaBatches, protowire.BytesType), []byte("batch"))
	number := protowire.AppendVarint(protowire.AppendTag(nil, replicaNext, protowire.VarintType), 9)
	for name, b := range map[string][]byte{
		"a batch, a number, a batch": data(batch, number, batch),
		"data twice":                 append(data(batch), data(number)...),
		"a batch that is cut off":    data(batch[:len(batch)-1]),
		"data that is cut off":       data(batch)[:8],
		"a name that is no text":     data(protowire.AppendBytes(protowire.AppendTag(nil, replicaTopicID, protowire.BytesType), []byte{0xff})),
	} {
		var d ReplicaData
		if ok, err := d.Parse(b, 0, len(b)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %v, %v", name, ok, err)
		}
	}
	var d ReplicaData
	if ok, err := d.Parse(data(number, batch, batch, number), 0, len(data(number, batch, batch, number))); !ok || err != nil || len(d.Frames) != 2*len(batch) || d.NextOffset != 9 {
		t.Errorf("batches between numbers: %v, %v, %+v", ok, err, d)
	}
}

func FuzzReplicaData(f *testing.F) {
	for _, m := range replicaHeads()[:3] {
		m.Batches = []*runnelv1.RecordBatch{{}, {Format: new(uint32(1))}}
		b, _ := proto.Marshal(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Data{Data: m}})
		f.Add(b)
	}
	b, _ := proto.Marshal(&replicav1.ReplicateResponse{Event: &replicav1.ReplicateResponse_Heartbeat{Heartbeat: &replicav1.Heartbeat{Number: 7}}})
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		var d ReplicaData
		ok, err := d.Parse(b, 0, len(b))
		want := &replicav1.ReplicateResponse{}
		if proto.Unmarshal(b, want) != nil {
			return // the content of batches is not looked at
		}
		if err != nil {
			if !strings.Contains(err.Error(), "twice") && !strings.Contains(err.Error(), "together") {
				t.Fatalf("refused %x: %v", b, err)
			}
			return
		}
		if ok != (want.GetData() != nil) {
			t.Fatalf("%x: data %v, want %v", b, ok, want)
		}
		if !ok {
			return
		}
		seg := &runnelv1.Segment{}
		if err := proto.Unmarshal(d.Frames, seg); err != nil {
			t.Fatalf("%x: frames %x: %v", b, d.Frames, err)
		}
		got := generated(&d)
		got.Batches = seg.GetBatches()
		dropUnknown(want)
		dropUnknown(got)
		if !proto.Equal(got, want.GetData()) {
			t.Errorf("%x: got %v, want %v", b, got, want)
		}
	})
}
