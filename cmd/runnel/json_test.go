package main

import (
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Programs read these keys: they may be added to, and not renamed (AD-12).
func TestJSONKeys(t *testing.T) {
	for name, c := range map[string]struct {
		view any
		want string
	}{
		"topic":          {topicView{}, "name id partitions replication_factor created applied internal"},
		"detail":         {topicDetailView{}, "name id partition_count replication_factor internal durability configs partitions"},
		"partition":      {partitionView{}, "partition leader leader_epoch partition_epoch replicas isr elr min_isr log_start_offset high_watermark log_end_offset size_bytes segments error"},
		"config":         {configView{}, "key value source"},
		"broker":         {brokerView{}, "id address rack state epoch version leaders replicas"},
		"cluster":        {clusterView{}, "id answered_by version controller controller_epoch controllers topics partitions brokers"},
		"group":          {groupView{}, "group state members coordinator"},
		"group detail":   {groupDetailView{}, "group state epoch assignor coordinator lag_records lag_seconds time_to_data_loss_seconds uncommitted_partitions uncommitted_records beyond_end_partitions expire_time members partitions"},
		"group member":   {groupMemberView{}, "member_id instance_id client address rack epoch topics topic_pattern owned_partitions target_partitions connected silent_seconds"},
		"group position": {groupPositionView{}, "topic partition member_id next_member_id committed_offset log_start_offset high_watermark lag_records lag_seconds time_to_data_loss_seconds beyond_end_records"},
		"reset":          {resetView{}, "topic partition old_offset new_offset error"},
		"letter":         {letterView{}, "partition offset group source_topic source_partition source_offset attempts time error"},
		"finding":        {findingView{}, "severity kind subject message"},
		"bench":          {benchResult{}, "topic records bytes seconds records_per_second mb_per_second latency_ms"},
		"latency":        {latencyView{}, "p50 p90 p99 p999 max"},
	} {
		var got []string
		for f := range reflect.TypeOf(c.view).Fields() {
			key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			got = append(got, key)
		}
		if d := cmp.Diff(strings.Fields(c.want), got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}
