package rpc

import (
	"sync"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
)

// maxPile is how many messages of one session wait at most. A broker has about one for each partition it leads, in the worst
// case, and many proposals in one message.
const maxPile = 100_000

// A pile holds what a broker has sent and was not done yet. Adding to it never waits.
type pile struct {
	wake chan struct{} // holds a token when there is something to take

	// mu guards the fields below
	mu sync.Mutex

	all   []*controllerv1.SessionRequest
	ended bool
}

func newPile() *pile { return &pile{wake: make(chan struct{}, 1)} }

// add puts a message on the pile; false when it is full.
func (p *pile) add(req *controllerv1.SessionRequest) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.all) >= maxPile {
		return false
	}
	p.all = append(p.all, req)
	p.pokeLocked()
	return true
}

// end says that nothing more comes.
func (p *pile) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.pokeLocked()
}

func (p *pile) pokeLocked() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// take returns what is there, in order, and whether more may come.
func (p *pile) take() (all []*controllerv1.SessionRequest, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	all, p.all = p.all, nil
	return all, !p.ended
}
