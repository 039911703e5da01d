// Package placement decides which brokers hold a new partition: a pure function of who is there and what they hold already.
package placement

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
)

// ErrTooFewBrokers is returned when there are fewer usable brokers than replicas are asked for.
var ErrTooFewBrokers = errors.New("too few usable brokers for the replication factor")

// A Broker is a candidate with what it holds already.
type Broker struct {
	ID       int32
	Rack     string // "" is a rack of its own kind: the unknown one
	Replicas int
	Leaders  int // partitions it is preferred to lead
	// Heirs is how many of those each other broker is the next to lead.
	Heirs map[int32]int
	// Closed brokers are given nothing. They count as places that a partition is at already.
	Closed bool
}

// A ShortageError tells how many brokers there are.
type ShortageError struct {
	Asked, Available int
}

func (e *ShortageError) Error() string {
	return fmt.Sprintf("replication factor %d: only %d usable brokers: lower it, or start more brokers", e.Asked, e.Available)
}

// Is makes every ShortageError an ErrTooFewBrokers.
func (*ShortageError) Is(target error) bool { return target == ErrTooFewBrokers }

// Metadata returns the facts for the caller.
func (e *ShortageError) Metadata() map[string]string {
	return map[string]string{"asked": strconv.Itoa(e.Asked), "available": strconv.Itoa(e.Available)}
}

// Assign returns the replicas of n new partitions of replication factor rf, the preferred leader first. A partition's
// replicas are on distinct brokers, on as many racks as there can be, and no more on one rack than must be, so that the loss of a
// rack costs as few as possible; leaders first, then replicas are spread evenly, what the brokers hold already included; and those
// that are next to lead when a broker is gone, so that its work does not all go to one other. Equal input gives equal output,
// whatever the order of brokers.
func Assign(brokers []Broker, rf, n int) ([][]int32, error) {
	open := 0
	for i := range brokers {
		if !brokers[i].Closed {
			open++
		}
	}
	if rf < 1 || rf > open {
		return nil, &ShortageError{Asked: rf, Available: open}
	}
	pool := sorted(brokers)
	out := make([][]int32, n)
	for i := range out {
		out[i] = assignOne(pool, rf)
	}
	return out, nil
}

// sorted returns a copy in the order of ids.
func sorted(brokers []Broker) []Broker {
	pool := slices.SortedFunc(slices.Values(brokers), func(a, b Broker) int { return cmp.Compare(a.ID, b.ID) })
	for i := range pool {
		pool[i].Heirs = maps.Clone(pool[i].Heirs)
	}
	return pool
}

// assignOne places one partition and books it in pool.
func assignOne(pool []Broker, rf int) []int32 {
	replicas := make([]int32, 0, rf)
	racks := map[string]int{}
	first := choose(pool, nil, racks, true)
	first.Leaders++
	for b := first; b != nil; b = choose(pool, replicas, racks, false) {
		replicas = append(replicas, b.ID)
		racks[b.Rack]++
		b.Replicas++
		if len(replicas) == rf {
			break
		}
	}
	if rf > 1 {
		first.inherit(replicas[1:])
	}
	return replicas
}

// inherit puts the one of others first that is the next to lead least often, and books that.
func (b *Broker) inherit(others []int32) {
	heir := 0
	for n, id := range others {
		if b.Heirs[id] < b.Heirs[others[heir]] {
			heir = n
		}
	}
	others[0], others[heir] = others[heir], others[0]
	if b.Heirs == nil {
		b.Heirs = map[int32]int{}
	}
	b.Heirs[others[0]]++
}

// choose returns the best place for one more replica of a partition; nil when there is none.
func choose(pool []Broker, replicas []int32, racks map[string]int, leader bool) *Broker {
	var best *Broker
	for i := range pool {
		b := &pool[i]
		if b.Closed || slices.Contains(replicas, b.ID) {
			continue
		}
		if best == nil || better(b, best, racks, leader) {
			best = b
		}
	}
	return best
}

// Extend returns the replicas of partitions, each with more of them until it has rf or there is no further place. Replicas that
// are there stay. Where one was added, the first place, which is the preferred leader's, goes to the broker of the partition
// that is preferred least elsewhere. Equal input gives equal output, whatever the order of brokers.
func Extend(brokers []Broker, partitions [][]int32, rf int) [][]int32 {
	pool := sorted(brokers)
	out := make([][]int32, len(partitions))
	for i, replicas := range partitions {
		out[i] = extendOne(pool, replicas, rf)
	}
	return out
}

func extendOne(pool []Broker, has []int32, rf int) []int32 {
	replicas := slices.Clone(has)
	racks := map[string]int{}
	known := map[int32]*Broker{}
	for i := range pool {
		known[pool[i].ID] = &pool[i]
		if slices.Contains(has, pool[i].ID) {
			racks[pool[i].Rack]++
		}
	}
	for len(replicas) < rf {
		b := choose(pool, replicas, racks, false)
		if b == nil {
			break
		}
		replicas = append(replicas, b.ID)
		racks[b.Rack]++
		b.Replicas++
	}
	if first := known[has[0]]; len(replicas) > len(has) && first != nil {
		least := 0
		for n, id := range replicas {
			if b := known[id]; n > 0 && b != nil && !b.Closed && b.Leaders+1 < first.Leaders && (least == 0 || b.Leaders < known[replicas[least]].Leaders) {
				least = n
			}
		}
		if least > 0 {
			first.Leaders--
			known[replicas[least]].Leaders++
			replicas[0], replicas[least] = replicas[least], replicas[0]
		}
	}
	return replicas
}

// better reports whether a is a better place than b for a partition that has so many replicas on racks already.
func better(a, b *Broker, racks map[string]int, leader bool) bool {
	if racks[a.Rack] != racks[b.Rack] {
		return racks[a.Rack] < racks[b.Rack]
	}
	if leader && a.Leaders != b.Leaders {
		return a.Leaders < b.Leaders
	}
	return a.Replicas < b.Replicas
}
