package controller_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
)

// Whatever is lost between a controller and its store, and whichever controller
// is active, no producer id is given twice.
func TestProducerIDs_are_given_once(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			w := newWorld(t)
			first := w.controller(addr1, nil)
			<-first.Ready()
			second := w.controller(addr2, nil)
			defer second.stop(t)
			synctest.Wait()
			var last int64
			given := 0
			ask := func(addr string) error {
				resp, err := w.client(addr).AllocateProducerIds(t.Context(), &controllerv1.AllocateProducerIdsRequest{BrokerId: 1})
				if err != nil {
					return err
				}
				if resp.GetFirstProducerId() <= last || resp.GetCount() < 100 {
					t.Fatalf("seed %d: %v, after %d", seed, resp, last)
				}
				last = resp.GetFirstProducerId() + int64(resp.GetCount()) - 1
				given++
				return nil
			}
			w.kv.Inject(func([]store.Write) storetest.Fault {
				return []storetest.Fault{
					storetest.FaultNone, storetest.FaultNone, storetest.FaultBefore, storetest.FaultAfter, storetest.FaultDelayed,
				}[rng.IntN(5)]
			})
			for range 20 {
				_ = ask(addr1) // an error: nobody's
				if rng.IntN(3) == 0 {
					w.kv.Release()
				}
			}
			w.kv.Inject(nil)
			w.kv.Release()
			wantReason(t, "a standby", ask(addr2), runnelv1.ErrorReason_ERROR_REASON_NOT_CONTROLLER)
			first.stop(t)
			<-second.Ready()
			time.Sleep(time.Second)
			for range 3 {
				if err := ask(addr2); err != nil {
					t.Errorf("seed %d: %v", seed, err)
				}
			}
			if given < 10 {
				t.Errorf("seed %d: %d blocks were given", seed, given)
			}
		})
	}
}
