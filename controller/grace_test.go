package controller_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
)

// A sole controller, which can leave the brokers to nobody, gives them as much time as a new one would when it hears them again.
func TestSoleController_that_heard_nobody_fences_nobody_afterwards(t *testing.T) {
	alone(t, func(_ *controller.Config, d *controller.Deps) { d.Sole = true }, func(w *world) {
		t := w.t
		var b []*broker
		for id := range int32(3) {
			b = append(b, w.newBroker(id+1).serve(addr1))
			defer b[id].leave()
		}
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3))}).GetTopicId()
		before := b[0].partition(topic, 0)
		hear := func(mute bool, brokers ...*broker) {
			for _, br := range brokers {
				br.locked(func() { br.mute = mute })
			}
		}
		hear(true, b...)
		time.Sleep(30 * time.Second)
		hear(false, b[0])
		time.Sleep(4 * time.Second)
		hear(false, b[1])
		time.Sleep(10 * time.Second)
		now := b[0].partition(topic, 0)
		if b[0].phase(1) != inService || b[0].phase(2) != inService {
			t.Errorf("brokers that were heard again are %v and %v", b[0].phase(1), b[0].phase(2))
		}
		if b[0].phase(3) != fenced || slices.Contains(now.GetIsr(), 3) {
			t.Errorf("the one that was not is %v: %v after %v", b[0].phase(3), now, before)
		}
		hear(false, b[2])
	})
}

// A broker that shuts down while a controller is replaced has as much time to come to the next one as any other, and hands its
// leaderships over then.
func TestShutdown_goes_on_with_the_next_controller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.controller(addr1, nil)
		<-first.Ready()
		b := []*broker{w.newBroker(1).serve(addr1), w.newBroker(2).serve(addr1)}
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(2))}).GetTopicId()
		lead := b[b[0].partition(topic, 0).GetLeader()-1]
		other := b[lead.id()%2]
		leave := &controllerv1.SessionRequest{Event: &controllerv1.SessionRequest_ShuttingDown{ShuttingDown: &controllerv1.ShuttingDown{}}}
		lead.locked(func() { lead.deaf = true })
		lead.out <- leave
		other.until("the intent", func() bool { return other.phaseLocked(lead.id()) == shuttingDown })
		first.cancel()
		<-first.done
		for _, br := range b {
			_ = br.failure()
			br.leave()
		}
		second := w.controller(addr2, nil)
		defer second.stop(t)
		<-second.Ready()
		other.serve(addr2)
		defer other.leave()
		time.Sleep(time.Second)
		if p := other.partition(topic, 0); other.phase(lead.id()) != shuttingDown || p.GetLeader() != lead.id() {
			t.Errorf("before it could come it is %v: %v", other.phase(lead.id()), p)
		}
		lead.locked(func() { lead.deaf = false })
		lead.join(addr2)
		defer lead.leave()
		lead.out <- leave
		<-lead.drain
		synctest.Wait()
		if p := other.partition(topic, 0); p.GetLeader() != other.id() || len(lead.handOvers) < 2 {
			t.Errorf("asked %d times in all: %v", len(lead.handOvers), p)
		}
	})
}

// The only broker dies with its disk, and another one with its id comes, while there are several controllers: that it comes shows
// that the fault is not on their side, so the dead one is fenced in time.
func TestOnlyBroker_is_replaced_with_an_empty_disk(t *testing.T) {
	alone(t, nil, func(w *world) {
		t := w.t
		a := w.newBroker(1).serve(addr1)
		a.leave()
		start := time.Now()
		for served := false; !served && time.Since(start) < time.Minute; {
			b := w.newBroker(1)
			b.join(addr1)
			time.Sleep(time.Second)
			served = b.phase(1) == inService
			b.leave()
		}
		if took := time.Since(start); took < 2500*time.Millisecond || took > 10*time.Second {
			t.Errorf("it is taken after %v", took)
		}
	})
}
