package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/placement"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

// maxNameLength keeps a name with its partition number, and what deletion appends to it, below the 255 bytes of a file name.
const maxNameLength = 249

// internalPrefix begins the names of topics that the system keeps for itself.
const internalPrefix = "__"

// Defaults are what the cluster gives a topic that does not say.
type Defaults struct {
	Partitions        int32
	ReplicationFactor int32 // capped at the number of brokers there are, in service or not
	Configs           map[string]string
	MaxPartitions     int32 // of one topic
	// InternalFactor is the replication factor that internal topics grow to.
	InternalFactor int32
}

// A NewTopic asks for a topic.
type NewTopic struct {
	Name              string
	Partitions        *int32 // nil: the default
	ReplicationFactor *int32 // nil: the default
	Configs           map[string]string
	IfNotExists       bool
}

// A TopicPlan is the answer to a wish for a topic.
type TopicPlan struct {
	Topic   *Topic
	Existed bool
	// Changes creates the topic: wholly if that fits in one transaction, else what remains is Work. Empty if it existed.
	Changes []Change
}

// CheckName says whether users may give a topic this name.
func CheckName(name string) error {
	var why string
	switch {
	case name == "":
		why = "it is empty"
	case name == "." || name == "..":
		why = "it is the name of a directory"
	case strings.HasPrefix(name, internalPrefix):
		why = `names that begin with "__" are internal`
	default:
		return checkRunes(name)
	}
	return badName(name, why)
}

// checkRunes says whether a name is one of a topic, its first letters aside.
func checkRunes(name string) error {
	var why string
	switch {
	case len(name) > maxNameLength:
		why = fmt.Sprintf("it has %d characters, at most %d are allowed", len(name), maxNameLength)
	case strings.ContainsFunc(name, func(r rune) bool { return !nameRune(r) }):
		why = "only letters a-z and A-Z, digits, '.', '_' and '-' are allowed"
	default:
		return nil
	}
	return badName(name, why)
}

func badName(name, why string) error {
	return refuse(ErrInvalidName, fmt.Sprintf("topic name %.300q: %s", name, why), "topic", name)
}

func nameRune(r rune) bool {
	return r == '.' || r == '_' || r == '-' || (r >= '0' && r <= '9') || (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z')
}

// CreateTopic decides on a new topic, which gets the id.
func (i *Image) CreateTopic(n NewTopic, d Defaults, id uuid.UUID, nowMs int64) (TopicPlan, error) {
	if err := CheckName(n.Name); err != nil {
		return TopicPlan{}, err
	}
	if t := i.TopicNamed(n.Name); t != nil {
		if n.IfNotExists {
			return TopicPlan{Topic: t, Existed: true}, nil
		}
		return TopicPlan{}, refuse(ErrTopicExists, fmt.Sprintf("topic %q exists already", n.Name), "topic", n.Name, "topicId", t.ID.String())
	}
	if other, ok := i.folded[Fold(n.Name)]; ok {
		return TopicPlan{}, refuse(ErrInvalidName,
			fmt.Sprintf("topic name %q: it differs only in '.' and '_' from the existing topic %q, so tools would confuse them", n.Name, other), "topic", n.Name)
	}
	t, err := i.newTopic(n, d)
	if err != nil {
		return TopicPlan{}, err
	}
	return i.planTopic(t, id, nowMs)
}

// planTopic returns the plan that creates a topic.
func (i *Image) planTopic(t *Topic, id uuid.UUID, nowMs int64) (TopicPlan, error) {
	t.ID, t.CreatedMs = id, nowMs
	changes := []Change{put(&Name{Name: t.Name, Topic: id}, 0)}
	if len(changes)+1+int(t.Partitions) > MaxChanges {
		t.Phase = TopicCreating
		return TopicPlan{Topic: t, Changes: append(changes, put(t, 0))}, nil
	}
	parts, err := i.newPartitions(t, numbers(0, t.Partitions))
	if err != nil {
		return TopicPlan{}, err
	}
	return TopicPlan{Topic: t, Changes: append(append(changes, put(t, 0)), parts...)}, nil
}

// newTopic validates what was asked and fills in the defaults.
func (i *Image) newTopic(n NewTopic, d Defaults) (*Topic, error) {
	t := &Topic{
		Name: n.Name, Phase: TopicActive, Partitions: d.Partitions,
		Configs: maps.Clone(n.Configs), ClusterConfigs: maps.Clone(d.Configs),
	}
	if n.Partitions != nil {
		t.Partitions = *n.Partitions
	}
	if err := checkCount(t.Partitions, d.MaxPartitions); err != nil {
		return nil, err
	}
	usable := len(i.usable())
	// Not at the number in service: what is created while a broker restarts would have a copy less for ever.
	t.ReplicationFactor = min(d.ReplicationFactor, int32(max(len(i.brokers), 1))) //nolint:gosec // few brokers
	if n.ReplicationFactor != nil {
		t.ReplicationFactor = *n.ReplicationFactor
	}
	if t.ReplicationFactor < 1 || int(t.ReplicationFactor) > usable {
		return nil, refuse(ErrInvalidFactor,
			fmt.Sprintf("replication factor %d: it must be from 1 to the number of usable brokers, %d at present%s", t.ReplicationFactor, usable, i.unusable()),
			"asked", itoa(t.ReplicationFactor), "available", itoa(usable))
	}
	return t, checkConfig(t)
}

func checkCount(partitions, limit int32) error {
	if partitions >= 1 && partitions <= limit {
		return nil
	}
	return refuse(ErrInvalidPartitions, fmt.Sprintf("%d partitions: a topic has 1 to %d", partitions, limit),
		"asked", itoa(partitions), "maxPartitions", itoa(limit))
}

// checkConfig is the one validator of topic configurations, at creation and at every change.
func checkConfig(t *Topic) error {
	c, err := topicconfig.Resolve(t.ClusterConfigs, t.Configs)
	if err != nil {
		return err
	}
	return c.CheckReplication(int(max(t.ReplicationFactor, t.TargetFactor)))
}

// usable returns the brokers that can be given replicas.
func (i *Image) usable() []placement.Broker {
	return slices.DeleteFunc(i.loads(), func(b placement.Broker) bool { return b.Closed })
}

// unusable names the brokers that can be given none, for an error; "" when there are none.
func (i *Image) unusable() string {
	var closed []int32
	for _, b := range i.loads() {
		if b.Closed {
			closed = append(closed, b.ID)
		}
	}
	if len(closed) == 0 {
		return ""
	}
	slices.Sort(closed)
	var names []string
	for _, id := range closed {
		names = append(names, itoa(id))
	}
	return "; not in service: broker " + strings.Join(names, ", ") + ": try again when it is, or ask for fewer copies"
}

// loads returns all brokers with what they hold; closed are those that can be given nothing.
func (i *Image) loads() []placement.Broker {
	var all []placement.Broker
	for _, b := range i.brokers {
		all = append(all, placement.Broker{
			ID: int32(b.ID), Rack: b.Rack, Replicas: len(i.byBroker[b.ID]), Leaders: i.preferred[b.ID], Heirs: i.heirs[b.ID], Closed: b.Phase != BrokerActive,
		})
	}
	return all
}

// newPartitions returns the changes that create the numbered partitions of a topic.
func (i *Image) newPartitions(t *Topic, numbers []int32) ([]Change, error) {
	c, err := topicconfig.Resolve(t.ClusterConfigs, t.Configs)
	if err != nil {
		return nil, err
	}
	places, err := placement.Assign(i.usable(), int(t.ReplicationFactor), len(numbers))
	if err != nil {
		return nil, err
	}
	minISR := c.MinISR(int(t.ReplicationFactor))
	if t.ReplicationFactor < t.TargetFactor {
		minISR = 1 // until it has all its replicas
	}
	changes := make([]Change, len(numbers))
	for n, place := range places {
		replicas := make([]BrokerID, len(place))
		for r, id := range place {
			replicas[r] = BrokerID(id)
		}
		changes[n] = put(&Partition{
			Topic: t.ID, Number: numbers[n],
			Replicas: replicas, Leader: replicas[0], LeaderEpoch: i.firstEpoch(), PartitionEpoch: 1, ISR: slices.Clone(replicas),
			MinISR: int32(minISR), Sync: c.Sync(minISR), //nolint:gosec // at most the replication factor
		}, 0)
	}
	return changes, nil
}

// numbers returns from, from+1, … below to.
func numbers(from, to int32) []int32 {
	out := make([]int32, 0, max(0, to-from))
	for n := from; n < to; n++ {
		out = append(out, n)
	}
	return out
}

// A Ref names a topic as a caller does.
type Ref struct {
	Name string
	ID   uuid.UUID // uuid.Nil: any
}

// find returns the topic a user may change.
func (i *Image) find(r Ref) (*Topic, error) {
	t := i.TopicNamed(r.Name)
	if t == nil {
		return nil, refuse(ErrTopicNotFound, fmt.Sprintf("there is no topic %.300q", r.Name), "topic", r.Name)
	}
	if r.ID != uuid.Nil && r.ID != t.ID {
		return nil, refuse(ErrTopicIDMismatch,
			fmt.Sprintf("topic %q now has the id %s: it was deleted and created again", r.Name, t.ID), "topic", r.Name, "topicId", t.ID.String())
	}
	if t.Internal {
		return nil, refuse(ErrTopicInternal, fmt.Sprintf("topic %q is internal: only the system changes it", r.Name), "topic", r.Name)
	}
	return t, nil
}

// DeleteTopic returns the changes that free a topic's name and let brokers remove its directories. The rest is Work.
func (i *Image) DeleteTopic(r Ref) (*Topic, []Change, error) {
	t, err := i.find(r)
	if err != nil {
		return nil, nil, err
	}
	next := t.clone()
	next.Phase = TopicDeleting
	if t.Phase == TopicActive { // else no broker has heard of it
		next.AwaitingRemoval = i.holders(t.ID)
	}
	return next, []Change{remove(i.names[t.Name]), put(next, t.Revision)}, nil
}

// holders returns the brokers that hold a replica of a topic, ascending.
func (i *Image) holders(id uuid.UUID) []BrokerID {
	set := map[BrokerID]bool{}
	for _, p := range i.topics[id].partitions {
		for _, b := range p.Replicas {
			set[b] = true
		}
	}
	return slices.Sorted(maps.Keys(set))
}

// ConfirmRemoval returns the next transaction that notes that a broker has removed the directories of topics.
func (i *Image) ConfirmRemoval(id BrokerID, topics []uuid.UUID) []Change {
	var changes []Change
	for _, tid := range topics {
		t := i.Topic(tid)
		if t == nil || t.Phase != TopicDeleting || !slices.Contains(t.AwaitingRemoval, id) || len(changes) == MaxChanges {
			continue
		}
		next := t.clone()
		next.AwaitingRemoval = without(t.AwaitingRemoval, id)
		changes = append(changes, put(next, t.Revision))
	}
	return changes
}

// AlterConfigs decides on new values and on keys that go back to their defaults. The partitions follow by Work.
func (i *Image) AlterConfigs(r Ref, set map[string]string, unset []string) (*Topic, []Change, error) {
	t, err := i.find(r)
	if err != nil {
		return nil, nil, err
	}
	next := t.clone()
	if next.Configs == nil {
		next.Configs = map[string]string{}
	}
	known := topicconfig.Keys()
	for _, key := range unset {
		if !slices.ContainsFunc(known, func(k topicconfig.Key) bool { return k.Name == key }) {
			_, err := topicconfig.Parse(map[string]string{key: ""})
			return nil, nil, err
		}
		if _, both := set[key]; both {
			return nil, nil, refuse(ErrInvalidRequest, fmt.Sprintf("%s is both set and removed: choose one", key))
		}
		delete(next.Configs, key)
	}
	maps.Copy(next.Configs, set)
	if err := checkConfig(next); err != nil {
		return nil, nil, err
	}
	if maps.Equal(next.Configs, t.Configs) {
		return t, nil, nil
	}
	return next, []Change{put(next, t.Revision)}, nil
}

// AddPartitions decides on more partitions and returns the transactions, to be committed in turn. If that stops before the
// last, Work removes what was made: brokers see new partitions only when the topic counts them.
func (i *Image) AddPartitions(r Ref, total, limit int32) (*Topic, [][]Change, error) {
	t, err := i.find(r)
	if err != nil {
		return nil, nil, err
	}
	facts := []string{"asked", itoa(total), "current", itoa(t.Partitions), "maxPartitions", itoa(limit)}
	switch {
	case t.Phase != TopicActive:
		return nil, nil, refuse(ErrTopicNotFound, fmt.Sprintf("topic %q is still being created", r.Name), "topic", r.Name)
	case total > limit:
		return nil, nil, refuse(ErrInvalidPartitions, fmt.Sprintf("%d partitions: a topic has at most %d", total, limit), facts...)
	case total <= t.Partitions:
		return nil, nil, refuse(ErrInvalidPartitions,
			fmt.Sprintf("topic %q has %d partitions: the new total must be above that, not %d; partitions can't be taken away", r.Name, t.Partitions, total), facts...)
	}
	if usable := len(i.usable()); usable < int(t.ReplicationFactor) {
		return nil, nil, refuse(ErrInvalidFactor,
			fmt.Sprintf("topic %q has replication factor %d: only %d brokers are usable at present%s", r.Name, t.ReplicationFactor, usable, i.unusable()),
			"asked", itoa(t.ReplicationFactor), "available", itoa(usable))
	}
	next := t.clone()
	next.Partitions = total
	changes, err := i.newPartitions(t, numbers(t.Partitions, total))
	if err != nil {
		return nil, nil, err
	}
	changes = append(changes, put(next, t.Revision))
	return next, slices.Collect(slices.Chunk(changes, MaxChanges)), nil
}

// Work returns the next transaction of what was begun and is not finished, by whichever controller; none when all is done.
func (i *Image) Work() []Change {
	if changes := i.settleWork(); len(changes) > 0 {
		return changes
	}
	ids := slices.SortedFunc(maps.Keys(i.unfinished), func(a, b uuid.UUID) int { return slices.Compare(a[:], b[:]) })
	for _, id := range ids {
		if changes := i.finish(id); len(changes) > 0 {
			return changes
		}
	}
	return i.growWork()
}

// finish returns the next transaction of a topic's creation or deletion, or of the removal of surplus partitions.
func (i *Image) finish(id uuid.UUID) []Change {
	t := i.topics[id].record
	parts := i.Partitions(id)
	switch {
	case t.Phase == TopicCreating:
		return i.finishCreation(t)
	case t.Phase == TopicDeleting && len(t.AwaitingRemoval) > 0:
		return nil // brokers are at it
	case t.Phase == TopicDeleting && len(parts) == 0:
		return []Change{remove(t)}
	}
	var changes []Change
	for _, p := range parts {
		if (t.Phase == TopicDeleting || p.Number >= t.Partitions) && len(changes) < MaxChanges {
			changes = append(changes, remove(p))
		}
	}
	return changes
}

// finishCreation returns the next partitions of a topic that is being created, or the change that puts it in service.
func (i *Image) finishCreation(t *Topic) []Change {
	var missing []int32
	for n := range t.Partitions {
		if i.topics[t.ID].partitions[n] == nil && len(missing) < MaxChanges {
			missing = append(missing, n)
		}
	}
	if len(missing) == 0 {
		next := t.clone()
		next.Phase = TopicActive
		return []Change{put(next, t.Revision)}
	}
	changes, err := i.newPartitions(t, missing)
	if err != nil {
		return nil // too few brokers at present: it goes on when they are back
	}
	return changes
}
