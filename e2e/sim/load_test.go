package sim

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/lifecycle"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

// churn makes and deletes topics. What it makes it deletes before the run ends.
func (l *load) churn(rng *rand.Rand) {
	l.wg.Go(func() {
		for i := 0; l.ctx.Err() == nil; i++ {
			t := &topic{name: fmt.Sprintf("short-%d", i), partitions: 2}
			_ = l.c.create(t, 2*time.Second, 3, map[string]string{"min.insync.replicas": "2"})
			lifecycle.Wait(l.ctx, time.Duration(rng.IntN(3000))*time.Millisecond)
			// Whether it was made is not known; that it is gone must be.
			if err := l.c.remove(t, 2*settleTime); err != nil {
				l.c.judge.complain("I19", "topic %s can't be deleted: %v", t.name, err)
			}
		}
	})
}

// alter changes the minimum of in-sync replicas of a topic, again and again.
func (l *load) alter(t *topic, rng *rand.Rand, minimums ...string) {
	l.wg.Go(func() {
		for l.ctx.Err() == nil {
			lifecycle.Wait(l.ctx, time.Duration(1000+rng.IntN(6000))*time.Millisecond)
			_ = l.c.alter(l.ctx, t, rng.IntN(len(l.c.conns)), map[string]string{"min.insync.replicas": minimums[rng.IntN(len(minimums))]})
		}
	})
}

// alter changes the configuration of a topic, through a broker.
func (c *cluster) alter(ctx context.Context, t *topic, through int, configs map[string]string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err := runnelv1.NewAdminServiceClient(c.conns[through]).AlterTopicConfigs(ctx, &runnelv1.AlterTopicConfigsRequest{
		Topic: t.name, Set: configs, Timeout: durationpb.New(100 * time.Millisecond),
	})
	return err
}

// trim deletes records of a partition that its reader has read, again and again.
func (l *load) trim(r *reader, rng *rand.Rand) {
	k := state.PartitionKey{Topic: uuid.MustParse(r.topic.id), Number: r.partition}
	l.wg.Go(func() {
		for l.ctx.Err() == nil {
			lifecycle.Wait(l.ctx, time.Duration(rng.IntN(3000))*time.Millisecond)
			before := r.at.Load() - int64(rng.IntN(20))
			if before <= 0 {
				continue
			}
			l.c.deleteRecords(l.ctx, r.topic, k, before, rng.IntN(len(l.c.conns)))
		}
	})
}

// deleteRecords deletes records of a partition, through a broker, and reports
// whether that was acknowledged.
func (c *cluster) deleteRecords(ctx context.Context, t *topic, k state.PartitionKey, before int64, through int) bool {
	c.judge.mayGo(k, before)
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	id := t.id
	resp, err := runnelv1.NewAdminServiceClient(c.conns[through]).DeleteRecords(ctx, &runnelv1.DeleteRecordsRequest{
		Topic: t.name, TopicId: &id, Timeout: durationpb.New(2 * time.Second),
		Partitions: []*runnelv1.DeleteRecordsPartition{{Partition: k.Number, BeforeOffset: before}},
	})
	if err != nil || resp.GetResults()[0].GetError() != nil {
		return false
	}
	c.judge.areGone(k, before)
	return true
}

// ask asks brokers where a partition ends, again and again. In one leader epoch
// the answers never go back.
func (l *load) ask(t *topic, n int32, rng *rand.Rand) {
	l.wg.Go(func() {
		ends := map[int64]int64{} // by leader epoch
		for l.ctx.Err() == nil {
			lifecycle.Wait(l.ctx, time.Duration(rng.IntN(200))*time.Millisecond)
			at, epoch, err := l.c.latest(l.ctx, t, n, rng.IntN(len(l.c.conns)))
			if err != nil {
				continue
			}
			if at < ends[epoch] {
				l.c.judge.complain("I9", "%s/%d ends at %d, says the leader of epoch %d, which said %d before", t.name, n, at, epoch, ends[epoch])
			}
			ends[epoch] = at
		}
	})
}

// latest asks a broker where a partition ends.
func (c *cluster) latest(ctx context.Context, t *topic, n int32, through int) (end, epoch int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	id := t.id
	resp, err := runnelv1.NewAdminServiceClient(c.conns[through]).ListOffsets(ctx, &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{{
		Topic: t.name, TopicId: &id, Partition: &n, Place: &runnelv1.OffsetQuery_Position{Position: runnelv1.Position_POSITION_LATEST},
	}}})
	if err != nil {
		return 0, 0, err
	}
	a := resp.GetOffsets()[0]
	if a.GetError() != nil {
		return 0, 0, fmt.Errorf("%w", rpcerr.ItemStatus(a.GetError()).Err())
	}
	return a.GetOffset(), a.GetLeaderEpoch(), nil
}
