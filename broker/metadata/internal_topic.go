package metadata

import (
	"context"
	"fmt"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
)

// EnsureInternalTopic returns a topic that brokers keep for themselves, and has
// the controller make it if there is none: with that many partitions and those
// configurations, which change nothing of a topic that is there. It may be
// called again and again, on any broker. The topic is in the store's image when
// it returns; its partitions may still be about to be led.
//
// It fails with ErrNoController, with ctx, or with the controller's status.
func (s *Session) EnsureInternalTopic(ctx context.Context, name string, partitions int32, configs map[string]string) (*Topic, error) {
	if t, ok := s.store.Load().Topic(name); ok {
		return t, nil
	}
	c, _, err := s.Controller()
	if err != nil {
		return nil, err
	}
	_, err = c.EnsureInternalTopic(ctx, &controllerv1.EnsureInternalTopicRequest{
		Name: name, Partitions: partitions, Configs: configs, BrokerId: int32(s.store.Load().Self),
	})
	if err != nil {
		return nil, fmt.Errorf("internal topic %s: %w", name, err)
	}
	for {
		changed := s.store.Changed()
		if t, ok := s.store.Load().Topic(name); ok {
			return t, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("internal topic %s is made, and this broker has not been told yet: %w", name, context.Cause(ctx))
		}
	}
}
