package group

import (
	"cmp"
	"slices"
)

// A deal is a sticky assignment in the making.
type deal struct {
	readers []Reader
	racked  bool
	demands []*demand
	// owner is the reader of each partition, by demand and number; -1: none yet.
	owner [][]int
	load  []int // partitions by reader
	// ofTopic counts a reader's partitions by demand.
	ofTopic []map[int]int
	queue   loads
}

// assignSticky keeps what readers have, gives what nobody has to those with the
// least, and then moves partitions from those with more to those with less, as
// long as that makes two of them more equal. So the loads of readers of the same
// topics differ by one at most, and no partition moves that need not.
func assignSticky(readers []Reader, racked bool) [][]Part {
	d := &deal{readers: readers, racked: racked, demands: demands(readers), load: make([]int, len(readers)), ofTopic: make([]map[int]int, len(readers))}
	for i := range d.ofTopic {
		d.ofTopic[i] = map[int]int{}
	}
	d.keep()
	d.queue = newLoads(d.load)
	alike := d.alike()
	d.place(alike)
	if alike {
		d.levelAlike()
	} else {
		d.level()
	}
	out := make([][]Part, len(readers))
	for t := range d.owner {
		for n, i := range d.owner[t] {
			out[i] = append(out[i], Part{d.demands[t].topic.ID, int32(n)}) //nolint:gosec // below the topic's count
		}
	}
	return out
}

// keep leaves every reader what it has and still reads. Of two that have the
// same, the first keeps it.
func (d *deal) keep() {
	at := map[Part]int{} // demands by topic id
	d.owner = make([][]int, len(d.demands))
	for t, dem := range d.demands {
		at[Part{Topic: dem.topic.ID}] = t
		d.owner[t] = slices.Repeat([]int{-1}, int(dem.topic.Partitions))
	}
	for i := range d.readers {
		for _, p := range d.readers[i].Has {
			t, ok := at[Part{Topic: p.Topic}]
			if !ok || p.Number < 0 || int(p.Number) >= len(d.owner[t]) || d.owner[t][p.Number] >= 0 {
				continue
			}
			if _, reads := slices.BinarySearch(d.demands[t].readers, i); reads {
				d.own(t, int(p.Number), i)
			}
		}
	}
}

func (d *deal) own(t, n, i int) {
	if old := d.owner[t][n]; old >= 0 {
		d.load[old]--
		d.ofTopic[old][t]--
	}
	d.owner[t][n] = i
	d.load[i]++
	d.ofTopic[i][t]++
}

// alike says whether all readers read the same topics.
func (d *deal) alike() bool {
	for _, dem := range d.demands {
		if len(dem.readers) != len(d.readers) {
			return false
		}
	}
	return true
}

// place gives what nobody has to readers with the least. Topics with few readers
// go first, since those have no choice.
func (d *deal) place(alike bool) {
	order := make([]int, len(d.demands))
	for t := range order {
		order[t] = t
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(len(d.demands[a].readers), len(d.demands[b].readers)) })
	if d.racked {
		d.placeNear(order)
	}
	for _, t := range order {
		for n, i := range d.owner[t] {
			if i >= 0 {
				continue
			}
			var to int
			if alike {
				to = d.queue.least(func(i int) int { return d.ofTopic[i][t] })
			} else {
				to = d.least(t, nil)
			}
			d.own(t, n, to)
			d.queue.raise(to)
		}
	}
}

// placeNear gives partitions to readers in the rack of a replica, as long as
// those do not get more than an equal share by it.
func (d *deal) placeNear(order []int) {
	total := 0
	for t := range d.owner {
		total += len(d.owner[t])
	}
	share := (total + len(d.readers) - 1) / max(len(d.readers), 1)
	for _, t := range order {
		racks := d.demands[t].topic.Racks
		for n, i := range d.owner[t] {
			if i >= 0 || n >= len(racks) {
				continue
			}
			to := d.least(t, func(i int) bool { return d.load[i] < share && slices.Contains(racks[n], d.readers[i].Rack) })
			if to >= 0 {
				d.own(t, n, to)
				d.queue.raise(to)
			}
		}
	}
}

// least returns the reader of topic t with the fewest partitions, and among
// those the one with the fewest of t; -1: nobody passes.
func (d *deal) least(t int, pass func(i int) bool) int {
	best := -1
	for _, i := range d.demands[t].readers {
		if pass != nil && !pass(i) {
			continue
		}
		if best < 0 || cmp.Or(cmp.Compare(d.load[i], d.load[best]), cmp.Compare(d.ofTopic[i][t], d.ofTopic[best][t])) < 0 {
			best = i
		}
	}
	return best
}

// level moves partitions to readers that have at least two fewer, until there
// is no such pair. Each move makes the sum of the squared loads smaller, so it
// ends.
func (d *deal) level() {
	for moved := true; moved; {
		moved = false
		for t := range d.owner {
			for n, from := range d.owner[t] {
				if to := d.least(t, nil); d.load[from]-d.load[to] >= 2 {
					d.own(t, n, to)
					moved = true
				}
			}
		}
	}
}

// levelAlike does the same where everybody reads the same: who has more than an
// equal share, rounded up, gives that to those with least; then, if somebody has
// less than the share rounded down, those with more than that give one.
func (d *deal) levelAlike() {
	total := 0
	for _, l := range d.load {
		total += l
	}
	floor := total / max(len(d.readers), 1)
	ceil := floor
	if floor*len(d.readers) < total {
		ceil++
	}
	held := make([][]spare, len(d.readers))
	for t := range d.owner {
		seen := map[int]int{}
		for n, i := range d.owner[t] {
			if d.load[i] > floor {
				held[i] = append(held[i], spare{rank: seen[i], topic: t, number: n})
				seen[i]++
			}
		}
	}
	for i := range held {
		slices.SortStableFunc(held[i], func(a, b spare) int { return cmp.Compare(a.rank, b.rank) })
	}
	for i := range held {
		for d.load[i] > ceil {
			d.give(i, held)
		}
	}
	for i := range held {
		if d.load[i] > floor && len(held[i]) > 0 && d.queue.lowest() < floor {
			d.give(i, held)
		}
	}
}

// A spare is a partition that its owner may have to give. Its rank counts those
// of the same topic before it: by giving the highest ranks first, a reader gives
// of the topic of which it has most.
type spare struct {
	rank, topic, number int
}

func (d *deal) give(i int, held [][]spare) {
	s := held[i][len(held[i])-1]
	held[i] = held[i][:len(held[i])-1]
	to := d.queue.least(func(j int) int { return d.ofTopic[j][s.topic] })
	d.own(s.topic, s.number, to)
	d.queue.raise(to)
}

// loads keeps readers by how many partitions they have. Loads only rise.
type loads struct {
	of    []int
	level map[int][]int // readers by load, each ascending
	low   int
}

func newLoads(load []int) loads {
	q := loads{of: slices.Clone(load), level: map[int][]int{}}
	for i, l := range load {
		q.level[l] = append(q.level[l], i)
	}
	if len(load) > 0 {
		q.low = slices.Min(load)
	}
	return q
}

// lowest returns the lowest load.
func (q *loads) lowest() int {
	for len(q.level[q.low]) == 0 {
		q.low++
	}
	return q.low
}

// tieWidth is among how many readers with the same load one is chosen: looking
// at all would make large groups slow.
const tieWidth = 32

// least returns a reader with the lowest load, and among those the one with the
// lowest tie, and then the first.
func (q *loads) least(tie func(i int) int) int {
	at := q.level[q.lowest()]
	best := at[0]
	for _, i := range at[1:min(len(at), tieWidth)] {
		if tie(i) < tie(best) {
			best = i
		}
	}
	return best
}

// raise notes that reader i has one more.
func (q *loads) raise(i int) {
	l := q.of[i]
	at := q.level[l]
	if k, ok := slices.BinarySearch(at, i); ok {
		q.level[l] = slices.Delete(at, k, k+1)
	}
	q.of[i]++
	up := q.level[l+1]
	k, _ := slices.BinarySearch(up, i)
	q.level[l+1] = slices.Insert(up, k, i)
}
