package rpc

import (
	"testing"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

func TestCheckTopic_internal_topics_that_wait_for_brokers(t *testing.T) {
	found := func(rf, target int) []*runnelv1.HealthFinding {
		f := &findings{count: map[string]int{}, worst: map[string]runnelv1.HealthSeverity{}}
		checkTopic(f, &metadata.Topic{Name: "__consumer_offsets", RF: rf, TargetRF: target})
		return f.answer().GetFindings()
	}
	got := found(1, 3)
	if len(got) != 1 || got[0].GetKind() != "internal_topic_growing" || got[0].GetSubject() != "__consumer_offsets" ||
		got[0].GetSeverity() != runnelv1.HealthSeverity_HEALTH_SEVERITY_WARNING {
		t.Errorf("one replica of three: %v", got)
	}
	if got := append(found(3, 3), append(found(1, 1), found(2, 0)...)...); len(got) > 0 {
		t.Errorf("nothing to wait for: %v", got)
	}
}
