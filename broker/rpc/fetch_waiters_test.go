package rpc

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// Readers that wait at the end of idle partitions while others are busy are held
// once each, whatever comes in meanwhile, and nothing of them is left when they
// go (GR-16).
func TestFetch_waitsAreHeldOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const partitions, streams = 20, 10
		b := newTestBroker(t, testConfig{})
		b.topic("t", partitions)
		waiting := func(n int32) int { return b.part("t", n).Inside().Readers }
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		for range streams {
			stream, err := b.log.Fetch(ctx)
			if err != nil {
				t.Fatal(err)
			}
			req := following()
			req.Options.MaxWait = durationpb.New(time.Minute)
			for n := range int32(partitions) {
				req.Partitions = append(req.Partitions, fromLatest("t", n))
			}
			send(t, stream, req)
			t.Cleanup(func() {
				for err := error(nil); err == nil; {
					_, err = stream.Recv()
				}
			})
		}
		synctest.Wait()
		for range 50 { // partition 0 is busy
			b.append("t", 0, "v")
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(10 * time.Minute)
		for n := range int32(partitions) {
			if got := waiting(n); got > streams || n > 0 && got != streams {
				t.Errorf("partition %d: %d wait, of %d readers", n, got, streams)
			}
		}
		leave()
		synctest.Wait()
		for n := range int32(partitions) {
			if got := waiting(n); got != 0 {
				t.Errorf("partition %d: %d still wait", n, got)
			}
		}
	})
}
