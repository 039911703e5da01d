package client

import (
	"context"
)

// partitions returns how many partitions a topic has, and its id.
func (c *Client) partitions(ctx context.Context, topic string) (n int32, id string, err error) {
	err = persist(ctx, func(ctx context.Context) error {
		d, err := describe(ctx, c, topic)
		if err != nil {
			return err
		}
		n, id = d.GetPartitionCount(), d.GetTopicId()
		return nil
	})
	return n, id, err
}
