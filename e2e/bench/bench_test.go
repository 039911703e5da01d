package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/e2e/proc"
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

// The whole of it on a little data, so that it works when it is needed.
func TestMeasure(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" {
		t.Skip("starts processes, and reads /proc")
	}
	bin, err := proc.Build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var text, progress strings.Builder
	out := filepath.Join(t.TempDir(), "out", "bench.json")
	args := []string{"--runnel", string(bin), "--data", t.TempDir(), "--rounds", "1", "--bytes", "1000000", "--json", out}
	if err := run(t.Context(), args, &text, &progress); err != nil {
		t.Fatalf("%v\n%s", err, progress.String())
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(b, &r); err != nil {
		t.Fatal(err)
	}
	if want := 7 * len(shapes()); len(r.Results) != want {
		t.Errorf("%d rows, want %d", len(r.Results), want)
	}
	if len(r.Cluster) != len(paces()) {
		t.Errorf("%d rows of the cluster", len(r.Cluster))
	}
	for _, c := range r.Cluster {
		if m := c.Median; m.Records <= 0 || m.MBs <= 0 || m.P50 <= 0 || m.P99 < m.P50 || !strings.Contains(text.String(), c.Pace) {
			t.Errorf("row %q: %+v", c.Pace, m)
		}
	}
	for _, res := range r.Results {
		if res.Median.MBs <= 0 || res.Median.Records <= 0 || !strings.Contains(text.String(), res.Row) {
			t.Errorf("row %q: %+v", res.Row, res.Median)
		}
	}
}

// The test binary stands in for the benchmark as the raw server.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == rawServerCommand {
		if err := run(context.Background(), os.Args[1:], os.Stdout, os.Stderr); err != nil {
			panic(err)
		}
		return
	}
	m.Run()
}
