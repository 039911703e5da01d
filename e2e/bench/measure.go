package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/e2e/proc"
	"github.com/runnelmq/runnel/internal/rpcserver"
)

// A shape is one set of conditions that everything is measured under.
type shape struct {
	Value      int `json:"value_bytes"`
	Partitions int `json:"partitions"`
}

// String is the title of a shape's rows.
func (s shape) String() string {
	return fmt.Sprintf("%d-byte values, %d partitions", s.Value, s.Partitions)
}

// shapes are those of the table, in its order.
func shapes() []shape { return []shape{{100, 1}, {100, 16}, {1024, 1}, {1024, 16}} }

// A server is a process under measurement, and a connection to it.
type server struct {
	pid  int
	addr string
	conn *grpc.ClientConn
	stop func() error
}

// measure runs everything, interleaved, so that a noisy minute of the machine
// does not fall on one row alone.
func measure(ctx context.Context, o options, progress io.Writer) (_ *report, err error) {
	r := newReport(o)
	if err := measureNode(ctx, o, r, progress); err != nil {
		return nil, err
	}
	if r.Cluster, err = measureCluster(ctx, o, progress); err != nil {
		return nil, err
	}
	return r, nil
}

// measureNode runs all shapes that are wanted on one node.
func measureNode(ctx context.Context, o options, r *report, progress io.Writer) (err error) {
	wanted := slices.DeleteFunc(shapes(), func(s shape) bool { return !o.only.MatchString(s.String()) })
	if len(wanted) == 0 {
		return nil
	}
	raw, err := startRaw(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, raw.stop()) }()
	node, err := startNode(ctx, o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, node.stop()) }()
	for round := range o.rounds {
		for _, s := range wanted {
			fmt.Fprintf(progress, "round %d of %d: %s\n", round+1, o.rounds, s)
			if err := measureShape(ctx, o, s, raw, node, r); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
	}
	return nil
}

func measureShape(ctx context.Context, o options, s shape, raw, node *server, r *report) (err error) {
	topic := fmt.Sprintf("bench-%d-%d-%d", s.Value, s.Partitions, time.Now().UnixNano())
	admin := runnelv1.NewAdminServiceClient(node.conn)
	clientTopic := topic + "-client"
	for _, name := range []string{topic, clientTopic} {
		if err := createTopic(ctx, admin, name, o, s, 1); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, deleteTopic(ctx, admin, name)) }()
	}
	var messages []ready
	for p := range s.Partitions {
		m, err := readyBatch(topic, int32(p), s.Value, o.batch)
		if err != nil {
			return err
		}
		messages = append(messages, m)
	}
	if err := r.run(rowRawIn, s, raw, func() (took, error) {
		return push(ctx, raw.conn, sinkMethod, messages, o.bytes, checkNothing)
	}); err != nil {
		return err
	}
	var stored took
	if err := r.run(rowProduce, s, node, func() (t took, err error) {
		stored, err = push(ctx, node.conn, produceMethod, messages, o.bytes, checkProduce)
		return stored, err
	}); err != nil {
		return err
	}
	const response = 1 << 20 // what a fetch answers with when the client keeps up
	if err := r.run(rowRawOut, s, raw, func() (took, error) {
		t, err := pull(ctx, raw.conn, pourMethod, sourceRequest(response, o.bytes/response+1), checkNothing)
		t.records = stored.records
		return t, err
	}); err != nil {
		return err
	}
	for _, f := range []struct {
		row    string
		format runnelv1.FetchFormat
	}{{rowFetch, runnelv1.FetchFormat_FETCH_FORMAT_BATCHES}, {rowRecords, runnelv1.FetchFormat_FETCH_FORMAT_RECORDS}} {
		request, err := fetchAll(topic, f.format)
		if err != nil {
			return err
		}
		if err := r.run(f.row, s, node, func() (took, error) {
			t, err := pull(ctx, node.conn, fetchMethod, request, checkFetch)
			if err == nil && t.bytes < stored.records*int64(s.Value) {
				err = fmt.Errorf("fetched %d bytes, want at least the %d of the values", t.bytes, stored.records*int64(s.Value))
			}
			t.records = stored.records
			return t, err
		}); err != nil {
			return err
		}
	}
	records := strconv.FormatInt(o.bytes/int64(s.Value), 10)
	if err := r.run(rowClientProduce, s, node, func() (took, error) {
		return runBench(ctx, o, node, "produce", clientTopic, "--records", records, "--size", strconv.Itoa(s.Value))
	}); err != nil {
		return err
	}
	return r.run(rowClientConsume, s, node, func() (took, error) {
		return runBench(ctx, o, node, "consume", clientTopic, "--records", records)
	})
}

// runBench runs the product's own benchmark, a process with the Go client.
// Its bytes are those of the values.
func runBench(ctx context.Context, o options, node *server, what, topic string, args ...string) (took, error) {
	args = append([]string{"bench", what, "--brokers", node.addr, "--format", "json", "--topic", topic}, args...)
	r, err := proc.Do(proc.Binary(o.runnel).Command(ctx, args...))
	if err != nil {
		return took{}, err
	}
	if r.Code != 0 {
		return took{}, fmt.Errorf("runnel %s: exit code %d: %s", strings.Join(args, " "), r.Code, r.Stderr)
	}
	var out struct {
		Records, Bytes int64
		Seconds        float64
	}
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		return took{}, fmt.Errorf("runnel bench: %w in %q", err, r.Stdout)
	}
	return took{bytes: out.Bytes, records: out.Records, time: time.Duration(out.Seconds * float64(time.Second))}, nil
}

func createTopic(ctx context.Context, admin runnelv1.AdminServiceClient, topic string, o options, s shape, factor int32) error {
	resp, err := admin.CreateTopics(ctx, &runnelv1.CreateTopicsRequest{
		Topics: []*runnelv1.NewTopic{{
			Name: topic, Partitions: new(int32(s.Partitions)), ReplicationFactor: new(factor),
			Configs: map[string]string{"flush": o.flush},
		}},
		Timeout: durationpb.New(10 * time.Second),
	})
	if err != nil {
		return err
	}
	if e := resp.GetResults()[0].GetError(); e != nil {
		return fmt.Errorf("create topic: %s", e.GetMessage())
	}
	return nil
}

func deleteTopic(ctx context.Context, admin runnelv1.AdminServiceClient, topic string) error {
	resp, err := admin.DeleteTopics(ctx, &runnelv1.DeleteTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: topic}}})
	if err != nil {
		return err
	}
	if e := resp.GetResults()[0].GetError(); e != nil {
		return fmt.Errorf("delete topic: %s", e.GetMessage())
	}
	return nil
}

// startNode runs the binary under test and connects to it.
func startNode(ctx context.Context, o options) (*server, error) {
	dir, err := os.MkdirTemp(o.data, "runnel-bench-")
	if err != nil {
		return nil, err
	}
	node, err := proc.StartDev(ctx, proc.Binary(o.runnel), proc.Dev{Data: dir})
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	conn, err := dial(node.Client)
	if err != nil {
		return nil, errors.Join(err, node.Stop(time.Minute), os.RemoveAll(dir))
	}
	return &server{pid: node.Pid(), addr: node.Client, conn: conn, stop: func() error {
		return errors.Join(conn.Close(), node.Stop(time.Minute), os.RemoveAll(dir))
	}}, nil
}

// startRaw runs this program as the raw server. It ends when its stdin is
// closed, so it cannot be left behind.
func startRaw(ctx context.Context) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self, rawServerCommand)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	stop := func() error { return errors.Join(stdin.Close(), cmd.Wait()) }
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	conn, err := dial(strings.TrimSpace(line))
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return &server{pid: cmd.Process.Pid, conn: conn, stop: func() error { return errors.Join(conn.Close(), stop()) }}, nil
}

// dial connects with the options that the product uses. Messages go through
// as bytes, those of the admin calls as Protobuf.
func dial(addr string) (*grpc.ClientConn, error) {
	return rpcserver.Dial(addr, rpcserver.DialOptions{Codec: loadCodec{}})
}
