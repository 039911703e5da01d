package partition

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/vfs"
)

// open opens the log of a replica, and notes what it finds.
func (s *Set) open(t *metadata.Topic, n int32) (*Partition, error) {
	k := key{t.ID, n}
	log, known, rec, err := s.openLog(t, n)
	switch {
	case errors.Is(err, commitlog.ErrFailed):
		return nil, fmt.Errorf("open %s/%d: %w", t.Name, n, err)
	case errors.Is(err, commitlog.ErrStorageFull), errors.Is(err, commitlog.ErrTooManyFiles), vfs.IsTransient(err):
		s.postpone(k, t, err, "no room to open a replica: it will be tried again")
		return nil, nil
	case errors.Is(err, fs.ErrPermission):
		// Its files are whole: somebody has to give them back.
		s.postpone(k, t, err, "a replica's files may not be used: the user that runs this must own all that is in the data directory; it will be tried again")
		return nil, nil
	case err != nil:
		why := err.Error()
		if errors.Is(err, fs.ErrNotExist) {
			why = "its directory is missing: " + why
		}
		s.mu.Lock()
		known := s.lost[k] == why
		s.lost[k] = why
		delete(s.pending, k)
		s.mu.Unlock()
		s.report(metadata.ReplicaReport{Topic: t.ID, Partition: n, Shape: metadata.Lost, Reason: why})
		if known {
			return nil, nil // it was looked for again, since the metadata changed
		}
		s.deps.Log.Error().Str("topic", t.Name).Int32("partition", n).Err(err).Msg("a replica can't be opened")
		return nil, nil
	}
	r := metadata.ReplicaReport{Topic: t.ID, Partition: n, LastEpoch: log.LastEpoch(), LogEnd: log.End(), HighWatermark: rec.HighWatermark}
	if rec.Suspicion != commitlog.NotSuspect {
		r.Shape, r.Reason = metadata.Suspect, rec.Suspicion.String()
		s.deps.Log.Warn().Str("topic", t.Name).Int32("partition", n).Str("reason", r.Reason).Msg("a replica may have lost records")
	}
	for _, e := range rec.Events {
		s.deps.Log.Warn().Str("topic", t.Name).Int32("partition", n).Stringer("event", e.Kind).Str("path", e.Path).Int64("position", e.Position).
			Str("detail", e.Detail).Msg("recovery of a log")
	}
	s.report(r)
	p := newPartition(&s.host, t, n, log, known, &rec)
	s.mu.Lock()
	s.parts[k] = p
	delete(s.lost, k)
	delete(s.pending, k)
	s.mu.Unlock()
	return p, nil
}

// openLog opens the files of a replica. One whose files are lost begins anew when
// nobody counts on it any more, or it was elected in the knowledge of the loss,
// and so does one whose files are of an earlier partition; what is left is set
// aside.
func (s *Set) openLog(t *metadata.Topic, n int32) (log *commitlog.Log, known *producers, rec commitlog.Recovery, err error) {
	mp, id := &t.Partitions[n], commitlog.PartitionID{Topic: t.ID, Number: n}
	open := func(create bool) {
		cfg := logConfig(t, mp)
		known = newProducers(s.cfg.Producers)
		cfg.Producers = known
		log, rec, err = s.deps.Root.OpenPartition(t.ID, t.Name, n, cfg, create)
	}
	create := mayCreate(s.host.self, mp)
	open(create)
	var why string
	switch {
	case errors.Is(err, commitlog.ErrLost) && (electedLossy(s.host.self, mp) || (s.Recovered() && !unused(mp) && create)):
		create, why = true, "a lost replica begins anew"
	case err == nil && earlier(log.LastEpoch(), mp):
		// Of the partition of now this broker never had any, whoever counts on it.
		create, why = true, "these records are of an earlier partition of this number, which the restored metadata do not know: they are set aside"
		if err = s.deps.Root.ClosePartition(id); err != nil {
			return nil, nil, rec, err
		}
	default:
		return log, known, rec, err
	}
	path, aerr := s.deps.Root.SetAside(id)
	if aerr != nil {
		return nil, nil, rec, errors.Join(err, aerr)
	}
	s.deps.Log.Error().Str("topic", t.Name).Int32("partition", n).Str("set_aside", path).Err(err).Msg(why)
	open(create)
	return log, known, rec, err
}
