package state

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// A rec is one record: who wrote it in which epoch.
type rec struct {
	epoch int64
	n     int
}

// A replica is one broker's copy and process, as far as the safety of acknowledged records goes.
type replica struct {
	log         []rec
	alive       bool
	incarnation int
	suspect     bool // it lost a tail since it was last judged
}

// A safety run drives the rules for one partition with replicas whose logs are real, and checks at every clean election that
// the new leader holds every acknowledged record.
type safety struct {
	*bench

	key      PartitionKey
	replicas map[BrokerID]*replica
	acked    []rec
	n        int
	lossy    int // lossy elections seen
}

func (s *safety) partition() *Partition { return s.Partition(s.key) }

func (s *safety) step(changes []Change) {
	if len(changes) == 0 {
		return
	}
	before := s.partition()
	s.commit(changes)
	s.check(false)
	now := s.partition()
	if now.LeaderEpoch < before.LeaderEpoch || now.PartitionEpoch < before.PartitionEpoch {
		s.t.Fatalf("epochs fell: %+v, %+v", before, now)
	}
	if now.Leader != before.Leader && now.LeaderEpoch == before.LeaderEpoch {
		s.t.Fatalf("another leader in the same epoch: %+v, %+v", before, now)
	}
	if now.LeaderEpoch == before.LeaderEpoch || now.Leader == NoLeader {
		return
	}
	if !s.replicas[now.Leader].alive {
		return // it is dead and the controller does not know yet: before it acts, it registers anew, which takes it away
	}
	log := s.replicas[now.Leader].log
	if slices.Contains(now.LossyEpochs, now.LeaderEpoch) {
		s.lossy++
		s.acked = common(s.acked, log)
		return
	}
	if len(common(s.acked, log)) < len(s.acked) {
		s.t.Fatalf("broker %d was elected by %q and lacks acknowledged records: it has %v of %v\nbefore %+v\nnow    %+v",
			now.Leader, Elected(before, now), log, s.acked, before, now)
	}
}

// common returns the longest common prefix.
func common(a, b []rec) []rec {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return a[:n:n]
}

// leads returns the broker that acts as leader: it need not know yet that it is fenced.
func (s *safety) leads() *replica {
	if p := s.partition(); p.Leader != NoLeader && s.replicas[p.Leader].alive {
		return s.replicas[p.Leader]
	}
	return nil
}

// advance acknowledges what every in-sync replica has, if they are enough.
func (s *safety) advance() {
	l, p := s.leads(), s.partition()
	if l == nil || len(p.ISR) < int(p.MinISR) {
		return
	}
	hw := len(l.log)
	for _, m := range p.ISR {
		hw = min(hw, len(common(l.log, s.replicas[m].log)))
	}
	if hw > len(s.acked) {
		s.acked = slices.Clone(l.log[:hw])
	}
}

func (s *safety) append() {
	l, p := s.leads(), s.partition()
	if l == nil {
		return
	}
	s.n++
	l.log = append(slices.Clip(l.log), rec{p.LeaderEpoch, s.n})
	s.advance()
}

// follow lets a follower take over the leader's log, up to a point.
func (s *safety) follow(b BrokerID, upTo int) {
	l, f := s.leads(), s.replicas[b]
	if l == nil || !f.alive || f == l {
		return
	}
	same := len(common(l.log, f.log))
	f.log = slices.Clone(l.log[:min(len(l.log), max(same, upTo))])
	s.advance()
}

// expand adds a follower that holds all of the leader's log to the ISR, as a leader's proposal does.
func (s *safety) expand(b BrokerID) {
	l, p, f := s.leads(), s.partition(), s.replicas[b]
	if l == nil || !f.alive || slices.Contains(p.ISR, b) || len(common(l.log, f.log)) < len(l.log) {
		return
	}
	s.propose(append(slices.Clone(p.ISR), b))
}

// shrink takes a follower that lags out of the ISR.
func (s *safety) shrink(b BrokerID) {
	if p := s.partition(); s.leads() != nil && b != p.Leader {
		s.propose(without(p.ISR, b))
	}
}

func (s *safety) propose(isr []BrokerID) {
	p := s.partition()
	var members []Member
	for _, id := range isr {
		members = append(members, Member{id, s.Broker(id).Epoch})
	}
	c, err := s.Propose(p.Leader, s.Broker(p.Leader).Epoch, Proposal{Key: s.key, LeaderEpoch: p.LeaderEpoch, PartitionEpoch: p.PartitionEpoch, ISR: members})
	if err == nil {
		s.step([]Change{c})
		s.advance()
	}
}

// move hands the leadership over.
func (s *safety) move(to BrokerID, drop, released bool) {
	p := s.partition()
	if p.Leader == NoLeader {
		return
	}
	if c, ok := s.Move(s.key, p.Leader, p.LeaderEpoch, to, drop, released); ok {
		s.step([]Change{c})
	}
}

// crash ends a process; with a loss, also the end of its log.
func (s *safety) crash(b BrokerID, keep int) {
	f := s.replicas[b]
	f.alive = false
	if keep < len(f.log) {
		f.log = f.log[:keep:keep]
		f.suspect = true
	}
}

// restart registers a new incarnation of a dead process.
func (s *safety) restart(b BrokerID) {
	f := s.replicas[b]
	if f.alive {
		return
	}
	f.incarnation++
	r := registration(b, f.incarnation)
	if old := s.Broker(b); old != nil {
		r.DataEpoch = old.Epoch
	}
	changes, err := s.Register(r)
	if err != nil {
		s.t.Fatalf("register: %v", err)
	}
	s.step(changes)
	// What it is told first is the picture after its fence is complete. Otherwise it would take itself for the leader in the epoch
	// of its predecessor, whose followers may have more of that epoch than it has.
	for changes := s.Work(); !s.Settled(b) && len(changes) > 0; changes = s.Work() {
		s.step(changes)
	}
	if s.partition().Leader == b {
		s.t.Fatalf("broker %d would come back as the leader: %+v", b, s.partition())
	}
	f.alive = true
}

// admit takes the next step of a fenced broker's way into service.
func (s *safety) admit(b BrokerID) {
	f, reg := s.replicas[b], s.Broker(b)
	if !f.alive || reg.Phase != BrokerFenced {
		return
	}
	if reg.Judged {
		changes, err := s.Unfence(b, reg.Epoch)
		if err != nil {
			s.t.Fatalf("unfence: %v", err)
		}
		s.step(changes)
		return
	}
	shape := ShapeIntact
	if f.suspect {
		shape = ShapeSuspect
	}
	changes, err := s.Judge(b, reg.Epoch, map[PartitionKey]ReplicaReport{s.key: {Shape: shape}})
	if err != nil {
		s.t.Fatalf("judge: %v", err)
	}
	s.step(changes)
	if s.Broker(b).Judged {
		f.suspect = false
	}
}

// recoverLast runs recovery elections with what all brokers could report.
func (s *safety) recoverLast(due bool) {
	reports := Reports{}
	for b, f := range s.replicas {
		r := ReplicaReport{LogEndOffset: int64(len(f.log))}
		if len(f.log) > 0 {
			r.LastEpoch = f.log[len(f.log)-1].epoch
		}
		if f.alive && s.Broker(b).Judged {
			reports[b] = map[PartitionKey]ReplicaReport{s.key: r}
		}
	}
	s.step(s.Recover(reports, func(PartitionKey) bool { return due }))
}

func (s *safety) alterMin(n string) {
	_, changes, err := s.AlterConfigs(Ref{Name: "t"}, map[string]string{"min.insync.replicas": n}, nil)
	if err != nil {
		s.t.Fatalf("alter: %v", err)
	}
	s.step(changes)
}

// No clean election gives a partition a leader without every acknowledged record, whatever the order of fences, crashes, losses,
// reports, catching up and changes of min.insync.replicas.
func TestCleanElections_lose_nothing(t *testing.T) {
	for range 4 {
		checkElections(t)
	}
}

func checkElections(t *testing.T) {
	t.Helper()
	elections, lossy := 0, 0
	rapid.Check(t, func(rt *rapid.T) {
		s := &safety{bench: withBrokers(rt, 3), replicas: map[BrokerID]*replica{}}
		s.key = PartitionKey{s.newTopic("t", 1, 3, nil), 0}
		for b := range BrokerID(3) {
			s.replicas[b+1] = &replica{alive: true, incarnation: 1}
		}
		who := rapid.SampledFrom([]BrokerID{1, 2, 3})
		count := rapid.IntRange(0, 6)
		rt.Repeat(map[string]func(*rapid.T){
			"append":  func(*rapid.T) { s.append() },
			"follow":  func(rt *rapid.T) { s.follow(who.Draw(rt, "follower"), count.Draw(rt, "up to")) },
			"catchUp": func(rt *rapid.T) { s.follow(who.Draw(rt, "follower"), 1<<20) },
			"expand":  func(rt *rapid.T) { s.expand(who.Draw(rt, "follower")) },
			"shrink":  func(rt *rapid.T) { s.shrink(who.Draw(rt, "follower")) },
			"move": func(rt *rapid.T) {
				s.move(who.Draw(rt, "to"), rapid.Bool().Draw(rt, "drop"), rapid.Bool().Draw(rt, "released"))
			},
			"fence": func(rt *rapid.T) {
				b := who.Draw(rt, "broker")
				changes, err := s.Fence(b, s.Broker(b).Epoch)
				if err != nil {
					rt.Fatalf("fence: %v", err)
				}
				s.step(changes)
			},
			"leave": func(rt *rapid.T) {
				b := who.Draw(rt, "broker")
				changes, err := s.ShutDown(b, s.Broker(b).Epoch)
				if err != nil {
					rt.Fatalf("shut down: %v", err)
				}
				s.step(changes)
			},
			"kill":     func(rt *rapid.T) { s.crash(who.Draw(rt, "broker"), 1<<20) },
			"powerCut": func(rt *rapid.T) { s.crash(who.Draw(rt, "broker"), count.Draw(rt, "records kept")) },
			"restart":  func(rt *rapid.T) { s.restart(who.Draw(rt, "broker")) },
			"admit":    func(rt *rapid.T) { s.admit(who.Draw(rt, "broker")) },
			"work":     func(*rapid.T) { s.step(s.Work()) },
			"recover":  func(rt *rapid.T) { s.recoverLast(rapid.Bool().Draw(rt, "due")) },
			"lower":    func(*rapid.T) { s.step(s.Lower(func(BrokerID) Revision { return s.Revision() })) },
			"alterMin": func(rt *rapid.T) { s.alterMin(rapid.SampledFrom([]string{"1", "2", "3"}).Draw(rt, "min")) },
		})
		// In the end everyone comes back, and there is a leader.
		for range 4 {
			for b := range s.replicas {
				s.crash(b, 1<<20)
				s.restart(b)
			}
			for range 6 {
				for b := range s.replicas {
					for changes := s.Work(); len(changes) > 0; changes = s.Work() {
						s.step(changes)
					}
					s.admit(b)
				}
			}
			s.recoverLast(false)
		}
		s.check(true)
		if p := s.partition(); p.Leader == NoLeader {
			rt.Fatalf("everyone is back and nobody leads: %+v", p)
		}
		elections += int(s.partition().LeaderEpoch)
		lossy += s.lossy
	})
	t.Logf("%d leader epochs, %d lossy elections", elections, lossy)
}
