package sim

import (
	"context"
	"testing"
	"time"

	"github.com/runnelmq/runnel/client"
	"github.com/runnelmq/runnel/e2e/history"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

// patience is how long the client may try to have a record stored: faults end
// long before.
const patience = 3 * time.Minute

// produce has a program that uses the client write to a partition until the
// load ends. It is told what became of each record, whatever goes wrong: with
// idempotence every one is stored, once, and in order.
func (l *load) produce(t *topic, partition int32, pause time.Duration, opts ...client.ProducerOption) {
	c, err := client.New(l.c.addresses(), client.Dialer(l.c.dialer(clientHost, func() bool { return true })))
	if err != nil {
		l.c.t.Fatal(err)
	}
	p, err := c.NewProducer(append([]client.ProducerOption{
		client.DeliveryTimeout(patience),
		client.PartitionBy(func(*client.Record, int32) int32 { return partition }),
	}, opts...)...)
	if err != nil {
		l.c.t.Fatal(err)
	}
	h := t.history
	producer := h.Producer()
	l.wg.Go(func() {
		for l.ctx.Err() == nil {
			n := h.Next(producer)
			p.Produce(context.Background(), client.Record{Topic: t.name, Value: history.Value(producer, n, 0)}, func(r client.Result) {
				switch r.Outcome() {
				case client.Acknowledged:
					h.Outcome(producer, n, history.Acknowledged, r.Partition, r.Offset)
					l.c.judge.acknowledged(t, r.Partition, r.Offset)
				case client.Failed:
					h.Outcome(producer, n, history.Failed, 0, 0)
					l.c.judge.complain("I3", "record %d of %s was given up: %v", n, t.name, r.Err)
				case client.Unknown:
					h.Outcome(producer, n, history.Unknown, 0, 0)
					l.c.judge.complain("I3", "of record %d of %s it is not known whether it is stored: %v", n, t.name, r.Err)
				}
			})
			lifecycle.Wait(l.ctx, pause)
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := p.Close(ctx); err != nil {
			l.c.judge.complain("I3", "the producer of %s can't be closed: %v", t.name, err)
		}
		if err := c.Close(); err != nil {
			l.c.judge.complain("I3", "the client of %s can't be closed: %v", t.name, err)
		}
	})
}

// Leaders come and go, answers are lost and late, brokers are killed and lose
// their power: every record of an idempotent producer is stored, once, and in
// the order in which it was produced.
func TestStoryIdempotentProducer(t *testing.T) {
	play(t, setting{}, func(s *stage) { s.trials(func() { s.load.produce(s.topic, 0, 5*time.Millisecond) }) })
}

// Without an identity what is in doubt is stored twice when it is sent again:
// the same trials show that.
func TestStoryRetriesWithoutIdentity(t *testing.T) {
	play(t, setting{finds: []string{string(history.Duplicate)}, tolerates: []string{string(history.Misplaced), string(history.Reordered)}}, func(s *stage) {
		s.trials(func() {
			h := s.topic.history
			for first := range 3 {
				producer := h.Producer()
				s.load.wg.Go(func() {
					for at := first; s.load.ctx.Err() == nil; {
						n, done := h.Next(producer), false
						for !done {
							ctx, cancel := context.WithTimeout(context.Background(), time.Second)
							offset, err := s.appendTo(ctx, s.conns[at%3], s.topic, 0, true, history.Value(producer, n, 0), 500*time.Millisecond)
							cancel()
							if done = err == nil; done {
								h.Outcome(producer, n, history.Acknowledged, 0, offset)
							} else {
								at++
								lifecycle.Wait(context.Background(), 10*time.Millisecond)
							}
						}
						lifecycle.Wait(s.load.ctx, 5*time.Millisecond)
					}
				})
			}
		})
	})
}

// trials has clients begin, and hurts their partition in all ways in turn.
func (s *stage) trials(begin func()) {
	begin()
	s.stepFor(500 * time.Millisecond)
	for n := range 2 {
		i := s.leader()
		next := (i + 1 + n%2) % 3
		heal := s.net.cut(link{s.r[i].name, clientHost}) // answers are lost
		s.stepFor(300 * time.Millisecond)
		s.net.reset(s.r[i].name, clientHost)
		heal()
		s.stepFor(200 * time.Millisecond)
		heal = s.net.cut(link{s.r[next].name, s.r[i].name}) // what is written is not committed
		s.stepFor(200 * time.Millisecond)
		s.r[i].kill()
		heal()
		s.stepFor(300 * time.Millisecond)
		s.r[i].start()
		s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
		heal = s.net.delay(200*time.Millisecond, link{s.r[next].name, clientHost}, link{clientHost, s.r[next].name})
		s.restart(s.leader())
		s.stepFor(500 * time.Millisecond)
		heal()
		s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
		i = s.leader()
		s.r[i].cutPower(0)
		s.stepFor(time.Second)
		s.r[i].start()
		s.soon("all is well", 20*time.Second, func() bool { return s.inSync(0, 1, 2) })
		s.r[i].lossy = false
	}
}
