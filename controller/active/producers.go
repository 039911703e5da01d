package active

import (
	"context"
	"fmt"

	"github.com/runnelmq/runnel/controller/state"
)

// GiveProducerIDs gives a block of state.ProducerIDBlock producer ids away, and returns the first. They are nobody else's, ever:
// when it can't be found out whether the block was given, it is nobody's.
func (a *Active) GiveProducerIDs(ctx context.Context) (first int64, err error) {
	return ask(ctx, a, func(ctx context.Context) (int64, error) {
		var change state.Change
		var first int64
		var err error
		a.view(func(i *state.Image) { change, first, err = i.GiveProducerIDs() })
		if err == nil {
			_, err = a.commit(ctx, []state.Change{change})
		}
		if err != nil {
			return 0, fmt.Errorf("give producer ids: %w", err)
		}
		return first, nil
	}, nil)
}
