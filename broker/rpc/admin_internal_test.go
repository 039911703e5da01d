package rpc

import (
	"strings"
	"testing"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

func TestCheckTopic_internal_topics_that_wait_for_brokers(t *testing.T) {
	found := func(rf, target int) []*runnelv1.HealthFinding {
		f := newFindings()
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

// A broker that an operator took out of service is told apart from one that is down.
func TestCheckBrokers_held_by_an_operator(t *testing.T) {
	for held, want := range map[bool]string{true: "started anew", false: "cut off, or down"} {
		img, err := (&metadata.Image{}).Next(1, 2, []*controllerv1.MetadataObject{{
			Revision: 2,
			Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
				BrokerId: 3, Incarnation: "i", BrokerEpoch: 1, Phase: controllerv1.BrokerPhase_BROKER_PHASE_FENCED, Held: held,
			}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		f := newFindings()
		checkBrokers(f, img)
		if got := f.answer().GetFindings(); len(got) != 1 || got[0].GetKind() != "broker_fenced" || !strings.Contains(got[0].GetMessage(), want) {
			t.Errorf("held %v: %v, want %q", held, got, want)
		}
	}
}
