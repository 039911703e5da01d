package coordinator

import (
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata"
)

// A view is what groups may know of the topics of one image. Immutable.
type view struct {
	byName map[string]*group.Topic
	byID   map[uuid.UUID]*group.Topic
	all    []*group.Topic
}

// Named implements group.Topics.
func (v *view) Named(name string) (*group.Topic, bool) {
	t, ok := v.byName[name]
	return t, ok
}

// All implements group.Topics.
func (v *view) All() []*group.Topic { return v.all }

// alive says whether there is such a partition.
func (v *view) alive(p group.Part) bool {
	t := v.byID[p.Topic]
	return t != nil && p.Number < t.Partitions
}

// unknownGrace is for how long offsets are kept of partitions that this broker
// has not heard of: who committed them may have newer metadata.
const unknownGrace = time.Minute

// keeper says which offsets are kept, when the topics are those of v, and were
// those of before; nil: that is not known.
func (s *shard) keeper(before, v *view) func(*group.Offset) bool {
	return func(o *group.Offset) bool {
		if v.alive(o.Part) {
			return true
		}
		deleted := before != nil && before.alive(o.Part)
		return !deleted && s.now.UnixMilli()-o.CommitMs < unknownGrace.Milliseconds()
	}
}

// viewOf returns the view of an image; old itself when no topic came, went or
// grew.
func viewOf(img *metadata.Image, old *view) *view {
	topics := img.Topics()
	if old != nil && sameTopics(topics, old) {
		return old
	}
	v := &view{byName: map[string]*group.Topic{}, byID: map[uuid.UUID]*group.Topic{}}
	for _, t := range topics {
		if t.Internal {
			continue
		}
		g := &group.Topic{ID: t.ID, Name: t.Name, Partitions: int32(len(t.Partitions)), Racks: racks(img, t)} //nolint:gosec // bounded by the image
		v.byName[t.Name], v.byID[t.ID] = g, g
		v.all = append(v.all, g)
	}
	return v
}

func sameTopics(topics []*metadata.Topic, v *view) bool {
	n := 0
	for _, t := range topics {
		if t.Internal {
			continue
		}
		if n >= len(v.all) || v.all[n].ID != t.ID || int(v.all[n].Partitions) != len(t.Partitions) {
			return false
		}
		n++
	}
	return n == len(v.all)
}

// racks returns those of the replicas of each partition; nil when no broker says
// where it is.
func racks(img *metadata.Image, t *metadata.Topic) [][]string {
	out := make([][]string, len(t.Partitions))
	known := false
	for n := range t.Partitions {
		for _, id := range t.Partitions[n].Replicas {
			if b, ok := img.Broker(id); ok && b.Rack != "" && !slices.Contains(out[n], b.Rack) {
				out[n] = append(out[n], b.Rack)
				known = true
			}
		}
	}
	if !known {
		return nil
	}
	return out
}
