package broker

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/google/uuid"
	"github.com/rs/zerolog"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
)

// A watchedListener tells when it is closed for the first time.
type watchedListener struct {
	net.Listener

	open    atomic.Bool
	closing func()
}

// Close implements net.Listener.
func (l *watchedListener) Close() error {
	if l.open.Swap(false) {
		l.closing()
	}
	return l.Listener.Close()
}

// The internal port is there before the controller can hear of the broker, and
// until the session has ended: a refused dial is how a controller tells that the
// process is dead.
func TestInternalPortOutlivesTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		var internal atomic.Pointer[watchedListener]
		var dials, closed atomic.Int32
		cfg := testConfig()
		b, err := New(cfg, Deps{
			FS: w.fault, Log: zerolog.Nop(),
			Listen: func(ctx context.Context, addr string) (net.Listener, error) {
				l, err := w.net.listen(ctx, addr)
				if err != nil || addr != cfg.Listen.Internal {
					return l, err
				}
				wl := &watchedListener{Listener: l, closing: func() {
					closed.Add(1)
					if h := w.controller.Heard(); h.Ended != 1 || h.Sessions != 0 {
						t.Errorf("closes its internal port with %d open sessions, %d ended", h.Sessions, h.Ended)
					}
				}}
				wl.open.Store(true)
				internal.Store(wl)
				return wl, nil
			},
			Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				if addr == controllerAddr {
					dials.Add(1)
					if l := internal.Load(); l == nil || !l.open.Load() {
						t.Error("goes to the controller before its internal port is bound")
					}
				}
				return w.net.dial(ctx, addr)
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		w.wg.Go(func() { done <- b.Run(ctx) })
		<-b.Ready()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v", err)
		}
		if dials.Load() == 0 || closed.Load() != 1 {
			t.Errorf("went to the controller %d times, closed the port %d times", dials.Load(), closed.Load())
		}
	})
}

// A broker whose id another process has by now is not the one in service.
func TestNotReadyUnderAnotherIncarnation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t)
		defer w.close()
		b := w.started(testConfig())
		defer b.end(t)
		own := w.controller.Heard().Registers[0].GetBroker().GetIncarnation()
		active, fenced := controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, controllerv1.BrokerPhase_BROKER_PHASE_FENCED
		for epoch, c := range []struct {
			incarnation string
			phase       controllerv1.BrokerPhase
			want        healthpb.HealthCheckResponse_ServingStatus
		}{
			{own, active, healthpb.HealthCheckResponse_SERVING},
			{uuid.NewString(), active, healthpb.HealthCheckResponse_NOT_SERVING},
			{own, active, healthpb.HealthCheckResponse_SERVING},
			{own, fenced, healthpb.HealthCheckResponse_NOT_SERVING},
		} {
			w.controller.Put(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
				BrokerId: 1, Incarnation: c.incarnation, BrokerEpoch: int64(epoch + 1), Phase: c.phase, ClientAddress: clientAddr, InternalAddress: internalAddr,
			}}})
			synctest.Wait()
			r, err := healthpb.NewHealthClient(w.conn).Check(t.Context(), &healthpb.HealthCheckRequest{})
			if err != nil || r.GetStatus() != c.want {
				t.Errorf("%v as this process: %v; health %v, %v, want %v", c.phase, c.incarnation == own, r, err, c.want)
			}
		}
	})
}
