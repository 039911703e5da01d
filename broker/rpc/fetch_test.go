package rpc

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func fromOffset(topic string, n int32, off int64) *runnelv1.FetchPartition {
	return &runnelv1.FetchPartition{Topic: topic, Partition: &n, Start: &runnelv1.FetchPartition_Offset{Offset: off}}
}

func fromLatest(topic string, n int32) *runnelv1.FetchPartition {
	return &runnelv1.FetchPartition{Topic: topic, Partition: &n, Start: &runnelv1.FetchPartition_Position{Position: runnelv1.Position_POSITION_LATEST}}
}

func fromTime(topic string, n int32, ms int64) *runnelv1.FetchPartition {
	return &runnelv1.FetchPartition{Topic: topic, Partition: &n, Start: &runnelv1.FetchPartition_Timestamp{Timestamp: timestamppb.New(time.UnixMilli(ms))}}
}

func following(parts ...*runnelv1.FetchPartition) *runnelv1.FetchRequest {
	return &runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Follow: true, Format: text}, Partitions: parts}
}

func refs(topic string, n ...int32) []*runnelv1.PartitionRef {
	if len(n) == 0 {
		return []*runnelv1.PartitionRef{{Topic: topic}}
	}
	var out []*runnelv1.PartitionRef
	for _, p := range n {
		out = append(out, &runnelv1.PartitionRef{Topic: topic, Partition: &p})
	}
	return out
}

func tagged(p *runnelv1.FetchPartition, tag uint64) *runnelv1.FetchPartition {
	p.Tag = tag
	return p
}

// values of the text records of a response.
func values(r *runnelv1.FetchResponse) string {
	var out []string
	for _, rec := range r.GetTextRecords() {
		out = append(out, rec.GetValue())
	}
	return strings.Join(out, " ")
}

// nextValues skips responses without records.
func nextValues(tb testing.TB, stream runnelv1.LogService_FetchClient) (string, *runnelv1.FetchResponse) {
	tb.Helper()
	for {
		r := recv(tb, stream)
		if r.GetError() != nil || r.GetGoaway() != nil {
			tb.Fatalf("got %v, want records", r)
		}
		if len(r.GetTextRecords()) > 0 {
			return values(r), r
		}
	}
}

// want checks the values of the next response with records.
func wantValues(tb testing.TB, stream runnelv1.LogService_FetchClient, want string) *runnelv1.FetchResponse {
	tb.Helper()
	got, r := nextValues(tb, stream)
	if got != want {
		tb.Errorf("got %q, want %q", got, want)
	}
	return r
}

func TestFetch_positions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		for i, ms := range []int64{2, 4, 6, 8} { // ST-13
			b.produce(&runnelv1.ProduceRequest{Topic: "t", TextRecords: []*runnelv1.ProduceTextRecord{
				{Value: new(strconv.Itoa(i)), Timestamp: timestamppb.New(time.UnixMilli(ms))},
			}})
		}
		for name, c := range map[string]struct {
			part *runnelv1.FetchPartition
			want string
			next int64
		}{
			"earliest":     {&runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0))}, "0 1 2 3", 4},
			"offset":       {fromOffset("t", 0, 2), "2 3", 4},
			"the end":      {fromOffset("t", 0, 4), "", 4},
			"latest":       {fromLatest("t", 0), "", 4},
			"time 0":       {fromTime("t", 0, 0), "0 1 2 3", 4},
			"time 2":       {fromTime("t", 0, 2), "0 1 2 3", 4},
			"time 3":       {fromTime("t", 0, 3), "1 2 3", 4},
			"time 8":       {fromTime("t", 0, 8), "3", 4},
			"time 9":       {fromTime("t", 0, 9), "", 4},
			"a nano later": {&runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0)), Start: &runnelv1.FetchPartition_Timestamp{Timestamp: &timestamppb.Timestamp{Nanos: 4_000_001}}}, "2 3", 4},
			"a stop":       {&runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0)), StopOffset: new(int64(2))}, "0 1", 2},
			"stop at once": {&runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0)), StopOffset: new(int64(0))}, "", 0},
		} {
			for _, followed := range []bool{false, true} {
				if followed && c.part.StopOffset == nil {
					continue // would go on
				}
				got := b.fetchAll(&runnelv1.FetchRequest{
					Options: &runnelv1.FetchOptions{Format: text, Follow: followed}, Partitions: []*runnelv1.FetchPartition{tagged(c.part, 9)},
				})
				var all []string
				for _, r := range got.texts[0] {
					all = append(all, r.GetValue())
				}
				if strings.Join(all, " ") != c.want || got.next[0] != c.next || !got.ends[0] || got.err != nil || got.responses[0].GetTag() != 9 {
					t.Errorf("%s, follow %v: %v, next %d, end %v, %v; want %q, next %d", name, followed, all, got.next[0], got.ends[0], got.err, c.want, c.next)
				}
			}
		}
	})
}

func TestFetch_refusesBadPartitionsAndGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		id := b.topic("t", 2)
		b.change("t", 2, 3)
		b.text("t", 0, "a", "b")
		p0 := new(int32(0))
		for name, c := range map[string]struct {
			part   *runnelv1.FetchPartition
			code   codes.Code
			reason runnelv1.ErrorReason
		}{
			"an unknown topic":       {fromOffset("none", 0, 0), codes.NotFound, runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
			"an unknown partition":   {fromOffset("t", 2, 0), codes.NotFound, runnelv1.ErrorReason_ERROR_REASON_PARTITION_NOT_FOUND},
			"a negative partition":   {fromOffset("t", -1, 0), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"another topic's id":     {&runnelv1.FetchPartition{Topic: "t", TopicId: new(uuid.NewString())}, codes.FailedPrecondition, runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH},
			"no id":                  {&runnelv1.FetchPartition{Topic: "t", TopicId: new("x")}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"all at one offset":      {&runnelv1.FetchPartition{Topic: "t", TopicId: new(id.String()), Start: &runnelv1.FetchPartition_Offset{}}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"all with one epoch":     {&runnelv1.FetchPartition{Topic: "t", LeaderEpoch: new(int64(1))}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a negative offset":      {fromOffset("t", 0, -1), codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"a negative stop":        {&runnelv1.FetchPartition{Topic: "t", StopOffset: new(int64(-1))}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"beyond the end":         {fromOffset("t", 0, 3), codes.OutOfRange, runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE},
			"an unknown position":    {&runnelv1.FetchPartition{Topic: "t", Partition: p0, Start: &runnelv1.FetchPartition_Position{Position: 9}}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"no time":                {&runnelv1.FetchPartition{Topic: "t", Partition: p0, Start: &runnelv1.FetchPartition_Timestamp{Timestamp: &timestamppb.Timestamp{Nanos: -1}}}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"an old epoch":           {&runnelv1.FetchPartition{Topic: "t", Partition: p0, LeaderEpoch: new(int64(1))}, codes.FailedPrecondition, runnelv1.ErrorReason_ERROR_REASON_FENCED_LEADER_EPOCH},
			"a future epoch":         {&runnelv1.FetchPartition{Topic: "t", Partition: p0, LeaderEpoch: new(int64(4))}, codes.Unavailable, runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA},
			"a last epoch of naught": {&runnelv1.FetchPartition{Topic: "t", Partition: p0, LastEpoch: new(int64(1))}, codes.InvalidArgument, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		} {
			stream := b.fetch(following(tagged(c.part, 5)))
			r := recv(t, stream)
			e := r.GetError()
			if codes.Code(e.GetCode()) != c.code || e.GetReason() != c.reason || r.GetTag() != 5 || e.GetMessage() == "" {
				t.Errorf("%s: %v, want %v %v", name, r, c.code, c.reason)
			}
			if (c.part.Partition == nil) != (r.Partition == nil) || (r.Partition == nil) != (r.NextOffset == nil) {
				t.Errorf("%s: partition and next_offset in %v", name, r)
			}
			send(t, stream, &runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 1)}})
			wantValues(t, stream, "b")
			_ = stream.CloseSend()
		}
		got := b.fetchAll(following(fromOffset("t", 0, 3))).errors[0]
		want := map[string]string{"logStartOffset": "0", "highWatermark": "2", "endOffset": "2"}
		if diff := cmp.Diff(want, got.GetMetadata()); diff != "" {
			t.Errorf("facts: -want +got:\n%s", diff)
		}
	})
}

// Misuse of the protocol ends the stream, and says why.
func TestFetch_misuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		opt := func(o *runnelv1.FetchOptions) []*runnelv1.FetchRequest { return []*runnelv1.FetchRequest{{Options: o}} }
		for name, reqs := range map[string][]*runnelv1.FetchRequest{
			"late options":           {{}, {Options: &runnelv1.FetchOptions{}}},
			"credit without":         {{CreditBytes: 5}},
			"negative credit":        {{Options: &runnelv1.FetchOptions{InitialCreditBytes: new(int64(5))}, CreditBytes: -1}},
			"negative first credit":  opt(&runnelv1.FetchOptions{InitialCreditBytes: new(int64(-1))}),
			"an unknown format":      opt(&runnelv1.FetchOptions{Format: 9}),
			"an unknown isolation":   opt(&runnelv1.FetchOptions{Isolation: 9}),
			"an unknown routing":     opt(&runnelv1.FetchOptions{Routing: 9}),
			"an unknown compression": opt(&runnelv1.FetchOptions{AcceptCompressions: []runnelv1.Compression{1, 0x101}}),
			"small responses":        opt(&runnelv1.FetchOptions{MaxResponseBytes: new(int32(1000))}),
			"large responses":        opt(&runnelv1.FetchOptions{MaxResponseBytes: new(int32(4 << 20))}),
			"more than the most":     opt(&runnelv1.FetchOptions{MinResponseBytes: new(int32(2 << 20))}),
			"no records":             opt(&runnelv1.FetchOptions{MaxRecords: new(int64(0))}),
			"no wait":                opt(&runnelv1.FetchOptions{MaxWait: durationpb.New(-1)}),
			"hasty progress":         opt(&runnelv1.FetchOptions{ProgressInterval: durationpb.New(time.Millisecond)}),
		} {
			stream, err := b.log.Fetch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, req := range reqs {
				_ = stream.Send(req) // fails when the stream has ended already
			}
			r, err := stream.Recv()
			if status.Code(err) != codes.InvalidArgument || reasonOf(err) != runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
				t.Errorf("%s: %v, %v", name, r, err)
			}
		}
	})
}

func TestFetch_followsAndIsEdited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 2)
		b.text("t", 0, "a", "b", "c")
		stream := b.fetch(following(tagged(fromOffset("t", 0, 0), 1)))
		wantValues(t, stream, "a b c")
		b.text("t", 0, "d")
		wantValues(t, stream, "d")
		// Seek: answers from before and after are told apart by the tag.
		send(t, stream, &runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{tagged(fromOffset("t", 0, 1), 2)}})
		if r := wantValues(t, stream, "b c d"); r.GetTag() != 2 || r.GetNextOffset() != 4 {
			t.Error(r)
		}
		// Pause; the other partition goes on.
		send(t, stream, &runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{fromLatest("t", 1)}, Pause: refs("t", 0)})
		synctest.Wait()
		b.text("t", 0, "e")
		b.text("t", 1, "other")
		if r := wantValues(t, stream, "other"); r.GetPartition() != 1 {
			t.Error(r)
		}
		// A seek does not resume. Remove comes first, resume last.
		send(t, stream, &runnelv1.FetchRequest{
			Remove: refs("t", 1), Partitions: []*runnelv1.FetchPartition{tagged(fromOffset("t", 0, 3), 3)},
		})
		synctest.Wait()
		b.text("t", 1, "unheard")
		b.text("t", 0, "f")
		send(t, stream, &runnelv1.FetchRequest{Resume: refs("t")})
		if r := wantValues(t, stream, "d e f"); r.GetTag() != 3 {
			t.Error(r)
		}
		// In one message: remove, then add, then pause, then resume.
		send(t, stream, &runnelv1.FetchRequest{
			Remove: refs("t"), Partitions: []*runnelv1.FetchPartition{fromOffset("t", 1, 0)}, Pause: refs("t"), Resume: refs("t", 1),
		})
		wantValues(t, stream, "other unheard")
		_ = stream.CloseSend() // and following goes on
		b.text("t", 1, "still")
		wantValues(t, stream, "still")
	})
}

func TestFetch_allPartitionsAndLaterOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 2)
		stream := b.fetch(following(tagged(&runnelv1.FetchPartition{Topic: "t"}, 7)))
		synctest.Wait()
		b.change("t", 3, 1)
		b.text("t", 2, "new")
		if r := wantValues(t, stream, "new"); r.GetPartition() != 2 || r.GetTag() != 7 {
			t.Error(r)
		}
		// Paused as a whole, so are those that come.
		send(t, stream, &runnelv1.FetchRequest{Pause: refs("t")})
		synctest.Wait()
		b.change("t", 4, 1)
		b.text("t", 3, "held")
		synctest.Wait()
		send(t, stream, &runnelv1.FetchRequest{Resume: refs("t")})
		if r := wantValues(t, stream, "held"); r.GetPartition() != 3 {
			t.Error(r)
		}
		// The topic's end is that of each partition.
		b.remove("t", 4)
		gone := map[int32]bool{}
		for range 4 {
			r := recv(t, stream)
			for r.GetError() == nil {
				r = recv(t, stream)
			}
			if r.GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND {
				t.Error(r)
			}
			gone[r.GetPartition()] = true
		}
		if len(gone) != 4 {
			t.Errorf("ended: %v", gone)
		}
		_ = stream.CloseSend()
		ended(t, stream, codes.OK, 0) // nothing is left to follow
	})
}

func TestFetch_withoutFollowEndsAtTheEndThereWas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 2)
		b.text("t", 0, "a", "b")
		stream := b.fetch(&runnelv1.FetchRequest{
			Options: &runnelv1.FetchOptions{Format: text, InitialCreditBytes: new(int64(0))}, Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 0), fromOffset("t", 1, 0)},
		})
		if r := recv(t, stream); !r.GetEnd() || r.GetPartition() != 1 {
			t.Error(r)
		}
		synctest.Wait()
		b.text("t", 0, "later")
		send(t, stream, &runnelv1.FetchRequest{CreditBytes: 1 << 20})
		if r := wantValues(t, stream, "a b"); !r.GetEnd() || r.GetNextOffset() != 2 {
			t.Error(r)
		}
		// The stream lives until the client half-closes, and takes edits.
		send(t, stream, &runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 1)}})
		if r := wantValues(t, stream, "b later"); !r.GetEnd() {
			t.Error(r)
		}
		_ = stream.CloseSend()
		ended(t, stream, codes.OK, 0)
	})
}

func TestFetch_maxRecordsEndsTheStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 2)
		b.text("t", 0, "a", "b")
		b.text("t", 0, "c", "d")
		for format, want := range map[runnelv1.FetchFormat]int{records: 3, text: 3, batches: 4} {
			stream := b.fetch(&runnelv1.FetchRequest{
				Options: &runnelv1.FetchOptions{Format: format, Follow: true, MaxRecords: new(int64(3))}, Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 0)},
			})
			got := collect(t, stream) // it is not half-closed
			n := len(got.records[0]) + len(got.texts[0])
			for _, batch := range got.batches {
				n += int(batch.GetRecordCount())
			}
			if n != want || got.err != nil {
				t.Errorf("%v: %d records, %v, want %d", format, n, got.err, want)
			}
		}
	})
}

func TestFetch_epochs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		b.text("t", 0, "0", "1") // epoch 1
		b.change("t", 1, 4)
		b.text("t", 0, "2", "3") // epoch 4
		b.change("t", 1, 6)
		b.text("t", 0, "4") // epoch 6
		ask := func(off, last int64) *runnelv1.ItemError {
			p := fromOffset("t", 0, off)
			p.LastEpoch = &last
			return b.fetchAll(&runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{p}}).errors[0]
		}
		for _, ok := range [][2]int64{{0, 9}, {1, 1}, {2, 1}, {3, 4}, {4, 4}, {5, 6}} {
			if e := ask(ok[0], ok[1]); e != nil {
				t.Errorf("offset %d after epoch %d: %v", ok[0], ok[1], e)
			}
		}
		for _, c := range [][4]string{{"4", "1", "1", "2"}, {"4", "2", "1", "2"}, {"5", "5", "4", "4"}, {"5", "4", "4", "4"}, {"1", "0", "0", "0"}} {
			off, _ := strconv.ParseInt(c[0], 10, 64)
			last, _ := strconv.ParseInt(c[1], 10, 64)
			e := ask(off, last)
			if e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_LOG_TRUNCATED || e.GetMetadata()["divergingEpoch"] != c[2] || e.GetMetadata()["endOffset"] != c[3] {
				t.Errorf("offset %d after epoch %d: %v, want epoch %s, end %s", off, last, e, c[2], c[3])
			}
		}
	})
}

func TestFetch_retentionOvertakesAReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 1)
		b.text("t", 0, "a", "b", "c")
		stream := b.fetch(&runnelv1.FetchRequest{
			Options: &runnelv1.FetchOptions{Follow: true, Format: text, InitialCreditBytes: new(int64(0))}, Partitions: []*runnelv1.FetchPartition{fromOffset("t", 0, 1)},
		})
		synctest.Wait()
		if _, err := b.part("t", 0).DeleteRecords(t.Context(), 2); err != nil {
			t.Fatal(err)
		}
		send(t, stream, &runnelv1.FetchRequest{CreditBytes: 1 << 20})
		r := recv(t, stream)
		if r.GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE || r.GetError().GetMetadata()["logStartOffset"] != "2" {
			t.Error(r)
		}
		// Who asked for whatever is first gets that.
		send(t, stream, &runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{{Topic: "t"}}})
		wantValues(t, stream, "c")
	})
}

func TestFetch_progressOnIdleStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		b.topic("t", 2)
		b.text("t", 0, "a")
		req := following(fromLatest("t", 0), fromLatest("t", 1))
		req.Options.ProgressInterval = durationpb.New(5 * time.Second)
		stream := b.fetch(req)
		for range 2 { // where it stands, at once
			if r := recv(t, stream); r.GetNextOffset() != r.GetHighWatermark() || r.LogStartOffset == nil {
				t.Error(r)
			}
		}
		start := time.Now()
		for i := range 4 {
			r := recv(t, stream)
			if got, want := time.Since(start), time.Duration(i+1)*5*time.Second; got != want || r.Partition == nil || r.HighWatermark == nil {
				t.Errorf("after %s: %v, want it after %s", got, r, want)
			}
		}
		send(t, stream, &runnelv1.FetchRequest{Pause: refs("t")})
		synctest.Wait()
		b.text("t", 1, "x")
		if r := recv(t, stream); r.GetPartition() != 1 || r.GetHighWatermark() != 1 || r.GetNextOffset() != 0 {
			t.Errorf("news of a paused partition: %v", r)
		}
	})
}

// A stream without partitions says something too: proxies cut what is silent.
func TestFetch_progressWithoutPartitions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{})
		stream := b.fetch(&runnelv1.FetchRequest{})
		start := time.Now()
		if r := recv(t, stream); !cmp.Equal(&runnelv1.FetchResponse{}, r, protocmp.Transform()) || time.Since(start) != 15*time.Second {
			t.Errorf("after %s: %v", time.Since(start), r)
		}
		_ = stream.CloseSend()
		ended(t, stream, codes.OK, 0)
	})
}

func TestFetch_endings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{opts: LogOptions{GoawayGrace: 3 * time.Second}})
		b.topic("t", 1)
		polite, deaf, early := b.fetch(following(fromLatest("t", 0))), b.fetch(following(fromLatest("t", 0))), b.fetch(following(fromLatest("t", 0)))
		streams := []runnelv1.LogService_FetchClient{polite, deaf, early}
		_ = early.CloseSend() // before it was told: no answer to the Goaway
		for _, s := range streams {
			recv(t, s)
		}
		b.svc.Drain()
		for _, s := range streams {
			if g := recv(t, s).GetGoaway(); g.GetReason() != runnelv1.GoawayReason_GOAWAY_REASON_DRAINING || g.GetFinal() {
				t.Error(g)
			}
		}
		b.append("t", 0, "within the grace period")
		for _, s := range streams {
			wantValues(t, s, "within the grace period")
		}
		_ = polite.CloseSend()
		ended(t, polite, codes.OK, 0)
		for _, s := range []runnelv1.LogService_FetchClient{deaf, early} {
			if g := recv(t, s).GetGoaway(); !g.GetFinal() {
				t.Error("no last word")
			}
			ended(t, s, codes.Unavailable, runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN)
		}
	})
}

func TestRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newTestBroker(t, testConfig{opts: LogOptions{MaxStreamAge: -1}})
		b.topic("t", 1)
		b.text("t", 0, "a", "b")
		read := func(req *runnelv1.FetchRequest) ([]*runnelv1.FetchResponse, error) {
			stream, err := b.log.Read(t.Context(), &runnelv1.ReadRequest{Request: req})
			if err != nil {
				return nil, err
			}
			var out []*runnelv1.FetchResponse
			for {
				r, err := stream.Recv()
				if err != nil {
					return out, err
				}
				out = append(out, r.GetResponse())
			}
		}
		got, err := read(&runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Format: text}, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}}})
		if len(got) != 1 || values(got[0]) != "a b" || !got[0].GetEnd() || err.Error() != "EOF" {
			t.Error(got, err)
		}
		for name, req := range map[string]*runnelv1.FetchRequest{
			"remove": {Remove: refs("t")}, "pause": {Pause: refs("t")}, "resume": {Resume: refs("t")}, "credit": {CreditBytes: 1},
			"first credit": {Options: &runnelv1.FetchOptions{InitialCreditBytes: new(int64(0))}},
		} {
			if got, err := read(req); len(got) > 0 || reasonOf(err) != runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST {
				t.Errorf("%s: %v, %v", name, got, err)
			}
		}
		if got, err := read(nil); len(got) > 0 || err.Error() != "EOF" {
			t.Errorf("nothing: %v, %v", got, err)
		}
	})
}
