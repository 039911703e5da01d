package sim

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// A row is a fault of the catalogues, CORRECTNESS §5.5 up to 55 and PROTOCOL §6
// from 61 on, and where it is shown what holds then.
type row struct {
	number int
	fault  string
	// shown are tests, in folders from the root of the module.
	shown map[string][]string
	// missing is what of it no test shows; "": nothing.
	missing string
}

// Folders with tests that show rows.
const (
	inSim         = "e2e/sim"
	inProc        = "e2e/proc"
	inMetadata    = "broker/metadata"
	inPartition   = "broker/partition"
	inReplication = "broker/replication"
	inRPC         = "broker/rpc"
	inBroker      = "broker"
	inController  = "controller"
	inSessions    = "controller/sessions"
	inState       = "controller/state"
	inStore       = "controller/store"
	inLog         = "internal/commitlog"
)

func rows() []row {
	return slices.Concat(brokerRows(), storeRows(), clusterRows())
}

func brokerRows() []row {
	return []row{
		{1, "none", map[string][]string{inSim: {"TestStoryNoFaults"}}, ""},
		{2, "leaders are killed in a loop", map[string][]string{inSim: {"TestClusters", "TestStoryRestartStorm"}, inProc: {"TestCluster_brokersKilledInTurn"}}, ""},
		{3, "a follower is killed while it catches up, then the leader", map[string][]string{inSim: {"TestStoryLeaderDiesWhileOneCatchesUp"}}, ""},
		{4, "all brokers are killed", map[string][]string{inSim: {"TestCaseAllBrokersKilled"}, inProc: {"TestCluster_allBrokersKilled"}}, ""},
		{5, "a rolling restart", map[string][]string{inSim: {"TestStoryManyHandOvers"}, inProc: {"TestCluster_rollingRestart"}}, ""},
		{6, "a storm of restarts", map[string][]string{inSim: {"TestStoryRestartStorm"}}, ""},
		{7, "a leader is paused for longer than its session", map[string][]string{inSim: {"TestStoryParkedWriteIsUncertain", "TestStoryIsolatedLeaderFallsSilent"}, inProc: {"TestCluster_brokersPausedInTurn"}}, "here its clock goes on: it is cut off, not paused"},
		{8, "a leader is paused between the commit and the answer", map[string][]string{inSim: {"TestStoryLateAnswer"}}, ""},
		{9, "a controller is paused, and writes when it is not the active one", map[string][]string{inSim: {"TestStoryDeposedControllerWrites"}, inController: {"TestDeposedController_is_fenced_by_its_first_write"}}, ""},
		{10, "a follower is paused near the lag limit, again and again", map[string][]string{inSim: {"TestStoryFollowerNearTheLag"}}, ""},
		{11, "a leader is cut off its followers only", map[string][]string{inSim: {"TestStoryEligibleReplicaTakesOver", "TestStoryMinimumChangesWhileOneStands"}}, ""},
		{12, "a leader is cut off the controllers only", map[string][]string{inSim: {"TestStoryLeaderCutOffTheControllers", "TestStorySameLeaderInANewEpoch"}, inPartition: {"TestConfirmed_byFollowers"}}, ""},
		{13, "a leader is cut off with its clients", map[string][]string{inSim: {"TestStoryIsolatedLeaderFallsSilent"}}, ""},
		{14, "one direction of a link is cut", map[string][]string{inSim: {"TestStoryParkedWriteIsUncertain", "TestStoryShrinkIsUnanswered", "TestClusters"}}, "transactions do not exist yet"},
		{15, "two of three are cut off each other, the third reaches both", map[string][]string{inSim: {"TestStoryEligibleReplicaTakesOver", "TestClusters"}}, ""},
		{16, "a link flaps", map[string][]string{inSim: {"TestStoryFlappingLink"}}, ""},
		{17, "answers to followers come late, over a change of the epoch", map[string][]string{inSim: {"TestStoryLateFrame", "TestStoryLateFrameBehindACut"}, inPartition: {"TestModel"}}, ""},
		{18, "leaders with different tails follow one another quickly", map[string][]string{inSim: {"TestStoryThreeLeadersDiverge"}, inPartition: {"TestModel"}}, ""},
		{19, "leaders change and nothing is appended", map[string][]string{inSim: {"TestCaseIdleLeaders", "TestStoryIdleFollowersComeBack"}, inPartition: {"TestEmptyLeadership"}}, ""},
		{20, "the end is asked of a leader with an old high watermark", map[string][]string{inSim: {"TestStoryEndIsToldWhenItIsKnown"}}, ""},
		{21, "a follower catches up to an old high watermark, then the leader dies", map[string][]string{inSim: {"TestStoryJoinsBelowTheStartOfTheEpoch"}}, ""},
		{22, "an expansion is carried out, and its answer lost", map[string][]string{inSim: {"TestStoryProposedMemberIsWaitedFor"}}, ""},
		{23, "a shrink is rejected, or its answer lost", map[string][]string{inSim: {"TestStoryShrinkIsUnanswered"}, inPartition: {"TestISR_rejected"}}, ""},
		{24, "a follower loses its end while what it said is under way", map[string][]string{inSim: {"TestStoryProposedMemberStartsAnew"}, inPartition: {"TestAck_outlivedByIncarnation"}}, ""},
		{25, "the ISR is the leader alone, which loses its end", map[string][]string{inSim: {"TestStoryEligibleReplicaTakesOver", "TestStoryMinimumChangesWhileOneStands"}}, ""},
		{26, "the power of all is cut", map[string][]string{inSim: {"TestStoryAllPowerCut"}, inLog: {"TestRoot_powerCuts"}}, ""},
		{27, "the power of one is cut while the others are paused", map[string][]string{inSim: {"TestStoryPowerCutAmongTheIsolated"}}, ""},
		{28, "a broker comes back with an empty disk, or another's", map[string][]string{inSim: {"TestStoryEmptyDisk"}, inLog: {"TestOpenRoot_refusesWhatIsNotItsOwn"}}, ""},
		{29, "a bit flips", map[string][]string{inSim: {"TestStoryBitFlip"}, inPartition: {"TestDamage"}, inLog: {"TestRecovery_bitFlips"}}, ""},
		{30, "files are cut short", map[string][]string{inLog: {"TestRecovery_filesCutShort", "TestRecovery_missingSegment", "TestRecovery_oneSlotIsEnough", "TestRecovery_epochsAreRebuilt"}}, ""},
		{31, "a batch is torn", map[string][]string{inSim: {"TestClusters"}, inLog: {"TestLog_powerCutAtEverySyncPoint"}}, ""},
		{32, "a sync fails", map[string][]string{inSim: {"TestStoryDiskFails", "TestClusters"}, inBroker: {"TestDiskFails"}}, ""},
		{34, "a disk is full", map[string][]string{inSim: {"TestClusters"}, inProc: {"TestFullDisk"}}, ""},
		{35, "a disk hangs", map[string][]string{inSim: {"TestStoryLeaderDiskHangs", "TestClusters"}, inPartition: {"TestStalled"}}, ""},
	}
}

func storeRows() []row {
	return []row{
		{49, "etcd has no leader, or no quorum", map[string][]string{inSim: {"TestClusters", "TestStoryNoController"}, inController: {"TestStoreOutage_costs_admin_calls_only"}, inProc: {"TestCluster_controllersKilled"}}, ""},
		{50, "etcd forgets what a watch has missed", map[string][]string{inSim: {"TestClusters"}, inController: {"TestCompactedWatch_resyncs_once"}}, ""},
		{51, "an answer of etcd is lost, and what it was about was done", map[string][]string{inSim: {"TestClusters"}, inController: {"TestAmbiguousCommits_are_found_out"}}, ""},
		{52, "all leases end", map[string][]string{inSim: {"TestStoryAllLeasesEnd", "TestClusters"}}, ""},
		{53, "etcd is full", map[string][]string{inController: {"TestFullStore_is_reported"}}, ""},
		{54, "replicas are moved, and moved back", nil, "replicas can't be moved yet"},
		{55, "a topic is deleted and made again while brokers are down", map[string][]string{inSim: {"TestStoryTopicComesBack"}}, ""},
		{58, "records are deleted while leaders change", map[string][]string{inSim: {"TestClusters", "TestStoryDeletedRecordsStayAway"}}, ""},
	}
}

func clusterRows() []row {
	return []row{
		{61, "all brokers are killed, and no machine", map[string][]string{inSim: {"TestCaseAllBrokersKilled"}, inProc: {"TestCluster_allBrokersKilled"}}, ""},
		{62, "the power of all brokers is cut", map[string][]string{inSim: {"TestStoryAllPowerCut", "TestStoryMinimumIsLoweredAfterAPowerCut"}, inController: {"TestSuspectReplica_is_elected_as_the_last_resort"}}, ""},
		{63, "the only replica is killed", map[string][]string{inProc: {"TestProduceCommandThroughKill9"}, inBroker: {"TestKill"}}, ""},
		{64, "the controller is cut off all brokers", map[string][]string{inSim: {"TestCaseControllerIsolated"}, inController: {"TestController_that_hears_nobody_fences_nobody", "TestSoleController_that_heard_nobody_fences_nobody_afterwards", "TestIsolatedController_resigns"}}, ""},
		{65, "a probe is refused, and the broker lives", map[string][]string{inController: {"TestUnreachableAddress_of_a_live_session_changes_nothing"}}, ""},
		{66, "the fence of one process meets the registration of the next", map[string][]string{inSim: {"TestStoryFenceRacesRegistration"}}, ""},
		{67, "the controller dies between the steps of a fence", map[string][]string{inSim: {"TestStoryControllerDiesInAFence"}, inController: {"TestNewController_finishes_a_fence"}}, ""},
		{68, "the minimum is lowered while the ISR is the leader alone, which dies", map[string][]string{inSim: {"TestStoryMinimumIsLowered", "TestStoryDisksTakeThePlaceOfCopies"}}, ""},
		{69, "a directory is gone under a clean marker", map[string][]string{inSim: {"TestStoryDirectoryIsGone"}, inLog: {"TestRoot_OpenPartition_lost"}}, ""},
		{70, "a follower is away for longer than tombstones are kept", map[string][]string{inPartition: {"TestClean_followerAwayTooLong", "TestClean_followerOvertaken"}}, ""},
		{71, "leaders of an idle partition change", map[string][]string{inSim: {"TestCaseIdleLeaders"}}, ""},
		{72, "a long rest, and one record", map[string][]string{inSim: {"TestStoryIdleForLong"}}, "the rest takes 20 minutes"},
		{73, "a leader is paused for 40 s, within its session", map[string][]string{inPartition: {"TestLag"}, inSessions: {"TestRoster_judges_nobody_after_standing_still"}, inProc: {"TestCluster_leaderPausedWithinItsSession"}}, ""},
		{74, "an emptied follower catches up with 200 partitions", map[string][]string{inReplication: {"TestCatchUp_isThrottledAndAside", "TestCatchUp_restsWhileClientsWrite", "TestSlowRead_holdsUpNobodyInSync"}, inPartition: {"TestSet_placesWhatChanged"}, inProc: {"TestCluster_catchUpAside"}}, ""},
		{75, "a proxy of 1,000 members restarts", map[string][]string{inRPC: {"TestGroups_restartsMoveNothing"}, inProc: {"TestGroups_coordinatorKilled"}}, ""},
		{76, "100 changes of the leader under one stream through a proxy", map[string][]string{inSim: {"TestStoryManyHandOvers", "TestStoryOrderThroughAProxy"}, inRPC: {"TestForward_orderOverManyMoves"}}, "the 100 are in soaks, 6 in every run"},
		{77, "a rolling restart, and nothing is uncertain", map[string][]string{inSim: {"TestStoryManyHandOvers"}, inProc: {"TestCluster_rollingRestart"}}, ""},
		{78, "two of three controllers are emptied", map[string][]string{inController: {"TestEmbeddedEtcd_is_not_made_by_accident"}, inPartition: {"TestAbsenceDeletesNothing"}, inMetadata: {"TestOutlivesAnotherCluster"}, inProc: {"TestCluster_twoControllersEmptied"}}, ""},
		{79, "etcd is restored from a backup", map[string][]string{inStore: {"TestBackup_is_restored_far_ahead_of_what_may_have_happened_since"}, inProc: {"TestCluster_metadataRestored"}}, ""},
		{80, "the first group comes while one of three brokers is up", map[string][]string{inSim: {"TestCaseInternalTopicGrows"}, inState: {"TestInternalTopics_are_not_for_users"}}, ""},
	}
}

// Each row says where it is shown, by tests that there are, or what is missing.
func TestRows(t *testing.T) {
	tests := map[string]bool{} // that were found
	seen := map[int]bool{}
	for _, r := range rows() {
		if seen[r.number] {
			t.Errorf("row %d is there twice", r.number)
		}
		seen[r.number] = true
		if len(r.shown) == 0 && r.missing == "" {
			t.Errorf("row %d (%s) is not shown, and nothing is said to be missing", r.number, r.fault)
		}
		if r.missing != "" {
			t.Logf("row %d (%s): %s", r.number, r.fault, r.missing)
		}
		for dir, names := range r.shown {
			for _, name := range names {
				if at := dir + "." + name; !tests[at] {
					if tests[at] = exists(t, dir, name); !tests[at] {
						t.Errorf("row %d (%s): there is no test %s in %s: name the one that shows the row now, or say what is missing", r.number, r.fault, name, dir)
					}
				}
			}
		}
	}
	for _, span := range [][2]int{{1, 31}, {35, 35}, {49, 55}, {61, 79}} {
		for n := span[0]; n <= span[1]; n++ {
			if !seen[n] {
				t.Errorf("row %d is missing", n)
			}
		}
	}
}

// exists says whether a folder has a test.
func exists(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("../..", filepath.FromSlash(dir), "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s: %d files, %v", dir, len(files), err)
	}
	is := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(`)
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if is.Match(b) {
			return true
		}
	}
	return false
}
