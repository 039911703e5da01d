package rpc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	"github.com/rs/zerolog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/broker/metadata"
	"github.com/runnelmq/runnel/broker/metadata/metadatatest"
	"github.com/runnelmq/runnel/broker/partition"
	"github.com/runnelmq/runnel/internal/commitlog"
	"github.com/runnelmq/runnel/internal/memnet"
	"github.com/runnelmq/runnel/internal/record"
	"github.com/runnelmq/runnel/internal/rpcerr"
	"github.com/runnelmq/runnel/internal/rpcserver"
	"github.com/runnelmq/runnel/internal/vfs"
)

// counter is the admin counter of broker 1, by itself: metadata are published
// by the test, and no controller is there.
type counter struct {
	runnelv1.AdminServiceClient
	runnelv1.MetadataServiceClient

	t     *testing.T
	store *metadata.Store
	set   *partition.Set
	drain chan struct{}
	rev   int64
	// fresh is what CatchUp fails with; nil: the metadata are fresh.
	fresh error
}

// withCounter runs f in a bubble with a counter.
func withCounter(t *testing.T, f func(c *counter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &counter{t: t, store: metadata.NewStore(1), drain: make(chan struct{})}
		c.store.Publish(&metadata.Image{Self: 1, ClusterID: "test"})
		root, err := commitlog.OpenRoot(vfs.NewMem(), "data", commitlog.RootOptions{
			BrokerID: 1, BootID: func() (string, error) { return "b", nil }, ReserveBytes: -1, BallastBytes: -1,
		})
		if err != nil {
			t.Fatal(err)
		}
		c.set = partition.NewSet(partition.Config{Incarnation: "i"}, partition.Deps{Root: root, Store: c.store, Session: &testSession{changed: make(chan struct{})}, Log: zerolog.Nop()})
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _ = c.set.Run(ctx) })
		deps := AdminDeps{
			Store: c.store, Session: metadata.NewSession(metadata.SessionConfig{}, c.store), Set: c.set, Root: root,
			Finder: metadata.Finder{Store: c.store, CatchUp: func(context.Context) error { return c.fresh }}, Version: "test", Drain: c.drain, Log: zerolog.Nop(),
		}
		srv := rpcserver.New(rpcserver.Options{Rules: Rules(), Log: zerolog.Nop()})
		runnelv1.RegisterAdminServiceServer(srv, NewAdminService(deps))
		runnelv1.RegisterMetadataServiceServer(srv, NewMetadataService(deps, 0))
		lis := memnet.Listen("broker:7420", 1<<20)
		wg.Go(func() { _ = srv.Serve(lis) })
		// As stock clients are: at most 4 MiB a message.
		conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return lis.DialContext(ctx) }))
		if err != nil {
			t.Fatal(err)
		}
		c.AdminServiceClient, c.MetadataServiceClient = runnelv1.NewAdminServiceClient(conn), runnelv1.NewMetadataServiceClient(conn)
		defer func() {
			_ = conn.Close()
			srv.Stop()
			cancel()
			wg.Wait()
			if err := root.Close(1); err != nil {
				t.Error(err)
			}
		}()
		c.publish(&controllerv1.MetadataObject{Object: &controllerv1.MetadataObject_Broker{Broker: &controllerv1.BrokerRecord{
			BrokerId: 1, Incarnation: "i", Phase: controllerv1.BrokerPhase_BROKER_PHASE_ACTIVE, ClientAddress: "[::1]:7420",
		}}})
		f(c)
	})
}

func (c *counter) publish(objects ...*controllerv1.MetadataObject) {
	c.t.Helper()
	c.rev++
	for _, o := range objects {
		o.Revision = c.rev
	}
	img, err := c.store.Load().Next(1, c.rev, objects)
	if err != nil {
		c.t.Fatal(err)
	}
	c.store.Publish(img)
	synctest.Wait()
}

// topic publishes a topic that broker 1 leads.
func (c *counter) topic(name string, partitions int32) uuid.UUID {
	id := uuid.New()
	c.publish(metadatatest.TopicObjects(id, name, partitions, 1, 1)...)
	return id
}

// elsewhere returns a topic that broker 2 leads.
func elsewhere(id uuid.UUID, name string, partitions int32) []*controllerv1.MetadataObject {
	return metadatatest.TopicObjects(id, name, partitions, 2, 1)
}

func (c *counter) append(id uuid.UUID, n int32, ms ...int64) {
	c.t.Helper()
	p, err := c.set.Get(id, n)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, at := range ms {
		b := record.NewBuilder(record.NewCodec(), record.Limits{})
		if err := b.Add(nil, []byte("v"), nil, at); err != nil {
			c.t.Fatal(err)
		}
		batch, err := b.Finish(record.CompressionNone, 0)
		if err != nil {
			c.t.Fatal(err)
		}
		if _, err := p.Append(&batch, nil); err != nil {
			c.t.Fatal(err)
		}
	}
	synctest.Wait()
}

// 20,000 topics come in pages below the limit of stock clients, in one order,
// none twice and none left out, while others come and go (GR-01).
func TestPaging(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		var want []string
		var objects []*controllerv1.MetadataObject
		for i := range 20000 {
			name := fmt.Sprintf("topic-%05d-%s", i, strings.Repeat("x", 100))
			want = append(want, name)
			objects = append(objects, elsewhere(uuid.New(), name, 3)...)
		}
		c.publish(objects...)
		var listed []string
		size := int32(10000)
		for token := ""; ; {
			resp, err := c.ListTopics(t.Context(), &runnelv1.ListTopicsRequest{PageToken: token, PageSize: &size, Prefix: "topic-"})
			if err != nil {
				t.Fatal(err)
			}
			if n := proto.Size(resp); n >= 1<<20 {
				t.Errorf("a page of %d bytes", n)
			}
			for _, l := range resp.GetTopics() {
				listed = append(listed, l.GetName())
			}
			if token = resp.GetNextPageToken(); token == "" {
				break
			}
			c.publish(elsewhere(uuid.New(), fmt.Sprintf("new-%d", len(listed)), 1)...)
		}
		if !slices.Equal(listed, want) {
			t.Errorf("listed %d of %d", len(listed), len(want))
		}
		var told []string
		for token := ""; ; {
			resp, err := c.GetMetadata(t.Context(), &runnelv1.GetMetadataRequest{PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			if n := proto.Size(resp); n >= 1<<20 {
				t.Errorf("a page of %d bytes", n)
			}
			if (len(resp.GetBrokers()) > 0) != (token == "") {
				t.Error("brokers belong on the first page, and only there")
			}
			for _, m := range resp.GetTopics() {
				if strings.HasPrefix(m.GetName(), "topic-") {
					told = append(told, m.GetName())
				}
			}
			if token = resp.GetNextPageToken(); token == "" {
				break
			}
		}
		if !slices.Equal(told, want) {
			t.Errorf("told %d of %d", len(told), len(want))
		}
		for _, bad := range []string{"!", "AAAA", "bg=="} {
			if _, err := c.ListTopics(t.Context(), &runnelv1.ListTopicsRequest{PageToken: bad}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("page token %q: %v", bad, err)
			}
		}
		for _, bad := range []int32{0, -1} {
			if _, err := c.ListTopics(t.Context(), &runnelv1.ListTopicsRequest{PageSize: &bad}); status.Code(err) != codes.InvalidArgument {
				t.Errorf("page size %d: %v", bad, err)
			}
		}
	})
}

// A description of many large topics stays below the limit, and can be gone on
// with.
func TestDescribeIsBounded(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		var refs []*runnelv1.TopicRef
		var objects []*controllerv1.MetadataObject
		for i := range 100 {
			name := fmt.Sprintf("topic-%d", i)
			topic := elsewhere(uuid.New(), name, 1000)
			for _, o := range topic[1:] {
				for b := int32(10); b < 30; b++ {
					o.GetPartition().Replicas = append(o.GetPartition().Replicas, b)
				}
			}
			objects = append(objects, topic...)
			refs = append(refs, &runnelv1.TopicRef{Name: name})
		}
		c.publish(objects...)
		resp, err := c.DescribeTopics(t.Context(), &runnelv1.DescribeTopicsRequest{Topics: refs})
		if err != nil {
			t.Fatal(err)
		}
		if n := proto.Size(resp); n >= 4<<20 {
			t.Errorf("an answer of %d bytes", n)
		}
		for _, d := range resp.GetTopics() {
			got := int32(len(d.GetPartitions()))
			if got == 0 || d.GetPartitionCount() != 1000 {
				t.Fatalf("%s: %d of %d partitions", d.GetName(), got, d.GetPartitionCount())
			}
			if got == 1000 {
				continue
			}
			rest, err := c.DescribeTopics(t.Context(), &runnelv1.DescribeTopicsRequest{Topics: []*runnelv1.TopicRef{{Name: d.GetName()}}, FromPartition: got})
			if err != nil {
				t.Fatal(err)
			}
			if p := rest.GetTopics()[0].GetPartitions(); int32(len(p)) != 1000-got || p[0].GetPartition() != got {
				t.Fatalf("%s from %d: %d partitions", d.GetName(), got, len(p))
			}
		}
	})
}

func TestDescribeTopic(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		id := c.topic("orders", 2)
		other := uuid.New()
		c.publish(elsewhere(other, "other", 1)...)
		c.append(id, 1, 2, 4, 6)
		resp, err := c.DescribeTopics(t.Context(), &runnelv1.DescribeTopicsRequest{Topics: []*runnelv1.TopicRef{
			{Name: "orders"}, {Name: "other"}, {Name: "nobody"}, {Name: "\x00bad"}, {Name: "orders", TopicId: new(other.String())},
		}})
		if err != nil {
			t.Fatal(err)
		}
		d := resp.GetTopics()[0]
		p := d.GetPartitions()[1]
		if d.GetPartitionCount() != 2 || d.GetTopicId() != id.String() || p.GetHighWatermark() != 3 || p.GetLogStartOffset() != 0 ||
			p.GetLogEndOffset() != 3 || p.GetSizeBytes() == 0 || p.GetSegments() != 1 || p.GetLeader() != 1 || p.Partition == nil {
			t.Errorf("described as %v", d)
		}
		if !strings.Contains(d.GetDurability(), "power cuts") {
			t.Errorf("durability of flush=sync: %q", d.GetDurability())
		}
		if !slices.ContainsFunc(d.GetConfigs(), func(e *runnelv1.ConfigEntry) bool {
			return e.GetKey() == "retention.ms" && e.GetSource() == runnelv1.ConfigSource_CONFIG_SOURCE_DEFAULT
		}) {
			t.Errorf("configs %v", d.GetConfigs())
		}
		if p := resp.GetTopics()[1].GetPartitions()[0]; p.HighWatermark != nil || p.GetLeader() != 2 || p.GetError() != nil {
			t.Errorf("of a leader elsewhere: %v", p)
		}
		for i, want := range map[int]runnelv1.ErrorReason{
			2: runnelv1.ErrorReason_ERROR_REASON_TOPIC_NOT_FOUND, 3: runnelv1.ErrorReason_ERROR_REASON_INVALID_TOPIC_NAME, 4: runnelv1.ErrorReason_ERROR_REASON_TOPIC_ID_MISMATCH,
		} {
			if got := resp.GetTopics()[i].GetError().GetReason(); got != want {
				t.Errorf("topic %d: %v, want %v", i, got, want)
			}
		}
	})
}

// show is an answer as text: partition=offset@time, or the reason.
func show(resp *runnelv1.ListOffsetsResponse, err error) string {
	if err != nil {
		return rpcerr.Name(rpcerr.Reason(err))
	}
	var got []string
	for _, a := range resp.GetOffsets() {
		switch {
		case a.GetError() != nil:
			got = append(got, rpcerr.Name(a.GetError().GetReason()))
		case a.GetLeaderEpoch() != 1:
			got = append(got, fmt.Sprintf("leader epoch %d", a.GetLeaderEpoch()))
		case a.Offset == nil:
			got = append(got, fmt.Sprintf("%d=none", a.GetPartition()))
		case a.GetTimestamp() != nil:
			got = append(got, fmt.Sprintf("%d=%d@%d", a.GetPartition(), a.GetOffset(), a.GetTimestamp().AsTime().UnixMilli()))
		default:
			got = append(got, fmt.Sprintf("%d=%d", a.GetPartition(), a.GetOffset()))
		}
	}
	return strings.Join(got, " ")
}

func TestListOffsets(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		id := c.topic("orders", 2)
		c.publish(elsewhere(uuid.New(), "other", 1)...)
		c.append(id, 0, 2, 4, 6, 8)
		at := func(ms int64, nanos int32) *runnelv1.OffsetQuery {
			ts := timestamppb.New(time.UnixMilli(ms))
			ts.Nanos += nanos
			return &runnelv1.OffsetQuery{Topic: "orders", Partition: new(int32), Place: &runnelv1.OffsetQuery_Timestamp{Timestamp: ts}}
		}
		position := func(p runnelv1.Position) *runnelv1.OffsetQuery {
			return &runnelv1.OffsetQuery{Topic: "orders", Partition: new(int32), Place: &runnelv1.OffsetQuery_Position{Position: p}}
		}
		for name, q := range map[string]struct {
			query *runnelv1.OffsetQuery
			want  string
		}{
			"earliest":                     {position(runnelv1.Position_POSITION_EARLIEST), "0=0"},
			"latest":                       {position(runnelv1.Position_POSITION_LATEST), "0=4"},
			"nothing said":                 {&runnelv1.OffsetQuery{Topic: "orders", Partition: new(int32)}, "0=4"},
			"every partition":              {&runnelv1.OffsetQuery{Topic: "orders"}, "0=4 1=0"},
			"at a record's time":           {at(4, 0), "0=1@4"},
			"between two":                  {at(5, 0), "0=2@6"},
			"a nanosecond after a record":  {at(4, 1), "0=2@6"},
			"before all":                   {at(-5, 0), "0=0@2"},
			"after all":                    {at(9, 0), "0=none"},
			"an unknown topic":             {&runnelv1.OffsetQuery{Topic: "nobody"}, "TOPIC_NOT_FOUND"},
			"an unknown partition":         {&runnelv1.OffsetQuery{Topic: "orders", Partition: new(int32(2))}, "PARTITION_NOT_FOUND"},
			"a negative partition":         {&runnelv1.OffsetQuery{Topic: "orders", Partition: new(int32(-1))}, "PARTITION_NOT_FOUND"},
			"a partition led elsewhere":    {&runnelv1.OffsetQuery{Topic: "other"}, "NOT_LEADER"},
			"another topic of that name":   {&runnelv1.OffsetQuery{Topic: "orders", TopicId: new(uuid.NewString())}, "TOPIC_ID_MISMATCH"},
			"a position nobody knows":      {position(9), "INVALID_REQUEST"},
			"an isolation nobody knows":    {&runnelv1.OffsetQuery{Topic: "orders", Isolation: 9}, "INVALID_REQUEST"},
			"a time that is none":          {&runnelv1.OffsetQuery{Topic: "orders", Place: &runnelv1.OffsetQuery_Timestamp{Timestamp: &timestamppb.Timestamp{Nanos: -1}}}, "INVALID_REQUEST"},
			"latest, also what is pending": {&runnelv1.OffsetQuery{Topic: "orders", Partition: new(int32), Isolation: runnelv1.Isolation_ISOLATION_READ_UNCOMMITTED}, "0=4"},
		} {
			if got := show(c.ListOffsets(t.Context(), &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{q.query}})); got != q.want {
				t.Errorf("%s: %s, want %s", name, got, q.want)
			}
		}
		// Latest does not depend on what remains (ST-09).
		del, err := c.DeleteRecords(t.Context(), &runnelv1.DeleteRecordsRequest{Topic: "orders", Partitions: []*runnelv1.DeleteRecordsPartition{
			{Partition: 0, BeforeOffset: 3}, {Partition: 1, BeforeOffset: -1}, {Partition: 0, BeforeOffset: 5}, {Partition: 0, BeforeOffset: -2}, {Partition: 7},
		}})
		if err != nil {
			t.Fatal(err)
		}
		var reasons []string
		for _, r := range del.GetResults() {
			reasons = append(reasons, fmt.Sprintf("%d:%d:%s", r.GetPartition(), r.GetLogStartOffset(), rpcerr.Name(r.GetError().GetReason())))
		}
		if diff := cmp.Diff([]string{"0:3:UNSPECIFIED", "1:0:UNSPECIFIED", "0:0:OFFSET_OUT_OF_RANGE", "0:0:INVALID_REQUEST", "7:0:PARTITION_NOT_FOUND"}, reasons); diff != "" {
			t.Error(diff)
		}
		resp, err := c.ListOffsets(t.Context(), &runnelv1.ListOffsetsRequest{Queries: []*runnelv1.OffsetQuery{position(runnelv1.Position_POSITION_EARLIEST), position(runnelv1.Position_POSITION_LATEST)}})
		if err != nil || resp.GetOffsets()[0].GetOffset() != 3 || resp.GetOffsets()[1].GetOffset() != 4 {
			t.Errorf("%v, %v", resp, err)
		}
	})
}

func TestRefusals(t *testing.T) {
	withCounter(t, func(c *counter) {
		t := c.t
		many := make([]*runnelv1.TopicRef, 101)
		for i := range many {
			many[i] = &runnelv1.TopicRef{Name: "t"}
		}
		internal := elsewhere(uuid.New(), "__offsets", 1)
		internal[0].GetTopic().Internal = true
		c.publish(internal...)
		c.topic("there", 1)
		ctx := t.Context()
		for name, call := range map[string]struct {
			f    func() error
			want string
		}{
			"no topics": {func() error { _, err := c.CreateTopics(ctx, &runnelv1.CreateTopicsRequest{}); return err }, "INVALID_REQUEST"},
			"too many topics": {func() error {
				_, err := c.DescribeTopics(ctx, &runnelv1.DescribeTopicsRequest{Topics: many})
				return err
			}, "INVALID_REQUEST"},
			"a negative timeout": {func() error {
				_, err := c.AddPartitions(ctx, &runnelv1.AddPartitionsRequest{Timeout: durationpb.New(-1)})
				return err
			}, "INVALID_REQUEST"},
			"deletion, a negative timeout": {func() error {
				_, err := c.DeleteRecords(ctx, &runnelv1.DeleteRecordsRequest{
					Topic: "there", Partitions: []*runnelv1.DeleteRecordsPartition{{}}, Timeout: durationpb.New(-time.Second),
				})
				return err
			}, "INVALID_REQUEST"},
			"deletion, no id": {func() error {
				_, err := c.DeleteRecords(ctx, &runnelv1.DeleteRecordsRequest{Topic: "there", TopicId: new("x"), Partitions: []*runnelv1.DeleteRecordsPartition{{}}})
				return err
			}, "INVALID_REQUEST"},
			"deletion, another id": {func() error {
				_, err := c.DeleteRecords(ctx, &runnelv1.DeleteRecordsRequest{
					Topic: "there", TopicId: new(uuid.NewString()), Partitions: []*runnelv1.DeleteRecordsPartition{{}},
				})
				return err
			}, "TOPIC_ID_MISMATCH"},
			"a timeout of a year": {func() error {
				_, err := c.AlterTopicConfigs(ctx, &runnelv1.AlterTopicConfigsRequest{Timeout: durationpb.New(9000 * time.Hour)})
				return err
			}, "INVALID_REQUEST"},
			"no queries":    {func() error { _, err := c.ListOffsets(ctx, &runnelv1.ListOffsetsRequest{}); return err }, "INVALID_REQUEST"},
			"no partitions": {func() error { _, err := c.DeleteRecords(ctx, &runnelv1.DeleteRecordsRequest{Topic: "t"}); return err }, "INVALID_REQUEST"},
			"a negative partition": {func() error {
				_, err := c.DescribeTopics(ctx, &runnelv1.DescribeTopicsRequest{Topics: many[:1], FromPartition: -1})
				return err
			}, "INVALID_REQUEST"},
			"an internal topic": {func() error {
				_, err := c.DeleteRecords(ctx, &runnelv1.DeleteRecordsRequest{Topic: "__offsets", Partitions: []*runnelv1.DeleteRecordsPartition{{}}})
				return err
			}, "TOPIC_INTERNAL"},
			"no controller, create": {func() error {
				_, err := c.CreateTopics(ctx, &runnelv1.CreateTopicsRequest{Topics: []*runnelv1.NewTopic{{Name: "t"}}})
				return err
			}, "CONTROLLER_UNAVAILABLE"},
			"no controller, delete": {func() error {
				_, err := c.DeleteTopics(ctx, &runnelv1.DeleteTopicsRequest{Topics: many[:1]})
				return err
			}, "CONTROLLER_UNAVAILABLE"},
			"no controller, alter": {func() error {
				_, err := c.AlterTopicConfigs(ctx, &runnelv1.AlterTopicConfigsRequest{Topic: "t"})
				return err
			}, "CONTROLLER_UNAVAILABLE"},
			"no controller, add": {func() error { _, err := c.AddPartitions(ctx, &runnelv1.AddPartitionsRequest{Topic: "t"}); return err }, "CONTROLLER_UNAVAILABLE"},
		} {
			if got := rpcerr.Name(rpcerr.Reason(call.f())); got != call.want {
				t.Errorf("%s: %s, want %s", name, got, call.want)
			}
		}
		c.fresh = errors.New("no controller")
		resp, err := c.DescribeTopics(ctx, &runnelv1.DescribeTopicsRequest{Topics: many[:1]})
		if err != nil || resp.GetTopics()[0].GetError().GetReason() != runnelv1.ErrorReason_ERROR_REASON_STALE_METADATA {
			t.Errorf("an unknown topic without a controller: %v, %v", resp, err)
		}
		keys, err := c.ListTopicConfigKeys(ctx, &runnelv1.ListTopicConfigKeysRequest{})
		if err != nil || len(keys.GetKeys()) < 10 || keys.GetKeys()[0].GetDescription() == "" {
			t.Errorf("keys: %v, %v", keys, err)
		}
		cl, err := c.DescribeCluster(ctx, &runnelv1.DescribeClusterRequest{})
		if err != nil || len(cl.GetBrokers()) != 1 || cl.GetBrokers()[0].GetAddress() != "[::1]:7420" || cl.GetVersion() != "test" || cl.GetBrokerId() != 1 {
			t.Errorf("cluster: %v, %v", cl, err)
		}
	})
}
