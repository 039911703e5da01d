package replication

import (
	"sync"

	replicav1 "github.com/runnelmq/runnel/api/runnel/replica/v1"
)

// An inbox is what a leader stream's sender is told by others.
type inbox struct {
	wake chan struct{} // capacity 1

	// mu guards the fields below
	mu sync.Mutex

	in incoming
}

// incoming is what came since the sender last looked.
type incoming struct {
	controls []control
	poked    []*subscription
	returned []returned
	fetched  *frame // read for one that catches up
}

// A control is a message that goes out before everything else, and what it does
// to the schedule.
type control struct {
	msg   *replicav1.ReplicateResponse // nil: none
	begin *lane                        // from here on data may follow
	end   int64                        // a subscription that ended; 0: none
}

// returned is credit that came back.
type returned struct {
	number, bytes int64
}

func newInbox() inbox { return inbox{wake: make(chan struct{}, 1)} }

func (b *inbox) put(f func(in *incoming)) {
	b.mu.Lock()
	f(&b.in)
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

func (b *inbox) control(c control) {
	b.put(func(in *incoming) { in.controls = append(in.controls, c) })
}

func (b *inbox) giveBack(number, bytes int64) {
	b.put(func(in *incoming) { in.returned = append(in.returned, returned{number, bytes}) })
}

func (b *inbox) fetched(f *frame) { b.put(func(in *incoming) { in.fetched = f }) }

// poke asks the sender to look at a subscription.
func (b *inbox) poke(s *subscription) {
	if !s.poked.Swap(true) {
		b.put(func(in *incoming) { in.poked = append(in.poked, s) })
	}
}

// take returns what came, in exchange for one to fill next.
func (b *inbox) take(empty incoming) incoming {
	b.mu.Lock()
	defer b.mu.Unlock()

	in := b.in
	b.in = empty
	return in
}

// emptied makes an incoming that was dealt with fit for the next round.
func (in *incoming) emptied() incoming {
	clear(in.controls)
	clear(in.poked)
	return incoming{controls: in.controls[:0], poked: in.poked[:0], returned: in.returned[:0]}
}
