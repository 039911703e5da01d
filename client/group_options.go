package client

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// An Assignor says how partitions are divided among the members of a group. The
// brokers do it, in the way that most members want.
type Assignor uint8

// The assignors.
const (
	// Sticky gives members equal shares, and moves as little as it can. The
	// default.
	Sticky Assignor = iota + 1
	// Range divides each topic in runs: partitions of the same number in several
	// topics meet in one member.
	Range
	// RoundRobin deals the partitions of all topics in turn.
	RoundRobin
	// StickyRackAware is Sticky, and prefers a member in the rack of a replica.
	StickyRackAware
)

// A PartitionID names a partition.
type PartitionID struct {
	Topic     string
	Partition int32
}

// GroupHooks are called as partitions come and go. Each may be nil. They are
// called one at a time, by a goroutine of the Group's own, and nothing is
// assigned or given up while one of them runs; records of other partitions go on.
// They may commit. They must not call Close or Leave.
type GroupHooks struct {
	// OnAssign is called with partitions that have come to this member, before
	// their first record.
	OnAssign func([]PartitionID)
	// OnRevoke is called with partitions that are to be given up in good order:
	// nothing more of them is handed out, and what was is processed. What is
	// committed in it, or was processed, is stored before another member gets them.
	OnRevoke func([]PartitionID)
	// OnLost is called with partitions that are lost already: another member may
	// have them. What is under way of them is to be dropped; commits are refused.
	OnLost func([]PartitionID, error)
}

const (
	defaultCommitInterval = 5 * time.Second
	defaultSessionTimeout = 10 * time.Second
	// commitTimeout bounds how long a commit that nobody waits for is tried.
	commitTimeout = 30 * time.Second
)

type groupOptions struct {
	topics     []string
	pattern    string
	assignor   Assignor
	instance   string
	rack       string
	session    time.Duration
	rebalance  time.Duration
	manual     bool
	interval   time.Duration
	noCommit   ResetPolicy
	hooks      GroupHooks
	reader     []ReaderOption
	deadLetter *DeadLetter
}

// A GroupOption changes how a Group works.
type GroupOption func(*groupOptions)

// Topics subscribes to topics by name. One that does not exist is read as soon as
// it does.
func Topics(names ...string) GroupOption {
	return func(o *groupOptions) { o.topics = append(o.topics, names...) }
}

// TopicPattern subscribes to all topics whose whole name matches an RE2
// expression, those created later among them.
func TopicPattern(re2 string) GroupOption { return func(o *groupOptions) { o.pattern = re2 } }

// WithAssignor says how this member wants partitions to be divided; by default
// [Sticky].
func WithAssignor(a Assignor) GroupOption { return func(o *groupOptions) { o.assignor = a } }

// InstanceID makes the member a static one: a process that is started again with
// the same id, within the session timeout, goes on with its partitions, and nothing
// is moved. Two that run at once are one too many: the older one fails with
// [ErrFencedMember].
func InstanceID(id string) GroupOption { return func(o *groupOptions) { o.instance = id } }

// Rack names the rack, or availability zone, of the member; see [StickyRackAware].
func Rack(name string) GroupOption { return func(o *groupOptions) { o.rack = name } }

// SessionTimeout is how long a member that is silent, as a process that has died,
// keeps its partitions; 10 s by default, 1 s to 5 min. The Group speaks up by
// itself: records may take as long as they need to be processed.
func SessionTimeout(d time.Duration) GroupOption { return func(o *groupOptions) { o.session = d } }

// RebalanceTimeout is how long the member may take to finish with records in hand
// of a partition that another one is to have; 60 s by default, 1 s to 30 min.
func RebalanceTimeout(d time.Duration) GroupOption { return func(o *groupOptions) { o.rebalance = d } }

// CommitInterval is how often processed records are committed; 5 s by default.
// They are also when a partition is given up, and by Close.
func CommitInterval(d time.Duration) GroupOption { return func(o *groupOptions) { o.interval = d } }

// ManualCommit leaves committing to the program: see [Group.Commit].
func ManualCommit() GroupOption { return func(o *groupOptions) { o.manual = true } }

// OnNoCommit says where to begin with a partition for which the group has not
// committed anything: [ResetEarliest], the default, [ResetLatest], or
// [ResetFail], which is [ErrNoCommit]. With ResetLatest, the place is committed as
// soon as it is known: a member that stops before its first record skips nothing.
func OnNoCommit(p ResetPolicy) GroupOption { return func(o *groupOptions) { o.noCommit = p } }

// WithGroupHooks has h called as partitions come and go.
func WithGroupHooks(h GroupHooks) GroupOption { return func(o *groupOptions) { o.hooks = h } }

// Reading changes how records are fetched. [OnOutOfRange] is [ResetFail] unless it
// is set here: a group whose records were deleted before it has read them is told,
// with the error [ErrOffsetOutOfRange], and skips nothing in silence.
func Reading(opts ...ReaderOption) GroupOption {
	return func(o *groupOptions) { o.reader = append(o.reader, opts...) }
}

func newGroupOptions(name string, opts []GroupOption) (groupOptions, error) {
	o := groupOptions{interval: defaultCommitInterval, noCommit: ResetEarliest}
	for _, opt := range opts {
		if opt != nil {
			opt(&o)
		}
	}
	var errs []error
	if name == "" {
		errs = append(errs, errors.New("the group has no name"))
	}
	errs = append(errs, checkText("the group's name", name), checkText("InstanceID", o.instance), checkText("Rack", o.rack))
	for _, t := range o.topics {
		errs = append(errs, checkTopic(t))
	}
	if len(o.topics) == 0 && o.pattern == "" {
		errs = append(errs, errors.New("nothing to read: add client.Topics or client.TopicPattern"))
	}
	if o.assignor > StickyRackAware {
		errs = append(errs, fmt.Errorf("WithAssignor(%d): no such assignor", o.assignor))
	}
	if o.session != 0 && (o.session < time.Second || o.session > 5*time.Minute) {
		errs = append(errs, fmt.Errorf("SessionTimeout(%v): want 1s to 5m", o.session))
	}
	if o.rebalance != 0 && (o.rebalance < time.Second || o.rebalance > 30*time.Minute) {
		errs = append(errs, fmt.Errorf("RebalanceTimeout(%v): want 1s to 30m", o.rebalance))
	}
	if o.interval <= 0 {
		errs = append(errs, fmt.Errorf("CommitInterval(%v): want more than 0; see ManualCommit", o.interval))
	}
	if o.noCommit > ResetLatest {
		errs = append(errs, fmt.Errorf("OnNoCommit(%d): want ResetEarliest, ResetLatest or ResetFail", o.noCommit))
	}
	if o.deadLetter != nil {
		errs = append(errs, o.deadLetter.check(o.reads))
	}
	if _, err := regexp.Compile(o.pattern); err != nil {
		errs = append(errs, fmt.Errorf("TopicPattern(%q): want a regular expression in the syntax of RE2: %w", o.pattern, err))
	}
	return o, errors.Join(errs...)
}

// reads reports whether a topic is among those that the group asks for.
func (o *groupOptions) reads(topic string) bool {
	if slices.Contains(o.topics, topic) {
		return true
	}
	re, err := regexp.Compile("^(?:" + o.pattern + ")$") // as the brokers match it
	return o.pattern != "" && err == nil && re.MatchString(topic)
}

// proto is the number of the API, which the values follow.
func (a Assignor) proto() runnelv1.Assignor { return runnelv1.Assignor(a) }
