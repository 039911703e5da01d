package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// An Admin manages topics and looks at the cluster. It has no state: make one
// whenever it is needed. Calls about several items return a result for each, in
// the order asked, with an error of its own; the error of the call is about the
// call as a whole.
type Admin struct {
	api    runnelv1.AdminServiceClient
	groups runnelv1.GroupServiceClient
}

// NewAdmin returns an Admin.
func (c *Client) NewAdmin() *Admin {
	return &Admin{api: runnelv1.NewAdminServiceClient(questions{c}), groups: runnelv1.NewGroupServiceClient(questions{c})}
}

// An AdminOption changes one call of an Admin.
type AdminOption func(*adminOptions)

type adminOptions struct {
	validateOnly bool
	timeout      time.Duration
}

// ValidateOnly checks everything and changes nothing.
func ValidateOnly() AdminOption { return func(o *adminOptions) { o.validateOnly = true } }

// ApplyTimeout bounds how long a change waits until all brokers know of it; 10
// s by default. The change is made also when the wait ends before.
func ApplyTimeout(d time.Duration) AdminOption { return func(o *adminOptions) { o.timeout = d } }

func newAdminOptions(opts []AdminOption) adminOptions {
	var o adminOptions
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

func (o adminOptions) wait() *durationpb.Duration {
	if o.timeout <= 0 {
		return nil
	}
	return durationpb.New(o.timeout)
}

// A NewTopic is a topic to create.
type NewTopic struct {
	Name string
	// Partitions and ReplicationFactor are the cluster's defaults when 0.
	Partitions        int32
	ReplicationFactor int32
	// Configs are values by key, such as "retention.ms".
	Configs map[string]string
	// IfNotExists makes a topic that is there already no error.
	IfNotExists bool
}

// A TopicResult is what became of one topic.
type TopicResult struct {
	Name              string
	ID                string
	Partitions        int32
	ReplicationFactor int32
	// Created is false when it was there already.
	Created bool
	// Applied is false when some broker had not heard of the change yet when
	// the wait ended. It is made all the same.
	Applied bool
	Err     error
}

// CreateTopics creates topics.
func (a *Admin) CreateTopics(ctx context.Context, topics []NewTopic, opts ...AdminOption) ([]TopicResult, error) {
	o := newAdminOptions(opts)
	req := &runnelv1.CreateTopicsRequest{ValidateOnly: o.validateOnly, Timeout: o.wait()}
	for _, t := range topics {
		req.Topics = append(req.Topics, &runnelv1.NewTopic{
			Name: t.Name, Partitions: unlessZero(t.Partitions), ReplicationFactor: unlessZero(t.ReplicationFactor),
			Configs: t.Configs, IfNotExists: t.IfNotExists,
		})
	}
	resp, err := a.api.CreateTopics(ctx, req)
	if err != nil {
		return nil, o.failed("create topics", err)
	}
	var rs []TopicResult
	for _, r := range resp.GetResults() {
		rs = append(rs, TopicResult{
			Name: r.GetName(), ID: r.GetTopicId(), Partitions: r.GetPartitions(), ReplicationFactor: r.GetReplicationFactor(),
			Created: r.GetCreated(), Applied: r.GetApplied(), Err: itemError(r.GetError()),
		})
	}
	return rs, nil
}

func unlessZero(n int32) *int32 {
	if n == 0 {
		return nil
	}
	return &n
}

// DeleteTopics deletes topics with all their records, for good.
func (a *Admin) DeleteTopics(ctx context.Context, names []string, opts ...AdminOption) ([]TopicResult, error) {
	o := newAdminOptions(opts)
	req := &runnelv1.DeleteTopicsRequest{ValidateOnly: o.validateOnly, Timeout: o.wait(), Topics: refs(names)}
	resp, err := a.api.DeleteTopics(ctx, req)
	if err != nil {
		return nil, o.failed("delete topics", err)
	}
	var rs []TopicResult
	for _, r := range resp.GetResults() {
		rs = append(rs, TopicResult{Name: r.GetName(), ID: r.GetTopicId(), Applied: r.GetApplied(), Err: itemError(r.GetError())})
	}
	return rs, nil
}

func refs(names []string) []*runnelv1.TopicRef {
	var rs []*runnelv1.TopicRef
	for _, n := range names {
		rs = append(rs, &runnelv1.TopicRef{Name: n})
	}
	return rs
}

// A ConfigEntry is one configuration value in force.
type ConfigEntry struct {
	Key, Value string
	// Source is where it comes from: "default", "cluster" or "topic".
	Source string
}

func configEntries(es []*runnelv1.ConfigEntry) []ConfigEntry {
	var out []ConfigEntry
	for _, e := range es {
		source := ""
		switch e.GetSource() {
		case runnelv1.ConfigSource_CONFIG_SOURCE_TOPIC:
			source = "topic"
		case runnelv1.ConfigSource_CONFIG_SOURCE_CLUSTER:
			source = "cluster"
		case runnelv1.ConfigSource_CONFIG_SOURCE_DEFAULT:
			source = "default"
		default:
		}
		out = append(out, ConfigEntry{Key: e.GetKey(), Value: e.GetValue(), Source: source})
	}
	return out
}

// AlterTopicConfig sets configuration values of a topic and puts others back to
// their defaults, all or none. It returns the whole configuration as it is
// then, and whether all brokers know of it.
func (a *Admin) AlterTopicConfig(ctx context.Context, topic string, set map[string]string, remove []string, opts ...AdminOption) (configs []ConfigEntry, applied bool, err error) {
	o := newAdminOptions(opts)
	resp, err := a.api.AlterTopicConfigs(ctx, &runnelv1.AlterTopicConfigsRequest{
		Topic: topic, Set: set, Remove: remove, ValidateOnly: o.validateOnly, Timeout: o.wait(),
	})
	if err != nil {
		return nil, false, o.failed(fmt.Sprintf("alter topic %q", topic), err)
	}
	return configEntries(resp.GetConfigs()), resp.GetApplied(), nil
}

// AddPartitions raises a topic's partition count to total. Keys may map to
// other partitions afterwards.
func (a *Admin) AddPartitions(ctx context.Context, topic string, total int32, opts ...AdminOption) (partitions int32, applied bool, err error) {
	o := newAdminOptions(opts)
	resp, err := a.api.AddPartitions(ctx, &runnelv1.AddPartitionsRequest{
		Topic: topic, Total: total, ValidateOnly: o.validateOnly, Timeout: o.wait(),
	})
	if err != nil {
		return 0, false, o.failed(fmt.Sprintf("add partitions to topic %q", topic), err)
	}
	return resp.GetPartitions(), resp.GetApplied(), nil
}

// A TopicListing is one line of a list of topics.
type TopicListing struct {
	Name              string
	ID                string
	Partitions        int32
	ReplicationFactor int32
	Internal          bool
}

// ListTopics returns the topics whose names begin with prefix, by name; with
// internal also those that the system keeps for itself.
func (a *Admin) ListTopics(ctx context.Context, prefix string, internal bool) ([]TopicListing, error) {
	var all []TopicListing
	req := &runnelv1.ListTopicsRequest{Prefix: prefix, IncludeInternal: internal}
	for {
		resp, err := a.api.ListTopics(ctx, req)
		if err != nil {
			return nil, callError("list topics", err)
		}
		for _, t := range resp.GetTopics() {
			all = append(all, TopicListing{
				Name: t.GetName(), ID: t.GetTopicId(), Partitions: t.GetPartitions(),
				ReplicationFactor: t.GetReplicationFactor(), Internal: t.GetInternal(),
			})
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return all, nil
		}
	}
}

// A TopicDescription is all about one topic.
type TopicDescription struct {
	Name              string
	ID                string
	PartitionCount    int32
	ReplicationFactor int32
	Internal          bool
	Configs           []ConfigEntry
	// Durability says in words what an acknowledged record survives.
	Durability string
	Partitions []PartitionDescription
	Err        error
}

// A PartitionDescription is all about one partition.
type PartitionDescription struct {
	Partition int32
	// Leader is a broker id, -1 when there is none at present.
	Leader         int32
	LeaderEpoch    int64
	PartitionEpoch int64
	Replicas       []int32
	ISR            []int32
	ELR            []int32
	MinISR         int32
	// The offsets, Size in bytes and Segments are the leader's, -1 when it
	// cannot be asked.
	LogStart      int64
	HighWatermark int64
	LogEnd        int64
	Size          int64
	Segments      int32
	Err           error
}

// DescribeTopics describes topics.
func (a *Admin) DescribeTopics(ctx context.Context, names []string) ([]TopicDescription, error) {
	var all []TopicDescription
	for _, name := range names {
		d, err := a.describeTopic(ctx, name)
		if err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// describeTopic collects the pages of a topic of many partitions.
func (a *Admin) describeTopic(ctx context.Context, name string) (TopicDescription, error) {
	var d TopicDescription
	for {
		resp, err := a.api.DescribeTopics(ctx, &runnelv1.DescribeTopicsRequest{
			Topics: refs([]string{name}), FromPartition: int32(len(d.Partitions)),
		})
		if err != nil {
			return d, callError(fmt.Sprintf("describe topic %q", name), err)
		}
		if len(resp.GetTopics()) != 1 {
			return d, fmt.Errorf("describe topic %q: %d answers for one question", name, len(resp.GetTopics()))
		}
		t := resp.GetTopics()[0]
		page := t.GetPartitions()
		d = TopicDescription{
			Name: t.GetName(), ID: t.GetTopicId(), PartitionCount: t.GetPartitionCount(), ReplicationFactor: t.GetReplicationFactor(),
			Internal: t.GetInternal(), Configs: configEntries(t.GetConfigs()), Durability: t.GetDurability(),
			Partitions: d.Partitions, Err: itemError(t.GetError()),
		}
		for _, p := range page {
			d.Partitions = append(d.Partitions, partitionDescription(p))
		}
		// A topic that is not there has no partitions either.
		if len(page) == 0 || len(d.Partitions) >= int(d.PartitionCount) {
			return d, nil
		}
	}
}

func partitionDescription(p *runnelv1.PartitionDescription) PartitionDescription {
	d := PartitionDescription{
		Partition: p.GetPartition(), Leader: -1, LeaderEpoch: p.GetLeaderEpoch(), PartitionEpoch: p.GetPartitionEpoch(),
		Replicas: p.GetReplicas(), ISR: p.GetIsr(), ELR: p.GetElr(), MinISR: p.GetMinIsr(),
		LogStart: -1, HighWatermark: -1, LogEnd: -1, Size: -1, Segments: -1, Err: itemError(p.GetError()),
	}
	take(&d.Leader, p.Leader)
	take(&d.LogStart, p.LogStartOffset)
	take(&d.HighWatermark, p.HighWatermark)
	take(&d.LogEnd, p.LogEndOffset)
	take(&d.Size, p.SizeBytes)
	take(&d.Segments, p.Segments)
	return d
}

// take sets v to an optional value where there is one.
func take[T any](v, from *T) {
	if from != nil {
		*v = *from
	}
}

// A ConfigKey describes a configuration key that topics have.
type ConfigKey struct{ Key, Default, Want, Description string }

// TopicConfigKeys returns every configuration key a topic can have.
func (a *Admin) TopicConfigKeys(ctx context.Context) ([]ConfigKey, error) {
	resp, err := a.api.ListTopicConfigKeys(ctx, &runnelv1.ListTopicConfigKeysRequest{})
	if err != nil {
		return nil, callError("list topic configuration keys", err)
	}
	var ks []ConfigKey
	for _, k := range resp.GetKeys() {
		ks = append(ks, ConfigKey{Key: k.GetKey(), Default: k.GetDefaultValue(), Want: k.GetWant(), Description: k.GetDescription()})
	}
	return ks, nil
}

// A DeletedRecords is what became of one partition's records.
type DeletedRecords struct {
	Partition int32
	// LogStart is the first offset there is now.
	LogStart int64
	Err      error
}

// DeleteRecords deletes the records of a topic's partitions below an offset
// each; -1 stands for all that are committed.
func (a *Admin) DeleteRecords(ctx context.Context, topic string, before map[int32]int64, opts ...AdminOption) ([]DeletedRecords, error) {
	o := newAdminOptions(opts)
	if o.validateOnly {
		return nil, localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "deleting records cannot be tried: leave ValidateOnly out")
	}
	req := &runnelv1.DeleteRecordsRequest{Topic: topic, Timeout: o.wait()}
	for p, offset := range before {
		req.Partitions = append(req.Partitions, &runnelv1.DeleteRecordsPartition{Partition: p, BeforeOffset: offset})
	}
	resp, err := a.api.DeleteRecords(ctx, req)
	if err != nil {
		return nil, o.failed(fmt.Sprintf("delete records of topic %q", topic), err)
	}
	var rs []DeletedRecords
	for _, r := range resp.GetResults() {
		rs = append(rs, DeletedRecords{Partition: r.GetPartition(), LogStart: r.GetLogStartOffset(), Err: itemError(r.GetError())})
	}
	return rs, nil
}

// A PartitionOffset is an offset that was asked for.
type PartitionOffset struct {
	Partition int32
	// Offset is -1 when no record is at or after the time asked for.
	Offset int64
	// Timestamp is that of the record, for questions by time.
	Timestamp   time.Time
	LeaderEpoch int64
	Err         error
}

// ListOffsets returns the offsets that a start stands for in every partition
// of a topic: [Earliest], [Latest] or [AtTime].
func (a *Admin) ListOffsets(ctx context.Context, topic string, at Start) ([]PartitionOffset, error) {
	q := &runnelv1.OffsetQuery{Topic: topic}
	switch at.kind {
	case startEarliest:
		q.Place = &runnelv1.OffsetQuery_Position{Position: runnelv1.Position_POSITION_EARLIEST}
	case startLatest:
		q.Place = &runnelv1.OffsetQuery_Position{Position: runnelv1.Position_POSITION_LATEST}
	case startTime:
		q.Place = &runnelv1.OffsetQuery_Timestamp{Timestamp: timestamppb.New(at.at)}
	default:
		return nil, localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "list offsets at Earliest, Latest or AtTime")
	}
	resp, err := a.api.ListOffsets(ctx, &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{q}})
	if err != nil {
		return nil, callError(fmt.Sprintf("list offsets of topic %q", topic), err)
	}
	var rs []PartitionOffset
	for _, o := range resp.GetOffsets() {
		r := PartitionOffset{Partition: o.GetPartition(), Offset: -1, LeaderEpoch: o.GetLeaderEpoch(), Err: itemError(o.GetError())}
		take(&r.Offset, o.Offset)
		if o.GetTimestamp() != nil {
			r.Timestamp = o.GetTimestamp().AsTime()
		}
		rs = append(rs, r)
	}
	return rs, nil
}

func callError(what string, err error) error { return fmt.Errorf("%s: %w", what, rpcError(err)) }
