package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

func TestRawStreams(t *testing.T) {
	stdin, endServer := io.Pipe()
	addr, stdout := io.Pipe()
	var g errgroup.Group
	g.Go(func() error { return serveRaw(t.Context(), stdin, stdout) })
	line, err := bufio.NewReader(addr).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	conn, err := dial(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	messages := []ready{{bytes: make([]byte, 100_000), records: 10}, {bytes: make([]byte, 100_000), records: 10}}
	in, err := push(t.Context(), conn, sinkMethod, messages, 1_050_000, checkNothing)
	if err != nil || in.bytes != 1_100_000 || in.records != 110 || in.time <= 0 {
		t.Errorf("push moved %+v, %v; want 11 messages", in, err)
	}
	refused := errors.New("refused")
	if _, err := push(t.Context(), conn, sinkMethod, messages, 100e6, func([]byte) error { return refused }); !errors.Is(err, refused) {
		t.Errorf("push with refused answers: %v", err)
	}
	out, err := pull(t.Context(), conn, pourMethod, sourceRequest(1000, 50), checkNothing)
	if err != nil || out.bytes != 50_000 {
		t.Errorf("pull moved %+v, %v; want 50 messages of 1000 bytes", out, err)
	}
	conn.Close()
	endServer.Close()
	if err := g.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestReadyBatchIsARequest(t *testing.T) {
	m, err := readyBatch("t", 3, 100, 64<<10)
	if err != nil {
		t.Fatal(err)
	}
	var r runnelv1.ProduceRequest
	if err := proto.Unmarshal(m.bytes, &r); err != nil {
		t.Fatal(err)
	}
	if got := len(r.GetBatch().GetRecords().GetRecords()); got != m.records || m.records < 600 || len(m.bytes) < 64<<10 || r.GetPartition() != 3 {
		t.Errorf("%d records in %d bytes for partition %d", got, len(m.bytes), r.GetPartition())
	}
}

func TestAnswersWithErrorsAreRefused(t *testing.T) {
	item := &runnelv1.ItemError{Reason: runnelv1.ErrorReason_ERROR_REASON_STORAGE_FULL, Message: "full"}
	produce, err := proto.Marshal(&runnelv1.ProduceResponse{Error: item})
	if err != nil {
		t.Fatal(err)
	}
	if err := checkProduce(produce); err == nil {
		t.Error("a produce answer with an error passed")
	}
	fetch, err := proto.Marshal(&runnelv1.FetchResponse{Error: item})
	if err != nil {
		t.Fatal(err)
	}
	if err := checkFetch(fetch); err == nil {
		t.Error("a fetch answer with an error passed")
	}
}

func TestMedian(t *testing.T) {
	if got := median([]float64{5, 1, 9}); got != 5 {
		t.Errorf("median = %v", got)
	}
}
