// Package sessions keeps the roll of brokers: who is connected, who was heard when, and how far each follows the metadata.
//
// It judges by the time alone. What follows from a broker's silence is decided elsewhere.
package sessions

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/state"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// Why a session ends from this side.
var (
	ErrReplaced = errors.New("another session of this broker took over")
	// ErrUncertain ends a session whose proposals may or may not be carried out: the next snapshot tells.
	ErrUncertain = errors.New("it is uncertain what becomes of a proposal: register again for a new snapshot")
	ErrSilent    = errors.New("no sign of life came from the broker within its session timeout: it is fenced, and registers anew")
)

// How a stall of this process is found.
const (
	beatPeriod = 250 * time.Millisecond
	maxStall   = time.Second
)

// minGrace is how long brokers have at least to come to a controller that has just begun.
const minGrace = 5 * time.Second

// A Roster is the roll. It is safe for concurrent use.
type Roster struct {
	timeout time.Duration
	forever bool

	// mu guards the fields below
	mu sync.Mutex

	entries map[state.BrokerID]*entry
	changed chan struct{} // closed and replaced when a broker applied metadata or left
	beat    time.Time     // when this process was last seen running
}

// An entry is what is known of one broker.
type entry struct {
	incarnation uuid.UUID
	deadline    time.Time
	session     *Session // nil: not connected
	applied     state.Revision
}

// New returns a roll on which a broker is dead after timeout without a sign of life; with forever, only when it is not
// connected, and never of silence.
func New(timeout time.Duration, forever bool) *Roster {
	return &Roster{timeout: timeout, forever: forever, entries: map[state.BrokerID]*entry{}, changed: make(chan struct{})}
}

// Begin gives brokers that are in service the time to come to this controller, which has just become the active one.
func (r *Roster) Begin(brokers []*state.Broker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range brokers {
		if b.Phase != state.BrokerFenced && r.entries[b.ID] == nil {
			r.entries[b.ID] = &entry{incarnation: b.Incarnation, deadline: time.Now().Add(max(r.timeout, minGrace))}
		}
	}
}

// Spare gives every broker the time that a controller gives which has just begun.
func (r *Roster) Spare() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.entries {
		e.deadline = time.Now().Add(max(r.timeout, minGrace))
	}
}

// Run watches that this process itself does not stand still, until ctx is done.
func (r *Roster) Run(ctx context.Context) {
	r.Beat()
	lifecycle.Every(ctx, beatPeriod, func(time.Time) { r.Beat() })
}

// Beat notes that this process runs. After it stood still, silence proves nothing, because signs of life may wait unread:
// everyone's time begins anew.
func (r *Roster) Beat() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beatLocked()
}

func (r *Roster) beatLocked() {
	now := time.Now()
	if !r.beat.IsZero() && now.Sub(r.beat) > beatPeriod+maxStall {
		for _, e := range r.entries {
			e.deadline = now.Add(r.timeout)
		}
	}
	r.beat = now
}

// Alive reports whether the process that was last seen under an id may still live.
func (r *Roster) Alive(id state.BrokerID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.entries[id]
	return e != nil && (e.session != nil || (!r.forever && time.Now().Before(e.deadline)))
}

// Silent returns the brokers that are dead by the time alone, ascending, and whether anyone is alive at all.
func (r *Roster) Silent() (dead []state.BrokerID, anyAlive bool) {
	if r.forever {
		return nil, true
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.beatLocked()
	for id, e := range r.entries {
		if time.Now().Before(e.deadline) {
			anyAlive = true
		} else {
			dead = append(dead, id)
		}
	}
	slices.Sort(dead)
	return dead, anyAlive
}

// Strike takes a broker off the roll and ends its session, if it has one that nothing comes from any more.
func (r *Roster) Strike(id state.BrokerID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[id]; e != nil && e.session != nil {
		e.session.endLocked(ErrSilent)
	}
	delete(r.entries, id)
	r.notifyLocked()
}

// Open enters a broker's session and ends the one it replaces.
func (r *Roster) Open(id state.BrokerID, incarnation uuid.UUID) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &Session{roster: r, broker: id, ended: make(chan struct{}), drain: make(chan struct{}), told: make(chan struct{}, 1)}
	if e := r.entries[id]; e != nil && e.session != nil {
		e.session.endLocked(ErrReplaced)
	}
	r.entries[id] = &entry{incarnation: incarnation, deadline: time.Now().Add(r.timeout), session: s}
	return s
}

// Connected returns the session of a broker, or nil.
func (r *Roster) Connected(id state.BrokerID) *Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	if e := r.entries[id]; e != nil {
		return e.session
	}
	return nil
}

// Count returns how many brokers are connected.
func (r *Roster) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.entries {
		if e.session != nil {
			n++
		}
	}
	return n
}

// Applied waits until all brokers that which names have applied a revision, and reports whether they have before ctx was done.
func (r *Roster) Applied(ctx context.Context, rev state.Revision, which func() []state.BrokerID) bool {
	for {
		r.mu.Lock()
		changed := r.changed
		r.mu.Unlock()
		if r.haveApplied(rev, which()) {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-changed:
		}
	}
}

func (r *Roster) haveApplied(rev state.Revision, ids []state.BrokerID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		if e := r.entries[id]; e == nil || e.session == nil || e.applied < rev {
			return false
		}
	}
	return true
}

// Revision returns the revision that a broker has applied, as far as this controller heard; 0 when it is not connected.
func (r *Roster) Revision(id state.BrokerID) state.Revision {
	if s := r.Connected(id); s != nil {
		return s.Revision()
	}
	return 0
}

func (r *Roster) notifyLocked() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// A Session is one broker's connection, from its registration to its end.
type Session struct {
	roster *Roster
	broker state.BrokerID
	ended  chan struct{}
	drain  chan struct{}
	told   chan struct{} // holds a token when there is mail

	// The fields below are guarded by roster.mu.

	cause    error
	draining bool // drain is closed
	failed   bool
	diskLow  bool
	mail     []any
}

// Tell has the broker told something, in order; it is lost when the session ends first.
func (s *Session) Tell(what any) {
	s.roster.mu.Lock()
	s.mail = append(s.mail, what)
	s.roster.mu.Unlock()
	select {
	case s.told <- struct{}{}:
	default:
	}
}

// Told receives when Mail may return something.
func (s *Session) Told() <-chan struct{} { return s.told }

// Mail returns what the broker is to be told, once.
func (s *Session) Mail() []any {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	mail := s.mail
	s.mail = nil
	return mail
}

// SetDiskLow notes whether the broker's disk is nearly full.
func (s *Session) SetDiskLow(low bool) {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	s.diskLow = low
}

// DiskLow reports whether the broker's disk is nearly full.
func (s *Session) DiskLow() bool {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	return s.diskLow
}

// End ends the session from this side.
func (s *Session) End(cause error) {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	s.endLocked(cause)
}

// Heard notes a sign of life.
func (s *Session) Heard() {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	if e := s.entryLocked(); e != nil {
		e.deadline = time.Now().Add(s.roster.timeout)
	}
}

// Applied notes which revision the broker has applied.
func (s *Session) Applied(rev state.Revision) {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	if e := s.entryLocked(); e != nil && rev > e.applied {
		e.applied = rev
		s.roster.notifyLocked()
	}
}

// Revision returns the revision the broker has applied.
func (s *Session) Revision() state.Revision {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	if e := s.entryLocked(); e != nil {
		return e.applied
	}
	return 0
}

// Fail notes that the broker's storage failed: it must not be put in service again.
func (s *Session) Fail() {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	s.failed = true
}

// Failed reports whether the broker's storage failed.
func (s *Session) Failed() bool {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	return s.failed
}

// LetDrain tells the broker that it leads nothing any more.
func (s *Session) LetDrain() {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	if !s.draining {
		s.draining = true
		close(s.drain)
	}
}

// MayDrain is closed when the broker leads nothing any more.
func (s *Session) MayDrain() <-chan struct{} { return s.drain }

// Broker returns whose session it is.
func (s *Session) Broker() state.BrokerID { return s.broker }

// entryLocked returns the broker's entry while this is its session.
func (s *Session) entryLocked() *entry {
	if e := s.roster.entries[s.broker]; e != nil && e.session == s {
		return e
	}
	return nil
}

// Ended is closed when the session must end.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Cause returns why the session must end.
func (s *Session) Cause() error {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	return s.cause
}

// Close notes that the connection is gone. The broker is not dead by that: its time runs on.
func (s *Session) Close() {
	s.roster.mu.Lock()
	defer s.roster.mu.Unlock()
	if e := s.entryLocked(); e != nil {
		e.session = nil
	}
	s.endLocked(context.Canceled)
}

func (s *Session) endLocked(cause error) {
	if s.cause == nil {
		s.cause = cause
		close(s.ended)
		s.roster.notifyLocked()
	}
}
