package rpc

import (
	"context"
	"encoding/base64"
	"fmt"
	"sort"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/topicconfig"
)

const (
	defaultListPage      = 1000
	maxListPage          = 10000
	maxDescribePartition = 1000
)

// A page token is the last name of the page before, so pages neither repeat
// nor skip a topic when others come and go meanwhile. The letter in front is
// the version of that agreement.
const tokenVersion = "n"

func pageToken(last string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(tokenVersion + last))
}

// after returns the name a page token stands for, "" for the first page.
func after(token string) (string, error) {
	if token == "" {
		return "", nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	last, ok := strings.CutPrefix(string(b), tokenVersion)
	if err != nil || !ok {
		return "", invalid("page_token %.100q was not made by this call: take it from the answer before", token)
	}
	return last, nil
}

// from returns the topics whose names come after last.
func from(topics []*metadata.Topic, last string) []*metadata.Topic {
	if last == "" {
		return topics
	}
	return topics[sort.Search(len(topics), func(i int) bool { return topics[i].Name > last }):]
}

// fieldSize is what m takes as an element of a repeated field.
func fieldSize(m proto.Message) int { return 2 + protowire.SizeBytes(proto.Size(m)) }

// ListTopics implements runnelv1.AdminServiceServer.
func (s *AdminService) ListTopics(ctx context.Context, req *runnelv1.ListTopicsRequest) (*runnelv1.ListTopicsResponse, error) {
	size := int32(defaultListPage)
	if req.PageSize != nil {
		size = min(req.GetPageSize(), maxListPage)
		if size < 1 {
			return nil, invalid("page_size %d: want 1 to %d", req.GetPageSize(), maxListPage)
		}
	}
	last, err := after(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	img, err := s.deps.Finder.Image(ctx)
	if err != nil {
		return nil, err
	}
	resp := &runnelv1.ListTopicsResponse{}
	bytes := 0
	for _, t := range from(img.Topics(), last) {
		if !strings.HasPrefix(t.Name, req.GetPrefix()) || (t.Internal && !req.GetIncludeInternal()) {
			continue
		}
		l := &runnelv1.TopicListing{
			Name: t.Name, TopicId: t.ID.String(), Internal: t.Internal,
			Partitions: new(int32(len(t.Partitions))), ReplicationFactor: new(int32(t.RF)), //nolint:gosec // bounded by the image
		}
		bytes += fieldSize(l)
		if len(resp.GetTopics()) == int(size) || (bytes > maxPage && len(resp.GetTopics()) > 0) {
			resp.NextPageToken = pageToken(resp.GetTopics()[len(resp.GetTopics())-1].GetName())
			break
		}
		resp.Topics = append(resp.Topics, l)
	}
	return resp, nil
}

// DescribeTopics implements runnelv1.AdminServiceServer. An answer that would
// grow too large has fewer partitions than asked for; who finds fewer than
// partition_count asks again from the first one missing.
func (s *AdminService) DescribeTopics(ctx context.Context, req *runnelv1.DescribeTopicsRequest) (*runnelv1.DescribeTopicsResponse, error) {
	if err := count(len(req.GetTopics())); err != nil {
		return nil, err
	}
	most := int32(maxDescribePartition)
	if req.MaxPartitions != nil {
		most = min(req.GetMaxPartitions(), maxDescribePartition)
	}
	if req.GetFromPartition() < 0 || most < 0 {
		return nil, invalid("from_partition %d, max_partitions %d: neither may be negative", req.GetFromPartition(), most)
	}
	if _, err := s.deps.Finder.Image(ctx); err != nil {
		return nil, err
	}
	resp := &runnelv1.DescribeTopicsResponse{}
	budget := maxAnswer
	var asked []measureAsked
	for _, ref := range req.GetTopics() {
		t, err := s.deps.Finder.Find(ctx, ref.GetName(), ref.GetTopicId())
		if err != nil {
			d := &runnelv1.TopicDescription{Name: ref.GetName(), Error: s.errors.item(err)}
			budget -= fieldSize(d)
			resp.Topics = append(resp.Topics, d)
			continue
		}
		d := describeTopic(t)
		budget -= fieldSize(d)
		for n := req.GetFromPartition(); int(n) < len(t.Partitions) && n-req.GetFromPartition() < most; n++ {
			p, away := s.describePartition(t, n)
			size := fieldSize(p)
			if away {
				size += measuresSize
			}
			// The first answer always says something, so that paging goes on.
			if budget < size && n > req.GetFromPartition() {
				break
			}
			budget -= size
			d.Partitions = append(d.Partitions, p)
			if away {
				asked = append(asked, measureAsked{t, p})
			}
		}
		resp.Topics = append(resp.Topics, d)
	}
	s.measureAway(ctx, asked)
	return resp, nil
}

// measuresSize is the most that a leader's measures add to a description,
// without an error.
const measuresSize = 60

// A measureAsked is a partition that another broker leads.
type measureAsked struct {
	topic       *metadata.Topic
	description *runnelv1.PartitionDescription
}

// measureAway asks other brokers for what only they know. Who does not answer
// in time leaves it unsaid.
func (s *AdminService) measureAway(ctx context.Context, asked []measureAsked) {
	if len(asked) == 0 || s.deps.Router == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, measureTimeout)
	defer cancel()
	question := router.Question{
		Method: "describe_partitions",
		Here: func(_ context.Context, i int) error {
			return s.measure(asked[i].description, asked[i].topic, asked[i].description.GetPartition())
		},
		There: func(ctx context.Context, c replicav1.ForwardServiceClient, at []int) ([]*runnelv1.ItemError, error) {
			return askMeasures(ctx, c, asked, at)
		},
	}
	for _, a := range asked {
		question.Parts = append(question.Parts, router.Part{Topic: a.topic.ID, Number: a.description.GetPartition()})
	}
	for i, err := range s.ask(ctx, question) {
		if err != nil && !router.Routable(err) {
			asked[i].description.Error = s.errors.item(err)
		}
	}
}

// measureTimeout is how long a description waits for the leaders.
const measureTimeout = time.Second

func describeTopic(t *metadata.Topic) *runnelv1.TopicDescription {
	d := &runnelv1.TopicDescription{
		Name: t.Name, TopicId: t.ID.String(), Internal: t.Internal, Durability: durability(t),
		PartitionCount: new(int32(len(t.Partitions))), ReplicationFactor: new(int32(t.RF)), //nolint:gosec // bounded by the image
	}
	for _, e := range topicconfig.Entries(t.Cluster, t.Set, t.RF) {
		source := runnelv1.ConfigSource_CONFIG_SOURCE_DEFAULT
		switch e.Source {
		case topicconfig.SourceDefault:
		case topicconfig.SourceCluster:
			source = runnelv1.ConfigSource_CONFIG_SOURCE_CLUSTER
		case topicconfig.SourceTopic:
			source = runnelv1.ConfigSource_CONFIG_SOURCE_TOPIC
		}
		d.Configs = append(d.Configs, &runnelv1.ConfigEntry{Key: e.Key, Value: e.Value, Source: source})
	}
	return d
}

// durability says in words what an acknowledged record survives.
func durability(t *metadata.Topic) string {
	minISR := t.Config.MinISR(t.RF)
	const acked = "a record acknowledged with acks ALL is "
	switch sync := t.Config.Sync(minISR); {
	case sync && minISR > 1:
		return fmt.Sprintf(acked+"on %d disks: it survives any number of process kills and power cuts, and the loss of %d of its copies", minISR, minISR-1)
	case sync:
		return acked + "on one disk: it survives any number of process kills and power cuts, and no loss of the disk"
	case minISR > 1:
		return fmt.Sprintf(acked+"in the memory of %d machines: it survives any number of process kills, and the loss of %d of its copies by disk failure or power cut", minISR, minISR-1)
	default:
		return acked + "in the memory of one machine: it survives process kills, but neither a power cut nor the loss of the disk; flush=sync or more replicas change that"
	}
}

func ids(in []metadata.BrokerID) []int32 {
	out := make([]int32, len(in))
	for i, id := range in {
		out[i] = int32(id)
	}
	return out
}

// describePartition tells what is known here, and whether another broker is to
// be asked for the rest.
func (s *AdminService) describePartition(t *metadata.Topic, n int32) (d *runnelv1.PartitionDescription, away bool) {
	mp := &t.Partitions[n]
	d = &runnelv1.PartitionDescription{
		Partition: new(n), LeaderEpoch: new(int64(mp.LeaderEpoch)), PartitionEpoch: new(mp.PartitionEpoch),
		Replicas: ids(mp.Replicas), Isr: ids(mp.ISR), Elr: ids(mp.ELR), MinIsr: new(int32(mp.MinISR)), //nolint:gosec // small
	}
	if mp.Leader == metadata.NoBroker {
		d.Error = s.errors.item(partition.NoLeader(t, n, mp))
		return d, false
	}
	d.Leader = new(int32(mp.Leader))
	if mp.Leader != s.deps.Store.Load().Self {
		return d, true
	}
	if err := s.measure(d, t, n); err != nil {
		d.Error = s.errors.item(err)
	}
	return d, false
}

// measure tells what only the leader knows, which is this broker.
func (s *AdminService) measure(d *runnelv1.PartitionDescription, t *metadata.Topic, n int32) error {
	p, err := s.local(t, n)
	if err != nil {
		return err
	}
	st := p.State()
	d.LogStartOffset, d.HighWatermark, d.LogEndOffset = new(int64(st.LogStart)), new(int64(st.HighWatermark)), new(int64(st.LogEnd))
	d.SizeBytes, d.Segments = new(p.Size()), new(int32(p.Segments())) //nolint:gosec // small
	return p.Damage()
}
