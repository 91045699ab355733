# `make` lists what there is. What CI runs is a target here, and nothing else.
#
#   GO       the go command              go
#   PYTHON   a Python 3.8 or later       the first good one on PATH (tools/python.sh)

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

GO ?= go
# gin without its binding for msgpack, which nobody uses here: that one dependency takes a minute and 1.3 GB to compile.
export GOFLAGS := $(filter-out -tags=%,$(GOFLAGS)) -tags=nomsgpack
VERSION := $(shell cat VERSION)
LDFLAGS := -s -w -X main.version=$(VERSION)

# Each family of tools has a go.mod of its own: pinned, without effect on the module graph of those who import ours.
LINT := $(GO) tool -modfile=tools/lint/go.mod golangci-lint
BUF := $(GO) tool -modfile=tools/buf/go.mod buf
DEADCODE := $(GO) tool -modfile=tools/check/go.mod deadcode
SHFMT := $(GO) tool -modfile=tools/check/go.mod shfmt

SCRIPTS := .ci/run $(wildcard tools/*.sh test/*.sh test/*/*.sh examples/*/*.sh)
export GO

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# ---- run and build

.PHONY: run
run: ## Set everything up and serve the example model in the foreground
	@tools/run.sh

.PHONY: build
build: ## Build bin/flambeau (no cgo), bin/flambeau-onnx with ONNX Runtime, and bin/libflambeau.so (for Python workers)
	@tools/prerequisites.sh
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/flambeau ./cmd/flambeau
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/flambeau-onnx ./cmd/flambeau-onnx
	@tools/onnxruntime.sh bin/lib
	CGO_ENABLED=1 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -buildmode=c-shared -o bin/libflambeau.so ./cmd/libflambeau

.PHONY: wheel
wheel: ## Build dist/flambeau-*.whl: server, worker, archiver and the torchserve command
	@tools/prerequisites.sh python
	"$$(tools/python.sh)" tools/wheel/build.py --out dist

# ---- tests

.PHONY: test
test: ## Set up and pass all the tests, those with real torch too
	@tools/test.sh

.PHONY: test-short
test-short: ## Go tests without real processes, with the race detector
	$(GO) test -race -short ./...

.PHONY: test-py
test-py: ## Python tests only
	@tools/test.sh python

.PHONY: test-py-all
test-py-all: ## Python tests on every Python from 3.8 to 3.13 that is installed
	@tools/test-py-all.sh

.PHONY: test-e2e
test-e2e: ## End-to-end tests only: the wheel's server with real workers
	@tools/test.sh e2e

.PHONY: schemathesis
schemathesis: ## Send what schemathesis makes of /openapi.json, EXAMPLES (200) for each operation
	@tools/test.sh setup
	FLAMBEAU_SCHEMATHESIS=$${EXAMPLES:-200} FLAMBEAU_TEST_REQUIRED=1 FLAMBEAU_TEST_PYTHON="$$PWD/.venv-test/bin/python" \
		$(GO) test -count=1 -timeout 2h -v -run '^TestDescriptionIsTrue$$' ./test/store

.PHONY: conformance
conformance: ## Compare with the recorded answers of TorchServe (needs ../shared/conformance)
	@tools/conformance.sh $(CONFORM)

.PHONY: compare
compare: ## Run the corpus of handlers on a real TorchServe and on Flambeau, and compare (needs Java)
	@tools/compare.sh $(COMPARE)

.PHONY: oip-clients
oip-clients: build ## Run the clients of the Open Inference Protocol on a real Triton and on Flambeau, and compare (needs ../shared/oip)
	@test/oip/matrix.sh

.PHONY: swaps
swaps: ## Change models 1,000 times under load, with kills and broken archives, and print the figures (needs Java)
	@tools/swaps.sh

.PHONY: bench-onnx
bench-onnx: ## Compare servers of ONNX models in one run, and with ONNX Runtime in a tight loop (needs ../shared/bench)
	@tools/bench-onnx.sh

.PHONY: bench-scheduling
bench-scheduling: ## Measure scheduling with real processes: a lone client, 64 clients, overload, a load step (needs Java; about ten minutes)
	@tools/bench-scheduling.sh

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (20s)
	@tools/fuzz.sh

# ---- quality

.PHONY: lint
lint: ## Linters and formatters over Go, Python and shell, changing nothing
	@tools/lint.sh

.PHONY: fmt
fmt: ## Format Go, Python and shell files
	$(LINT) fmt
	.venv-lint/bin/ruff format python_compat examples tools
	.venv-lint/bin/ruff check --fix-only python_compat examples tools
	$(SHFMT) -w $(SCRIPTS)

.PHONY: check
check: lint fresh ## lint and fresh

.PHONY: deadcode
deadcode: ## Report code that nothing reaches (the SDK's exports look dead, and are not)
	$(DEADCODE) -test ./...

.PHONY: ci
ci: ## What CI runs
	@bash .ci/run

# ---- generated files

.PHONY: proto
proto: ## Lint proto/ and generate its Go code (the first time builds buf: about three minutes)
	$(BUF) lint
	$(BUF) format -w
	$(BUF) generate

.PHONY: docs
docs: ## Write docs/configuration.md from internal/config
	$(GO) run ./cmd/flambeau docs configuration > docs/configuration.md

.PHONY: tables
tables: ## Write plugins/onnx/tokenize/tables.go from Hugging Face's tokenizers (ten seconds)
	@tools/tables.sh

.PHONY: fresh
fresh: ## Fail when go.mod or a generated file is not what its source gives
	$(GO) mod tidy -diff
	$(GO) mod verify
	@tools/generated.sh

.PHONY: clean
clean: ## Remove what was built and the environments that make made
	rm -rf bin dist .build .venv-run .venv-test .venv-lint .venv-peer .venv-py3.* examples/*/store examples/*/run
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
