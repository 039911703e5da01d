package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/group"
)

// serve answers a request about a partition of the groups' topic that this
// broker leads.
func (s *GroupService) serve(ctx context.Context, req *replicav1.ForwardGroupRequest) (*replicav1.ForwardGroupResponse, error) {
	n := req.GetPartition()
	out := &replicav1.ForwardGroupResponse{}
	switch r := req.GetRequest().(type) {
	case *replicav1.ForwardGroupRequest_Commit:
		resp, err := s.serveCommit(ctx, n, r.Commit)
		out.Response = &replicav1.ForwardGroupResponse_Commit{Commit: resp}
		return out, err
	case *replicav1.ForwardGroupRequest_FetchOffsets:
		resp, err := s.serveOffsets(ctx, n, r.FetchOffsets)
		out.Response = &replicav1.ForwardGroupResponse_FetchOffsets{FetchOffsets: resp}
		return out, err
	case *replicav1.ForwardGroupRequest_Describe:
		resp, err := s.serveDescription(ctx, n, r.Describe)
		out.Response = &replicav1.ForwardGroupResponse_Describe{Describe: resp}
		return out, err
	case *replicav1.ForwardGroupRequest_List:
		resp, err := s.serveList(ctx, n, r.List)
		out.Response = &replicav1.ForwardGroupResponse_List{List: resp}
		return out, err
	case *replicav1.ForwardGroupRequest_ResetOffsets:
		resp, err := s.serveReset(ctx, n, r.ResetOffsets)
		out.Response = &replicav1.ForwardGroupResponse_ResetOffsets{ResetOffsets: resp}
		return out, err
	case *replicav1.ForwardGroupRequest_Delete:
		err := s.deps.Coordinator.Delete(ctx, n, r.Delete.GetGroup())
		out.Response = &replicav1.ForwardGroupResponse_Delete{Delete: &runnelv1.DeleteGroupResponse{}}
		return out, err
	default:
		return nil, invalid("the message has no request that this version knows")
	}
}

// ForwardGroup implements replicav1.ForwardServiceServer.
func (s *ForwardService) ForwardGroup(ctx context.Context, req *replicav1.ForwardGroupRequest) (*replicav1.ForwardGroupResponse, error) {
	if s.groups == nil {
		return nil, fmt.Errorf("%w: this broker coordinates no groups", errUnsupported)
	}
	resp, err := s.groups.serve(ctx, req)
	if err != nil {
		return &replicav1.ForwardGroupResponse{Error: s.groups.errors.item(err)}, nil
	}
	return resp, nil
}

// serveCommit stores commits whose topics carry their ids.
func (s *GroupService) serveCommit(ctx context.Context, n int32, req *runnelv1.CommitRequest) (*runnelv1.CommitResponse, error) {
	ctx, cancel, err := within(ctx, req.GetTimeout(), defaultProduceTimeout)
	if err != nil {
		return nil, err
	}
	defer cancel()
	commits := make([]group.Commit, len(req.GetOffsets()))
	for i, o := range req.GetOffsets() {
		id, err := topicID(o.GetTopicId())
		if err != nil {
			return nil, err
		}
		commits[i] = group.Commit{Part: group.Part{Topic: id, Number: o.GetPartition()}, Offset: o.GetOffset(), LeaderEpoch: -1, Metadata: o.GetMetadata(), Sequence: req.GetSequence()}
		if o.LeaderEpoch != nil {
			commits[i].LeaderEpoch = o.GetLeaderEpoch()
		}
	}
	taken, err := s.deps.Coordinator.Commit(ctx, n, req.GetGroup(), req.GetMemberId(), req.GetMemberEpoch(), commits)
	if err != nil {
		return nil, err
	}
	resp := &runnelv1.CommitResponse{}
	for i, o := range req.GetOffsets() {
		r := &runnelv1.OffsetCommitResult{Topic: o.GetTopic(), TopicId: o.GetTopicId(), Partition: new(o.GetPartition())}
		if t := taken[i]; t.Err != nil {
			r.Error = s.errors.item(t.Err)
		} else {
			r.Offset = new(t.Offset)
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// committedOffset spells what is committed; nothing for nil.
func committedOffset(r *runnelv1.CommittedOffset, o *group.Offset) {
	if o == nil {
		return
	}
	r.Offset, r.Metadata, r.CommitTime = new(o.Offset), o.Metadata, timestamppb.New(time.UnixMilli(o.CommitMs))
	if o.LeaderEpoch >= 0 {
		r.LeaderEpoch = new(o.LeaderEpoch)
	}
}

// nameOf is what a topic is called; "" when it is gone.
func (s *GroupService) nameOf(id uuid.UUID) string {
	if t, ok := s.deps.Store.Load().TopicByID(id); ok {
		return t.Name
	}
	return ""
}

func (s *GroupService) serveOffsets(ctx context.Context, n int32, req *runnelv1.FetchOffsetsRequest) (*runnelv1.FetchOffsetsResponse, error) {
	all, err := s.deps.Coordinator.Committed(ctx, n, req.GetGroup())
	if err != nil {
		return nil, err
	}
	resp := &runnelv1.FetchOffsetsResponse{}
	if len(req.GetTopics()) > 0 {
		at := map[group.Part]*group.Offset{}
		for _, o := range all {
			at[o.Part] = o
		}
		for _, want := range req.GetTopics() {
			id, err := topicID(want.GetTopicId())
			if err != nil {
				return nil, err
			}
			for _, p := range want.GetPartitions() {
				r := &runnelv1.CommittedOffset{Topic: want.GetTopic(), TopicId: want.GetTopicId(), Partition: new(p)}
				committedOffset(r, at[group.Part{Topic: id, Number: p}])
				resp.Offsets = append(resp.Offsets, r)
			}
		}
		return resp, nil
	}
	after, err := parseRow(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	rows := make([]row, 0, len(all))
	for i, o := range all {
		rows = append(rows, row{name: s.nameOf(o.Part.Topic), part: o.Part, index: i})
	}
	size := 0
	for _, x := range rowsAfter(rows, after) {
		r := &runnelv1.CommittedOffset{Topic: x.name, TopicId: x.part.Topic.String(), Partition: new(x.part.Number)}
		committedOffset(r, all[x.index])
		if size += fieldSize(r); size > maxPage {
			return resp, nil
		}
		resp.Offsets = append(resp.Offsets, r)
		resp.NextPageToken = x.token()
	}
	resp.NextPageToken = ""
	return resp, nil
}

// A row is a place in an answer that is ordered by topic names and numbers.
type row struct {
	name  string
	part  group.Part
	index int
}

func (r row) compare(q row) int {
	return cmp.Or(cmp.Compare(r.name, q.name), cmp.Compare(r.part.Topic.String(), q.part.Topic.String()), cmp.Compare(r.part.Number, q.part.Number))
}

// token names the row as the last of a page.
func (r row) token() string { return fmt.Sprintf("%s/%s/%d", r.name, r.part.Topic, r.part.Number) }

// parseRow reads a token; nil for none.
func parseRow(token string) (*row, error) {
	if token == "" {
		return nil, nil
	}
	f := strings.Split(token, "/")
	if len(f) == 3 {
		id, err := uuid.Parse(f[1])
		n, nerr := strconv.ParseInt(f[2], 10, 32)
		if err == nil && nerr == nil {
			return &row{name: f[0], part: group.Part{Topic: id, Number: int32(n)}}, nil
		}
	}
	return nil, invalid("page_token %.80q is not of an answer: take it from there, or leave it out", token)
}

// rowsAfter returns the rows in order, from the one behind after.
func rowsAfter(rows []row, after *row) []row {
	slices.SortFunc(rows, row.compare)
	if after == nil {
		return rows
	}
	i := slices.IndexFunc(rows, func(r row) bool { return r.compare(*after) > 0 })
	if i < 0 {
		return nil
	}
	return rows[i:]
}

func phaseOf(p group.Phase) runnelv1.GroupState { return runnelv1.GroupState(p) }

func (s *GroupService) serveList(ctx context.Context, n int32, req *runnelv1.ListGroupsRequest) (*runnelv1.ListGroupsResponse, error) {
	var phases []group.Phase
	for _, st := range req.GetStates() {
		phases = append(phases, group.Phase(st)) //nolint:gosec // checked by whoever asks
	}
	limit := int(req.GetPageSize())
	found, err := s.deps.Coordinator.List(ctx, n, req.GetPrefix(), req.GetPageToken(), phases, limit)
	if err != nil {
		return nil, err
	}
	resp := &runnelv1.ListGroupsResponse{}
	for _, l := range found {
		resp.Groups = append(resp.Groups, &runnelv1.GroupListing{
			Group: l.ID, State: phaseOf(l.Phase), Members: new(int32(l.Members)), Coordinator: new(int32(s.deps.Store.Load().Self)), //nolint:gosec // bounded
		})
	}
	if len(found) == limit && limit > 0 {
		resp.NextPageToken = found[limit-1].ID
	}
	return resp, nil
}

// pageOfGroups merges what coordinators listed into one page.
func pageOfGroups(out *runnelv1.ListGroupsResponse, found []*runnelv1.GroupListing, limit int, more bool) *runnelv1.ListGroupsResponse {
	slices.SortFunc(found, func(a, b *runnelv1.GroupListing) int { return cmp.Compare(a.GetGroup(), b.GetGroup()) })
	size := 0
	for _, g := range found {
		if size += fieldSize(g); len(out.GetGroups()) == limit || size > maxPage {
			more = true
			break
		}
		out.Groups = append(out.Groups, g)
	}
	if n := len(out.GetGroups()); more && n > 0 {
		out.NextPageToken = out.GetGroups()[n-1].GetGroup()
	}
	return out
}

func (s *GroupService) serveReset(ctx context.Context, n int32, req *replicav1.GroupReset) (*runnelv1.ResetOffsetsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, req.GetTimeout().AsDuration())
	defer cancel()
	targets := make([]coordinator.Target, len(req.GetTargets()))
	for i, t := range req.GetTargets() {
		id, err := topicID(t.GetTopicId())
		if err != nil {
			return nil, err
		}
		targets[i] = coordinator.Target{
			Part: group.Part{Topic: id, Number: t.GetPartition()}, Offset: t.GetOffset(), Relative: t.GetRelative(), Low: t.GetLow(), High: t.GetHigh(),
		}
	}
	moved, err := s.deps.Coordinator.Reset(ctx, n, req.GetGroup(), targets, req.GetDryRun())
	if err != nil {
		return nil, err
	}
	resp := &runnelv1.ResetOffsetsResponse{Applied: !req.GetDryRun()}
	for _, m := range moved {
		r := &runnelv1.OffsetResetResult{NewOffset: new(m.New)}
		if m.Old != nil {
			r.OldOffset = new(m.Old.Offset)
		}
		if m.Err != nil {
			resp.Applied = false
			r.NewOffset, r.Error = nil, s.errors.item(m.Err)
		}
		resp.Results = append(resp.Results, r)
	}
	return resp, nil
}

// Bounds of a description's pages.
const (
	defaultGroupPage = 2000
	mostGroupPage    = 5000
)

func (s *GroupService) serveDescription(ctx context.Context, n int32, req *runnelv1.DescribeGroupRequest) (*runnelv1.DescribeGroupResponse, error) {
	limit := defaultGroupPage
	if req.PageSize != nil {
		limit = int(req.GetPageSize())
	}
	if limit < 1 || limit > mostGroupPage {
		return nil, invalid("page_size %d: want 1 to %d", limit, mostGroupPage)
	}
	after, err := parseRow(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	d, err := s.deps.Coordinator.Describe(ctx, n, req.GetGroup())
	if err != nil {
		return nil, err
	}
	lag := s.deps.Coordinator.Lag(ctx, d)
	resp := &runnelv1.DescribeGroupResponse{
		Group: d.ID, State: phaseOf(d.Phase), GroupEpoch: new(d.Epoch), Assignor: runnelv1.Assignor(d.Assignor), Coordinator: new(int32(s.deps.Store.Load().Self)),
	}
	if !d.ExpiresAt.IsZero() {
		resp.ExpireTime = timestamppb.New(d.ExpiresAt)
	}
	if after == nil {
		for i := range d.Members {
			resp.Members = append(resp.Members, describeMember(&d.Members[i], d.Now))
		}
		resp.LagRecords, resp.LagSeconds, resp.TimeToDataLossSeconds = lag.Total.Records, lag.Total.Seconds, lag.Total.LossSeconds
	}
	rows := make([]row, 0, len(d.Parts))
	for i := range d.Parts {
		rows = append(rows, row{name: s.nameOf(d.Parts[i].Part.Topic), part: d.Parts[i].Part, index: i})
	}
	size := 0
	for _, x := range rowsAfter(rows, after) {
		p := describePart(x.name, &d.Parts[x.index], lag.Parts[x.part])
		if size += fieldSize(p); size > maxPage || len(resp.GetPartitions()) == limit {
			return resp, nil
		}
		resp.Partitions = append(resp.Partitions, p)
		resp.NextPageToken = x.token()
	}
	resp.NextPageToken = ""
	return resp, nil
}

func describeMember(m *group.MemberView, now time.Time) *runnelv1.GroupMember {
	return &runnelv1.GroupMember{
		MemberId: m.ID, InstanceId: m.Terms.Instance, ClientName: m.Terms.ClientName, ClientAddress: m.Terms.ClientAddress, Rack: m.Terms.Rack,
		MemberEpoch: new(m.Epoch), Topics: m.Terms.Topics, TopicPattern: m.Terms.Pattern,
		OwnedPartitions: new(int32(m.Owned)), TargetPartitions: new(int32(m.Target)), //nolint:gosec // bounded
		Connected: m.Connected, SilentFor: durationpb.New(max(now.Sub(m.Heard), 0)),
		SessionTimeout: durationpb.New(m.Terms.Session), RebalanceTimeout: durationpb.New(m.Terms.Rebalance),
	}
}

func describePart(name string, p *group.PartView, lag *coordinator.PartLag) *runnelv1.GroupPartition {
	out := &runnelv1.GroupPartition{
		Topic: name, TopicId: p.Part.Topic.String(), Partition: new(p.Part.Number), MemberId: p.Owner, NextMemberId: p.Next,
	}
	if p.Owner != "" {
		out.AssignmentEpoch = new(p.Epoch)
	}
	if c := p.Committed; c != nil {
		out.CommittedOffset, out.Metadata, out.CommitTime = new(c.Offset), c.Metadata, timestamppb.New(time.UnixMilli(c.CommitMs))
	}
	if lag != nil {
		out.LogStartOffset, out.HighWatermark = new(lag.LogStart), new(lag.HighWatermark)
		out.LagRecords, out.LagSeconds, out.TimeToDataLossSeconds = lag.Records, lag.Seconds, lag.LossSeconds
		if lag.Beyond > 0 {
			out.BeyondEndRecords = new(lag.Beyond)
		}
	}
	return out
}
