package rpc

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/types/known/durationpb"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/broker/group"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// GroupDeps are what the services of consumer groups stand on.
type GroupDeps struct {
	Store       *metadata.Store
	Coordinator *coordinator.Coordinator
	Finder      metadata.Finder
	Router      *router.Router
	// Ensure returns the topic that holds the groups, and has it made when there
	// is none.
	Ensure func(ctx context.Context) (*metadata.Topic, error)
	Logs   *LogService
	Admin  *AdminService
}

// A GroupService serves runnel.v1.GroupService, and the commits of LogService.
type GroupService struct {
	runnelv1.UnimplementedGroupServiceServer

	deps   GroupDeps
	errors errorTable
	ends   endBook
}

// NewGroupService returns a service that starts nothing until it is called.
func NewGroupService(d GroupDeps) *GroupService {
	s := &GroupService{deps: d, errors: d.Admin.errors}
	d.Logs.groups = s
	return s
}

// Times of calls about groups.
const (
	groupTimeout = 10 * time.Second // of questions
	resetTimeout = 90 * time.Second // when a request names none
	mostPerCall  = 10000            // partitions in one request
)

// place returns the partition that keeps a group. With create the topic is made
// if there is none; else that means ErrNotFound.
func (s *GroupService) place(ctx context.Context, id string, create bool) (router.Part, error) {
	t, ok := s.deps.Store.Load().Topic(coordinator.Topic)
	var err error
	switch {
	case ok:
	case create:
		if t, err = s.deps.Ensure(ctx); err != nil {
			return router.Part{}, s.unmade(ctx, err)
		}
	default:
		t, err = s.deps.Finder.Find(ctx, coordinator.Topic, "")
		if errors.Is(err, metadata.ErrTopicNotFound) {
			return router.Part{}, group.NotFound(id)
		}
		if err != nil {
			return router.Part{}, err
		}
	}
	return router.Part{Topic: t.ID, Number: coordinator.Number(id, len(t.Partitions))}, nil
}

// unmade says why the topic of the groups is not there.
func (s *GroupService) unmade(ctx context.Context, err error) error {
	if errors.Is(err, metadata.ErrNoController) || ctx.Err() != nil {
		return fmt.Errorf("%w: the topic that keeps the groups is not there yet, and no controller makes it at present: try again", group.ErrLoading)
	}
	return s.errors.upstream(err)
}

// A groupCall is one request about one partition of the groups' topic.
type groupCall struct {
	method string
	// once: see router.Question.
	changes, once bool
}

// call takes a request to the coordinator, and waits for one until ctx is done.
func (s *GroupService) call(ctx context.Context, c groupCall, part router.Part, req *replicav1.ForwardGroupRequest) (*replicav1.ForwardGroupResponse, error) {
	req.Partition, req.Principal = part.Number, rpcserver.Principal(ctx)
	var resp *replicav1.ForwardGroupResponse
	q := router.Question{
		Method: "group", Parts: []router.Part{part}, Changes: c.changes, Once: c.once,
		Here: func(ctx context.Context, _ int) (err error) {
			resp, err = s.serve(ctx, req)
			return err
		},
		There: func(ctx context.Context, client replicav1.ForwardServiceClient, _ []int) ([]*runnelv1.ItemError, error) {
			var to peer.Peer
			got, err := client.ForwardGroup(ctx, req, grpc.Peer(&to))
			switch {
			case err != nil && to.Addr == nil:
				return nil, router.ErrUnsent
			case err != nil:
				return nil, err
			}
			resp = got
			return []*runnelv1.ItemError{got.GetError()}, nil
		},
	}
	if err := s.deps.Router.Ask(ctx, q)[0]; err != nil {
		return nil, err
	}
	return resp, nil
}

// ask finds the coordinator of a group and calls it.
func (s *GroupService) ask(ctx context.Context, c groupCall, id string, req *replicav1.ForwardGroupRequest) (*replicav1.ForwardGroupResponse, error) {
	if err := group.CheckID(id); err != nil {
		return nil, err
	}
	part, err := s.place(ctx, id, c.changes)
	if err != nil {
		return nil, err
	}
	return s.call(ctx, c, part, req)
}

// DescribeGroup implements runnelv1.GroupServiceServer.
func (s *GroupService) DescribeGroup(ctx context.Context, req *runnelv1.DescribeGroupRequest) (*runnelv1.DescribeGroupResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	resp, err := s.ask(ctx, groupCall{method: "describe"}, req.GetGroup(), &replicav1.ForwardGroupRequest{
		Request: &replicav1.ForwardGroupRequest_Describe{Describe: req},
	})
	return resp.GetDescribe(), err
}

// DeleteGroup implements runnelv1.GroupServiceServer.
func (s *GroupService) DeleteGroup(ctx context.Context, req *runnelv1.DeleteGroupRequest) (*runnelv1.DeleteGroupResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	if err := group.CheckID(req.GetGroup()); err != nil {
		return nil, err
	}
	part, err := s.place(ctx, req.GetGroup(), false)
	if err != nil {
		return nil, err
	}
	resp, err := s.call(ctx, groupCall{method: "delete", changes: true, once: true}, part, &replicav1.ForwardGroupRequest{
		Request: &replicav1.ForwardGroupRequest_Delete{Delete: req},
	})
	return resp.GetDelete(), err
}

// FetchOffsets implements runnelv1.GroupServiceServer.
func (s *GroupService) FetchOffsets(ctx context.Context, req *runnelv1.FetchOffsetsRequest) (*runnelv1.FetchOffsetsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, groupTimeout)
	defer cancel()
	asked := &runnelv1.FetchOffsetsRequest{Group: req.GetGroup(), PageToken: req.GetPageToken()}
	failed := map[int]*runnelv1.ItemError{}
	partitions := 0
	for i, want := range req.GetTopics() {
		t, err := s.deps.Finder.Find(ctx, want.GetTopic(), want.GetTopicId())
		if err != nil {
			failed[i] = s.errors.item(err)
			continue
		}
		resolved := &runnelv1.GroupTopic{Topic: t.Name, TopicId: new(t.ID.String()), Partitions: want.GetPartitions()}
		if len(resolved.GetPartitions()) == 0 {
			for n := range t.Partitions {
				resolved.Partitions = append(resolved.Partitions, int32(n)) //nolint:gosec // bounded by the image
			}
		}
		partitions += len(resolved.GetPartitions())
		asked.Topics = append(asked.Topics, resolved)
	}
	if partitions > mostPerCall {
		return nil, invalid("the request asks for %d partitions: want at most %d at a time", partitions, mostPerCall)
	}
	out := &runnelv1.FetchOffsetsResponse{}
	if len(asked.GetTopics()) > 0 || len(req.GetTopics()) == 0 {
		resp, err := s.ask(ctx, groupCall{method: "fetch_offsets"}, req.GetGroup(), &replicav1.ForwardGroupRequest{
			Request: &replicav1.ForwardGroupRequest_FetchOffsets{FetchOffsets: asked},
		})
		if err != nil {
			return nil, err
		}
		out = resp.GetFetchOffsets()
	}
	for i, want := range req.GetTopics() {
		if e := failed[i]; e != nil {
			out.Offsets = append(out.Offsets, &runnelv1.CommittedOffset{Topic: want.GetTopic(), Error: e})
		}
	}
	return out, nil
}

// ListGroups implements runnelv1.GroupServiceServer.
func (s *GroupService) ListGroups(ctx context.Context, req *runnelv1.ListGroupsRequest) (*runnelv1.ListGroupsResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	size := int32(1000)
	if req.PageSize != nil {
		size = req.GetPageSize()
	}
	if size < 1 || size > 10000 {
		return nil, invalid("page_size %d: want 1 to 10000", size)
	}
	for _, st := range req.GetStates() {
		if _, known := runnelv1.GroupState_name[int32(st)]; !known || st == 0 {
			return nil, invalid("state %d is unknown", st)
		}
	}
	if _, err := s.deps.Finder.Find(ctx, coordinator.Topic, ""); errors.Is(err, metadata.ErrTopicNotFound) {
		return &runnelv1.ListGroupsResponse{}, nil
	} else if err != nil {
		return nil, err
	}
	t, _ := s.deps.Store.Load().Topic(coordinator.Topic)
	if t == nil {
		return &runnelv1.ListGroupsResponse{}, nil
	}
	asked := &runnelv1.ListGroupsRequest{Prefix: req.GetPrefix(), States: req.GetStates(), PageSize: &size, PageToken: req.GetPageToken()}
	// mu guards found: brokers answer at the same time.
	var mu sync.Mutex
	var found []*runnelv1.GroupListing
	more := false
	add := func(resp *runnelv1.ListGroupsResponse) {
		mu.Lock()
		defer mu.Unlock()
		found = append(found, resp.GetGroups()...)
		more = more || resp.GetNextPageToken() != ""
	}
	list := func(i int) *replicav1.ForwardGroupRequest {
		return &replicav1.ForwardGroupRequest{
			Partition: int32(i), Principal: rpcserver.Principal(ctx), Request: &replicav1.ForwardGroupRequest_List{List: asked}, //nolint:gosec // bounded by the image
		}
	}
	q := router.Question{Method: "group", Here: func(ctx context.Context, i int) error {
		resp, err := s.serve(ctx, list(i))
		if err == nil {
			add(resp.GetList())
		}
		return err
	}, There: func(ctx context.Context, c replicav1.ForwardServiceClient, at []int) ([]*runnelv1.ItemError, error) {
		var items []*runnelv1.ItemError
		for _, i := range at {
			resp, err := c.ForwardGroup(ctx, list(i))
			if err != nil {
				return nil, err
			}
			if resp.GetError() == nil {
				add(resp.GetList())
			}
			items = append(items, resp.GetError())
		}
		return items, nil
	}}
	for n := range t.Partitions {
		q.Parts = append(q.Parts, router.Part{Topic: t.ID, Number: int32(n)}) //nolint:gosec // bounded by the image
	}
	out := &runnelv1.ListGroupsResponse{}
	for _, err := range s.deps.Router.Ask(ctx, q) {
		if err != nil {
			out.Errors = append(out.Errors, s.errors.item(err))
		}
	}
	return pageOfGroups(out, found, int(size), more), nil
}

// within bounds a call by the time its request names.
func within(ctx context.Context, timeout *durationpb.Duration, def time.Duration) (context.Context, context.CancelFunc, error) {
	d := def
	if timeout != nil {
		d = timeout.AsDuration()
		if timeout.CheckValid() != nil || d <= 0 || d > longestProduceTimeout {
			return nil, nil, invalid("timeout %s: want a duration above 0 s, at most %s", d, longestProduceTimeout)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, d)
	return ctx, cancel, nil
}

// ResetOffsets implements runnelv1.GroupServiceServer.
func (s *GroupService) ResetOffsets(ctx context.Context, req *runnelv1.ResetOffsetsRequest) (*runnelv1.ResetOffsetsResponse, error) {
	ctx, cancel, err := within(ctx, req.GetTimeout(), resetTimeout)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if err := group.CheckID(req.GetGroup()); err != nil {
		return nil, err
	}
	plan, err := s.resolveResets(ctx, req.GetResets())
	if err != nil {
		return nil, err
	}
	out := &runnelv1.ResetOffsetsResponse{Results: plan.results}
	if plan.failed {
		return out, nil
	}
	part, err := s.place(ctx, req.GetGroup(), !req.GetDryRun())
	if err != nil {
		return nil, err
	}
	reset := &replicav1.GroupReset{Group: req.GetGroup(), Targets: plan.targets, DryRun: req.GetDryRun(), Timeout: timeLeft(ctx)}
	// Whether it is made when the time is over, the coordinator decides.
	wait, stop := context.WithTimeout(context.WithoutCancel(ctx), reset.GetTimeout().AsDuration()+resetSlack)
	defer stop()
	resp, err := s.call(wait, groupCall{method: "reset", changes: !req.GetDryRun(), once: true}, part, &replicav1.ForwardGroupRequest{
		Request: &replicav1.ForwardGroupRequest_ResetOffsets{ResetOffsets: reset},
	})
	if err != nil {
		return nil, err
	}
	for i, r := range resp.GetResetOffsets().GetResults() {
		if i < len(out.GetResults()) {
			out.Results[i].OldOffset, out.Results[i].NewOffset, out.Results[i].Error = r.OldOffset, r.NewOffset, r.GetError()
		}
	}
	out.Applied = resp.GetResetOffsets().GetApplied()
	return out, nil
}

// resetSlack is what the coordinator gets beyond the time of a reset, to say what
// became of it.
const resetSlack = 5 * time.Second

// topicID reads how another broker names a topic.
func topicID(id string) (uuid.UUID, error) {
	parsed, err := uuid.Parse(id)
	if err != nil {
		return parsed, invalid("topic_id %.40q is none: brokers name topics by id", id)
	}
	return parsed, nil
}
