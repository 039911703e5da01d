# Every tool is pinned in a go.mod under internal/tools and built by the Go
# command when first needed: there is nothing to install but Go and make.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# No C anywhere: one static binary. Only the race detector needs it.
export CGO_ENABLED := 0

TOOL := go tool -modfile=internal/tools/go.mod
LINT := go tool -modfile=internal/tools/lint/go.mod golangci-lint

# Where `make dev` keeps its data, and what else to pass to it.
DATA ?= runnel-data
DEV_FLAGS ?=
# Where `make cluster` keeps its data, and what else to pass to it.
CLUSTER_DATA ?= runnel-cluster
CLUSTER_FLAGS ?=
# How long the tests of one package may take before they count as stuck: a slow
# machine with a race detector needs minutes for some.
TEST_TIMEOUT := 30m
# How long each fuzz target runs, and how many power-cut histories are tried.
FUZZTIME ?= 10s
SOAK_SEEDS ?= 10000
# How long random faults hurt a cluster of real processes, in `make faults` and
# in a soak; and how often `make failover` loses each kind of leader.
FAULTS ?= 60s
SOAK_FAULTS ?= 10m
# For how long a soak keeps connections idle.
SOAK_PINGS ?= 5m
TRIALS ?= 20
# How many random clusters `make sim` tries.
SIM_SEEDS ?= 100
# What the benchmark writes as JSON beside its text.
BENCH_JSON ?= bin/bench.json

# Where goroutines meet.
RACE_PACKAGES := ./broker/... ./client/... ./cmd/... ./controller/... \
	$(addprefix ./internal/,commitlog/... lifecycle/... record/... rpcserver/... telemetry/... vfs/... wire/...)
CROSS := linux/amd64 linux/arm64 darwin/arm64 windows/amd64

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: all
all: check-generate lint build test ## Check generated code, lint, build, test

.PHONY: build
build: ## Build bin/runnel, one static binary
	go build -o bin/runnel ./cmd/runnel

.PHONY: dev
dev: build ## Run a whole node on this machine, data in ./runnel-data
	bin/runnel dev --data $(DATA) $(DEV_FLAGS)

.PHONY: cluster
cluster: build ## Run a whole cluster on this machine, data in ./runnel-cluster
	go build -o bin/local ./deployments/local
	bin/local --runnel bin/runnel --data $(CLUSTER_DATA) $(CLUSTER_FLAGS)

.PHONY: generate
generate: ## Generate api/ from proto/
	$(TOOL) buf generate

.PHONY: check-generate
check-generate: ## Fail when api/ is not what proto/ generates, or proto/ is not clean
	$(TOOL) buf lint
	$(TOOL) buf format --diff --exit-code
	@out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	$(TOOL) buf generate --output "$$out" && \
	diff -r api "$$out/api" || { echo "api/ is stale: run make generate, and commit"; exit 1; }

.PHONY: check-breaking
check-breaking: ## Fail when proto/ breaks what BASE (default: the commit before) promised
	$(TOOL) buf breaking --against '.git#ref=$(or $(BASE),HEAD~1)'

.PHONY: fmt
fmt: ## Format Go and proto files
	$(LINT) fmt
	$(TOOL) buf format --write

.PHONY: lint
lint: ## Run all linters, the import rules among them
	$(LINT) config verify
	$(LINT) fmt --diff
	$(LINT) run --allow-parallel-runners
	go mod tidy -diff

.PHONY: test
test: ## Run all tests, the end-to-end ones on a part of their input
	go test -timeout $(TEST_TIMEOUT) ./...

.PHONY: race
race: ## Run the tests of what has goroutines under the race detector
	CGO_ENABLED=1 go test -race -short -timeout $(TEST_TIMEOUT) $(RACE_PACKAGES)

# Go 1.26 now and then takes the end of FUZZTIME itself for a failure
# (https://go.dev/issue/75804). Whatever an input does is told as more than that.
.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME
	@out=$$(mktemp); trap 'rm -f "$$out"' EXIT; \
	grep -rlE '^func Fuzz' --include='*_test.go' . | xargs -n 1 dirname | sort -u | while read -r dir; do \
		go test -list '^Fuzz' "$$dir" | { grep '^Fuzz' || true; } | while read -r target; do \
			echo "fuzz $$dir $$target"; \
			go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$dir" | tee "$$out" || \
			{ grep -qx '    context deadline exceeded' "$$out" && ! grep -qE 'Failing input|seed corpus entry|panic:|_test\.go' "$$out"; } || exit 1; \
		done; \
	done

.PHONY: e2e
e2e: ## Run the end-to-end tests on their whole input
	RUNNEL_E2E=full go test -count 1 -timeout 30m -v ./e2e/...

.PHONY: bench
bench: build ## Measure the raw ceiling, produce and consume; text, and JSON in bin/
	go run ./e2e/bench --runnel bin/runnel --json $(BENCH_JSON) $(BENCH_FLAGS)

.PHONY: faults
faults: ## Hurt a cluster of real processes at random, under load, for FAULTS; nothing may be lost
	RUNNEL_FAULTS=$(FAULTS) go test -count 1 -timeout 60m -v -run 'TestCluster_randomFaults' ./e2e/proc

.PHONY: failover
failover: ## Measure how long lost leaders are missed: TRIALS of each kind
	RUNNEL_TRIALS=$(TRIALS) go test -count 1 -timeout 60m -v -run 'TestFailoverTimes' ./e2e/proc

.PHONY: sim
sim: ## Try SIM_SEEDS clusters in memory under random faults
	RUNNEL_SOAK_SEEDS=$(SIM_SEEDS) go test -count 1 -timeout 60m ./e2e/sim

.PHONY: mutations
mutations: ## Take each rule of the protocol out once: the clusters in memory must notice
	RUNNEL_SIM_MUTATIONS=all go test -count 1 -timeout 60m -run TestMutations -v ./e2e/sim

.PHONY: powercuts
powercuts: ## Try SOAK_SEEDS histories of a log with power cuts
	RUNNEL_SOAK_SEEDS=$(SOAK_SEEDS) go test -count 1 -timeout 120m ./internal/commitlog/... ./internal/vfs/...

.PHONY: soak
soak: powercuts sim mutations ## Power cuts, clusters in memory, then random faults for SOAK_FAULTS, then silence: hours
	$(MAKE) faults FAULTS=$(SOAK_FAULTS)
	RUNNEL_PINGS=$(SOAK_PINGS) go test -count 1 -timeout 30m -run 'TestPings' ./e2e/proc

.PHONY: cross
cross: ## Build for every platform
	@for target in $(CROSS); do \
		echo "build $$target"; \
		GOOS=$${target%/*} GOARCH=$${target#*/} go build -o /dev/null ./cmd/runnel; \
	done

.PHONY: cover
cover: ## Measure test coverage; coverage.out
	go test -short -timeout $(TEST_TIMEOUT) -coverpkg=./broker/...,./client/...,./cmd/...,./controller/...,./internal/... -coverprofile=coverage.out ./...
	go tool cover -func=coverage.out | tail -n 1

.PHONY: clean
clean: ## Remove what was built; data stays
	rm -rf bin coverage.out
