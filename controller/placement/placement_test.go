package placement

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func drawBrokers(t *rapid.T, empty bool) []Broker {
	n := rapid.IntRange(1, 12).Draw(t, "brokers")
	racks := rapid.IntRange(1, 4).Draw(t, "racks")
	brokers := make([]Broker, n)
	for i := range brokers {
		brokers[i] = Broker{ID: int32(10 - i), Rack: fmt.Sprint(rapid.IntRange(1, racks).Draw(t, "rack"))}
		if !empty {
			brokers[i].Leaders = rapid.IntRange(0, 20).Draw(t, "leaders")
			brokers[i].Heirs = map[int32]int{int32(10 - (i+1)%n): rapid.IntRange(0, 20).Draw(t, "heirs")}
			brokers[i].Replicas = brokers[i].Leaders + rapid.IntRange(0, 20).Draw(t, "followers")
		}
	}
	return brokers
}

func TestAssign_spreads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		brokers := drawBrokers(t, false)
		rf := rapid.IntRange(1, len(brokers)).Draw(t, "factor")
		n := rapid.IntRange(0, 60).Draw(t, "partitions")
		rack, racks := map[int32]string{}, map[string]bool{}
		for _, b := range brokers {
			rack[b.ID] = b.Rack
			racks[b.Rack] = true
		}
		input := slices.Clone(brokers)
		for i := range input {
			input[i].Heirs = maps.Clone(input[i].Heirs)
		}
		got, err := Assign(brokers, rf, n)
		if err != nil || len(got) != n {
			t.Fatalf("%d partitions, %v", len(got), err)
		}
		if diff := cmp.Diff(input, brokers); diff != "" {
			t.Fatalf("the caller's brokers were changed:\n%s", diff)
		}
		size := map[string]int{}
		for _, b := range brokers {
			size[b.Rack]++
		}
		for _, replicas := range got {
			ids, used := map[int32]bool{}, map[string]int{}
			for _, id := range replicas {
				ids[id] = true
				used[rack[id]]++
			}
			if len(ids) != rf || len(used) != min(rf, len(racks)) {
				t.Fatalf("replicas %v on racks %v", replicas, used)
			}
			for full, n := range used {
				for other := range racks {
					if n > used[other]+1 && used[other] < size[other] {
						t.Fatalf("replicas %v: %d on rack %s, %d of %d on rack %s", replicas, n, full, used[other], size[other], other)
					}
				}
			}
		}
		slices.Reverse(brokers)
		again, _ := Assign(brokers, rf, n)
		if diff := cmp.Diff(got, again); diff != "" {
			t.Fatalf("the order of brokers matters:\n%s", diff)
		}
	})
}

func TestAssign_balances_leaders_and_replicas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		brokers := drawBrokers(t, true)
		for i := range brokers {
			brokers[i].Rack = ""
		}
		rf := rapid.IntRange(1, len(brokers)).Draw(t, "factor")
		n := rapid.IntRange(1, 200).Draw(t, "partitions")
		got, err := Assign(brokers, rf, n)
		if err != nil {
			t.Fatal(err)
		}
		leaders, replicas := map[int32]int{}, map[int32]int{}
		for _, b := range brokers {
			leaders[b.ID], replicas[b.ID] = 0, 0
		}
		for _, r := range got {
			leaders[r[0]]++
			for _, id := range r {
				replicas[id]++
			}
		}
		if lo, hi := bounds(leaders); hi-lo > 1 {
			t.Fatalf("leaders %v", leaders)
		}
		if lo, hi := bounds(replicas); hi-lo > 1 {
			t.Fatalf("replicas %v", replicas)
		}
	})
}

func bounds(m map[int32]int) (lo, hi int) {
	lo = 1 << 30
	for _, n := range m {
		lo, hi = min(lo, n), max(hi, n)
	}
	return lo, hi
}

// When a broker is gone, its partitions are led by all others that hold copies of all of them, also when they came one by one.
func TestAssign_spreads_who_is_next(t *testing.T) {
	for _, perCall := range []int{1, 24} {
		brokers := []Broker{{ID: 1}, {ID: 2}, {ID: 3}, {ID: 4}}
		next := map[int32]map[int32]int{1: {}, 2: {}, 3: {}, 4: {}}
		for range 24 / perCall {
			got, err := Assign(brokers, 4, perCall)
			if err != nil {
				t.Fatal(err)
			}
			for _, replicas := range got {
				next[replicas[0]][replicas[1]]++
				for i := range brokers {
					b := &brokers[i]
					b.Replicas++
					if b.ID == replicas[0] {
						b.Leaders++
					}
					b.Heirs = next[b.ID]
				}
			}
		}
		for id, heirs := range next {
			if lo, hi := bounds(heirs); len(heirs) != 3 || lo != hi {
				t.Errorf("%d at a time: those that broker %d is preferred to lead go to %v", perCall, id, heirs)
			}
		}
	}
}

// New partitions go where least is.
func TestAssign_counts_what_is_there(t *testing.T) {
	got, err := Assign([]Broker{{ID: 1, Leaders: 5, Replicas: 5}, {ID: 2}}, 1, 6)
	if err != nil {
		t.Fatal(err)
	}
	count := map[int32]int{}
	for _, r := range got {
		count[r[0]]++
	}
	if count[2] < 5 {
		t.Errorf("leaders %v, with five on broker 1 before", count)
	}
}

func TestAssign_refuses_with_both_numbers(t *testing.T) {
	for _, tt := range []struct{ brokers, rf int }{{0, 1}, {2, 3}, {2, 0}, {2, -1}} {
		_, err := Assign(make([]Broker, tt.brokers), tt.rf, 1)
		want := map[string]string{"asked": fmt.Sprint(tt.rf), "available": fmt.Sprint(tt.brokers)}
		short, ok := errors.AsType[*ShortageError](err)
		if !errors.Is(err, ErrTooFewBrokers) || !ok || !cmp.Equal(short.Metadata(), want) {
			t.Errorf("factor %d on %d brokers: %v", tt.rf, tt.brokers, err)
		}
	}
}

func TestExtend_keeps_what_is_there_and_spreads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		brokers := drawBrokers(t, true)
		rf := rapid.IntRange(1, 4).Draw(t, "factor")
		open := 0
		rack, openRacks := map[int32]string{}, map[string]bool{}
		for i := range brokers {
			brokers[i].Closed = rapid.Bool().Draw(t, "closed")
			rack[brokers[i].ID] = brokers[i].Rack
			if !brokers[i].Closed {
				open++
				openRacks[brokers[i].Rack] = true
			}
		}
		var parts [][]int32
		for range rapid.IntRange(0, 40).Draw(t, "partitions") {
			one := rapid.SampledFrom(brokers).Draw(t, "replica").ID
			two := rapid.SampledFrom(brokers).Draw(t, "replica").ID
			if one == two {
				parts = append(parts, []int32{one})
			} else {
				parts = append(parts, []int32{one, two})
			}
		}
		got := Extend(brokers, parts, rf)
		for n, replicas := range got {
			seen, racks, candidates := map[int32]bool{}, map[string]bool{}, open
			for _, id := range replicas {
				seen[id] = true
				racks[rack[id]] = true
			}
			could := map[string]bool{}
			for r := range openRacks {
				could[r] = true
			}
			for _, id := range parts[n] {
				could[rack[id]] = true
				if !seen[id] {
					t.Fatalf("%v lost a replica: %v", parts[n], replicas)
				}
				for _, b := range brokers {
					if b.ID == id && !b.Closed {
						candidates--
					}
				}
			}
			want := max(len(parts[n]), min(rf, len(parts[n])+candidates))
			if len(seen) != len(replicas) || len(replicas) != want {
				t.Fatalf("%v became %v with %d candidates", parts[n], replicas, candidates)
			}
			before := map[string]bool{}
			for _, id := range parts[n] {
				before[rack[id]] = true
			}
			if added := want - len(parts[n]); len(racks) != min(len(before)+added, len(could)) {
				t.Fatalf("%v became %v on racks %v of %v", parts[n], replicas, racks, could)
			}
		}
		slices.Reverse(brokers)
		if diff := cmp.Diff(got, Extend(brokers, parts, rf)); diff != "" {
			t.Fatalf("the order of brokers matters:\n%s", diff)
		}
	})
}
