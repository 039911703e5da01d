package wire

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// Field numbers of runnel.v1.ProduceResponse.
const (
	producedRequestID  = 1
	producedError      = 2
	producedPartition  = 3
	producedBaseOffset = 4
	producedAppendTime = 5
	producedLogStart   = 6
	producedDuplicate  = 7
	producedResults    = 8
	goawayField        = 15 // of every response
	wrappedResponse    = 1  // of AppendResponse and ReadResponse
)

// None stands for an absent partition or offset in a response.
const None = -1

// A ProduceResponse is runnel.v1.ProduceResponse, or with Wrapped the
// AppendResponse around it.
type ProduceResponse struct {
	RequestID uint64
	Error     *runnelv1.ItemError
	Partition int32 // None: absent
	// BaseOffset, AppendTimeMs and LogStart are absent when None.
	BaseOffset, AppendTimeMs, LogStart int64

	Duplicate bool
	Results   []ProduceResult
	Goaway    *runnelv1.Goaway
	Wrapped   bool
}

// A ProduceResult is runnel.v1.ProduceRecordResult.
type ProduceResult struct {
	Partition int32 // None: absent
	Offset    int64 // None: absent
	Error     *runnelv1.ItemError
}

// marshal implements marshaler.
func (r *ProduceResponse) marshal(pool *Pool) (mem.BufferSlice, error) {
	size := 128 + len(r.Results)*24
	var pooled *[]byte
	var b []byte
	if !mem.IsBelowBufferPoolingThreshold(size) {
		pooled = pool.Get(size)
		b = (*pooled)[:0]
	} else {
		b = make([]byte, 0, size)
	}
	b, err := r.append(b)
	if err != nil {
		return nil, err
	}
	if r.Wrapped {
		head := protowire.AppendTag(make([]byte, 0, 8), wrappedResponse, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(len(b)))
		return mem.BufferSlice{mem.SliceBuffer(head), pool.own(pooled, b)}, nil
	}
	return mem.BufferSlice{pool.own(pooled, b)}, nil
}

// own returns b as a buffer. When it still lies in pooled, that goes back to the
// pool afterwards; when it outgrew it, at once.
func (p *Pool) own(pooled *[]byte, b []byte) mem.Buffer {
	if pooled == nil {
		return mem.SliceBuffer(b)
	}
	if cap(b) != cap(*pooled) {
		p.Put(pooled)
		return mem.SliceBuffer(b)
	}
	*pooled = b
	return mem.NewBuffer(pooled, p)
}

func (r *ProduceResponse) append(b []byte) ([]byte, error) {
	var err error
	b = appendVarintField(b, producedRequestID, r.RequestID)
	if b, err = appendMessage(b, producedError, r.Error); err != nil {
		return nil, err
	}
	b = appendOptional(b, producedPartition, int64(r.Partition))
	b = appendOptional(b, producedBaseOffset, r.BaseOffset)
	if r.AppendTimeMs != None {
		b = appendMillis(protowire.AppendTag(b, producedAppendTime, protowire.BytesType), r.AppendTimeMs)
	}
	b = appendOptional(b, producedLogStart, r.LogStart)
	b = appendBool(b, producedDuplicate, r.Duplicate)
	for i := range r.Results {
		if b, err = r.Results[i].append(b); err != nil {
			return nil, err
		}
	}
	return appendMessage(b, goawayField, r.Goaway)
}

func (r *ProduceResult) append(b []byte) ([]byte, error) {
	size := sizeOptional(1, int64(r.Partition)) + sizeOptional(2, r.Offset)
	if r.Error != nil {
		size += protowire.SizeTag(3) + protowire.SizeBytes(proto.Size(r.Error))
	}
	b = protowire.AppendTag(b, producedResults, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size)) //nolint:gosec // a length
	b = appendOptional(b, 1, int64(r.Partition))
	b = appendOptional(b, 2, r.Offset)
	return appendMessage(b, 3, r.Error)
}

// appendOptional appends a number that is absent when None.
func appendOptional(b []byte, num protowire.Number, v int64) []byte {
	if v == None {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, num, protowire.VarintType), uint64(v)) //nolint:gosec // as Protobuf carries it
}

func sizeOptional(num protowire.Number, v int64) int {
	if v == None {
		return 0
	}
	return protowire.SizeTag(num) + protowire.SizeVarint(uint64(v)) //nolint:gosec // as above
}

func appendBool(b []byte, num protowire.Number, v bool) []byte {
	if !v {
		return b
	}
	return appendVarintField(b, num, 1)
}

// appendMessage appends one of the rare messages with the generated code.
func appendMessage[M interface {
	comparable
	proto.Message
}](b []byte, num protowire.Number, m M) ([]byte, error) {
	var none M
	if m == none {
		return b, nil
	}
	size := proto.Size(m)
	b = protowire.AppendTag(b, num, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size)) //nolint:gosec // a length
	out, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, m)
	if err != nil {
		return nil, fmt.Errorf("marshal %T: %w", m, err)
	}
	return out, nil
}

// Parse reads the response at b[start:end], for clients. Results and texts are
// copies.
func (r *ProduceResponse) Parse(b []byte, start, end int) error {
	*r = ProduceResponse{Partition: None, BaseOffset: None, AppendTimeMs: None, LogStart: None, Results: r.Results[:0]}
	s := scan(b, start, end)
	var seconds int64
	var nanos int32
	for s.next() {
		v := int64(s.value) //nolint:gosec // as Protobuf carries it
		switch {
		case s.is(producedRequestID, protowire.VarintType):
			r.RequestID = s.value
		case s.is(producedPartition, protowire.VarintType):
			r.Partition = int32(v) //nolint:gosec // as Protobuf truncates
		case s.is(producedBaseOffset, protowire.VarintType):
			r.BaseOffset = v
		case s.is(producedLogStart, protowire.VarintType):
			r.LogStart = v
		case s.is(producedDuplicate, protowire.VarintType):
			r.Duplicate = v != 0
		case s.is(producedAppendTime, protowire.BytesType):
			s.duration(&seconds, &nanos)
			r.AppendTimeMs = millis(seconds, nanos)
		case s.is(producedError, protowire.BytesType):
			mergeMessage(&s, &r.Error)
		case s.is(producedResults, protowire.BytesType):
			r.Results = append(r.Results, ProduceResult{})
			r.Results[len(r.Results)-1].parse(&s)
		case s.is(goawayField, protowire.BytesType):
			mergeMessage(&s, &r.Goaway)
		}
	}
	return s.err
}

func (r *ProduceResult) parse(s *scanner) {
	*r = ProduceResult{Partition: None, Offset: None}
	in := scan(s.b, s.start, s.stop)
	for in.next() {
		v := int64(in.value) //nolint:gosec // as Protobuf carries it
		switch {
		case in.is(1, protowire.VarintType):
			r.Partition = int32(v) //nolint:gosec // as Protobuf truncates
		case in.is(2, protowire.VarintType):
			r.Offset = v
		case in.is(3, protowire.BytesType):
			mergeMessage(&in, &r.Error)
		}
	}
	if s.err == nil {
		s.err = in.err
	}
}

// mergeMessage reads one of the rare messages with the generated code.
func mergeMessage[T any, M interface {
	*T
	proto.Message
}](s *scanner, into *M) {
	if *into == nil {
		*into = new(T)
	}
	err := proto.UnmarshalOptions{Merge: true}.Unmarshal(s.b[s.start:s.stop], *into)
	if err != nil && s.err == nil {
		s.err = fmt.Errorf("%w: field %d: %w", ErrMalformed, s.num, err)
	}
}
