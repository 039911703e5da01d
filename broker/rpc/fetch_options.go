package rpc

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
)

// Bounds of FetchOptions.
const (
	defaultResponse  = 1 << 20
	largestResponse  = 3 << 20
	defaultProgress  = 15 * time.Second
	shortestProgress = time.Second
)

// fetchOptions are FetchOptions, checked and with defaults.
type fetchOptions struct {
	format      runnelv1.FetchFormat
	follow      bool
	direct      bool // only what this broker leads
	committed   bool // READ_COMMITTED
	maxResponse int
	minResponse int
	maxWait     time.Duration
	progress    time.Duration
	maxRecords  int64 // 0: no limit
	// accept is empty when every compression is fine.
	accept []record.Compression
}

// parseOptions says what is wrong with options. Its errors end the stream.
func parseOptions(o *runnelv1.FetchOptions) (fetchOptions, error) {
	if o == nil {
		o = &runnelv1.FetchOptions{}
	}
	f := fetchOptions{
		format: runnelv1.FetchFormat_FETCH_FORMAT_RECORDS, follow: o.GetFollow(),
		direct:      o.GetRouting() == runnelv1.Routing_ROUTING_DIRECT,
		committed:   o.GetIsolation() != runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED,
		maxResponse: defaultResponse, minResponse: 1, progress: defaultProgress,
	}
	if o.GetFormat() != runnelv1.FetchFormat_FETCH_FORMAT_UNSPECIFIED {
		f.format = o.GetFormat()
	}
	if err := checkOptionEnums(o); err != nil {
		return f, err
	}
	for _, c := range o.GetAcceptCompressions() {
		f.accept = append(f.accept, record.Compression(c)) //nolint:gosec // checked above
	}
	if o.MaxResponseBytes != nil {
		f.maxResponse = int(o.GetMaxResponseBytes())
	}
	if o.MinResponseBytes != nil {
		f.minResponse = int(o.GetMinResponseBytes())
	}
	if o.MaxRecords != nil {
		f.maxRecords = o.GetMaxRecords()
	}
	var err error
	if f.maxWait, err = duration("max_wait", o.GetMaxWait(), 0, 0); err != nil {
		return f, err
	}
	if f.progress, err = duration("progress_interval", o.GetProgressInterval(), defaultProgress, shortestProgress); err != nil {
		return f, err
	}
	switch {
	case f.maxResponse < firstResponse || f.maxResponse > largestResponse:
		return f, invalid("options.max_response_bytes is %d: want %d to %d, or leave it out for %d", f.maxResponse, firstResponse, largestResponse, defaultResponse)
	case f.minResponse < 0 || f.minResponse > f.maxResponse:
		return f, invalid("options.min_response_bytes is %d: want 0 to max_response_bytes (%d)", f.minResponse, f.maxResponse)
	case o.MaxRecords != nil && f.maxRecords <= 0:
		return f, invalid("options.max_records is %d: want more than 0, or leave it out for no limit", f.maxRecords)
	case o.InitialCreditBytes != nil && o.GetInitialCreditBytes() < 0:
		return f, invalid("options.initial_credit_bytes is %d: want 0 or more, or leave it out to let HTTP/2 flow control alone limit what is in flight", o.GetInitialCreditBytes())
	}
	return f, nil
}

func checkOptionEnums(o *runnelv1.FetchOptions) error {
	if _, ok := runnelv1.FetchFormat_name[int32(o.GetFormat())]; !ok {
		return invalid("options.format %d is not known here: want FETCH_FORMAT_RECORDS, FETCH_FORMAT_TEXT or FETCH_FORMAT_BATCHES", o.GetFormat())
	}
	if _, ok := runnelv1.Isolation_name[int32(o.GetIsolation())]; !ok {
		return invalid("options.isolation %d is not known here: want ISOLATION_READ_COMMITTED or ISOLATION_READ_UNCOMMITTED", o.GetIsolation())
	}
	if _, ok := runnelv1.Routing_name[int32(o.GetRouting())]; !ok {
		return invalid("options.routing %d is not known here: want ROUTING_PROXY or ROUTING_DIRECT", o.GetRouting())
	}
	for _, c := range o.GetAcceptCompressions() {
		if _, ok := runnelv1.Compression_name[int32(c)]; !ok || c == runnelv1.Compression_COMPRESSION_UNSPECIFIED {
			return invalid("options.accept_compressions: compression %d is not known here", c)
		}
	}
	return nil
}

// duration reads an optional Duration of at least least.
func duration(name string, d *durationpb.Duration, absent, least time.Duration) (time.Duration, error) {
	switch {
	case d == nil:
		return absent, nil
	case d.CheckValid() != nil:
		return 0, invalid("options.%s is no valid duration", name)
	case d.AsDuration() < least:
		return 0, invalid("options.%s is %s: want at least %s", name, d.AsDuration(), least)
	}
	return d.AsDuration(), nil
}

// accepts reports whether batches of that compression go out as stored. A
// batch that is not compressed always does.
func (o *fetchOptions) accepts(c record.Compression) bool {
	return len(o.accept) == 0 || c == record.CompressionNone || slices.Contains(o.accept, c)
}
