package rpc

import (
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/record"
)

func offsetOf(off int64) *runnelv1.FetchPartition_Offset {
	return &runnelv1.FetchPartition_Offset{Offset: off}
}

// next reads responses until one has text records, and returns them.
func nextText(t *testing.T, stream runnelv1.LogService_FetchClient) (*runnelv1.FetchResponse, string) {
	t.Helper()
	for {
		r := recv(t, stream)
		if r.GetError() != nil || r.GetEnd() {
			t.Fatal(r)
		}
		if len(r.GetTextRecords()) > 0 {
			return r, values(r)
		}
	}
}

// different says in what two sessions differ; "" in nothing.
func different(want, got allFetched) string {
	for n := range int32(10) {
		for kind, d := range map[string]string{
			"record": firstDifferent(want.records[n], got.records[n]), "text": firstDifferent(want.texts[n], got.texts[n]),
		} {
			if d != "" {
				return fmt.Sprintf("partition %d: %s %s", n, kind, d)
			}
		}
	}
	if d := cmp.Diff(contentsOf(want.batches), contentsOf(got.batches)); d != "" {
		return fmt.Sprintf("batches: %.1000s", d)
	}
	return cmp.Diff(want.next, got.next) + cmp.Diff(want.ends, got.ends) + cmp.Diff(want.errors, got.errors, protocmp.Transform())
}

// contentsOf tells batches apart, whatever order their partitions come in. Those
// that were decompressed count by their records: where they are cut depends on
// how much went into a response.
func contentsOf(all []*runnelv1.RecordBatch) []string {
	var out []string
	for _, b := range all {
		if len(b.GetCompressedRecords()) > 0 {
			out = append(out, fmt.Sprintf("%d %x", b.GetBaseOffset(), sha256.Sum256(b.GetCompressedRecords())))
		}
		for i, r := range b.GetRecords().GetRecords() {
			out = append(out, fmt.Sprintf("%d %x", b.GetBaseOffset()+int64(i), sha256.Sum256(r.GetValue())))
		}
	}
	slices.Sort(out)
	return out
}

func firstDifferent[M proto.Message](want, got []M) string {
	for i := range min(len(want), len(got)) {
		if !proto.Equal(want[i], got[i]) {
			return fmt.Sprintf("%d: %.300v, want %.300v", i, got[i], want[i])
		}
	}
	if len(want) != len(got) {
		return fmt.Sprintf("count: %d, want %d", len(got), len(want))
	}
	return ""
}

// A session reads the same through a proxy as at the leader, in every format,
// from every kind of beginning.
func TestForward_fetchReadsWhatTheLeaderShows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2, 2)
		for i := range 20 {
			for n := range int32(2) {
				var values []string
				for k := range 7 {
					values = append(values, fmt.Sprintf("%d.%d.%s", i, k, strings.Repeat("x", rand.IntN(9000))))
				}
				w.brokers[2].text("t", n, values...)
				msg := buildBatch(t, record.CompressionZstd, time.Now().UnixMilli(), []byte(values[0]), []byte("z"))
				if _, err := w.brokers[2].oneOf(rawRequest("t", n, msg)); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(time.Second)
		}
		at := func(d time.Duration) *runnelv1.FetchPartition_Timestamp {
			return &runnelv1.FetchPartition_Timestamp{Timestamp: timestamppb.New(time.Now().Add(d))}
		}
		for name, part := range map[string]*runnelv1.FetchPartition{
			"all":              {},
			"one":              {Partition: new(int32(1))},
			"latest":           {Start: &runnelv1.FetchPartition_Position{Position: runnelv1.Position_POSITION_LATEST}},
			"within a batch":   {Partition: new(int32(0)), Start: offsetOf(93), StopOffset: new(int64(121))},
			"by time":          {Start: at(-7 * time.Second)},
			"by a future time": {Start: at(time.Hour)},
			"nothing":          {Partition: new(int32(0)), Start: offsetOf(5), StopOffset: new(int64(5))},
			"out of range":     {Partition: new(int32(0)), Start: offsetOf(5000)},
			"truncated":        {Partition: new(int32(0)), Start: offsetOf(50), LastEpoch: new(int64(0))},
			"a fenced epoch":   {Partition: new(int32(0)), LeaderEpoch: new(int64(0))},
			"no such one":      {Partition: new(int32(9))},
		} {
			for _, o := range []*runnelv1.FetchOptions{
				{Format: text},
				{Format: records, MaxResponseBytes: new(int32(64 << 10))},
				{Format: batches},
				{Format: batches, AcceptCompressions: []runnelv1.Compression{runnelv1.Compression_COMPRESSION_NONE}},
				{Format: text, Isolation: runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED},
			} {
				part.Topic = "t"
				req := &runnelv1.FetchRequest{Options: o, Partitions: []*runnelv1.FetchPartition{tagged(part, 3)}}
				want, got := w.brokers[2].fetchAll(req), w.brokers[1].fetchAll(req)
				if d := different(want, got); d != "" {
					t.Errorf("%s, %v: %s", name, o, d)
				}
				if want.err != nil || got.err != nil {
					t.Errorf("%s: %v, %v", name, want.err, got.err)
				}
				for _, r := range got.responses {
					if r.GetTag() != 3 || r.GetTopic() != "t" {
						t.Errorf("%s: %v", name, r)
					}
				}
			}
		}
		synctest.Wait()
		if held := w.routers[1].Held(); held != (router.Held{}) {
			t.Errorf("held afterwards: %+v", held)
		}
	})
}

// A reader that waits on an idle partition hears of a record soon after the
// leadership moved, over the same stream, a hundred times (GR-15).
func TestForward_fetchFollowsTheLeader(t *testing.T) {
	for _, cut := range []bool{false, true} {
		t.Run(fmt.Sprintf("cut=%v", cut), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 3, nil, LogOptions{})
				w.topic("t", 2)
				rng := rand.New(rand.NewPCG(5, 6))
				stream := w.brokers[1].fetch(following(&runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0))}))
				next := int64(0)
				for i := range 100 {
					if i > 0 {
						w.copyLog("t", 0, 1, 2, 3)
						order := []int32{1, 2, 3}
						rng.Shuffle(3, func(i, j int) { order[i], order[j] = order[j], order[i] })
						w.move("t", 0, int32(rng.IntN(3))+1, order[0])
						for _, id := range order[1:] {
							time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
							w.tell("t", 0, id)
						}
						if cut {
							w.cut(int32(rng.IntN(3)) + 1)
						}
					}
					want := strconv.Itoa(i)
					to := int32(rng.IntN(3)) + 1
					if cut { // a write over a connection that breaks is another matter
						to = w.topics["t"].partitions[0].GetLeader()
					}
					w.brokers[to].text("t", 0, want)
					start := time.Now()
					r, got := nextText(t, stream)
					if got != want || r.GetTextRecords()[0].GetOffset() != next || r.GetNextOffset() != next+1 || time.Since(start) > 2*time.Second {
						t.Fatalf("after %s: %v, want %q at %d", time.Since(start), r, want, next)
					}
					next++
				}
			})
		})
	}
}

// Where the new leader's log is another one, the partition ends, and says up to
// where they agree: never a silent jump.
func TestForward_fetchDivergence(t *testing.T) {
	for name, c := range map[string]struct {
		leader     int32
		lacks, has []string // of the new leader
		end        string
	}{
		"another record":      {3, []string{"c"}, []string{"x", "y"}, "2"},
		"a shorter log":       {3, []string{"b", "c"}, nil, "1"},
		"another record here": {1, []string{"c"}, []string{"x", "y"}, "2"},
		"a shorter log here":  {1, []string{"b", "c"}, nil, "1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 3, nil, LogOptions{})
				w.topic("t", 2)
				all := []string{"a", "b", "c"}
				for _, v := range all[:3-len(c.lacks)] {
					w.brokers[2].text("t", 0, v)
				}
				w.copyLog("t", 0, c.leader)
				for _, v := range c.lacks {
					w.brokers[2].text("t", 0, v)
				}
				stream := w.brokers[1].fetch(following(&runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0))}))
				for got := ""; got != "abc"; {
					_, v := nextText(t, stream)
					got += strings.ReplaceAll(v, " ", "")
				}
				w.move("t", 0, c.leader, c.leader)
				for _, v := range c.has {
					w.brokers[c.leader].text("t", 0, v)
				}
				w.tell("t", 0, 1, 2)
				r := recv(t, stream)
				if e := r.GetError(); e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_LOG_TRUNCATED || e.GetMetadata()["endOffset"] != c.end || r.GetPartition() != 0 {
					t.Error(r)
				}
			})
		})
	}
}

// A reader that stops stops its leader: what is read ahead is bounded, and after
// a second nothing is held. When it goes on nothing is missing or there twice.
func TestForward_fetchStalledReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2, 2)
		for i := range 120 {
			w.brokers[2].text("t", int32(i%2), fmt.Sprintf("%d %s", i, strings.Repeat("x", 200<<10)))
		}
		// With credit that is used up.
		stream := w.brokers[1].fetch(&runnelv1.FetchRequest{
			Options:    &runnelv1.FetchOptions{Follow: true, Format: text, InitialCreditBytes: new(int64(1))},
			Partitions: []*runnelv1.FetchPartition{{Topic: "t"}},
		})
		synctest.Wait()
		if ahead := w.routers[1].Held().Ahead; ahead == 0 || ahead > leastAhead+(1<<20) {
			t.Errorf("%d bytes are read ahead", ahead)
		}
		time.Sleep(3 * time.Second)
		if ahead := w.routers[1].Held().Ahead; ahead != 0 {
			t.Errorf("%d bytes are held for a reader without credit", ahead)
		}
		seen := map[string]bool{}
		take := func(s runnelv1.LogService_FetchClient) {
			for len(seen) < 120 {
				r := recv(t, s)
				for _, rec := range r.GetTextRecords() {
					id, _, _ := strings.Cut(rec.GetValue(), " ")
					if i, _ := strconv.Atoi(id); seen[id] || int64(i/2) != rec.GetOffset() {
						t.Errorf("record %s at offset %d", id, rec.GetOffset())
					}
					seen[id] = true
				}
			}
		}
		send(t, stream, &runnelv1.FetchRequest{CreditBytes: 1 << 30})
		take(stream)
		// And without reading.
		clear(seen)
		stalled := w.brokers[1].fetch(&runnelv1.FetchRequest{
			Options: &runnelv1.FetchOptions{Follow: true, Format: text}, Partitions: []*runnelv1.FetchPartition{{Topic: "t"}},
		})
		time.Sleep(3 * time.Second)
		if ahead := w.routers[1].Held().Ahead; ahead != 0 {
			t.Errorf("%d bytes are held for a reader that is stuck", ahead)
		}
		take(stalled)
	})
}

// The edits of a session reach what other brokers lead.
func TestForward_fetchEdits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2, 3)
		stream := w.brokers[1].fetch(following(tagged(&runnelv1.FetchPartition{Topic: "t"}, 1)))
		w.brokers[2].text("t", 0, "a")
		if _, got := nextText(t, stream); got != "a" {
			t.Error(got)
		}
		send(t, stream, &runnelv1.FetchRequest{Pause: refs("t", 0)})
		synctest.Wait()
		w.brokers[2].text("t", 0, "b")
		w.brokers[3].text("t", 1, "c")
		if r, got := nextText(t, stream); got != "c" || r.GetPartition() != 1 {
			t.Error(r)
		}
		time.Sleep(time.Second)
		if ahead := w.routers[1].Held().Ahead; ahead != 0 {
			t.Errorf("%d bytes are held for a paused partition", ahead)
		}
		send(t, stream, &runnelv1.FetchRequest{Resume: refs("t", 0)})
		if r, got := nextText(t, stream); got != "b" || r.GetPartition() != 0 || r.GetTag() != 1 {
			t.Error(r)
		}
		// A seek.
		send(t, stream, &runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{{Topic: "t", Partition: new(int32(0)), Start: offsetOf(0), Tag: 2}}})
		for got := ""; got != "ab"; {
			r, v := nextText(t, stream)
			if r.GetTag() != 2 {
				t.Fatal(r)
			}
			got += strings.ReplaceAll(v, " ", "")
		}
		send(t, stream, &runnelv1.FetchRequest{Remove: refs("t", 0)})
		synctest.Wait()
		w.brokers[2].text("t", 0, "unheard")
		w.brokers[3].text("t", 1, "d")
		if _, got := nextText(t, stream); got != "d" {
			t.Error(got)
		}
		_ = stream.CloseSend()
	})
}

// A session that reads to the end ends where it was when it began, also when
// the leadership moves on the way.
func TestForward_fetchEndIsFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		for i := range 10 {
			w.brokers[2].text("t", 0, strings.Repeat(strconv.Itoa(i), 100<<10))
		}
		w.copyLog("t", 0, 1, 3)
		stream := w.brokers[1].fetch(&runnelv1.FetchRequest{
			Options:    &runnelv1.FetchOptions{Format: text, InitialCreditBytes: new(int64(1))},
			Partitions: []*runnelv1.FetchPartition{{Topic: "t"}},
		})
		first := recv(t, stream)
		for _, leader := range []int32{3, 1} {
			w.move("t", 0, leader)
			w.brokers[leader].text("t", 0, "later")
			w.copyLog("t", 0, 1, 3)
			synctest.Wait()
		}
		send(t, stream, &runnelv1.FetchRequest{CreditBytes: 1 << 20, Options: nil})
		_ = stream.CloseSend()
		got := collect(t, stream)
		if n := len(first.GetTextRecords()) + len(got.texts[0]); n != 10 || got.next[0] != 10 || !got.ends[0] || got.err != nil {
			t.Errorf("%d records, next %d, end %v, %v", n, got.next[0], got.ends[0], got.err)
		}
	})
}

// Without a leader a session that follows waits, and one that reads to the end
// fails after a while.
func TestForward_fetchWithoutLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 2, nil, LogOptions{})
		w.topic("t", 2)
		w.brokers[2].text("t", 0, "a")
		w.move("t", 0, -1)
		one := &runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0))}
		start := time.Now()
		got := w.brokers[1].fetchAll(&runnelv1.FetchRequest{Partitions: []*runnelv1.FetchPartition{one}})
		if e := got.errors[0]; e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_NO_LEADER || time.Since(start) > 31*time.Second {
			t.Errorf("after %s: %v", time.Since(start), e)
		}
		stream := w.brokers[1].fetch(following(one))
		time.Sleep(10 * time.Minute)
		w.move("t", 0, 2)
		start = time.Now()
		if _, v := nextText(t, stream); v != "a" || time.Since(start) > time.Second {
			t.Errorf("after %s: %q", time.Since(start), v)
		}
	})
}

// A leader that has not heard that it is none any more is left all the same.
func TestForward_fetchLeavesWhoDoesNotKnow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		stream := w.brokers[1].fetch(following(&runnelv1.FetchPartition{Topic: "t", Partition: new(int32(0))}))
		recv(t, stream) // where it stands
		w.move("t", 0, 3, 1, 3)
		w.brokers[3].text("t", 0, "a")
		start := time.Now()
		if _, v := nextText(t, stream); v != "a" || time.Since(start) > 100*time.Millisecond {
			t.Errorf("after %s: %q", time.Since(start), v)
		}
	})
}

// A leader that was replaced, and has not heard of it, never says that what the
// next one has served is not there: not to who reads, nor to who commits.
func TestForward_replacedLeaderDoesNotJudge(t *testing.T) {
	direct := runnelv1.Routing_ROUTING_DIRECT
	for name, c := range map[string]struct {
		from   int64
		last   *int64 // the epoch of the record before it
		told   bool   // the old leader can find out
		direct runnelv1.ErrorReason
		proxy  runnelv1.ErrorReason
	}{
		"cut off":                     {2, nil, false, runnelv1.ErrorReason_ERROR_REASON_LEADER_UNCONFIRMED, runnelv1.ErrorReason_ERROR_REASON_LEADER_UNCONFIRMED},
		"cut off, with an epoch":      {2, new(int64(2)), false, runnelv1.ErrorReason_ERROR_REASON_LEADER_UNCONFIRMED, runnelv1.ErrorReason_ERROR_REASON_LEADER_UNCONFIRMED},
		"late, with an epoch":         {2, new(int64(2)), true, runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, 0},
		"late, with an epoch of none": {2, new(int64(99)), true, runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, runnelv1.ErrorReason_ERROR_REASON_LOG_TRUNCATED},
		"late":                        {2, nil, true, runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, 0},
		"late, and beyond every end":  {3, nil, true, runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER, runnelv1.ErrorReason_ERROR_REASON_OFFSET_OUT_OF_RANGE},
		"late, and below the end":     {1, new(int64(1)), true, 0, 0},
	} {
		for _, way := range []struct {
			routing runnelv1.Routing
			want    runnelv1.ErrorReason
		}{{direct, c.direct}, {runnelv1.Routing_ROUTING_PROXY, c.proxy}} {
			t.Run(fmt.Sprintf("%s, %v", name, way.routing), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					w := newTown(t, 2, nil, LogOptions{})
					w.topic("t", 2)
					w.brokers[2].text("t", 0, "a")
					w.copyLog("t", 0, 1)
					w.move("t", 0, 1, 1)
					w.brokers[1].text("t", 0, "b")
					w.catchUp = func(id int32) error {
						if !c.told {
							return metadata.ErrNoController
						}
						w.tell("t", 0, id)
						return nil
					}
					got := w.brokers[2].fetchAll(&runnelv1.FetchRequest{
						Options:    &runnelv1.FetchOptions{Format: text, Routing: way.routing},
						Partitions: []*runnelv1.FetchPartition{{Topic: "t", Partition: new(int32(0)), Start: offsetOf(c.from), LastEpoch: c.last}},
					})
					if r := got.errors[0].GetReason(); r != way.want {
						t.Errorf("got %v, want %v", r, way.want)
					}
				})
			})
		}
	}
}

// Nor does it when what the next leader has served was its own: appended here, and
// committed there.
func TestForward_replacedLeaderKnowsNoEnd(t *testing.T) {
	for name, c := range map[string]struct {
		told    bool // the old leader can find out
		routing runnelv1.Routing
		want    runnelv1.ErrorReason
	}{
		"cut off":            {false, runnelv1.Routing_ROUTING_DIRECT, runnelv1.ErrorReason_ERROR_REASON_LEADER_UNCONFIRMED},
		"late":               {true, runnelv1.Routing_ROUTING_DIRECT, runnelv1.ErrorReason_ERROR_REASON_NOT_LEADER},
		"late, with a proxy": {true, runnelv1.Routing_ROUTING_PROXY, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 2, nil, LogOptions{})
				w.topic("t", 2)
				w.brokers[2].text("t", 0, "a")
				w.isr("t", 0, 1, 1, 2)
				stream := w.brokers[2].open()
				send(t, stream, textRequest(1, "t", 0, "b"))
				synctest.Wait()
				w.copyLog("t", 0, 1)
				w.move("t", 0, 1, 1)
				if st := w.brokers[1].part("t", 0).State(); st.HighWatermark != 2 || w.brokers[2].part("t", 0).State().HighWatermark != 1 {
					t.Fatalf("%+v, %+v", st, w.brokers[2].part("t", 0).State())
				}
				w.catchUp = func(id int32) error {
					if !c.told {
						return metadata.ErrNoController
					}
					w.tell("t", 0, id)
					return nil
				}
				got := w.brokers[2].fetchAll(&runnelv1.FetchRequest{
					Options:    &runnelv1.FetchOptions{Format: text, Routing: c.routing},
					Partitions: []*runnelv1.FetchPartition{{Topic: "t", Partition: new(int32(0)), Start: offsetOf(2), LastEpoch: new(int64(1))}},
				})
				if r := got.errors[0].GetReason(); r != c.want {
					t.Errorf("got %v, want %v", got.errors[0], c.want)
				}
			})
		})
	}
}
