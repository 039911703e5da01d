// Package sim runs whole clusters in memory, under faults, and looks at every
// replica after every step.
//
// Controllers and brokers are the real ones, with their Run loops, in one
// synctest bubble: on a network, disks and a metadata store made for it. The
// disks forget what was not synced when the power is cut, the network holds
// back, delays and resets, and the store loses answers, history and leases.
// Clients write numbered records and read them back through the public API. A
// run is faults by a schedule for half a minute of its own time, then healing,
// then a check that all is there, equal everywhere, and at rest.
//
// A seed makes the cluster, its faults and what its clients send. The order in
// which goroutines run is not the seed's, so that a rare violation may take some
// runs of its seed to come back.
//
// The invariants are those of the catalogue: I1 and I3 to I6 by what clients were
// told and read; I2 and I11 by the batches that any copy has below its high
// watermark; I8, I12 and I13 by how far copies have come, on the disk where that
// counts; I5, I14 and I15 also by what members of a consumer group are handed and
// told is committed; I9 and I10 by the leaders that brokers and the store show; I17 by where
// logs begin; I18 by what is there after power cuts; I19 by how a run ends; I20 by
// processes whose disks fail; I21 by each transaction when it is made. All but the
// first and those of the end are looked at after every step.
//
// Random faults meet some moments rarely. Stories bring one partition there, by
// cuts, delays and kills at the right time, and are judged like any other run.
//
//	go test ./e2e/sim                                    a few seeds, and all stories
//	RUNNEL_SOAK_SEEDS=500 go test -timeout 2h ./e2e/sim  many, from RUNNEL_SOAK_FROM (1) on
//	RUNNEL_SIM_SEED=15 go test ./e2e/sim                 one
//	RUNNEL_SIM_LOG=info RUNNEL_SIM_LOG_FILE=FILE         keeps what all processes and the schedule wrote
//	RUNNEL_SIM_MUTATIONS=all go test -timeout 2h -run TestMutations ./e2e/sim
//
// The last builds the package again and again, each time with one rule of the
// protocol taken out by an overlay, and fails when the runs do not notice.
// TestRows says where each fault of the catalogues is shown.
package sim
