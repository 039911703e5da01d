package replication

import "time"

const (
	// busyFor is how long after a record was appended clients count as writing.
	busyFor = 2 * time.Second
	// roundBytes is what one round sends while they do: so little that who comes
	// while a processor or a disk is busy with it does not wait for long.
	roundBytes = 64 << 10
	// roundMax is after how long a round is over that the follower did not
	// finish: its disk may be stuck in one partition, and others go on. It bounds
	// the rests too.
	roundMax = 100 * time.Millisecond
	// gainEvery is how often it is looked whether the follower gains ground.
	gainEvery = time.Second
)

// A pace keeps those that catch up from taking more than a share of the time
// while clients write. A round sends some bytes; it is over when the follower has
// appended them; then there is a rest, in proportion to what the round took. So
// the busier leader, network and follower are with other work, the longer the
// rests, and nobody has to know how fast any of them is. It is pure and belongs
// to a stream's sender.
//
// A follower that loses ground is given no rest: it would never be done. Ground
// is bytes, not records: what waits and what comes may be of very different sizes.
type pace struct {
	share int // percent of the time; 100: all

	begun time.Time // of the round; zero: none runs
	spent int64     // by the round
	until time.Time // none begins before

	judged       time.Time // when it was last looked who gains
	gained, lost int64     // since then: bytes sent, and appended
	losing       bool
}

// appended notes how many bytes were, to partitions that catch up.
func (p *pace) appended(bytes int64) { p.lost += bytes }

// wait returns for how long nothing more may be sent; 0: it may now.
func (p *pace) wait(now time.Time, busy bool) time.Duration {
	switch {
	case p.free(busy):
		return 0
	case now.Before(p.until):
		return p.until.Sub(now)
	case p.begun.IsZero() || p.spent < roundBytes:
		return 0
	}
	return max(p.begun.Add(roundMax).Sub(now), 0)
}

// free says that nothing is to be held back.
func (p *pace) free(busy bool) bool { return p.share >= 100 || !busy || p.losing }

// begin notes that something is about to be read and sent, and returns how much
// that may be.
func (p *pace) begin(now time.Time, busy bool) (limit int64) {
	if p.begun.IsZero() || now.Sub(p.begun) >= roundMax {
		p.begun, p.spent = now, 0
	}
	if p.free(busy) {
		return catchUpInFlight
	}
	return max(roundBytes-p.spent, 1)
}

// sent notes how many bytes were.
func (p *pace) sent(bytes int64) {
	p.spent += bytes
	p.gained += bytes
}

// appendedAll notes that the follower has nothing more to append.
func (p *pace) appendedAll(now time.Time) {
	if p.begun.IsZero() || p.share >= 100 {
		return
	}
	took := min(now.Sub(p.begun), roundMax)
	p.until = now.Add(took * time.Duration(100-p.share) / time.Duration(p.share))
	p.begun = time.Time{}
}

// judge looks from time to time whether the follower gains ground; or would, once
// it is given rests again.
func (p *pace) judge(now time.Time) {
	if now.Sub(p.judged) < gainEvery {
		return
	}
	gained := p.gained
	if p.losing {
		gained = gained * int64(p.share) / 100
	}
	p.losing = p.lost > 0 && p.lost >= gained
	p.judged, p.gained, p.lost = now, 0, 0
}
