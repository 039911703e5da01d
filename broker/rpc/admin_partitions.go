package rpc

import (
	"context"
	"encoding/base64"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/grpc"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// placeVersion begins the page tokens of ListPartitions: the last partition's
// topic and number of the page before.
const placeVersion = "p"

// A place is a partition in the order of a listing.
type place struct {
	topic     string
	partition int32
}

func (p place) token() string {
	return base64.RawURLEncoding.EncodeToString(fmt.Appendf(nil, "%s%d/%s", placeVersion, p.partition, p.topic))
}

// afterPlace returns the place a page token stands for; the zero place comes
// before all.
func afterPlace(token string) (place, error) {
	if token == "" {
		return place{partition: -1}, nil
	}
	b, err := base64.RawURLEncoding.DecodeString(token)
	rest, ok := strings.CutPrefix(string(b), placeVersion)
	number, topic, cut := strings.Cut(rest, "/")
	n, nerr := strconv.ParseInt(number, 10, 32)
	if err != nil || !ok || !cut || nerr != nil {
		return place{}, invalid("page_token %.100q was not made by this call: take it from the answer before", token)
	}
	return place{topic, int32(n)}, nil
}

// ListPartitions implements runnelv1.AdminServiceServer. It shows the metadata
// as this broker knows them.
func (s *AdminService) ListPartitions(ctx context.Context, req *runnelv1.ListPartitionsRequest) (*runnelv1.ListPartitionsResponse, error) {
	size := int32(defaultListPage)
	if req.PageSize != nil {
		if size = min(req.GetPageSize(), maxListPage); size < 1 {
			return nil, invalid("page_size %d: want 1 to %d", req.GetPageSize(), maxListPage)
		}
	}
	for _, f := range req.GetFilters() {
		if _, known := runnelv1.PartitionFilter_name[int32(f)]; !known || f == runnelv1.PartitionFilter_PARTITION_FILTER_UNSPECIFIED {
			return nil, invalid("filter %d is not one of this version's", f)
		}
	}
	last, err := afterPlace(req.GetPageToken())
	if err != nil {
		return nil, err
	}
	img, err := s.deps.Finder.Image(ctx)
	if err != nil {
		return nil, err
	}
	topics := img.Topics()
	if req.GetTopic() != "" {
		t, err := s.deps.Finder.Find(ctx, req.GetTopic(), "")
		if err != nil {
			return nil, err
		}
		topics = []*metadata.Topic{t}
	}
	page := listing{resp: &runnelv1.ListPartitionsResponse{}, size: int(size)}
	for _, t := range topics {
		if t.Name < last.topic {
			continue
		}
		first := 0
		if t.Name == last.topic {
			first = int(last.partition) + 1
		}
		for n := first; n < len(t.Partitions); n++ {
			if matches(&t.Partitions[n], req.GetFilters()) && !page.add(t, int32(n)) {
				return page.resp, nil
			}
		}
	}
	return page.resp, nil
}

// A listing is a page that is being filled.
type listing struct {
	resp  *runnelv1.ListPartitionsResponse
	size  int
	bytes int
	last  place
}

// add adds a partition and reports whether it had room; otherwise the page is
// closed.
func (l *listing) add(t *metadata.Topic, n int32) bool {
	p := listPartition(t, n)
	l.bytes += fieldSize(p)
	if len(l.resp.GetPartitions()) == l.size || (l.bytes > maxPage && len(l.resp.GetPartitions()) > 0) {
		l.resp.NextPageToken = l.last.token()
		return false
	}
	l.resp.Partitions = append(l.resp.Partitions, p)
	l.last = place{t.Name, n}
	return true
}

func listPartition(t *metadata.Topic, n int32) *runnelv1.PartitionListing {
	p := &t.Partitions[n]
	out := &runnelv1.PartitionListing{
		Topic: t.Name, TopicId: t.ID.String(), Partition: new(n), LeaderEpoch: new(int64(p.LeaderEpoch)),
		Replicas: ids(p.Replicas), Isr: ids(p.ISR), Elr: ids(p.ELR), LastKnown: ids(p.LastKnown), MinIsr: new(int32(p.MinISR)), //nolint:gosec // small
	}
	if p.Leader != metadata.NoBroker {
		out.Leader = new(int32(p.Leader))
	}
	return out
}

// matches reports whether any filter holds for a partition, or there is none.
func matches(p *metadata.Partition, filters []runnelv1.PartitionFilter) bool {
	holds := func(f runnelv1.PartitionFilter) bool {
		switch f {
		case runnelv1.PartitionFilter_PARTITION_FILTER_OFFLINE:
			return p.Leader == metadata.NoBroker
		case runnelv1.PartitionFilter_PARTITION_FILTER_UNDER_MIN_ISR:
			return len(p.ISR) < p.MinISR || p.Leader == metadata.NoBroker
		case runnelv1.PartitionFilter_PARTITION_FILTER_UNDER_REPLICATED:
			return len(p.ISR) < len(p.Replicas)
		case runnelv1.PartitionFilter_PARTITION_FILTER_NOT_PREFERRED:
			return len(p.Replicas) > 0 && p.Leader != p.Replicas[0]
		case runnelv1.PartitionFilter_PARTITION_FILTER_RECOVERY_PENDING:
			return p.Leader == metadata.NoBroker && len(p.ISR)+len(p.ELR) == 0
		default:
			return false
		}
	}
	return len(filters) == 0 || slices.ContainsFunc(filters, holds)
}

// RecoverPartition implements runnelv1.AdminServiceServer.
func (s *AdminService) RecoverPartition(ctx context.Context, req *runnelv1.RecoverPartitionRequest) (*runnelv1.RecoverPartitionResponse, error) {
	return change(ctx, s, req.GetTimeout(),
		func(ctx context.Context, c controllerv1.ControllerServiceClient, opt grpc.CallOption) (*runnelv1.RecoverPartitionResponse, error) {
			resp, err := c.RecoverPartition(ctx, &controllerv1.RecoverPartitionRequest{Request: req, Principal: rpcserver.Principal(ctx)}, opt)
			return resp.GetResponse(), err
		})
}

// FenceBroker implements runnelv1.AdminServiceServer.
func (s *AdminService) FenceBroker(ctx context.Context, req *runnelv1.FenceBrokerRequest) (*runnelv1.FenceBrokerResponse, error) {
	return change(ctx, s, req.GetTimeout(),
		func(ctx context.Context, c controllerv1.ControllerServiceClient, opt grpc.CallOption) (*runnelv1.FenceBrokerResponse, error) {
			resp, err := c.FenceBroker(ctx, &controllerv1.FenceBrokerRequest{Request: req, Principal: rpcserver.Principal(ctx)}, opt)
			return resp.GetResponse(), err
		})
}
