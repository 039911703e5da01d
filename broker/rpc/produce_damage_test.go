package rpc

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/wire"
)

// damagedBatches are batches of one compression that nobody may store, by what
// is wrong with them, with the reason they are refused for.
func damagedBatches(t *testing.T, c record.Compression) map[string]struct {
	batch  []byte
	reason runnelv1.ErrorReason
} {
	t.Helper()
	const (
		corrupt = runnelv1.ErrorReason_ERROR_REASON_CORRUPT_BATCH
		large   = runnelv1.ErrorReason_ERROR_REASON_RECORD_TOO_LARGE
	)
	now := time.Now().UnixMilli()
	good := buildBatch(t, c, now, bytes.Repeat([]byte("v"), 300), []byte("w"))
	wrong := bytes.Clone(good)
	wrong[len(wrong)-1] ^= 1
	compress := func(plain []byte) []byte {
		if c == record.CompressionNone {
			return plain
		}
		out, err := record.NewCodec().Compress(nil, c, 0, plain)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	one := compress([]byte{0x0a, 3, 0x12, 1, 'v'})
	out := map[string]struct {
		batch  []byte
		reason runnelv1.ErrorReason
	}{
		"a wrong checksum":      {wrong, corrupt},
		"a count that lies":     {binary.LittleEndian.AppendUint32(append(payloadBatch(c, one), 0x35), 2), corrupt},
		"a count of 4 billion":  {binary.LittleEndian.AppendUint32(append(payloadBatch(c, one), 0x35), 1<<32-1), corrupt},
		"half a payload":        {payloadBatch(c, one[:len(one)/2]), corrupt},
		"half a batch":          {good[:len(good)/2], corrupt},
		"no records":            {payloadBatch(c, compress(nil)), corrupt},
		"a payload of garbage":  {payloadBatch(c, bytes.Repeat([]byte{0xff}, 100)), corrupt},
		"records of garbage":    {payloadBatch(c, compress(bytes.Repeat([]byte{0xff}, 100))), corrupt},
		"a record without end":  {payloadBatch(c, compress([]byte{0x0a, 0x7f, 0x12, 1, 'v'})), corrupt},
		"something behind them": {payloadBatch(c, append(bytes.Clone(one), compress([]byte{0x0a, 3, 0x12, 1, 'v', 9})...)), corrupt},
	}
	if c != record.CompressionNone {
		out["a bomb"] = struct {
			batch  []byte
			reason runnelv1.ErrorReason
		}{payloadBatch(c, compress(make([]byte, 40<<20))), large}
	}
	return out
}

// idempotent makes a batch one of a producer: id 1, epoch 0, sequence 0.
func idempotent(batch []byte) []byte {
	fields := []byte{0x79, 1, 0, 0, 0, 0, 0, 0, 0, 0x81, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0x89, 1, 0, 0, 0, 0, 0, 0, 0, 0}
	return append(bytes.Clone(fields), batch...)
}

// Whatever is wrong with a batch is found before it is stored, with every
// compression, of idempotent producers and others, and by whichever way it comes;
// the connection stays usable, and what is beside it is stored (PD-12).
func TestPD12_damageIsNotStored(t *testing.T) {
	for c := record.CompressionNone; c <= record.CompressionLZ4; c++ {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t, 2, nil, LogOptions{})
				w.topic("t", 2, 2)
				stream := w.brokers[2].open()
				proxied := w.brokers[1].open()
				good := buildBatch(t, c, time.Now().UnixMilli(), []byte("good"))
				stored := int64(0)
				for name, d := range damagedBatches(t, c) {
					for kind, batch := range map[string][]byte{"": d.batch, "idempotent": idempotent(d.batch)} {
						request := rawRequest("t", 0, batch)
						for path, s := range map[string]runnelv1.LogService_ProduceClient{"a stream": stream, "a proxy": proxied} {
							for _, raw := range [][]byte{request, rawRequest("t", 1, good)} {
								if err := s.SendMsg(wire.NewMessage(bytes.Clone(raw))); err != nil {
									t.Fatal(err)
								}
							}
							bad, fine := recv(t, s), recv(t, s)
							if problem(bad) == nil {
								bad, fine = fine, bad // partitions are answered in no order
							}
							stored++
							if e := problem(bad); e.GetReason() != d.reason || codes.Code(e.GetCode()) != codes.InvalidArgument || e.GetOutcomeUnknown() || problem(fine) != nil {
								t.Errorf("%s %s, by %s: %v, and beside it %v", name, kind, path, bad, fine)
							}
						}
						err := w.appendRaw(2, request)
						if reasonOf(err) != d.reason || status.Code(err) != codes.InvalidArgument {
							t.Errorf("%s %s, by Append: %v", name, kind, err)
						}
						if ends := w.brokers[2].ends(); ends["t/0"] != 0 || ends["t/1"] != stored {
							t.Fatalf("%s %s: stored %v, want none and %d", name, kind, ends, stored)
						}
					}
				}
			})
		})
	}
}

// appendRaw makes the unary call with the bytes of a ProduceRequest.
func (w *testTown) appendRaw(id int32, request []byte) error {
	w.t.Helper()
	conn := w.brokers[id].conn
	raw := protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), request)
	var resp wire.Message
	return conn.Invoke(w.t.Context(), runnelv1.LogService_Append_FullMethodName, wire.NewMessage(raw), &resp, grpc.StaticMethod())
}
