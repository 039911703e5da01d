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
// Random faults meet some moments rarely. Stories bring one partition there, by
// cuts, delays and kills at the right time, and are judged like any other run.
//
//	go test ./e2e/sim                                    a few seeds, and all stories
//	RUNNEL_SOAK_SEEDS=500 go test -timeout 2h ./e2e/sim  many
//	RUNNEL_SIM_SEED=15 go test ./e2e/sim                 one
//	RUNNEL_SIM_LOG=info RUNNEL_SIM_LOG_FILE=FILE         keeps what all processes and the schedule wrote
//	RUNNEL_SIM_MUTATIONS=all go test -timeout 2h -run TestMutations ./e2e/sim
//
// The last builds the package again and again, each time with one rule of the
// protocol taken out by an overlay, and fails when the runs do not notice.
// TestRows says where each fault of the catalogues is shown.
package sim
