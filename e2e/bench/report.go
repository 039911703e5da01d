package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/runnelmq/runnel/e2e/proc"
)

// The rows, and the raw row that each is compared with.
const (
	rowRawIn   = "raw stream in (ceiling)"
	rowProduce = "produce, ready batches, acks ALL"
	rowRawOut  = "raw stream out (ceiling)"
	rowFetch   = "fetch, BATCHES"
	rowRecords = "fetch, RECORDS"
	// The whole way, with a client that encodes and decodes; bytes are those
	// of the values.
	rowClientProduce = "Go client: produce, acks ALL"
	rowClientConsume = "Go client: consume"
)

func ceiling(row string) string {
	switch row {
	case rowProduce:
		return rowRawIn
	case rowFetch, rowRecords:
		return rowRawOut
	default:
		return ""
	}
}

// A sample is what one run showed.
type sample struct {
	MBs        float64 `json:"mb_per_s"`         // 10^6 bytes of messages a second
	Records    float64 `json:"records_per_s"`    // of the size of the shape
	CPU        float64 `json:"server_cpu_s_gb"`  // seconds of the server's processor time per 10^9 bytes
	OfCeiling  float64 `json:"of_ceiling"`       // share of the raw row's rate, of the same round
	CPUCeiling float64 `json:"cpu_over_ceiling"` // server time over the raw row's, of the same round
	Seconds    float64 `json:"seconds"`          // that the run took
	Bytes      int64   `json:"bytes"`            // of messages
	Round      int     `json:"round"`            // from 1
}

// A result is one line of the table.
type result struct {
	shape

	Row     string   `json:"row"`
	Median  sample   `json:"median"` // each figure's own median
	Samples []sample `json:"samples"`
}

// A report is everything that was measured.
type report struct {
	When    time.Time `json:"when"`
	Machine string    `json:"machine"`
	Go      string    `json:"go"`
	Flush   string    `json:"flush"`
	Batch   int       `json:"batch_bytes"`
	Rounds  int       `json:"rounds"`
	Results []*result `json:"results"`
	// Cluster is what three brokers on this machine take.
	Cluster []*clusterResult `json:"cluster"`
}

func newReport(o options) *report {
	return &report{When: time.Now().UTC().Truncate(time.Second), Machine: machine(), Go: runtime.Version(), Flush: o.flush, Batch: o.batch, Rounds: o.rounds}
}

// machine says what this ran on: cores and processor.
func machine() string {
	model := runtime.GOARCH
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
				model = strings.TrimSpace(v)
				break
			}
		}
	}
	return fmt.Sprintf("%d × %s, %s", runtime.NumCPU(), model, runtime.GOOS)
}

// run measures one run of a row.
func (r *report) run(row string, s shape, srv *server, load func() (took, error)) error {
	before, err := proc.CPU(srv.pid)
	if err != nil {
		return err
	}
	t, err := load()
	if err != nil {
		return fmt.Errorf("%s: %w", row, err)
	}
	after, err := proc.CPU(srv.pid)
	if err != nil {
		return err
	}
	res := r.result(row, s)
	one := sample{
		MBs:     float64(t.bytes) / 1e6 / t.time.Seconds(),
		Records: float64(t.records) / t.time.Seconds(),
		CPU:     (after - before).Seconds() / (float64(t.bytes) / 1e9),
		Seconds: t.time.Seconds(),
		Bytes:   t.bytes,
		Round:   len(res.Samples) + 1,
	}
	if c := ceiling(row); c != "" {
		samples := r.result(c, s).Samples
		top := samples[len(samples)-1]
		one.OfCeiling = one.MBs / top.MBs
		if top.CPU > 0 { // the clock ticks every 10 ms
			one.CPUCeiling = one.CPU / top.CPU
		}
	}
	res.Samples = append(res.Samples, one)
	res.Median = res.median()
	return nil
}

// result returns the line of a row, which it adds when it is not there.
func (r *report) result(row string, s shape) *result {
	for _, res := range r.Results {
		if res.Row == row && res.shape == s {
			return res
		}
	}
	res := &result{Row: row, shape: s}
	r.Results = append(r.Results, res)
	return res
}

func (r *result) median() sample {
	of := func(figure func(sample) float64) float64 {
		var all []float64
		for _, s := range r.Samples {
			all = append(all, figure(s))
		}
		return median(all)
	}
	return sample{
		MBs:        of(func(s sample) float64 { return s.MBs }),
		Records:    of(func(s sample) float64 { return s.Records }),
		CPU:        of(func(s sample) float64 { return s.CPU }),
		OfCeiling:  of(func(s sample) float64 { return s.OfCeiling }),
		CPUCeiling: of(func(s sample) float64 { return s.CPUCeiling }),
		Seconds:    of(func(s sample) float64 { return s.Seconds }),
	}
}

func median[T cmp.Ordered](all []T) T {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

// print writes the table.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "%s, %s; flush=%s, batches of %d KiB, one stream; medians of %d interleaved runs\n",
		r.Machine, r.Go, r.Flush, r.Batch>>10, r.Rounds)
	var last shape
	for _, res := range r.Results {
		if res.shape != last {
			fmt.Fprintf(w, "\n%-34s %10s %14s %16s %12s\n",
				res.shape, "MB/s", "records/s", "server CPU-s/GB", "of ceiling")
			last = res.shape
		}
		share := ""
		if res.Median.OfCeiling > 0 {
			share = fmt.Sprintf("%.0f %%", 100*res.Median.OfCeiling)
		}
		fmt.Fprintf(w, "%-34s %10.0f %14.0f %16.2f %12s\n", res.Row, res.Median.MBs, res.Median.Records, res.Median.CPU, share)
	}
	r.printCluster(w)
}
