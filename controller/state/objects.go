// Package state is the law of the cluster: a picture of brokers, topics and partitions, and the pure functions that say what
// may change in it and how.
//
// Nothing here has a clock, a goroutine or I/O. A decision reads an Image and returns Changes; who calls it commits them and
// feeds what was committed back through Image.Apply. Work that takes several transactions leaves its intent in the picture
// (a fenced broker, a topic being created or deleted), so that any controller can finish what another began: Image.Work.
package state

import (
	"maps"
	"slices"

	"github.com/google/uuid"
)

// A BrokerID names a broker.
type BrokerID int32

// NoLeader is the leader of a partition that has none.
const NoLeader BrokerID = -1

// A Revision counts what was ever committed. Each transaction has one.
type Revision int64

// A Kind is a kind of object.
type Kind uint8

// The kinds of objects.
const (
	KindBroker Kind = iota + 1
	KindTopic
	KindName
	KindPartition
	KindCounters
	KindCluster
	KindController
	KindProducerIDs
)

// A Key names an object. Fields that its kind has no use for are zero.
type Key struct {
	Kind      Kind
	Broker    BrokerID
	Topic     uuid.UUID
	Partition int32
	Name      string
}

// An Object is a part of the picture. It never changes once an Image or a Change holds it.
type Object interface {
	Key() Key
	// Modified is the revision that wrote it; 0 before it was written.
	Modified() Revision
}

// A BrokerPhase says what a broker may do.
type BrokerPhase uint8

// The phases of a broker.
const (
	BrokerFenced       BrokerPhase = iota + 1 // electable nowhere, joins no ISR
	BrokerActive                              // in service
	BrokerShuttingDown                        // never elected, never added to an ISR
)

// A Broker is a registration.
type Broker struct {
	ID          BrokerID
	Incarnation uuid.UUID // of its process's start
	DirectoryID uuid.UUID // of its data root
	Epoch       int64     // rises by one with each incarnation in the cluster
	Phase       BrokerPhase
	// Judged is true once the recovery report of this incarnation was weighed. Invariant: an unjudged broker is fenced.
	Judged bool
	// Held is true when an operator took this incarnation out of service. Invariant: it is fenced, too.
	Held bool
	// Vouched is the epoch of the last incarnation before this one that was judged: from then on its data held what it acknowledged.
	Vouched int64
	// Outdated is true when this incarnation's data are of an earlier time than that: a copy that was put back.
	Outdated        bool
	ClientAddress   string
	InternalAddress string
	Rack            string
	Version         string
	MinFeatureLevel int32
	MaxFeatureLevel int32
	Revision        Revision
}

// Key implements Object.
func (b *Broker) Key() Key { return BrokerKey(b.ID) }

// Modified implements Object.
func (b *Broker) Modified() Revision { return b.Revision }

// BrokerKey returns a broker's key.
func BrokerKey(id BrokerID) Key { return Key{Kind: KindBroker, Broker: id} }

// A TopicPhase says where a topic is in its life.
type TopicPhase uint8

// The phases of a topic.
const (
	TopicCreating TopicPhase = iota + 1 // partitions are being written; brokers do not hear of it yet
	TopicActive                         // in service
	TopicDeleting                       // its name is free; brokers remove its directories
)

// A Topic is a topic's record.
type Topic struct {
	ID                uuid.UUID
	Name              string
	Phase             TopicPhase
	Partitions        int32
	ReplicationFactor int32
	Configs           map[string]string // set on the topic
	ClusterConfigs    map[string]string // the cluster's defaults when it was created
	Internal          bool
	// TargetFactor is the replication factor that an internal topic grows to as brokers come; 0: it stays as it is.
	TargetFactor int32
	CreatedMs    int64
	// AwaitingRemoval are the brokers that have not confirmed that its directories are gone. Empty unless it is deleting.
	AwaitingRemoval []BrokerID
	Revision        Revision
}

// Key implements Object.
func (t *Topic) Key() Key { return TopicKey(t.ID) }

// Modified implements Object.
func (t *Topic) Modified() Revision { return t.Revision }

func (t *Topic) clone() *Topic {
	c := *t
	c.Configs = maps.Clone(t.Configs)
	c.ClusterConfigs = maps.Clone(t.ClusterConfigs)
	c.AwaitingRemoval = slices.Clone(t.AwaitingRemoval)
	return &c
}

// TopicKey returns a topic's key.
func TopicKey(id uuid.UUID) Key { return Key{Kind: KindTopic, Topic: id} }

// A Name is a topic name in use.
type Name struct {
	Name     string
	Topic    uuid.UUID
	Revision Revision
}

// Key implements Object.
func (n *Name) Key() Key { return NameKey(n.Name) }

// Modified implements Object.
func (n *Name) Modified() Revision { return n.Revision }

// NameKey returns a name's key.
func NameKey(name string) Key { return Key{Kind: KindName, Name: name} }

// A PartitionKey names a partition.
type PartitionKey struct {
	Topic  uuid.UUID
	Number int32
}

// A Partition is a partition's record.
type Partition struct {
	Topic          uuid.UUID
	Number         int32
	Replicas       []BrokerID // in order of preference
	Leader         BrokerID   // NoLeader: none
	LeaderEpoch    int64      // rises when a leader is chosen or lost; the first is 1
	PartitionEpoch int64      // rises with every change
	// ISR are the in-sync replicas. Invariant: the leader is one of them.
	ISR []BrokerID
	// ELR are not in sync, yet complete. Invariant: empty when the ISR has MinISR members; apart from the ISR.
	ELR []BrokerID
	// LastKnown are members that may have lost data and are not in the ISR any more, kept while there is no leader: one of them
	// is elected when all are back and neither ISR nor ELR has a member.
	LastKnown []BrokerID
	MinISR    int32
	// Sync is true when a replica counts a record only when its disk has it.
	Sync bool
	// LossyEpochs are the leader epochs that began with an election that may have lost data, ascending.
	LossyEpochs []int64
	Revision    Revision
}

// Key implements Object.
func (p *Partition) Key() Key {
	return Key{Kind: KindPartition, Topic: p.Topic, Partition: p.Number}
}

// PartitionKey returns what names p among partitions.
func (p *Partition) PartitionKey() PartitionKey { return PartitionKey{p.Topic, p.Number} }

// Modified implements Object.
func (p *Partition) Modified() Revision { return p.Revision }

func (p *Partition) clone() *Partition {
	c := *p
	c.Replicas = slices.Clone(p.Replicas)
	c.ISR = slices.Clone(p.ISR)
	c.ELR = slices.Clone(p.ELR)
	c.LastKnown = slices.Clone(p.LastKnown)
	c.LossyEpochs = slices.Clone(p.LossyEpochs)
	return &c
}

// Counters are numbers that only rise.
type Counters struct {
	BrokerEpoch     int64
	ControllerEpoch int64
	FeatureLevel    int32
	Revision        Revision
}

// Key implements Object.
func (c *Counters) Key() Key { return Key{Kind: KindCounters} }

// Modified implements Object.
func (c *Counters) Modified() Revision { return c.Revision }

// ProducerIDs says which producer ids were given away.
type ProducerIDs struct {
	Next     int64 // the lowest that was not
	Revision Revision
}

// Key implements Object.
func (p *ProducerIDs) Key() Key { return Key{Kind: KindProducerIDs} }

// Modified implements Object.
func (p *ProducerIDs) Modified() Revision { return p.Revision }

// A Cluster is the cluster's identity.
type Cluster struct {
	ID       uuid.UUID
	Revision Revision
}

// Key implements Object.
func (c *Cluster) Key() Key { return Key{Kind: KindCluster} }

// Modified implements Object.
func (c *Cluster) Modified() Revision { return c.Revision }

// A Controller is the active controller.
type Controller struct {
	Address     string
	Incarnation uuid.UUID
	Epoch       int64
	Revision    Revision
}

// Key implements Object.
func (c *Controller) Key() Key { return Key{Kind: KindController} }

// Modified implements Object.
func (c *Controller) Modified() Revision { return c.Revision }

// A Change is one write of a transaction, or one removal. It holds only while the object is as it was when the change was
// decided: last written at Base, or absent when Base is 0.
type Change struct {
	Key    Key
	Object Object // nil: removed
	Base   Revision
}

// put returns the change that writes o over what was last written at base; 0 for a new object.
func put(o Object, base Revision) Change { return Change{Key: o.Key(), Object: o, Base: base} }

// remove returns the change that removes o.
func remove(o Object) Change { return Change{Key: o.Key(), Base: o.Modified()} }

// An Update is one object as it was committed.
type Update struct {
	Key    Key
	Object Object // nil: it is gone
}
