package controller_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
)

const addr1 = "controller-1:7422"

// inCluster runs a test with a controller and n brokers in service.
func inCluster(t *testing.T, n int, test func(w *world, c controllerv1.ControllerServiceClient, brokers []*broker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		ctl := w.controller(addr1, nil)
		defer ctl.stop(t)
		<-ctl.Ready()
		var brokers []*broker
		for id := range n {
			b := w.newBroker(int32(id + 1)).serve(addr1)
			defer b.leave()
			brokers = append(brokers, b)
		}
		synctest.Wait() // all know of all
		test(w, w.client(addr1), brokers)
	})
}

// A name that is refused leaves nothing behind (AD-01).
func TestCreateTopics_refuses_names(t *testing.T) {
	inCluster(t, 1, func(w *world, c controllerv1.ControllerServiceClient, _ []*broker) {
		t := w.t
		before := w.kv.Dump()
		for _, name := range []string{
			"", ".", "..", "a/b", "a\x00b", "ünï", "a b", "a:b", strings.Repeat("x", 250), strings.Repeat("x", 255), strings.Repeat("x", 1<<16),
			"__internal", "__", "\ttab", "a\nb", "a*",
		} {
			resp, err := c.CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: name}))
			if err != nil {
				t.Errorf("%.20q: %v", name, err)
				continue
			}
			e := resp.GetResponse().GetResults()[0].GetError()
			if e.GetReason() != runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME || e.GetCode() != 3 || e.GetOutcomeUnknown() {
				t.Errorf("%.20q: %v", name, e)
			}
		}
		if diff := cmp.Diff(before, w.kv.Dump()); diff != "" {
			t.Errorf("something was written:\n%s", diff)
		}
		for _, name := range []string{"a", "A", "-dash", "_x", "1", "...", strings.Repeat("y", 249)} {
			mustCreate(t, c, &runnelv1.NewTopic{Name: name})
		}
		mustCreate(t, c, &runnelv1.NewTopic{Name: "metrics.cpu_load"})
		for _, name := range []string{"metrics_cpu_load", "metrics.cpu.load"} {
			resp, err := c.CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: name}))
			if err != nil || resp.GetResponse().GetResults()[0].GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME {
				t.Errorf("%s beside metrics.cpu_load: %v, %v", name, resp, err)
			}
		}
	})
}

// Counts that can't be are refused with what was asked and what there is, and checked without a trace (AD-06).
func TestCreateTopics_refuses_counts_with_both_numbers(t *testing.T) {
	inCluster(t, 3, func(w *world, c controllerv1.ControllerServiceClient, brokers []*broker) {
		t := w.t
		before := w.kv.Dump()
		for _, tt := range []struct {
			partitions, factor int32
			reason             runnelv1.ErrorReason
			facts              map[string]string
		}{
			{0, 1, runnelv1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS, map[string]string{"asked": "0", "maxPartitions": "10000"}},
			{-1, 1, runnelv1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS, map[string]string{"asked": "-1", "maxPartitions": "10000"}},
			{1e6, 1, runnelv1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS, map[string]string{"asked": "1000000", "maxPartitions": "10000"}},
			{1, 0, runnelv1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR, map[string]string{"asked": "0", "available": "3"}},
			{1, -1, runnelv1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR, map[string]string{"asked": "-1", "available": "3"}},
			{1, 4, runnelv1.ErrorReason_ERROR_REASON_INVALID_REPLICATION_FACTOR, map[string]string{"asked": "4", "available": "3"}},
		} {
			resp, err := c.CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: "t", Partitions: &tt.partitions, ReplicationFactor: &tt.factor}))
			if err != nil {
				t.Fatal(err)
			}
			e := resp.GetResponse().GetResults()[0].GetError()
			if e.GetReason() != tt.reason || !cmp.Equal(e.GetMetadata(), tt.facts) {
				t.Errorf("%d partitions, factor %d: %v", tt.partitions, tt.factor, e)
			}
		}
		if diff := cmp.Diff(before, w.kv.Dump()); diff != "" {
			t.Errorf("something was written:\n%s", diff)
		}
		brokers[2].locked(func() { brokers[2].mute = true })
		brokers[0].until("broker 3 fenced", func() bool {
			return brokers[0].phaseLocked(3) == controllerv1.BrokerPhase_BROKER_PHASE_FENCED
		})
		checked := create(&runnelv1.NewTopic{Name: "t", Partitions: new(int32(7)), ReplicationFactor: new(int32(2))})
		checked.Request.ValidateOnly = true
		if resp, err := c.CreateTopics(t.Context(), checked); err != nil || resp.GetResponse().GetResults()[0].GetError() != nil {
			t.Errorf("validate_only: %v, %v", resp, err)
		}
		// The default is not lowered for a broker that restarts: the topic would have a copy less for ever.
		for _, factor := range []*int32{new(int32(3)), nil} {
			resp, err := c.CreateTopics(t.Context(), create(&runnelv1.NewTopic{Name: "t", ReplicationFactor: factor}))
			if err != nil {
				t.Fatal(err)
			}
			e := resp.GetResponse().GetResults()[0].GetError()
			if e.GetMetadata()["asked"] != "3" || e.GetMetadata()["available"] != "2" || !strings.Contains(e.GetMessage(), "not in service: broker 3: try again") {
				t.Errorf("factor %v with one of three brokers fenced: %v", factor, e)
			}
		}
		if r := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(2))}); r.GetReplicationFactor() != 2 {
			t.Errorf("factor 2 with two brokers: %v", r)
		}
	})
	inCluster(t, 2, func(w *world, c controllerv1.ControllerServiceClient, _ []*broker) {
		if r := mustCreate(w.t, c, &runnelv1.NewTopic{Name: "t"}); r.GetReplicationFactor() != 2 {
			w.t.Errorf("default factor with two brokers: %v", r)
		}
	})
}

// The verdict on a value is the same at creation, at a change and in the controller's own configuration, and a refused change
// changes nothing (AD-04).
func TestConfigs_have_one_validator(t *testing.T) {
	inCluster(t, 2, func(w *world, c controllerv1.ControllerServiceClient, _ []*broker) {
		t := w.t
		r := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(2)), Configs: map[string]string{"retention.ms": "1000"}})
		values := []struct{ key, value string }{
			{"segment.bytes", "-1"},
			{"segment.bytes", "0"},
			{"segment.bytes", "1GiB"},
			{"segment.bytes", "65535"},
			{"segment.bytes", "65536"},
			{"retention.ms", ""},
			{"retention.ms", "-2"},
			{"retention.ms", "7d"},
			{"retention.ms", "9223372036854775808"},
			{"retention.bytes", "1e3"},
			{"max.message.bytes", "3670017"},
			{"max.message.bytes", "0"},
			{"flush", "never"},
			{"flush", ""},
			{"cleanup.policy", "compress"},
			{"min.insync.replicas", "0"},
			{"min.insync.replicas", "3"},
			{"min.insync.replicas", "-1"},
			{"no.such.key", "1"},
			{"", ""},
			{"compression.type", "zstd"},
			{"message.timestamp.type", "Now"},
			{"segment.ms", "0"},
			{"segment.bytes", "1073741825"},
			{"retention.bytes", "+5"},
			{"retention.bytes", "007"},
			{"flush.interval.ms", "3600001"},
			{"index.interval.bytes", "0.5"},
			{"RETENTION.MS", "1000"},
			{"retention.ms", " 1000"},
			{"unclean.leader.election.enable", "yes"},
			{"min.insync.replicas", "2"},
			{"flush", "sync"},
			{"retention.ms", "-1"},
		}
		for n, v := range values {
			configs := map[string]string{v.key: v.value}
			created, err := c.CreateTopics(t.Context(), &controllerv1.CreateTopicsRequest{Request: &runnelv1.CreateTopicsRequest{
				Topics: []*runnelv1.NewTopic{{Name: fmt.Sprintf("n%d", n), ReplicationFactor: new(int32(2)), Configs: configs}}, ValidateOnly: true,
			}})
			if err != nil {
				t.Fatal(err)
			}
			before := w.kv.Dump()
			_, err = c.AlterTopicConfigs(t.Context(), &controllerv1.AlterTopicConfigsRequest{Request: &runnelv1.AlterTopicConfigsRequest{Topic: "t", Set: configs}})
			refusal := created.GetResponse().GetResults()[0].GetError()
			if (refusal == nil) != (err == nil) {
				t.Errorf("%s=%q: create says %v, alter says %v", v.key, v.value, refusal, err)
			}
			cfg := controller.DefaultConfig()
			cfg.Topics.Configs = configs
			byReplicas := v.key == "min.insync.replicas" && v.value == "3" // which is for a topic to say
			if own := cfg.Validate(); (own == nil) != (err == nil) && !byReplicas {
				t.Errorf("%s=%q: the configuration says %v, alter says %v", v.key, v.value, own, err)
			}
			if err == nil {
				continue
			}
			wantReason(t, fmt.Sprintf("%s=%q", v.key, v.value), err, runnelv1.ErrorReason_ERROR_REASON_INVALID_CONFIG)
			if refusal.GetReason() != runnelv1.ErrorReason_ERROR_REASON_INVALID_CONFIG || refusal.GetMetadata()["key"] == "" && v.key != "" || refusal.GetMetadata()["want"] == "" {
				t.Errorf("%s=%q: %v", v.key, v.value, refusal)
			}
			if diff := cmp.Diff(before, w.kv.Dump()); diff != "" {
				t.Errorf("%s=%q was refused and changed:\n%s", v.key, v.value, diff)
			}
		}
		resp, err := c.AlterTopicConfigs(t.Context(), &controllerv1.AlterTopicConfigsRequest{Request: &runnelv1.AlterTopicConfigsRequest{
			Topic: "t", TopicId: &r.TopicId, Set: map[string]string{"retention.ms": "5"}, Remove: []string{"flush", "min.insync.replicas"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, e := range resp.GetResponse().GetConfigs() {
			got[e.GetKey()] = e.GetValue() + " " + e.GetSource().String()
		}
		if got["retention.ms"] != "5 CONFIG_SOURCE_TOPIC" || got["flush"] != "auto CONFIG_SOURCE_DEFAULT" || !resp.GetResponse().GetApplied() {
			t.Errorf("after the change: %v", got)
		}
	})
}

func TestAlterTopicConfigs_refuses(t *testing.T) {
	inCluster(t, 1, func(w *world, c controllerv1.ControllerServiceClient, _ []*broker) {
		t := w.t
		mustCreate(t, c, &runnelv1.NewTopic{Name: "t"})
		set := map[string]string{"retention.ms": "5"}
		for name, tt := range map[string]struct {
			req    *runnelv1.AlterTopicConfigsRequest
			reason runnelv1.ErrorReason
		}{
			"nothing":        {&runnelv1.AlterTopicConfigsRequest{Topic: "t"}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"no such topic":  {&runnelv1.AlterTopicConfigsRequest{Topic: "u", Set: set}, runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
			"another id":     {&runnelv1.AlterTopicConfigsRequest{Topic: "t", TopicId: new(uuid.NewString()), Set: set}, runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH},
			"no id":          {&runnelv1.AlterTopicConfigsRequest{Topic: "t", TopicId: new("x"), Set: set}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"set and remove": {&runnelv1.AlterTopicConfigsRequest{Topic: "t", Set: set, Remove: []string{"retention.ms"}}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
			"remove unknown": {&runnelv1.AlterTopicConfigsRequest{Topic: "t", Remove: []string{"retention"}}, runnelv1.ErrorReason_ERROR_REASON_INVALID_CONFIG},
			"bad timeout":    {&runnelv1.AlterTopicConfigsRequest{Topic: "t", Set: set, Timeout: durationpb.New(-1)}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		} {
			_, err := c.AlterTopicConfigs(t.Context(), &controllerv1.AlterTopicConfigsRequest{Request: tt.req})
			wantReason(t, name, err, tt.reason)
		}
	})
}

func TestCreateTopics_answers_item_by_item(t *testing.T) {
	inCluster(t, 1, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		old := mustCreate(t, c, &runnelv1.NewTopic{Name: "old", Partitions: new(int32(2))})
		req := create(
			&runnelv1.NewTopic{Name: "new"},
			&runnelv1.NewTopic{Name: "old"},
			&runnelv1.NewTopic{Name: "old", IfNotExists: true, Partitions: new(int32(7))},
			&runnelv1.NewTopic{Name: "new"},
			&runnelv1.NewTopic{Name: "ne.w"}, &runnelv1.NewTopic{Name: "ne_w"},
			&runnelv1.NewTopic{Name: "new", IfNotExists: true},
			&runnelv1.NewTopic{Name: "worse", Configs: map[string]string{"flush": "x"}},
		)
		want := []runnelv1.ErrorReason{
			0, runnelv1.ErrorReason_ERROR_REASON_TOPIC_EXISTS, 0, runnelv1.ErrorReason_ERROR_REASON_TOPIC_EXISTS,
			0, runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME, 0, runnelv1.ErrorReason_ERROR_REASON_INVALID_CONFIG,
		}
		for _, check := range []bool{true, false} {
			before := w.kv.Dump()
			req.Request.ValidateOnly = check
			resp, err := c.CreateTopics(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			for n, r := range resp.GetResponse().GetResults() {
				if r.GetError().GetReason() != want[n] || r.GetName() != req.GetRequest().GetTopics()[n].GetName() {
					t.Errorf("check %v, item %d: %v, want %v", check, n, r, want[n])
				}
			}
			if r := resp.GetResponse().GetResults()[2]; r.GetTopicId() != old.GetTopicId() || r.GetPartitions() != 2 || r.GetCreated() {
				t.Errorf("check %v, if_not_exists of an existing topic: %v", check, r)
			}
			if r := resp.GetResponse().GetResults()[0]; (r.GetTopicId() == "") != check || !r.GetCreated() {
				t.Errorf("check %v, new topic: %v", check, r)
			}
			if check && !cmp.Equal(before, w.kv.Dump()) {
				t.Error("validate_only wrote something")
			}
		}
		if b[0].topicNamed("new") == nil || b[0].topicNamed("worse") != nil {
			t.Error("the broker knows the wrong topics")
		}
		for _, n := range []int{0, 101} {
			_, err := c.CreateTopics(t.Context(), create(make([]*runnelv1.NewTopic, n)...))
			wantReason(t, fmt.Sprintf("%d topics", n), err, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST)
		}
	})
}

func TestAdminCalls_wait_for_brokers_for_two_seconds_at_most(t *testing.T) {
	inCluster(t, 2, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		start := time.Now()
		if r := mustCreate(t, c, &runnelv1.NewTopic{Name: "quick"}); !r.GetApplied() || time.Since(start) > 100*time.Millisecond {
			t.Errorf("with quick brokers: applied %v after %v", r.GetApplied(), time.Since(start))
		}
		b[1].mu.Lock()
		b[1].lazy = true
		b[1].mu.Unlock()
		start = time.Now()
		if r := mustCreate(t, c, &runnelv1.NewTopic{Name: "slow"}); r.GetApplied() || time.Since(start) != 2*time.Second {
			t.Errorf("with a broker that applies nothing: applied %v after %v", r.GetApplied(), time.Since(start))
		}
		start = time.Now()
		resp, err := c.DeleteTopics(t.Context(), &controllerv1.DeleteTopicsRequest{Request: &runnelv1.DeleteTopicsRequest{
			Topics: []*runnelv1.TopicRef{{Name: "slow"}}, Timeout: durationpb.New(300 * time.Millisecond),
		}})
		if err != nil || resp.GetResponse().GetResults()[0].GetApplied() || time.Since(start) != 300*time.Millisecond {
			t.Errorf("with a shorter timeout: %v, %v after %v", resp, err, time.Since(start))
		}
	})
}

// A topic of a name that was there before is another one, and nothing of the old one is left in the metadata (AD-03).
func TestDeleteTopic_frees_the_name_and_waits_for_every_broker_to_forget(t *testing.T) {
	inCluster(t, 2, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		first := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", Partitions: new(int32(200)), ReplicationFactor: new(int32(2))})
		del := func(ref *runnelv1.TopicRef, check bool) *runnelv1.DeleteTopicResult {
			t.Helper()
			resp, err := c.DeleteTopics(t.Context(), &controllerv1.DeleteTopicsRequest{Request: &runnelv1.DeleteTopicsRequest{Topics: []*runnelv1.TopicRef{ref}, ValidateOnly: check}})
			if err != nil {
				t.Fatal(err)
			}
			return resp.GetResponse().GetResults()[0]
		}
		for _, tt := range []struct {
			ref    *runnelv1.TopicRef
			reason runnelv1.ErrorReason
		}{
			{&runnelv1.TopicRef{Name: "u"}, runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
			{&runnelv1.TopicRef{Name: ""}, runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND},
			{&runnelv1.TopicRef{Name: "t", TopicId: new(uuid.NewString())}, runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH},
			{&runnelv1.TopicRef{Name: "t", TopicId: new("t")}, runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST},
		} {
			if r := del(tt.ref, false); r.GetError().GetReason() != tt.reason {
				t.Errorf("delete %v: %v", tt.ref, r)
			}
		}
		if r := del(&runnelv1.TopicRef{Name: "t"}, true); r.GetError() != nil || b[0].topicNamed("t") == nil {
			t.Errorf("validate_only: %v", r)
		}
		if r := del(&runnelv1.TopicRef{Name: "t", TopicId: &first.TopicId}, false); !r.GetApplied() || r.GetTopicId() != first.GetTopicId() {
			t.Errorf("delete: %v", r)
		}
		second := mustCreate(t, c, &runnelv1.NewTopic{Name: "t"})
		if second.GetTopicId() == first.GetTopicId() {
			t.Error("the new topic has the old one's id")
		}
		for n, br := range b {
			br.until("the deletion", func() bool {
				return br.topics[first.GetTopicId()].GetPhase() == controllerv1.TopicPhase_TOPIC_PHASE_DELETING
			})
			br.out <- &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_Removed{Removed: &controllerv1.TopicsRemoved{TopicIds: []string{first.GetTopicId(), uuid.NewString()}}}}
			if n == 0 {
				synctest.Wait()
				b[0].locked(func() {
					if b[0].topics[first.GetTopicId()] == nil {
						t.Error("the record went before the second broker had confirmed")
					}
				})
			}
		}
		for _, br := range b {
			br.until("the end of the deletion", func() bool { return br.topics[first.GetTopicId()] == nil })
		}
		for key := range w.kv.Dump() {
			if strings.Contains(key, first.GetTopicId()) {
				t.Errorf("%s is left", key)
			}
		}
		if b[0].topicNamed("t").GetTopicId() != second.GetTopicId() {
			t.Error("the new topic is gone")
		}
	})
}

// Partitions are only ever added, and all at once (AD-06).
func TestAddPartitions_appear_together(t *testing.T) {
	inCluster(t, 2, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		r := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", Partitions: new(int32(2))})
		add := func(total int32, check bool) (*runnelv1.AddPartitionsResponse, error) {
			resp, err := c.AddPartitions(t.Context(), &controllerv1.AddPartitionsRequest{Request: &runnelv1.AddPartitionsRequest{Topic: "t", Total: total, ValidateOnly: check}})
			return resp.GetResponse(), err
		}
		before := w.kv.Dump()
		for _, total := range []int32{-1, 0, 1, 2, 10_001} {
			_, err := add(total, false)
			wantReason(t, fmt.Sprintf("a total of %d", total), err, runnelv1.ErrorReason_ERROR_REASON_INVALID_PARTITIONS)
		}
		if resp, err := add(400, true); err != nil || resp.GetPartitions() != 400 {
			t.Errorf("validate_only: %v, %v", resp, err)
		}
		if !cmp.Equal(before, w.kv.Dump()) {
			t.Error("something was written")
		}
		resp, err := add(400, false)
		if err != nil || !resp.GetApplied() || resp.GetPartitions() != 400 || resp.GetTopicId() != r.GetTopicId() {
			t.Fatalf("AddPartitions: %v, %v", resp, err)
		}
		b[0].mu.Lock()
		defer b[0].mu.Unlock()
		last := b[0].deltas[len(b[0].deltas)-1]
		if len(b[0].partitions) != 400 || len(last.GetObjects()) != 399 {
			t.Errorf("the broker knows %d partitions; the last delta has %d objects", len(b[0].partitions), len(last.GetObjects()))
		}
	})
}

// A lower minimum is one change of each partition, with the ELR emptied, after another one that has disks count.
func TestMinInsyncReplicas_change_each_partition(t *testing.T) {
	inCluster(t, 3, func(w *world, c controllerv1.ControllerServiceClient, b []*broker) {
		t := w.t
		r := mustCreate(t, c, &runnelv1.NewTopic{Name: "t", Partitions: new(int32(3)), ReplicationFactor: new(int32(3))})
		for _, br := range b[1:] {
			br.locked(func() { br.mute = true })
		}
		b[0].until("one in-sync replica and an ELR", func() bool {
			p := b[0].partitions[partitionName(r.GetTopicId(), 0)]
			return len(p.GetIsr()) == 1 && len(p.GetElr()) == 2
		})
		before := map[int32]*controllerv1.PartitionRecord{}
		for n := range int32(3) {
			before[n] = b[0].partition(r.GetTopicId(), n)
			if before[n].GetMinIsr() != 2 || before[n].GetFlush() != controllerv1.FlushMode_FLUSH_MODE_ASYNC {
				t.Errorf("partition %d: %v", n, before[n])
			}
		}
		_, err := c.AlterTopicConfigs(t.Context(), &controllerv1.AlterTopicConfigsRequest{Request: &runnelv1.AlterTopicConfigsRequest{
			Topic: "t", Set: map[string]string{"min.insync.replicas": "1"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for n := range int32(3) {
			now := b[0].partition(r.GetTopicId(), n)
			if now.GetMinIsr() != 1 || len(now.GetElr()) != 0 || now.GetPartitionEpoch() != before[n].GetPartitionEpoch()+2 ||
				now.GetLeaderEpoch() != before[n].GetLeaderEpoch() || now.GetFlush() != controllerv1.FlushMode_FLUSH_MODE_SYNC {
				t.Errorf("partition %d: %v after %v", n, now, before[n])
			}
		}
	})
}
