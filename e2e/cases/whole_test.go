package cases

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/rs/zerolog"

	"github.com/runnelmq/runnel/broker"
	"github.com/runnelmq/runnel/controller"
	"github.com/runnelmq/runnel/controller/store/storetest"
	"github.com/runnelmq/runnel/internal/vfs"
)

// inWhole is inTown with a real controller, for what the stand-in can't do:
// topics that are deleted, or get more partitions, or other configurations.
func inWhole(t *testing.T, tune func(*broker.Config), f func(w *town)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &town{t: t, net: newNetwork(), disk: vfs.NewMem(), config: broker.DefaultConfig()}
		w.config.ID, w.config.DataDir, w.config.Listen.Admin = 1, "data", ""
		w.config.Controllers = []string{controllerAddr}
		if tune != nil {
			tune(&w.config)
		}
		cfg := controller.DefaultConfig()
		cfg.Listen.Controller, cfg.Listen.Admin = controllerAddr, ""
		cfg.Topics.ReplicationFactor = 1
		kv := storetest.New()
		ctl, err := controller.New(cfg, controller.Deps{
			KV: kv, Bootstrap: true, Log: zerolog.Nop(), Registry: prometheus.NewRegistry(), Listen: w.net.listen, Dial: w.net.dial,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		w.wg.Go(func() {
			if err := ctl.Run(ctx); err != nil {
				t.Errorf("the controller: %v", err)
			}
		})
		defer kv.Close()
		defer w.wg.Wait()
		defer cancel()
		<-ctl.Ready()
		w.start()
		defer func() { w.stop() }()
		f(w)
	})
}
