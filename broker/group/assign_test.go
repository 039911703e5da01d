package group

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// topicID makes an id that tells its number.
func topicID(n int) uuid.UUID {
	var id uuid.UUID
	binary.BigEndian.PutUint64(id[8:], uint64(n)+1)
	return id
}

func topicOf(n int, partitions int32) *Topic {
	return &Topic{ID: topicID(n), Name: fmt.Sprintf("t%03d", n), Partitions: partitions}
}

func readersOf(n int, topics ...*Topic) []Reader {
	out := make([]Reader, n)
	for i := range out {
		out[i] = Reader{Name: fmt.Sprintf("m%04d", i), Topics: topics}
	}
	return out
}

// spread returns how many partitions the readers have that have the most and
// the least.
func spread(shares [][]Part) (most, least int) {
	least = 1 << 30
	for _, s := range shares {
		most, least = max(most, len(s)), min(least, len(s))
	}
	return most, least
}

// complete fails unless every partition of a topic that somebody reads has one
// owner, who reads it.
func complete(t rapid.TB, readers []Reader, shares [][]Part) {
	t.Helper()
	owner := map[Part]int{}
	for i, share := range shares {
		for _, p := range share {
			if was, ok := owner[p]; ok {
				t.Fatalf("%v is owned by %d and by %d", p, was, i)
			}
			owner[p] = i
			if !slices.ContainsFunc(readers[i].Topics, func(x *Topic) bool { return x.ID == p.Topic && p.Number < x.Partitions }) {
				t.Fatalf("reader %d has %v, which it does not read", i, p)
			}
		}
	}
	for _, d := range demands(readers) {
		for n := range d.topic.Partitions {
			if _, ok := owner[Part{d.topic.ID, n}]; !ok {
				t.Fatalf("%s/%d has no owner", d.topic.Name, n)
			}
		}
	}
}

// CG-18: many small topics are balanced as a whole, not each for itself.
func TestSticky_balancesOverTopicsCG18(t *testing.T) {
	var single, mixed []*Topic
	for i := range 30 {
		single = append(single, topicOf(i, 1))
		mixed = append(mixed, topicOf(i, int32(1+i%12))) //nolint:gosec // small
	}
	for name, topics := range map[string][]*Topic{"30 topics of one": single, "30 topics of 1 to 12": mixed} {
		for _, a := range []Assignor{Sticky, StickyRackAware, RoundRobin} {
			readers := readersOf(12, topics...)
			shares := a.Assign(readers)
			complete(t, readers, shares)
			if most, least := spread(shares); most-least > 1 {
				t.Errorf("%s, assignor %d: from %d to %d partitions", name, a, least, most)
			}
			if again := a.Assign(readers); !cmp.Equal(shares, again) {
				t.Errorf("%s, assignor %d: another result for the same input", name, a)
			}
		}
	}
}

// Whoever comes or goes, only what must move does.
func TestSticky_movesLittle(t *testing.T) {
	topic := topicOf(0, 12)
	readers := readersOf(3, topic)
	shares := Sticky.Assign(readers)
	for i := range readers {
		readers[i].Has = shares[i]
	}
	if got := Sticky.Assign(readers); !cmp.Equal(got, shares) {
		t.Errorf("partitions moved without a cause: %v, then %v", shares, got)
	}
	four := append(slices.Clone(readers), Reader{Name: "m9", Topics: []*Topic{topic}})
	got := Sticky.Assign(four)
	if moved := movedParts(shares, got); moved != 3 || len(got[3]) != 3 {
		t.Errorf("a fourth member: %d partitions moved, it has %v", moved, got[3])
	}
	two := readers[:2]
	if moved := movedParts(shares[:2], Sticky.Assign(two)); moved != 0 {
		t.Errorf("a member left, and %d partitions of others moved", moved)
	}
}

// movedParts counts those that a reader had and another one gets.
func movedParts(was, now [][]Part) int {
	n := 0
	for i := range was {
		for _, p := range was[i] {
			if !slices.Contains(now[i], p) {
				n++
			}
		}
	}
	return n
}

func TestRange_meets(t *testing.T) {
	a, b := topicOf(0, 5), topicOf(1, 5)
	shares := Range.Assign(readersOf(2, a, b))
	want := [][]Part{
		{{a.ID, 0}, {a.ID, 1}, {a.ID, 2}, {b.ID, 0}, {b.ID, 1}, {b.ID, 2}},
		{{a.ID, 3}, {a.ID, 4}, {b.ID, 3}, {b.ID, 4}},
	}
	if diff := cmp.Diff(want, shares); diff != "" {
		t.Error(diff)
	}
}

func TestRoundRobin_dealsInTurn(t *testing.T) {
	a, b := topicOf(0, 3), topicOf(1, 2)
	readers := readersOf(2, a, b)
	readers[1].Topics = []*Topic{b}
	shares := RoundRobin.Assign(readers)
	want := [][]Part{{{a.ID, 0}, {a.ID, 1}, {a.ID, 2}, {b.ID, 1}}, {{b.ID, 0}}}
	if diff := cmp.Diff(want, shares); diff != "" {
		t.Error(diff)
	}
}

func TestRackAware_prefersNearReaders(t *testing.T) {
	topic := topicOf(0, 6)
	topic.Racks = [][]string{{"a"}, {"b"}, {"c"}, {"a", "b"}, {"c"}, {"b"}}
	readers := readersOf(3, topic)
	for i, rack := range []string{"a", "b", "c"} {
		readers[i].Rack = rack
	}
	shares := StickyRackAware.Assign(readers)
	want := [][]Part{{{topic.ID, 0}, {topic.ID, 3}}, {{topic.ID, 1}, {topic.ID, 5}}, {{topic.ID, 2}, {topic.ID, 4}}}
	if diff := cmp.Diff(want, shares); diff != "" {
		t.Error(diff)
	}
	far := readersOf(2, topic) // nobody is near: it is balanced all the same
	if most, least := spread(StickyRackAware.Assign(far)); most != least {
		t.Errorf("from %d to %d partitions", least, most)
	}
}

// drawReaders makes readers of random topics, which have what they could have
// had before.
func drawReaders(t *rapid.T) []Reader {
	var topics []*Topic
	for i := range rapid.IntRange(1, 6).Draw(t, "topics") {
		topics = append(topics, topicOf(i, rapid.Int32Range(0, 9).Draw(t, "partitions")))
	}
	readers := readersOf(rapid.IntRange(1, 7).Draw(t, "readers"))
	alike := rapid.Bool().Draw(t, "alike")
	for i := range readers {
		for _, topic := range topics {
			if alike || rapid.Bool().Draw(t, "reads") {
				readers[i].Topics = append(readers[i].Topics, topic)
			}
		}
	}
	for _, topic := range topics {
		for n := range topic.Partitions {
			if i := rapid.IntRange(-1, len(readers)-1).Draw(t, "has"); i >= 0 {
				readers[i].Has = append(readers[i].Has, Part{topic.ID, n})
			}
		}
	}
	return readers
}

func TestAssign_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		readers := drawReaders(t)
		a := Assignor(rapid.IntRange(1, 4).Draw(t, "assignor")) //nolint:gosec // small
		shares := a.Assign(readers)
		complete(t, readers, shares)
		order := rapid.Permutation(indexes(len(readers))).Draw(t, "order")
		shuffled := make([]Reader, len(readers))
		for k, i := range order {
			shuffled[k] = readers[i]
		}
		for k, share := range a.Assign(shuffled) {
			if !cmp.Equal(share, shares[order[k]]) {
				t.Fatalf("the order of the readers counts: %v, then %v", shares[order[k]], share)
			}
		}
	})
}

func indexes(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// Equal readers get equal shares with as few moves as that takes, and unequal
// ones as equal as single moves can make them; asked again, nothing moves.
func TestSticky_properties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		readers := drawReaders(t)
		racked := rapid.Bool().Draw(t, "racked")
		shares := assignSticky(readers, racked)
		ds := demands(readers)
		alike := true
		for _, d := range ds {
			alike = alike && len(d.readers) == len(readers)
		}
		for _, d := range ds {
			for _, from := range d.readers {
				for _, to := range d.readers {
					has := slices.ContainsFunc(shares[from], func(p Part) bool { return p.Topic == d.topic.ID })
					if has && len(shares[from])-len(shares[to]) > 1 {
						t.Fatalf("reader %d has %d, reader %d has %d, and could take one of %s", from, len(shares[from]), to, len(shares[to]), d.topic.Name)
					}
				}
			}
		}
		kept := make([][]Part, len(readers))
		total := 0
		for i := range readers {
			kept[i] = slices.DeleteFunc(slices.Clone(readers[i].Has), func(p Part) bool {
				return !slices.ContainsFunc(readers[i].Topics, func(x *Topic) bool { return x.ID == p.Topic })
			})
			total += len(shares[i])
		}
		if alike {
			over, under := 0, 0
			floor := total / len(readers)
			ceil := (total + len(readers) - 1) / len(readers)
			free := total
			for i := range kept {
				over += max(len(kept[i])-ceil, 0)
				under += max(floor-len(kept[i]), 0)
				free -= len(kept[i])
			}
			least := max(over, under-free)
			if moved := movedParts(kept, shares); moved > least {
				t.Fatalf("%d partitions moved, %d had to", moved, least)
			}
		}
		for i := range readers {
			readers[i].Has = shares[i]
		}
		if again := assignSticky(readers, racked); movedParts(shares, again) > 0 {
			t.Fatalf("asked again, partitions moved: %v, then %v", shares, again)
		}
	})
}

func BenchmarkSticky(b *testing.B) {
	for _, c := range []struct {
		readers    int
		partitions int32
	}{{1000, 1000}, {100, 10000}, {1000, 100000}} {
		b.Run(fmt.Sprintf("%d members, %d partitions", c.readers, c.partitions), func(b *testing.B) {
			readers := readersOf(c.readers, topicOf(0, c.partitions))
			for b.Loop() {
				Sticky.Assign(readers)
			}
		})
	}
}
