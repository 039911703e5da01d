package client

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"

	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
)

// errSilent is why a question is asked again, or a stream given up: its broker
// answers nothing, and another one does.
var errSilent = errors.New("the broker has fallen silent")

// questions are the calls through one of the seeds. One whose broker has fallen
// silent is asked again at another one where that changes nothing; any other waits on,
// since it may have been done. A change that was certainly not made, because its broker
// is cut off from the controllers, is asked for once more where one is that is not. What
// a broker refuses because it knows nothing of the cluster is asked again at one that does.
type questions struct{ c *Client }

// Invoke implements grpc.ClientConnInterface.
func (q questions) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	for moved := false; ; {
		at := q.c.cluster.moves.Load()
		one, cancel := context.WithCancelCause(ctx)
		var doubting sync.WaitGroup
		doubting.Go(func() {
			if q.c.cluster.fallsSilent(one) && harmless(method) {
				cancel(errSilent)
			}
		})
		err := q.c.conn.Invoke(one, method, args, reply, opts...)
		cancel(nil)
		doubting.Wait()
		switch {
		case err == nil, ctx.Err() != nil:
			return err
		case errors.Is(context.Cause(one), errSilent):
		case uninformed(err) && q.c.cluster.movesOn(ctx, at):
		case !moved && unmade(err) && q.c.cluster.elsewhere(ctx):
			moved = true
		default:
			return err
		}
	}
}

// unmade reports whether an error says that a change was not made because there was
// no controller to make it.
func unmade(err error) bool {
	e, ok := asError(rpcError(err))
	return ok && e.Metadata["changed"] == "no"
}

// NewStream implements grpc.ClientConnInterface.
func (q questions) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	return q.c.conn.NewStream(ctx, desc, method, opts...)
}

// uninformed reports whether a broker has done nothing, for it can't tell what there is.
func uninformed(err error) bool {
	e, ok := asError(rpcError(err))
	return ok && !e.OutcomeUnknown && errors.Is(e, ErrStaleMetadata)
}

// harmless reports whether a call changes nothing but, at most, takes a producer id
// that nobody will use.
func harmless(method string) bool {
	switch method {
	case runnelv1.AdminService_ListTopics_FullMethodName,
		runnelv1.AdminService_DescribeTopics_FullMethodName,
		runnelv1.AdminService_ListTopicConfigKeys_FullMethodName,
		runnelv1.AdminService_ListOffsets_FullMethodName,
		runnelv1.AdminService_DescribeCluster_FullMethodName,
		runnelv1.AdminService_CheckHealth_FullMethodName,
		runnelv1.AdminService_ListPartitions_FullMethodName,
		runnelv1.GroupService_FetchOffsets_FullMethodName,
		runnelv1.GroupService_DescribeGroup_FullMethodName,
		runnelv1.GroupService_ListGroups_FullMethodName,
		runnelv1.MetadataService_GetMetadata_FullMethodName,
		runnelv1.ProducerService_InitProducer_FullMethodName:
		return true
	default:
		return false
	}
}

// fallsSilent waits until the seed has not answered for long, while another broker does,
// and the seeds begin with that; false when ctx ends before.
func (k *cluster) fallsSilent(ctx context.Context) bool {
	at := k.moves.Load()
	for {
		if pause(ctx, doubtAfter); ctx.Err() != nil {
			return false
		}
		if k.movesOn(ctx, at) {
			return ctx.Err() == nil
		}
	}
}

// movesOn asks around, unless the seeds have changed since there were at changes, and
// reports whether they begin with another broker now.
func (k *cluster) movesOn(ctx context.Context, at int64) bool {
	select {
	case k.asking <- struct{}{}: // one at a time asks around, for all
	case <-ctx.Done():
		return false
	}
	defer func() { <-k.asking }()
	return k.moves.Load() != at || !k.askAround(ctx)
}

// around are the brokers to ask when one is silent: those that are known, and those
// that the client was made with.
func (k *cluster) around() []string {
	addrs := map[string]bool{}
	if k.c.opts.routing == Direct {
		for _, a := range k.view.Load().brokers {
			addrs[a] = true
		}
	}
	if len(k.c.brokers) > 1 {
		for _, a := range k.c.brokers {
			addrs[a] = true
		}
	}
	var out []string
	for a := range addrs { // in any order
		if out = append(out, a); len(out) == mostAsked {
			break
		}
	}
	return out
}
