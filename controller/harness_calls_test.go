package controller_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	controllerv1 "github.com/runnelmq/runnel/api/runnel/controller/v1"
	runnelv1 "github.com/runnelmq/runnel/api/runnel/v1"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/store"
	"github.com/runnelmq/runnel/controller/store/storetest"
	"github.com/runnelmq/runnel/internal/rpcerr"
)

func create(topics ...*runnelv1.NewTopic) *controllerv1.CreateTopicsRequest {
	return &controllerv1.CreateTopicsRequest{Request: &runnelv1.CreateTopicsRequest{Topics: topics}, Principal: "test"}
}

// mustCreate creates one topic and returns its result.
func mustCreate(t *testing.T, c controllerv1.ControllerServiceClient, topic *runnelv1.NewTopic) *runnelv1.CreateTopicResult {
	t.Helper()
	resp, err := c.CreateTopics(t.Context(), create(topic))
	if err != nil {
		t.Fatalf("CreateTopics: %v", err)
	}
	r := resp.GetResponse().GetResults()[0]
	if r.GetError() != nil {
		t.Fatalf("create %s: %v", topic.GetName(), r.GetError())
	}
	return r
}

func wantReason(t *testing.T, what string, err error, want runnelv1.ErrorReason) {
	t.Helper()
	if got := rpcerr.Reason(err); got != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

type (
	controllerConfig = controller.Config
	controllerDeps   = controller.Deps
)

// A cutKV is a store behind a network that can be cut.
type cutKV struct {
	*storetest.Fake

	// mu guards the fields below
	mu sync.Mutex

	down bool
}

func (c *cutKV) set(down bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = down
}

// Watch implements store.KV.
func (c *cutKV) Watch(ctx context.Context, prefix string, from int64, fn func([]store.Event) error) error {
	c.mu.Lock()
	down := c.down
	c.mu.Unlock()
	if down {
		return errors.New("cut off")
	}
	return c.Fake.Watch(ctx, prefix, from, fn)
}

// metric returns the value of a metric without labels.
func metric(t *testing.T, r *running, name string) float64 {
	t.Helper()
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			m := f.GetMetric()[0]
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
