package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/vfs"
)

func TestFromBirthToDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		health := healthpb.NewHealthClient(w.conn)
		b := w.started(testConfig())
		if a := b.Addrs(); a.Client != clientAddr || a.Internal != internalAddr || a.Admin != "" {
			t.Errorf("bound to %+v", a)
		}
		if r, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{Service: "runnel.v1.LogService"}); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health: %v, %v", r, err)
		}
		w.create("orders", 1, nil)
		for i := range 10 {
			if off, err := w.produce("orders", fmt.Sprint(i)); err != nil || off != int64(i) {
				t.Fatalf("produce: %d, %v", off, err)
			}
		}
		want := []string{"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}
		if got, err := w.read("orders"); err != nil || !slices.Equal(got, want) {
			t.Errorf("read %v, %v", got, err)
		}
		start := time.Now()
		b.end(t)
		if took := time.Since(start); took > 200*time.Millisecond {
			t.Errorf("an idle broker took %v to end", took)
		}
		h := w.controller.Heard()
		if h.Leaving != 1 || h.Ended != 1 {
			t.Errorf("left with %d hand-overs and %d orderly ends of the session", h.Leaving, h.Ended)
		}
		if _, err := w.disk.Stat("data/runnel.clean"); err != nil {
			t.Errorf("no clean marker: %v", err)
		}
		// Again, from the same disk.
		b = w.started(testConfig())
		defer b.end(t)
		if off, err := w.produce("orders", "10"); err != nil || off != 10 {
			t.Errorf("goes on at %d, %v", off, err)
		}
		if got, err := w.read("orders"); err != nil || !slices.Equal(got, append(want, "10")) {
			t.Errorf("read %v, %v", got, err)
		}
		if h := w.controller.Heard(); len(h.Reports) != 1 || h.Reports[0].GetShape() != controllerv1.ReplicaShape_REPLICA_SHAPE_INTACT || h.Reports[0].GetLogEndOffset() != 10 {
			t.Errorf("reported %v", h.Reports)
		}
	})
}

// A broker that was let into service, and whose partitions are about to be
// elected, is not ready: the first request would be refused.
func TestReadyWhenItLeads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		id := uuid.New()
		objects := metadatatest.TopicObjects(id, "orders", 2, 1, 1)
		waiting := metadatatest.PartitionObject(id, 1, 1, 1)
		waiting.GetPartition().Leader = int32(metadata.NoBroker)
		waiting.GetPartition().Isr = []int32{1, 2} // else the controller of this test elects it together with the admission
		waiting.GetPartition().Replicas = []int32{1, 2}
		w.controller.Put(append(objects[:2], waiting)...)
		b := w.start(testConfig())
		defer b.end(t)
		health := healthpb.NewHealthClient(w.conn)
		time.Sleep(5 * time.Second)
		select {
		case <-b.Ready():
			t.Error("ready without a leader")
		default:
		}
		if r, err := health.Check(t.Context(), &healthpb.HealthCheckRequest{}); err != nil || r.GetStatus() != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("health: %v, %v", r, err)
		}
		w.controller.Put(metadatatest.PartitionObject(id, 1, 1, 2))
		time.Sleep(time.Second)
		select {
		case <-b.Ready():
		default:
			t.Error("not ready though all is led")
		}
	})
}

// With every controller gone records flow on, and only admin writes wait.
func TestWithoutControllers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		w.create("orders", 1, nil)
		w.controller.Set(metadatatest.Refuse(status.Error(codes.Unavailable, "down")))
		w.controller.Break(status.Error(codes.Unavailable, "down"))
		time.Sleep(time.Minute)
		if off, err := w.produce("orders", "x"); err != nil || off != 0 {
			t.Errorf("produce: %d, %v", off, err)
		}
		if got, err := w.read("orders"); err != nil || len(got) != 1 {
			t.Errorf("read %v, %v", got, err)
		}
		_, err := w.admin().CreateTopics(t.Context(), &runnelv1.CreateTopicsRequest{Topics: []*runnelv1.NewTopic{{Name: "other"}}})
		if status.Code(err) != codes.Unavailable || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE {
			t.Errorf("create: %v", err)
		}
		start := time.Now()
		_, err = w.produce("unknown", "x")
		if status.Code(err) != codes.Unavailable || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA || time.Since(start) > 600*time.Millisecond {
			t.Errorf("an unknown topic: %v after %v", err, time.Since(start))
		}
		health, err := w.admin().CheckHealth(t.Context(), &runnelv1.CheckHealthRequest{})
		if err != nil || health.GetHealthy() || !slices.ContainsFunc(health.GetFindings(), func(f *runnelv1.HealthFinding) bool { return f.GetKind() == "no_controller" }) {
			t.Errorf("health: %v, %v", health, err)
		}
		r, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
		if err != nil || r.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("the broker is not ready without controllers: %v, %v", r, err)
		}
		start = time.Now()
		b.end(t)
		if took := time.Since(start); took < 2*time.Second || took > 3*time.Second {
			t.Errorf("ended after %v: it gives a controller 2 s", took)
		}
	})
}

// A kill loses nothing that was acknowledged.
func TestKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		w.create("orders", 1, nil)
		for i := range 5 {
			if _, err := w.produce("orders", fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		w.disk.Kill() // its files are no longer the process's
		b.cancel()
		<-b.done
		w.fault = vfs.NewFault(w.disk)
		b = w.started(testConfig())
		defer b.end(t)
		if got, err := w.read("orders"); err != nil || len(got) != 5 {
			t.Errorf("read %v, %v", got, err)
		}
		if off, err := w.produce("orders", "5"); err != nil || off != 5 {
			t.Errorf("produce: %d, %v", off, err)
		}
	})
}

// The disk fails: nothing positive is answered, and the process ends with an
// error, fast.
func TestDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		w.create("orders", 1, nil)
		if _, err := w.produce("orders", "0"); err != nil {
			t.Fatal(err)
		}
		w.fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: "*.log", Times: -1, Err: syscall.EIO})
		start := time.Now()
		_, err := w.produce("orders", "1")
		if reason := rpcerr.Reason(err); err == nil || (reason != runnelv1.ErrorReason_ERROR_REASON_COMMIT_UNCERTAIN && status.Code(err) != codes.Unavailable) {
			t.Errorf("a write that met the failure: %v", err)
		}
		<-b.done
		if !errors.Is(b.err, commitlog.ErrFailed) {
			t.Errorf("Run = %v", b.err)
		}
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("took %v to go down", took)
		}
		if _, err := w.disk.Stat("data/runnel.clean"); err == nil {
			t.Error("left a clean marker behind")
		}
	})
}

// A disk that fails somewhere and hangs elsewhere: what hangs does not keep the
// broker from giving everything up, and whoever waits for that is told.
func TestDiskFailsAndHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		bad, slow := w.create("bad", 1, nil), w.create("slow", 1, nil)
		if _, err := w.produce("slow", "0"); err != nil {
			t.Fatal(err)
		}
		w.fault.Before(vfs.OpSync, func(_ vfs.Op, name string) {
			if strings.HasSuffix(name, "checkpoint.tmp") || strings.Contains(name, slow) {
				time.Sleep(time.Hour)
			}
		})
		time.Sleep(testConfig().Storage.CheckpointInterval.Std() + time.Second) // one of them hangs
		w.fault.Inject(vfs.Rule{Ops: vfs.OpSync, Path: bad + "/0/*.log", Times: -1, Err: syscall.EIO})
		start := time.Now()
		time.AfterFunc(time.Second, func() { _, _ = w.produce("bad", "0") })
		_, err := w.produce("slow", "1")
		if took := time.Since(start); took > 3*time.Second || err == nil {
			t.Errorf("a write that waits for the disk was answered after %v: %v", took, err)
		}
		<-b.done
	})
}

// Streams get a Goaway; a client that half-closes gets OK, one that does not is
// cut off with UNAVAILABLE after the grace, and the broker ends.
func TestShutdownWithOpenStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		w.create("orders", 1, nil)
		fetch, err := runnelv1.NewLogServiceClient(w.conn).Fetch(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := fetch.Send(&runnelv1.FetchRequest{Options: &runnelv1.FetchOptions{Follow: true}, Partitions: []*runnelv1.FetchPartition{{Topic: "orders"}}}); err != nil {
			t.Fatal(err)
		}
		watch, err := runnelv1.NewMetadataServiceClient(w.conn).WatchMetadata(t.Context(), &runnelv1.WatchMetadataRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if m, err := watch.Recv(); err != nil || !m.GetSnapshotComplete() || len(m.GetTopics()) != 1 {
			t.Fatalf("%v, %v", m, err)
		}
		if _, err := w.produce("orders", "0"); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		b.cancel()
		goaway := func(recv func() (*runnelv1.Goaway, error)) error {
			seen := false
			for {
				g, err := recv()
				if err != nil {
					if !seen {
						t.Error("no goaway before the end")
					}
					return err
				}
				seen = seen || g.GetReason() == runnelv1.GoawayReason_GOAWAY_REASON_DRAINING
			}
		}
		for name, err := range map[string]error{
			"watch": goaway(func() (*runnelv1.Goaway, error) { m, err := watch.Recv(); return m.GetGoaway(), err }),
			"fetch": goaway(func() (*runnelv1.Goaway, error) { m, err := fetch.Recv(); return m.GetGoaway(), err }),
		} {
			if status.Code(err) != codes.Unavailable || rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_SHUTTING_DOWN {
				t.Errorf("%s: %v", name, err)
			}
		}
		<-b.done
		if took := time.Since(start); b.err != nil || took > 3*time.Second {
			t.Errorf("Run = %v after %v", b.err, took)
		}
	})
}

func TestStartFailures(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(w *town, cfg *Config)
		want    string
	}{
		"a port in use": {func(w *town, cfg *Config) {
			if _, err := w.net.listen(w.t.Context(), cfg.Listen.Client); err != nil {
				w.t.Fatal(err)
			}
		}, "listen.client 127.0.0.1:7420"},
		"a data directory in use": {func(w *town, cfg *Config) {
			r, err := commitlog.OpenRoot(w.fault, cfg.DataDir, commitlog.RootOptions{BrokerID: 1})
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { _ = r.Close(1) })
		}, "data_dir data: the data directory is in use"},
		"another broker's data directory": {func(w *town, cfg *Config) {
			r, err := commitlog.OpenRoot(w.fault, cfg.DataDir, commitlog.RootOptions{BrokerID: 2})
			if err != nil {
				w.t.Fatal(err)
			}
			if err := r.Close(1); err != nil {
				w.t.Fatal(err)
			}
		}, "data_dir data"},
		"another cluster's data directory": {func(w *town, cfg *Config) {
			r, err := commitlog.OpenRoot(w.fault, cfg.DataDir, commitlog.RootOptions{BrokerID: 1, ClusterID: uuid.NewString()})
			if err != nil {
				w.t.Fatal(err)
			}
			if err := r.Close(1); err != nil {
				w.t.Fatal(err)
			}
		}, metadata.ErrClusterMismatch.Error()},
		"a certificate that is not there": {func(_ *town, cfg *Config) {
			cfg.Security.CertFile, cfg.Security.KeyFile = "no-such.pem", "no-such.key"
		}, "no-such.pem"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newTown(t)
				cfg := testConfig()
				c.prepare(w, &cfg)
				r := w.start(cfg)
				<-r.done
				if r.err == nil || !strings.Contains(r.err.Error(), c.want) {
					t.Errorf("Run = %v, want it to say %q", r.err, c.want)
				}
				w.close()
			})
		})
	}
}

// What CheckHealth says when something is wrong.
func TestHealthFindings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		defer b.end(t)
		kinds := func() []string {
			resp, err := w.admin().CheckHealth(t.Context(), &runnelv1.CheckHealthRequest{})
			if err != nil {
				t.Fatal(err)
			}
			var out []string
			for _, f := range resp.GetFindings() {
				if f.GetSeverity() > runnelv1.HealthSeverity_HEALTH_SEVERITY_INFO {
					out = append(out, f.GetKind())
				}
			}
			if resp.GetHealthy() != (len(out) == 0) {
				t.Errorf("healthy %v with %v", resp.GetHealthy(), out)
			}
			return out
		}
		if got := kinds(); len(got) != 0 {
			t.Errorf("a healthy cluster: %v", got)
		}
		for _, st := range []healthpb.HealthCheckResponse_ServingStatus{healthpb.HealthCheckResponse_NOT_SERVING, healthpb.HealthCheckResponse_SERVING} {
			w.health.SetServingStatus("", st)
			down := st == healthpb.HealthCheckResponse_NOT_SERVING
			if got := kinds(); slices.Contains(got, "controller_down") != down {
				t.Errorf("with a controller that says %v: %v", st, got)
			}
			want := map[bool]runnelv1.ControllerState{false: runnelv1.ControllerState_CONTROLLER_STATE_ACTIVE, true: runnelv1.ControllerState_CONTROLLER_STATE_DOWN}[down]
			d, err := w.admin().DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
			if err != nil || len(d.GetControllers()) != 1 || d.GetControllers()[0].GetState() != want || (d.GetControllers()[0].GetProblem() != "") != down {
				t.Errorf("with a controller that says %v: %v, %v", st, d.GetControllers(), err)
			}
		}
		id := uuid.MustParse(w.create("orders", 1, nil))
		leaderless := metadatatest.PartitionObject(id, 0, 1, 2)
		leaderless.GetPartition().Leader = -1
		w.controller.Put(leaderless)
		synctest.Wait()
		if got := kinds(); !slices.Equal(got, []string{"offline_partition"}) {
			t.Errorf("without a leader: %v", got)
		}
		thin := metadatatest.PartitionObject(id, 0, 1, 3)
		thin.GetPartition().Replicas, thin.GetPartition().MinIsr = []int32{1, 2}, 2
		w.controller.Put(thin)
		synctest.Wait()
		if got := kinds(); !slices.Equal(got, []string{"under_min_isr"}) {
			t.Errorf("below the minimum: %v", got)
		}
		lossy := metadatatest.PartitionObject(id, 0, 1, 4)
		lossy.GetPartition().LossyEpochs = []int64{2, 4}
		w.controller.Put(lossy)
		synctest.Wait()
		if got := kinds(); !slices.Equal(got, []string{"records_may_be_missing"}) {
			t.Errorf("after a recovery election: %v", got)
		}
		healed := metadatatest.PartitionObject(id, 0, 1, 5)
		healed.GetPartition().LossyEpochs = []int64{2, 4}
		w.controller.Put(healed)
		synctest.Wait()
		if got := kinds(); len(got) != 0 {
			t.Errorf("healed: %v", got)
		}
		w.controller.Put(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_DeletedTopicId{DeletedTopicId: id.String()}})
		synctest.Wait()
		if got := kinds(); !slices.Equal(got, []string{"quarantined_directory"}) {
			t.Errorf("an unknown directory: %v", got)
		}
		w.controller.Set(metadatatest.Refuse(status.Error(codes.Unauthenticated, "another secret")))
		w.controller.Break(status.Error(codes.Unavailable, "restarted"))
		time.Sleep(5 * time.Second)
		if got := kinds(); !slices.Equal(got, []string{"controller_refuses", "no_controller", "quarantined_directory"}) {
			t.Errorf("refused by the controller: %v", got)
		}
		d, err := w.admin().DescribeCluster(t.Context(), &runnelv1.DescribeClusterRequest{})
		if err != nil || len(d.GetControllers()) != 1 || d.GetControllers()[0].GetProblem() != "it refuses this broker: another secret" ||
			d.GetControllers()[0].GetState() != runnelv1.ControllerState_CONTROLLER_STATE_DOWN {
			t.Errorf("refused by the controller: %v, %v", d.GetControllers(), err)
		}
		_, err = w.admin().CreateTopics(t.Context(), &runnelv1.CreateTopicsRequest{Topics: []*runnelv1.NewTopic{{Name: "t"}}, Timeout: durationpb.New(time.Second)})
		if rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_CONTROLLER_UNAVAILABLE || !strings.HasSuffix(status.Convert(err).Message(), "the controllers refuse this broker: another secret") {
			t.Errorf("a topic without a controller: %v", err)
		}
		_, err = w.produce("unknown", "x")
		if rpcerr.Reason(err) != runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA || !strings.HasSuffix(status.Convert(err).Message(), "the controllers refuse this broker: another secret") {
			t.Errorf("an unknown topic without a controller: %v", err)
		}
	})
}

// The admin port, on a real socket.
func TestAdminPort(t *testing.T) {
	w := newTown(t)
	defer w.close()
	cfg := testConfig()
	cfg.Listen.Admin = "127.0.0.1:0"
	b, err := New(cfg, Deps{FS: w.fault, Listen: func(ctx context.Context, addr string) (net.Listener, error) {
		if addr == cfg.Listen.Admin {
			var lc net.ListenConfig
			return lc.Listen(ctx, "tcp", addr)
		}
		return w.net.listen(ctx, addr)
	}, Dial: w.net.dial, Log: zerolog.Nop()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var run sync.WaitGroup
	run.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Errorf("Run = %v", err)
		}
	})
	defer run.Wait()
	defer cancel()
	<-b.Ready()
	get := func(path string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+b.Addrs().Admin+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		if code, body := get(path); code != http.StatusOK {
			t.Errorf("%s = %d %s", path, code, body)
		}
	}
	_, body := get("/metrics")
	for _, name := range []string{
		"runnel_offline_partitions 0", "runnel_under_replicated_partitions 0", "runnel_under_min_isr_partitions 0", "runnel_ready 1",
		"runnel_disk_free_bytes", "runnel_suspect_replicas 0", "process_open_fds",
	} {
		if !strings.Contains(body, name) {
			t.Errorf("/metrics has no %s", name)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}
