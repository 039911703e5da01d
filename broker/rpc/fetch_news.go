package rpc

import (
	"context"
	"errors"
	"slices"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/partition"
)

// fetchNews are partitions that another broker wants to read here, and that
// this one does not know of as it does yet, or is about to lead.
type fetchNews struct {
	waiting []awaitedFetch
	at      time.Time // when they are looked at; zero: never
	now     time.Time // the limit of the one that is looked at; zero: none is
}

// An awaitedFetch is one of them.
type awaitedFetch struct {
	want  *runnelv1.FetchPartition
	until time.Time
}

// remove forgets what ref names.
func (n *fetchNews) remove(ref *runnelv1.PartitionRef) {
	n.waiting = slices.DeleteFunc(n.waiting, func(a awaitedFetch) bool {
		return a.want.GetTopic() == ref.GetTopic() && (ref.Partition == nil || a.want.GetPartition() == ref.GetPartition())
	})
}

// awaitNews lets want wait a moment, instead of refusing it for err, when its
// sender may have newer metadata. Clients are not waited for: they name no
// epoch, or may ask another broker.
func (f *fetcher) awaitNews(want *runnelv1.FetchPartition, err error) bool {
	if !f.forwarded || !errors.Is(err, partition.ErrUnknownEpoch) && !errors.Is(err, partition.ErrNoLeader) {
		return false
	}
	now := time.Now()
	until := f.news.now
	if until.IsZero() {
		until = now.Add(newsWait)
	}
	if !now.Before(until) {
		return false
	}
	f.news.waiting = append(f.news.waiting, awaitedFetch{want, until})
	f.news.at = now.Add(newsEvery)
	return true
}

// lookAgain tries those again that wait for news.
func (f *fetcher) lookAgain(ctx context.Context, now time.Time) {
	if f.news.at.IsZero() || now.Before(f.news.at) {
		return
	}
	waiting := f.news.waiting
	f.news.waiting, f.news.at = nil, time.Time{}
	for _, a := range waiting {
		f.news.now = a.until
		f.subscribe(ctx, a.want)
	}
	f.news.now = time.Time{}
}
