package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/e2e/proc"
)

// What is measured in a cluster of three brokers on this machine: writes with
// acks ALL on a topic of replication factor 3.
const (
	clusterValue      = 1024
	clusterPartitions = 12
	clusterBrokers    = 3
	// clusterShare is what part of a run's bytes goes there: they are stored
	// three times.
	clusterShare = 4
)

// A pace is how hard the cluster is driven.
type pace struct {
	name       string
	partitions int
	run        func(ctx context.Context, o options, g *proc.Group, topic string) (clusterSample, error)
}

func paces() []pace {
	return []pace{
		// Latency is that of a full queue.
		{"as fast as it goes", clusterPartitions, produceAll},
		{fmt.Sprintf("%d writers, a record at a time", calmWriters), clusterPartitions, calmly(calmWriters)},
		{"one writer, a record at a time", clusterPartitions, calmly(1)},
		{fmt.Sprintf("a record each %v, to %d partitions in turn", steadyEvery, steadyPartitions), steadyPartitions, produceSteadily},
	}
}

// calmWriters is how many writers the cluster has that wait for each record.
const calmWriters = 8

// A clusterSample is what one run in the cluster showed.
type clusterSample struct {
	Records float64 `json:"records_per_s"`
	MBs     float64 `json:"mb_per_s"` // 10^6 bytes of values a second
	P50     float64 `json:"p50_ms"`   // from the call to the acknowledgement
	P99     float64 `json:"p99_ms"`
	Max     float64 `json:"max_ms"`
}

// A clusterResult is the line of a pace.
type clusterResult struct {
	Pace    string          `json:"pace"`
	Median  clusterSample   `json:"median"` // each figure's own median
	Samples []clusterSample `json:"samples"`
}

// measureCluster runs the writes of every pace that is wanted, in turn.
func measureCluster(ctx context.Context, o options, progress io.Writer) (out []*clusterResult, err error) {
	wanted := slices.DeleteFunc(paces(), func(p pace) bool { return !o.only.MatchString(p.name) })
	if len(wanted) == 0 {
		return nil, nil
	}
	dir, err := os.MkdirTemp(o.data, "runnel-bench-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	g, err := proc.StartCluster(ctx, proc.Binary(o.runnel), proc.Cluster{Dir: dir, Controllers: 1, Brokers: clusterBrokers})
	if err != nil {
		return nil, err
	}
	defer g.Kill()
	conn, err := dial(g.Brokers[0].Client)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	admin := runnelv1.NewAdminServiceClient(conn)
	for _, p := range wanted {
		out = append(out, &clusterResult{Pace: p.name})
	}
	for round := range o.rounds {
		for n, p := range wanted {
			fmt.Fprintf(progress, "round %d of %d: replication factor 3, %s\n", round+1, o.rounds, p.name)
			topic := fmt.Sprintf("bench-rf3-%d-%d", n, time.Now().UnixNano())
			if err := createTopic(ctx, admin, topic, o, shape{clusterValue, p.partitions}, clusterBrokers); err != nil {
				return nil, err
			}
			s, err := p.run(ctx, o, g, topic)
			if err = errors.Join(err, deleteTopic(ctx, admin, topic)); err != nil {
				return nil, fmt.Errorf("replication factor 3: %w", err)
			}
			out[n].Samples = append(out[n].Samples, s)
		}
	}
	for _, r := range out {
		r.Median = r.median()
	}
	return out, nil
}

// clusterRecords is how many records one run writes.
func clusterRecords(o options) int64 { return max(o.bytes/clusterShare/clusterValue, calmWriters) }

// produceAll runs the product's own benchmark against the cluster.
func produceAll(ctx context.Context, o options, g *proc.Group, topic string) (clusterSample, error) {
	args := []string{
		"bench", "produce", "--brokers", strings.Join(g.Seeds(), ","), "--format", "json", "--topic", topic, "--acks", "all",
		"--size", strconv.Itoa(clusterValue), "--records", strconv.FormatInt(clusterRecords(o), 10),
	}
	r, err := proc.Do(proc.Binary(o.runnel).Command(ctx, args...))
	if err != nil {
		return clusterSample{}, err
	}
	if r.Code != 0 {
		return clusterSample{}, fmt.Errorf("runnel %s: exit code %d: %s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	var out struct {
		RecordsPerSec float64 `json:"records_per_second"`
		MBPerSec      float64 `json:"mb_per_second"`
		Latency       struct {
			P50 float64 `json:"p50"`
			P99 float64 `json:"p99"`
			Max float64 `json:"max"`
		} `json:"latency_ms"`
	}
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		return clusterSample{}, fmt.Errorf("runnel bench: %w in %q", err, r.Stdout)
	}
	return clusterSample{Records: out.RecordsPerSec, MBs: out.MBPerSec, P50: out.Latency.P50, P99: out.Latency.P99, Max: out.Latency.Max}, nil
}

func (r *clusterResult) median() clusterSample {
	of := func(figure func(clusterSample) float64) float64 {
		var all []float64
		for _, s := range r.Samples {
			all = append(all, figure(s))
		}
		return median(all)
	}
	return clusterSample{
		Records: of(func(s clusterSample) float64 { return s.Records }), MBs: of(func(s clusterSample) float64 { return s.MBs }),
		P50: of(func(s clusterSample) float64 { return s.P50 }), P99: of(func(s clusterSample) float64 { return s.P99 }),
		Max: of(func(s clusterSample) float64 { return s.Max }),
	}
}

// printCluster writes the table of the cluster.
func (r *report) printCluster(w io.Writer) {
	if len(r.Cluster) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%-44s %10s %14s %10s %10s %10s\n",
		fmt.Sprintf("three brokers, factor 3, acks ALL, %d bytes", clusterValue), "MB/s", "records/s", "p50 ms", "p99 ms", "max ms")
	for _, c := range r.Cluster {
		m := c.Median
		fmt.Fprintf(w, "%-44s %10.1f %14.0f %10.2f %10.2f %10.2f\n", c.Pace, m.MBs, m.Records, m.P50, m.P99, m.Max)
	}
}
