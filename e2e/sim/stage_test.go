package sim

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/e2e/history"
)

// A stage is where a story is played: one partition of three copies, and the
// faults of which the story tells, at the moments it tells of. What must hold
// is what must hold in any other run.
type stage struct {
	*cluster

	load  *load
	topic *topic
	key   state.PartitionKey
	// r are the hosts of the copies. The first one leads, and whenever it
	// can't, the first that can.
	r [3]*brokerHost
	// heals end what was begun and lasts.
	heals []func()
}

// A setting is what a story begins with.
type setting struct {
	controllers int               // 0: one
	configs     map[string]string // of the topic; nil: min.insync.replicas=2, flush=async
	lag         time.Duration     // 0: 5 s
	// finds are violations that must be found, because the story asks for them,
	// and tolerates those that may come with them.
	finds, tolerates []string
}

// play plays a story, and judges how it ends.
func play(t *testing.T, set setting, story func(s *stage)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		if set.lag == 0 {
			set.lag = 5 * time.Second
		}
		if set.configs == nil {
			set.configs = map[string]string{"min.insync.replicas": "2", "flush": "async"}
		}
		c := newCluster(t, 1, shape{controllers: max(set.controllers, 1), brokers: 3, lag: set.lag, latency: 2 * time.Millisecond})
		defer c.report()
		for _, kind := range slices.Concat(set.finds, set.tolerates) {
			c.judge.expected[kind] = 0
		}
		defer func() {
			for _, kind := range set.finds {
				if c.judge.expected[kind] == 0 {
					t.Errorf("%s was not found", kind)
				}
			}
		}()
		s := &stage{cluster: c, load: c.newLoad(), topic: &topic{name: "story", partitions: 1, history: history.New(history.Options{})}}
		c.topics = []*topic{s.topic}
		if err := c.create(s.topic, 30*time.Second, 3, set.configs); err != nil {
			t.Fatal(err)
		}
		rec := c.first()
		s.key = rec.PartitionKey()
		for i, id := range rec.Replicas {
			s.r[i] = c.brokers[id]
		}
		s.soon("all is well", 10*time.Second, func() bool { return s.inSync(0, 1, 2) && s.record().Leader == s.id(0) && s.inside(0).Settled })
		story(s)
		s.heal()
		c.settle(newSchedule(c), s.load)
		c.finish(s.load)
	})
}

// heal ends all that lasts.
func (s *stage) heal() {
	for _, fn := range s.heals {
		fn()
	}
	s.heals = nil
	for _, h := range s.brokers {
		if h.down {
			h.start()
		}
	}
	for _, h := range s.controllers {
		if h.down {
			h.start()
		}
	}
}

// lasting notes what ends something, at the end of the story or before.
func (s *stage) lasting(heal func()) func() {
	s.heals = append(s.heals, heal)
	return heal
}

// step lets a moment go by, and looks.
func (s *stage) step() { s.rest(2 * time.Millisecond) }

// stepFor lets some time go by.
func (s *stage) stepFor(d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); {
		s.rest(5 * time.Millisecond)
	}
}

func (s *stage) rest(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
	s.judge.look()
}

// soon waits for what must come for the story to go on.
func (s *stage) soon(what string, within time.Duration, cond func() bool) {
	s.t.Helper()
	end := time.Now().Add(within)
	for !cond() {
		if time.Now().After(end) {
			s.t.Errorf("the story does not go on: %v later it is not so that %s: %+v", within, what, *s.record())
			return
		}
		s.step()
	}
	s.logs.note("story: %s", what)
}

// must waits for what the protocol promises within a time.
func (s *stage) must(row, what string, within time.Duration, cond func() bool) {
	end := time.Now().Add(within)
	for !cond() {
		if time.Now().After(end) {
			s.judge.complain(row, "%v later it is not so that %s: %+v", within, what, *s.record())
			return
		}
		s.step()
	}
	s.logs.note("story: %s", what)
}

// record returns the partition's, as the store has it.
func (s *stage) record() *state.Partition { return s.first() }

func (s *stage) id(i int) state.BrokerID { return state.BrokerID(s.r[i].id) }

// inside returns a copy as it is; zero when the broker has none now.
func (s *stage) inside(i int) partition.Inside {
	if p := s.replica(s.id(i), s.key); p != nil {
		return p.Inside()
	}
	return partition.Inside{}
}

// inSync says whether the ISR is just these.
func (s *stage) inSync(is ...int) bool { return s.holds(s.record().ISR, is...) }

// eligible says whether the ELR is just these.
func (s *stage) eligible(is ...int) bool { return s.holds(s.record().ELR, is...) }

func (s *stage) holds(set []state.BrokerID, is ...int) bool {
	if len(set) != len(is) {
		return false
	}
	for _, i := range is {
		found := false
		for _, id := range set {
			found = found || id == s.id(i)
		}
		if !found {
			return false
		}
	}
	return true
}

// proposes says whether a copy leads and has proposed an ISR of which the store
// does not know yet.
func (s *stage) proposes(i int) bool {
	in := s.inside(i)
	return in.Leader && in.Proposals > 0 && in.PartitionEpoch == s.record().PartitionEpoch
}

// between are the links between two hosts, both ways.
func between(a, b string) []link { return []link{{a, b}, {b, a}} }

// part cuts two brokers of the story off each other.
func (s *stage) part(i, j int) (heal func()) {
	return s.lasting(s.net.cut(between(s.r[i].name, s.r[j].name)...))
}

// mute holds what a broker says to another.
func (s *stage) mute(i, j int) (heal func()) {
	return s.lasting(s.net.cut(link{s.r[i].name, s.r[j].name}))
}

// outlaw cuts a broker off all controllers.
func (s *stage) outlaw(i int) (heal func()) {
	var links []link
	for _, ctl := range s.controllers {
		links = append(links, between(s.r[i].name, ctl.name)...)
	}
	return s.lasting(s.net.cut(links...))
}

// isolate cuts a broker off everybody but the clients.
func (s *stage) isolate(i int) (heal func()) {
	var links []link
	for _, other := range s.hosts() {
		if other != s.r[i].name && other != clientHost {
			links = append(links, between(s.r[i].name, other)...)
		}
	}
	return s.lasting(s.net.cut(links...))
}

// late delays what a broker says to the controllers.
func (s *stage) late(i int, d time.Duration) (heal func()) {
	var links []link
	for _, ctl := range s.controllers {
		links = append(links, link{s.r[i].name, ctl.name})
	}
	return s.lasting(s.net.delay(d, links...))
}

// leader is the place of who leads, as the store has it; 0 when nobody does.
func (s *stage) leader() int {
	for i := range s.r {
		if s.record().Leader == s.id(i) {
			return i
		}
	}
	return 0
}

// active returns the host of the controller that is the active one, nil when
// none is.
func (s *stage) active() *controllerHost {
	for path, pair := range s.kv.Dump() {
		if c, ok := s.object(path, pair).(*state.Controller); ok {
			for _, h := range s.controllers {
				if h.addr() == c.Address {
					return h
				}
			}
		}
	}
	return nil
}

// A sending is a record on its way.
type sending struct {
	done   chan struct{}
	offset int64
	err    error
}

// over says whether the outcome is known.
func (s *sending) over() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// send has a client of its own write one record through a broker. Its outcome
// counts in the history.
func (s *stage) send(i int, timeout time.Duration) *sending {
	out := &sending{done: make(chan struct{})}
	h := s.topic.history
	producer := h.Producer()
	n := h.Next(producer)
	conn, number := s.conns[s.id(i)], s.key.Number
	s.load.wg.Go(func() {
		defer close(out.done)
		// The call outlives the end of the run, so that its outcome is known.
		ctx, cancel := context.WithTimeout(context.Background(), timeout+time.Second)
		defer cancel()
		out.offset, out.err = s.appendTo(ctx, conn, s.topic, number, false, history.Value(producer, n, 0), timeout)
		switch {
		case out.err == nil:
			h.Outcome(producer, n, history.Acknowledged, number, out.offset)
			s.judge.acknowledged(s.topic, number, out.offset)
		case definite(out.err):
			h.Outcome(producer, n, history.Failed, 0, 0)
		default:
			h.Outcome(producer, n, history.Unknown, 0, 0)
		}
	})
	return out
}

// sent sends records, one after the other, and waits until they are
// acknowledged.
func (s *stage) sent(i, n int) {
	s.t.Helper()
	for range n {
		one := s.send(i, 10*time.Second)
		s.soon("a record was answered", 11*time.Second, one.over)
		if one.err != nil {
			s.t.Errorf("the story does not go on: a record was not taken: %v", one.err)
		}
	}
}

// end is up to where all is known to be committed.
func (s *stage) end() int64 { return int64(s.judge.known(s.key)) }

// alter changes the topic's configuration, through a broker.
func (s *stage) alter(i int, configs map[string]string) {
	s.t.Helper()
	if err := s.cluster.alter(context.Background(), s.topic, int(s.id(i)), configs); err != nil {
		s.t.Errorf("alter %v: %v", configs, err)
	}
}
