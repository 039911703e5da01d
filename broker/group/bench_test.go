package group

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkRebalance lets 1,000 members join a topic of 1,000 partitions, 100 at
// a time, and carry out what they are told, until everybody owns one.
func BenchmarkRebalance(b *testing.B) {
	topics := NewResolver(topicList{topicOf(0, 1000)})
	now := time.UnixMilli(1e12)
	for b.Loop() {
		g := New("g", Limits{MaxMembers: 1000})
		ids := map[Stream]string{}
		changes, told := 0, 0
		settle := func(fx *Effects) {
			for {
				g.Settle(now, topics, fx)
				changes += len(fx.Changes)
				messages := fx.Messages
				*fx = Effects{}
				if len(messages) == 0 {
					return
				}
				for _, m := range messages {
					if m.Assignment == nil {
						continue
					}
					told++
					owned := map[Part]bool{}
					for _, o := range m.Assignment.Owned {
						owned[o.Part] = true
					}
					g.Own(now, m.Stream, ids[m.Stream], m.Assignment.Revision, func(p Part) bool { return owned[p] }, fx)
				}
			}
		}
		for turn := range 10 {
			var fx Effects
			for i := range 100 {
				s := Stream(turn*100 + i + 1) //nolint:gosec // small
				ids[s] = fmt.Sprint("member-", s)
				if err := g.Join(now, s, ids[s], 0, basic("t000"), &fx); err != nil {
					b.Fatal(err)
				}
			}
			settle(&fx)
		}
		for _, m := range g.Members() {
			if m.Owned != 1 {
				b.Fatalf("%s owns %d", m.ID, m.Owned)
			}
		}
		b.ReportMetric(float64(changes), "records")
		b.ReportMetric(float64(told), "assignments")
	}
}
