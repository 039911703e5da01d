package client

import (
	"context"
	"fmt"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A Recovery is what RecoverPartition found and did.
type Recovery struct {
	// Copies are in order of preference.
	Copies []PartitionCopy
	// Leader is the broker that was, or with [ValidateOnly] would be, elected;
	// -1 when none can be.
	Leader int32
	// LeaderEpoch is the new leader's; -1 with ValidateOnly.
	LeaderEpoch int64
	// Applied is false when some broker had not heard of it yet when the wait
	// ended.
	Applied bool
}

// A PartitionCopy is a broker's copy of a partition, as its last recovery found
// it when its broker came to the present controller.
type PartitionCopy struct {
	BrokerID int32
	// State is its broker's, as in a [BrokerDescription]. Only an active
	// broker's copy can be elected.
	State string
	// Silent is true when the broker is active as the controllers last knew, and
	// did not answer just now: it may have died, which they see within seconds.
	// Until then it is elected only when it is named, and so is a copy with less.
	Silent bool
	// Role is what the partition's record says of it: "in sync", "eligible"
	// (complete, yet not in sync), "last known" (was in sync, may have lost
	// records) or "behind".
	Role string
	// ReportedAt is when the values below were reported. When it is zero they
	// were not: they are -1 and false.
	ReportedAt time.Time
	// Intact is true when nothing that it acknowledged can be missing.
	Intact bool
	// LastEpoch is the leader epoch of its last record.
	LastEpoch int64
	LogEnd    int64
	// HighWatermark is the first offset that it did not know to be committed.
	HighWatermark int64
	// MissingCommitted counts records that were certainly committed and that it
	// lacks: at least as many are lost when it is elected.
	MissingCommitted int64
	// MissingRecords counts those that the longest copy has beyond it, committed
	// or not.
	MissingRecords int64
}

// RecoverPartition elects a leader of a partition that has none, even if
// acknowledged records are lost for good: broker from's copy, or, when from is
// -1, the one with the most recent records. With [ValidateOnly] it tells what
// there is and what would be elected; there may be nothing to elect then.
func (a *Admin) RecoverPartition(ctx context.Context, topic string, partition, from int32, opts ...AdminOption) (Recovery, error) {
	o := newAdminOptions(opts)
	req := &runnelv1.RecoverPartitionRequest{Topic: topic, Partition: &partition, DryRun: o.validateOnly, Timeout: o.wait()}
	if from >= 0 {
		req.FromBrokerId = &from
	}
	resp, err := a.api.RecoverPartition(ctx, req)
	if err != nil {
		return Recovery{}, o.failed(fmt.Sprintf("recover partition %s/%d", topic, partition), err)
	}
	r := Recovery{Leader: -1, LeaderEpoch: -1, Applied: resp.GetApplied()}
	take(&r.Leader, resp.Leader)
	take(&r.LeaderEpoch, resp.LeaderEpoch)
	for _, c := range resp.GetCopies() {
		r.Copies = append(r.Copies, partitionCopy(c))
	}
	return r, nil
}

func partitionCopy(c *runnelv1.PartitionCopy) PartitionCopy {
	p := PartitionCopy{
		BrokerID: c.GetBrokerId(), State: brokerState(c.GetState()), Role: copyRole(c.GetRole()), Intact: c.GetIntact(), Silent: c.GetSilent(),
		LastEpoch: -1, LogEnd: -1, HighWatermark: -1, MissingCommitted: -1, MissingRecords: -1,
	}
	if c.GetReportedAt() != nil {
		p.ReportedAt = c.GetReportedAt().AsTime()
	}
	take(&p.LastEpoch, c.LastEpoch)
	take(&p.LogEnd, c.LogEndOffset)
	take(&p.HighWatermark, c.HighWatermark)
	take(&p.MissingCommitted, c.MissingCommitted)
	take(&p.MissingRecords, c.MissingRecords)
	return p
}

func copyRole(r runnelv1.CopyRole) string {
	switch r {
	case runnelv1.CopyRole_COPY_ROLE_IN_SYNC:
		return "in sync"
	case runnelv1.CopyRole_COPY_ROLE_ELIGIBLE:
		return "eligible"
	case runnelv1.CopyRole_COPY_ROLE_LAST_KNOWN:
		return "last known"
	case runnelv1.CopyRole_COPY_ROLE_BEHIND:
		return "behind"
	default:
		return "unknown"
	}
}

// FenceBroker takes a broker out of service until its process is started anew.
// It returns the registration that is out of service for good, and whether all
// other brokers know of it.
func (a *Admin) FenceBroker(ctx context.Context, id int32, opts ...AdminOption) (epoch int64, applied bool, err error) {
	o := newAdminOptions(opts)
	if o.validateOnly {
		return 0, false, localError(runnelv1.ErrorReason_ERROR_REASON_INVALID_REQUEST, "fencing a broker cannot be tried: leave ValidateOnly out")
	}
	resp, err := a.api.FenceBroker(ctx, &runnelv1.FenceBrokerRequest{BrokerId: &id, Timeout: o.wait()})
	if err != nil {
		return 0, false, o.failed(fmt.Sprintf("fence broker %d", id), err)
	}
	return resp.GetBrokerEpoch(), resp.GetApplied(), nil
}
