package rpc

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/broker/metadata"
)

// What only another broker knows is told by whoever is asked.
func TestForward_health(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTown(t, 3, nil, LogOptions{})
		w.topic("t", 2)
		w.brokers[2].text("t", 0, "v")
		ask := func() (told []string, took time.Duration) {
			start, f, one := time.Now(), newFindings(), w.brokers[1]
			one.admin.checkOthers(t.Context(), f, one.store.Load())
			for _, h := range f.answer().GetFindings() {
				told = append(told, h.GetKind()+": "+h.GetSubject()+": "+h.GetMessage())
			}
			return told, time.Since(start)
		}
		if got, _ := ask(); len(got) != 0 {
			t.Errorf("all is well: %q", got)
		}
		bad := errors.New("bad")
		if err := w.brokers[2].part("t", 0).Damaged(0, 1, "corrupt payload", bad); !errors.Is(err, bad) {
			t.Fatal(err)
		}
		damaged := func(s string) bool { return strings.HasPrefix(s, "corrupt_partition: t/0: the copy of broker 2: ") }
		if got, _ := ask(); len(got) != 1 || !damaged(got[0]) {
			t.Errorf("broker 2 has damage: %q", got)
		}
		// One that hangs holds up the others' answers for a moment, and is told of
		// unless it is out of service, as every broker knows.
		w.mu.Lock()
		delete(w.listeners, internalAddress(3))
		w.mu.Unlock()
		w.cut(3)
		got, took := ask()
		slices.Sort(got)
		if len(got) != 2 || !strings.HasPrefix(got[0], "broker_unasked: broker 3: ") || strings.Contains(got[0], "desc = ") || !damaged(got[1]) || took > healthWait {
			t.Errorf("after %s, broker 3 is away: %q", took, got)
		}
		w.publish([]*controllerv1.MetadataObject{w.registration(3, controllerv1.BrokerPhase_BROKER_PHASE_FENCED)}, 1)
		synctest.Wait() // and connections are what they are to be
		if got, _ := ask(); len(got) != 1 || !damaged(got[0]) {
			t.Errorf("broker 3 is fenced: %q", got)
		}
		// One that is out of service, and there, tells why.
		w.publish([]*controllerv1.MetadataObject{w.registration(2, controllerv1.BrokerPhase_BROKER_PHASE_FENCED)}, 1)
		synctest.Wait()
		if got, _ := ask(); len(got) != 1 || !damaged(got[0]) {
			t.Errorf("broker 2 is fenced: %q", got)
		}
	})
}

// While brokers are upgraded one by one, those that can't be asked yet do no harm.
// That one refuses to be asked is told also of a broker that is out of service:
// it may be why.
func TestFindings_unasked(t *testing.T) {
	for err, want := range map[error]struct{ active, fenced string }{
		status.Error(codes.Unimplemented, "unknown method ForwardHealth"): {"info broker_unasked", ""},
		status.Error(codes.Unavailable, "gone"):                           {"warning broker_unasked", ""},
		context.DeadlineExceeded:                                          {"warning broker_unasked", ""},
		status.Error(codes.Unauthenticated, "another secret"):             {"critical broker_refuses", "critical broker_refuses"},
	} {
		for phase, want := range map[metadata.BrokerPhase]string{metadata.BrokerActive: want.active, metadata.BrokerFenced: want.fenced} {
			f, got := newFindings(), ""
			f.unasked(&metadata.Broker{ID: 2, Phase: phase}, 1, err)
			answer := f.answer()
			for _, h := range answer.GetFindings() {
				got += strings.ToLower(strings.TrimPrefix(h.GetSeverity().String(), "HEALTH_SEVERITY_")) + " " + h.GetKind()
			}
			if got != want || answer.GetHealthy() != (want == "" || strings.HasPrefix(want, "info")) {
				t.Errorf("%v of a broker in phase %d: %q, healthy %v; want %q", err, phase, got, answer.GetHealthy(), want)
			}
		}
	}
}

// Why a broker did not tell is said in words that gRPC did not choose.
func TestFindings_noAnswer(t *testing.T) {
	for want, err := range map[string]error{
		"had no answer: it may hang, or the way to it be cut": status.Error(codes.Canceled, "grpc: the client connection is closing"),
		"had no answer: it may hang, or":                      status.FromContextError(context.DeadlineExceeded).Err(),
		"had no answer: dial tcp 127.0.0.1:1: refused":        status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: refused"`),
	} {
		f := newFindings()
		f.unasked(&metadata.Broker{ID: 2, Phase: metadata.BrokerActive}, 1, err)
		if got := f.answer().GetFindings()[0].GetMessage(); !strings.Contains(got, want) {
			t.Errorf("%v\nis told as %s\nwant %s", err, got, want)
		}
	}
}
