package group

import (
	"cmp"
	"slices"
)

// An Assignor divides partitions among members.
type Assignor uint8

// The assignors. The numbers are stored.
const (
	Sticky          Assignor = 1
	Range           Assignor = 2
	RoundRobin      Assignor = 3
	StickyRackAware Assignor = 4
)

// Valid says whether this version knows the assignor.
func (a Assignor) Valid() bool { return a >= Sticky && a <= StickyRackAware }

// A Reader is a member, as an assignor sees it.
type Reader struct {
	// Name orders the readers: it is the same after a restart of a static member.
	Name string
	Rack string
	// Topics are those it reads, by name.
	Topics []*Topic
	// Has is what it is to keep if that is fair.
	Has []Part
}

// Assign returns what each reader is to have, by index, each in the order of
// parts. Every partition of a topic that somebody reads has one reader. It
// depends on nothing but its arguments, and the order of readers does not count.
func (a Assignor) Assign(readers []Reader) [][]Part {
	order := make([]int, len(readers))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int { return cmp.Compare(readers[i].Name, readers[j].Name) })
	sorted := make([]Reader, len(readers))
	for at, i := range order {
		sorted[at] = readers[i]
	}
	var shares [][]Part
	switch a {
	case Range:
		shares = assignRange(sorted)
	case RoundRobin:
		shares = assignRoundRobin(sorted)
	case StickyRackAware:
		shares = assignSticky(sorted, true)
	case Sticky:
		shares = assignSticky(sorted, false)
	default:
		shares = assignSticky(sorted, false)
	}
	out := make([][]Part, len(readers))
	for at, i := range order {
		out[i] = shares[at]
		slices.SortFunc(out[i], Part.Compare)
	}
	return out
}

// A demand is a topic and who reads it, by index.
type demand struct {
	topic   *Topic
	readers []int
}

// demands returns what is read, by topic name.
func demands(readers []Reader) []*demand {
	at := map[Part]*demand{} // by topic id
	var out []*demand
	for i := range readers {
		for _, t := range readers[i].Topics {
			k := Part{Topic: t.ID}
			d := at[k]
			if d == nil {
				d = &demand{topic: t}
				at[k] = d
				out = append(out, d)
			}
			d.readers = append(d.readers, i)
		}
	}
	slices.SortFunc(out, func(a, b *demand) int {
		return cmp.Or(cmp.Compare(a.topic.Name, b.topic.Name), Part{Topic: a.topic.ID}.Compare(Part{Topic: b.topic.ID}))
	})
	return out
}

// choose returns what most members want, the smaller number among equals.
func choose(members map[string]*member) Assignor {
	var votes [StickyRackAware + 1]int
	for _, m := range members {
		if m.terms.Assignor.Valid() {
			votes[m.terms.Assignor]++
		}
	}
	best := Sticky
	for a := Sticky; a <= StickyRackAware; a++ {
		if votes[a] > votes[best] {
			best = a
		}
	}
	return best
}
