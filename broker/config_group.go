package broker

import (
	"time"

	"github.com/runnelmq/runnel/broker/coordinator"
	"github.com/runnelmq/runnel/internal/config"
)

// GroupConfig tunes consumer groups. It must be the same on all brokers: any of
// them may coordinate a group.
type GroupConfig struct {
	// SessionTimeout is after how long without a message a member is taken for
	// dead that asked for no other time. Default: 10s.
	SessionTimeout config.Duration `yaml:"session_timeout" env:"SESSION_TIMEOUT"`
	// RebalanceTimeout is how long a member that asked for no other time may take
	// to give partitions up (Kafka's rebalance.timeout.ms). Default: 60s.
	RebalanceTimeout config.Duration `yaml:"rebalance_timeout" env:"REBALANCE_TIMEOUT"`
	// OffsetsRetention is how long a group without members keeps its offsets
	// (offsets.retention.ms). Default: 7d.
	OffsetsRetention config.Duration `yaml:"offsets_retention" env:"OFFSETS_RETENTION"`
	// MaxMembers is how many members a group may have. Default: 5000.
	MaxMembers int `yaml:"max_members" env:"MAX_MEMBERS"`
	// LagInterval is how often the lag of all groups is measured, for metrics and
	// warnings. 0s: never. Default: 5s.
	LagInterval config.Duration `yaml:"lag_interval" env:"LAG_INTERVAL"`
	// LagSeries is for how many partitions of groups a broker shows lag metrics;
	// a metric tells how many more there are. Default: 10000.
	LagSeries int `yaml:"lag_series" env:"LAG_SERIES"`
	// LossWarning: a group whose unread records will be deleted sooner than this
	// is warned of, in the log. 0s: never. Default: 1h.
	LossWarning config.Duration `yaml:"loss_warning" env:"LOSS_WARNING"`
}

func defaultGroupConfig() GroupConfig {
	return GroupConfig{
		SessionTimeout: config.Duration(10 * time.Second), RebalanceTimeout: config.Duration(time.Minute),
		OffsetsRetention: config.Duration(7 * 24 * time.Hour), MaxMembers: 5000,
		LagInterval: config.Duration(5 * time.Second), LagSeries: 10000, LossWarning: config.Duration(time.Hour),
	}
}

func (g GroupConfig) validate(v *complaints) {
	v.duration("group.session_timeout", g.SessionTimeout, coordinator.MinSessionTimeout, coordinator.MaxSessionTimeout)
	v.duration("group.rebalance_timeout", g.RebalanceTimeout, coordinator.MinRebalanceTimeout, coordinator.MaxRebalanceTimeout)
	v.duration("group.offsets_retention", g.OffsetsRetention, time.Minute, 10*365*24*time.Hour)
	v.number("group.max_members", int64(g.MaxMembers), 1, 100_000)
	if g.LagInterval != 0 {
		v.duration("group.lag_interval", g.LagInterval, 100*time.Millisecond, time.Hour)
	}
	v.number("group.lag_series", int64(g.LagSeries), 1, 1e6)
	if g.LossWarning != 0 {
		v.duration("group.loss_warning", g.LossWarning, time.Second, 365*24*time.Hour)
	}
}

// coordinator returns what the coordinator of groups is to be told.
func (g GroupConfig) coordinator() coordinator.Config {
	never := func(d config.Duration) time.Duration {
		if d == 0 {
			return -1
		}
		return d.Std()
	}
	return coordinator.Config{
		SessionTimeout: g.SessionTimeout.Std(), RebalanceTimeout: g.RebalanceTimeout.Std(), OffsetsRetention: g.OffsetsRetention.Std(),
		MaxMembers: g.MaxMembers, LagEvery: never(g.LagInterval), LagSeries: g.LagSeries, LossWarning: never(g.LossWarning),
	}
}
