package coordinator

import "time"

// Topic is the internal topic that holds the groups.
const Topic = "__consumer_offsets"

// Config tunes the coordinator. Zero fields have defaults.
type Config struct {
	// SessionTimeout and RebalanceTimeout are those of members that ask for none.
	// Default 10 s and 60 s.
	SessionTimeout, RebalanceTimeout time.Duration
	// OffsetsRetention is for how long the offsets of an empty group are kept.
	// Default 7 days.
	OffsetsRetention time.Duration
	// MaxMembers is how many members a group may have. Default 5000.
	MaxMembers int
	// RetainEvery is how often empty groups are looked for. Default 1 min.
	RetainEvery time.Duration
	// LagEvery is how often lag is measured. Default 5 s; negative: never.
	LagEvery time.Duration
	// LagSeries is how many partitions of groups have lag metrics. Default 10000.
	LagSeries int
	// LossWarning: a group whose unread records will be deleted sooner is warned
	// of. Default 1 h; negative: never.
	LossWarning time.Duration
}

// Limits of what a member may ask for.
const (
	MinSessionTimeout   = time.Second
	MaxSessionTimeout   = 5 * time.Minute
	MinRebalanceTimeout = time.Second
	MaxRebalanceTimeout = 30 * time.Minute
	// MaxMetadata is how many bytes may be committed with an offset.
	MaxMetadata = 4096
)

func (c Config) withDefaults() Config {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&c.SessionTimeout, 10*time.Second)
	def(&c.RebalanceTimeout, time.Minute)
	def(&c.OffsetsRetention, 7*24*time.Hour)
	def(&c.RetainEvery, time.Minute)
	def(&c.LagEvery, 5*time.Second)
	def(&c.LossWarning, time.Hour)
	if c.MaxMembers == 0 {
		c.MaxMembers = 5000
	}
	if c.LagSeries == 0 {
		c.LagSeries = 10000
	}
	return c
}
