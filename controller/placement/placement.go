// Package placement decides which brokers hold a new partition: a pure function of who is there and what they hold already.
package placement

import (
	"cmp"
	"errors"
	"fmt"
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
// replicas are on distinct brokers and on as many racks as there can be; leaders first, then replicas are spread evenly, what
// the brokers hold already included. Equal input gives equal output, whatever the order of brokers.
func Assign(brokers []Broker, rf, n int) ([][]int32, error) {
	if rf < 1 || rf > len(brokers) {
		return nil, &ShortageError{Asked: rf, Available: len(brokers)}
	}
	pool := slices.Clone(brokers)
	slices.SortFunc(pool, func(a, b Broker) int { return cmp.Compare(a.ID, b.ID) })
	out := make([][]int32, n)
	for i := range out {
		out[i] = assignOne(pool, rf)
	}
	return out, nil
}

// assignOne places one partition and books it in pool.
func assignOne(pool []Broker, rf int) []int32 {
	replicas := make([]int32, 0, rf)
	racks := map[string]bool{}
	for len(replicas) < rf {
		leader := len(replicas) == 0
		best := -1
		for i := range pool {
			if slices.Contains(replicas, pool[i].ID) {
				continue
			}
			if best < 0 || better(&pool[i], &pool[best], racks, leader) {
				best = i
			}
		}
		b := &pool[best]
		replicas = append(replicas, b.ID)
		racks[b.Rack] = true
		b.Replicas++
		if leader {
			b.Leaders++
		}
	}
	return replicas
}

// better reports whether a is a better place than b for a partition that is on racks already.
func better(a, b *Broker, racks map[string]bool, leader bool) bool {
	if racks[a.Rack] != racks[b.Rack] {
		return racks[b.Rack]
	}
	if leader && a.Leaders != b.Leaders {
		return a.Leaders < b.Leaders
	}
	return a.Replicas < b.Replicas
}
