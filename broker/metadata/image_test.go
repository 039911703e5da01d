package metadata

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"pgregory.net/rapid"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
)

func topicObject(rev int64, id uuid.UUID, name string, phase controllerv1.TopicPhase, partitions int32) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Revision: rev, Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{
		TopicId: id.String(), Name: name, Phase: phase, Partitions: partitions, ReplicationFactor: 1,
	}}}
}

func partitionObject(rev int64, id uuid.UUID, n, leader int32) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Revision: rev, Object: &controllerv1.MetadataObject_Partition{Partition: &controllerv1.PartitionRecord{
		TopicId: id.String(), Partition: n, Leader: leader, LeaderEpoch: rev, PartitionEpoch: rev, Replicas: []int32{leader}, Isr: []int32{leader}, MinIsr: 1,
	}}}
}

func goneObject(rev int64, id uuid.UUID) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Revision: rev, Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: id.String()}}
}

func brokerObject(rev int64, id int32, incarnation string) *controllerv1.MetadataObject {
	return &controllerv1.MetadataObject{Revision: rev, Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
		BrokerId: id, Incarnation: incarnation, BrokerEpoch: rev, Phase: controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE,
	}}}
}

const (
	creating = controllerv1.TopicPhase_TOPIC_PHASE_CREATING
	active   = controllerv1.TopicPhase_TOPIC_PHASE_ACTIVE
	deleting = controllerv1.TopicPhase_TOPIC_PHASE_DELETING
)

func next(t *testing.T, img *Image, rev int64, objects ...*controllerv1.MetadataObject) *Image {
	t.Helper()
	out, err := img.Next(1, rev, objects)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTopicLife(t *testing.T) {
	img := &Image{Self: 1}
	a, b := uuid.New(), uuid.New()
	img = next(t, img, 1, partitionObject(1, a, 1, 1), topicObject(1, a, "orders", creating, 2)) // the partition comes first
	if _, ok := img.Topic("orders"); ok || len(img.Topics()) != 0 {
		t.Error("a topic that is being created is visible")
	}
	img = next(t, img, 2, partitionObject(2, a, 0, 1), topicObject(2, a, "orders", active, 2))
	got, err := img.Resolve("orders", a.String())
	if err != nil || len(got.Partitions) != 2 || got.Partitions[0].Leader != 1 || got.Partitions[1].LeaderEpoch != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := got.Find(2); err == nil {
		t.Error("found a partition that is not there")
	}
	// Deleted, and its name given to another in one change.
	img = next(t, img, 3, topicObject(3, b, "orders", active, 1), topicObject(3, a, "orders", deleting, 2), partitionObject(3, b, 0, 1))
	if got, _ := img.Topic("orders"); got == nil || got.ID != b {
		t.Errorf("the name leads to %+v", got)
	}
	if old, ok := img.TopicByID(a); !ok || old.Phase != TopicDeleting {
		t.Error("the deleted topic is forgotten before its files are gone")
	}
	img = next(t, img, 4, goneObject(4, a))
	if _, ok := img.TopicByID(a); ok {
		t.Error("still there")
	}
	if got, _ := img.Topic("orders"); got == nil || got.ID != b {
		t.Error("the deletion took the successor's name")
	}
	// Partitions added: those above the count are not shown before it rises.
	img = next(t, img, 5, partitionObject(5, b, 1, 1))
	if got, _ := img.Topic("orders"); len(got.Partitions) != 1 {
		t.Errorf("%d partitions", len(got.Partitions))
	}
	img = next(t, img, 6, topicObject(6, b, "orders", active, 2))
	if got, _ := img.Topic("orders"); len(got.Partitions) != 2 || got.Partitions[1].Leader != 1 {
		t.Errorf("%+v", got.Partitions)
	}
}

func TestOlderObjectsAreDropped(t *testing.T) {
	a := uuid.New()
	for _, rev := range []int64{4, 5} { // older than what is there, and the same again
		img := next(t, &Image{}, 5, topicObject(5, a, "orders", active, 1), partitionObject(5, a, 0, 1), brokerObject(5, 1, "now"))
		img = next(t, img, 6, partitionObject(rev, a, 0, 7), topicObject(rev, a, "renamed", active, 3), goneObject(rev, a), brokerObject(rev, 1, "former"))
		got, ok := img.Topic("orders")
		if !ok || len(got.Partitions) != 1 || got.Partitions[0].Leader != 1 {
			t.Errorf("after objects of revision %d: %+v, %v", rev, got, ok)
		}
		if b, _ := img.Broker(1); b.Incarnation != "now" {
			t.Errorf("after objects of revision %d: broker %+v", rev, b)
		}
	}
}

func TestImagesDoNotChange(t *testing.T) {
	a := uuid.New()
	old := next(t, &Image{}, 1, topicObject(1, a, "orders", active, 2), partitionObject(1, a, 0, 1), partitionObject(1, a, 1, 1))
	was, _ := old.Topic("orders")
	now := next(t, old, 2, partitionObject(2, a, 1, 9), topicObject(2, a, "orders", active, 3), partitionObject(2, a, 2, 9))
	if was.Partitions[1].Leader != 1 || len(was.Partitions) != 2 || len(old.Topics()) != 1 {
		t.Error("an image changed after it was published")
	}
	if got, _ := now.Topic("orders"); got.Partitions[1].Leader != 9 || len(got.Partitions) != 3 {
		t.Errorf("%+v", got)
	}
}

// A newer controller may know configuration keys that this broker does not.
func TestConfigOfALaterVersion(t *testing.T) {
	o := topicObject(1, uuid.New(), "orders", active, 1)
	o.GetTopic().Configs = map[string]string{"retention.ms": "60000", "future.key": "1"}
	img := next(t, &Image{}, 1, o)
	got, _ := img.Topic("orders")
	if got.Config.RetentionTime != time.Minute || got.ConfigErr == nil {
		t.Errorf("retention %v, %v", got.Config.RetentionTime, got.ConfigErr)
	}
}

func TestNonsenseIsRefused(t *testing.T) {
	a := uuid.New()
	for name, o := range map[string]*controllerv1.MetadataObject{
		"a topic without an id":     {Object: &controllerv1.MetadataObject_Topic{Topic: &controllerv1.TopicRecord{Name: "x"}}},
		"a partition without one":   {Object: &controllerv1.MetadataObject_Partition{Partition: &controllerv1.PartitionRecord{}}},
		"a negative partition":      partitionObject(1, a, -1, 1),
		"a partition out of bounds": partitionObject(1, a, 1<<30, 1),
		"a count out of bounds":     topicObject(1, a, "x", active, 1<<30),
		"a negative count":          topicObject(1, a, "x", active, -1),
		"a deletion of nothing":     {Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: "x"}},
	} {
		if _, err := (&Image{}).Next(1, 1, []*controllerv1.MetadataObject{o}); err == nil {
			t.Errorf("took %s", name)
		}
	}
}

// An image put together by deltas is the one a snapshot shows, and Since tells
// exactly what differs.
func TestDeltasAgreeWithSnapshots(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ids := []uuid.UUID{{15: 1}, {15: 2}, {15: 3}, {7: 1, 15: 1}} // the first and the last share no shard by luck only
		img := &Image{Self: 1}
		state := map[string]*controllerv1.MetadataObject{} // newest of each
		history := []*Image{img}
		for rev := int64(1); rev < 30; rev++ {
			id := rapid.SampledFrom(ids).Draw(t, "id")
			var o *controllerv1.MetadataObject
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				o = topicObject(rev, id, "topic-"+id.String(), rapid.SampledFrom([]controllerv1.TopicPhase{creating, active, deleting}).Draw(t, "phase"), 2)
				state["t"+id.String()] = o
			case 1, 2:
				n := rapid.Int32Range(0, 3).Draw(t, "n")
				o = partitionObject(rev, id, n, rapid.Int32Range(1, 3).Draw(t, "leader"))
				state[fmt.Sprintf("p%s%d", id, n)] = o
			default:
				o = goneObject(rev, id)
				delete(state, "t"+id.String())
				for n := range 4 {
					delete(state, fmt.Sprintf("p%s%d", id, n))
				}
			}
			var err error
			if img, err = img.Next(1, rev, []*controllerv1.MetadataObject{o}); err != nil {
				t.Fatal(err)
			}
			history = append(history, img)
		}
		var all []*controllerv1.MetadataObject
		for _, o := range state {
			all = append(all, o)
		}
		fresh, err := (&Image{Self: 1}).Next(1, img.Revision, all)
		if err != nil {
			t.Fatal(err)
		}
		if got, want := show(img), show(fresh); !slices.Equal(got, want) {
			t.Fatalf("by deltas:\n%v\nby a snapshot:\n%v", got, want)
		}
		old := rapid.SampledFrom(history).Draw(t, "old")
		d := img.Since(old)
		var changed, gone []string
		for _, topic := range d.Changed {
			changed = append(changed, topic.ID.String())
		}
		for _, topic := range d.Gone {
			gone = append(gone, topic.ID.String())
		}
		for topic := range img.Everything() {
			was, ok := old.TopicByID(topic.ID)
			if same := ok && fmt.Sprintf("%+v", was.all) == fmt.Sprintf("%+v", topic.all) && was.Phase == topic.Phase && was.Name == topic.Name; !same && !slices.Contains(changed, topic.ID.String()) {
				t.Errorf("%s changed, and Since does not say so", topic.ID)
			}
		}
		for topic := range old.Everything() {
			if _, ok := img.TopicByID(topic.ID); ok == slices.Contains(gone, topic.ID.String()) {
				t.Errorf("%s: Gone says %v, the image %v", topic.ID, !ok, ok)
			}
		}
	})
}

// show is an image as text, in order.
func show(img *Image) []string {
	var out []string
	for topic := range img.Everything() {
		line := fmt.Sprintf("%s %q %d %+v", topic.ID, topic.Name, topic.Phase, topic.Partitions)
		if named, ok := img.Topic(topic.Name); ok {
			line += " named " + named.ID.String()
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func BenchmarkDeltaAmong20kTopics(b *testing.B) {
	img := &Image{}
	var objects []*controllerv1.MetadataObject
	var last uuid.UUID
	for i := range 20000 {
		last = uuid.New()
		objects = append(objects, topicObject(1, last, fmt.Sprintf("t%d", i), active, 1), partitionObject(1, last, 0, 1))
	}
	img, err := img.Next(1, 1, objects)
	if err != nil {
		b.Fatal(err)
	}
	rev := int64(1)
	for b.Loop() {
		rev++
		after, err := img.Next(1, rev, []*controllerv1.MetadataObject{partitionObject(rev, last, 0, 2)})
		if err != nil {
			b.Fatal(err)
		}
		if d := after.Since(img); len(d.Changed) != 1 {
			b.Fatal(len(d.Changed))
		}
		img = after
	}
}
