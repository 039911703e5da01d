package state

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/internal/topicconfig"
)

// MaxChanges is how many changes one transaction can carry: with the election key, and the one of creations, etcd's limit of 128
// comparisons.
const MaxChanges = 126

// An Image is the picture of the cluster at one revision. It is not safe for concurrent use; the objects it returns may be
// kept and shared.
type Image struct {
	revision   Revision
	cluster    *Cluster
	controller *Controller
	counters   *Counters
	producers  *ProducerIDs
	brokers    map[BrokerID]*Broker
	topics     map[uuid.UUID]*topic
	names      map[string]*Name
	// folded holds the names in use by what they are when "." and "_" are one.
	folded map[string]string
	// byBroker are the partitions that name a broker as a replica.
	byBroker map[BrokerID]map[PartitionKey]bool
	// preferred counts the partitions whose first replica is a broker.
	preferred map[BrokerID]int
	// heirs counts, of those, the partitions whose second replica is another broker.
	heirs map[BrokerID]map[int32]int
	// unsettled are the partitions whose record is not what the rules make of it.
	unsettled map[PartitionKey]bool
	// awaiting are the partitions whose lower MinISR waits for disks.
	awaiting map[PartitionKey]bool
	// bereft are the partitions of which no member is known to be complete: they wait for a recovery election.
	bereft map[PartitionKey]bool
	// misled are the partitions that their preferred leader could lead and does not.
	misled map[PartitionKey]bool
	// unfinished are the topics that are being created or deleted, or hold surplus partitions.
	unfinished map[uuid.UUID]bool
	// growing are the internal topics that have not been given all their replicas.
	growing map[uuid.UUID]bool
}

// A topic is a topic's record with what belongs to it. The record may be absent while an image is being filled.
type topic struct {
	record     *Topic
	partitions map[int32]*Partition
	// config is the topic's configuration; nil when this version does not understand it.
	config  *topicconfig.Config
	unclean bool
}

// A Delta is what brokers are told of one revision, and the whole picture when it comes from Visible.
type Delta struct {
	Revision Revision
	Objects  []Object // brokers, topics and partitions
	Deleted  []uuid.UUID
}

// NewImage returns the empty picture.
func NewImage() *Image {
	return &Image{
		brokers:    map[BrokerID]*Broker{},
		topics:     map[uuid.UUID]*topic{},
		names:      map[string]*Name{},
		folded:     map[string]string{},
		byBroker:   map[BrokerID]map[PartitionKey]bool{},
		preferred:  map[BrokerID]int{},
		heirs:      map[BrokerID]map[int32]int{},
		unsettled:  map[PartitionKey]bool{},
		awaiting:   map[PartitionKey]bool{},
		bereft:     map[PartitionKey]bool{},
		misled:     map[PartitionKey]bool{},
		unfinished: map[uuid.UUID]bool{},
		growing:    map[uuid.UUID]bool{},
	}
}

// Revision returns the revision the picture shows.
func (i *Image) Revision() Revision { return i.revision }

// ClusterID returns the cluster's id, or uuid.Nil while there is none.
func (i *Image) ClusterID() uuid.UUID {
	if i.cluster == nil {
		return uuid.Nil
	}
	return i.cluster.ID
}

// Controller returns the active controller, or nil.
func (i *Image) Controller() *Controller { return i.controller }

// Counters returns the counters, all zero while there are none.
func (i *Image) Counters() *Counters {
	if i.counters == nil {
		return &Counters{}
	}
	return i.counters
}

// Broker returns a registration, or nil.
func (i *Image) Broker(id BrokerID) *Broker { return i.brokers[id] }

// Brokers returns all registrations in the order of ids.
func (i *Image) Brokers() []*Broker {
	return slices.SortedFunc(maps.Values(i.brokers), func(a, b *Broker) int { return cmp.Compare(a.ID, b.ID) })
}

// Topic returns a topic's record in any phase, or nil.
func (i *Image) Topic(id uuid.UUID) *Topic {
	if t := i.topics[id]; t != nil {
		return t.record
	}
	return nil
}

// TopicNamed returns the record of the topic that has the name, or nil.
func (i *Image) TopicNamed(name string) *Topic {
	if n := i.names[name]; n != nil {
		return i.Topic(n.Topic)
	}
	return nil
}

// Topics returns all topics in the order of names, then ids.
func (i *Image) Topics() []*Topic {
	var all []*Topic
	for _, t := range i.topics {
		if t.record != nil {
			all = append(all, t.record)
		}
	}
	slices.SortFunc(all, func(a, b *Topic) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), slices.Compare(a.ID[:], b.ID[:]))
	})
	return all
}

// Partition returns a partition's record, or nil.
func (i *Image) Partition(k PartitionKey) *Partition {
	if t := i.topics[k.Topic]; t != nil {
		return t.partitions[k.Number]
	}
	return nil
}

// Partitions returns a topic's partition records in the order of numbers.
func (i *Image) Partitions(id uuid.UUID) []*Partition {
	t := i.topics[id]
	if t == nil {
		return nil
	}
	return slices.SortedFunc(maps.Values(t.partitions), func(a, b *Partition) int { return cmp.Compare(a.Number, b.Number) })
}

// PartitionsOf returns the partitions that name a broker as a replica, in order.
func (i *Image) PartitionsOf(id BrokerID) []*Partition {
	return i.sorted(i.byBroker[id])
}

func (i *Image) sorted(keys map[PartitionKey]bool) []*Partition {
	out := make([]*Partition, 0, len(keys))
	for k := range keys {
		if p := i.Partition(k); p != nil {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, byPlace)
	return out
}

func byPlace(a, b *Partition) int {
	return cmp.Or(slices.Compare(a.Topic[:], b.Topic[:]), cmp.Compare(a.Number, b.Number))
}

// Visible returns all that brokers may know: the start of a session.
func (i *Image) Visible() Delta {
	d := Delta{Revision: i.revision}
	for _, b := range i.Brokers() {
		d.Objects = append(d.Objects, b)
	}
	for _, t := range i.Topics() {
		d.Objects = i.appendTopic(d.Objects, t.ID, 0)
	}
	return d
}

// appendTopic appends what is visible of a topic, with its partitions from a number on.
func (i *Image) appendTopic(to []Object, id uuid.UUID, from int32) []Object {
	t := i.topics[id]
	if t == nil || t.record == nil || t.record.Phase == TopicCreating {
		return to
	}
	to = append(to, t.record)
	if t.record.Phase != TopicActive {
		return to
	}
	for n := from; n < t.record.Partitions; n++ {
		if p := t.partitions[n]; p != nil {
			to = append(to, p)
		}
	}
	return to
}

// Apply takes over what one revision committed and returns what brokers are told of it. A topic and its partitions appear
// together, when the topic is active; so do partitions that were added.
func (i *Image) Apply(rev Revision, updates []Update) Delta {
	i.revision = max(i.revision, rev)
	d := Delta{Revision: rev}
	told := map[PartitionKey]bool{}
	// Partitions first: a topic that becomes active in the same revision then finds them.
	for _, u := range updates {
		if u.Key.Kind == KindPartition {
			i.applyPartition(u)
		}
	}
	for _, u := range updates {
		switch u.Key.Kind {
		case KindBroker:
			i.applyBroker(u)
			if u.Object != nil {
				d.Objects = append(d.Objects, u.Object)
			}
		case KindTopic:
			i.applyTopic(u, &d, told)
		case KindName:
			i.applyName(u)
		case KindPartition:
		case KindCounters:
			i.counters, _ = u.Object.(*Counters)
		case KindProducerIDs:
			i.producers, _ = u.Object.(*ProducerIDs)
		case KindCluster:
			i.cluster, _ = u.Object.(*Cluster)
		case KindController:
			i.controller, _ = u.Object.(*Controller)
		}
	}
	for _, u := range updates {
		if p, ok := u.Object.(*Partition); ok && i.visible(p) && !told[p.PartitionKey()] {
			d.Objects = append(d.Objects, p)
		}
	}
	return d
}

func (i *Image) visible(p *Partition) bool {
	t := i.Topic(p.Topic)
	return t != nil && t.Phase == TopicActive && p.Number < t.Partitions
}

func (i *Image) applyBroker(u Update) {
	b, _ := u.Object.(*Broker)
	if b == nil {
		delete(i.brokers, u.Key.Broker)
	} else {
		i.brokers[b.ID] = b
	}
	for k := range i.byBroker[u.Key.Broker] {
		i.review(k)
	}
}

func (i *Image) applyTopic(u Update, d *Delta, told map[PartitionKey]bool) {
	record, _ := u.Object.(*Topic)
	t := i.topic(u.Key.Topic)
	old := t.record
	t.record = record
	if record == nil {
		i.forgetEmpty(u.Key.Topic)
		i.reviewTopic(u.Key.Topic)
		d.Deleted = append(d.Deleted, u.Key.Topic)
		return
	}
	t.read()
	from := int32(0)
	if old != nil && old.Phase == TopicActive {
		from = old.Partitions // those before it are known already
	}
	n := len(d.Objects)
	d.Objects = i.appendTopic(d.Objects, record.ID, from)
	for _, o := range d.Objects[n:] {
		if p, ok := o.(*Partition); ok {
			told[p.PartitionKey()] = true
		}
	}
	for number := range t.partitions {
		i.review(PartitionKey{record.ID, number})
	}
	i.reviewTopic(record.ID)
}

// read reads the topic's configuration.
func (t *topic) read() {
	t.config, t.unclean = nil, false
	if c, err := topicconfig.Resolve(t.record.ClusterConfigs, t.record.Configs); err == nil {
		t.config, t.unclean = &c, c.UncleanElection
	}
}

// demand returns what the topic's configuration asks of a partition. A configuration that does not parse, which only a newer
// version can have written, asks for the safest. A topic that grows asks for no more in-sync replicas than before until it has
// all its replicas and they are in sync: then each partition takes the step, for good.
func (t *topic) demand(p *Partition) (minISR int32, sync bool) {
	factor := max(t.record.ReplicationFactor, t.record.TargetFactor)
	if t.config == nil {
		return t.record.ReplicationFactor, true
	}
	n := t.config.MinISR(int(factor))
	if t.record.TargetFactor > 0 && int(p.MinISR) < n && len(p.ISR) < int(factor) {
		n = int(p.MinISR)
	}
	return int32(n), t.config.Sync(n) //nolint:gosec // a replication factor fits
}

func (i *Image) applyName(u Update) {
	fold := Fold(u.Key.Name)
	if n, ok := u.Object.(*Name); ok {
		i.names[n.Name] = n
		i.folded[fold] = n.Name
		return
	}
	delete(i.names, u.Key.Name)
	if i.folded[fold] == u.Key.Name {
		delete(i.folded, fold)
	}
}

func (i *Image) applyPartition(u Update) {
	k := PartitionKey{u.Key.Topic, u.Key.Partition}
	t := i.topic(k.Topic)
	if old := t.partitions[k.Number]; old != nil {
		for _, b := range old.Replicas {
			delete(i.byBroker[b], k)
		}
		i.count(old, -1)
	}
	p, _ := u.Object.(*Partition)
	if p == nil {
		delete(t.partitions, k.Number)
		i.forgetEmpty(k.Topic)
	} else {
		t.partitions[k.Number] = p
		for _, b := range p.Replicas {
			if i.byBroker[b] == nil {
				i.byBroker[b] = map[PartitionKey]bool{}
			}
			i.byBroker[b][k] = true
		}
		i.count(p, 1)
	}
	i.review(k)
	i.reviewTopic(k.Topic)
}

// count counts a partition for who is preferred to lead it, and who is the next to.
func (i *Image) count(p *Partition, n int) {
	first := p.Replicas[0]
	i.preferred[first] += n
	if len(p.Replicas) == 1 {
		return
	}
	if i.heirs[first] == nil {
		i.heirs[first] = map[int32]int{}
	}
	i.heirs[first][int32(p.Replicas[1])] += n
}

// topic returns the entry of a topic, made if need be.
func (i *Image) topic(id uuid.UUID) *topic {
	t := i.topics[id]
	if t == nil {
		t = &topic{partitions: map[int32]*Partition{}}
		i.topics[id] = t
	}
	return t
}

func (i *Image) forgetEmpty(id uuid.UUID) {
	if t := i.topics[id]; t != nil && t.record == nil && len(t.partitions) == 0 {
		delete(i.topics, id)
	}
}

// review notes whether a partition needs work.
func (i *Image) review(k PartitionKey) {
	p := i.Partition(k)
	mark(i.unsettled, k, p != nil && i.settle(p) != nil)
	mark(i.awaiting, k, p != nil && i.awaitsDisks(p))
	mark(i.misled, k, p != nil && i.isMisled(p))
	mark(i.bereft, k, p != nil && p.Leader == NoLeader && len(p.ISR) == 0 && len(p.ELR) == 0)
}

func mark[K comparable](set map[K]bool, k K, in bool) {
	if in {
		set[k] = true
	} else {
		delete(set, k)
	}
}

// reviewTopic notes whether a topic needs work.
func (i *Image) reviewTopic(id uuid.UUID) {
	t := i.topics[id]
	if t == nil || t.record == nil {
		delete(i.unfinished, id)
		delete(i.growing, id)
		return
	}
	mark(i.growing, id, t.record.Phase == TopicActive && t.record.ReplicationFactor < t.record.TargetFactor)
	mark(i.unfinished, id, t.record.Phase != TopicActive || len(t.partitions) > int(t.record.Partitions))
}

// Fold returns a topic name as it is when "." and "_" are one: two names that fold alike cannot both exist, because metrics
// and file names of other tools would confuse them.
func Fold(name string) string { return strings.ReplaceAll(name, ".", "_") }
