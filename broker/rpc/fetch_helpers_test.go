package rpc

import (
	"errors"
	"io"
	"testing"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

const (
	records = runnelv1.FetchFormat_FETCH_FORMAT_RECORDS
	text    = runnelv1.FetchFormat_FETCH_FORMAT_TEXT
	batches = runnelv1.FetchFormat_FETCH_FORMAT_BATCHES
)

// fetched is what a session that ended had to say.
type allFetched struct {
	responses []*runnelv1.FetchResponse
	records   map[int32][]*runnelv1.ConsumedRecord
	texts     map[int32][]*runnelv1.ConsumedTextRecord
	batches   []*runnelv1.RecordBatch
	next      map[int32]int64
	ends      map[int32]bool
	errors    map[int32]*runnelv1.ItemError
	err       error // that ended the stream; nil: OK
}

func collect(tb testing.TB, stream interface {
	Recv() (*runnelv1.FetchResponse, error)
},
) allFetched {
	tb.Helper()
	all := allFetched{
		records: map[int32][]*runnelv1.ConsumedRecord{}, texts: map[int32][]*runnelv1.ConsumedTextRecord{},
		next: map[int32]int64{}, ends: map[int32]bool{}, errors: map[int32]*runnelv1.ItemError{},
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				all.err = err
			}
			return all
		}
		n := r.GetPartition()
		all.responses = append(all.responses, r)
		all.records[n] = append(all.records[n], r.GetRecords()...)
		all.texts[n] = append(all.texts[n], r.GetTextRecords()...)
		all.batches = append(all.batches, r.GetBatches()...)
		if r.Partition != nil {
			if r.NextOffset == nil {
				tb.Errorf("no next_offset in %v", r)
			}
			all.next[n] = r.GetNextOffset()
		}
		all.ends[n] = all.ends[n] || r.GetEnd()
		if r.GetError() != nil {
			all.errors[n] = r.GetError()
		}
	}
}

// fetch opens a session.
func (b *testBroker) fetch(reqs ...*runnelv1.FetchRequest) runnelv1.LogService_FetchClient {
	b.t.Helper()
	stream, err := b.log.Fetch(b.t.Context())
	if err != nil {
		b.t.Fatal(err)
	}
	send(b.t, stream, reqs...)
	return stream
}

// fetchAll opens a session, half-closes it, and reads it to its end.
func (b *testBroker) fetchAll(reqs ...*runnelv1.FetchRequest) allFetched {
	b.t.Helper()
	stream := b.fetch(reqs...)
	if err := stream.CloseSend(); err != nil {
		b.t.Fatal(err)
	}
	return collect(b.t, stream)
}
