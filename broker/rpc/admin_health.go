package rpc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/wire"
)

// healthWait is how long the other brokers may take to tell what is wrong with
// them.
const healthWait = 2 * time.Second

// checkSelf finds what only this broker knows: about its copies, its disk and
// its process.
func (s *AdminService) checkSelf(f *findings, img *metadata.Image) {
	s.checkReplicas(f, img.Self)
	s.checkDisk(f, img)
	s.checkDescriptors(f, img)
}

// checkOthers asks all other brokers what only they know, also those that are
// out of service, which may be because of what they know. That those do not
// answer is no news; that one answers and refuses is.
func (s *AdminService) checkOthers(ctx context.Context, f *findings, img *metadata.Image) {
	if s.deps.Router == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, healthWait)
	defer cancel()
	var (
		asking sync.WaitGroup
		others = slices.DeleteFunc(slices.Clone(img.Brokers()), func(b *metadata.Broker) bool { return b.ID == img.Self })
		told   = make([][]*runnelv1.HealthFinding, len(others))
		failed = make([]error, len(others))
	)
	for i, b := range others {
		asking.Go(func() {
			failed[i] = s.deps.Router.AskBroker(ctx, "health", b.ID, func(c replicav1.ForwardServiceClient) error {
				resp, err := c.ForwardHealth(ctx, &replicav1.ForwardHealthRequest{})
				told[i] = resp.GetFindings()
				return err
			})
		})
	}
	asking.Wait()
	for i, b := range others {
		for _, h := range told[i] {
			f.put(h)
		}
		if failed[i] != nil {
			f.unasked(b, img.Self, failed[i])
		}
	}
}

// unasked adds that a broker did not tell by what is wrong with it. One of an
// earlier version can't: that is nothing wrong, or no upgrade would look sound
// before its end. Of one out of service only a refusal is news.
func (f *findings) unasked(b *metadata.Broker, by metadata.BrokerID, err error) {
	subject := fmt.Sprintf("broker %d", b.ID)
	switch code := status.Code(err); {
	case code == codes.Unauthenticated:
		f.add(critical, "broker_refuses", subject, "it refuses broker %d: %s", by, status.Convert(err).Message())
	case b.Phase == metadata.BrokerFenced:
	case code == codes.Unimplemented:
		f.add(info, "broker_unasked", subject, "its version is too old to tell other brokers of its disk and its copies: ask it itself")
	default:
		why := wire.DialText(status.Convert(err).Message())
		if code == codes.DeadlineExceeded || code == codes.Canceled {
			why = "it may hang, or the way to it be cut"
		}
		f.add(warning, "broker_unasked", subject, "what is wrong with its disk and its copies is not known: broker %d asked it, and had no answer: %s", by, why)
	}
}

// ForwardHealth implements replicav1.ForwardServiceServer.
func (s *ForwardService) ForwardHealth(context.Context, *replicav1.ForwardHealthRequest) (*replicav1.ForwardHealthResponse, error) {
	f, img := newFindings(), s.admin.deps.Store.Load()
	s.admin.checkSelf(f, img)
	told := f.answer().GetFindings()
	for _, h := range told {
		if h.GetSubject() == "" { // so many more
			h.Subject = fmt.Sprintf("broker %d", img.Self)
		}
	}
	return &replicav1.ForwardHealthResponse{Findings: told}, nil
}

func (s *AdminService) checkReplicas(f *findings, self metadata.BrokerID) {
	lost := s.deps.Set.Lost()
	for _, subject := range slices.Sorted(maps.Keys(lost)) {
		f.add(critical, "lost_replica", subject, "the copy of broker %d can't be used: %s", self, lost[subject])
	}
	for _, p := range s.deps.Set.All() {
		if why := p.Suspicion(); why != "" {
			f.add(warning, "suspect_replica", p.String(), "the copy of broker %d may have lost records: %s", self, why)
		}
		if err := p.Damage(); err != nil {
			f.add(critical, "corrupt_partition", p.String(), "the copy of broker %d: %v", self, err)
		}
	}
	for _, q := range s.deps.Root.Quarantined() {
		f.add(warning, "quarantined_directory", q.Path, "nothing of this cluster uses it, and broker %d keeps it: remove it when you are sure that nobody needs it", self)
	}
}

func (s *AdminService) checkDisk(f *findings, img *metadata.Image) {
	subject := fmt.Sprintf("broker %d", img.Self)
	if err := s.deps.Root.Failure().Err(); err != nil {
		f.add(critical, "storage_failed", subject, "the disk failed and the broker is going down: %v", err)
	}
	switch d := s.deps.Root.Disk(); {
	case d.Hard:
		f.add(critical, "disk_full", subject, "%d of %d bytes are free, below the hard mark: nothing is appended; free space or lower the retention", d.Free, d.Total)
	case d.Soft:
		f.add(critical, "disk_nearly_full", subject, "%d of %d bytes are free, below the reserve of %d: writes of clients are refused; free space or lower the retention",
			d.Free, d.Total, d.ReserveBytes)
	}
}

func (s *AdminService) checkDescriptors(f *findings, img *metadata.Image) {
	if s.deps.Descriptors == nil {
		return
	}
	open, limit, ok := s.deps.Descriptors()
	if ok && open > limit-limit/5 {
		f.add(critical, "few_descriptors", fmt.Sprintf("broker %d", img.Self),
			"%d of %d file descriptors are in use: raise the limit (ulimit -n), or close connections", open, limit)
	} else if ok && limit < wantDescriptors {
		f.add(info, "low_descriptor_limit", fmt.Sprintf("broker %d", img.Self),
			"the process may open %d files: %d or more is right for production (ulimit -n)", limit, wantDescriptors)
	}
}

// wantDescriptors is the limit below which a broker complains.
const wantDescriptors = 65536
