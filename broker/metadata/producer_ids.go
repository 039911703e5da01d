package metadata

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	"github.com/runnelmq/runnel/internal/lifecycle"
)

const (
	// idsLow is below how many producer ids the next block is asked for, so that
	// there are some for as long as controllers are away.
	idsLow = 500
	// idsTimeout bounds the question.
	idsTimeout = 5 * time.Second
	// idsAgain is after how long the first block is asked for again.
	idsAgain = time.Second
)

var errNoIDs = errors.New("the controller gave no producer ids")

// ProducerIDs gives producer ids away, of blocks that a controller gave to this
// broker. What is left of them at its end is lost.
type ProducerIDs struct {
	session *Session
	// turn holds one token: who has it may ask a controller. It is a channel, not
	// a mutex, because its holder waits for the answer.
	turn chan struct{}

	// mu guards the fields below
	mu sync.Mutex

	blocks []idBlock // none of them is empty
}

type idBlock struct{ next, end int64 }

// NewProducerIDs returns an empty store of ids, filled by session's controllers.
func NewProducerIDs(session *Session) *ProducerIDs {
	return &ProducerIDs{session: session, turn: make(chan struct{}, 1)}
}

// Run asks for the first block as soon as there is a controller, so that producers can
// start when all of them are away later. It returns nil when there are ids, or with ctx.
func (p *ProducerIDs) Run(ctx context.Context) error {
	for {
		if _, _, err := p.session.AwaitController(ctx); err != nil {
			return nil //nolint:nilerr // it is ctx that has ended
		}
		p.fillSoon(ctx)
		p.mu.Lock()
		low := p.lowLocked()
		p.mu.Unlock()
		if !low || !lifecycle.Wait(ctx, idsAgain) {
			return nil
		}
	}
}

// take takes an id; 0 when there is none. low says that more are needed soon.
func (p *ProducerIDs) take() (id int64, low bool) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if len(p.blocks) > 0 {
		b := &p.blocks[0]
		id = b.next
		if b.next++; b.next == b.end {
			p.blocks = p.blocks[1:]
		}
	}
	return id, p.lowLocked()
}

func (p *ProducerIDs) lowLocked() bool {
	var left int64
	for _, b := range p.blocks {
		left += b.end - b.next
	}
	return left < idsLow
}

// Next returns an id that nobody else has or will have, 1 or more. When there
// is none left it fails with ErrNoController, or as the controller's answer
// did; nothing has happened then.
func (p *ProducerIDs) Next(ctx context.Context) (int64, error) {
	for {
		id, low := p.take()
		if id != 0 {
			if low {
				p.fillSoon(ctx)
			}
			return id, nil
		}
		select {
		case p.turn <- struct{}{}:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		err := p.fill(ctx)
		<-p.turn
		if err != nil {
			return 0, err
		}
	}
}

// fillSoon asks for more while there are some, unless somebody is at it.
func (p *ProducerIDs) fillSoon(ctx context.Context) {
	select {
	case p.turn <- struct{}{}:
		_ = p.fill(ctx) // the next one asks again
		<-p.turn
	default:
	}
}

// fill asks for a block unless somebody has done it meanwhile. It needs the turn.
func (p *ProducerIDs) fill(ctx context.Context) error {
	p.mu.Lock()
	low := p.lowLocked()
	p.mu.Unlock()
	if !low {
		return nil
	}
	c, _, err := p.session.Controller()
	if err != nil {
		return fmt.Errorf("%w, and this broker has no producer ids left: nothing has happened, try again", ErrNoController)
	}
	ctx, cancel := context.WithTimeout(ctx, idsTimeout)
	defer cancel()
	resp, err := c.AllocateProducerIds(ctx, &controllerv1.AllocateProducerIdsRequest{BrokerId: int32(p.session.store.Load().Self)})
	if err != nil {
		return err
	}
	block := idBlock{resp.GetFirstProducerId(), resp.GetFirstProducerId() + int64(resp.GetCount())}
	if block.next < 1 || block.end <= block.next {
		return fmt.Errorf("%w: %d from %d on", errNoIDs, resp.GetCount(), resp.GetFirstProducerId())
	}
	p.mu.Lock()
	p.blocks = append(p.blocks, block)
	p.mu.Unlock()
	return nil
}
