package active

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"

	"github.com/runnelmq/runnel/controller/mirror"
	"github.com/runnelmq/runnel/controller/sessions"
	"github.com/runnelmq/runnel/controller/state"
)

// Causes of fencings, as the metric names them.
const (
	causeSilence  = "session_timeout"
	causeReplaced = "new_incarnation"
	causeGone     = "process_gone"
	causeStorage  = "storage_failed"
	causeOperator = "operator"
	causeShutdown = "shutdown"
)

// An Admission is a broker let in.
type Admission struct {
	Session  *sessions.Session
	Epoch    int64 // of the broker
	Cluster  uuid.UUID
	Level    int32       // feature level in force
	Snapshot state.Delta // what the broker may know, its own registration included
	Feed     *mirror.Feed
}

// Register lets a broker in, or says why not. The caller ends what it got with Leave.
func (a *Active) Register(ctx context.Context, reg state.Registration) (*Admission, error) {
	return ask(ctx, a, func(ctx context.Context) (*Admission, error) { return a.register(ctx, reg) }, a.Leave)
}

func (a *Active) register(ctx context.Context, reg state.Registration) (*Admission, error) {
	id := reg.Broker.ID
	reg.Alive = a.roster.Alive(id)
	var old *state.Broker
	var changes []state.Change
	var err error
	a.view(func(i *state.Image) {
		old = i.Broker(id)
		changes, err = i.Register(reg)
	})
	if errors.Is(err, state.ErrDuplicateBroker) {
		a.desk.visited = time.Now()
	}
	if err != nil {
		return nil, err
	}
	if len(changes) > 0 {
		if _, err := a.commit(ctx, changes); err != nil {
			return nil, err
		}
		if old != nil && old.Phase != state.BrokerFenced {
			a.Metrics.fencings.WithLabelValues(causeReplaced).Inc()
		}
	}
	// The fence of earlier incarnations is complete before the snapshot is cut: a broker that saw itself as a leader in it would
	// act as one in its predecessor's epoch, with a log that may end earlier.
	if err := a.settleBroker(ctx, id); err != nil {
		return nil, err
	}
	// The same goes for its proposals: the snapshot is the answer to all of them.
	if err := a.resolve(ctx); err != nil {
		return nil, err
	}
	adm := &Admission{}
	var b *state.Broker
	a.view(func(i *state.Image) {
		b = i.Broker(id)
		adm.Epoch, adm.Cluster, adm.Level = b.Epoch, i.ClusterID(), i.Counters().FeatureLevel
	})
	// The report is about the session: another controller, or an earlier session, may have weighed another one.
	delete(a.desk.reports, id)
	delete(a.desk.reported, id)
	a.desk.admitted[id] = admission{epoch: b.Epoch, revision: b.Revision}
	adm.Session = a.roster.Open(id, b.Incarnation)
	adm.Snapshot, adm.Feed = a.Mirror.Subscribe()
	if a.probes() && a.desk.reached[id].epoch != b.Epoch {
		a.start(ctx, func(ctx context.Context) { a.reach(ctx, adm.Session, b, adm.Cluster.String()) })
	}
	a.Log.Info().Int32("broker", int32(id)).Int64("broker_epoch", b.Epoch).Bool("new_incarnation", len(changes) > 0).Msg("broker registered")
	return adm, nil
}

// settleBroker brings every partition that names a broker in line with the rules.
func (a *Active) settleBroker(ctx context.Context, id state.BrokerID) error {
	for {
		var w work
		a.view(func(i *state.Image) {
			if !i.Settled(id) {
				w.changes = i.Work()
			}
		})
		if len(w.changes) == 0 {
			return nil
		}
		if err := a.commitWork(ctx, w); err != nil {
			return err
		}
	}
}

// Heard takes a heartbeat: which revision the broker has applied, whether its disk is nearly full, and whether it failed.
func (a *Active) Heard(s *sessions.Session, applied state.Revision, low, failed bool) {
	s.Heard()
	s.Applied(applied)
	s.SetDiskLow(low)
	if failed {
		s.Fail()
	}
	a.kick()
}

// Recovered takes the whole recovery report of a session's broker.
func (a *Active) Recovered(ctx context.Context, adm *Admission, found map[state.PartitionKey]state.ReplicaReport) error {
	id := adm.Session.Broker()
	return a.do(ctx, func(context.Context) error {
		if a.roster.Connected(id) == adm.Session {
			a.desk.reports[id] = found
			a.desk.reported[id] = adm.Epoch
			a.desk.reportedAt[id] = time.Now()
		}
		return nil
	})
}

// Removed takes a broker's word that the directories of topics are gone.
func (a *Active) Removed(ctx context.Context, adm *Admission, topics []uuid.UUID) error {
	id := adm.Session.Broker()
	return a.do(ctx, func(ctx context.Context) error {
		for {
			var changes []state.Change
			a.view(func(i *state.Image) { changes = i.ConfirmRemoval(id, topics) })
			if len(changes) == 0 {
				return nil
			}
			if _, err := a.commit(ctx, changes); err != nil {
				return err
			}
		}
	})
}

// ShuttingDown begins the hand-over of a broker's leaderships. The session's MayDrain tells when it is over.
func (a *Active) ShuttingDown(ctx context.Context, adm *Admission) error {
	id := adm.Session.Broker()
	return a.do(ctx, func(ctx context.Context) error {
		var changes []state.Change
		var err error
		a.view(func(i *state.Image) { changes, err = i.ShutDown(id, adm.Epoch) })
		if err != nil {
			return err
		}
		if len(changes) > 0 {
			if _, err := a.commit(ctx, changes); err != nil {
				return err
			}
			a.Log.Info().Int32("broker", int32(id)).Msg("broker is shutting down")
		}
		a.desk.leaving[id] = adm.Session
		return nil
	})
}

// Leave notes that a broker's connection is gone.
func (a *Active) Leave(adm *Admission) {
	adm.Feed.Close()
	adm.Session.Close()
	a.kick()
}

// advance returns the next change that a connected broker waits for, or that a broken one makes necessary.
func (a *Active) advance(i *state.Image) work {
	for _, b := range i.Brokers() {
		s := a.roster.Connected(b.ID)
		w := work{}
		switch {
		case b.Phase == state.BrokerFenced:
			w = a.admit(i, b, s)
		case a.cfg.Dev:
		case s != nil && s.Failed():
			w = a.fence(i, b, causeStorage)
		case s == nil && b.Phase == state.BrokerShuttingDown && a.desk.admitted[b.ID].epoch == b.Epoch:
			// It came to this controller and is gone. One that has not come yet has time to, as every other.
			w = a.fence(i, b, causeShutdown)
		}
		if len(w.changes) > 0 {
			return w
		}
	}
	return work{}
}

// admit returns the next change on a fenced broker's way into service.
func (a *Active) admit(i *state.Image, b *state.Broker, s *sessions.Session) work {
	adm := a.desk.admitted[b.ID]
	if s == nil || s.Failed() || adm.epoch != b.Epoch {
		return work{}
	}
	var w work
	var err error
	switch {
	case !b.Judged && a.desk.reported[b.ID] == b.Epoch:
		w.changes, err = i.Judge(b.ID, b.Epoch, a.desk.reports[b.ID])
	case b.Judged && s.Revision() >= adm.revision && (!a.probes() || a.desk.reached[b.ID].epoch == b.Epoch):
		w.changes, err = i.Unfence(b.ID, b.Epoch)
		w.note = func() {
			a.Log.Info().Int32("broker", int32(b.ID)).Int64("broker_epoch", b.Epoch).Msg("broker is in service")
		}
	}
	if err != nil {
		return work{} // it was replaced; its successor is admitted by itself
	}
	return w
}

// fence returns the change that fences a broker.
func (a *Active) fence(i *state.Image, b *state.Broker, cause string) work {
	changes, err := i.Fence(b.ID, b.Epoch)
	if err != nil {
		return work{}
	}
	return work{changes: changes, note: func() {
		a.Metrics.fencings.WithLabelValues(cause).Inc()
		a.Log.Warn().Int32("broker", int32(b.ID)).Int64("broker_epoch", b.Epoch).Str("cause", cause).Msg("broker fenced")
	}}
}

// fenceSilent fences the brokers that were not heard for too long. When nobody at all is heard, the fault is more likely on
// this side: nobody is fenced, and another controller may try.
func (a *Active) fenceSilent(ctx context.Context) error {
	silent, anyAlive := a.roster.Silent()
	if !anyAlive && time.Since(a.desk.visited) < a.cfg.SessionTimeout {
		anyAlive = true // one that waits for another to be dead shows that brokers reach this side
	}
	switch {
	case !anyAlive && len(silent) > 0 && !a.cfg.Sole():
		return ErrAlone
	case !anyAlive:
		a.desk.unheard = len(silent) > 0
		return nil
	case a.desk.unheard: // whatever kept all away, they do not come back in one moment
		a.desk.unheard = false
		a.roster.Spare()
		return nil
	}
	for _, id := range silent {
		var w work
		a.view(func(i *state.Image) {
			if b := i.Broker(id); b != nil && b.Phase != state.BrokerFenced {
				w = a.fence(i, b, causeSilence)
			}
		})
		if len(w.changes) > 0 {
			if err := a.commitWork(ctx, w); err != nil {
				return a.tolerate(err)
			}
		}
		a.roster.Strike(id)
	}
	return nil
}
