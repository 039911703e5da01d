package cases

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/client"
)

// A kept is a record that is there.
type kept struct {
	offset int64
	at     time.Time
	text   string
}

// A place is where reading begins, as clients and as stubs say it.
type place struct {
	name  string
	start client.Start
	set   func(*runnelv1.FetchPartition) // nil: stubs can't
	first func(logStart int64) int64     // the first offset that is wanted; -1: an error
}

const outOfRange = "OFFSET_OUT_OF_RANGE"

// asClient reads up to stop, or to the end, by the client.
func (w *town) asClient(c *client.Client, topic string, from client.Start, stop int64) (out []string, reason string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	r, err := c.NewReader()
	if err != nil {
		w.t.Fatal(err)
	}
	defer r.Close()
	err = r.Assign(ctx, client.Assignment{Topic: topic, Start: from, Stop: stop, AtEnd: true})
	for err == nil {
		var b *client.Batch
		if b, err = r.Poll(ctx); err != nil {
			break
		}
		for rec := range b.All() {
			out = append(out, describe(rec.Offset, rec.Key, rec.Value))
		}
		err = b.Err()
	}
	if errors.Is(err, io.EOF) {
		return out, ""
	}
	if client.Reason(err) == "" {
		w.t.Fatalf("read: %v after %v", err, out)
	}
	return out, client.Reason(err)
}

// asStub reads up to stop, or to the end, as a stock client does.
func (w *town) asStub(api runnelv1.LogServiceClient, p *runnelv1.FetchPartition, opts *runnelv1.FetchOptions) (out []string, reason string) {
	w.t.Helper()
	stream, err := api.Read(w.t.Context(), &runnelv1.ReadRequest{Request: &runnelv1.FetchRequest{Options: opts, Partitions: []*runnelv1.FetchPartition{p}}})
	if err != nil {
		w.t.Fatal(err)
	}
	d := drops{p: p, begin: -1}
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, ""
		}
		if err != nil {
			w.t.Fatal(err)
		}
		r := resp.GetResponse()
		if e := r.GetError(); e != nil {
			return out, e.GetReason().String()[len("ERROR_REASON_"):]
		}
		if d.begin < 0 {
			d.begin = r.GetLogStartOffset()
		}
		for _, b := range r.GetBatches() {
			d.batch(b)
		}
		out = append(out, d.out...)
		d.out = nil
		r.Batches = nil
		out = append(out, w.records(r, 0)...)
	}
}

// drops leaves out of batches what nobody asked for.
type drops struct {
	p     *runnelv1.FetchPartition
	begin int64 // where the log begins
	found bool  // the record of a time
	out   []string
}

func (d *drops) batch(b *runnelv1.RecordBatch) {
	for i, rec := range b.GetRecords().GetRecords() {
		offset := b.GetBaseOffset() + int64(i)
		if rec.OffsetDelta != nil {
			offset = b.GetBaseOffset() + int64(rec.GetOffsetDelta())
		}
		if offset < d.begin || d.p.StopOffset != nil && offset >= d.p.GetStopOffset() {
			continue
		}
		switch s := d.p.GetStart().(type) {
		case *runnelv1.FetchPartition_Offset:
			if offset < s.Offset {
				continue
			}
		case *runnelv1.FetchPartition_Timestamp:
			if b.GetBaseTimestampMs()+rec.GetTimestampDeltaMs() < s.Timestamp.AsTime().UnixMilli() && !d.found {
				continue
			}
			d.found = true
		}
		d.out = append(d.out, describe(offset, rec.GetKey(), rec.GetValue()))
	}
}

// places returns where one may begin in a log that ends at end.
func places(records []kept, end int64, since time.Time) (all []place) {
	all = append(all, place{
		"the earliest", client.Earliest(),
		func(p *runnelv1.FetchPartition) {
			p.Start = &runnelv1.FetchPartition_Position{Position: runnelv1.Position_POSITION_EARLIEST}
		},
		func(logStart int64) int64 { return logStart },
	}, place{
		"the latest", client.Latest(),
		func(p *runnelv1.FetchPartition) {
			p.Start = &runnelv1.FetchPartition_Position{Position: runnelv1.Position_POSITION_LATEST}
		},
		func(int64) int64 { return end },
	})
	for n := int64(0); n <= end+1; n++ {
		all = append(all, place{
			fmt.Sprint("offset ", n), client.AtOffset(n),
			func(p *runnelv1.FetchPartition) { p.Start = &runnelv1.FetchPartition_Offset{Offset: n} },
			func(logStart int64) int64 {
				if n < logStart || n > end {
					return -1
				}
				return n
			},
		}, place{
			fmt.Sprint(n, " before the end"), client.BeforeEnd(n), nil,
			func(logStart int64) int64 { return max(end-n, logStart) },
		})
	}
	for s := -1; s <= 24; s++ {
		at := since.Add(time.Duration(s) * time.Second)
		all = append(all, place{
			fmt.Sprint("second ", s), client.AtTime(at),
			func(p *runnelv1.FetchPartition) {
				p.Start = &runnelv1.FetchPartition_Timestamp{Timestamp: timestamppb.New(at)}
			},
			func(logStart int64) int64 {
				for _, r := range records {
					if r.offset >= logStart && !r.at.Before(at) {
						return r.offset
					}
				}
				return end
			},
		})
	}
	return all
}

// Wherever a reader begins, and wherever it stops, it is given the records there
// are from there on and no others, by the client and by stubs in every format:
// with holes that compaction left, in logs that begin inside a batch, with
// times that are out of order, and whatever the compression
// (ST-13, ST-15, ST-22).
func TestST15_everyStartAndStop(t *testing.T) {
	for _, compression := range []client.Compression{client.NoCompression, client.Zstd, client.Gzip, client.Snappy, client.LZ4} {
		t.Run(fmt.Sprint(compression), func(t *testing.T) {
			inTown(t, soonClean, func(w *town) { startAnywhere(w, compression) })
		})
	}
}

// stopsWhileFollowing reads up to every offset, without asking for the end as it
// is: a stop is reached, also in a hole.
func (w *town) stopsWhileFollowing(c *client.Client, records []kept, logStart, end int64) {
	w.t.Helper()
	for stop := logStart + 1; stop <= end; stop++ {
		r, err := c.NewReader()
		if err != nil {
			w.t.Fatal(err)
		}
		if err := r.Assign(w.t.Context(), client.Assignment{Topic: "t", Stop: stop}); err != nil {
			w.t.Fatal(err)
		}
		var want, got []string
		for _, k := range records {
			if k.offset >= logStart && k.offset < stop {
				want = append(want, k.text)
			}
		}
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
		for rec, err := range r.Records(ctx) {
			if err != nil {
				w.t.Errorf("log from %d, up to %d: %v", logStart, stop, err)
				break
			}
			got = append(got, describe(rec.Offset, rec.Key, rec.Value))
		}
		cancel()
		_ = r.Close()
		if fmt.Sprint(got) != fmt.Sprint(want) {
			w.t.Errorf("log from %d, up to %d: read %v, want %v", logStart, stop, got, want)
		}
	}
}

func startAnywhere(w *town, compression client.Compression) {
	t := w.t
	c := w.client(brokerAddr)
	defer c.Close()
	w.topic(c, "t", 1, compacts())
	p, err := c.NewProducer(client.Compress(compression, 0), client.Linger(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close(t.Context())
	rng := rand.New(rand.NewPCG(1, uint64(compression)))
	since := time.Now().Truncate(time.Millisecond)
	end := int64(0)
	var all []kept
	write := func(keys ...int) {
		var rs []client.Record
		for _, k := range keys {
			// Pieces of equal length, which every compression makes smaller.
			value := fmt.Sprintf("%d of %040d", end, k)
			at := since.Add(time.Duration(rng.IntN(24)) * time.Second)
			rs = append(rs, client.Record{Key: []byte(number(k)), Value: []byte(value), Timestamp: at})
			all = append(all, kept{end, at, describe(end, []byte(number(k)), []byte(value))})
			end++
		}
		w.put(p, "t", rs...)
	}
	write(0, 1, 2, 3, 4, 5, 6, 7, 8, 9)
	write(2, 3, 4, 5, 6, 7, 8) // 10 to 16
	write(2, 3, 20)            // 17 to 19
	time.Sleep(time.Minute)
	write(30, 31, 32, 30) // is not compacted yet
	gone := map[int64]bool{}
	for _, o := range []int64{2, 3, 4, 5, 6, 7, 8, 10, 11} {
		gone[o] = true
	}
	var records []kept
	for _, r := range all {
		if !gone[r.offset] {
			records = append(records, r)
		}
	}
	conn := w.conn(brokerAddr)
	defer conn.Close()
	api := runnelv1.NewLogServiceClient(conn)
	starts := []int64{12}
	if compression == client.Zstd {
		starts = []int64{0, 4, 9, 12, 21, end}
	}
	for _, logStart := range starts {
		if got, err := c.NewAdmin().DeleteRecords(t.Context(), "t", map[int32]int64{0: logStart}); err != nil || got[0].LogStart != logStart {
			t.Fatalf("%+v, %v", got, err)
		}
		w.stopsWhileFollowing(c, records, logStart, end)
		for _, from := range places(records, end, since) {
			for _, stop := range []int64{0, 11, 20} {
				first := from.first(logStart)
				var want []string
				reason := ""
				if first < 0 {
					reason = outOfRange
				}
				for _, r := range records {
					if first >= 0 && r.offset >= first && (stop == 0 || r.offset < stop) {
						want = append(want, r.text)
					}
				}
				got, why := w.asClient(c, "t", from.start, stop)
				if stop > 0 && first < 0 && why == "" && len(got) == 0 {
					why = reason // nothing was to be read
				}
				if fmt.Sprint(got) != fmt.Sprint(want) || why != reason {
					t.Errorf("log from %d, %s up to %d: the client reads %v %s, want %v %s", logStart, from.name, stop, got, why, want, reason)
				}
				if from.set == nil {
					continue
				}
				for f := range runnelv1.FetchFormat_name {
					fp := &runnelv1.FetchPartition{Topic: "t", Partition: new(int32)}
					from.set(fp)
					if stop > 0 {
						fp.StopOffset = new(stop)
					}
					got, why := w.asStub(api, fp, &runnelv1.FetchOptions{
						Format: runnelv1.FetchFormat(f), AcceptCompressions: []runnelv1.Compression{runnelv1.Compression_COMPRESSION_NONE},
					})
					if stop > 0 && first < 0 && why == "" && len(got) == 0 {
						why = reason
					}
					if fmt.Sprint(got) != fmt.Sprint(want) || why != reason {
						t.Errorf("log from %d, %s up to %d as %s: %v %s, want %v %s", logStart, from.name, stop, runnelv1.FetchFormat(f), got, why, want, reason)
					}
				}
			}
		}
		if t.Failed() {
			return
		}
	}
}
