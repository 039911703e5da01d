package client

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A GroupState is what a group is doing.
type GroupState string

// The states.
const (
	GroupEmpty       GroupState = "empty"       // it has no members
	GroupRebalancing GroupState = "rebalancing" // partitions are changing hands; the others go on
	GroupStable      GroupState = "stable"      // every member has what it is to have
)

func groupState(s runnelv1.GroupState) GroupState {
	switch s {
	case runnelv1.GroupState_GROUP_STATE_EMPTY:
		return GroupEmpty
	case runnelv1.GroupState_GROUP_STATE_REBALANCING:
		return GroupRebalancing
	case runnelv1.GroupState_GROUP_STATE_STABLE:
		return GroupStable
	default:
		return ""
	}
}

// A GroupListing is one group of a list.
type GroupListing struct {
	Group       string
	State       GroupState
	Members     int32
	Coordinator int32 // broker id; -1: not known
}

// ListGroups returns the groups whose ids begin with prefix, by id. With an error it
// returns those it has heard of: a coordinator that cannot be asked hides its groups.
func (a *Admin) ListGroups(ctx context.Context, prefix string) ([]GroupListing, error) {
	req := &runnelv1.ListGroupsRequest{Prefix: prefix}
	var (
		all  []GroupListing
		errs []error
	)
	for {
		resp, err := a.groups.ListGroups(ctx, req)
		if err != nil {
			return all, callError("list groups", err)
		}
		for _, g := range resp.GetGroups() {
			l := GroupListing{Group: g.GetGroup(), State: groupState(g.GetState()), Members: g.GetMembers(), Coordinator: -1}
			take(&l.Coordinator, g.Coordinator)
			all = append(all, l)
		}
		for _, it := range resp.GetErrors() {
			errs = append(errs, itemError(it))
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return all, errors.Join(errs...)
		}
	}
}

// A GroupDescription is a group, its members, and how far it has come.
type GroupDescription struct {
	Group       string
	State       GroupState
	Epoch       int64
	Assignor    string // such as "sticky"
	Coordinator int32  // broker id
	Members     []GroupMember
	Partitions  []GroupPartition
	// LagRecords is how far it is behind in all, LagSeconds in its worst partition,
	// and TimeToDataLoss how long until unread records are deleted, +Inf for never;
	// negative: not known.
	LagRecords                     int64
	LagSeconds, TimeToDataLossSecs float64
	// Uncommitted is how many partitions it reads and has not committed anything of, and
	// UncommittedRecords how many records they hold, where that is known. They are in no
	// lag: whether their readers began with the first record or the next one, only those
	// know.
	Uncommitted        int
	UncommittedRecords int64
	// BeyondEnd is in how many partitions the committed offset lies beyond the end.
	// They are in no lag either.
	BeyondEnd int
	// ExpireTime is when a group without members is forgotten; zero: it is not.
	ExpireTime time.Time
}

// A GroupMember is one member of a group.
type GroupMember struct {
	MemberID, InstanceID, ClientName, ClientAddress, Rack string
	Epoch                                                 int64
	Topics                                                []string
	TopicPattern                                          string
	Owned, Target                                         int32 // partitions
	Connected                                             bool
	SilentFor, SessionTimeout, RebalanceTimeout           time.Duration
}

// A GroupPartition is one partition as a group sees it. Numbers are -1 where they
// are not known.
type GroupPartition struct {
	Topic, TopicID string
	Partition      int32
	MemberID       string // its owner; "" for none
	NextMemberID   string // who is to own it next, when that is another
	// Committed is the next offset to read; -1: nothing was committed yet, and so there
	// is no lag.
	Committed                           int64
	CommitTime                          time.Time
	Metadata                            string
	LogStart, HighWatermark, LagRecords int64
	LagSeconds, TimeToDataLossSecs      float64
	// BeyondEnd is by how many records the committed offset lies beyond the end; 0: it
	// does not. The log has lost records that the group had read, in an election that
	// could not keep them, or the offset was committed for records that are not written
	// yet. What is written there next may be skipped: see [Admin.ResetOffsets].
	BeyondEnd int64
}

// DescribeGroup describes a group.
func (a *Admin) DescribeGroup(ctx context.Context, group string) (GroupDescription, error) {
	req := &runnelv1.DescribeGroupRequest{Group: group}
	var d GroupDescription
	for first := true; ; first = false {
		resp, err := a.groups.DescribeGroup(ctx, req)
		if err != nil {
			return d, callError("describe group "+group, err)
		}
		if first {
			d = groupDescription(resp)
		}
		for _, p := range resp.GetPartitions() {
			one := groupPartition(p)
			if d.Partitions = append(d.Partitions, one); one.Committed < 0 {
				d.Uncommitted++
				d.UncommittedRecords += max(one.HighWatermark-one.LogStart, 0)
			}
			if one.BeyondEnd > 0 {
				d.BeyondEnd++
			}
		}
		if req.PageToken = resp.GetNextPageToken(); req.GetPageToken() == "" {
			return d, nil
		}
	}
}

func groupDescription(resp *runnelv1.DescribeGroupResponse) GroupDescription {
	d := GroupDescription{
		Group: resp.GetGroup(), State: groupState(resp.GetState()), Epoch: resp.GetGroupEpoch(), Assignor: assignorName(resp.GetAssignor()),
		Coordinator: -1, LagRecords: -1, LagSeconds: -1, TimeToDataLossSecs: -1,
	}
	take(&d.Coordinator, resp.Coordinator)
	take(&d.LagRecords, resp.LagRecords)
	take(&d.LagSeconds, resp.LagSeconds)
	take(&d.TimeToDataLossSecs, resp.TimeToDataLossSeconds)
	if resp.GetExpireTime() != nil {
		d.ExpireTime = resp.GetExpireTime().AsTime()
	}
	for _, m := range resp.GetMembers() {
		d.Members = append(d.Members, GroupMember{
			MemberID: m.GetMemberId(), InstanceID: m.GetInstanceId(), ClientName: m.GetClientName(), ClientAddress: m.GetClientAddress(),
			Rack: m.GetRack(), Epoch: m.GetMemberEpoch(), Topics: m.GetTopics(), TopicPattern: m.GetTopicPattern(),
			Owned: m.GetOwnedPartitions(), Target: m.GetTargetPartitions(), Connected: m.GetConnected(), SilentFor: m.GetSilentFor().AsDuration(),
			SessionTimeout: m.GetSessionTimeout().AsDuration(), RebalanceTimeout: m.GetRebalanceTimeout().AsDuration(),
		})
	}
	return d
}

func assignorName(a runnelv1.Assignor) string {
	switch a {
	case runnelv1.Assignor_ASSIGNOR_RANGE:
		return "range"
	case runnelv1.Assignor_ASSIGNOR_ROUND_ROBIN:
		return "round-robin"
	case runnelv1.Assignor_ASSIGNOR_STICKY_RACK_AWARE:
		return "sticky-rack-aware"
	default:
		return "sticky"
	}
}

func groupPartition(p *runnelv1.GroupPartition) GroupPartition {
	g := GroupPartition{
		Topic: p.GetTopic(), TopicID: p.GetTopicId(), Partition: p.GetPartition(), MemberID: p.GetMemberId(), NextMemberID: p.GetNextMemberId(),
		Committed: -1, Metadata: p.GetMetadata(), LogStart: -1, HighWatermark: -1, LagRecords: -1, LagSeconds: -1, TimeToDataLossSecs: -1,
		BeyondEnd: p.GetBeyondEndRecords(),
	}
	take(&g.Committed, p.CommittedOffset)
	take(&g.LogStart, p.LogStartOffset)
	take(&g.HighWatermark, p.HighWatermark)
	take(&g.LagRecords, p.LagRecords)
	take(&g.LagSeconds, p.LagSeconds)
	take(&g.TimeToDataLossSecs, p.TimeToDataLossSeconds)
	if p.GetCommitTime() != nil {
		g.CommitTime = p.GetCommitTime().AsTime()
	}
	return g
}

// An OffsetReset says where a group is to go on.
type OffsetReset struct {
	Topic string
	// Partition is its number; [AnyPartition] stands for all.
	Partition int32
	// To is the place: [Earliest], [Latest], [AtOffset] or [AtTime].
	To Start
	// Shift goes so many records on from what is committed, back when negative; 0: To
	// says where.
	Shift int64
}

// An OffsetResetResult is what became of one partition.
type OffsetResetResult struct {
	Topic     string
	TopicID   string
	Partition int32
	// Old and New are what was committed before and is now, or would be; -1: nothing.
	Old, New int64
	Err      error
}

// ResetOffsets moves a group, all that is named or nothing, also while it has
// members: those have to give the partitions up first, within the members' time or 90
// s. A group that does not exist is made. With [ValidateOnly] it says what it would
// do. applied is false when any result has an error: nothing was changed then.
func (a *Admin) ResetOffsets(ctx context.Context, group string, resets []OffsetReset, opts ...AdminOption) (results []OffsetResetResult, applied bool, err error) {
	o := newAdminOptions(opts)
	req := &runnelv1.ResetOffsetsRequest{Group: group, DryRun: o.validateOnly, Timeout: o.wait()}
	for _, r := range resets {
		pr, err := r.proto()
		if err != nil {
			return nil, false, err
		}
		req.Resets = append(req.Resets, pr)
	}
	resp, err := a.groups.ResetOffsets(ctx, req)
	if err != nil {
		return nil, false, o.failed("reset offsets of group "+group, err)
	}
	for _, r := range resp.GetResults() {
		one := OffsetResetResult{Topic: r.GetTopic(), TopicID: r.GetTopicId(), Partition: r.GetPartition(), Old: -1, New: -1, Err: itemError(r.GetError())}
		take(&one.Old, r.OldOffset)
		take(&one.New, r.NewOffset)
		results = append(results, one)
	}
	return results, resp.GetApplied(), nil
}

func (r *OffsetReset) proto() (*runnelv1.OffsetReset, error) {
	pr := &runnelv1.OffsetReset{Topic: r.Topic}
	if r.Partition != AnyPartition {
		pr.Partition = &r.Partition
	}
	if r.Shift != 0 {
		pr.To = &runnelv1.OffsetReset_Shift{Shift: r.Shift}
		return pr, nil
	}
	if err := r.To.check(); err != nil {
		return nil, err
	}
	switch r.To.kind {
	case startEarliest:
		pr.To = &runnelv1.OffsetReset_Position{Position: runnelv1.Position_POSITION_EARLIEST}
	case startLatest:
		pr.To = &runnelv1.OffsetReset_Position{Position: runnelv1.Position_POSITION_LATEST}
	case startOffset:
		pr.To = &runnelv1.OffsetReset_Offset{Offset: r.To.n}
	case startTime:
		pr.To = &runnelv1.OffsetReset_Timestamp{Timestamp: timestamppb.New(r.To.at)}
	default:
		return nil, localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "a group is moved to an offset, a time, Earliest or Latest, or by Shift; not to BeforeEnd")
	}
	return pr, nil
}

// DeleteGroup deletes a group that has no members, with all that it has committed.
func (a *Admin) DeleteGroup(ctx context.Context, group string) error {
	if _, err := a.groups.DeleteGroup(ctx, &runnelv1.DeleteGroupRequest{Group: group}); err != nil {
		return changeError("delete group "+group, err)
	}
	return nil
}
