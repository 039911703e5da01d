package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// A patient is a cluster whose partition orders/3 has lost its leader. It notes
// what is done.
type patient struct {
	runnelv1.UnimplementedAdminServiceServer

	copies []*runnelv1.PartitionCopy
	leader *int32 // that the partition has
	best   *int32 // copy that can be elected

	elected []int32
	fenced  []int32
}

// serve returns where p is reached.
func (p *patient) serve(t *testing.T) (addr string) {
	t.Helper()
	return serveAdmin(t, p)
}

// serveAdmin returns where a service is reached until the test ends.
func serveAdmin(t *testing.T, admin runnelv1.AdminServiceServer) (addr string) {
	t.Helper()
	var lc net.ListenConfig
	lis, err := lc.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	runnelv1.RegisterAdminServiceServer(s, admin)
	ended := make(chan error, 1)
	var serving sync.WaitGroup
	serving.Go(func() { ended <- s.Serve(lis) })
	t.Cleanup(func() {
		s.Stop()
		if err := <-ended; err != nil && !errors.Is(err, grpc.ErrServerStopped) { // before it had begun
			t.Error(err)
		}
	})
	return lis.Addr().String()
}

func (p *patient) RecoverPartition(_ context.Context, req *runnelv1.RecoverPartitionRequest) (*runnelv1.RecoverPartitionResponse, error) {
	resp := &runnelv1.RecoverPartitionResponse{Copies: p.copies, Leader: p.best}
	if req.GetTopic() != "orders" || req.GetPartition() != 3 {
		return nil, errors.New("not the partition that was asked for")
	}
	if req.FromBrokerId != nil && p.best != nil {
		resp.Leader = req.FromBrokerId //nolint:protogetter // absent is not 0
	}
	if !req.GetDryRun() {
		p.elected = append(p.elected, req.GetFromBrokerId())
		resp.LeaderEpoch, resp.Applied = new(int64(8)), new(true)
	}
	return resp, nil
}

func (p *patient) DescribeTopics(context.Context, *runnelv1.DescribeTopicsRequest) (*runnelv1.DescribeTopicsResponse, error) {
	d := &runnelv1.TopicDescription{Name: "orders", PartitionCount: new(int32(4))}
	for n := range int32(4) {
		d.Partitions = append(d.Partitions, &runnelv1.PartitionDescription{Partition: &n, Leader: p.leader})
	}
	return &runnelv1.DescribeTopicsResponse{Topics: []*runnelv1.TopicDescription{d}}, nil
}

func (p *patient) DescribeCluster(context.Context, *runnelv1.DescribeClusterRequest) (*runnelv1.DescribeClusterResponse, error) {
	return &runnelv1.DescribeClusterResponse{Brokers: []*runnelv1.BrokerDescription{
		{BrokerId: new(int32(2)), Address: "b2:7420", State: runnelv1.BrokerState_BROKER_STATE_ACTIVE, Leaders: new(int32(5))},
	}}, nil
}

func (p *patient) FenceBroker(_ context.Context, req *runnelv1.FenceBrokerRequest) (*runnelv1.FenceBrokerResponse, error) {
	p.fenced = append(p.fenced, req.GetBrokerId())
	return &runnelv1.FenceBrokerResponse{BrokerEpoch: new(int64(17)), Applied: new(false)}, nil
}

// newPatient has two copies that were reported and one that was not.
func newPatient() *patient {
	return &patient{best: new(int32(2)), copies: []*runnelv1.PartitionCopy{
		{
			BrokerId: new(int32(2)), State: runnelv1.BrokerState_BROKER_STATE_ACTIVE, Role: runnelv1.CopyRole_COPY_ROLE_LAST_KNOWN,
			ReportedAt: timestamppb.Now(), Intact: new(false), LastEpoch: new(int64(6)), LogEndOffset: new(int64(900)), HighWatermark: new(int64(890)),
			MissingCommitted: new(int64(40)), MissingRecords: new(int64(60)),
		},
		{
			BrokerId: new(int32(3)), State: runnelv1.BrokerState_BROKER_STATE_ACTIVE, Role: runnelv1.CopyRole_COPY_ROLE_BEHIND,
			ReportedAt: timestamppb.Now(), Intact: new(true), LastEpoch: new(int64(6)), LogEndOffset: new(int64(960)), HighWatermark: new(int64(940)),
			MissingCommitted: new(int64(0)), MissingRecords: new(int64(0)),
		},
		{BrokerId: new(int32(1)), State: runnelv1.BrokerState_BROKER_STATE_FENCED, Role: runnelv1.CopyRole_COPY_ROLE_IN_SYNC},
	}}
}

// What would be lost is shown before anything is done; without --yes nothing is
// done where nobody can be asked.
func TestPartitionRecover(t *testing.T) {
	p := newPatient()
	addr := p.serve(t)
	r := cli(t, "y\n", "partition", "recover", "orders/3", "--brokers", addr)
	if r.code != exitUsage || len(p.elected) != 0 || !strings.Contains(r.err, "--yes") {
		t.Errorf("exit code %d, elected %v\n%s", r.code, p.elected, r.err)
	}
	for _, want := range []string{"last known", "900", "890", "at least 40 acknowledged", "60", "1 of 3 copies", "if the copy of broker 1 can be brought back"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
	r = cli(t, "", "partition", "recover", "orders/3", "--yes", "--brokers", addr)
	if r.code != 0 || len(p.elected) != 1 || p.elected[0] != 2 || !strings.Contains(r.out, "broker 2 leads orders/3 since leader epoch 8") {
		t.Errorf("exit code %d, elected %v\n%s%s", r.code, p.elected, r.out, r.err)
	}
	r = cli(t, "", "partition", "recover", "orders/3", "--from", "3", "--yes", "--brokers", addr)
	if r.code != 0 || len(p.elected) != 2 || p.elected[1] != 3 || !strings.Contains(r.out, "loses nothing that another reported copy has.") {
		t.Errorf("exit code %d, elected %v\n%s%s", r.code, p.elected, r.out, r.err)
	}
}

func TestPartitionRecover_json(t *testing.T) {
	p := newPatient()
	addr := p.serve(t)
	for _, yes := range []bool{false, true} {
		args := []string{"partition", "recover", "orders/3", "--format", "json", "--brokers", addr}
		if yes {
			args = append(args, "--yes")
		}
		r := cli(t, "", args...)
		var v recoveryView
		if err := json.Unmarshal([]byte(r.out), &v); err != nil {
			t.Fatalf("%v\n%s", err, r.out)
		}
		if (r.code == 0) != yes || v.Elected != yes || (v.LeaderEpoch != nil) != yes || v.Leader == nil || *v.Leader != 2 || len(p.elected) > 1 {
			t.Errorf("exit code %d\n%s", r.code, r.out)
		}
		if len(v.Copies) != 3 || *v.Copies[0].MissingCommitted != 40 || v.Copies[2].LogEnd != nil {
			t.Errorf("copies in\n%s", r.out)
		}
	}
}

// Each reason for which nothing can be elected comes with what to do.
func TestPartitionRecover_none(t *testing.T) {
	for want, c := range map[string]struct {
		leader *int32
		args   []string
	}{
		"is led by broker 4: there is nothing":      {leader: new(int32(4))},
		"broker 1 is fenced: start it":              {args: []string{"--from", "1"}},
		"broker 9 has no copy of orders/3: choose":  {args: []string{"--from", "9"}},
		"no copy of orders/3 can be elected: start": {},
	} {
		p := newPatient()
		p.best, p.leader = nil, c.leader
		r := cli(t, "", append([]string{"partition", "recover", "orders/3", "--yes", "--brokers", p.serve(t)}, c.args...)...)
		if r.code != exitFailed || len(p.elected) != 0 || !strings.Contains(r.err, want) || !strings.Contains(r.out, "900") {
			t.Errorf("exit code %d, elected %v, want %q in\n%s%s", r.code, p.elected, want, r.err, r.out)
		}
	}
}

// In the seconds before a broker that died is out of service its partitions still
// seem to be led, and its copy to be in sync: that it does not answer is said.
func TestPartitionRecover_silent(t *testing.T) {
	p := newPatient()
	p.copies[0].Silent, p.best, p.leader = new(true), nil, new(int32(2))
	addr := p.serve(t)
	r := cli(t, "", "partition", "recover", "orders/3", "--yes", "--brokers", addr)
	if r.code != exitFailed || len(p.elected) != 0 || !strings.Contains(r.err, "is led by broker 2 as the controllers last knew, and that does not answer") ||
		!strings.Contains(r.out, "2       silent") || !strings.Contains(r.out, "silent (2) are in service") {
		t.Errorf("exit code %d, elected %v\n%s%s", r.code, p.elected, r.out, r.err)
	}
	p.copies[1].Silent, p.best, p.leader = new(true), nil, nil
	r = cli(t, "", "partition", "recover", "orders/3", "--yes", "--brokers", addr)
	if r.code != exitFailed || !strings.Contains(r.err, "is silent: look again in a few seconds, start one of the brokers") || !strings.Contains(r.out, "silent (2,3) are in service") {
		t.Errorf("exit code %d\n%s%s", r.code, r.out, r.err)
	}
	r = cli(t, "", "partition", "recover", "orders/3", "--format", "json", "--brokers", addr)
	var v recoveryView
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || !v.Copies[0].Silent || v.Copies[2].Silent || v.Copies[0].State != "active" {
		t.Errorf("%v\n%s", err, r.out)
	}
}

func TestBrokerFence(t *testing.T) {
	p := newPatient()
	addr := p.serve(t)
	r := cli(t, "y\n", "broker", "fence", "2", "--brokers", addr)
	if r.code != exitUsage || len(p.fenced) != 0 || !strings.Contains(r.err, "--yes") || !strings.Contains(r.out, "b2:7420") {
		t.Errorf("exit code %d, fenced %v\n%s%s", r.code, p.fenced, r.out, r.err)
	}
	r = cli(t, "", "broker", "fence", "7", "--yes", "--brokers", addr)
	if r.code != exitFailed || len(p.fenced) != 0 || !strings.Contains(r.err, "no broker 7: see runnel broker list") {
		t.Errorf("exit code %d, fenced %v\n%s%s", r.code, p.fenced, r.out, r.err)
	}
	r = cli(t, "", "broker", "fence", "2", "--yes", "--brokers", addr)
	if r.code != 0 || len(p.fenced) != 1 || !strings.Contains(r.out, "registration 17") || !strings.Contains(r.err, "not every broker has heard") {
		t.Errorf("exit code %d, fenced %v\n%s%s", r.code, p.fenced, r.out, r.err)
	}
	r = cli(t, "", "broker", "fence", "2", "--yes", "--format", "json", "--brokers", addr)
	var v map[string]any
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || v["broker"] != 2.0 || v["broker_epoch"] != 17.0 || v["applied"] != false {
		t.Errorf("%v\n%s", err, r.out)
	}
}

func TestAsk(t *testing.T) {
	for in, want := range map[string]error{"y\n": nil, "YES\r\n": nil, "n\n": errQuiet, "\n": errQuiet, "": errQuiet, "yesterday\n": errQuiet} {
		var errs bytes.Buffer
		a := &app{terminal: terminal{in: strings.NewReader(in), err: &errs}}
		if err := a.ask("Go on?"); !errors.Is(err, want) || !strings.HasPrefix(errs.String(), "Go on? [y/N] ") {
			t.Errorf("%q: %v, %q", in, err, errs.String())
		}
	}
}
