package history

import (
	"maps"
	"slices"
	"testing"
)

// A story is a history made by hand: two producers, whose records are in one
// partition unless it says otherwise.
type story struct {
	*History
	p, q int
}

func (s story) send(producer int, f Fate, offset int64) {
	n := s.Next(producer)
	s.Outcome(producer, n, f, 0, offset)
}

func (s story) read(reader int, offset int64, producer int, number int64) {
	s.Read(reader, 0, offset, Value(producer, number, 40))
}

// good is a history with nothing wrong: p's records 0, 1 and 3 are at 0, 1 and
// 4, of p's record 2 it is known that it failed, and q's records are at 2 and
// 3, the second of unknown outcome. Offset 5 holds none, offset 6 p's record 4.
func good(o Options) story {
	h := New(o)
	s := story{History: h, p: h.Producer(), q: h.Producer()}
	s.send(s.p, Acknowledged, 0)
	s.send(s.p, Acknowledged, 1)
	s.send(s.q, Acknowledged, 2)
	s.send(s.p, Failed, 0)
	s.send(s.q, Unknown, 0)
	s.send(s.p, Acknowledged, 4)
	s.send(s.q, Unknown, 0) // and never stored
	s.send(s.p, Acknowledged, 6)
	return s
}

type step struct {
	offset   int64
	producer int
	number   int64
}

func steps() []step {
	return []step{{0, 0, 0}, {1, 0, 1}, {2, 1, 0}, {3, 1, 1}, {4, 0, 3}, {6, 0, 4}}
}

func (s story) readAll(reader int, skipping ...int64) {
	for _, st := range steps() {
		if !slices.Contains(skipping, st.offset) {
			s.read(reader, st.offset, st.producer, st.number)
		}
	}
}

func TestCheck(t *testing.T) {
	for what, c := range map[string]struct {
		o    Options
		tell func(story)
		want []Kind
	}{
		"good":                         {tell: func(s story) { s.readAll(0) }},
		"good, read by two":            {tell: func(s story) { s.readAll(0); s.readAll(1) }},
		"good, a reader begins midway": {tell: func(s story) { s.readAll(0); s.readAll(1, 0, 1, 2) }},
		"a reader begins midway and must not": {
			o: Options{FromBeginning: true}, tell: func(s story) { s.readAll(0); s.readAll(1, 0, 1, 2) }, want: []Kind{Skip},
		},
		"good, all begin at the beginning": {
			o: Options{FromBeginning: true}, tell: func(s story) { s.readAll(0); s.readAll(1) },
		},
		"lost in the middle":    {tell: func(s story) { s.readAll(0, 1) }, want: []Kind{Lost, Skip}},
		"lost at the beginning": {tell: func(s story) { s.readAll(0, 0) }, want: []Kind{Lost}},
		"lost at the end":       {tell: func(s story) { s.readAll(0, 6) }, want: []Kind{Unseen}},
		"nothing read":          {tell: func(story) {}, want: []Kind{Unseen}},
		"one reader skips what another reads": {
			tell: func(s story) { s.readAll(0); s.readAll(1, 3) }, want: []Kind{Skip},
		},
		"two values at one offset, by reads": {
			tell: func(s story) { s.readAll(0); s.read(1, 3, s.q, 2) }, want: []Kind{Inconsistent},
		},
		"two values at one offset, by acknowledgements": {
			tell: func(s story) { s.readAll(0); s.send(s.q, Acknowledged, 6) }, want: []Kind{Inconsistent, Lost},
		},
		"another value than the acknowledged one": {
			tell: func(s story) { s.readAll(0, 6); s.read(0, 6, s.q, 2) }, want: []Kind{Inconsistent, Lost},
		},
		"acknowledged at one place, read at another": {
			tell: func(s story) { s.readAll(0, 6); s.read(0, 8, s.p, 4) }, want: []Kind{Misplaced, Skip},
		},
		"twice in the log": {
			tell: func(s story) { s.readAll(0); s.read(0, 7, s.q, 1) }, want: []Kind{Duplicate},
		},
		"twice in the log, where that may be": {
			o: Options{Duplicates: true}, tell: func(s story) { s.readAll(0); s.read(0, 7, s.q, 1) },
		},
		"a failed one is read": {
			tell: func(s story) { s.readAll(0); s.read(0, 7, s.p, 2) }, want: []Kind{FailedRead, Reordered},
		},
		"a number nobody sent":   {tell: func(s story) { s.readAll(0); s.read(0, 7, s.p, 99) }, want: []Kind{Phantom}},
		"a producer nobody is":   {tell: func(s story) { s.readAll(0); s.read(0, 7, 5, 0) }, want: []Kind{Phantom}},
		"bytes that are no name": {tell: func(s story) { s.readAll(0); s.Read(0, 0, 7, []byte("x")) }, want: []Kind{Phantom}},
		"reordered, by acknowledgements": {
			tell: func(s story) {
				s.readAll(0)
				s.send(s.p, Acknowledged, 8)
				s.send(s.p, Acknowledged, 7)
				s.read(0, 7, s.p, 6)
				s.read(0, 8, s.p, 5)
			}, want: []Kind{Reordered},
		},
		"reordered, of unknown outcome": {
			tell: func(s story) {
				s.readAll(0)
				s.send(s.q, Unknown, 0)
				s.read(0, 7, s.q, 3)
				s.read(0, 8, s.q, 2)
			}, want: []Kind{Reordered},
		},
		"a reader goes back": {tell: func(s story) { s.readAll(0); s.read(0, 4, s.p, 3) }, want: []Kind{Back}},
		"a reader stands":    {tell: func(s story) { s.readAll(0); s.read(0, 6, s.p, 4) }, want: []Kind{Back}},
		"no outcome":         {tell: func(s story) { s.readAll(0); s.Next(s.q) }, want: []Kind{Unanswered}},
		"two outcomes":       {tell: func(s story) { s.readAll(0); s.Outcome(s.p, 0, Failed, 0, 0) }, want: []Kind{AnsweredTwice}},
		"read before answered": {tell: func(s story) {
			s.readAll(0)
			n := s.Next(s.q)
			s.read(0, 7, s.q, n)
			s.Outcome(s.q, n, Acknowledged, 0, 7)
		}},
	} {
		t.Run(what, func(t *testing.T) {
			s := good(c.o)
			c.tell(s)
			r := s.Check()
			got := slices.Sorted(maps.Keys(r.Counts))
			slices.Sort(c.want)
			if !slices.Equal(got, c.want) {
				t.Errorf("found %v, want %v\n%v", got, c.want, r.Anomalies)
			}
		})
	}
}

func TestCheck_counts(t *testing.T) {
	s := good(Options{})
	s.readAll(0)
	r := s.Check()
	if r.Sent != 8 || r.Acknowledged != 5 || r.Failed != 1 || r.Unknown != 2 || r.Stored != 1 || r.Reads != 6 {
		t.Errorf("%v", r)
	}
}

// Partitions have nothing to do with each other.
func TestCheck_partitions(t *testing.T) {
	h := New(Options{})
	p := h.Producer()
	for i := range 6 {
		n := h.Next(p)
		h.Outcome(p, n, Acknowledged, int32(i%3), int64(i/3))
	}
	for part := range int32(3) {
		for i := range int64(2) {
			h.Read(0, part, i, Value(p, i*3+int64(part), 0))
		}
	}
	if r := h.Check(); len(r.Anomalies) > 0 {
		t.Errorf("found %v", r.Anomalies)
	}
}

// Many anomalies of a kind are counted, and some told.
func TestCheck_many(t *testing.T) {
	h := New(Options{})
	p := h.Producer()
	for range 1000 {
		n := h.Next(p)
		h.Outcome(p, n, Acknowledged, 0, n)
	}
	h.Read(0, 0, 999, Value(p, 999, 0))
	if r := h.Check(); r.Counts[Lost] != 999 || len(r.Anomalies) != reported {
		t.Errorf("counted %v, told %d", r.Counts, len(r.Anomalies))
	}
}
