package rpc

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/router"
	"github.com/runnelmq/runnel/internal/partitioner"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/refusal"
	"github.com/runnelmq/runnel/internal/wire"
)

// A planner finds out what of a request goes where. It is reused.
type planner struct {
	refs []recordRef
	// partOf has for each partition number its part in the call.
	partOf map[int32]int32
	// order has the records sorted by part, each part's in input order.
	order []int32
	// first has for each part where its records begin in order; one more at the end.
	first []int32
}

// A recordRef is where in the request a record is.
type recordRef struct {
	start, end int
}

// maxScratch is how many record places a stream keeps memory for.
const maxScratch = 1 << 16

// check says what is wrong with a request, whatever the topic is.
func (p *produceSession) check(c *produceCall) error {
	r := &p.req
	kinds := 0
	for _, set := range []bool{r.HasBatch, r.Records > 0, r.TextRecords > 0} {
		if set {
			kinds++
		}
	}
	switch {
	case kinds != 1:
		return invalid("want exactly one of batch, records and text_records, and not an empty one; found %d", kinds)
	case r.Acks < 0 || r.Acks > int32(runnelv1.Acks_ACKS_ALL):
		return invalid("acks %d is not known here: want ACKS_NONE, ACKS_LEADER or ACKS_ALL", r.Acks)
	case r.Routing < 0 || r.Routing > int32(runnelv1.Routing_ROUTING_DIRECT):
		return invalid("routing %d is not known here: want ROUTING_PROXY or ROUTING_DIRECT", r.Routing)
	case r.HasTimeout && r.Timeout <= 0:
		return invalid("timeout is %s: want more than 0, or leave it out for %s", r.Timeout, defaultProduceTimeout)
	case r.HasPartition && r.Partition < 0:
		return invalid("partition is %d: partitions are counted from 0", r.Partition)
	case r.HasBatch && !r.HasPartition:
		return invalid("a batch needs partition: the broker looks into records only")
	case r.HasProducer:
		if err := checkSequence(r); err != nil {
			return err
		}
	}
	c.timeout = defaultProduceTimeout
	if r.HasTimeout {
		c.timeout = min(r.Timeout, longestProduceTimeout)
	}
	c.deadline = time.Now().Add(c.timeout)
	c.batch = r.HasBatch
	c.none = r.Acks == int32(runnelv1.Acks_ACKS_NONE)
	return nil
}

// checkSequence says what is wrong with the producer of a request.
func checkSequence(r *wire.ProduceRequest) error {
	s := &r.Producer
	switch {
	case r.HasBatch:
		return invalid("producer goes with records and text_records: a batch has its own producer_id, producer_epoch and base_sequence")
	case !r.HasPartition:
		return invalid("producer needs partition: a producer's sequences are counted in each partition by itself")
	case s.ID < 1 || s.Epoch < 0:
		return invalid("producer_id %d and producer_epoch %d are not what InitProducer gives: want an id of 1 or more, and an epoch of 0 or more", s.ID, s.Epoch)
	case s.BaseSequence < 0 || s.BaseSequence > math.MaxInt64-record.MaxFrameSize:
		return invalid("base_sequence is %d: want the number of records that this producer has written to this partition before, 0 at first", s.BaseSequence)
	}
	return nil
}

// topic finds the topic of the request, and remembers it while the image is the
// same: most streams write to one.
func (p *produceSession) topic(ctx context.Context) (*metadata.Topic, error) {
	img := p.svc.opts.Store.Load()
	f, r := &p.found, &p.req
	if f.topic == nil || f.image != img || f.topic.Name != string(r.Topic) || r.TopicID != nil && f.id != string(r.TopicID) {
		t, err := p.svc.topic(ctx, string(r.Topic), string(r.TopicID))
		if err != nil {
			return nil, err
		}
		f.image, f.topic, f.id = img, t, t.ID.String()
	}
	if t := f.topic; t.Internal || strings.HasPrefix(t.Name, "__") {
		return nil, &refusal.Error{Kind: errTopicSystem, Text: "topic " + t.Name + " is internal: only the system writes to it"}
	}
	return f.topic, nil
}

// limits are what a topic holds batches to.
func limits(t *metadata.Topic) record.Limits {
	return record.Limits{MaxRecordBytes: t.Config.MaxMessageBytes, RequireKeys: t.Config.Compact}
}

// handle does a request that was parsed: it appends its parts, and answers when
// they are where acks wants them. buf is what the request was parsed from.
func (p *produceSession) handle(ctx context.Context, c *produceCall, buf *[]byte) {
	c.id = p.req.RequestID
	err := p.check(c)
	var t *metadata.Topic
	if err == nil {
		t, err = p.topic(ctx)
	}
	if err == nil {
		err = p.plan(c, t)
	}
	if err != nil {
		p.calls.answer(c, err)
		return
	}
	if c.none {
		p.handleUnanswered(c, t, buf)
		return
	}
	p.calls.enter(c)
	for i, pt := range c.parts {
		if pt.err != nil {
			p.calls.resolve(pt, pt.err)
			continue
		}
		p.append(c, i, t, buf)
	}
	p.calls.read(c)
}

// handleUnanswered answers first, and then appends. Nobody hears what became of
// it; the metrics do.
func (p *produceSession) handleUnanswered(c *produceCall, t *metadata.Topic, buf *[]byte) {
	// The answer may be sent, and the call reused, while the parts are appended.
	parts := slices.Clone(c.parts)
	limit := timeLimit{c.timeout, c.deadline}
	for _, pt := range parts {
		pt.call = nil
	}
	c.parts, c.places = nil, nil
	p.calls.answer(c, nil)
	for i, pt := range parts {
		if pt.err == nil {
			pt.err = p.storeUnanswered(pt, i, t, buf, limit)
		}
		if pt.err != nil {
			p.svc.metrics.refused.Inc()
		}
	}
}

// plan finds out which parts the call has, and their partitions.
func (p *produceSession) plan(c *produceCall, t *metadata.Topic) error {
	r := &p.req
	if r.HasPartition {
		if _, err := t.Find(r.Partition); err != nil {
			return err
		}
	}
	if c.batch {
		return p.addPart(c, t, r.Partition)
	}
	if err := p.spread(c, t); err != nil {
		return err
	}
	if len(c.parts) == 1 {
		// Nothing was sent anywhere: the request as a whole failed.
		return c.parts[0].err
	}
	return nil
}

// addPart adds the part for partition n. That this broker has no copy is the
// part's failure, unless it is to be sent to another one; it is returned too.
func (p *produceSession) addPart(c *produceCall, t *metadata.Topic, n int32) error {
	part, err := p.svc.opts.Partitions.Get(t.ID, n)
	if err != nil {
		part = nil
		if p.goesAway(err) {
			err = nil
		}
	}
	pt := c.newPart(partKey{t.ID, n}, part)
	pt.err = err
	pt.logAppendTime = stampedByLeader(t)
	return err
}

// spread finds the partition of each record: the one asked for, that of its
// key, or, for all without a key, one that is chosen for this request.
func (p *produceSession) spread(c *produceCall, t *metadata.Topic) error {
	r, pl := &p.req, &p.planner
	pl.reset()
	count := len(t.Partitions)
	keyless := rand.Int32N(int32(max(count, 1))) //nolint:gosec // a partition count; spreading load needs no secret
	p.records.Reset(r)
	for p.records.Next() {
		n := r.Partition
		if !r.HasPartition {
			if n = keyless; p.records.Record().Key != nil {
				n = partitioner.ForKey(p.records.Record().Key, count)
			}
		}
		part, ok := pl.partOf[n]
		if !ok {
			part = int32(len(c.parts)) //nolint:gosec // at most the partition count
			pl.partOf[n] = part
			_ = p.addPart(c, t, n) // told of by the part
			pl.first = append(pl.first, 0)
		}
		start, end := p.records.Place()
		pl.refs = append(pl.refs, recordRef{start, end})
		c.places = append(c.places, recordPlace{part: part, index: pl.first[part]})
		pl.first[part]++
	}
	if err := p.records.Err(); err != nil {
		return err
	}
	pl.sort(c.places)
	return nil
}

func (pl *planner) reset() {
	if pl.partOf == nil || len(pl.partOf) > maxScratch {
		pl.partOf = map[int32]int32{}
	}
	clear(pl.partOf)
	if cap(pl.refs) > maxScratch {
		pl.refs, pl.order = nil, nil
	}
	pl.refs, pl.order, pl.first = pl.refs[:0], pl.order[:0], pl.first[:0]
}

// sort orders the records by part. first has their counts, and afterwards where
// each part begins.
func (pl *planner) sort(places []recordPlace) {
	total := int32(0)
	for i, n := range pl.first {
		pl.first[i] = total
		total += n
	}
	pl.first = append(pl.first, total)
	pl.order = slices.Grow(pl.order, len(places))[:len(places)]
	for i, at := range places {
		pl.order[pl.first[at.part]+at.index] = int32(i) //nolint:gosec // far below 2^31 records in a message
	}
}

// append stores part i of the call, and sees to its outcome.
func (p *produceSession) append(c *produceCall, i int, t *metadata.Topic, buf *[]byte) {
	pt := c.parts[i]
	if p.leadsHere(pt) {
		got, err := p.store(pt, i, t, *buf)
		if err == nil {
			p.calls.appendedOK(pt, got)
			if p.req.Acks == int32(runnelv1.Acks_ACKS_LEADER) {
				p.calls.resolve(pt, nil)
				return
			}
			p.calls.await(pt, pt.part.WhenCommitted(got, pt.done))
			return
		}
		if !p.goesAway(err) {
			p.calls.resolve(pt, err)
			return
		}
	}
	done := func(res router.Result) { p.calls.forwarded(pt, res) }
	w, err := p.forward(pt, i, t, buf, timeLimit{c.timeout, c.deadline}, done)
	if err != nil {
		p.calls.resolve(pt, err)
		return
	}
	p.calls.await(pt, func() bool {
		w.Expire() // it tells the outcome itself
		return false
	})
}

// errBatchFull is told of records that make more than one batch.
func batchFull(err error) error {
	return &refusal.Error{
		Kind:  record.ErrTooLarge,
		Text:  "the records of one request for one partition are stored as one batch, all or none, and these are too many (" + err.Error() + "): split the request",
		Facts: map[string]string{"maxBytes": decimal(record.MaxFrameSize)},
	}
}

// recordIndex makes an error about record n of a batch one about the record of
// the request that it came from.
func (pl *planner) recordIndex(err error, part int) error {
	if errors.Is(err, record.ErrBatchFull) {
		return batchFull(err)
	}
	be, ok := errors.AsType[*record.BatchError](err)
	if !ok || be.Record < 0 {
		return err
	}
	at := *be
	at.Record = int(pl.order[int(pl.first[part])+be.Record])
	return &at
}
