package controller_test

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
)

// watched turns on what the brokers of other tests can't stand.
func watched(c *controller.Config, _ *controller.Deps) {
	c.Cluster.Probe, c.Cluster.FastFencing = true, true
}

// detecting runs a test with a controller that probes, and n brokers that it reaches.
func detecting(t *testing.T, n int, change func(*controller.Config, *controller.Deps), test func(w *world, b []*broker, doors []*door)) {
	t.Helper()
	alone(t, func(c *controller.Config, d *controller.Deps) {
		watched(c, d)
		if change != nil {
			change(c, d)
		}
	}, func(w *world) {
		var brokers []*broker
		var doors []*door
		for id := range n {
			b := w.newBroker(int32(id + 1))
			doors = append(doors, b.open())
			b.serve(addr1)
			defer b.leave()
			doors[id].set(func(p *replicav1.ProbeResponse) { p.ClusterId = b.cluster() })
			brokers = append(brokers, b)
		}
		time.Sleep(2 * time.Second) // a new controller looks for those that have not come
		test(w, brokers, doors)
	})
}

// fencedAfter waits until a broker is fenced and returns how long that took.
func (b *broker) fencedAfter(id int32) time.Duration {
	b.w.t.Helper()
	start := time.Now()
	b.until("the fence", func() bool { return b.phaseLocked(id) == fenced })
	return time.Since(start)
}

func TestProbe_lets_in_who_is_reached(t *testing.T) {
	alone(t, watched, func(w *world) {
		t := w.t
		b := w.newBroker(1)
		b.join(addr1)
		defer b.leave()
		time.Sleep(10 * time.Second)
		if b.phase(1) != fenced {
			t.Errorf("nobody listens at its internal address, and it is %v", b.phase(1))
		}
		var d *door
		for name, change := range map[string]func(p *replicav1.ProbeResponse){
			"another broker":  func(p *replicav1.ProbeResponse) { p.BrokerId = 2 },
			"another process": func(p *replicav1.ProbeResponse) { p.Incarnation = uuid.NewString() },
			"another cluster": func(p *replicav1.ProbeResponse) { p.ClusterId = uuid.NewString() },
		} {
			d = b.openAs(change)
			time.Sleep(5 * time.Second)
			if b.phase(1) != fenced {
				t.Errorf("%s answers, and it is %v", name, b.phase(1))
			}
		}
		d.set(func(p *replicav1.ProbeResponse) {
			p.BrokerId, p.Incarnation, p.ClusterId = 1, b.register.GetBroker().GetIncarnation(), ""
		})
		start := time.Now()
		b.until("being in service", func() bool { return b.phaseLocked(1) == inService })
		if took := time.Since(start); took > time.Second {
			t.Errorf("in service %v after it could be reached", took)
		}
	})
}

func TestKilledBroker_is_fenced_at_once(t *testing.T) {
	detecting(t, 3, nil, func(w *world, b []*broker, _ []*door) {
		t := w.t
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3))}).GetTopicId()
		lead := b[0].partition(topic, 0).GetLeader()
		other := b[lead%3]
		start := time.Now()
		b[lead-1].kill()
		took := other.fencedAfter(lead)
		other.until("another leader", func() bool {
			p := other.partitions[partitionName(topic, 0)]
			return p.GetLeader() != lead && p.GetLeader() > 0 && len(p.GetIsr()) == 2
		})
		if took > 150*time.Millisecond || time.Since(start) > 200*time.Millisecond {
			t.Errorf("fenced after %v, another leader after %v", took, time.Since(start))
		}
		// It is back, and fenced at once when it dies again.
		again := b[lead-1].restarted()
		d := again.open()
		d.set(func(p *replicav1.ProbeResponse) { p.ClusterId = again.cluster() })
		again.serve(addr1)
		time.Sleep(5 * time.Second)
		again.kill()
		if took := other.fencedAfter(lead); took > 150*time.Millisecond {
			t.Errorf("the second time fenced after %v", took)
		}
	})
}

// The end of a connection alone proves nothing.
func TestBrokenConnection_is_not_death(t *testing.T) {
	for name, tt := range map[string]struct {
		brokers int
		change  func(*controller.Config, *controller.Deps)
		prepare func(w *world, b *broker, d *door)
		lo, hi  time.Duration
	}{
		"the broker answers":         {3, nil, func(*world, *broker, *door) {}, 2500 * time.Millisecond, 4 * time.Second},
		"its machine is not reached": {3, nil, func(w *world, _ *broker, _ *door) { w.setDial("broker-1:7421", os.ErrDeadlineExceeded) }, 2500 * time.Millisecond, 4 * time.Second},
		"somebody else answers": {3, nil, func(_ *world, _ *broker, d *door) {
			d.set(func(p *replicav1.ProbeResponse) { p.BrokerId = 7; p.Incarnation = "x" })
		}, 2500 * time.Millisecond, 4 * time.Second},
		"another cluster answers": {3, nil, func(_ *world, _ *broker, d *door) {
			d.set(func(p *replicav1.ProbeResponse) { p.ClusterId = "x"; p.Incarnation = "x" })
		}, 2500 * time.Millisecond, 4 * time.Second},
		"half of the brokers":           {2, nil, func(w *world, _ *broker, _ *door) { w.unplug("broker-1:7421") }, 2500 * time.Millisecond, 4 * time.Second},
		"it is turned off":              {3, func(c *controller.Config, _ *controller.Deps) { c.Cluster.FastFencing = false }, func(w *world, _ *broker, _ *door) { w.unplug("broker-1:7421") }, 2500 * time.Millisecond, 4 * time.Second},
		"nobody listens":                {3, nil, func(w *world, _ *broker, _ *door) { w.unplug("broker-1:7421") }, 0, 200 * time.Millisecond},
		"its next incarnation is there": {3, nil, func(_ *world, _ *broker, d *door) { d.set(func(p *replicav1.ProbeResponse) { p.Incarnation = "x" }) }, 0, 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			detecting(t, tt.brokers, tt.change, func(w *world, b []*broker, doors []*door) {
				tt.prepare(w, b[0], doors[0])
				_ = b[0].conn.Close()
				if took := b[1].fencedAfter(1); took < tt.lo || took > tt.hi {
					w.t.Errorf("fenced after %v, want %v to %v", took, tt.lo, tt.hi)
				}
			})
		})
	}
}

// A broker that cancels its session, and whose connection stands, has not died; nor has one that is only silent.
func TestOpenConnection_is_not_death(t *testing.T) {
	for _, mute := range []bool{false, true} {
		detecting(t, 3, nil, func(w *world, b []*broker, _ []*door) {
			w.unplug("broker-1:7421")
			b[0].mu.Lock()
			b[0].mute = true
			b[0].mu.Unlock()
			if !mute {
				b[0].cancel()
			}
			if took := b[1].fencedAfter(1); took < 2500*time.Millisecond {
				w.t.Errorf("mute %v: fenced after %v", mute, took)
			}
		})
	}
}

// With a session that stands, a probe that fails changes nothing.
func TestUnreachableAddress_of_a_live_session_changes_nothing(t *testing.T) {
	detecting(t, 3, nil, func(w *world, b []*broker, _ []*door) {
		topic := mustCreate(w.t, w.client(addr1), &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3))}).GetTopicId()
		before := b[0].partition(topic, 0)
		w.unplug("broker-1:7421")
		time.Sleep(10 * time.Second)
		if p := b[1].partition(topic, 0); b[1].phase(1) != inService || p.GetPartitionEpoch() != before.GetPartitionEpoch() {
			w.t.Errorf("broker 1 is %v, partition %v", b[1].phase(1), p)
		}
	})
}

// When many die at once, only as many are fenced at once as leave more than half.
func TestManyKilledBrokers_wait_for_their_time(t *testing.T) {
	detecting(t, 5, nil, func(w *world, b []*broker, _ []*door) {
		for _, k := range b[:4] {
			k.kill()
		}
		start := time.Now()
		time.Sleep(time.Second)
		dead := 0
		for id := range int32(4) {
			if b[4].phase(id+1) == fenced {
				dead++
			}
		}
		if dead != 2 {
			w.t.Errorf("%d of 5 were fenced at once", dead)
		}
		for id := range int32(4) {
			b[4].fencedAfter(id + 1)
		}
		if took := time.Since(start); took < 2500*time.Millisecond || took > 4*time.Second {
			w.t.Errorf("all were fenced after %v", took)
		}
	})
}

// A broker whose connection broke and that is back at once keeps everything.
func TestReconnectedBroker_is_not_fenced(t *testing.T) {
	detecting(t, 3, nil, func(w *world, b []*broker, _ []*door) {
		topic := mustCreate(w.t, w.client(addr1), &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3))}).GetTopicId()
		before := b[1].partition(topic, 0)
		_ = b[0].conn.Close()
		<-b[0].ended
		b[0].cancel()
		b[0].serve(addr1)
		w.unplug("broker-1:7421") // what an investigation of the first session would find
		time.Sleep(10 * time.Second)
		if p := b[1].partition(topic, 0); b[1].phase(1) != inService || p.GetPartitionEpoch() != before.GetPartitionEpoch() {
			w.t.Errorf("broker 1 is %v, partition %v", b[1].phase(1), p)
		}
	})
}

// A broker is not dead when it came back between the two refusals, or when there was only one.
func TestRefusedOnce_is_not_death(t *testing.T) {
	const addr = "broker-1:7421"
	for name, back := range map[string]func(w *world, b *broker){
		"it is back":      func(_ *world, b *broker) { b.serve(addr1) },
		"it listens anew": func(w *world, _ *broker) { w.setDial(addr, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			detecting(t, 3, nil, func(w *world, b []*broker, _ []*door) {
				topic := mustCreate(w.t, w.client(addr1), &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3))}).GetTopicId()
				before := b[1].partition(topic, 0)
				w.setDial(addr, syscall.ECONNREFUSED)
				_ = b[0].conn.Close()
				<-b[0].ended
				b[0].cancel()
				time.Sleep(25 * time.Millisecond) // between the dials
				back(w, b[0])
				time.Sleep(2 * time.Second)
				if p := b[1].partition(topic, 0); b[1].phase(1) != inService || p.GetPartitionEpoch() != before.GetPartitionEpoch() {
					w.t.Errorf("broker 1 is %v, partition %v", b[1].phase(1), p)
				}
			})
		})
	}
}

// inPairs runs a test with an active controller that can be killed, a standby, and n brokers at the active one.
func inPairs(t *testing.T, n int, test func(w *world, first *mortal, second *running, b []*broker)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		first := w.mortal(addr1, watched)
		defer func() {
			first.cancel()
			<-first.done
		}()
		<-first.Ready()
		second := w.controller(addr2, watched)
		defer second.stop(t)
		var brokers []*broker
		for id := range n {
			b := w.newBroker(int32(id + 1))
			d := b.open()
			b.serve(addr1)
			defer b.leave()
			d.set(func(p *replicav1.ProbeResponse) { p.ClusterId = b.cluster() })
			brokers = append(brokers, b)
		}
		time.Sleep(2 * time.Second)
		test(w, first, second, brokers)
	})
}

// readyWithin waits for a controller to be active, and reports whether it was in time.
func readyWithin(r *running, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-r.Ready():
		return true
	case <-timer.C:
		return false
	}
}

// RP-15: a new controller looks for the brokers that have not come to it, and takes one that died with its predecessor out of the
// ISR of every partition, within its session timeout and a second.
func TestKilledController_is_replaced_at_once(t *testing.T) {
	inPairs(t, 3, func(w *world, first *mortal, second *running, b []*broker) {
		t := w.t
		const partitions = 200
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", Partitions: new(int32(partitions)), ReplicationFactor: new(int32(3))}).GetTopicId()
		start := time.Now()
		first.kill(w)
		if !readyWithin(second, time.Minute) || time.Since(start) > 400*time.Millisecond {
			t.Fatalf("the standby was not active, or only after %v", time.Since(start))
		}
		// Broker 1 dies in the gap; the others find the new controller.
		_ = b[0].failure()
		b[0].kill()
		serving := time.Now()
		for _, br := range b[1:] {
			_ = br.failure()
			br.conn.Close()
			br.cancel()
			br.serve(addr2)
		}
		b[1].fencedAfter(1)
		if took := time.Since(serving); took < 400*time.Millisecond || took > 900*time.Millisecond {
			t.Errorf("the broker that did not come was fenced after %v", took)
		}
		b[1].until("the ISRs without it", func() bool {
			for n := range int32(partitions) {
				p := b[1].partitions[partitionName(topic, n)]
				if slices.Contains(p.GetIsr(), 1) || len(p.GetIsr()) != 2 || p.GetLeader() < 2 {
					return false
				}
			}
			return true
		})
		if took := time.Since(start); took > controller.DefaultConfig().Cluster.SessionTimeout.Std()+time.Second {
			t.Errorf("out of all ISRs only after %v", took)
		}
		time.Sleep(10 * time.Second)
		if b[1].phase(2) != inService || b[1].phase(3) != inService {
			t.Errorf("brokers %v and %v", b[1].phase(2), b[1].phase(3))
		}
	})
}

// A standby that loses its connection to an active controller that lives leaves it alone.
func TestStandby_does_not_depose_a_controller_that_lives(t *testing.T) {
	for name, tt := range map[string]struct{ end, dial error }{
		"it answers":        {io.EOF, nil},
		"it is not reached": {io.EOF, os.ErrDeadlineExceeded},
		// A network that loses packets ends connections too, and may refuse new ones in its name.
		"the connection timed out":       {syscall.ETIMEDOUT, syscall.ECONNREFUSED},
		"the connection was closed here": {net.ErrClosed, syscall.ECONNREFUSED},
	} {
		t.Run(name, func(t *testing.T) {
			inPairs(t, 1, func(w *world, _ *mortal, second *running, b []*broker) {
				w.setDial(addr1, tt.dial)
				w.cut(addr1, false, tt.end)
				time.Sleep(time.Minute)
				select {
				case <-second.Ready():
					w.t.Error("the standby took over")
				default:
				}
				if b[0].phase(1) != inService {
					w.t.Errorf("the broker is %v", b[0].phase(1))
				}
				w.setDial(addr1, nil)
			})
		})
	}
}

// Fault 64: an active controller that no broker reaches fences nobody, and another one takes over.
func TestIsolatedController_resigns(t *testing.T) {
	inPairs(t, 3, func(w *world, _ *mortal, second *running, b []*broker) {
		t := w.t
		topic := mustCreate(t, w.client(addr1), &runnelv1.NewTopic{Name: "t", ReplicationFactor: new(int32(3))}).GetTopicId()
		before := b[0].partition(topic, 0)
		for _, br := range b {
			w.setDial(br.register.GetBroker().GetInternalAddress(), context.DeadlineExceeded)
			br.mu.Lock()
			br.mute = true
			br.mu.Unlock()
		}
		start := time.Now()
		if !readyWithin(second, time.Minute) || time.Since(start) > 5*time.Second {
			t.Fatalf("it did not resign, or only after %v", time.Since(start))
		}
		for _, br := range b {
			if err := br.failure(); err == nil {
				t.Error("the session did not end")
			}
			br.conn.Close()
			br.cancel()
			br.locked(func() { br.mute = false })
			w.setDial(br.register.GetBroker().GetInternalAddress(), nil)
			br.serve(addr2)
		}
		time.Sleep(10 * time.Second)
		if p := b[0].partition(topic, 0); p.GetPartitionEpoch() != before.GetPartitionEpoch() || p.GetLeaderEpoch() != before.GetLeaderEpoch() {
			t.Errorf("partition %v, was %v", p, before)
		}
	})
}
