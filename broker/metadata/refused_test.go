package metadata_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
)

// A broker whom all controllers refuse, as with another cluster secret, tries
// again every second, and its log says so twice a minute for each of them, in the
// controllers' words. Whoever asks the broker hears why, until it is let in.
func TestRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c")
		for _, c := range w.controllers {
			c.Set(metadatatest.Refuse(refusal("UNAUTHENTICATED", codes.Unauthenticated)))
		}
		defer w.run(t)()
		time.Sleep(59 * time.Second)
		settle()
		warned, tried := 0, 0
		for line := range strings.Lines(w.log.String()) {
			if strings.Contains(line, "no session with the controller") {
				tried++
				if strings.Contains(line, `"warn"`) {
					warned++
				}
			}
			if strings.Contains(line, "rpc error") {
				t.Errorf("the log has gRPC's words: %s", line)
			}
		}
		if warned != 6 || tried < 40 {
			t.Errorf("%d warnings of %d attempts in 59 s, want 6\n%s", warned, tried, w.log.String())
		}
		for _, c := range w.AskControllers(t.Context()) {
			if !c.Refused || c.Err == nil || c.Err.Error() != "refused" {
				t.Errorf("%s: %+v", c.Address, c)
			}
		}
		f := metadata.Finder{Store: w.store, CatchUp: w.CatchUp, Refusal: w.Refusal}
		const why = "; the controllers refuse this broker: refused"
		if _, err := f.Image(t.Context()); err == nil || !strings.HasSuffix(err.Error(), why) {
			t.Errorf("Image: %v", err)
		}
		if _, err := f.Find(t.Context(), "orders", ""); err == nil || !strings.HasSuffix(err.Error(), why) {
			t.Errorf("Find: %v", err)
		}
		for _, c := range w.controllers {
			c.Set(metadatatest.Refuse(nil))
		}
		time.Sleep(5 * time.Second)
		settle()
		if _, _, err := w.Controller(); err != nil || w.Refusal() != "" {
			t.Errorf("let in: %v, refused: %q", err, w.Refusal())
		}
		for _, c := range w.AskControllers(t.Context()) {
			if c.Refused || c.Err != nil {
				t.Errorf("%s: %+v", c.Address, c)
			}
		}
	})
}

func TestRefusesAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.id.cluster = "11111111-1111-1111-1111-111111111111"
		end := w.run(t)
		time.Sleep(time.Second)
		if w.store.Load().Revision != 0 {
			t.Error("took metadata of another cluster")
		}
		end()
		if !errors.Is(w.runErr, metadata.ErrClusterMismatch) {
			t.Errorf("Run = %v", w.runErr)
		}
		if w.id.cluster != "11111111-1111-1111-1111-111111111111" {
			t.Error("forgot its cluster")
		}
	})
}

// A controller that lost its data, and began another cluster, is as one that is
// away to a broker that runs: it goes on, and comes back when the data do.
func TestOutlivesAnotherCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		end := w.run(t)
		time.Sleep(time.Second)
		own, revision := w.controllers["a"].ClusterID(), w.store.Load().Revision
		if revision == 0 || w.id.cluster != own {
			t.Fatalf("at revision %d of cluster %q: it has not registered", revision, w.id.cluster)
		}
		w.controllers["a"].Set(metadatatest.Cluster("11111111-1111-1111-1111-111111111111"))
		w.controllers["a"].Break(status.Error(codes.Unavailable, "killed"))
		time.Sleep(10 * time.Second)
		if _, _, err := w.Controller(); err == nil {
			t.Error("obeys a controller of another cluster")
		}
		if got := w.AskControllers(t.Context())[0]; !got.Refused || !strings.Contains(got.Err.Error(), "cluster 11111111-1111-1111-1111-111111111111") {
			t.Errorf("tells of that controller: %+v", got)
		}
		if w.id.cluster != own || w.store.Load().Revision != revision {
			t.Errorf("at revision %d of cluster %q, want %d of %q", w.store.Load().Revision, w.id.cluster, revision, own)
		}
		w.controllers["a"].Set(metadatatest.Cluster(own))
		time.Sleep(10 * time.Second)
		if _, _, err := w.Controller(); err != nil {
			t.Errorf("its own cluster is back, and it is not: %v", err)
		}
		if got := w.Refusal(); got != "" {
			t.Errorf("still refused: %s", got)
		}
		end()
		if w.runErr != nil {
			t.Errorf("Run = %v", w.runErr)
		}
	})
}

// A controller without data must not make a broker forget whose it is.
func TestRefusesAnEmptyCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.id.cluster = "11111111-1111-1111-1111-111111111111"
		w.controllers["a"].Set(metadatatest.Cluster(""))
		end := w.run(t)
		time.Sleep(5 * time.Second)
		if _, _, err := w.Controller(); err == nil || w.store.Load().Revision != 0 {
			t.Error("registered with a controller that has no cluster")
		}
		end()
		if w.runErr != nil {
			t.Errorf("Run = %v: it may get its cluster yet", w.runErr)
		}
	})
}

// Who was given the port of a broker for that of a controller is told so.
func TestRefusal_noController(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a")
		w.controllers["a"].Set(metadatatest.Refuse(status.Error(codes.Unimplemented, "unknown service runnel.controller.v1.ControllerService")))
		defer w.run(t)()
		time.Sleep(time.Second)
		settle()
		if said := w.log.String(); !strings.Contains(said, "is it the port of a broker?") || strings.Contains(said, "unknown service") {
			t.Errorf("the log says %s", said)
		}
	})
}

// Who sends on to another controller refuses nobody any more, whether or not that
// one is there.
func TestRefusal_endsWithAReferral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		w.controllers["a"].Set(metadatatest.Refuse(refusal("UNAUTHENTICATED", codes.Unauthenticated)))
		w.controllers["b"].Set(metadatatest.Refuse(status.Error(codes.Unavailable, "away")))
		defer w.run(t)()
		time.Sleep(5 * time.Second)
		settle()
		if got := w.Refusal(); got != "refused" {
			t.Errorf("refused for %q", got)
		}
		w.controllers["a"].Set(metadatatest.Refuse(notController("b")))
		time.Sleep(5 * time.Second)
		settle()
		if got := w.Refusal(); got != "" {
			t.Errorf("still refused for %q", got)
		}
	})
}
