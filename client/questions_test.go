package client_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/runnelmq/runnel/client"
)

// known returns a client of all brokers, which has an open connection to the
// first one.
func (f *fakeBroker) known(t *testing.T, opts ...client.Option) *client.Client {
	t.Helper()
	c := f.anywhere(t, opts...)
	if err := c.Ping(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c
}

// anywhere returns a client of all brokers, the first one first.
func (f *fakeBroker) anywhere(t *testing.T, opts ...client.Option) *client.Client {
	t.Helper()
	var addrs []string
	for _, d := range f.nodes {
		addrs = append(addrs, d.addr)
	}
	c, err := client.New(addrs, append([]client.Option{client.Dialer(f.dial)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// asks are questions that change nothing.
func asks(t *testing.T, c *client.Client) map[string]func(context.Context) error {
	t.Helper()
	return map[string]func(context.Context) error{
		"ping":         c.Ping,
		"describe":     func(ctx context.Context) error { return second(c.NewAdmin().DescribeTopics(ctx, []string{"t"})) },
		"list":         func(ctx context.Context) error { return second(c.NewAdmin().ListPartitions(ctx, "t")) },
		"list offsets": func(ctx context.Context) error { return second(c.NewAdmin().ListOffsets(ctx, "t", client.Latest())) },
		"read": func(ctx context.Context) error {
			r := newReader(t, c)
			defer r.Close()
			return r.Assign(ctx, client.Assignment{Topic: "t", Start: client.Latest()})
		},
		"produce": func(ctx context.Context) error {
			p := producer(t, c)
			return second(p.ProduceSync(ctx, client.Record{Topic: "t", Value: []byte("v")}))
		},
	}
}

func second[T any](_ T, err error) error { return err }

// A broker that has a connection and answers nothing is left for another one within
// a few seconds, by all that changes nothing, and by what comes after.
func TestQuestions_frozenSeed(t *testing.T) {
	for name, opts := range map[string][]client.Option{"direct": nil, "proxy": {client.WithRouting(client.Proxy)}} {
		for ask := range asks(t, nil) {
			t.Run(name+", "+ask, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeCluster(t, 3, map[string]int{"t": 1})
					f.locked(func() { f.topics["t"].parts[0].lead(1) })
					c := f.known(t, opts...)
					f.locked(func() { f.nodes[0].frozen = true })
					for _, most := range []time.Duration{4 * time.Second, time.Second} {
						begun := time.Now()
						ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
						if err := asks(t, c)[ask](ctx); err != nil {
							t.Fatal(err)
						}
						cancel()
						if took := time.Since(begun); took > most {
							t.Errorf("took %v, want at most %v", took, most)
						}
					}
				})
			})
		}
	}
}

// A broker that hangs from the first connection on does not hold up a client that
// was told of others.
func TestQuestions_hangsFromTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, map[string]int{"t": 1})
		f.nodes[0].blackhole = true
		begun := time.Now()
		_ = f.known(t)
		if took := time.Since(begun); took > 4*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A change that was not made, because its broker is cut off from the controllers, is
// asked for where there is one; and only told of where there is none.
func TestQuestions_changeElsewhere(t *testing.T) {
	for apart := 1; apart <= 3; apart++ {
		synctest.Test(t, func(t *testing.T) {
			f := newFakeCluster(t, 3, nil)
			c := f.known(t)
			f.locked(func() {
				for _, d := range f.nodes[:apart] {
					d.apart = true
				}
			})
			begun := time.Now()
			_, err := c.NewAdmin().CreateTopics(t.Context(), []client.NewTopic{{Name: "n", Partitions: 1}})
			if took := time.Since(begun); took > 12*time.Second {
				t.Errorf("%d apart: took %v", apart, took)
			}
			if apart == 3 {
				if e, ok := errors.AsType[*client.Error](err); !ok || e.Metadata["changed"] != "no" || errors.Is(err, client.ErrOutcomeUnknown) {
					t.Errorf("all apart: %v", err)
				}
				return
			}
			if err != nil || !f.topic("n") {
				t.Errorf("%d apart: %v", apart, err)
			}
			begun = time.Now()
			if _, err := c.NewAdmin().CreateTopics(t.Context(), []client.NewTopic{{Name: "m", Partitions: 1}}); err != nil || time.Since(begun) > time.Second {
				t.Errorf("the next one: %v, after %v", err, time.Since(begun))
			}
		})
	}
}

// A change that a broker may have made is not asked for again, and its outcome is
// unknown; what comes after goes elsewhere at once.
func TestQuestions_frozenChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, nil)
		c := f.known(t)
		f.locked(func() { f.nodes[0].frozen = true })
		ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
		defer cancel()
		begun := time.Now()
		_, err := c.NewAdmin().CreateTopics(ctx, []client.NewTopic{{Name: "n", Partitions: 1}})
		if !errors.Is(err, client.ErrOutcomeUnknown) || time.Since(begun) < 14*time.Second {
			t.Errorf("%v: want an unknown outcome, when its time is up", err)
		}
		if f.topic("n") {
			t.Error("it was asked for again, elsewhere")
		}
		begun = time.Now()
		if _, err := c.NewAdmin().CreateTopics(t.Context(), []client.NewTopic{{Name: "m", Partitions: 1}}); err != nil || time.Since(begun) > time.Second {
			t.Errorf("the next one: %v, after %v", err, time.Since(begun))
		}
	})
}

// Without an answer every change has an unknown outcome, and what was only tried
// has none.
func TestAdmin_unansweredChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeGroup(t, nil).f
		c := f.known(t)
		f.locked(func() { f.nodes[0].frozen = true })
		a := c.NewAdmin()
		for name, change := range map[string]func(context.Context, ...client.AdminOption) error{
			"create": func(ctx context.Context, o ...client.AdminOption) error {
				return second(a.CreateTopics(ctx, []client.NewTopic{{Name: "t"}}, o...))
			},
			"delete": func(ctx context.Context, o ...client.AdminOption) error {
				return second(a.DeleteTopics(ctx, []string{"t"}, o...))
			},
			"alter": func(ctx context.Context, o ...client.AdminOption) error {
				_, _, err := a.AlterTopicConfig(ctx, "t", nil, nil, o...)
				return err
			},
			"add partitions": func(ctx context.Context, o ...client.AdminOption) error {
				_, _, err := a.AddPartitions(ctx, "t", 2, o...)
				return err
			},
			"recover": func(ctx context.Context, o ...client.AdminOption) error {
				return second(a.RecoverPartition(ctx, "t", 0, -1, o...))
			},
			"fence": func(ctx context.Context, o ...client.AdminOption) error {
				if len(o) > 0 {
					return context.DeadlineExceeded // it can't be tried
				}
				_, _, err := a.FenceBroker(ctx, 1)
				return err
			},
			"reset": func(ctx context.Context, o ...client.AdminOption) error {
				_, _, err := a.ResetOffsets(ctx, "g", []client.OffsetReset{{Topic: "t"}}, o...)
				return err
			},
			"delete group": func(ctx context.Context, o ...client.AdminOption) error {
				if len(o) > 0 {
					return context.DeadlineExceeded // it can't be tried
				}
				return a.DeleteGroup(ctx, "g")
			},
		} {
			for _, opts := range [][]client.AdminOption{nil, {client.ValidateOnly()}} {
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
				err := change(ctx, opts...)
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, client.ErrOutcomeUnknown) != (opts == nil) {
					t.Errorf("%s, tried %v: %v", name, opts != nil, err)
				}
				cancel()
			}
		}
	})
}

func (f *fakeBroker) topic(name string) (there bool) {
	f.locked(func() { there = f.topics[name] != nil })
	return there
}

// An answer that takes long is waited for where its broker gives signs of life, and
// where no other one does.
func TestQuestions_slowAnswer(t *testing.T) {
	for name, freeze := range map[string]func(*fakeBroker){
		"it lives":    func(f *fakeBroker) { f.silentOn = "t" },
		"none lives":  func(f *fakeBroker) { f.nodes[0].frozen, f.nodes[1].frozen = true, true },
		"others' own": func(f *fakeBroker) { f.nodes[0].frozen, f.nodes[1].cluster = true, "another" },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFakeCluster(t, 2, map[string]int{"t": 1, "u": 1})
				c := f.known(t)
				p := producer(t, c) // the client knows which cluster it is of
				if _, err := p.ProduceSync(t.Context(), client.Record{Topic: "u", Value: []byte("v")}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				f.locked(func() { freeze(f) })
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				begun := time.Now()
				if _, err := c.NewAdmin().DescribeTopics(ctx, []string{"t"}); !errors.Is(err, context.DeadlineExceeded) || time.Since(begun) < 29*time.Second {
					t.Errorf("%v: want no answer in time", err)
				}
				f.locked(func() {
					f.nodes[0].frozen, f.nodes[1].frozen, f.silentOn = false, false, ""
					if f.unanswered > 1 {
						t.Errorf("it was asked %d times", f.unanswered)
					}
				})
				if err := c.Ping(t.Context()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Many questions that wait for one broker ask around once, not each by itself.
func TestQuestions_many(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeCluster(t, 2, map[string]int{"t": 1})
		c := f.known(t)
		f.locked(func() { f.nodes[0].frozen = true })
		before := f.nodes[1].asked.Load()
		begun := time.Now()
		var asking sync.WaitGroup
		for range 100 {
			asking.Go(func() {
				if _, err := c.NewAdmin().DescribeTopics(t.Context(), []string{"t"}); err != nil {
					t.Error(err)
				}
			})
		}
		asking.Wait()
		if took := time.Since(begun); took > 4*time.Second {
			t.Errorf("took %v", took)
		}
		if n := f.nodes[1].asked.Load() - before; n > 3 {
			t.Errorf("the other one was asked %d times for a sign of life", n)
		}
	})
}

// A broker that was never let into the cluster knows nothing of it. A client that comes
// to it first goes to another one, with questions and changes alike.
func TestQuestions_seedOutsideTheCluster(t *testing.T) {
	for name, opts := range map[string][]client.Option{"direct": nil, "proxy": {client.WithRouting(client.Proxy)}} {
		all := asks(t, nil)
		all["create"] = nil
		for ask := range all {
			t.Run(name+", "+ask, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					f := newFakeCluster(t, 3, map[string]int{"t": 1})
					f.locked(func() {
						f.topics["t"].parts[0].lead(1)
						f.nodes[0].outside = true
					})
					c := f.anywhere(t, opts...)
					do := asks(t, c)
					do["create"] = func(ctx context.Context) error {
						return second(c.NewAdmin().CreateTopics(ctx, []client.NewTopic{{Name: "u"}}))
					}
					ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
					defer cancel()
					if err := do[ask](ctx); err != nil {
						t.Fatal(err)
					}
				})
			})
		}
	}
}
