package sim

import "slices"

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
// those of CORRECTNESS §1.8, from 11 on those of PROTOCOL §6. Of the latter 19 and
// 21 are of compaction, and nothing is compacted here: TestClean_followerAwayTooLong
// of broker/partition and TestClean_damage of internal/commitlog notice them.
func mutations() []mutation {
	return slices.Concat(replicationMutations(), metadataMutations(), groupMutations())
}

// groupMutations are those of what consumer groups go by.
func groupMutations() []mutation {
	return []mutation{
		{"a-partition-has-two-owners", "TestClusters", []edit{
			{"broker/group/settle.go", "		if g.owners[p] == nil && g.held[p] == 0 {\n", "		if g.held[p] == 0 {\n"},
		}},
		{"a-late-commit-takes-the-place-of-a-later-one", "TestStoryCommitComesLate", []edit{
			{"broker/group/commit.go", "last.By.Sequence > by.Sequence && ", "false && "},
		}},
		{"who-joins-anew-keeps-its-epochs", "TestStoryCommitOfALostPartition", []edit{
			{"broker/group/member.go", "	if epoch == 0 && len(m.owned) > 0 {\n", "	if false {\n"},
		}},
		{"an-earlier-coordinator-tells-offsets", "TestStoryOffsetsAreNeverOld", []edit{
			{"broker/coordinator/sure.go", "	began := time.Now()\n", "	began := time.Now().Add(-3 * time.Second)\n"},
		}},
		{"a-commit-is-answered-before-it-is-committed", "TestStoryCommitIsReplicated", []edit{
			{"broker/coordinator/shard.go", "len(s.waiting) > 0 && s.waiting[0].next <= hw {", "len(s.waiting) > 0 {"},
		}},
	}
}

// replicationMutations are those of what brokers do.
func replicationMutations() []mutation {
	return []mutation{
		{"2-a-subscription-outlives-its-epoch", "TestStorySameLeaderInANewEpoch", []edit{
			{coreFile, "if c.role == r && c.epoch == p.LeaderEpoch && c.follow", "if c.role == r && (c.epoch == p.LeaderEpoch || r == following) && c.follow"},
		}},
		{"3-acks-outlive-their-epoch", "TestStoryAcksEndWithTheirEpoch", []edit{
			{coreFile, "	c.proposals, c.followers, c.moving, c.sound = nil, nil, false, time.Time{}\n", "	c.proposals, c.moving, c.sound = nil, false, time.Time{}\n"},
			{
				coreFile, "	c.followers = map[metadata.BrokerID]*follower{}\n",
				"	if c.followers == nil {\n		c.followers = map[metadata.BrokerID]*follower{}\n	}\n",
			},
		}},
		{"4-a-subscribe-counts-as-an-ack", "TestStorySubscribeIsNoAck", []edit{
			{
				leaderFile, "	if a.Kind == Accepted {\n		f.subscribed = true\n",
				"	f.acked, f.subscribed, f.progress = true, true, progress{s.NextOffset, s.NextOffset}\n	if a.Kind == Accepted {\n",
			},
		}},
		{"5-joins-below-the-high-watermark", "TestStoryJoinsBelowTheHighWatermark", []edit{
			{isrFile, "has >= c.hw && has >= c.leso", "has >= c.leso"},
		}},
		{"6-joins-below-the-start-of-the-epoch", "TestStoryJoinsBelowTheStartOfTheEpoch", []edit{
			{isrFile, "has >= c.hw && has >= c.leso", "has >= c.hw"},
		}},
		{"7-a-frame-goes-to-the-end-of-any-log", "TestStoryLateFrameBehindACut", append(anyFrame(), edit{
			followerFile, "	case d.Start != c.own.written:\n", "	case false:\n",
		})},
		{"8-a-frame-is-of-any-epoch", "TestStoryLateFrame", anyFrame()},
		{"11-the-minimum-is-of-the-maximal-ISR", "TestStoryMinimumIsOfTheCommittedISR", []edit{
			{
				coreFile, "func (c *core) enough() bool { return len(c.committed) >= c.minISR }",
				"func (c *core) enough() bool { n := 1; c.others(func(metadata.BrokerID) bool { n++; return true }, c.maximal()...); return n >= c.minISR }",
			},
		}},
		{"a-deletion-is-for-the-ISR-alone", "TestStoryDeletedRecordsStayAway", []edit{
			{coreFile, "f.logStart >= start\n		return all\n	}, append(c.maximal(), c.elr)...)\n", "f.logStart >= start\n		return all\n	}, c.committed)\n"},
		}},
		{"12-an-ack-is-the-log-end", "TestClusters", []edit{
			{leaderFile, "	written := min(a.Written, c.own.written)\n", "	written := c.own.written\n"},
		}},
		{"15-only-the-newest-proposal-counts", "TestStoryEveryProposalCounts", []edit{
			{coreFile, "for _, p := range c.proposals {", "for _, p := range c.proposals[max(0, len(c.proposals)-1):] {"},
			{isrFile, "c.moving || len(c.proposals) > 0 || now", "c.moving || now"},
		}},
		{"16-no-ack-of-an-accepted-subscription", "TestStoryIdleFollowersComeBack", []edit{
			{"broker/partition/replica_follower.go", "	if err == nil && do.kind == noChange {\n		p.publishLocked()", "	if false {\n		p.publishLocked()"},
		}},
		{"17-no-progress-without-data", "TestStoryIdleFollowersComeBack", []edit{
			{"broker/replication/schedule.go", "	if l.news != l.told && l.due == nil {\n", "	if false {\n"},
		}},
		{"18-not-leader-for-what-was-appended", "TestStoryParkedWriteIsUncertain", []edit{
			{
				"broker/partition/wait.go", `return fmt.Errorf("%s: %w: %w", p, ErrCommitUncertain, opaque{why})`,
				`return fmt.Errorf("%s: %w: %w", p, ErrNotLeader, opaque{why})`,
			},
		}},
		{"20-the-end-is-told-before-it-is-known", "TestStoryEndIsToldWhenItIsKnown", []edit{
			{coreFile, "return c.role == leading && c.hw >= c.leso }", "return c.role == leading }"},
		}},
		{"a-batch-that-is-sent-again-is-stored-again", "TestStoryIdempotentProducer", []edit{
			{"broker/producer/table.go", "	case first == expected:\n", "	case first <= expected:\n"},
		}},
		{"22-a-refused-pipeline-is-not-fenced", "TestStoryOrderThroughAProxy", []edit{
			{"broker/rpc/forward_pipelines.go", "		st.refused = true\n", ""},
		}},
		{"the-high-watermark-waits-for-nobody", "TestClusters", []edit{
			{coreFile, "		hw = min(hw, c.held(id))\n", "		_ = id\n"},
		}},
		{"proposals-do-not-hold-the-high-watermark", "TestStoryProposedMemberIsWaitedFor", []edit{
			{coreFile, "	for _, p := range c.proposals {\n		sets = append(sets, p.isr)\n	}\n", ""},
		}},
		{"what-is-written-counts-for-what-is-durable", "TestClusters", []edit{
			{coreFile, "	if c.sync {\n		return min(p.durable, p.written)\n	}\n", ""},
		}},
		{"a-follower-says-durable-of-what-it-wrote", "TestClusters", []edit{
			{followerFile, "Durable: min(c.own.durable, c.own.written), LogStart", "Durable: c.own.written, LogStart"},
		}},
		{"a-diverging-log-is-not-cut", "TestStoryDivergingLogIsCut", []edit{
			{
				followerFile, "		do = change{kind: truncate, to: min(end, a.End)}\n",
				"		do = change{kind: truncate, to: max(c.own.written, min(end, a.End))}\n",
			},
		}},
		{"a-power-cut-is-no-suspicion", "TestStoryEligibleReplicaLosesItsEnd", []edit{
			{"internal/commitlog/root_start.go", "	case r.boot != r.id.BootID:\n", "	case false:\n"},
		}},
		{"the-start-says-what-counted-before", "TestStoryMinimumIsLoweredAfterAPowerCut", []edit{
			{"internal/commitlog/root_partition.go", "cfg.Flush == FlushSync && !rec.Loose)", "cfg.Flush == FlushSync)"},
		}},
		{"a-leader-is-always-confirmed", "TestStoryLeaderCutOffTheControllers", []edit{
			{"broker/partition/partition.go", "	return p.ConfirmedSince(time.Now().Add(-p.host.control.Timeout()))\n", "	return true\n"},
		}},
		{"a-failed-disk-is-no-suspicion", "TestStoryDiskFails", []edit{
			{"internal/commitlog/root_start.go", "	case failed != \"\":\n", "	case false:\n"},
		}},
		{"a-failed-disk-ends-nobody", "TestStoryDiskFails", []edit{
			{"internal/commitlog/root_run.go", "	case <-r.failure.Done():\n", ""},
			{"broker/partition/set.go", "		if errors.Is(err, commitlog.ErrFailed) {\n			return err\n		}\n", ""},
		}},
	}
}

// anyFrame has a follower take frames by the name of their partition alone. It
// takes the end of streams that are not needed any more out as well, which
// makes late frames rare.
func anyFrame() []edit {
	return []edit{
		{"broker/replication/followers.go", "		c.prune()\n", ""},
		{
			"broker/replication/peer.go", "	p.owner.deps.Pool.Put(buf)\n	l.taken(bytes)\n",
			`	for _, part := range p.owner.deps.Set.All() {
		if part.Topic().ID.String() == string(d.TopicID) && part.Number() == d.Partition {
			_ = part.OnData(partition.Data{
				Epoch: record.Epoch(d.LeaderEpoch), Subscription: d.Subscription, Start: record.Offset(d.StartOffset), Next: record.Offset(d.NextOffset),
				PrevEpoch: record.Epoch(d.PrevEpoch), HasPrevEpoch: d.HasPrevEpoch, Batches: d.Frames,
			})
		}
	}
	p.owner.deps.Pool.Put(buf)
	l.taken(bytes)
`,
		},
		{"broker/replication/peer.go", "	\"github.com/runnelmq/runnel/internal/lifecycle\"\n", "	\"github.com/runnelmq/runnel/broker/partition\"\n	\"github.com/runnelmq/runnel/internal/lifecycle\"\n"},
		{followerFile, "c.follow.phase != accepted || c.follow.subscription != d.Subscription || d.Epoch != c.epoch {\n		return ErrNotSubscribed", "c.follow.phase != accepted {\n		return ErrNotSubscribed"},
	}
}

// metadataMutations are those of what controllers do.
func metadataMutations() []mutation {
	return []mutation{
		{"1-any-incarnation-is-the-registered-one", "TestStoryEligibleReplicaLosesItsEnd", []edit{
			{brokersFile, "	if old != nil && old.Incarnation == r.Broker.Incarnation {\n", "	if old != nil {\n"},
			{"broker/partition/set.go", " && b.Incarnation == s.cfg.Incarnation\n", "\n"},
		}},
		{"9-any-registration-joins", "TestStoryProposedMemberStartsAnew", []edit{
			{proposeFile, "		case b.Epoch != m.Epoch:\n", "		case false:\n"},
		}},
		{"10-any-partition-epoch-is-good", "TestStoryProposalOfAnEarlierState", []edit{
			{proposeFile, "	case p.PartitionEpoch < old.PartitionEpoch:\n", "	case false:\n"},
		}},
		{"13-the-ELR-outlives-the-minimum", "TestStoryMinimumIsLowered", []edit{
			{proposeFile, "	p.ISR = isr\n", "	same := slices.Equal(p.ISR, isr)\n	p.ISR = isr\n"},
			{proposeFile, "	if p.Leader != NoLeader && len(p.ISR) >= int(p.MinISR) {\n", "	if !same && len(p.ISR) >= int(p.MinISR) {\n"},
		}},
		// What keeps this rule: the order of work, a registration that waits for
		// its fence, and a look at what is left. Small steps take the place of a
		// fence of a thousand partitions.
		{"14-in-service-before-its-fence-is-done", "TestStoryFenceRacesRegistration", []edit{
			{brokersFile, "!b.Judged || b.Held || !i.Settled(id) {", "!b.Judged || b.Held {"},
			{brokersFile, "b.Judged || b.Phase != BrokerFenced || !i.Settled(id) {", "b.Judged || b.Phase != BrokerFenced {"},
			{"controller/active/brokers.go", "	if err := a.settleBroker(ctx, id); err != nil {\n		return nil, err\n	}\n", ""},
			{"controller/active/active.go", "		if w.changes = i.Work(); len(w.changes) > 0 {\n			return\n		}\n", "		if w = a.advance(i); len(w.changes) > 0 {\n			return\n		}\n		if w.changes = i.Work(); len(w.changes) > 0 {\n			return\n		}\n"},
			{"controller/state/image.go", "const MaxChanges = 126", "const MaxChanges = 4"},
		}},
		{"another-minimum-empties-any-ELR", "TestStoryMinimumChangesWhileOneStands", []edit{
			{settleFile, "	next.MinISR, next.Sync = t.demand(p)\n", "	next.MinISR, next.Sync = t.demand(p)\n	if next.MinISR != p.MinISR {\n		next.ELR = nil\n	}\n"},
		}},
		{"a-lower-minimum-empties-the-ELR-of-the-leaderless", "TestStoryDiskCountsFromNowOn", []edit{
			{proposeFile, "p.Leader != NoLeader && len(p.ISR)", "len(p.ISR)"},
		}},
		{"a-minimum-is-lowered-before-disks-count", "TestStoryDisksTakeThePlaceOfCopies", []edit{
			{settleFile, "	if i.awaitsDisks(p) {\n", "	if false {\n"},
		}},
		{"suspect-copies-stay-eligible", "TestStoryEligibleReplicaLosesItsEnd", []edit{
			{brokersFile, "		next.ISR, next.ELR = without(p.ISR, id), without(p.ELR, id)\n", ""},
		}},
		{"any-replica-is-elected", "TestStoryEligibleReplicaTakesOver", []edit{
			{settleFile, "return i.electable(id) && slices.Contains(p.ELR, id) }", "return i.electable(id) }"},
		}},
		{"a-late-creation-brings-back-what-was-removed", "TestStoryCreationComesLate", []edit{
			{"controller/store/store.go", "return c.Base == 0 }) {\n", "return c.Base < 0 }) {\n"},
		}},
		{"a-write-is-not-fenced", "TestStoryDeposedControllerWrites", []edit{
			{
				"controller/store/store.go", "	cmps := []Compare{{Key: s.electionKey(), Create: true, Revision: int64(fence)}}\n",
				"	var cmps []Compare\n",
			},
		}},
	}
}
