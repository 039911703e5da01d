package state

import (
	"errors"
	"math"
)

// ProducerIDBlock is how many producer ids a broker is given at a time.
const ProducerIDBlock = 1000

// ErrNoProducerIDs is returned when all producer ids were given away: after nine million million million of them.
var ErrNoProducerIDs = errors.New("there are no producer ids left")

// ProducerIDs returns which producer ids were given away; from 1 on none while there is no record.
func (i *Image) ProducerIDs() *ProducerIDs {
	if i.producers == nil {
		return &ProducerIDs{Next: 1}
	}
	return i.producers
}

// GiveProducerIDs returns the change that gives a block of ids away, and its first one. They are given once it is committed.
func (i *Image) GiveProducerIDs() (c Change, first int64, err error) {
	ids := *i.ProducerIDs()
	if ids.Next > math.MaxInt64-ProducerIDBlock {
		return Change{}, 0, ErrNoProducerIDs
	}
	first = ids.Next
	ids.Next += ProducerIDBlock
	return put(&ids, ids.Revision), first, nil
}
