package sim

// Files with rules that mutations take out.
const (
	coreFile     = "broker/partition/core.go"
	isrFile      = "broker/partition/core_isr.go"
	leaderFile   = "broker/partition/core_leader.go"
	followerFile = "broker/partition/core_follower.go"
	proposeFile  = "controller/state/isr.go"
	settleFile   = "controller/state/settle.go"
	brokersFile  = "controller/state/brokers.go"
)

// mutations are all that the simulation must notice. The numbers up to 10 are
// those of CORRECTNESS §1.8, from 11 on those of PROTOCOL §6.
func mutations() []mutation {
	return append(replicationMutations(), metadataMutations()...)
}

// replicationMutations are those of what brokers do.
func replicationMutations() []mutation {
	return []mutation{
		{"5-joins-below-the-high-watermark", "TestStoryJoinsBelowTheHighWatermark", []edit{
			{isrFile, "has >= c.hw && has >= c.leso", "has >= c.leso"},
		}},
		{mutantName, "TestStoryMinimumIsOfTheCommittedISR", []edit{
			{
				coreFile, "func (c *core) enough() bool { return len(c.committed) >= c.minISR }",
				"func (c *core) enough() bool { n := 1; c.others(func(metadata.BrokerID) bool { n++; return true }, c.maximal()...); return n >= c.minISR }",
			},
		}},
		{"15-only-the-newest-proposal-counts", "TestStoryEveryProposalCounts", []edit{
			{coreFile, "for _, p := range c.proposals {", "for _, p := range c.proposals[max(0, len(c.proposals)-1):] {"},
			{isrFile, "c.moving || len(c.proposals) > 0 || now", "c.moving || now"},
		}},
		{"proposals-do-not-hold-the-high-watermark", "TestStoryProposedMemberIsWaitedFor", []edit{
			{coreFile, "	for _, p := range c.proposals {\n		sets = append(sets, p.isr)\n	}\n", ""},
		}},
	}
}

// metadataMutations are those of what controllers do.
func metadataMutations() []mutation {
	return []mutation{
		{"9-any-registration-joins", "TestStoryProposedMemberStartsAnew", []edit{
			{proposeFile, "		case b.Epoch != m.Epoch:\n", "		case false:\n"},
		}},
		{"10-any-partition-epoch-is-good", "TestStoryProposalOfAnEarlierState", []edit{
			{proposeFile, "	case p.PartitionEpoch < old.PartitionEpoch:\n", "	case false:\n"},
		}},
		{"13-the-ELR-outlives-the-minimum", "TestStoryMinimumIsLowered", []edit{
			{
				settleFile, "		next.MinISR, next.ELR = t.minISR, nil\n",
				"		next.MinISR, next.Sync = t.minISR, t.sync\n		return next.changedFrom(p)\n",
			},
		}},
	}
}
