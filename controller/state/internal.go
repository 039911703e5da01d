package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/placement"
)

// EnsureInternal decides on a topic that the system keeps for itself, which gets the id if there is none of that name. It
// begins with a replica on each broker in service, up to the factor that it grows to.
func (i *Image) EnsureInternal(n NewTopic, d Defaults, id uuid.UUID, nowMs int64) (TopicPlan, error) {
	if !strings.HasPrefix(n.Name, internalPrefix) {
		return TopicPlan{}, badName(n.Name, `names of internal topics begin with "__"`)
	}
	if err := checkRunes(n.Name); err != nil {
		return TopicPlan{}, err
	}
	if t := i.TopicNamed(n.Name); t != nil {
		return TopicPlan{Topic: t, Existed: true}, nil
	}
	usable := len(i.usable())
	if usable == 0 {
		return TopicPlan{}, refuse(ErrInvalidFactor, fmt.Sprintf("topic %q: no broker is in service at present", n.Name), "asked", itoa(d.InternalFactor), "available", "0")
	}
	t := &Topic{
		Name: n.Name, Phase: TopicActive, Internal: true, TargetFactor: d.InternalFactor,
		ReplicationFactor: min(d.InternalFactor, int32(usable)), //nolint:gosec // few brokers
		Configs:           maps.Clone(n.Configs), ClusterConfigs: maps.Clone(d.Configs),
	}
	if n.Partitions != nil {
		t.Partitions = *n.Partitions
	}
	if err := checkCount(t.Partitions, d.MaxPartitions); err != nil {
		return TopicPlan{}, err
	}
	if err := checkConfig(t); err != nil {
		return TopicPlan{}, err
	}
	return i.planTopic(t, id, nowMs)
}

// growWork returns the next transaction that gives internal topics replicas on brokers that have come since; nothing is taken
// away. A new replica is a follower that joins the ISR by catching up, as any other.
func (i *Image) growWork() []Change {
	ids := slices.SortedFunc(maps.Keys(i.growing), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	for _, id := range ids {
		if changes := i.grow(i.topics[id].record); len(changes) > 0 {
			return changes
		}
	}
	return nil
}

// grow returns the next transaction of a topic's growth. The topic's replication factor is what all its partitions have.
func (i *Image) grow(t *Topic) []Change {
	parts := i.Partitions(t.ID)
	has := make([][]int32, len(parts))
	for n, p := range parts {
		for _, id := range p.Replicas {
			has[n] = append(has[n], int32(id))
		}
	}
	factor := t.TargetFactor
	var changes []Change
	for n, place := range placement.Extend(i.loads(), has, int(t.TargetFactor)) {
		factor = min(factor, int32(len(place))) //nolint:gosec // few replicas
		if len(place) == len(has[n]) || len(changes) == MaxChanges {
			continue
		}
		next := parts[n].clone()
		next.Replicas = next.Replicas[:0]
		for _, id := range place {
			next.Replicas = append(next.Replicas, BrokerID(id))
		}
		next.PartitionEpoch++
		changes = append(changes, put(next, parts[n].Revision))
	}
	if len(changes) > 0 || factor <= t.ReplicationFactor {
		return changes
	}
	next := t.clone()
	next.ReplicationFactor = factor
	return []Change{put(next, t.Revision)}
}
