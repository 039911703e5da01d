// Package history records what producers were told and what readers saw, and
// finds what a log must never do to them.
package history

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
)

// A Fate is what a producer was told about a record.
type Fate uint8

const (
	// Pending says nothing yet. Every record must get out of it.
	Pending Fate = iota
	// Acknowledged records are in the log, for good.
	Acknowledged
	// Failed records are not in the log, and never will be.
	Failed
	// Unknown records may be in the log or not.
	Unknown
)

// A Kind is something that must not happen.
type Kind string

const (
	// Lost means acknowledged, nobody ever read it, and a reader got past its offset.
	Lost Kind = "lost"
	// Unseen means acknowledged, and no reader got as far by the end.
	Unseen Kind = "unseen"
	// Inconsistent means two values at one offset, by acknowledgements or by reads.
	Inconsistent Kind = "inconsistent-offsets"
	// Misplaced means it was read elsewhere than where it was acknowledged.
	Misplaced Kind = "misplaced"
	// Duplicate means one value at several offsets.
	Duplicate Kind = "duplicate"
	// FailedRead means it failed for certain, and was read.
	FailedRead Kind = "failed-read"
	// Phantom means nobody ever sent it.
	Phantom Kind = "phantom"
	// Reordered means a producer's later record is before an earlier one of the same
	// partition.
	Reordered Kind = "nonmonotonic-send"
	// Back means a reader was given an offset that is not above the one before.
	Back Kind = "nonmonotonic-poll"
	// Skip means a reader went over an offset that holds a record.
	Skip Kind = "poll-skip"
	// Unanswered means a record without an outcome.
	Unanswered Kind = "unanswered"
	// AnsweredTwice means a record with two outcomes.
	AnsweredTwice Kind = "answered-twice"
)

// An Anomaly is one thing that happened and must not.
type Anomaly struct {
	Kind Kind
	Text string
}

func (a Anomaly) String() string { return string(a.Kind) + ": " + a.Text }

// A place is where a record is: an offset of a partition.
type place struct {
	partition int32
	offset    int64
}

func (p place) String() string { return fmt.Sprintf("partition %d, offset %d", p.partition, p.offset) }

// A name is a record's: its producer, and its number there, from 0.
type name struct {
	producer int
	number   int64
}

func (n name) String() string { return fmt.Sprintf("record %d of producer %d", n.number, n.producer) }

// A sent record. Its place is that of its acknowledgement.
type sent struct {
	fate  Fate
	place place
	// read is where it was first read, when it was.
	read place
	seen bool
}

type readerOf struct {
	reader    int
	partition int32
}

// A jump of a reader from one offset to another that is not the next.
type jump struct {
	reader   readerOf
	from, to int64 // offsets read, one after the other
}

// Options say what is allowed.
type Options struct {
	// Duplicates are allowed: producers are not idempotent and were told to try
	// again when they did not know the outcome.
	Duplicates bool
	// FromBeginning means that all readers begin at the first record of each
	// partition.
	FromBeginning bool
}

// A History is all that producers and readers of one topic saw. It is safe for
// concurrent use. All but Check takes constant time for each record, and Check
// one walk over all.
type History struct {
	o Options

	// mu guards the fields below
	mu sync.Mutex

	producers [][]sent
	values    map[place]name // by acknowledgements and reads, whichever came first
	last      map[readerOf]int64
	jumps     []jump
	reads     int
	found     []Anomaly
	counts    map[Kind]int
}

// New returns an empty history.
func New(o Options) *History {
	return &History{o: o, values: map[place]name{}, last: map[readerOf]int64{}, counts: map[Kind]int{}}
}

// Producer adds a producer and returns its number.
func (h *History) Producer() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.producers = append(h.producers, nil)
	return len(h.producers) - 1
}

// Next returns the number of a producer's next record, which is to be sent now:
// numbers rise in the order of sending.
func (h *History) Next(producer int) int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.producers[producer] = append(h.producers[producer], sent{})
	return int64(len(h.producers[producer]) - 1)
}

// Outcome says what became of a record. Partition and offset count for
// Acknowledged only.
func (h *History) Outcome(producer int, number int64, f Fate, partition int32, offset int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := name{producer, number}
	s := &h.producers[producer][number]
	if s.fate != Pending {
		h.report(AnsweredTwice, "%v", n)
		return
	}
	s.fate = f
	if f != Acknowledged {
		return
	}
	s.place = place{partition, offset}
	h.value(s.place, n)
}

// Read says that a reader was given a value.
func (h *History) Read(reader int, partition int32, offset int64, value []byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads++
	at := place{partition, offset}
	h.follow(readerOf{reader, partition}, offset)
	n, ok := parse(value)
	if !ok || n.producer >= len(h.producers) || n.number >= int64(len(h.producers[n.producer])) {
		h.report(Phantom, "%q at %v", clip(value), at)
		return
	}
	h.value(at, n)
	s := &h.producers[n.producer][n.number]
	switch {
	case !s.seen:
		s.seen, s.read = true, at
	case s.read != at && !h.o.Duplicates:
		h.report(Duplicate, "%v at %v and at %v", n, s.read, at)
	}
}

// follow checks that a reader goes forward.
func (h *History) follow(r readerOf, offset int64) {
	before, ok := h.last[r]
	switch {
	case ok && offset <= before:
		h.report(Back, "reader %d, partition %d: offset %d after %d", r.reader, r.partition, offset, before)
	case ok && offset > before+1:
		h.jumps = append(h.jumps, jump{reader: r, from: before, to: offset})
	case !ok && h.o.FromBeginning:
		h.jumps = append(h.jumps, jump{reader: r, from: -1, to: offset})
	}
	h.last[r] = offset
}

// value checks that a place has one value only.
func (h *History) value(at place, n name) {
	before, ok := h.values[at]
	if !ok {
		h.values[at] = n
		return
	}
	if before != n {
		h.report(Inconsistent, "%v: %v and %v", at, before, n)
	}
}

// reported is how many anomalies of a kind are told in full.
const reported = 10

func (h *History) report(k Kind, format string, args ...any) {
	if h.counts[k]++; h.counts[k] <= reported {
		h.found = append(h.found, Anomaly{Kind: k, Text: fmt.Sprintf(format, args...)})
	}
}

// A Report is what Check found.
type Report struct {
	Sent, Acknowledged, Failed, Unknown int
	// Stored are the records of unknown outcome that are in the log.
	Stored int
	Reads  int
	// Anomalies are at most ten of each kind; Counts are all.
	Anomalies []Anomaly
	Counts    map[Kind]int
}

func (r Report) String() string {
	return fmt.Sprintf("%d records sent: %d acknowledged, %d failed for certain, %d of unknown outcome, %d of which are stored; %d reads; %d kinds of anomalies",
		r.Sent, r.Acknowledged, r.Failed, r.Unknown, r.Stored, r.Reads, len(r.Counts))
}

// Check judges all, after every record had its outcome and a reader, at least,
// read all from the beginning to the end.
func (h *History) Check() Report {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := Report{Reads: h.reads}
	reached := map[int32]int64{} // by any reader
	for of, offset := range h.last {
		reached[of.partition] = max(reached[of.partition], offset)
	}
	for p := range h.producers {
		h.checkProducer(p, reached, &r)
	}
	h.checkJumps()
	r.Anomalies, r.Counts = slices.Clone(h.found), maps.Clone(h.counts)
	return r
}

func (h *History) checkProducer(p int, reached map[int32]int64, r *Report) {
	type stored struct {
		offset int64
		number int64
	}
	last := map[int32]stored{} // by partition
	for i := range h.producers[p] {
		s, n := &h.producers[p][i], name{p, int64(i)}
		r.Sent++
		h.checkFate(s, n, reached, r)
		at := s.read
		switch {
		case s.fate == Acknowledged:
			at = s.place
		case !s.seen:
			continue
		}
		if before, ok := last[at.partition]; ok && at.offset < before.offset {
			h.report(Reordered, "producer %d, partition %d: record %d is at offset %d, and record %d at %d",
				p, at.partition, before.number, before.offset, i, at.offset)
		}
		last[at.partition] = stored{at.offset, int64(i)}
	}
}

func (h *History) checkFate(s *sent, n name, reached map[int32]int64, r *Report) {
	switch s.fate {
	case Pending:
		h.report(Unanswered, "%v", n)
	case Failed:
		r.Failed++
		if s.seen {
			h.report(FailedRead, "%v at %v", n, s.read)
		}
	case Unknown:
		r.Unknown++
		if s.seen {
			r.Stored++
		}
	case Acknowledged:
		r.Acknowledged++
		end, some := reached[s.place.partition]
		switch {
		case s.seen && s.read != s.place && !h.o.Duplicates:
			h.report(Misplaced, "%v was acknowledged at %v and read at %v", n, s.place, s.read)
		case s.seen:
		case some && end >= s.place.offset:
			h.report(Lost, "%v, acknowledged at %v", n, s.place)
		default:
			h.report(Unseen, "%v, acknowledged at %v", n, s.place)
		}
	}
}

// checkJumps reports the jumps of readers over offsets that hold records.
func (h *History) checkJumps() {
	if len(h.jumps) == 0 {
		return
	}
	held := map[int32][]int64{}
	for at := range h.values {
		held[at.partition] = append(held[at.partition], at.offset)
	}
	for _, offsets := range held {
		slices.Sort(offsets)
	}
	for _, j := range h.jumps {
		offsets := held[j.reader.partition]
		i, _ := slices.BinarySearch(offsets, j.from+1)
		if i < len(offsets) && offsets[i] < j.to {
			h.report(Skip, "reader %d, partition %d: from offset %d to %d, over %d",
				j.reader.reader, j.reader.partition, j.from, j.to, offsets[i])
		}
	}
	h.jumps = nil
}

// Value returns the value of a record, which no other record has. It has size
// bytes, or as many as it needs.
func Value(producer int, number int64, size int) []byte {
	b := strconv.AppendInt(nil, int64(producer), 10)
	b = append(b, ':')
	b = strconv.AppendInt(b, number, 10)
	b = append(b, ';')
	if pad := size - len(b); pad > 0 {
		b = append(b, bytes.Repeat([]byte{'.'}, pad)...)
	}
	return b
}

func parse(value []byte) (name, bool) {
	head, _, ok := bytes.Cut(value, []byte{';'})
	producer, number, both := bytes.Cut(head, []byte{':'})
	if !ok || !both {
		return name{}, false
	}
	p, err1 := strconv.Atoi(string(producer))
	n, err2 := strconv.ParseInt(string(number), 10, 64)
	return name{p, n}, err1 == nil && err2 == nil && p >= 0 && n >= 0
}

func clip(b []byte) []byte { return b[:min(len(b), 64)] }
