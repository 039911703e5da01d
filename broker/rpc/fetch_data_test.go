package rpc

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/record"
)

// sample is data with sizes from nothing to over 2 MiB, in batches of every
// compression.
func (b *testBroker) sample(topic string, seed uint64) (want [][]byte) {
	b.t.Helper()
	rng := rand.New(rand.NewPCG(seed, 1))
	next := int64(0)
	for i := range 10 {
		var batch [][]byte
		room := 2 << 20
		for range 1 + rng.IntN(50) {
			size := rng.IntN(100) << rng.IntN(15)
			if size > room {
				break
			}
			room -= size
			v := make([]byte, size)
			for j := 0; j < size; j += 1 + rng.IntN(40) { // compressible, not trivially
				v[j] = byte(rng.IntN(100))
			}
			batch = append(batch, v)
		}
		msg := buildBatch(b.t, record.Compression(1+i%5), time.Now().UnixMilli(), batch...)
		resp, err := b.oneOf(rawRequest(topic, 0, msg))
		if err != nil || resp.GetError() != nil || resp.GetBaseOffset() != next {
			b.t.Fatalf("batch %d: %v, %v", i, resp, err)
		}
		next += int64(len(batch))
		want = append(want, batch...)
	}
	return want
}

// recordsIn decodes batches as a client would, and drops what begins too early.
func recordsIn(tb testing.TB, batches []*runnelv1.RecordBatch, from int64) (offsets []int64, values [][]byte) {
	tb.Helper()
	it := record.NewIterator(record.NewCodec())
	for _, m := range batches {
		frame := marshal(tb, &runnelv1.Segment{Batches: []*runnelv1.RecordBatch{m}})
		f, verdict := record.CheckFrame(frame, record.MaxFrameSize)
		if verdict != record.OK {
			tb.Fatalf("%v: %v", m.GetBaseOffset(), verdict)
		}
		it.Reset(f.Header, f.Payload(frame))
		for it.Next() {
			if r := it.Record(); int64(r.Offset) >= from {
				offsets = append(offsets, int64(r.Offset))
				values = append(values, bytes.Clone(r.Value))
			}
		}
		if it.Err() != nil {
			tb.Fatal(it.Err())
		}
	}
	return offsets, values
}

// Whatever the sizes and the format, everything comes, once, in order, in
// responses that every gRPC runtime takes.
func TestFetch_everyFormatDeliversEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1, "max.message.bytes", "3670016")
		want := b.sample("t", 1)
		none := []runnelv1.Compression{runnelv1.Compression_COMPRESSION_NONE}
		some := []runnelv1.Compression{runnelv1.Compression_COMPRESSION_ZSTD, runnelv1.Compression_COMPRESSION_GZIP}
		for name, opts := range map[string]*runnelv1.FetchOptions{
			"records":       {Format: records, MaxResponseBytes: new(int32(3 << 20))},
			"small records": {Format: records, MaxResponseBytes: new(int32(64 << 10))},
			"text":          {Format: text, MaxResponseBytes: new(int32(100_000))},
			"batches":       {Format: batches},
			"small batches": {Format: batches, MaxResponseBytes: new(int32(64 << 10))},
			"decompressed":  {Format: batches, AcceptCompressions: none},
			"some accepted": {Format: batches, AcceptCompressions: some, MaxResponseBytes: new(int32(128 << 10))},
		} {
			for _, from := range []int64{0, 7, int64(len(want)) - 3} {
				got := b.fetchAll(&runnelv1.FetchRequest{Options: opts, Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, from)}})
				offsets, values := recordsIn(t, got.batches, from)
				for _, r := range got.records[0] {
					offsets, values = append(offsets, r.GetOffset()), append(values, r.GetValue())
				}
				for _, r := range got.texts[0] {
					offsets, values = append(offsets, r.GetOffset()), append(values, []byte(r.GetValue()))
				}
				if got.err != nil || !got.ends[0] || len(got.errors) > 0 || got.next[0] != int64(len(want)) {
					t.Errorf("%s from %d: %v, end %v, errors %v, next %d", name, from, got.err, got.ends[0], got.errors, got.next[0])
				}
				if !slices.EqualFunc(values, want[from:], bytes.Equal) || offsets[0] != from || offsets[len(offsets)-1] != int64(len(want))-1 {
					t.Errorf("%s from %d: %d records from %d, want %d", name, from, len(values), offsets[0], len(want)-int(from))
				}
				for _, m := range got.batches {
					if c := m.GetCompression(); len(opts.GetAcceptCompressions()) > 0 && c != 1 && !slices.Contains(opts.GetAcceptCompressions(), c) {
						t.Errorf("%s: a batch with %v", name, c)
					}
				}
				limit := int(opts.GetMaxResponseBytes())
				for _, r := range got.responses {
					n := len(r.GetRecords()) + len(r.GetTextRecords())
					for _, m := range r.GetBatches() {
						n += int(m.GetRecordCount())
					}
					if size := proto.Size(r); size > 4<<20 || n > 1 && len(r.GetBatches()) != 1 && limit > 0 && size > limit+1000 {
						t.Errorf("%s: a response of %d bytes and %d records", name, size, n)
					}
				}
			}
		}
	})
}

// What is sent decompressed keeps what the stored batch says of itself.
func TestFetch_decompressedBatchesKeepTheirFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1, "message.timestamp.type", "LogAppendTime")
		builder := record.NewBuilder(record.NewCodec(), record.Limits{})
		for i := range 3000 {
			if err := builder.Add([]byte(strconv.Itoa(i)), make([]byte, 100), []record.HeaderKV{{Key: "h"}}, int64(i)); err != nil {
				t.Fatal(err)
			}
		}
		batch, err := builder.Finish(record.CompressionZstd, 0)
		if err != nil {
			t.Fatal(err)
		}
		batch.ProducerID, batch.ProducerEpoch, batch.BaseSequence = 9, 2, 0
		if _, err := b.part("t", 0).Append(&batch, nil); err != nil {
			t.Fatal(err)
		}
		got := b.fetchAll(&runnelv1.FetchRequest{
			Options: &runnelv1.FetchOptions{
				Format: batches, MaxResponseBytes: new(int32(64 << 10)), AcceptCompressions: []runnelv1.Compression{runnelv1.Compression_COMPRESSION_LZ4},
			},
			Partitions: []*runnelv1.FetchPartition{{Topic: "t"}},
		})
		if len(got.batches) < 4 {
			t.Fatalf("%d batches, want several", len(got.batches))
		}
		next := int64(0)
		for _, m := range got.batches {
			if m.GetBaseOffset() != next || m.GetProducerId() != 9 || m.GetProducerEpoch() != 2 || m.GetBaseSequence() != next ||
				m.GetTimestampType() != runnelv1.TimestampType_TIMESTAMP_TYPE_LOG_APPEND_TIME || m.GetAppendTimeMs() != time.Now().UnixMilli() || m.GetLeaderEpoch() != 1 {
				t.Errorf("batch at %d, want %d: %v", m.GetBaseOffset(), next, m.GetBaseSequence())
			}
			next += int64(m.GetRecordCount())
		}
		if _, values := recordsIn(t, got.batches, 0); len(values) != 3000 || next != 3000 {
			t.Errorf("%d records, next %d", len(values), next)
		}
	})
}

// The balance is exact: a response is sent while it is above 0, its serialized
// size is subtracted, and it may go below.
func TestFetch_credit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		for range 10 {
			b.text("t", 0, string(make([]byte, 40<<10)))
		}
		stream := b.fetch(&runnelv1.FetchRequest{
			Options:    &runnelv1.FetchOptions{Format: records, Follow: true, InitialCreditBytes: new(int64(1)), MaxResponseBytes: new(int32(64 << 10))},
			Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 0)},
		})
		responses := make(chan *runnelv1.FetchResponse)
		var wg sync.WaitGroup
		wg.Go(func() {
			defer close(responses)
			for {
				r, err := stream.Recv()
				if err != nil {
					return
				}
				if len(r.GetRecords()) > 0 { // news are free
					responses <- r
				}
			}
		})
		balance := int64(1)
		quiet := func() {
			synctest.Wait()
			select {
			case r := <-responses:
				t.Fatalf("%d records at a balance of %d", len(r.GetRecords()), balance)
			default:
			}
		}
		for next := int64(0); next < 10; {
			if balance <= 0 {
				quiet()
				if balance < 0 {
					send(t, stream, &runnelv1.FetchRequest{CreditBytes: -balance})
					balance = 0
					quiet()
				}
				send(t, stream, &runnelv1.FetchRequest{CreditBytes: 1})
				balance = 1
			}
			r := <-responses
			balance -= int64(proto.Size(r))
			next = r.GetNextOffset()
		}
		_ = stream.CloseSend()
		b.append("t", 0, "after half-close it is unlimited")
		<-responses
		b.svc.Drain()
		for range responses {
		}
		wg.Wait()
	})
}

func TestFetchCredit_isCapped(t *testing.T) {
	var c fetchCredit
	if !c.ok() {
		t.Error("no credit without limits")
	}
	c.start(1 << 62)
	c.add(1 << 62)
	if c.balance != maxCredit {
		t.Errorf("balance %d", c.balance)
	}
	c.spend(maxCredit + 5)
	if c.ok() || c.balance != -5 {
		t.Errorf("balance %d", c.balance)
	}
	c.add(5)
	if c.ok() {
		t.Error("ok at 0")
	}
	c.lift()
	if !c.ok() {
		t.Error("lifted, and not ok")
	}
}

// Ready partitions take turns, one response each.
func TestFetch_partitionsTakeTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 3)
		for n := range int32(3) {
			for range 20 {
				b.text("t", n, string(make([]byte, 60<<10)))
			}
		}
		got := b.fetchAll(&runnelv1.FetchRequest{
			Options: &runnelv1.FetchOptions{MaxResponseBytes: new(int32(64 << 10))}, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}},
		})
		for i, r := range got.responses[:60] {
			if r.GetPartition() != got.responses[i%3].GetPartition() {
				t.Errorf("response %d is of partition %d", i, r.GetPartition())
			}
		}
	})
}

// A trickle travels together, and no record waits longer than a millisecond.
func TestFetch_coalesces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		stream := b.fetch(following(fromLatest("t", 0)))
		recv(t, stream)
		b.append("t", 0, "first")
		start := time.Now()
		wantValues(t, stream, "first")
		if time.Since(start) != 0 {
			t.Errorf("the first record waited %s", time.Since(start))
		}
		b.append("t", 0, "a")
		synctest.Wait()
		b.append("t", 0, "b")
		wantValues(t, stream, "a b")
		if got := time.Since(start); got != time.Millisecond {
			t.Errorf("they came after %s", got)
		}
		time.Sleep(5 * time.Millisecond)
		start = time.Now()
		b.append("t", 0, "c")
		wantValues(t, stream, "c")
		if time.Since(start) != 0 {
			t.Errorf("after a pause it waited %s", time.Since(start))
		}
	})
}

func TestFetch_minResponseBytesAndMaxWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		for _, format := range []runnelv1.FetchFormat{text, batches} {
			stream := b.fetch(&runnelv1.FetchRequest{
				Options: &runnelv1.FetchOptions{
					Format: format, Follow: true, MinResponseBytes: new(int32(1000)), MaxWait: durationpb.New(2 * time.Second),
				},
				Partitions: []*runnelv1.FetchPartition{fromLatest("t", 0)},
			})
			recv(t, stream)
			start := time.Now()
			b.append("t", 0, "a")
			time.Sleep(time.Second)
			b.append("t", 0, "b")
			if r := recv(t, stream); time.Since(start) != 2*time.Second || len(r.GetBatches())+len(r.GetTextRecords()) != 2 {
				t.Errorf("after %s: %v", time.Since(start), r)
			}
			time.Sleep(time.Minute)
			start = time.Now()
			for range 20 {
				time.Sleep(10 * time.Millisecond)
				b.append("t", 0, string(make([]byte, 100)))
			}
			if recv(t, stream); time.Since(start) > 200*time.Millisecond {
				t.Errorf("enough bytes waited %s", time.Since(start))
			}
		}
	})
}

// Stored data that does not match its checksum is never sent decoded; the
// reader learns where it may go on.
func TestFetch_corruptData(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFlippingFS()
		b := newTestBroker(t, testConfig{fs: fs})
		b.topic("t", 1)
		for _, v := range []string{"aaaa", "bbbb", "DAMAGED", "dddd"} {
			b.text("t", 0, v)
		}
		fs.damage.Store(new("DAMAGED"))
		stream := b.fetch(following(fromOffset("t", 0, 0)))
		wantValues(t, stream, "aaaa bbbb")
		r := recv(t, stream)
		want := map[string]string{"topic": "t", "partition": "0", "nextOffset": "3"}
		if e := r.GetError(); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_LOG_CORRUPT || cmp.Diff(want, e.GetMetadata()) != "" || r.GetNextOffset() != 2 {
			t.Errorf("got %v, want that the log is corrupt at 2, and %v", r, want)
		}
		var found *partition.CorruptError
		if err := b.part("t", 0).Damage(); !errors.As(err, &found) || found.From != 2 || found.Next != 3 {
			t.Errorf("the partition knows of %v, want the damage at 2", err)
		}
		send(t, stream, &runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 3)}})
		wantValues(t, stream, "dddd")
	})
}

// Batches are sent as they are stored, and verified by who reads them. One who
// comes back to where it found damage is told whether that is in the log.
func TestFetch_corruptBatchIsFoundWhenAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newFlippingFS()
		b := newTestBroker(t, testConfig{fs: fs})
		b.topic("t", 1)
		for _, v := range []string{"aaaa", "bbbb", "DAMAGED", "dddd"} {
			b.text("t", 0, v)
		}
		fs.damage.Store(new("DAMAGED"))
		read := func(from int64) allFetched {
			return b.fetchAll(&runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Format: batches}, Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, from)}})
		}
		if got := read(0); len(got.batches) != 4 || len(got.errors) != 0 {
			t.Fatalf("from the start: %d batches, %v", len(got.batches), got.errors)
		}
		got := read(2)
		want := map[string]string{"topic": "t", "partition": "0", "nextOffset": "3"}
		if e := got.errors[0]; len(got.batches) != 0 || e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_LOG_CORRUPT || cmp.Diff(want, e.GetMetadata()) != "" {
			t.Errorf("from the damage: %d batches, %v", len(got.batches), got.errors)
		}
		var found *partition.CorruptError
		if err := b.part("t", 0).Damage(); !errors.As(err, &found) || found.From != 2 || found.Next != 3 {
			t.Errorf("the partition knows of %v, want the damage at 2", err)
		}
		if got := read(3); len(got.batches) != 1 || len(got.errors) != 0 {
			t.Errorf("behind it: %d batches, %v", len(got.batches), got.errors)
		}
	})
}
